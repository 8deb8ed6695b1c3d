//! Clusters whose links change while queries run, or are slower in one direction than in the other.
//!
//! Each node runs on a host of the lab. The lab needs root on Linux; without it, the tests print why they don't run.
//! `LIGHTSHIP_LINK_RUNS=20` makes 20 runs of each test, `LIGHTSHIP_SEED=7` that of one seed, which decides the rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use fastrand::Rng;
use lab::{Host, Lab, Link};
use lightship_testkit::seeds::seeds;

use crate::range::joined;
use crate::support::*;

const PORT: u16 = 4270;
const NODES: usize = 3;
/// The node whose link changes, or is different. The first plans queries, and clients are on its host.
const CHANGED: usize = 1;

const FAST: &str = "100mbit";
const FAST_BITS_PER_S: u64 = 100_000_000;
/// A tenth.
const SLOW: &str = "10mbit";
const SLOW_BITS_PER_S: u64 = 10_000_000;
const SLOW_BYTES_PER_S: f64 = SLOW_BITS_PER_S as f64 / 8.0;
/// Half of the fast one.
const HALF: &str = "50mbit";
const HALF_BYTES_PER_S: f64 = FAST_BITS_PER_S as f64 / 2.0 / 8.0;

/// Rows of a node's part. A row has 24 bytes that no codec makes smaller, and two thirds of the rows are sent.
const MANY_ROWS: usize = 300_000;
/// For tests in which a node sends all its rows slowly, several times.
const FEW_ROWS: usize = 100_000;
/// The link changes when its node has sent this many bytes more.
const STEP_BYTES: u64 = 512 << 10;

/// Of a query whose link is to change before it has ended.
const TRIES: usize = 5;
/// Nothing is sent but keep-alives if there are no more bytes than these for this long.
const QUIET_BYTES: u64 = 16 << 10;
const QUIET: Duration = Duration::from_millis(300);

/// Each row is a group of its own, so that all rows are sent to the node that has their hash.
const SQL: &str = "select count(*) as n, sum(w % 1000003) as w, sum(x % 1000003) as x \
                   from (select v, max(w) as w, max(x) as x from t group by v) as g";

/// Links are measured again within a minute, if no query runs; a measurement may take a while on a busy machine.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(90);
/// A query over slow links.
const QUERY_PATIENCE: Duration = Duration::from_secs(60);
/// Each poll is a command.
const POLL: Duration = Duration::from_millis(250);

/// Bytes a second, by the numbers of the nodes: from, to.
type Rates = BTreeMap<(usize, usize), f64>;

/// Nodes that have joined each other. They end before their hosts.
struct Cluster {
    nodes: Vec<Node>,
    hosts: Vec<Host>,
    /// The answer of [`SQL`].
    expected: String,
    _folder: Folder,
}

impl Cluster {
    /// `shape` changes the links before they are measured.
    fn start(lab: &Lab, seed: u64, rows: usize, shape: impl FnOnce(&[Host])) -> Self {
        eprintln!("LIGHTSHIP_SEED={seed}");
        let hosts = lab.hosts(NODES, &link(FAST)).expect("hosts");
        shape(&hosts);
        let (folder, mut random, mut sums) = (Folder::new(), Rng::with_seed(seed), [0; 2]);
        let address = |node: usize| format!("{}:{PORT}", hosts[node].address());
        let mut nodes = Vec::new();
        for (node, host) in hosts.iter().enumerate() {
            let data = folder.file(&node.to_string());
            std::fs::create_dir(&data).expect("a folder");
            write_parquet(&data.join("t.parquet"), [part(&mut random, rows, &mut sums)]);
            let (own, first, data) = (address(node), address(0), folder.arg(&node.to_string()));
            let state = folder.arg(&format!("state-{node}"));
            let mut words = vec!["--listen", &own, "--advertise", &own, "--insecure", "--data", &data];
            words.extend(["--state-folder", &state]);
            if node > 0 {
                words.extend(["--join", &first]);
            }
            nodes.push(Node::start_on(host, &words));
        }
        joined(&nodes);
        let expected = format!("n,w,x\n{},{},{}\n", NODES * rows, sums[0], sums[1]);
        Self { nodes, hosts, expected, _folder: folder }
    }

    /// Runs the command on the host of the first node.
    fn command(&self, words: &[&str]) -> Process {
        Process::start_on(&self.hosts[0], words)
    }

    /// Starts [`SQL`], which a node plans.
    fn begin(&self, node: usize) -> Process {
        self.command(&["fetch", "--quiet", &self.nodes[node].uri, SQL])
    }

