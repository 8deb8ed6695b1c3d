//! `lightship usage`: a command is run, its report is kept, explained, and asked what would change it.

use std::process::{Command, Output};

use tempfile::TempDir;

/// A folder of records.
struct Usage(TempDir);

impl Usage {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_lightship"))
            .args(arguments)
            .env("LIGHTSHIP_USAGE", self.0.path())
            .output()
            .unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Counts in the shell itself, for about a second.
const COUNT: &str = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; echo $i";

#[test]
fn a_command_that_computes_is_explained_and_predicted() {
    let usage = Usage::new();
    let ran = usage.run(&["usage", "run", "--label", "count", "--", "sh", "-c", COUNT]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert_eq!(text(&ran.stdout), "400000\n");
    assert!(text(&ran.stderr).contains("Limited by the processors of "), "{}", text(&ran.stderr));

    let explained = usage.run(&["usage", "explain", "count"]);
    assert!(text(&explained.stdout).contains("What would help: "), "{explained:?}");
    assert!(text(&explained.stdout).contains(" unavailable: "), "{explained:?}");
    let json = usage.run(&["--json", "usage", "explain", "count"]);
    let record: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(record["command"][2], COUNT);
    let parts = record["footprint"]["division"]["parts"].as_array().unwrap();
    let sum: u64 = parts.iter().map(|part| part["ns"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), record["footprint"]["run_ns"].as_u64());

    let faster = usage.run(&["--json", "usage", "what-if", "count", "--cpu", "2"]);
    let prediction: serde_json::Value = serde_json::from_slice(&faster.stdout).unwrap();
    let of = |name: &str| prediction[name].as_f64().unwrap();
    assert!(of("seconds") < 0.7 * of("measured_seconds"), "{prediction}");
    assert!(of("low_seconds") <= of("seconds") && of("seconds") <= of("high_seconds"), "{prediction}");

    let shown = usage.run(&["usage", "show"]);
    assert!(text(&shown.stdout).contains("count  CPU-limited"), "{}", text(&shown.stdout));
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    let usage = Usage::new();
    let failed = usage.run(&["usage", "run", "-q", "--", "sh", "-c", "exit 7"]);
    assert_eq!((failed.status.code(), text(&failed.stderr)), (Some(7), String::new()));
    let killed = usage.run(&["usage", "run", "-q", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.status.code(), Some(128 + 9));
}

#[test]
fn what_can_not_be_run_or_found_is_a_clear_error() {
    let usage = Usage::new();
    let cases: [(&[&str], &str); 6] = [
        (&["usage", "run", "--", "/no/such/program"], "can't start /no/such/program"),
        (&["usage", "run", "--label", "../x", "--", "true"], "the label `../x` is not valid"),
        (&["usage", "explain", "q9"], "there is no record of q9"),
        (&["usage", "explain", "../../etc/passwd"], "is not valid"),
        (&["usage", "what-if", "--nodes", "0"], "there is no record of last"),
        (&["usage", "what-if", "--cpu", "nan"], "there is no record of last"),
    ];
    for (arguments, expected) in cases {
        let output = usage.run(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected) && error.contains("hint: "), "{arguments:?}: {error}");
    }
    assert!(usage.run(&["usage", "run", "-q", "--", "true"]).status.success());
    for arguments in [["--cpu", "nan"], ["--cpu", "0"], ["--nodes", "0"], ["--disk", "1e9"]] {
        let output = usage.run(&[&["usage", "what-if"], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let unchanged = usage.run(&["usage", "what-if"]);
    assert!(text(&unchanged.stderr).contains("nothing is changed"));
    let empty = Usage::new().run(&["usage", "show"]);
    assert!(empty.status.success() && text(&empty.stderr).contains("no runs are kept"));
}
