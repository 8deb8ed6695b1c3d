//! Links are measured, and their profiles kept.

use crate::support::*;

/// The command with its profiles in a folder of its own.
fn calibrate(profiles: &str, args: &[&str]) -> Outcome {
    let all = [&["calibrate"], args].concat();
    Process::start_with(&all, |command| command.env("LIGHTSHIP_PROFILES", profiles)).end()
}

#[test]
fn of_a_node_and_of_a_database() {
    let node = Node::start(&[]);
    let (folder, database) = (Folder::new(), postgres().uri());
    let profiles = folder.arg("profiles");
    for (uri, least) in [(&node.uri, 6), (&database, 6)] {
        let outcome = calibrate(&profiles, &["--json", uri, "--seconds", "0.5"]).succeeds();
        let found: serde_json::Value = serde_json::from_str(outcome.text()).expect("JSON");
        let samples = found["samples"].as_array().expect("samples");
        assert!(samples.len() >= least, "{outcome}");
        let alpha = &found["calibration"]["model"]["first"];
        for coefficient in ["per_batch_byte", "per_message_byte", "constant"] {
            assert!(alpha[coefficient].as_f64().is_some_and(|value| value >= 0.0), "{outcome}");
        }
        assert!(found["rtt_seconds"].as_f64().is_some_and(|rtt| rtt > 0.0 && rtt < 1.0), "{outcome}");
        // No password in what is kept, nor in where.
        let kept = std::path::PathBuf::from(found["kept"].as_str().expect("a path"));
        let text = std::fs::read_to_string(&kept).expect("the profile");
        assert!(text.contains("\"version\": 1"), "{text}");
        let password = postgres().password();
        assert!(!text.contains(password) && !kept.display().to_string().contains(password), "{kept:?}");
    }
    assert_eq!(std::fs::read_dir(folder.file("profiles")).expect("a folder").count(), 2);
    let said = calibrate(&folder.arg("none"), &[&node.uri, "--seconds", "0.2", "--dry-run"]).succeeds();
    assert!(said.text().contains("alpha = ") && said.text().contains("beta  = "), "{said}");
    assert!(!folder.file("none").exists());
}

#[test]
fn what_can_not_be_measured() {
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
    fails(&["mysql://nobody@127.0.0.1/none"], USAGE, &["PostgreSQL", "hint:"]);
    fails(&["sqlite:nothing.db"], USAGE, &["PostgreSQL"]);
    // A place where nothing can be kept.
    let file = folder.write("file", "");
    calibrate(&file, &[&node.uri, "--seconds", "0.2"]).fails(SOURCE, &["file"]);
}
