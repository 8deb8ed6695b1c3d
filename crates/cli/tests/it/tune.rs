//! Plans from explicit numbers: the iterations of Belghoul's thesis and where they stop, text and JSON,
//! and the errors of impossible options.

use lightship_tuner::thesis::ITERATIONS;
use serde_json::Value;

use crate::support::*;

/// The thesis' network of 10 Gbit/s, its query Q3 and its limits of sizes.
const THESIS: [&str; 13] = [
    "tune",
    "--alpha",
    "2.02e-11,1.17e-8,4.5e-4",
    "--beta",
    "1.24e-14,2.73e-10,4.35e-6",
    "--volume-bytes",
    "4454718741",
    "--row-bytes",
    "27",
    "--message-bytes",
    "512..32767",
    "--batch-bytes-max",
    "30000000",
];

#[track_caller]
fn thesis(args: &[&str]) -> Value {
    json(&[&THESIS[..], args].concat())
}

#[track_caller]
fn json(args: &[&str]) -> Value {
    let outcome = lightship(&[args, &["--json"]].concat()).succeeds();
    assert_eq!(outcome.stderr, "");
    assert_eq!(outcome.text().lines().count(), 1, "{outcome}");
    serde_json::from_str(outcome.text()).expect("JSON on stdout")
}

#[track_caller]
fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {value}"))
}

/// Compares with a published figure, within a relative tolerance.
#[track_caller]
fn near(found: f64, published: f64, part: f64) {
    assert!((found / published - 1.0).abs() <= part, "{found}, and published {published}");
}

#[test]
fn newton_takes_the_iterations_of_the_thesis() {
    for rules in [&["--halt", "gain=1s"] as &[_], &["--method", "newton"], &[]] {
        let answer = thesis(&[rules, &["--trace"]].concat());
        let rows = answer["iterations"].as_array().expect("iterations");
        for (at, row) in rows.iter().enumerate() {
            assert_eq!(row["k"], at, "{row}");
        }
        for (k, (batch_bytes, message_bytes, seconds)) in (1..).zip(ITERATIONS) {
            // The thesis gives 4 digits.
            near(number(&rows[k], "/batch_bytes"), batch_bytes, 5e-4);
            near(number(&rows[k], "/message_bytes"), message_bytes, 5e-4);
            near(number(&rows[k], "/seconds"), seconds, 0.015);
            near(number(&rows[k], "/batch_rows"), (batch_bytes / 27.0).floor(), 0.02);
            assert!(number(&rows[k], "/gain_seconds") > 0.0);
        }
    }
}

#[test]
fn the_halt_rules_stop_where_the_thesis_does() {
    for (rules, k, reason) in [
        ("gain=1s", 17, "gain"),
        ("gain=1000ms", 17, "gain"),
        ("price=100KB/s", 15, "price"),
        ("gain=1s,price=100KB/s", 15, "price"),
        ("price=100KB/s, gain=10s", 11, "gain"),
    ] {
        let answer = thesis(&["--halt", rules, "--trace"]);
        assert_eq!(answer["method"], "newton");
        assert_eq!((&answer["halt"]["k"], &answer["halt"]["reason"]), (&k.into(), &reason.into()), "{rules}");
        let (plan, row) = (&answer["plan"], &answer["iterations"][k]);
        assert_eq!(plan["batch_rows"], row["batch_rows"], "{rules}");
        assert_eq!(row["chosen"], true);
        let apart = number(plan, "/message_bytes") - number(row, "/message_bytes");
        assert!(apart.abs() <= 1.0, "{plan} {row}");
        near(number(plan, "/predicted_seconds"), ITERATIONS[k - 1].2, 0.015);
        assert_eq!(plan["window_batches"], 1);
        assert_eq!(plan["memory_bytes"], plan["batch_bytes"]);
    }
    // The thesis has 43,355 rows and 22,382 bytes.
    let plan = &thesis(&["--halt", "gain=1s"])["plan"];
    near(number(plan, "/batch_rows"), 43_355.0, 5e-4);
    near(number(plan, "/message_bytes"), 22_382.0, 5e-4);
}

