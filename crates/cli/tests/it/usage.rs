//! `lightship usage`: a command is run, its report is kept, explained, and asked what would change it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

use lightship_testkit::postgres::Postgres;
use tempfile::TempDir;

use crate::netbench::Server;
use crate::support::{Folder, Node, Process, lightship, lineitem, postgres, until};

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

#[test]
fn a_prediction_is_stored_and_compared_with_a_later_run() {
    let usage = Usage::new();
    assert!(usage.run(&["usage", "run", "-q", "--label", "s", "--", "sleep", "0.3"]).status.success());
    let stored = usage.run(&["usage", "what-if", "s", "--cpu", "2", "--save"]);
    assert!(text(&stored.stderr).contains("--changed=cpu=2"), "{}", text(&stored.stderr));
    let ran = usage.run(&["usage", "run", "-q", "--label", "s", "--changed=cpu=2", "--", "sleep", "0.3"]);
    assert!(text(&ran.stderr).contains("cpu=2: ") && text(&ran.stderr).contains(" measured: "), "{ran:?}");
    // The last prediction has been compared. Later ones say how far earlier ones were off.
    let again = usage.run(&["usage", "what-if", "s", "--cpu", "2"]);
    assert!(text(&again.stdout).contains("Predictions of this kind so far: "), "{}", text(&again.stdout));
    let unknown = usage.run(&["usage", "run", "-q", "--label", "s", "--changed=disk=3", "--", "true"]);
    assert!(!unknown.status.success() && text(&unknown.stderr).contains("disk=3"), "{unknown:?}");
}

#[test]
fn a_host_is_measured_and_the_result_is_stored() {
    let folder = Folder::new();
    let measured = Command::new(env!("CARGO_BIN_EXE_lightship"))
        .args(["calibrate", "host", "--seconds", "0.2", "--folder", folder.path().to_str().unwrap()])
        .env("LIGHTSHIP_HOSTS", folder.path().join("hosts"))
        .output()
        .unwrap();
    assert!(measured.status.success(), "{measured:?}");
    assert!(text(&measured.stdout).contains("memory, read"), "{}", text(&measured.stdout));
    assert!(text(&measured.stderr).contains("saved in "), "{}", text(&measured.stderr));
    assert_eq!(folder.names(), ["hosts"], "the temporary file is gone");
    lightship(&["calibrate", "host", "--folder", "/no/such/folder"]).fails(3, &["/no/such/folder"]);
    lightship(&["calibrate", "lightship://127.0.0.1:1", "--folder", "/tmp"]).fails(2, &["calibrate host"]);
}

#[test]
fn the_link_of_a_host_is_measured_and_its_runs_are_assessed_with_it() {
    let server = Server::start(&[]);
    let folder = Folder::new();
    let host = |args: &[&str], hosts: &str| {
        Command::new(env!("CARGO_BIN_EXE_lightship"))
            .args(["--json", "calibrate", "host", "--seconds", "0.5", "--folder", &folder.arg("")])
            .args(args)
            .env("LIGHTSHIP_HOSTS", folder.arg(hosts))
            .output()
            .unwrap()
    };
    let json = |output: &Output| -> serde_json::Value { serde_json::from_slice(&output.stdout).unwrap() };
    let without = json(&host(&[], "without"));
    assert_eq!(without["speeds"]["link"]["sent_bytes_per_second"], serde_json::Value::Null);
    let reason = without["results"]["link_send"]["missing"]["reason"].as_str().unwrap();
    assert!(reason.contains("--link") && reason.contains("netbench serve"), "{reason}");

    let with = host(&["--link", &server.address], "with");
    assert!(with.status.success(), "{}", text(&with.stderr));
    assert!(text(&with.stderr).contains("is this host"), "{}", text(&with.stderr));
    let with = json(&with);
    assert_eq!(with["link_peer"], server.address.as_str());
    for speed in ["sent_bytes_per_second", "received_bytes_per_second", "round_trip_seconds"] {
        assert!(with["speeds"]["link"][speed].as_f64().unwrap() > 0.0, "{with}");
    }
    for kind in ["link_send", "link_receive", "link_round_trip"] {
        assert_eq!(with["results"][kind]["measured"]["repetitions"], 5, "{with}");
    }

    for (hosts, is_known) in [("with", true), ("without", false)] {
        let usage = Usage::new();
        let run = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_lightship"));
            command.args(arguments).env("LIGHTSHIP_USAGE", usage.0.path());
            command.env("LIGHTSHIP_HOSTS", folder.arg(hosts)).output().unwrap()
        };
        assert!(run(&["usage", "run", "-q", "--", "sleep", "0.3"]).status.success());
        let record = json(&run(&["--json", "usage", "explain"]));
        let link = &record["footprint"]["hosts"][0]["link"];
        let measured = if is_known { &with["speeds"]["link"] } else { &without["speeds"]["link"] };
        assert_eq!(link, measured, "{record}");
        let explained = run(&["usage", "explain"]);
        assert_eq!(text(&explained.stdout).contains("calibrate host --link"), !is_known, "{explained:?}");
    }

    let address = server.address.clone();
    drop(server);
    let gone = host(&["--link", &address], "gone");
    assert!(!gone.status.success() && text(&gone.stderr).contains("netbench serve"), "{gone:?}");
    assert!(!folder.names().contains(&"gone".to_owned()));
    lightship(&["calibrate", "lightship://127.0.0.1:1", "--link", "db"]).fails(2, &["calibrate host"]);
}

