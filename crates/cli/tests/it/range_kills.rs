//! Range files whose nodes are killed: whatever is acknowledged stays, and a scan is complete or an error.
//!
//! Three nodes are processes. Clients insert, replace, delete and scan rows of a file with small buckets, which
//! split, move and merge all the time. Meanwhile nodes are killed, one or all, many of them while a split or a merge
//! is under way; they come back with their folders and addresses. Clients are gone in the middle of what they do.
//! In the end all nodes run, and then:
//! - What was seen of each key could have happened in some order (`lightship_testkit::linear`): each acknowledged
//!   write, and of the others any.
//! - Each scan that ended without an error was complete, and no key came twice.
//! - The buckets divide all keys among them, none has more rows than its capacity, and a client that knows only
//!   the first bucket finds all rows.
//!
//! `LIGHTSHIP_KILL_RUNS=50 cargo test -p lightship-cli --test it range_kills -- --nocapture` makes that many runs,
//! `LIGHTSHIP_SEED=7` that of one seed; with both, it is the first one. The seed decides what clients do and what is
//! killed, not at which moments, so that a seed need not repeat a failure at once.

mod cuts;
mod model;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use arrow_array::{Int64Array, RecordBatch};
use fastrand::Rng;
use futures::TryStreamExt;
use lightship_rangefile::{
    BucketEntry, Capacity, ClientOptions, Connections, Definition, Interval, Key, Order, RangeError,
    RangeFile, ReceptionMode, ScanOptions, WriteMode,
};
use lightship_testkit::seeds::seeds;
use lightship_transport::net::{ClientConfig, Endpoint};
use lightship_wire::control::ErrorCode;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use self::model::{Counting, History, covered, found, refused_key, rows, schema};
use crate::cluster::Restartable;
use crate::range::{joined, start};
use crate::support::*;

const FILE: &str = "kept";
const NODES: usize = 3;
const CLIENTS: usize = 4;
/// Of each client.
const OPERATIONS: u64 = 60;
const KEYS: i64 = 240;
/// The number of operations for which clients add more than they remove, before they remove more than they add.
const TIDE: u64 = 15;
/// The longest wait for a moment that is good for a kill.
const AIM_MAX: Duration = Duration::from_millis(500);
/// The longest time without a kill.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long nodes are down.
const DOWN_MS_MAX: u64 = 200;
/// The time until splits that were interrupted have ended: they are tried again after pauses, which grow.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// Inserts of a client that is killed, and the rows of each.
const INSERTS: u64 = 6;
const INSERT_ROWS: u64 = 4000;

/// What many runs had.
#[derive(Default)]
struct Totals {
    operations: u64,
    splits: usize,
    kills: usize,
    faults: usize,
}

/// What clients need to reach the file.
#[derive(Clone)]
struct Place {
    history: Arc<History>,
    names: Arc<Vec<String>>,
    /// Rows of a bucket, at most.
    capacity: u64,
}

/// A client with its own connections.
struct Client {
    history: Arc<History>,
    file: RangeFile,
    lost: Arc<AtomicU64>,
}

impl Place {
    /// Connections whose first node is this one.
    fn network(&self, first: usize) -> Counting {
        let mut names = self.names.to_vec();
        names.rotate_left(first);
        let address = |node: &str| {
            let (host, port) = node.rsplit_once(':').expect("HOST:PORT");
            Ok(Endpoint::Tcp { host: host.to_owned(), port: port.parse().expect("a port"), tls: None })
        };
        let connections = Connections::new(move || names.clone(), address, ClientConfig::default());
        Counting { connections, lost: Arc::default() }
    }

    async fn create(&self) -> Client {
        let (network, options) = (self.network(0), ClientOptions::default());
        let lost = network.lost.clone();
        let definition = Definition::new(FILE, &schema(), &["id".into()], Capacity::Records(self.capacity));
        let definition = definition.expect("a definition");
        let file = RangeFile::create(Arc::new(network), &definition, options).await.expect("a file");
        Client { history: self.history.clone(), file, lost }
    }

