//! What happens to agents, networks and disks: `--usage` goes on, and says what was lost.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lightship_session::{Client, Endpoint, Options};
use serde_json::Value;

use crate::support::{ENDLESS, Folder, Node, PATIENCE, Process, until};
use crate::usage::get;

/// A node with a page.
struct Shown {
    node: Node,
    page: String,
}

impl Shown {
    fn start(args: &[&str]) -> Self {
        let usage = ["--usage-interval", "50ms", "--http", "127.0.0.1:0"];
        let node = Node::start(&[&usage, args].concat());
        let page = node.ready["page"].as_str().unwrap().to_owned();
        Self { node, page }
    }

    fn read(&self, path: &str) -> Value {
        let (status, body) = get(&self.page, path, "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn overview(&self) -> Value {
        self.read("/api/overview")
    }

    /// A host whose clock is known.
    fn host(&self, name: &str) -> Option<Value> {
        let overview = self.overview();
        let hosts = overview["hosts"].as_array().unwrap();
        let is_meant = |host: &&Value| host["name"] == name && host["clock"]["bound_ns"].is_u64();
        hosts.iter().find(is_meant).cloned()
    }

    /// The last query, once it was assessed.
    fn assessed(&self, sql: &str) -> Value {
        let mut found = Value::Null;
        until("the query is assessed", || {
            let queries = self.read("/api/queries?limit=10");
            let rows = queries.as_array().or_else(|| queries["queries"].as_array()).unwrap();
            let is_assessed = |query: &&Value| query["label"] == sql && query["limit"].is_string();
            found = rows.iter().find(is_assessed).cloned().unwrap_or_default();
            !found.is_null()
        });
        found
    }
}

/// Whether no number in a report is below 0, and there is a report.
fn is_positive(report: &Value) -> bool {
    (report.is_object() || report.is_array()) && has_no_negative(report)
}

fn has_no_negative(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64().is_none_or(|number| number >= 0.0),
        Value::Array(values) => values.iter().all(has_no_negative),
        Value::Object(values) => values.values().all(has_no_negative),
        _ => true,
    }
}

#[test]
fn an_agent_that_is_killed_during_a_query_and_started_again_takes_up_its_counters() {
    let shown = Shown::start(&[]);
    let agent = || {
        let agent = Process::start(&["agent", shown.node.address(), "--host", "db1", "--interval", "20ms"]);
        agent.says("accepts the samples");
        agent
    };
    let mut killed = agent();
    until("its clock is known", || shown.host("db1").is_some());
    let mut client = Process::start(&["fetch", "--quiet", &shown.node.uri, ENDLESS]);
    let rows = client.stuck_in_rows();
    killed.kill();
    let _again = agent();
    until("the page says that it was started again", || {
        let overview = shown.overview();
        let mut events = overview["events"].as_array().unwrap().iter();
        events
            .any(|event| event["host"] == "db1" && event["text"].as_str().unwrap().contains("started again"))
    });
    drop(rows);
    client.kill();
    let query = shown.assessed(ENDLESS);
    let report = shown.read(&format!("/api/queries/{}", query["id"].as_str().unwrap()));
    assert!(is_positive(&report["footprint"]), "{report}");
    let kept = |host: Value| host["samples"]["kept"].as_u64().unwrap();
    let before = shown.host("db1").map_or(0, kept);
    until("samples of the new agent are kept", || shown.host("db1").map_or(0, kept) > before + 10);
    for group in ["cpu", "disk", "network", "memory"] {
        let series = shown.read(&format!("/api/series?host=db1&group={group}"));
        assert!(is_positive(&series), "{series}");
    }
    let hosts = shown.overview()["hosts"].as_array().unwrap().len();
    assert_eq!(hosts, 2, "the node, and one db1");
}

