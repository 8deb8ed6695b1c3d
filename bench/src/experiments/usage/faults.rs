//! One thing is made slow on purpose: whether it is found, and how much of the time it explains.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::{Host, Lab, Limits};
use lightship_usage::{Footprint, Verdict};
use serde::Deserialize;

use super::nodes::say;
use super::outcome::{Explained, Row, Rows};
use super::postgres::{Server, WHOLE, binary};
use super::site::{Hardware, limit};
use super::slow::delayed;
use super::system::{Configuration, Division, LIGHTSHIP, POSTGRES, QUERIES, Question, Running, System};
use crate::process::Process;
use crate::settings::Settings;
use crate::{Result, places};

pub(super) const NAME: &str = "usage-faults";
/// `set` is `limit` (one resource is slow on all nodes) or `fault`; `at` is the host that the verdict should name, if any.
pub(super) const DIMENSIONS: &[&str] = &["set", "system", "fault", "query", "expected", "at"];
pub(super) const LIMIT: &str = "limit";
pub(super) const FAULT: &str = "fault";

/// Nothing is the limit for long.
const HEALTHY: Hardware = Hardware { cpus: 2.0, disk_bytes_per_s: 400_000_000 };
const SLOW_CPUS: [(&str, f64); 2] = [(POSTGRES, 0.04), (LIGHTSHIP, 0.1)];
const SLOW_DISK: Hardware = Hardware { disk_bytes_per_s: 10_000_000, ..HEALTHY };
const HEALTHY_LINK: &str = "1gbit";
const SLOW_LINK: &str = "100mbit";
const DELAYED_LINK: &str = "800mbit,1ms";
const SCALES: [(&str, f64); 2] = [(POSTGRES, 0.05), (LIGHTSHIP, 0.5)];
const NODES: usize = 3;
/// Programs that compute without end.
pub(super) const HOGS: usize = 25;
const CLIENT_BYTES_PER_S: [(&str, f64); 2] = [(POSTGRES, 10e6), (LIGHTSHIP, 5e6)];
/// One way.
const DELAY: Duration = Duration::from_millis(1);
const LOCKED_SECONDS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(20);

const CPU: &str = "CPU-limited";
const CONTENDED: &str = "CPU-limited, contended by others";
const DISK: &str = "disk-limited, sequential|disk-limited, random";
const NETWORK: &str = "network-limited";
const RECEIVER: &str = "receiver-limited";
const LOCK: &str = "lock-limited";
const LATENCY: &str = "latency-limited";

/// Whether a verdict is what was expected.
pub(super) fn is_right(row: &Row) -> bool {
    let (expected, at) = (&row.place[4], &row.place[5]);
    expected.split('|').any(|limit| limit == row.limit) && (at.is_empty() || *at == row.host)
}

/// What one case is about.
struct Case<'a> {
    set: &'a str,
    fault: &'a str,
    query: String,
    expected: &'a str,
    at: String,
}

/// A query that fetches its rows one at a time.
fn fetch_size_one(query: &str) -> Case<'static> {
    Case { set: FAULT, fault: "fetch size 1", query: query.to_owned(), expected: LATENCY, at: String::new() }
}

pub(super) fn measure(settings: &Settings, lab: &Lab, rows: &mut Rows) -> Result<()> {
    System::each(settings, &SCALES, |system, scale| {
        let mut measured = Faults { settings, rows };
        {
            let mut running = Running::start(lab, HEALTHY_LINK, NODES, HEALTHY, system, scale)?;
            measured.limits(&mut running)?;
            measured.faults(&mut running)?;
            if running.system.name() == POSTGRES {
                measured.sessions(&running)?;
            }
        }
        {
            let mut running = Running::start(lab, SLOW_LINK, NODES, HEALTHY, system, scale)?;
            measured.links(&mut running)?;
        }
        if system.name() == LIGHTSHIP {
            let mut running = Running::start(lab, DELAYED_LINK, NODES, HEALTHY, system, scale)?;
            measured.round_trips(&mut running)?;
        }
        Ok(())
    })
}

struct Faults<'a> {
    settings: &'a Settings,
    rows: &'a mut Rows,
}

