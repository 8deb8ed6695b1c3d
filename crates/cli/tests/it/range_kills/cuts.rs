//! Range files whose nodes are cut off and come back: nothing that was acknowledged is lost, and errors name their keys.
//!
//! Each node, and the clients, are on hosts of their own. A node is cut off by taking down its network device: packets to it
//! and from it are dropped and no error is reported; connections stay open, and go on once it is healed. Clients, operations and
//! the checks of their results are the same as in the test with killed nodes.
//! It needs hosts of the lab, which need root on Linux; where there are none, it says why. `LIGHTSHIP_CUT_RUNS=50` makes 50
//! runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use lab::{Host, Lab, Link};
use lightship_rangefile::{BucketEntry, Interval, RangeError, RangeFile, ScanOptions};
use lightship_testkit::seeds::seeds;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::{CLIENTS, Client, FILE, History, KEYS, NODES, PAUSE_MAX, Place, SETTLE_MAX};
use super::{is_settled, join, listed, work};
use crate::range::joined;
use crate::support::*;

const PORT: u16 = 4270;
/// How long a node is cut off.
const CUT_MS: std::ops::Range<u64> = 100..3000;
/// If the buckets do not change for so long, nothing is under way.
const UNCHANGED: Duration = Duration::from_secs(1);

/// What many runs had.
#[derive(Default)]
struct Totals {
    operations: u64,
    failed: u64,
    cuts: usize,
}

/// Takes the device of a host down, or up again.
fn set_link(host: &Host, state: &str) {
    let done = host.command("ip").args(["link", "set", "eth0", state]).status().expect("ip is there");
    assert!(done.success(), "the device of host {} is not {state}", host.name());
}

/// Nodes on hosts, and the file as somebody sees it who has done nothing yet.
struct Site<'a> {
    hosts: &'a [Host],
    runtime: Runtime,
    watcher: RangeFile,
    capacity: u64,
    log: Vec<String>,
}

impl Site<'_> {
    fn cut(&mut self, node: usize) {
        set_link(&self.hosts[node], "down");
        self.log.push(format!("node {node} cut off"));
    }

    fn heal(&mut self, node: usize) {
        set_link(&self.hosts[node], "up");
        self.log.push(format!("node {node} healed"));
    }

    fn pause(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    /// Cuts a node off for a while, sometimes two of them.
    fn disturb(&mut self, history: &History, random: &mut Rng) -> usize {
        let (until, deadline) = (history.operations() + random.u64(5..40), Instant::now() + PAUSE_MAX);
        while history.operations() < until && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        let first = random.usize(..NODES);
        let nodes = if random.u32(..4) == 0 { vec![first, (first + 1) % NODES] } else { vec![first] };
        nodes.iter().for_each(|node| self.cut(*node));
        self.pause(Duration::from_millis(random.u64(CUT_MS)));
        nodes.iter().for_each(|node| self.heal(*node));
        nodes.len()
    }

    /// Waits until all keys are divided among the buckets, none of which is too full, and nothing changes. Returns the buckets.
    fn settle(&self) -> Vec<BucketEntry> {
        let deadline = Instant::now() + SETTLE_MAX;
        let mut before = Vec::new();
        loop {
            let (buckets, _) = self.runtime.block_on(self.watcher.buckets());
            let owners = |buckets: &[BucketEntry]| -> Vec<_> {
                buckets.iter().map(|bucket| (bucket.bucket, bucket.epoch, bucket.node.clone())).collect()
            };
            if is_settled(&buckets, self.capacity) && owners(&before) == owners(&buckets) {
                return buckets;
            }
            assert!(Instant::now() < deadline, "the buckets do not settle:{}", listed(&buckets));
            before = buckets;
            self.pause(UNCHANGED);
        }
    }

    /// While a node is cut off, a scan of all keys fails and names keys of its buckets. Afterwards it is complete.
    fn check_scan(&mut self, stale: &Client, expected: u64) {
        let buckets = self.settle();
        let cut = &buckets[buckets.len() / 2].node;
        let node = self.hosts.iter().position(|host| cut.starts_with(&format!("{}:", host.address())));
        let node = node.expect("one of the hosts");
        self.cut(node);
        let scanned = self.runtime.block_on(stale.scan(0..KEYS, &ScanOptions::default()));
        let Err(RangeError::Missing { from, .. }) = &scanned else { panic!("{scanned:?}") };
        let mut of_cut = buckets.iter().filter(|bucket| bucket.node == *cut);
        let is_named = of_cut.any(|bucket| {
            let (low, _) = stale.file.definition().format().display_interval(&bucket.range.clone().into());
            // The first key of the scan.
            low == *from || (bucket.range.low.is_empty() && from == "0")
        });
        assert!(is_named, "keys from {from} are not on node {cut}:{}", listed(&buckets));
        self.heal(node);
        self.runtime.block_on(async {
            let whole = stale.scan(0..KEYS, &ScanOptions::default()).await.expect("all rows");
            assert_eq!(
                (whole, stale.file.count(&Interval::ALL).await.expect("a number")),
                (expected, expected)
            );
        });
    }
}

