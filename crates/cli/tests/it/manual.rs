//! Help, completions and manual pages.

use crate::support::*;

#[test]
fn every_subcommand_has_help() {
    let top = lightship(&["--help"]).succeeds();
    for command in [
        "node",
        "fetch",
        "copy",
        "explain",
        "cluster",
        "calibrate",
        "tune",
        "netbench",
        "overlay",
        "completions",
        "man",
    ] {
        let listed = top.text().lines().filter(|line| line.trim().split(' ').next() == Some(command));
        assert_eq!(listed.count(), 1, "{command} once in:\n{}", top.text());
        let long = lightship(&[command, "--help"]).succeeds();
        let short = lightship(&[command, "-h"]).succeeds();
        assert!(long.text().contains(&format!("Usage: lightship {command}")), "{}", long.text());
        assert!(long.text().len() >= short.text().len());
        assert!(long.text().lines().all(|line| line.chars().count() <= 120), "{}", long.text());
        assert_eq!((long.stderr.as_str(), short.stderr.as_str()), ("", ""));
    }
    for command in ["show", "simulate", "run"] {
        assert!(lightship(&["overlay", command, "--help"]).succeeds().text().contains("Examples:"));
    }
    for command in ["serve", "run", "sweep"] {
        let long = lightship(&["netbench", command, "--help"]).succeeds();
        assert!(long.text().contains("Examples:"), "{command}");
        assert!(long.text().lines().all(|line| line.chars().count() <= 120), "{}", long.text());
    }
    for heading in ["Data:", "Nodes:", "Tuning:", "Networks:", "Manual:"] {
        assert!(top.text().lines().any(|line| line == heading), "{heading} is missing in:\n{}", top.text());
    }
    for command in ["node", "fetch", "copy", "explain", "calibrate", "tune", "netbench"] {
        assert!(lightship(&[command, "--help"]).text().contains("Examples:"), "{command}");
    }
    assert!(lightship(&["--version"]).succeeds().text().starts_with("lightship "));
}

#[test]
fn examples_in_the_help_fit_a_terminal_and_can_be_pasted() {
    for command in [
        "node",
        "fetch",
        "copy",
        "explain",
        "cluster show",
        "cluster links",
        "cluster remove",
        "calibrate",
        "tune",
        "netbench",
        "netbench serve",
        "netbench run",
        "netbench sweep",
        "overlay show",
        "overlay simulate",
        "overlay run",
    ] {
        let args: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = Process::start_with(&args, |process| process.env("COLUMNS", "80")).end().succeeds();
        let (_, examples) = help.text().split_once("Examples:\n").expect("examples");
        let mut is_continued = false;
        for line in examples.lines().take_while(|line| !line.is_empty()) {
            assert!(line.chars().count() <= 80, "{command}: {line}");
            assert_eq!(line.starts_with("  lightship "), !is_continued, "{command}: {line}");
            is_continued = line.ends_with('\\');
        }
        assert!(!is_continued, "{command}: {examples}");
    }
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let outcome = lightship(&["completions", shell]).succeeds();
        assert!(outcome.text().contains("message-bytes-max"), "{shell}");
    }
    lightship(&["completions", "tcsh"]).fails(USAGE, &["tcsh", "bash"]);
    // Bash can parse the script.
    let folder = Folder::new();
    let script = folder.write("lightship.bash", lightship(&["completions", "bash"]).text());
    let checked = std::process::Command::new("bash").args(["-n", &script]).status().expect("bash");
    assert!(checked.success());
}

#[test]
fn manual_pages_are_written() {
    assert!(lightship(&["man"]).succeeds().text().contains(".TH lightship 1"));
    let folder = Folder::new();
    lightship(&["man", &folder.arg(".")]).succeeds();
    let names = folder.names();
    for page in
        ["lightship.1", "lightship-node.1", "lightship-fetch.1", "lightship-copy.1", "lightship-tune.1"]
    {
        assert!(names.iter().any(|name| name == page), "{page} in {names:?}");
    }
    lightship(&["man", "/nowhere"]).fails(SOURCE, &["/nowhere", "No such file"]);
}