impl Faults<'_> {
    fn add(
        &mut self,
        running: &Running<'_>,
        case: &Case<'_>,
        mut run: impl FnMut() -> Result<Explained>,
    ) -> Result<()> {
        let system = running.system.name();
        let Case { set, fault, query, expected, at } = case;
        let place =
            [*set, system, *fault, query.as_str(), *expected, at.as_str()].map(str::to_owned).to_vec();
        let mut found = Vec::new();
        for round in 1..=self.settings.rounds() {
            match run() {
                Ok(run) => {
                    let row = Row::new(place.clone(), running.circumstances(), round, &run);
                    say(&row);
                    run.keep(&row)?;
                    found.push(row);
                }
                // Reported, and missing.
                Err(error) => eprintln!("{} {round} failed: {error}", place.join(" ")),
            }
        }
        if found.is_empty() { Ok(()) } else { self.rows.add(found) }
    }

    fn ask(&mut self, running: &Running<'_>, case: &Case<'_>, question: &Question) -> Result<()> {
        self.add(running, case, || Ok(running.ask(question, &case.query)?.0))
    }

    fn query(
        &mut self,
        running: &Running<'_>,
        (set, fault, expected): (&str, &str, &str),
        at: &str,
        number: usize,
    ) -> Result<()> {
        let case = Case { set, fault, query: format!("Q{number}"), expected, at: at.to_owned() };
        self.add(running, &case, || Ok(running.query(number)?.0))
    }

    /// One node, of which one resource is slow.
    fn limits(&mut self, running: &mut Running<'_>) -> Result<()> {
        running.configure(Configuration { nodes: 1, division: Division::One })?;
        warm(running)?;
        let slow = Hardware { cpus: of(&SLOW_CPUS, running), ..HEALTHY };
        for (fault, hardware, expected) in
            [("slow processor", slow, CPU), ("disk of 10 MB/s", SLOW_DISK, DISK)]
        {
            running.limit(hardware)?;
            for &(query, _) in self.settings.some_if_quick(&QUERIES) {
                self.query(running, (LIMIT, fault, expected), "", query)?;
            }
        }
        Ok(())
    }

    /// Three nodes, of which one is slow, and a client that is.
    fn faults(&mut self, running: &mut Running<'_>) -> Result<()> {
        running.configure(Configuration { nodes: NODES, division: Division::One })?;
        warm(running)?;
        for (node, query) in [(1, 1), (2, 4), (0, 12)] {
            running.limit(HEALTHY)?;
            let host = &running.site.nodes[node];
            limit(host, SLOW_DISK)?;
            self.query(running, (FAULT, "slow disk on one node", DISK), &host_name(running, node), query)?;
        }
        running.limit(HEALTHY)?;
        for (node, query) in [(1, 1), (0, 3), (2, 1)] {
            // The others have the other processor.
            for (other, host) in running.site.nodes.iter().enumerate() {
                host.limit(&pinned(vec![usize::from(other == node)]))?;
            }
            let hogs = hogs(&running.site.nodes[node])?;
            self.query(running, (FAULT, "CPU hog on one node", CONTENDED), &host_name(running, node), query)?;
            drop(hogs);
        }
        for host in &running.site.nodes {
            host.limit(&pinned(vec![0, 1]))?;
        }
        // Much more than the buffers of the sockets hold.
        let results = match running.system.name() {
            POSTGRES => [
                ("lineitem", "select lineitem.*, g from lineitem, generate_series(1, 3) g"),
                ("orders", "select orders.*, g from orders, generate_series(1, 4) g"),
            ],
            _ => [
                ("lineitem", "select * from lineitem where l_orderkey <= 300000"),
                ("orders", "select * from orders where o_orderkey <= 1000000"),
            ],
        };
        for (query, sql) in results {
            let case = Case {
                set: FAULT,
                fault: "client that reads slowly",
                query: query.to_owned(),
                expected: RECEIVER,
                at: String::new(),
            };
            // Otherwise the client takes most of the rows ahead.
            let arguments = ["--memory", "4MiB"].map(str::to_owned).to_vec();
            let question = Question {
                sql: sql.to_owned(),
                arguments,
                read_bytes_per_s: Some(of(&CLIENT_BYTES_PER_S, running)),
            };
            self.ask(running, &case, &question)?;
        }
        Ok(())
    }

    /// Rows that are fetched one at a time, over links with a delay.
    fn round_trips(&mut self, running: &mut Running<'_>) -> Result<()> {
        running.configure(Configuration { nodes: NODES, division: Division::One })?;
        warm(running)?;
        for (query, sql) in [
            ("lineitem", "select * from lineitem limit 700"),
            ("orders", "select o_orderkey, o_totalprice from orders where o_orderkey < 4000"),
        ] {
            let arguments = ["--batch-rows", "1", "--window", "1"].map(str::to_owned).to_vec();
            let question = Question { sql: sql.to_owned(), arguments, read_bytes_per_s: None };
            self.ask(running, &fetch_size_one(query), &question)?;
        }
        Ok(())
    }

    /// One session at the first node.
    fn sessions(&mut self, running: &Running<'_>) -> Result<()> {
        let System::Postgres { servers, .. } = &*running.system else { return Ok(()) };
        running.limit(HEALTHY)?;
        let (host, server) = (&running.site.nodes[0], servers.first().ok_or("no server")?);
        let table = "begin; lock table orders in access exclusive mode";
        let row = "begin; update orders set o_comment = o_comment where o_orderkey = 1";
        let waiting = format!("{row}; rollback");
        let queries = lightship_testkit::tpch::queries(1.0);
        for (fault, held, query, sql) in [
            ("locked table", table, "Q4", &queries[3]),
            ("locked table", table, "Q12", &queries[11]),
            ("locked row", row, "update", &waiting),
        ] {
            let case = Case {
                set: FAULT,
                fault,
                query: query.to_owned(),
                expected: LOCK,
                at: "postgresql".to_owned(),
            };
            self.add(running, &case, || {
                let holder = hold(server, held)?;
                let run = session(host, 5432, sql, &[]);
                drop(holder);
                run
            })?;
        }
        let port = delayed(host, SocketAddr::new([127, 0, 0, 1].into(), 5432), DELAY)?;
        for (query, sql) in [
            ("lineitem", "select * from lineitem limit 800"),
            ("orders", "select o_orderkey, o_totalprice from orders where o_orderkey < 4000"),
        ] {
            let case = fetch_size_one(query);
            self.add(running, &case, || session(host, port, sql, &["-v", "FETCH_COUNT=1"]))?;
        }
        Ok(())
    }

    /// Results that are large for the link.
    fn links(&mut self, running: &mut Running<'_>) -> Result<()> {
        let codec: &[&str] = if running.system.name() == POSTGRES { &[] } else { &["--codec", "none"] };
        let arguments: Vec<String> = codec.iter().map(|word| (*word).to_owned()).collect();
        for nodes in [1, NODES] {
            running.configure(Configuration { nodes, division: Division::One })?;
            running.limit(HEALTHY)?;
            let rows = 300_000;
            for (query, sql) in [
                ("lineitem", format!("select * from lineitem where l_orderkey <= {rows}")),
                ("orders", format!("select * from orders where o_orderkey <= {}", rows * 2)),
            ] {
                let (set, fault) = match nodes {
                    1 => (LIMIT, "link of 100 Mbit/s"),
                    _ => (FAULT, "link of 100 Mbit/s"),
                };
                let case = Case { set, fault, query: query.to_owned(), expected: NETWORK, at: String::new() };
                let question = Question { sql, arguments: arguments.clone(), read_bytes_per_s: None };
                self.ask(running, &case, &question)?;
            }
        }
        Ok(())
    }
}