#[test]
fn the_answer_has_the_plan_the_reasons_and_the_strategies() {
    let answer = thesis(&[]);
    assert_eq!(answer["method"], "plan");
    assert!(answer.get("iterations").is_none() && answer.get("halt").is_none(), "{answer}");
    assert_eq!(answer["query"]["rows"], 164_989_583);
    assert_eq!(number(&answer, "/link/rtt_seconds"), 4.5e-4);
    for key in
        ["batch_rows", "batch_bytes", "message_bytes", "window_batches", "memory_bytes", "predicted_seconds"]
    {
        assert!(number(&answer, &format!("/plan/{key}")) > 0.0);
        assert!(number(&answer, &format!("/strategies/4/{key}")) > 0.0);
    }
    let (plan, why) = (&answer["plan"], &answer["why"]);
    let parts = ["waiting_seconds", "first_messages_seconds", "messages_seconds"];
    let sum: f64 = parts.iter().map(|part| why[part].as_f64().expect("seconds")).sum();
    near(sum, number(plan, "/predicted_seconds"), 1e-6);
    let names: Vec<_> =
        answer["strategies"].as_array().expect("five").iter().map(|s| &s["strategy"]).collect();
    assert_eq!(
        names,
        ["default", "largest_message", "largest_batch", "largest_both", "batch_of_one_message"]
    );
    near(number(&answer, "/strategies/0/predicted_seconds"), 6004.0, 1e-3);
    let ratio = number(&answer, "/strategies/0/predicted_seconds") / number(plan, "/predicted_seconds");
    near(number(&answer, "/strategies/0/ratio"), ratio, 1e-9);
    // A named link has the same plan, with the limits within which it was measured.
    let named = ["tune", "--link", "10gbit", "--volume-bytes", "4454718741", "--rows", "164989583"];
    assert_eq!(&json(&named)["plan"], plan);
}

#[test]
fn a_window_hides_the_round_trip() {
    let long = |args: &[&str]| {
        let link = [
            "tune",
            "--alpha",
            "0,8e-9,0.01",
            "--beta",
            "0,8e-9,1e-5",
            "--rows",
            "100000000",
            "--row-bytes",
            "100",
        ];
        json(&[&link[..], &["--message-bytes", "125KB", "--rtt", "10ms"], args].concat())
    };
    let memory = |answer: &Value| number(answer, "/plan/memory_bytes");
    let many = long(&["--memory", "1GiB"]);
    let one = long(&["--memory", "1GiB", "--window", "1"]);
    assert!(
        number(&many, "/plan/window_batches") > 1.0 && memory(&many) * 30.0 < memory(&one),
        "{many} {one}"
    );
    assert_eq!(one["plan"]["window_batches"], 1);
    assert_eq!(long(&["--window", "7"])["plan"]["window_batches"], 7);
    assert!(number(&long(&["--window", "2..4"]), "/plan/window_batches") <= 4.0);
    let tight = long(&["--memory", "250KB"]);
    assert!(memory(&tight) <= 250e3, "{tight}");
    assert_eq!(tight["why"]["bound"], "round_trip");
    let slow = long(&["--rates", "decode=50MB/s,produce=1GB/s"]);
    assert_eq!(slow["why"]["bound"], "stage");
    assert_eq!(slow["why"]["slowest"]["stage"], "decode");
    near(number(&slow, "/plan/predicted_seconds"), 200.0, 1e-9);
    assert!(memory(&slow) < memory(&many), "{slow}");
}

#[test]
fn every_method_finds_a_plan_near_the_best() {
    for (method, least) in [("plan", 2.05), ("newton", 2.05), ("descent", 2.05), ("grid", 2.05)] {
        let answer = thesis(&["--method", method]);
        let seconds = number(&answer, "/plan/predicted_seconds");
        assert!((least..1.03 * least).contains(&seconds), "{method}: {seconds}");
        assert_eq!(answer["method"], method);
        // --trace does not change the plan.
        assert_eq!(thesis(&["--method", method, "--trace"])["plan"], answer["plan"], "{method}");
    }
    assert!(thesis(&["--method", "descent", "--halt", "gain=1s"])["halt"]["k"].is_u64());
}

#[test]
fn the_text_shows_the_plan_the_reasons_and_the_steps() {
    let said = lightship(&[&THESIS[..], &["--halt", "gain=1s", "--trace"]].concat()).succeeds();
    for words in [
        "164,989,583 rows of 27 bytes",
        "Plan: batches of 43,352 rows (1.2 MB), messages of 22,377 bytes, 1 batch in flight",
        "Predicted: 4.87 s",
        "Limited by the ",
        "Not larger: step 18 saves 0.956 s, but must save more than 1.00 s",
        "Not smaller: half the memory would take ",
        "default (15 rows, 8 KiB)",
        "one message per batch",
    ] {
        assert!(said.text().contains(words), "no `{words}` in {said}");
    }
    assert!(said.text().lines().all(|line| line.chars().count() <= 120 && !line.ends_with(' ')), "{said}");
    let chosen = said.text().lines().find(|line| line.ends_with("  plan")).expect("the plan among the steps");
    let cells: Vec<_> = chosen.split_whitespace().collect();
    assert_eq!(cells, ["17", "1,170,526", "43,352", "22,377", "4.87", "s", "1.35", "s", "plan"]);
    let said = lightship(&[&THESIS[..], &["--halt", "price=100KB/s"]].concat()).succeeds();
    assert!(said.text().contains("Not larger: step 16 takes 137 KB more for each second it saves"), "{said}");
    let said =
        lightship(&["tune", "--link", "50mbit", "--rows", "55", "--row-bytes", "27", "--trace"]).succeeds();
    assert!(said.text().contains("Newton's steps, for comparison"), "{said}");
    let slow = lightship(&[
        "tune",
        "--link",
        "10gbit",
        "--rows",
        "1000000",
        "--row-bytes",
        "27",
        "--rates",
        "consume=1MB/s",
    ]);
    assert!(slow.succeeds().text().contains("the slowest stage, consume, which takes 27.0 s"));
}

