//! Measurements of a network.

use std::io::{BufRead, BufReader};
use std::process::ChildStdout;

use lightship_testkit::loopback::own_host;
use serde_json::Value;

use crate::support::*;

/// A netbench server, killed on drop.
pub(crate) struct Server {
    process: Process,
    pub(crate) address: String,
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    pub(crate) fn start(args: &[&str]) -> Self {
        let words = ["--json", "netbench", "serve", "--listen", "127.0.0.1:0"];
        let mut process = Process::start(&[&words, args].concat());
        let mut stdout = BufReader::new(process.stdout());
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a pipe");
        let ready: Value = serde_json::from_str(&line).expect("JSON when it is ready");
        let address = ready["listening"][0].as_str().expect("an address").to_owned();
        Self { process, address, _stdout: stdout }
    }
}

fn netbench(args: &[&str]) -> Outcome {
    lightship(&[&["netbench"], args].concat())
}

#[test]
fn run_measures_one_pair_as_text_and_json() {
    let mut server = Server::start(&[]);
    let args = [&server.address, "--connections", "3", "--message-bytes", "4KiB", "--seconds", "200ms"];
    let said = netbench(&[&["run"], &args[..]].concat()).succeeds();
    for words in ["3 connections to 127.0.0.1:", "messages of 4 KiB", "/s, ", "loaded latency ", "of a core"]
    {
        assert!(said.text().contains(words), "no `{words}` in {said}");
    }
    assert!(!said.text().contains("unknown") && !said.text().contains("failed"), "{said}");
    let outcome = lightship(&[&["--json", "netbench", "run", "--nagle"], &args[..]].concat()).succeeds();
    let row: Value = serde_json::from_str(outcome.text()).expect("JSON");
    assert_eq!((&row["connections"], &row["message_bytes"]), (&3.into(), &4096.into()), "{row}");
    assert_eq!((&row["nodelay"], &row["failure"]), (&false.into(), &Value::Null), "{row}");
    let rate = row["throughput_bytes_per_second"].as_f64().expect("a rate");
    assert!(rate > 0.0, "{row}");
    for latency in ["latency", "loaded_latency"] {
        let at =
            |name: &str| row[latency][name].as_f64().unwrap_or_else(|| panic!("{latency} {name}: {row}"));
        let rising = ["min_us", "p1_us", "p25_us", "p50_us", "p75_us", "p99_us", "p999_us", "max_us"];
        assert!(rising.map(at).is_sorted() && at("count") > 0.0, "{row}");
    }
    for cpu in ["client_cpu", "server_cpu"] {
        assert!(row[cpu]["process_percent"].is_f64() && row[cpu]["system_percent"].is_f64(), "{row}");
    }
    // After an interrupt the server ends with success and reports its totals.
    server.process.signal("INT");
    let mut last = String::new();
    server._stdout.read_line(&mut last).expect("a pipe");
    let served: Value = serde_json::from_str(&last).expect("JSON when it ends");
    assert!(served["bytes_arrived"].as_u64() >= row["bytes_arrived"].as_u64(), "{served}");
    assert_eq!(server.process.end().code, Some(0));
}

#[test]
fn sweep_starts_its_servers_and_ends_them() {
    let folder = Folder::new();
    let output = folder.arg("grid");
    let program = env!("CARGO_BIN_EXE_lightship");
    let start = format!("{program} netbench serve --listen {{host}}:{{port}} --until-eof");
    // An address that no other test uses.
    let host = format!("{}:4271", own_host());
    let small = ["--connections", "2", "--message-bytes", "4KiB", "--seconds", "0.1", "--output", &output];
    let said = netbench(
        &[&["sweep", &host, "--both-ways", "--latency-seconds", "50ms", "--start", &start], &small[..]]
            .concat(),
    );
    assert!(said.succeeds().text().contains("plateau from 2 connections"));
    let table = std::fs::read_to_string(folder.arg("grid/netbench.csv")).expect("a table");
    assert!(table.lines().nth(1).is_some_and(|row| row.contains(",0.1,0.05,true,")), "{table}");
    // Its port is free again.
    std::net::TcpListener::bind(&host).expect("the server has ended");
    let said = netbench(
        &[&["sweep", &host, "--start", "echo no server at {port} >&2; exit 3"], &small[..]].concat(),
    );
    said.fails(NETWORK, &["has ended", "exit status: 3", "no server at"]);
}

