//! Links are measured, and their profiles saved and used.

use crate::support::*;

/// Runs the command with this folder for profiles.
pub(crate) fn with_profiles(profiles: &str, args: &[&str]) -> Outcome {
    Process::start_with(args, |command| command.env("LIGHTSHIP_PROFILES", profiles)).end()
}

fn calibrate(profiles: &str, args: &[&str]) -> Outcome {
    with_profiles(profiles, &[&["calibrate"], args].concat())
}

fn tune(profiles: &str, args: &[&str]) -> Outcome {
    with_profiles(profiles, &[&["--json", "tune"], args].concat())
}

#[test]
fn the_links_to_a_node_and_to_databases_are_measured() {
    let node = Node::start(&[]);
    let (folder, databases) = (Folder::new(), [postgres().uri(), mariadb().uri()]);
    let profiles = folder.arg("profiles");
    for (uri, least) in [(&node.uri, 6), (&databases[0], 4), (&databases[1], 4)] {
        let outcome = calibrate(&profiles, &["--json", uri, "--seconds", "0.5"]).succeeds();
        let found: serde_json::Value = serde_json::from_str(outcome.text()).expect("JSON");
        let samples = found["samples"].as_array().expect("samples");
        assert!(samples.len() >= least, "{outcome}");
        let alpha = &found["calibration"]["model"]["first"];
        for coefficient in ["per_batch_byte", "per_message_byte", "constant"] {
            assert!(alpha[coefficient].as_f64().is_some_and(|value| value >= 0.0), "{outcome}");
        }
        assert!(found["rtt_seconds"].as_f64().is_some_and(|rtt| rtt > 0.0 && rtt < 1.0), "{outcome}");
        // Neither the profile nor its path contains a password.
        let kept = std::path::PathBuf::from(found["kept"].as_str().expect("a path"));
        let text = std::fs::read_to_string(&kept).expect("the profile");
        assert!(text.contains("\"version\": 1"), "{text}");
        for password in [postgres().password(), mariadb().password(), "s3cret"] {
            assert!(!text.contains(password) && !kept.display().to_string().contains(password), "{kept:?}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.file("profiles")).expect("a folder").count(), 3);
    let said = calibrate(&folder.arg("none"), &[&node.uri, "--seconds", "0.2", "--dry-run"]).succeeds();
    assert!(said.text().contains("alpha = ") && said.text().contains("beta  = "), "{said}");
    assert!(!folder.file("none").exists());
}

#[test]
fn what_can_not_be_measured_leaves_no_profile() {
    let node = Node::start(&[]);
    let folder = Folder::new();
    let profiles = folder.arg("profiles");
    let fails = |args: &[&str], code, words: &[&str]| {
        calibrate(&profiles, args).fails(code, words);
        assert!(!folder.file("profiles").exists(), "{args:?} left a profile");
    };
    fails(&[&node.uri, "--sql", "select 1"], USAGE, &["too few rows", "hint:"]);
    fails(&[&node.uri, "--sql", "select value from range(0, 0)"], USAGE, &["too few rows"]);
    fails(&[&node.uri, "--sql", "selec 1"], SOURCE, &["selec"]);
    fails(&[&node.uri, "--seconds", "0"], USAGE, &["--seconds"]);
    fails(&["lightship://127.0.0.1:1"], NETWORK, &["127.0.0.1:1"]);
    fails(&[&postgres().uri(), "--sql", "select nothing from nowhere"], SOURCE, &["nowhere", "^"]);
    fails(&[&postgres().uri(), "--thorough"], USAGE, &["--thorough"]);
    fails(&[&mariadb().uri(), "--sql", "select nothing form nowhere"], SOURCE, &["nowhere", "^"]);
    fails(&[&mariadb().uri(), "--sql", "select 1 as one"], USAGE, &["too few rows", "hint:"]);
    fails(&[&mariadb().uri(), "--sql", "set @x = 1"], USAGE, &["not a SELECT"]);
    fails(&[&mariadb().uri(), "--thorough"], USAGE, &["--thorough"]);
    fails(&[&mariadb().uri_as("tester", "wrong", "test")], SOURCE, &["refused the login"]);
    fails(&["mysql://nobody@127.0.0.1:1/none"], NETWORK, &["127.0.0.1:1"]);
    fails(&["sqlite:nothing.db"], USAGE, &["PostgreSQL", "MariaDB", "hint:"]);
    // A folder where no profile can be saved.
    let file = folder.write("file", "");
    calibrate(&file, &[&node.uri, "--seconds", "0.2"]).fails(SOURCE, &["file"]);
}

#[test]
fn tune_plans_for_measured_links() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let folder = Folder::new();
    let profiles = folder.arg("profiles");
    tune(&profiles, &[&node.uri, "select 1"]).fails(USAGE, &["was not measured", "lightship calibrate"]);
    calibrate(&profiles, &["-q", &node.uri, "--seconds", "0.5"]).succeeds();
    let answer = |args: &[&str]| -> serde_json::Value {
        let outcome = tune(&profiles, args).succeeds();
        serde_json::from_str(outcome.text()).unwrap_or_else(|e| panic!("{e}: {outcome}"))
    };
    let planned = answer(&[&node.uri, "select * from lineitem"]);
    // The engine knows the number of rows of its table.
    let rows = csv(&node.uri, "select count(*) as n from lineitem");
    assert_eq!(planned["query"]["rows"].to_string(), rows.lines().nth(1).expect("a count"));
    let limits = &planned["limits"];
    for (size, limit) in [("message_bytes", "message_bytes_max"), ("batch_bytes", "batch_bytes_max")] {
        assert!(planned["plan"][size].as_u64() <= limits[limit].as_u64(), "{planned}");
    }
    assert!(planned["plan"]["predicted_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
    // A given number overrides the estimate.
    let said = answer(&[&node.uri, "select * from lineitem", "--rows", "1000000000"]);
    assert_eq!(said["query"]["rows"], 1_000_000_000u64);
    answer(&[&node.uri, "--rows", "1000", "--row-bytes", "100"]);
    tune(&profiles, &[&node.uri]).fails(USAGE, &["the size of the result is unknown"]);
    tune(&profiles, &[&node.uri, "select * from nowhere"]).fails(SOURCE, &["nowhere"]);
    tune(&profiles, &[&node.uri, "--link", "10gbit"]).fails(USAGE, &["--link"]);

    let server = postgres();
    server.psql("create table tuned as select n, 'a text' as t from generate_series(1, 20000) n");
    server.psql("analyze tuned");
    calibrate(&profiles, &["-q", &server.uri(), "--seconds", "0.5"]).succeeds();
    let planned = answer(&[&server.uri(), "select * from tuned", "--for", "psycopg,jdbc"]);
    assert_eq!(planned["plan"]["window_batches"], 1);
    assert!(planned["settings"].to_string().contains("itersize"), "{planned}");
    assert!(!planned.to_string().contains("message_bytes"), "{planned}");
    // The plan has the fewest rows that are nearly as fast: at a megabyte, 200 us are 2% of 10 ns per
    // byte. On a busy machine the largest measured batch is half a megabyte; within 2% of its time are
    // 340 KB.
    let known = |profile: &mut serde_json::Value| {
        let alpha = &mut profile["calibration"]["model"]["first"];
        alpha["per_batch_byte"] = 1e-8.into();
        alpha["constant"] = 2e-4.into();
    };
    for entry in std::fs::read_dir(&profiles).expect("a folder") {
        let path = entry.expect("a profile").path();
        if path.to_string_lossy().contains("postgres") {
            let text = std::fs::read_to_string(&path).expect("the profile");
            let mut profile = serde_json::from_str(&text).expect("JSON");
            known(&mut profile);
            std::fs::write(&path, profile.to_string()).expect("written");
        }
    }
    let planned = answer(&[&server.uri(), "--rows", "10000000", "--row-bytes", "100"]);
    let rows = planned["plan"]["batch_rows"].as_u64();
    assert!(rows.is_some_and(|rows| (3_000..13_000).contains(&rows)), "{planned}");
    tune(&profiles, &[&server.uri(), "select nothing from nowhere"]).fails(SOURCE, &["nowhere"]);
    let sized = [&server.uri(), "--rows", "1000", "--row-bytes", "10", "--message-bytes", "8KiB"];
    tune(&profiles, &sized).fails(USAGE, &["--message-bytes", "hint"]);

    let server = mariadb();
    server.sql(
        "create table tuned (n int primary key, t varchar(20));
         insert into tuned select seq, 'a text' from seq_1_to_20000; analyze table tuned",
    );
    calibrate(&profiles, &["-q", &server.uri(), "--seconds", "0.5"]).succeeds();
    let sql = "select * from tuned";
    let planned = answer(&[&server.uri(), sql, "--for", "mysql,jdbc,oracle", "--trace"]);
    assert_eq!(planned["plan"]["window_batches"], 1);
    assert!(
        planned["query"]["rows"].as_u64().is_some_and(|rows| (18_000..22_000).contains(&rows)),
        "{planned}"
    );
    // Header, NULL bitmap, a number, and six letters with their length.
    assert_eq!(planned["query"]["row_bytes"], 4.0 + 2.0 + 4.0 + 7.0, "{planned}");
    assert_eq!(planned["strategies"].as_array().map(Vec::len), Some(2), "{planned}");
    assert!(planned["settings"].to_string().contains("STMT_ATTR_PREFETCH_ROWS"), "{planned}");
    for absent in ["message_bytes", "SET GLOBAL net_buffer_length", "SDU"] {
        assert!(!planned.to_string().contains(absent), "{absent}: {planned}");
    }
    let said =
        with_profiles(&profiles, &["tune", &server.uri(), sql, "--trace", "--for", "mysql"]).succeeds();
    assert!(
        said.text().contains("default (15 rows) ") && said.text().contains("net_buffer_length"),
        "{said}"
    );
    assert!(!said.text().contains("message"), "{said}");
    // What the server can't estimate, and what it refuses.
    tune(&profiles, &[&server.uri(), "select count(*) from tuned"])
        .fails(USAGE, &["how many rows", "--rows"]);
    assert_eq!(answer(&[&server.uri(), "select count(*) from tuned", "--rows", "1"])["query"]["rows"], 1);
    tune(&profiles, &[&server.uri(), "select 1; drop table tuned"]).fails(SOURCE, &["drop table", "^"]);

    // A damaged profile is an error that says how to replace it.
    for entry in std::fs::read_dir(&profiles).expect("a folder") {
        std::fs::write(entry.expect("a profile").path(), "{\"version\": 1}").expect("written");
    }
    tune(&profiles, &[&node.uri, "select 1"])
        .fails(SOURCE, &["is not a valid profile", "lightship calibrate"]);
}