/// Forwards datagrams between agents and a collector. It loses about 30%, doubles 30% and holds 30% back until the next
/// one has gone, in both directions.
struct BadNetwork {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl BadNetwork {
    fn start(collector: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (address, stop) = (socket.local_addr().unwrap(), Arc::<AtomicBool>::default());
        let theirs = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(16);
            let (mut agent, mut held) = (None, Vec::new());
            let mut datagram = [0; 65_536];
            while !theirs.load(Ordering::Relaxed) {
                let Ok((bytes, from)) = socket.recv_from(&mut datagram) else { continue };
                let to = if from == collector {
                    agent
                } else {
                    agent = Some(from);
                    Some(collector)
                };
                let Some(to) = to.filter(|_| random.f64() >= 0.3) else { continue };
                if random.f64() < 0.3 {
                    held.push((datagram[..bytes].to_vec(), to));
                    continue;
                }
                for _ in 0..if random.f64() < 0.3 { 2 } else { 1 } {
                    // A datagram that can't be sent is one more that is lost.
                    let _ = socket.send_to(&datagram[..bytes], to);
                }
                for (datagram, to) in held.drain(..) {
                    let _ = socket.send_to(&datagram, to);
                }
            }
        });
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for BadNetwork {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn datagrams_that_are_lost_doubled_and_reordered_are_counted_and_the_rest_is_right() {
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let collector = SocketAddr::from(([127, 0, 0, 1], port));
    let mut watch = Process::start(&["--json", "usage", "watch", "--listen", &collector.to_string()]);
    let mut lines = BufReader::new(watch.stdout()).lines();
    // The first line comes when it listens.
    lines.next().unwrap().unwrap();
    let network = BadNetwork::start(collector);
    let _agent =
        Process::start(&["agent", &network.address.to_string(), "--host", "db1", "--interval", "20ms"]);
    let mut seen = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let complete = |overview: &Value| {
        let host = &overview["hosts"][0];
        let count = |name: &str| host["datagrams"][name].as_u64().unwrap_or(0);
        ["lost", "doubled", "reordered"].into_iter().all(|name| count(name) > 10)
            && host["samples"]["kept"].as_u64().is_some_and(|kept| kept > 50)
            && host["clock"]["bound_ns"].is_u64()
            && host["cpu_used"].is_number()
    };
    let deadline = Instant::now() + PATIENCE;
    let overview = loop {
        let overview = seen.next().unwrap();
        if complete(&overview) {
            break overview;
        }
        assert!(Instant::now() < deadline, "never complete: {overview}");
    };
    let mut host = overview["hosts"][0].clone();
    // Only offsets of clocks may be below 0.
    host["clock"] = Value::Null;
    assert!(is_positive(&host), "{host}");
    assert_eq!((overview["hosts"].as_array().unwrap().len(), &host["name"]), (1, &Value::from("db1")));
    // Of the samples that came twice, one counts.
    let of = |name: &str| host["datagrams"][name].as_u64().unwrap();
    assert!(host["samples"]["kept"].as_u64().unwrap() <= of("received"), "{overview}");
    // About 30% are lost.
    let lost = of("lost") as f64 / (of("lost") + of("received")) as f64;
    assert!((0.1..0.6).contains(&lost), "{lost}: {overview}");
    let processors = host["facts"]["processors"].as_f64().unwrap();
    let used = host["cpu_used"].as_f64().unwrap();
    assert!(used <= processors * 1.3, "{used} of {processors}: {host}");
}

/// A file system of 1 MiB.
struct SmallDisk(Folder);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let disk = Self(Folder::new());
        let mount = ["-t", "tmpfs", "-o", "size=1m", "none"];
        let mounted = Command::new("mount").args(mount).arg(disk.0.path()).output().unwrap();
        mounted.status.success().then_some(disk)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // It may still be used for a moment.
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[test]
fn a_history_whose_disk_is_full_is_said_to_fail_and_nothing_else_does() {
    let Some(disk) = SmallDisk::mount() else {
        #[allow(clippy::print_stderr)]
        {
            eprintln!("skipped: mounting a file system needs root");
        }
        return;
    };
    let shown = Shown::start(&["--usage-data", &disk.0.arg("samples")]);
    // No room is left.
    let mut other = std::fs::File::create(disk.0.file("other")).unwrap();
    while other.write_all(&[7; 4096]).is_ok() {}
    let agents: Vec<Process> = (0..4)
        .map(|number| {
            let host = format!("db{number}");
            Process::start(&["agent", shown.node.address(), "--host", &host, "--interval", "10ms"])
        })
        .collect();
    // Samples are written when there are many, which takes a slow machine more than a minute.
    let deadline = Instant::now() + 6 * PATIENCE;
    let error = loop {
        if let Some(error) = shown.overview()["history"]["error"].as_str() {
            break error.to_owned();
        }
        assert!(Instant::now() < deadline, "the history never fails");
        std::thread::park_timeout(Duration::from_millis(10));
    };
    assert!(error.contains("o space left"), "{error}");
    until("lost samples are counted", || shown.overview()["history"]["lost"].as_u64() > Some(0));
    until("the metrics say so", || {
        get(&shown.page, "/metrics", "").1.contains("lightship_history_failing 1")
    });
    // Queries run, and are assessed with the samples in memory.
    let sql = "select count(*) as c from generate_series(1, 100)";
    assert_eq!(shown.node.fetch(&["--quiet", sql]).succeeds().text(), "c\n100\n");
    shown.assessed(sql);
    for number in 0..agents.len() {
        assert!(shown.host(&format!("db{number}")).is_some());
    }
}

#[test]
fn thousands_of_short_queries_are_counted_within_the_limits_while_the_page_answers() {
    const CONNECTIONS: usize = 4;
    const QUERIES: usize = 600;
    let shown = Shown::start(&[]);
    let (host, port) = shown.node.address().rsplit_once(':').unwrap();
    let endpoint = Endpoint::Tcp { host: host.to_owned(), port: port.parse().unwrap(), tls: None };
    let run = |count: usize| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ask = |endpoint: Endpoint| async move {
            let mut client = Client::connect(&endpoint, "").await.unwrap();
            for _ in 0..count {
                let mut transfer = client.fetch("select 1", &Options::default()).await.unwrap();
                while transfer.next().await.unwrap().is_some() {}
            }
        };
        runtime.block_on(futures::future::join_all((0..CONNECTIONS).map(|_| ask(endpoint.clone()))));
    };
    // Records of queries that are kept are within their limit after these.
    run(QUERIES / 2);
    let ended = |count: usize| {
        until("all queries are counted", || {
            shown.overview()["queries"]["ended"].as_u64() == Some(count as u64)
        });
    };
    ended(CONNECTIONS * QUERIES / 2);
    let before = shown.node.process.memory_bytes("VmRSS");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut answers = 0;
            while !stop.load(Ordering::Relaxed) {
                assert!(is_positive(&shown.overview()["queries"]));
                answers += 1;
            }
            answers
        });
        run(QUERIES);
        stop.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
    ended(CONNECTIONS * QUERIES * 3 / 2);
    let overview = shown.overview();
    let recorder = &overview["recorder"];
    assert!(recorder["queries_kept"].as_u64() <= recorder["queries_max"].as_u64(), "{recorder}");
    assert_eq!(recorder["arrivals_dropped"], 0, "{recorder}");
    let grown = shown.node.process.memory_bytes("VmRSS").saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more after {} queries", CONNECTIONS * QUERIES);
}