#[test]
fn settings_of_drivers_follow_the_plan() {
    let all = "jdbc,psycopg,oracle,odbc,mysql,lightship";
    let said = lightship(&[&THESIS[..], &["--halt", "gain=1s", "--for", all]].concat()).succeeds();
    for words in [
        "For jdbc:",
        "statement.setFetchSize(43352)",
        "1.2 MB of rows on the wire",
        "connection.setAutoCommit(false)",
        "useCursorFetch=true",
        "defaultRowFetchSize=43352",
        "defaultRowPrefetch=43352",
        "cursor.itersize = 43352",
        "DEFAULT_SDU_SIZE=22377",
        "OCI_ATTR_PREFETCH_ROWS = 43352",
        "SET ARRAYSIZE 5000",
        "the plan's 43,352 is outside the range of this setting, 1 to 5,000",
        "SQL_ATTR_ROW_ARRAY_SIZE, (SQLPOINTER) 43352",
        "UseDeclareFetch=1;Fetch=43352",
        "net_buffer_length = 22528",
        "STMT_ATTR_PREFETCH_ROWS",
        "--batch-rows 43352",
        "--message-bytes 22377",
        "--window 1",
    ] {
        assert!(said.text().contains(words), "no `{words}` in {said}");
    }
    let answer = thesis(&["--halt", "gain=1s", "--for", "jdbc,oracle"]);
    let fetch = &answer["settings"][0]["settings"][0];
    assert_eq!(answer["settings"][0]["for"], "jdbc");
    assert_eq!((&fetch["value"], &fetch["unit"]), (&43_352.into(), &"rows".into()));
    assert_eq!(fetch["memory_bytes"], 43_352 * 27);
    assert!(fetch.get("wanted").is_none());
    let lines = &answer["settings"][1]["settings"][3];
    assert_eq!(
        (&lines["value"], &lines["wanted"], &lines["memory_bytes"]),
        (&5000.into(), &43_352.into(), &135_000.into())
    );

    // Messages beyond the range of the settings. Drivers have one batch in flight.
    let wide =
        ["tune", "--link", "10gbit", "--rows", "165000000", "--row-bytes", "205", "--message-bytes", "4MiB"];
    let answer = json(&[&wide[..], &["--for", "oracle,mysql"]].concat());
    assert_eq!(answer["plan"]["window_batches"], 1);
    let (sdu, buffer) = (&answer["settings"][0]["settings"][0], &answer["settings"][1]["settings"][1]);
    assert_eq!((&sdu["value"], &buffer["value"]), (&2_097_152.into(), &1_048_576.into()));
    assert!(number(sdu, "/wanted") > 3e6 && buffer["wanted"] == sdu["wanted"], "{answer}");
    let small =
        ["tune", "--link", "10gbit", "--rows", "100", "--row-bytes", "10", "--message-bytes", "100..200"];
    let answer = json(&[&small[..], &["--for", "mysql,oracle"]].concat());
    let (buffer, sdu) = (&answer["settings"][0]["settings"][1], &answer["settings"][1]["settings"][0]);
    assert_eq!(
        (&sdu["value"], &buffer["value"], &buffer["memory_bytes"]),
        (&512.into(), &1024.into(), &1024.into())
    );
    // `lightship fetch` has more than one, and gets a note about --memory.
    let answer = json(&[&wide[..], &["--for", "lightship"]].concat());
    assert!(
        answer["settings"][0]["settings"][0]["notes"][0]
            .as_str()
            .is_some_and(|note| note.contains("--memory"))
    );
    lightship(&[&wide[..], &["--for", "jdbc", "--window", "4..8"]].concat())
        .fails(USAGE, &["--window 4: jdbc has one batch in flight", "hint: "]);
}