    /// Waits until the query has ended, and checks its rows.
    #[track_caller]
    fn is_right(&self, query: Process) {
        let outcome = query.end_within(QUERY_PATIENCE).succeeds();
        assert_eq!(outcome.text(), self.expected);
    }

    /// Bytes that the changed node has sent.
    fn sent_bytes(&self) -> u64 {
        let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
        let counters = self.hosts[CHANGED].run(read).expect("counters");
        let line = counters.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"));
        // Received are bytes, packets, and six more; then those that were sent.
        let sent = line.and_then(|line| line.split_whitespace().nth(8)).expect("a device");
        sent.parse().expect("a number")
    }

    /// Waits until the changed node has sent this many bytes.
    #[track_caller]
    fn has_sent(&self, bytes: u64) {
        until("rows are sent", || self.sent_bytes() >= bytes);
    }

    /// Waits until the changed node sends next to nothing: links are measured now and then.
    #[track_caller]
    fn is_quiet(&self) {
        let (mut since, mut from) = (Instant::now(), self.sent_bytes());
        until("no link is being measured", || {
            let now = self.sent_bytes();
            if now > from + QUIET_BYTES {
                (since, from) = (Instant::now(), now);
            }
            since.elapsed() > QUIET
        });
    }

    /// Runs [`SQL`], and changes the link of the changed node to each of these rates while its rows are sent, from a rate
    /// that it has before. On a busy machine the query may have ended before the last change; then it is repeated.
    #[track_caller]
    fn changes_in_a_query(&self, before: &str, rates: &[&str]) {
        for _ in 0..TRIES {
            self.hosts[CHANGED].reshape(&link(before)).expect("the link before");
            self.is_quiet();
            let begun = self.sent_bytes();
            let query = self.begin(0);
            for (step, rate) in (1..).zip(rates) {
                self.has_sent(begun + step * STEP_BYTES);
                self.hosts[CHANGED].reshape(&link(rate)).expect("another link");
            }
            let changed = self.sent_bytes();
            self.is_right(query);
            if self.sent_bytes() >= changed + STEP_BYTES / 2 {
                return;
            }
        }
        panic!("in each of {TRIES} tries, the query had ended before the link was changed");
    }

    /// What the first node knows of the links.
    fn rates(&self) -> Rates {
        let links = self.command(&["--json", "cluster", "links", &self.nodes[0].uri]).end().succeeds();
        let links: Vec<serde_json::Value> = serde_json::from_str(links.text()).expect("JSON");
        let number = |name: &serde_json::Value| {
            let node = self.nodes.iter().position(|node| name.as_str() == Some(node.address()));
            node.expect("one of the nodes")
        };
        let rate = |link: &serde_json::Value| {
            let rate = link["bytes_per_second"].as_f64().expect("a number");
            ((number(&link["from_node"]), number(&link["to_node"])), rate)
        };
        links.iter().map(rate).collect()
    }

    /// Waits until what is known of all links is so.
    #[track_caller]
    fn know(&self, what: &str, is_so: impl Fn(&Rates) -> bool) -> Rates {
        let deadline = Instant::now() + FOLLOWS_WITHIN;
        loop {
            let rates = self.rates();
            if rates.len() == NODES * (NODES - 1) && is_so(&rates) {
                return rates;
            }
            assert!(Instant::now() < deadline, "never: {what}: {rates:?}");
            std::thread::park_timeout(POLL);
        }
    }

    /// Waits until all links are measured, and no node is left out because one of them was measured at a busy moment.
    #[track_caller]
    fn know_equal_links(&self) {
        self.know("equal links", |rates| {
            let (least, most) = least_and_most(rates, |_, _| true);
            least >= 3.0 * SLOW_BYTES_PER_S && most <= 2.0 * least
        });
    }

    /// How the first node explains [`SQL`].
    fn explained(&self, more: &[&str]) -> serde_json::Value {
        let words = [&["--json", "explain", &self.nodes[0].uri], more, &[SQL]].concat();
        let outcome = self.command(&words).end_within(QUERY_PATIENCE).succeeds();
        serde_json::from_str(outcome.text()).expect("JSON")
    }

