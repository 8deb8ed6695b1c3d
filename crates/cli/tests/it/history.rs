//! Transfers are predicted, and what happened is kept beside it.

use crate::calibrate::with_profiles;
use crate::support::*;

const SQL: &str = "select * from lineitem";

fn json(outcome: &Outcome) -> serde_json::Value {
    serde_json::from_str(outcome.text()).expect("JSON")
}

/// Fetches by TCP, as from another host, and answers what was reported.
fn fetch(profiles: &str, node: &Node, sql: &str, folder: &Folder) -> serde_json::Value {
    let (file, stats) = (folder.arg("rows.arrow"), folder.arg("stats.json"));
    let uri = format!("{}?shm=false", node.uri);
    with_profiles(profiles, &["fetch", &uri, sql, "-o", &file, "--stats", &stats]).succeeds();
    serde_json::from_str(&std::fs::read_to_string(stats).expect("the statistics")).expect("JSON")
}

#[test]
fn predictions_stand_beside_what_happened() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let folder = Folder::new();
    let profiles = folder.arg("profiles");
    let history = |args: &[&str]| with_profiles(&profiles, &[&["tune", "--history"], args].concat());
    history(&[]).fails(USAGE, &["no transfer was kept", "hint:"]);
    // Nothing is known of the link, and nothing is said.
    let cold = fetch(&profiles, &node, SQL, &folder);
    assert!(cold.pointer("/plan/predicted_seconds").is_none(), "{cold}");
    with_profiles(&profiles, &["calibrate", "-q", &node.uri, "--seconds", "0.3"]).succeeds();
    let warm = fetch(&profiles, &node, SQL, &folder);
    let predicted = warm.pointer("/plan/predicted_seconds").and_then(serde_json::Value::as_f64);
    assert!(predicted.is_some_and(|seconds| seconds > 0.0 && seconds < 10.0), "{warm}");
    // The window is that of a link without a round trip to speak of, not the one for whatever link.
    assert!(warm["plan"]["window_batches"].as_u64() < cold["plan"]["window_batches"].as_u64(), "{warm}");
    let outcome = with_profiles(&profiles, &["--json", "tune", "--history", &node.uri]).succeeds();
    let links = json(&outcome);
    assert_eq!((&links[0]["transfers"], &links[0]["predicted"]), (&2.into(), &1.into()), "{outcome}");
    let facts = links[0]["facts"].as_array().expect("facts");
    assert!(facts.iter().all(|fact| fact["rows"] == 60_175 && fact["carrier"] == "tcp"), "{outcome}");
    assert_eq!(facts[1]["predicted_seconds"].as_f64(), predicted);
    // Of the statement there is what tells it from another, and no word of it.
    assert!(!outcome.text().contains("lineitem"), "{outcome}");
    let said = history(&[&node.uri]).succeeds();
    for word in ["link", "mean error", "60,175", &node.uri] {
        assert!(said.text().contains(word), "{word}: {said}");
    }
    history(&["lightship://elsewhere"]).fails(USAGE, &["elsewhere"]);
}

#[test]
fn the_plan_of_tune_is_the_one_of_fetch() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let folder = Folder::new();
    let profiles = folder.arg("profiles");
    with_profiles(&profiles, &["calibrate", "-q", &node.uri, "--seconds", "0.3"]).succeeds();
    let tuned = json(
        &with_profiles(
            &profiles,
            &["--json", "tune", &node.uri, "--rows", "100000000", "--row-bytes", "100"],
        )
        .succeeds(),
    );
    let fetched = fetch(&profiles, &node, SQL, &folder);
    assert_eq!(tuned["plan"]["message_bytes"], fetched["plan"]["message_bytes"], "{tuned} {fetched}");
    // A window covers the round trip of its own hellos, which a busy machine makes some milliseconds longer.
    let window = |of: &serde_json::Value| of["plan"]["window_batches"].as_u64().expect("a window");
    assert!(window(&tuned).abs_diff(window(&fetched)) <= 8, "{tuned} {fetched}");
}

#[test]
fn what_can_not_be_read_is_nothing_known() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let folder = Folder::new();
    let profiles = folder.arg("profiles");
    fetch(&profiles, &node, SQL, &folder);
    for entry in std::fs::read_dir(&profiles).expect("a folder") {
        let history = entry.expect("an entry").path();
        std::fs::write(&history, b"\xff no history").expect("written");
        std::fs::write(history.with_extension("json"), "no profile").expect("written");
    }
    let stats = folder.arg("stats.json");
    let uri = format!("{}?shm=false", node.uri);
    let outcome =
        with_profiles(&profiles, &["fetch", &uri, SQL, "-o", &folder.arg("rows.arrow"), "--stats", &stats])
            .succeeds();
    assert!(outcome.stderr.contains("going on without"), "{outcome}");
    // A folder that can't be written loses no rows either.
    let file = folder.arg("a-file");
    std::fs::write(&file, "").expect("written");
    let outcome = with_profiles(&file, &["fetch", &uri, SQL, "-o", &folder.arg("rows.arrow")]).succeeds();
    assert!(outcome.stderr.contains("is not kept"), "{outcome}");
}