#[test]
fn impossible_options_are_refused_with_a_hint() {
    let link = ["--link", "10gbit"];
    let query = ["--rows", "1000", "--row-bytes", "100"];
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["the size of the result is unknown", "hint: for example --rows 1000000 --row-bytes 100"]),
        (&["--volume-bytes", "1MB"], &["two of --volume-bytes, --rows and --row-bytes are required"]),
        (
            &["--volume-bytes", "1MB", "--rows", "5", "--row-bytes", "7"],
            &["two determine the third", "hint: leave one out"],
        ),
        (&["--volume-bytes", "0", "--row-bytes", "27"], &["the result is empty", "hint: "]),
        (&["--rows", "0", "--row-bytes", "27"], &["the result is empty"]),
        (&["--rows", "10", "--row-bytes", "0"], &["--row-bytes must be above 0", "hint: "]),
        (&["--rows", "10", "--row-bytes", "nan"], &["--row-bytes", "`nan` is not a size"]),
        (&["--rows", "-10"], &["-1"]),
        (&query, &["the cost of messages is unknown", "hint: to try it: --link 50mbit"]),
        (
            &["--alpha", "1,2,3", query[0], query[1], query[2], query[3]],
            &["--alpha requires --beta", "hint: "],
        ),
        (
            &["--beta", "1,2,3", query[0], query[1], query[2], query[3]],
            &["--beta requires --alpha", "hint: "],
        ),
        (&["--alpha", "1,2"], &["--alpha", "2 numbers given, expected three"]),
        (&["--alpha", "1"], &["1 number given, expected three"]),
        (&["--alpha", "1,2,nan"], &["`nan` is not a number of seconds"]),
        (&["--alpha", "1,2,inf"], &["`inf` is not a number of seconds"]),
        (&["--beta=-1,2,3"], &["`-1` is not a number of seconds"]),
        (&["--beta", "1,2,3ms"], &["`3ms` is not a number of seconds"]),
        (&["--link", "1gbit"], &["1gbit", "10gbit", "50mbit"]),
        (&["--rates", "decode=500MB"], &["`500MB` is not a rate (examples: 500MB/s"]),
        (&["--rates", "decode=500Mb/s"], &["`500Mb/s` is not a rate", "10Gbit/s"]),
        (&["--rates", "decoding=5MB/s"], &["unknown stage `decoding`; expected produce"]),
        (&["--rtt", "10"], &["`10` is not a time (example: 10ms)"]),
        (&["--rtt", "10msec"], &["`10msec` is not a time"]),
        (&["--halt", "gain=1"], &["`1` is not a time"]),
        (&["--halt", "price=100KB"], &["`100KB` is not a rate"]),
        (&["--halt", "gian=1s"], &["unknown rule `gian`; expected gain=TIME or price=RATE"]),
        (&["--message-bytes", "32767..512"], &["`32767..512` is the wrong way round"]),
        (&["--message-bytes", "0..512"], &["must be at least 1"]),
        (&["--message-bytes", "512..32KX"], &["`32KX` is not a size"]),
        (&["--window", "8..2"], &["`8..2` is the wrong way round"]),
        (&["--window", "0"], &["must be at least 1"]),
        (&["--window", "many"], &["`many` is not a number of batches"]),
        (&["--method", "guess"], &["guess", "newton, descent, grid"]),
        (&["--for", "jbdc"], &["jbdc", "jdbc, psycopg"]),
    ];
    for (args, words) in cases {
        lightship(&[&["tune"], *args].concat()).fails(USAGE, words);
    }
    let whole = [&["tune"], &link[..], &query[..]].concat();
    let cases: &[(&[&str], &[&str])] = &[
        (&["--alpha", "1,2,3"], &["--link replaces --alpha and --beta", "hint: "]),
        (
            &["--batch-bytes-max", "99"],
            &["a row takes 100 bytes, but a batch may have at most 99", "hint: ", "--batch-bytes-max"],
        ),
        (&["--memory", "99"], &["a row takes 100 bytes", "--memory"]),
        (&["--memory", "350", "--window", "4"], &["a row takes 100 bytes, but a batch may have at most 87"]),
        (&["--memory", "0"], &["must hold at least one row"]),
        (
            &["--halt", "gain=1s", "--method", "plan"],
            &["--halt stops the steps of a method, and --method plan takes none", "hint: "],
        ),
        (
            &["--method", "newton", "--window", "4"],
            &["--window 4: --method newton has one batch", "hint: --method plan"],
        ),
        (&["--halt", "gain=1s", "--window", "4"], &["--window 4: --method newton has one batch"]),
    ];
    for (args, words) in cases {
        lightship(&[&whole[..], args].concat()).fails(USAGE, words);
    }
    lightship(&["tune", "--alpha", "0,0,0", "--beta", "0,0,1", "--rows", "1", "--row-bytes", "1"])
        .fails(USAGE, &["if batches cost nothing, all plans are equal", "hint: "]);
    lightship(&["tune", "--link", "10gbit", "--volume-bytes", "2000000TB", "--row-bytes", "1"])
        .fails(USAGE, &["the volume in bytes is 2e18"]);
    let error = lightship(&["--json", "tune", "--rows", "5"]).fails(USAGE, &[]).json();
    assert_eq!(error["error"]["kind"], "usage", "{error}");
}