    /// The nodes that receive the groups, as the first node plans it. It tells of the others what they would cost.
    fn receivers(&self) -> BTreeSet<usize> {
        let explained = self.explained(&[]);
        let stages = explained["stages"].as_array().expect("stages").iter();
        let reads = |stage: &&serde_json::Value| {
            stage["stage"] != 0 && stage["reads"].as_array().is_some_and(|read| !read.is_empty())
        };
        let number = |name: &serde_json::Value| {
            let number = self.nodes.iter().position(|node| name.as_str() == Some(node.address()));
            number.expect("one of the nodes")
        };
        let stages: Vec<_> = stages.filter(reads).collect();
        let tasks = stages.iter().flat_map(|stage| stage["tasks"].as_array().expect("tasks"));
        let receivers: BTreeSet<usize> = tasks.map(|task| number(&task["node"])).collect();
        for stage in stages {
            let named = stage["left_out"]["nodes"].as_array().into_iter().flatten().map(number);
            assert_eq!(named.collect::<BTreeSet<_>>(), &all() - &receivers, "{stage:#}");
            let time_with_all = stage["left_out"]["time_with_all"].as_f64();
            assert!(time_with_all.is_none_or(|times| times > 1.0), "{stage:#}");
        }
        receivers
    }
}

fn link(text: &str) -> Link {
    text.parse().expect("a link")
}

/// Random rows, and what [`SQL`] sums of them.
fn part(random: &mut Rng, rows: usize, sums: &mut [i64; 2]) -> RecordBatch {
    let mut column = || -> Vec<i64> { (0..rows).map(|_| random.i64(..)).collect() };
    let (v, w, x) = (column(), column(), column());
    for (sum, values) in sums.iter_mut().zip([&w, &x]) {
        *sum += values.iter().map(|value| value % 1_000_003).sum::<i64>();
    }
    let columns = [("v", v), ("w", w), ("x", x)];
    let columns = columns.map(|(name, values)| (name, Arc::new(Int64Array::from(values)) as ArrayRef));
    RecordBatch::try_from_iter(columns).expect("columns of one length")
}

/// Shapes what a host sends, and leaves what it receives as it is.
fn shape_sending(host: &Host, bits_per_s: u64) {
    // The bucket and the queue are those of the lab. A smaller bucket would not let frames pass that wait for it.
    let words = format!("qdisc change dev eth0 root tbf rate {bits_per_s}bit burst 12500b limit 151400b");
    let done = host.command("tc").args(words.split(' ')).status().expect("tc is there");
    assert!(done.success(), "{words}");
}

/// The least and the greatest rate of some links.
fn least_and_most(rates: &Rates, which: impl Fn(usize, usize) -> bool) -> (f64, f64) {
    let rates = rates.iter().filter(|((from, to), _)| which(*from, *to)).map(|(_, rate)| *rate);
    rates.fold((f64::INFINITY, 0.0), |(least, most), rate| (least.min(rate), most.max(rate)))
}

fn is_changed(from: usize, to: usize) -> bool {
    from == CHANGED || to == CHANGED
}

fn all() -> BTreeSet<usize> {
    (0..NODES).collect()
}

fn but_changed() -> BTreeSet<usize> {
    (0..NODES).filter(|node| *node != CHANGED).collect()
}

#[test]
fn a_link_that_falls_to_a_tenth_and_recovers_in_the_middle_of_a_query_loses_no_rows() {
    let Some(lab) = Lab::or_skip() else { return };
    for seed in seeds("LIGHTSHIP_LINK_RUNS", 1) {
        let cluster = Cluster::start(&lab, seed, MANY_ROWS, |_| {});
        cluster.know_equal_links();
        cluster.changes_in_a_query(FAST, &[SLOW, FAST]);
        // Whatever was learned from it, the next query is right, also one that another node plans.
        cluster.is_right(cluster.begin(CHANGED));
    }
}

#[test]
fn a_link_that_halves_or_doubles_in_the_middle_of_a_query_loses_no_rows_and_is_known_once_it_has_halved() {
    let Some(lab) = Lab::or_skip() else { return };
    for seed in seeds("LIGHTSHIP_LINK_RUNS", 1) {
        let cluster = Cluster::start(&lab, seed, MANY_ROWS, |_| {});
        cluster.know_equal_links();
        cluster.changes_in_a_query(FAST, &[HALF]);
        // The rows of the first query may have come at more than half of the known rate, with those before the
        // link changed. Here two edges share the halved link, at a quarter of that rate each, so that the nodes
        // measure again.
        cluster.is_right(cluster.begin(CHANGED));
        cluster.know("a halved link", |rates| {
            let (least, most) = least_and_most(rates, is_changed);
            let (others, _) = least_and_most(rates, |from, to| !is_changed(from, to));
            least > 0.5 * HALF_BYTES_PER_S && most < 1.5 * HALF_BYTES_PER_S && most < others
        });
        // Two edges share the doubled link, and neither is faster than the link is known to be. So only the next
        // measurement tells, within a minute, which is too long to wait for.
        cluster.changes_in_a_query(HALF, &[FAST]);
        cluster.is_right(cluster.begin(CHANGED));
    }
}