fn start(folder: &Folder, hosts: &[Host]) -> Vec<Node> {
    let address = |node: usize| format!("{}:{PORT}", hosts[node].address());
    let first = address(0);
    let nodes = (0..NODES).map(|node| {
        let (own, state) = (address(node), folder.arg(&format!("state-{node}")));
        let data = folder.arg(&format!("range-{node}"));
        let mut words = vec!["--listen", &own, "--advertise", &own, "--insecure", "--state-folder", &state];
        words.extend(["--range-data", &data]);
        if node > 0 {
            words.extend(["--join", &first]);
        }
        Node::start_on(&hosts[node], &words)
    });
    let nodes: Vec<Node> = nodes.collect();
    joined(&nodes);
    nodes
}

/// On the host of the clients.
fn run(seed: u64, hosts: &[Host], nodes: &[Node], totals: &mut Totals) {
    let mut random = Rng::with_seed(seed);
    let names: Vec<String> = nodes.iter().map(|node| node.address().to_owned()).collect();
    let history = Arc::new(History::default());
    let place = Place { history: history.clone(), names: Arc::new(names), capacity: random.u64(4..14) };
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let stale = runtime.block_on(place.create());
    let watcher = runtime.block_on(place.open(&mut random)).file;
    let clients: Vec<_> = (0..CLIENTS).map(|_| runtime.spawn(work(place.clone(), random.fork()))).collect();
    let mut site = Site { hosts, runtime, watcher, capacity: place.capacity, log: Vec::new() };
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        while !clients.iter().all(JoinHandle::is_finished) {
            totals.cuts += site.disturb(&history, &mut random);
        }
        join(&site.runtime, clients);
        site.settle();
        let whole = site.runtime.block_on(async {
            let whole = stale.scan(0..KEYS, &ScanOptions::default()).await.expect("all rows");
            assert_eq!(stale.file.count(&Interval::ALL).await.expect("a number"), whole);
            for key in 0..KEYS {
                stale.get(key).await.expect("a row, or none");
            }
            whole
        });
        site.check_scan(&stale, whole);
        history.check();
        let (failed, unnamed) = history.failures();
        totals.failed += failed;
        assert!(unnamed.is_empty(), "errors that do not name their keys: {unnamed:#?}");
    }));
    totals.operations += history.operations();
    drop(stale);
    site.runtime.shutdown_background();
    if let Err(failure) = checked {
        eprintln!("seed {seed} failed:\n{}", site.log.join("\n"));
        std::panic::resume_unwind(failure);
    }
}

#[test]
fn nodes_that_are_cut_off_lose_nothing_that_was_acknowledged() {
    let Some(lab) = Lab::or_skip() else { return };
    let seeds = seeds("LIGHTSHIP_CUT_RUNS", 1);
    let mut totals = Totals::default();
    for seed in seeds.clone() {
        eprintln!("LIGHTSHIP_SEED={seed}");
        let hosts = lab.hosts(NODES + 1, &Link::fast()).expect("hosts");
        let folder = Folder::new();
        let nodes = start(&folder, &hosts);
        let ran = hosts[NODES].run(|| {
            run(seed, &hosts[..NODES], &nodes, &mut totals);
            Ok(())
        });
        ran.expect("a thread on the host of the clients");
    }
    let Totals { operations, failed, cuts } = totals;
    eprintln!(
        "cut runs: seeds {}-{}: {operations} operations, of which {failed} failed, {cuts} cuts",
        seeds.start(),
        seeds.end()
    );
    assert!(cuts > 0);
}

/// Creating, listing and dropping files ends too, and names the node.
#[test]
fn commands_for_whole_files_end_when_the_node_is_cut_off() {
    let Some(lab) = Lab::or_skip() else { return };
    let hosts = lab.hosts(NODES + 1, &Link::fast()).expect("hosts");
    let folder = Folder::new();
    let nodes = start(&folder, &hosts);
    let uri = nodes[1].uri.clone();
    let on_client = |words: &[&str]| Process::start_on(&hosts[NODES], &[&["range"], words].concat());
    let columns = ["--key", "id", "--columns", "id bigint"];
    let create = |name| [&["create", &uri, name][..], &columns].concat();
    on_client(&create(FILE)).end().succeeds();
    set_link(&hosts[1], "down");
    let began = Instant::now();
    let other = create("other");
    let commands = [&other[..], &["list", &uri], &["drop", &uri, FILE]].map(on_client);
    for command in commands {
        command.end().fails(NETWORK, &[nodes[1].address()]);
    }
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    set_link(&hosts[1], "up");
    on_client(&["drop", &uri, FILE]).end().succeeds();
}
