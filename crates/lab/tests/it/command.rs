//! Tests of the command: exit codes, clean-up, output.

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use lab::{Lab, Link};

use crate::support::{groups_of, lab_for, network_name, processes_in, rest};

fn lab(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.args(words);
    command
}

/// How long groups and processes may take to disappear.
const PATIENCE: Duration = Duration::from_secs(20);

fn output(words: &[&str]) -> Output {
    lab(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_exit_code_is_the_commands_or_tells_why_it_did_not_run() {
    let Some(_) = Lab::or_skip() else { return };
    let run = ["run", "--link", "local"];
    for (words, code) in [
        (&["--", "true"][..], 0),
        (&["--", "sh", "-c", "exit 7"], 7),
        (&["--", "sh", "-c", "kill -TERM $$"], 128 + 15),
        (&["--", "/no/such/program"], 127),
        (&["--", "/dev/null"], 126),
        (&["--cpu", "c=0.5", "--", "true"], 2),
        (&["--serve", "exit 3", "--port", "9", "--", "true"], 125),
        (&["--hosts", "65", "--", "true"], 125),
        (&["--link", "lann", "--", "true"], 2),
    ] {
        let output = output(&[&run, words].concat());
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_command_reaches_the_server_of_serve() {
    let Some(_) = lab_for(&Link::fast()) else { return };
    let serve = "exec python3 -m http.server 8123 --bind $LAB_B --directory /proc/self/ns";
    let ask = "import os, urllib.request as u; \
               print(u.urlopen('http://%s:8123/' % os.environ['LAB_B']).status, os.environ['LAB_A'])";
    let output =
        output(&["run", "--link", "fast", "--serve", serve, "--port", "8123", "--", "python3", "-c", ask]);
    assert_eq!(text(&output.stdout), "200 10.77.0.1\n", "{}", text(&output.stderr));
    assert!(output.status.success());
}

/// A lab that runs until it is stopped.
struct Running {
    process: Child,
    network: String,
    /// The namespace of host a.
    namespace: String,
}

impl Running {
    fn start(link: &str) -> Self {
        // A process that a shell starts with `&` ignores Ctrl-C.
        let line = "cat /proc/self/cgroup; readlink /proc/self/ns/net; sleep 1000 & echo up; wait";
        let mut process = lab(&["run", "--link", link, "--serve", "sleep 1000", "--", "sh", "-c", line])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let mut said = String::new();
        while !said.ends_with("up\n") {
            assert_ne!(stdout.read_line(&mut said).unwrap(), 0, "{}", rest(process.stderr.take().unwrap()));
        }
        process.stdout = Some(stdout.into_inner());
        let namespace = said.lines().rev().nth(1).unwrap().to_owned();
        let this = Self { process, network: network_name(&said), namespace };
        assert!(!groups_of(&this.network).is_empty());
        assert!(!processes_in(&this.namespace).is_empty());
        this
    }

    fn signal(&self, signal: &str) {
        self.signal_to(signal, &self.process.id().to_string());
    }

    /// Signals all processes in its group.
    fn signal_group(&self, signal: &str) {
        self.signal_to(signal, &format!("-{}", self.process.id()));
    }

    fn signal_to(&self, signal: &str, target: &str) {
        let mut kill = Command::new("kill");
        assert!(kill.args(["-s", signal, "--", target]).status().unwrap().success());
    }

    /// Waits for the end of all processes that can write output, including the guardian, and
    /// checks that no groups or processes are left.
    fn assert_gone(mut self) -> ExitStatus {
        rest(self.process.stdout.take().unwrap());
        let said = rest(self.process.stderr.take().unwrap());
        let left = || (groups_of(&self.network), processes_in(&self.namespace));
        // A process that ends closes its files first and leaves its namespace a moment later.
        let deadline = Instant::now() + PATIENCE;
        let (mut groups, mut processes) = left();
        while !(groups.is_empty() && processes.is_empty()) && Instant::now() < deadline {
            std::thread::yield_now();
            (groups, processes) = left();
        }
        assert!(groups.is_empty() && processes.is_empty(), "{groups:?} {processes:?} {said}");
        self.process.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_killed_lab_leaves_nothing() {
    for link in ["lan", "wan"] {
        let Some(_) = lab_for(&link.parse().unwrap()) else { continue };
        let running = Running::start(link);
        running.signal("KILL");
        assert_eq!(running.assert_gone().signal(), Some(9));
    }
}

#[test]
fn ctrl_c_and_sigterm_clean_up() {
    let Some(_) = lab_for(&Link::lan()) else { return };
    let running = Running::start("lan");
    // A terminal signals all processes in the foreground.
    running.signal_group("INT");
    assert_eq!(running.assert_gone().code(), Some(128 + 2));

    let running = Running::start("lan");
    running.signal("TERM");
    assert_eq!(running.assert_gone().signal(), Some(15));
}

#[test]
fn doctor_reports_what_is_missing() {
    let checks = output(&["doctor", "--json"]);
    let checks: Vec<serde_json::Value> = serde_json::from_slice(&checks.stdout).unwrap();
    let found = |what: &str| checks.iter().find(|check| check["what"] == what).unwrap()["found"].as_bool();
    let user = Command::new("id").arg("-u").output().unwrap().stdout;
    assert_eq!(found("root"), Some(user == b"0\n"));
    assert!(checks.iter().all(|check| !check["hint"].as_str().unwrap().is_empty()));

    // As the user nobody, the command prints the reason.
    let Some(_) = Lab::or_skip() else { return };
    let mut nobody = lab(&["run", "--", "true"]);
    match nobody.uid(65534).gid(65534).output() {
        Ok(output) => {
            assert_eq!(output.status.code(), Some(125));
            assert!(text(&output.stderr).contains("root: missing"), "{}", text(&output.stderr));
        }
        Err(error) => eprintln!("skipped: the user nobody can't run the binary: {error}"),
    }
}

#[test]
fn links_without_a_capable_shaper_are_refused() {
    let link: Link = "1gbit,25ms".parse().unwrap();
    let Some(lab) = Lab::or_skip() else { return };
    let output = output(&["run", "--link", "1gbit,25ms", "--", "true"]);
    match lab.shaper(&link) {
        Ok(_) => assert!(output.status.success(), "{}", text(&output.stderr)),
        Err(_) => {
            assert_eq!(output.status.code(), Some(125));
            assert!(text(&output.stderr).contains("netem"), "{}", text(&output.stderr));
        }
    }
}

#[test]
fn verify_prints_one_json_object_per_line() {
    let Some(_) = Lab::or_skip() else { return };
    let output = output(&["verify", "--link", "local", "--link", "50mbit", "--json"]);
    let stdout = text(&output.stdout);
    let lines: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{stdout}");
    assert_eq!(lines[0]["measured"]["link"], "local");
    assert_eq!(lines[1]["asked"]["mbit_per_s"], 50.0);
    let mbit_per_s = lines[1]["measured"]["mbit_per_s"]["a_to_b"].as_f64().unwrap();
    assert!(mbit_per_s < 55.0, "{mbit_per_s}");
}