#[test]
fn a_lock_that_is_held_at_postgresql_is_named() {
    let server = postgres();
    server.psql("drop table if exists locked; create table locked as select 1 as a");
    let hold = "begin; lock table locked; select pg_sleep(3); commit";
    let holder = Command::new("psql").args(["-qc", hold, &server.uri()]).stdout(Stdio::null()).spawn();
    let mut holder = holder.unwrap();
    until("the lock is held", || {
        server.psql("select count(*) from pg_locks where mode = 'AccessExclusiveLock' and relation = 'locked'::regclass")
            .trim()
            == "1"
    });
    let usage = Usage::new();
    let uri = server.uri();
    let ran = usage.run(&[
        "usage",
        "run",
        "--label",
        "q",
        "--postgres",
        &uri,
        "--",
        "psql",
        "-Atc",
        "select count(*) from locked",
        &uri,
    ]);
    assert_eq!(text(&ran.stdout), "1\n", "{}", text(&ran.stderr));
    holder.wait().unwrap();
    let json = usage.run(&["--json", "usage", "explain", "q"]);
    let record: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(record["verdict"]["limit"], "lock", "{}", text(&ran.stderr));
    let file = usage.run(&["usage", "run", "--postgres", "orders.csv", "--", "true"]);
    assert!(text(&file.stderr).contains("not a PostgreSQL database"), "{}", text(&file.stderr));
}