/// What takes all of root's capabilities from a command: it may no longer look into processes that are protected.
const WITHOUT_CAPABILITIES: &str = "setpriv --bounding-set=-all --inh-caps=-all";

/// Whether this machine can run a line of shell; otherwise says which test is skipped.
fn can(line: &str, test: &str) -> bool {
    let tried = Command::new("sh").args(["-c", line]).output().unwrap();
    if !tried.status.success() {
        eprintln!("{test} is skipped: `{line}`: {}", String::from_utf8_lossy(&tried.stderr).trim());
    }
    tried.status.success()
}

#[test]
fn counters_that_a_process_refuses_are_unavailable_and_the_others_are_counted() {
    let folder = Folder::new();
    let shell = folder.arg("shell");
    // A program that can't be read may not be traced, and refuses /proc/PID/io.
    std::fs::copy(std::fs::canonicalize("/bin/sh").unwrap(), &shell).unwrap();
    assert!(Command::new("chmod").args(["111", &shell]).status().unwrap().success());
    let refused =
        format!("{WITHOUT_CAPABILITIES} sh -c \"{shell} -c 'cat /proc/\\$\\$/io'\" 2>&1 | grep -qi denied");
    if !can(&refused, "counters_that_a_process_refuses") {
        return;
    }
    let count = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let line =
        format!("export LIGHTSHIP_USAGE={}; exec {WITHOUT_CAPABILITIES} \"$0\" \"$@\"", folder.arg("runs"));
    Process::start_under(&line, &["usage", "run", "-q", "--", &shell, "-c", count]).end().succeeds();
    let explain = |args: &[&str]| {
        Process::start_with(args, |command| command.env("LIGHTSHIP_USAGE", folder.arg("runs")))
            .end()
            .succeeds()
    };
    let explained = explain(&["usage", "explain"]);
    let reason = "unavailable: no permission to read /proc/PID/io";
    assert!(explained.text().contains(reason), "{explained}");
    let record: Value = serde_json::from_str(explain(&["--json", "usage", "explain"]).text()).unwrap();
    let host = &record["footprint"]["hosts"][0];
    // Missing, and not 0.
    assert_eq!(host["figures"]["disk_read_bytes"], Value::Null, "{host}");
    assert!(host["figures"]["cpu_user_ns"]["amount"]["value"].as_f64().unwrap() > 0.0, "{host}");
    let limit = record["verdict"]["limit"].as_str().unwrap();
    assert!(limit.starts_with("cpu"), "{explained}");
}