#[test]
fn sweep_measures_a_grid_and_writes_its_files() {
    let server = Server::start(&[]);
    let folder = Folder::new();
    let (output, profiles) = (folder.arg("grid"), folder.arg("profiles"));
    let config = format!(
        "hosts = [\"{}\"]\nconnections = \"1..2\"\nmessage-bytes = [256, \"4KiB\"]\nseconds = 0.1\noutput = {output:?}\n",
        server.address
    );
    let config = folder.write("grid.toml", config);
    let sweep = |args: &[&str]| {
        let words = ["--json", "netbench", "sweep", "--config", &config];
        Process::start_with(&[&words, args].concat(), |command| command.env("LIGHTSHIP_PROFILES", &profiles))
            .end()
    };
    let lines = |outcome: &Outcome| -> Vec<Value> {
        outcome.text().lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect()
    };
    let first = lines(&sweep(&[]).succeeds());
    let (last, rows) = first.split_last().expect("lines");
    assert_eq!(rows.len(), 4, "{rows:?}");
    assert_eq!((&last["cells"], &last["cells_with_failures"]), (&4.into(), &0.into()), "{last}");
    let plots = last["plots"].as_array().expect("plots");
    assert_eq!(plots.len(), 10, "{last}");
    for plot in plots {
        let svg = std::fs::read_to_string(plot.as_str().expect("a path")).expect("a plot");
        assert!(svg.starts_with("<svg"), "{plot}");
    }
    let csv = std::fs::read_to_string(folder.file("grid/netbench.csv")).expect("a table");
    assert!(
        csv.starts_with(
            "hosts,seconds,latency_seconds,both_ways,delay_ms,nodelay,connections,message_bytes,"
        ),
        "{csv}"
    );
    assert_eq!(csv.lines().count(), 5, "{csv}");
    assert!(!folder.file("profiles").exists());

    // Only missing pairs are measured; --keep saves the result.
    let more = lines(&sweep(&["--connections", "1,2,3", "--keep"]).succeeds());
    let (last, rows) = more.split_last().expect("lines");
    assert!(rows.len() == 2 && rows.iter().all(|row| row["connections"] == 3), "{rows:?}");
    let kept = std::fs::read_to_string(last["kept"][0].as_str().expect("a path")).expect("an outcome");
    let kept: Value = serde_json::from_str(&kept).expect("JSON");
    assert_eq!((&kept["host"], &kept["cells"]), (&server.address.as_str().into(), &6.into()), "{kept}");
    assert_eq!(kept["connections"], last["plateau"]["connections"]);

    let said = netbench(&["sweep", "--config", &config, "--connections", "1,2"]).succeeds();
    for words in ["throughput in MB/s", "4 KiB", "4 pairs, 0 measured now", "plateau from"] {
        assert!(said.text().contains(words), "no `{words}` in {said}");
    }
    // A file that is not a table is not overwritten.
    folder.write("grid/netbench.csv", "mine\n");
    sweep(&[]).fails(SOURCE, &["netbench.csv", "other columns", "--output"]);
    assert_eq!(std::fs::read(folder.file("grid/netbench.csv")).expect("there"), b"mine\n");
}

#[test]
fn errors_are_reported_with_a_hint() {
    netbench(&["run", "127.0.0.1:1"]).fails(NETWORK, &["127.0.0.1:1", "can't connect", "netbench serve"]);
    netbench(&["run", "lightship://a"]).fails(USAGE, &["HOST[:PORT]"]);
    netbench(&["run"]).fails(USAGE, &["HOST[:PORT]"]);
    netbench(&["run", "a", "--message-bytes", "65MiB"]).fails(USAGE, &["64MiB"]);
    netbench(&["run", "a", "--seconds", "0"]).fails(USAGE, &["expected above 0"]);
    netbench(&["sweep", "a", "--connections", "8..2"]).fails(USAGE, &["smaller value must come first"]);
    netbench(&["sweep", "a b", "--output", "/nowhere/to/be"]).fails(USAGE, &["a b"]);
    let node = Node::start(&[]);
    netbench(&["run", node.address()]).fails(NETWORK, &["a node does not answer netbench"]);
    let server = Server::start(&["--connections-max", "4"]);
    netbench(&["serve", "--listen", &server.address])
        .fails(NETWORK, &["can't listen", "in use", "port 0 picks a free port"]);
    let full = netbench(&["run", &server.address, "--connections", "8", "--seconds", "0.1"]).succeeds();
    assert!(full.text().contains("failed ") && full.text().contains("--connections-max"), "{full}");

    let folder = Folder::new();
    let config = folder.write("grid.toml", "hosts = ['a']\nconnection = 5\n");
    netbench(&["sweep", "--config", &config]).fails(USAGE, &["grid.toml", "line 2", "connection"]);
    let config = folder.write("grid.toml", "connections = '2'\n");
    netbench(&["sweep", "--config", &config]).fails(USAGE, &["no host"]);
    let config = folder.write("grid.toml", "hosts = ['a']\ndelay = '5us'\n");
    netbench(&["sweep", "--config", &config, "--output", &folder.arg("x")]).fails(USAGE, &["--delay 5us"]);
}

#[test]
fn a_low_limit_of_open_files_is_a_warning_beforehand() {
    let server = Server::start(&[]);
    // Run in a shell with a low limit.
    let command = format!(
        "ulimit -n 48; exec '{}' netbench run {} --connections 60 --message-bytes 1KiB --seconds 0.1",
        env!("CARGO_BIN_EXE_lightship"),
        server.address
    );
    let run = std::process::Command::new("sh").args(["-c", &command]).output().expect("sh");
    let (said, talk) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{said}{talk}");
    assert!(talk.contains("60 connections need 94 open files, but 48 are allowed"), "{talk}");
    assert!(said.contains("Too many open files") && said.contains("the limit is 48 (ulimit -n)"), "{said}");
}