#[test]
fn the_sessions_at_several_postgresql_servers_belong_to_the_command() {
    let (first, second) = (postgres(), Postgres::start());
    let usage = Usage::new();
    let uris = [first.uri(), second.uri()];
    let script = format!(
        "for uri in {} {}; do psql -Atc 'select count(*) from generate_series(1, 8000000)' $uri & done; wait",
        uris[0], uris[1]
    );
    let ran = usage.run(&[
        "usage",
        "run",
        "--label",
        "union",
        "--postgres",
        &uris[0],
        "--postgres",
        &uris[1],
        "--",
        "sh",
        "-c",
        &script,
    ]);
    assert_eq!(text(&ran.stdout), "8000000\n8000000\n", "{}", text(&ran.stderr));
    let json = usage.run(&["--json", "usage", "explain", "union"]);
    let record: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let hosts = record["footprint"]["hosts"].as_array().unwrap();
    assert_eq!(hosts.len(), 3, "{}", text(&ran.stderr));
    assert_eq!((&hosts[1]["host"], &hosts[2]["host"]), (&"postgresql-1".into(), &"postgresql-2".into()));
    for server in &hosts[1..] {
        // The servers work, and not the command. Each has only its own sessions.
        let cpu = |host: &serde_json::Value| {
            let of = |figure: &str| host["figures"][figure]["amount"]["value"].as_f64().unwrap_or(0.0);
            of("cpu_user_ns") + of("cpu_system_ns") + of("cpu_ns")
        };
        assert!(cpu(server) > 0.0 && cpu(server) < 0.8 * (cpu(&hosts[1]) + cpu(&hosts[2])), "{record}");
    }
    let twice = usage.run(&["usage", "run", "--postgres", &uris[1], "--postgres", &uris[1], "--", "true"]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(text(&twice.stderr).contains("are the same server"), "{}", text(&twice.stderr));
}

/// The answer of an HTTP server, without its head.
pub(crate) fn get(page: &str, path: &str, token: &str) -> (u16, String) {
    let address = page.strip_prefix("http://").unwrap().trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn a_cluster_shows_where_the_time_of_its_queries_went() {
    let folder = Folder::new();
    let tokens = folder.write("tokens", "reader\n");
    let secret = folder.write("secret", "between nodes\n");
    let table = format!("lineitem={}", lineitem());
    let common = ["--shared-table", &table, "--token-file", &tokens, "--cluster-token-file", &secret];
    let usage = ["--usage-interval", "50ms", "--http", "127.0.0.1:0", "--advertise", "127.0.0.1:0"];
    let first = Node::start(&[&common[..], &usage[..]].concat());
    let data = folder.arg("samples");
    let other = ["--usage-interval", "50ms", "--usage-data", &data, "--join", first.address()];
    let mut second = Node::start(&[&common[..], &other[..]].concat());
    first.process.says("joined");
    let page = first.ready["page"].as_str().unwrap().to_owned();
    assert_eq!(get(&page, "/api/overview", "other").0, 401);
    let overview =
        || -> serde_json::Value { serde_json::from_str(&get(&page, "/api/overview", "reader").1).unwrap() };
    let mut names = [first.address().to_owned(), second.address().to_owned()];
    names.sort();
    until("both nodes are sampled, and their clocks known", || {
        let overview = overview();
        let hosts = overview["hosts"].as_array().unwrap();
        let known = hosts.iter().filter(|host| host["clock"]["bound_ns"].is_u64());
        known.map(|host| host["name"].as_str().unwrap()).eq(names.iter().map(String::as_str))
    });
    let sql =
        "select sum(a.l_quantity * b.l_tax) from lineitem a join lineitem b on a.l_suppkey = b.l_suppkey";
    let uri = format!("lightship://reader@{}", first.address());
    lightship(&["fetch", "-q", &uri, sql]).succeeds();
    let mut found = serde_json::Value::Null;
    until("the query is assessed", || {
        let queries: serde_json::Value =
            serde_json::from_str(&get(&page, "/api/queries?limit=10", "reader").1).unwrap();
        let is_assessed = |query: &&serde_json::Value| query["label"] == sql && query["limit"].is_string();
        let rows = queries.as_array().or_else(|| queries["queries"].as_array()).unwrap();
        found = rows.iter().find(is_assessed).cloned().unwrap_or_default();
        !found.is_null()
    });
    assert_eq!(found["hosts"].as_array().unwrap().len(), 2, "{found}");
    let id = found["id"].as_str().unwrap();
    let report: serde_json::Value =
        serde_json::from_str(&get(&page, &format!("/api/queries/{id}"), "reader").1).unwrap();
    let parts = report["footprint"]["division"]["parts"].as_array().unwrap();
    let sum: u64 = parts.iter().map(|part| part["ns"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), report["footprint"]["run_ns"].as_u64(), "{report}");
    let tasks = report["tasks"].as_array().unwrap();
    for name in &names {
        assert!(tasks.iter().any(|task| task["host"] == name.as_str()), "{tasks:?}");
    }
    assert!(get(&page, "/metrics", "reader").1.contains("lightship_"), "no metrics");
    let of_node = |words: &[&str]| {
        let arguments = [&["usage"], words, &["--node", &page]].concat();
        Process::start_with(&arguments, |command| command.env("LIGHTSHIP_TOKEN", "reader")).end()
    };
    assert!(of_node(&["show"]).succeeds().text().contains(&id[..8]));
    let explained = of_node(&["explain", &id[..8]]).succeeds();
    assert!(explained.text().contains(found["sentence"].as_str().unwrap()), "{}", explained.text());
    assert!(of_node(&["what-if", "--cpu", "2"]).succeeds().text().contains(" predicted ("));
    let planned = report["footprint"]["known"]["planned_ns"].as_u64().unwrap();
    assert!(planned > 0 && Some(planned) < report["footprint"]["run_ns"].as_u64(), "{report}");
    let more = of_node(&["what-if", &id[..8], "--nodes", "4"]).succeeds();
    assert!(!more.text().contains("no coordinator was sampled"), "{}", more.text());
    of_node(&["explain", "0000"]).fails(2, &["no query 0000", "usage show"]);
    lightship(&["usage", "show", "--node", &page]).fails(4, &["refused the token", "LIGHTSHIP_TOKEN"]);
    // A node that ends in order completes its history.
    second.process.signal("INT");
    second.process.says("stopping");
    until("the history is complete", || {
        std::fs::read_dir(&data)
            .unwrap()
            .flatten()
            .any(|file| file.path().extension() == Some("parquet".as_ref()))
    });
    second.process.kill();
}

#[test]
fn agents_send_to_a_collector_that_is_not_a_node() {
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let mut watch = Process::start(&["--json", "usage", "watch", "--listen", &address]);
    let mut lines = BufReader::new(watch.stdout()).lines();
    let agent = Process::start(&["agent", &address, "--host", "db1", "--interval", "20ms"]);
    agent.says("accepts the samples");
    let seen = lines.by_ref().map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap());
    let mut seen = seen.filter(|overview| overview["hosts"][0]["clock"]["bound_ns"].is_u64());
    let host = seen.next().unwrap()["hosts"][0].clone();
    assert_eq!(host["name"], "db1");
    assert!(host["cpu_used"].is_f64(), "{host}");
    agent.signal("INT");
    let ended = agent.end().succeeds();
    assert!(ended.stderr.contains(" answers of collectors"), "{}", ended.stderr);
    watch.signal("INT");
    lightship(&["agent", "192.0.2.1"]).fails(2, &["requires a token", "--token-file"]);
    lightship(&["agent", &address, "--interval", "1ms"]).fails(2, &["from 10ms to 1h"]);
}