    /// Opens the file, as soon as a node that knows it answers.
    async fn open(&self, random: &mut Rng) -> Client {
        let patience = Duration::from_millis(random.u64(100..1500));
        let options = ClientOptions { patience, ..ClientOptions::default() };
        let network = Arc::new(self.network(random.usize(..NODES)));
        let deadline = Instant::now() + PATIENCE;
        loop {
            match RangeFile::open(network.clone(), FILE, options).await {
                Ok(file) => {
                    return Client { history: self.history.clone(), file, lost: network.lost.clone() };
                }
                Err(error) => assert!(Instant::now() < deadline, "the file can't be opened: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Client {
    /// Fails for an error that no kill and no cut explains.
    fn allow(&self, error: &RangeError) {
        let failure = error.to_failure();
        assert!(matches!(failure.code, ErrorCode::Peer | ErrorCode::Lost), "{failure:?}");
        self.history.failed(error);
    }

    fn bound(&self, key: i64) -> Key {
        let keys = Int64Array::from(vec![key]);
        self.file.definition().format().key(&[Arc::new(keys)]).expect("a key")
    }

    async fn write(&self, mode: WriteMode, keys: &[i64]) {
        let pending = self.history.write(mode, keys, &self.lost);
        let written = self.file.write(mode, &rows(keys, pending.row)).await;
        if let Err(error) = &written
            && !(mode == WriteMode::Insert && refused_key(error).is_some_and(|key| keys.contains(&key)))
        {
            self.allow(error);
        }
        if let Ok(rows) = &written {
            assert_eq!(*rows, keys.len() as u64, "rows of an acknowledged write");
        }
        pending.ended(written.map(drop));
    }

    async fn get(&self, key: i64) -> Result<(), RangeError> {
        let start = self.history.now();
        let seen = found(&self.file.get(self.bound(key)).await?);
        assert!(seen.len() <= 1 && seen.iter().all(|(seen, _)| *seen == key), "key {key}: {seen:?}");
        self.history.read([key], &seen, start);
        Ok(())
    }

    /// Returns the number of rows.
    async fn scan(&self, keys: Range<i64>, options: &ScanOptions) -> Result<u64, RangeError> {
        let start = self.history.now();
        let interval = Interval::new(self.bound(keys.start), Some(self.bound(keys.end)));
        let batches: Vec<RecordBatch> = self.file.scan(interval, options)?.rows.try_collect().await?;
        let seen: Vec<_> = batches.iter().flat_map(found).collect();
        let is_ordered = options.order == Order::Key;
        let different: BTreeSet<i64> = seen.iter().map(|(key, _)| *key).collect();
        assert!(different.iter().all(|key| keys.contains(key)), "{keys:?}: {seen:?}");
        assert_eq!(different.len(), seen.len(), "a key came twice: {seen:?}");
        assert!(!is_ordered || seen.is_sorted(), "not in the order of the key: {seen:?}");
        assert!(options.limit.is_none_or(|limit| seen.len() as u64 <= limit));
        let is_limited = options.limit == Some(seen.len() as u64);
        self.history.read(covered(keys, &seen, is_limited, is_ordered), &seen, start);
        Ok(seen.len() as u64)
    }

    /// Does something. `adds` says whether rows are rather added than removed.
    async fn act(&self, random: &mut Rng, adds: bool) {
        let low = random.i64(0..KEYS);
        let keys = low..random.i64(low + 1..=KEYS);
        match random.u32(..100) {
            0..60 => {
                let few = low..KEYS.min(low + random.i64(2..40));
                let (mode, keys) = match (adds, random.u32(..10)) {
                    (true, 0..5) | (false, 0) => (WriteMode::Insert, few.collect()),
                    (true, 5..9) | (false, 1..3) => {
                        // Anywhere, so that there is a part for each bucket.
                        let mut anywhere: Vec<i64> = (0..KEYS).collect();
                        random.shuffle(&mut anywhere);
                        anywhere.truncate(random.usize(1..40));
                        (WriteMode::Upsert, anywhere)
                    }
                    (false, 3..5) => (WriteMode::Delete, (low..KEYS.min(low + 1)).collect()),
                    // Neighbours, so that their buckets merge.
                    _ => (WriteMode::Delete, (low..KEYS.min(low + 60)).collect::<Vec<i64>>()),
                };
                self.write(mode, &keys).await;
            }
            60..75 => self.get(low).await.unwrap_or_else(|error| self.allow(&error)),
            _ => {
                let options = scan_options(random);
                self.scan(keys, &options).await.map_or_else(|error| self.allow(&error), drop);
            }
        }
    }
}

fn scan_options(random: &mut Rng) -> ScanOptions {
    let (order, reception) = match random.u32(..5) {
        0 => (Order::Any, ReceptionMode::Push),
        1 => (Order::Any, ReceptionMode::Auto),
        2 => (Order::Key, ReceptionMode::Pull { connections: 2 }),
        _ => (Order::Key, ReceptionMode::Auto),
    };
    let announced = order == Order::Key && random.u32(..4) == 0;
    let limit = (random.u32(..3) == 0).then(|| random.u64(1..40));
    ScanOptions { order, limit, reception, announced, ..ScanOptions::default() }
}

/// A client that does one thing after another. Sometimes it is gone in the middle, and another one takes its place.
async fn work(place: Place, mut random: Rng) {
    let mut client = place.open(&mut random).await;
    for operation in 0..OPERATIONS {
        let adds = (operation / TIDE).is_multiple_of(2);
        let goes = (random.u32(..8) == 0).then(|| Duration::from_micros(random.u64(..30_000)));
        let mut choices = random.fork();
        let acting = client.act(&mut choices, adds);
        match goes {
            None => acting.await,
            Some(after) => {
                if tokio::time::timeout(after, acting).await.is_err() && random.bool() {
                    client = place.open(&mut random).await;
                }
            }
        }
        place.history.operation_ended();
    }
}

/// The nodes, and who looks at their buckets.
struct Cluster {
    machines: Restartable,
    nodes: Vec<Option<Node>>,
    names: Arc<Vec<String>>,
    runtime: Runtime,
    watcher: RangeFile,
    capacity: u64,
    /// Numbers of all buckets that were seen.
    seen: BTreeSet<u64>,
    /// What was done, shown if a check fails.
    log: Vec<String>,
}

impl Cluster {
    /// The buckets of the nodes that run. Others may change while one is asked.
    fn buckets(&mut self) -> Vec<BucketEntry> {
        let (buckets, _) = self.runtime.block_on(self.watcher.buckets());
        self.seen.extend(buckets.iter().map(|bucket| bucket.bucket));
        buckets
    }

    fn kill(&mut self, node: usize, why: &str) {
        if let Some(mut killed) = self.nodes[node].take() {
            killed.process.kill();
            self.log.push(format!("node {node} killed: {why}"));
        }
    }

    fn restart_all(&mut self) {
        for node in 0..NODES {
            if self.nodes[node].is_none() {
                self.nodes[node] = Some(start(&self.machines, node));
            }
        }
    }

    /// Waits until a bucket is full, small enough for a merge, or changes its owner. Returns its node.
    fn aim(&mut self, random: &mut Rng) -> Option<(usize, &'static str)> {
        let deadline = Instant::now() + AIM_MAX;
        let splits = random.bool();
        let mut known = self.buckets().len();
        while Instant::now() < deadline {
            let buckets = self.buckets();
            let node = |bucket: &BucketEntry| self.names.iter().position(|name| *name == bucket.node);
            for pair in buckets.windows(2) {
                let [low, high] = [&pair[0], &pair[1]];
                // The keys between have no owner until the other node has confirmed that it has them.
                if low.range.high.as_ref() != Some(&high.range.low) {
                    return Some((node(if random.bool() { low } else { high })?, "keys change their owner"));
                }
                let both = low.records.unwrap_or(0) + high.records.unwrap_or(0);
                if !splits && both <= self.capacity / 2 {
                    return Some((node(if random.bool() { low } else { high })?, "a merge is due"));
                }
            }
            let full = buckets.iter().find(|bucket| bucket.records > Some(self.capacity));
            if let Some(full) = full.filter(|_| splits) {
                return Some((node(full)?, "a split is due"));
            }
            if buckets.len() != known {
                return Some((random.usize(..NODES), "the number of buckets changes"));
            }
            known = buckets.len();
        }
        None
    }

    /// Kills a node, or all, and starts them again. Returns the number of kills.
    fn disturb(&mut self, history: &History, random: &mut Rng) -> usize {
        // Clients get something done between two kills, unless they wait for each other.
        let (until, deadline) = (history.operations() + random.u64(5..40), Instant::now() + PAUSE_MAX);
        while history.operations() < until && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        let alive = |nodes: &[Option<Node>]| nodes.iter().flatten().count();
        let mut kills = 0;
        let (target, why) = match random.u32(..10) {
            0..6 => self.aim(random).unwrap_or((random.usize(..NODES), "nothing was under way")),
            _ => (random.usize(..NODES), "at random"),
        };
        let targets = if random.u32(..5) == 0 { 0..NODES } else { target..target + 1 };
        // A node that has just come back may be killed again, while it ends what was interrupted.
        for _ in 0..random.usize(1..=2) {
            kills += alive(&self.nodes[targets.clone()]);
            targets.clone().for_each(|node| self.kill(node, why));
            let down = Duration::from_millis(random.u64(..DOWN_MS_MAX));
            self.runtime.block_on(async { tokio::time::sleep(down).await });
            self.restart_all();
        }
        kills
    }

    /// Waits until all keys are divided among the buckets, none of which is too full.
    fn settle(&mut self) {
        let deadline = Instant::now() + SETTLE_MAX;
        loop {
            let buckets = self.buckets();
            if is_settled(&buckets, self.capacity) {
                return;
            }
            assert!(Instant::now() < deadline, "the buckets do not settle:{}", listed(&buckets));
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}

/// Whether all keys are divided among the buckets, none of which is too full.
fn is_settled(buckets: &[BucketEntry], capacity: u64) -> bool {
    let bounds: Vec<_> = buckets.iter().map(|bucket| (&bucket.range.low, &bucket.range.high)).collect();
    bounds.first().is_some_and(|first| first.0.is_empty())
        && bounds.last().is_some_and(|last| last.1.is_none())
        && bounds.windows(2).all(|pair| pair[0].1.as_ref() == Some(pair[1].0))
        && buckets.iter().all(|bucket| bucket.records <= Some(capacity))
}

/// The buckets, one on a line.
fn listed(buckets: &[BucketEntry]) -> String {
    let line = |bucket: &BucketEntry| {
        let BucketEntry { node, low_text, records, epoch, .. } = bucket;
        format!("\n{:x} on {node} from {low_text:?}, epoch {epoch}: {records:?} rows", bucket.bucket)
    };
    buckets.iter().map(line).collect()
}

/// Waits for clients that have ended.
fn join(runtime: &Runtime, clients: Vec<JoinHandle<()>>) {
    for client in clients {
        if let Err(error) = runtime.block_on(client) {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

fn run(seed: u64, totals: &mut Totals) {
    eprintln!("LIGHTSHIP_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let machines = Restartable::new(NODES);
    let nodes: Vec<Node> = (0..NODES).map(|node| start(&machines, node)).collect();
    joined(&nodes);
    let names: Vec<String> = nodes.iter().map(|node| node.address().to_owned()).collect();
    let names = Arc::new(names);
    let history = Arc::new(History::default());
    let place = Place { history: history.clone(), names: names.clone(), capacity: random.u64(4..14) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    // It learns nothing until the end.
    let stale = runtime.block_on(place.create());
    let watcher = runtime.block_on(place.open(&mut random)).file;
    let clients: Vec<_> = (0..CLIENTS).map(|_| runtime.spawn(work(place.clone(), random.fork()))).collect();
    let mut cluster = Cluster {
        machines,
        nodes: nodes.into_iter().map(Some).collect(),
        names,
        runtime,
        watcher,
        capacity: place.capacity,
        seen: BTreeSet::new(),
        log: Vec::new(),
    };
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        while !clients.iter().all(JoinHandle::is_finished) {
            totals.kills += cluster.disturb(&history, &mut random);
        }
        join(&cluster.runtime, clients);
        cluster.settle();
        cluster.runtime.block_on(async {
            let whole = stale.scan(0..KEYS, &ScanOptions::default()).await.expect("all rows");
            assert_eq!(stale.file.count(&Interval::ALL).await.expect("a number"), whole);
            for key in 0..KEYS {
                stale.get(key).await.expect("a row, or none");
            }
        });
        history.check();
    }));
    totals.operations += history.operations();
    totals.splits += cluster.seen.len().saturating_sub(1);
    drop(stale);
    cluster.nodes.clear();
    cluster.runtime.shutdown_background();
    if checked.is_err() {
        totals.faults += 1;
        eprintln!("seed {seed} failed:\n{}", cluster.log.join("\n"));
    }
}

#[test]
fn killed_nodes_and_clients_lose_nothing_that_was_acknowledged() {
    let seeds = seeds("LIGHTSHIP_KILL_RUNS", 2);
    let mut totals = Totals::default();
    for seed in seeds.clone() {
        run(seed, &mut totals);
    }
    let Totals { operations, splits, kills, faults } = totals;
    eprintln!(
        "kill runs: seeds {}-{}: {operations} operations, {splits} splits, {kills} kills, {faults} faults",
        seeds.start(),
        seeds.end()
    );
    assert_eq!(faults, 0);
}

/// The keys that a scan finds.
fn stored(uri: &str) -> BTreeSet<u64> {
    let scanned = lightship(&["range", "scan", uri, FILE, "--columns", "id", "--quiet"]).succeeds();
    scanned.text().lines().skip(1).map(|id| id.parse().expect("a number")).collect()
}

/// The command returns when its rows are on disk. Killed before, it may have written any of its requests, each wholly or not
/// at all: in a file of one bucket, these rows are one request.
#[test]
fn a_killed_insert_loses_no_earlier_rows_and_is_repeated() {
    for capacity in ["50", "1000000"] {
        let (machines, folder) = (Restartable::new(NODES), Folder::new());
        let nodes: Vec<Node> = (0..NODES).map(|node| start(&machines, node)).collect();
        joined(&nodes);
        let uri = nodes[0].uri.clone();
        let columns = "id bigint, note text";
        let key = ["--key", "id", "--columns", columns, "--capacity-records", capacity];
        lightship(&[&["range", "create", &uri, FILE], &key[..]].concat()).succeeds();
        let mut random = Rng::with_seed(7);
        let mut acknowledged = BTreeSet::new();
        for insert in 0..INSERTS {
            let keys = insert * INSERT_ROWS..(insert + 1) * INSERT_ROWS;
            let lines: String = keys.clone().map(|key| format!("{key},row {key}\n")).collect();
            let rows = folder.write(&format!("rows{insert}.csv"), format!("id,note\n{lines}"));
            let words = ["range", "insert", &uri, FILE, &rows, "--mode", "upsert", "--quiet"];
            let mut process = Process::start(&words);
            std::thread::park_timeout(Duration::from_millis(random.u64(50..700)));
            process.kill();
            let found = stored(&uri);
            assert!(acknowledged.is_subset(&found), "rows of an earlier insert are missing");
            let new: Vec<u64> = found.difference(&acknowledged).copied().collect();
            assert!(new.iter().all(|key| keys.contains(key)), "rows of nobody: {new:?}");
            let is_whole = new.is_empty() || new.len() as u64 == INSERT_ROWS;
            assert!(is_whole || capacity == "50", "{} rows of a request", new.len());
            lightship(&words).succeeds();
            acknowledged.extend(keys);
            assert!(stored(&uri) == acknowledged, "not the rows of all inserts");
        }
    }
}