/// The value for a system.
fn of(values: &[(&str, f64)], running: &Running<'_>) -> f64 {
    let found = values.iter().find(|(system, _)| *system == running.system.name());
    found.map_or(f64::NAN, |(_, value)| *value)
}

/// Runs each query once.
fn warm(running: &Running<'_>) -> Result<()> {
    running.limit(HEALTHY)?;
    running.warm()
}

/// A node's name in reports.
fn host_name(running: &Running<'_>, node: usize) -> String {
    match &*running.system {
        System::Postgres { .. } => super::site::name(node + 1),
        System::Lightship { .. } => format!("{}:4270", running.site.nodes[node].address()),
    }
}

fn pinned(processors: Vec<usize>) -> Limits {
    Limits { pinned: Some(processors), ..Limits::default() }
}

fn hogs(host: &Host) -> Result<Vec<Process>> {
    (0..HOGS).map(|_| Process::spawn(Some(host), "bash", ["-c", "while :; do :; done"])).collect()
}

/// A session that holds locks for some seconds; it has them when this returns.
struct Holder(std::process::Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.wait();
    }
}

fn hold(server: &Server, statements: &str) -> Result<Holder> {
    let sql = format!("{statements}; select pg_sleep({LOCKED_SECONDS}); rollback");
    let mut command = Command::new(binary("psql")?);
    command.args(["-X", "-q", "-U", "postgres", "-d", WHOLE, "-c", &sql]).arg("-h").arg(server.folder());
    let holder = Holder(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let began = Instant::now();
    while server.psql(WHOLE, "select count(*) from pg_stat_activity where wait_event = 'PgSleep'")? == "0" {
        if began.elapsed() > PATIENCE {
            return Err("the locks are not held".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(holder)
}

/// A record of `lightship usage run`.
#[derive(Deserialize)]
struct Record {
    footprint: Footprint,
    verdict: Verdict,
}

/// Runs a statement by psql under `lightship usage run`, on the server's host.
fn session(host: &Host, port: u16, sql: &str, arguments: &[&str]) -> Result<Explained> {
    let folder = tempfile::tempdir()?;
    let (program, psql) = (places::lightship()?, binary("psql")?);
    let (uri, port) = (format!("postgresql://postgres@127.0.0.1:5432/{WHOLE}"), port.to_string());
    let output = host.run(|| {
        let mut command = Command::new(&program);
        command.args(["--json", "usage", "run", "--label", "session", "--postgres", &uri, "--", &psql]);
        command.args(["-X", "-q", "-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-d", WHOLE]);
        command.args(arguments).args(["-c", sql]).stdin(Stdio::null()).stdout(Stdio::null());
        command.env("LIGHTSHIP_USAGE", folder.path()).env("LIGHTSHIP_HOSTS", folder.path().join("hosts"));
        command.output()
    })?;
    let text = String::from_utf8_lossy(&output.stderr);
    let json = text.lines().find(|line| line.starts_with('{'));
    let Record { footprint, verdict } = serde_json::from_str(json.ok_or_else(|| text.trim().to_owned())?)?;
    Ok(Explained { footprint, verdict })
}