#[test]
fn what_is_known_of_a_link_and_its_plans_follow_it_down_and_up() {
    let Some(lab) = Lab::or_skip() else { return };
    for seed in seeds("LIGHTSHIP_LINK_RUNS", 1) {
        let cluster = Cluster::start(&lab, seed, MANY_ROWS, |_| {});
        cluster.know_equal_links();
        assert_eq!(cluster.receivers(), all());
        let begun = cluster.sent_bytes();
        let query = cluster.begin(0);
        cluster.has_sent(begun + STEP_BYTES);
        cluster.hosts[CHANGED].reshape(&link(SLOW)).expect("a slower link");
        cluster.is_right(query);
        let low = cluster.know("slower links", |rates| {
            let (_, most) = least_and_most(rates, is_changed);
            let (others, _) = least_and_most(rates, |from, to| !is_changed(from, to));
            most < 2.0 * SLOW_BYTES_PER_S && 3.0 * most < others
        });
        // A node behind a slow link gets no groups that others can get.
        assert_eq!(cluster.receivers(), but_changed(), "{low:?}");
        cluster.hosts[CHANGED].reshape(&link(FAST)).expect("a faster link");
        // Planned for the slow link. Its rows may show that what the node sends is fast again; it receives none, so that
        // what it receives is only known from the next measurement.
        cluster.is_right(cluster.begin(0));
        cluster.know("faster links", |rates| {
            least_and_most(rates, |from, _| from == CHANGED).0 > 2.0 * SLOW_BYTES_PER_S
        });
        cluster.is_right(cluster.begin(CHANGED));
    }
}

/// The direction in which the link of the changed node is slow.
#[derive(Clone, Copy)]
enum Slow {
    Sending,
    Receiving,
}

impl Slow {
    fn shape(self, hosts: &[Host]) {
        let changed = &hosts[CHANGED];
        match self {
            Self::Sending => shape_sending(changed, SLOW_BITS_PER_S),
            Self::Receiving => {
                changed.reshape(&link(SLOW)).expect("a slower link");
                shape_sending(changed, FAST_BITS_PER_S);
            }
        }
    }

    fn is_of(self, from: usize, to: usize) -> bool {
        match self {
            Self::Sending => from == CHANGED,
            Self::Receiving => to == CHANGED,
        }
    }
}

/// Checks the rates, the plan, the predictions and the rows.
fn slow_in_one_direction(slow: Slow, receivers: &BTreeSet<usize>) {
    let Some(lab) = Lab::or_skip() else { return };
    for seed in seeds("LIGHTSHIP_LINK_RUNS", 1) {
        let cluster = Cluster::start(&lab, seed, FEW_ROWS, |hosts| slow.shape(hosts));
        let rates = cluster.know("links that are slow in one direction", |rates| {
            let (_, slow_most) = least_and_most(rates, |from, to| slow.is_of(from, to));
            let (least, most) = least_and_most(rates, |from, to| !slow.is_of(from, to));
            slow_most < 2.0 * SLOW_BYTES_PER_S && 4.0 * slow_most <= least && most <= 2.0 * least
        });
        // Only what a node receives decides whether it gets groups: all send the rows that they have.
        assert_eq!(cluster.receivers(), *receivers, "{rates:?}");
        // From now on it is known how many rows are sent.
        assert_eq!(cluster.explained(&["--analyze"])["rows"], 1);
        let explained = cluster.explained(&[]);
        let edges = explained["expected_edges"].as_array().expect("edges").iter();
        let edges: Vec<((usize, usize), f64)> = edges
            .filter(|edge| edge["to_stage"] != 0)
            .map(|edge| {
                let number = |name: &str| {
                    let node =
                        cluster.nodes.iter().position(|node| edge[name].as_str() == Some(node.address()));
                    node.expect("one of the nodes")
                };
                let seconds = edge["link_seconds"].as_f64().expect("a number");
                ((number("from_node"), number("to_node")), seconds)
            })
            .collect();
        assert!(edges.iter().any(|((from, _), _)| *from == CHANGED), "{explained:#}");
        let shortest = edges.iter().map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min);
        for ((from, to), seconds) in edges {
            let is_long = seconds > 3.0 * shortest;
            assert_eq!(is_long, slow.is_of(from, to), "{from} to {to}: {rates:?} {explained:#}");
        }
        for node in [0, CHANGED] {
            cluster.is_right(cluster.begin(node));
        }
    }
}

#[test]
fn a_node_that_sends_slowly_receives_as_many_rows_as_others() {
    slow_in_one_direction(Slow::Sending, &all());
}

#[test]
fn a_node_that_receives_slowly_receives_no_rows_that_others_can_and_sends_as_fast() {
    slow_in_one_direction(Slow::Receiving, &but_changed());
}