#[test]
fn an_agent_that_sees_no_processes_of_others_says_so_and_goes_on() {
    let mount = "mount -t proc -o hidepid=2 proc /proc";
    // The group of root sees all.
    let hidden = format!(
        "exec unshare -m sh -c '{mount} && exec {WITHOUT_CAPABILITIES} --regid 65534 --clear-groups \"$0\" \"$@\"'"
    );
    if !can(&format!("{hidden} sh -c '! test -e /proc/1/stat'"), "an_agent_that_sees_no_processes_of_others")
    {
        return;
    }
    let shown = Shown::start(&[]);
    let address = shown.node.address().to_owned();
    let args = |host| {
        [
            "agent".to_owned(),
            address.clone(),
            "--host".to_owned(),
            host,
            "--process".to_owned(),
            "lightship".to_owned(),
            "--interval".to_owned(),
            "50ms".to_owned(),
        ]
    };
    let (near, far) = (args("open".to_owned()), args("closed".to_owned()));
    let _open = Process::start(&near.each_ref().map(String::as_str));
    let _closed =
        Process::start_under(&format!("{hidden} \"$0\" \"$@\""), &far.each_ref().map(String::as_str));
    let mut hosts = Value::Null;
    until("both agents are heard", || {
        let [open, closed] = ["open", "closed"].map(|name| shown.host(name).unwrap_or_default());
        let is_whole = |host: &Value| host["cpu_used"].is_number() && host["facts"]["processors"].is_u64();
        let is_heard = is_whole(&open) && is_whole(&closed);
        hosts = serde_json::json!([open, closed]);
        is_heard
    });
    let processes = |host: usize| hosts[host]["facts"]["processes"].as_u64().unwrap();
    assert_eq!(processes(1), 1, "only itself: {hosts}");
    assert!(processes(0) > 1, "{hosts}");
    assert_ne!(hosts[1]["facts"]["hidden"], "", "{hosts}");
}
