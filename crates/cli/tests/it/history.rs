//! Transfers are predicted, and recorded with their predicted and actual times.

use crate::calibrate::with_profiles;
use crate::support::*;

const SQL: &str = "select * from lineitem";

fn json(outcome: &Outcome) -> serde_json::Value {
    serde_json::from_str(outcome.text()).expect("JSON")
}

/// Fetches over TCP, as from another host, and returns the report.
fn fetch(profiles: &str, node: &Node, sql: &str, folder: &Folder) -> serde_json::Value {
    let (file, stats) = (folder.arg("rows.arrow"), folder.arg("stats.json"));
    let uri = format!("{}?shm=false", node.uri);
    with_profiles(profiles, &["fetch", &uri, sql, "-o", &file, "--stats", &stats]).succeeds();
    serde_json::from_str(&std::fs::read_to_string(stats).expect("the statistics")).expect("JSON")
}

#[test]
fn predictions_are_recorded_with_the_actual_times() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let folder = Folder::new();
    let profiles = folder.arg("profiles");
    let history = |args: &[&str]| with_profiles(&profiles, &[&["tune", "--history"], args].concat());
    history(&[]).fails(USAGE, &["no transfer is recorded", "hint:"]);
    // Nothing is known of the link, so nothing is predicted.
    let cold = fetch(&profiles, &node, SQL, &folder);
    assert!(cold.pointer("/plan/predicted_seconds").is_none(), "{cold}");
    with_profiles(&profiles, &["calibrate", "-q", &node.uri, "--seconds", "0.3"]).succeeds();
    let warm = fetch(&profiles, &node, SQL, &folder);
    let predicted = warm.pointer("/plan/predicted_seconds").and_then(serde_json::Value::as_f64);
    assert!(predicted.is_some_and(|seconds| seconds > 0.0 && seconds < 10.0), "{warm}");
    // The window is that of a link with hardly any round trip, not the default for unknown links.
    assert!(warm["plan"]["window_batches"].as_u64() < cold["plan"]["window_batches"].as_u64(), "{warm}");
    let outcome = with_profiles(&profiles, &["--json", "tune", "--history", &node.uri]).succeeds();
    let links = json(&outcome);
    assert_eq!((&links[0]["transfers"], &links[0]["predicted"]), (&2.into(), &1.into()), "{outcome}");
    let facts = links[0]["facts"].as_array().expect("facts");
    assert!(facts.iter().all(|fact| fact["rows"] == 60_175 && fact["carrier"] == "tcp"), "{outcome}");
    assert_eq!(facts[1]["predicted_seconds"].as_f64(), predicted);
    // A statement is recorded as a hash and a length, without its text.
    assert!(!outcome.text().contains("lineitem"), "{outcome}");
    let said = history(&[&node.uri]).succeeds();
    for word in ["link", "mean error", "60,175", &node.uri] {
        assert!(said.text().contains(word), "{word}: {said}");
    }
    history(&["lightship://elsewhere"]).fails(USAGE, &["elsewhere"]);
}

#[test]
fn tune_gives_the_plan_of_fetch() {
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
    // The window covers the round trip of the hellos, which takes some milliseconds longer on a busy machine.
    let window = |of: &serde_json::Value| of["plan"]["window_batches"].as_u64().expect("a window");
    assert!(window(&tuned).abs_diff(window(&fetched)) <= 8, "{tuned} {fetched}");
}

#[test]
fn unreadable_profiles_and_histories_are_ignored() {
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
    assert!(outcome.stderr.contains("continuing without"), "{outcome}");
    // A folder that can't be written does not make the fetch fail either.
    let file = folder.arg("a-file");
    std::fs::write(&file, "").expect("written");
    let outcome = with_profiles(&file, &["fetch", &uri, SQL, "-o", &folder.arg("rows.arrow")]).succeeds();
    assert!(outcome.stderr.contains("cannot record this transfer"), "{outcome}");
}
