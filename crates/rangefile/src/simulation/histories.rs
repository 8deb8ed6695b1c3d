//! Random histories of a small cluster: clients write and read a file of three nodes, while requests are lost,
//! delayed, doubled and cut off, nodes lose power and come back with their disks, disks are full, and partitions
//! come and go. Then everything works again, and the splits must end.
//!
//! What is checked:
//! - Each key is linearizable: what was read of it could have happened in some order of the writes. A write is here
//!   one request as a node got it. A client repeats a request whose answer was lost, so a write of a client may
//!   happen twice; and a request that is late happens late. Nothing more is promised.
//! - A write that succeeded was acknowledged by the owner of each of its keys.
//! - A scan is complete, in the order of the keys, without a key twice.
//! - Each answer of a bucket is of one moment: of the rows that one request has written, it has all or none. A scan has
//!   several answers of a bucket if a connection is lost, or if the bucket was two when the client learned of it.
//! - In the end, each key has one owner, no bucket waits for its split or is too full, and a client that knows
//!   only the first bucket finds all rows.
//!
//! A node whose disk was full goes on, with or without a restart.
//! Nodes come back with their latest disks; see `disks.rs` for old ones.
//!
//! `LIGHTSHIP_HISTORIES=1000` runs that many, `LIGHTSHIP_SEED=7` runs that of one seed. Faults, operations and pauses
//! are those of the seed. Time is simulated, but some work is done by other threads (reading, merging,
//! committing), so that what happens in the same millisecond need not have the same order again.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_array::RecordBatch;
use futures::TryStreamExt;
use futures::future::join_all;
use lightship_testkit::linear::{Action, Event, is_linearizable};
use lightship_testkit::seeds::seeds;
use lightship_wire::control::ErrorCode;
use tokio::sync::watch;
use tokio::time::sleep;

use super::cluster::{Cluster, bound, interval};
use super::network::{Break, Simulated};
use super::together::check_together;
use super::{pairs, rows, runtime};
use crate::error::{RangeError, Result};
use crate::request::WriteMode;
use crate::{ClientOptions, Grouping, Order, RangeFile, ScanOptions};

const NODES: usize = 3;
const CLIENTS: usize = 3;
const OPERATIONS: usize = 40;
pub(super) const KEYS: i64 = 48;

/// What many histories had.
#[derive(Default)]
struct Summary {
    operations: AtomicU64,
    splits: AtomicU64,
    crashes: AtomicU64,
    grouped: AtomicU64,
}

/// A count of a client: the keys, when, and the result.
struct Counted {
    keys: std::ops::Range<i64>,
    start: u64,
    end: u64,
    rows: u64,
}

/// Fails for an error that no fault explains.
fn allow(error: &RangeError) {
    let is_allowed = match error {
        RangeError::Missing { .. } | RangeError::Moved => true,
        RangeError::Remote(failure) => {
            matches!(
                failure.code,
                ErrorCode::Peer | ErrorCode::Lost | ErrorCode::Moved | ErrorCode::Source | ErrorCode::Data
            )
        }
        _ => false,
    };
    assert!(is_allowed && !error.to_string().contains("damaged"), "{error}");
}

/// A client that does one operation after another.
async fn work(
    network: Arc<Simulated>,
    file: RangeFile,
    name: String,
    mut random: fastrand::Rng,
    counted: Arc<std::sync::Mutex<Vec<Counted>>>,
) {
    for operation in 0..OPERATIONS {
        sleep(Duration::from_millis(random.u64(0..300))).await;
        let keys = {
            let start = random.i64(0..KEYS);
            start..random.i64(start + 1..=KEYS)
        };
        match random.u32(0..100) {
            0..55 => {
                let mut ids: Vec<i64> = (0..KEYS).collect();
                random.shuffle(&mut ids);
                ids.truncate(if random.bool() { 1 } else { random.usize(2..12) });
                let mode = match random.u32(0..4) {
                    0 | 1 => WriteMode::Upsert,
                    2 => WriteMode::Insert,
                    _ => WriteMode::Delete,
                };
                write(&network, &file, mode, &ids, &format!("{name}.{operation}")).await;
            }
            55..75 => read(&network, &file, random.i64(0..KEYS)).await,
            75..85 => {
                let start = network.now();
                match file.count(&interval(&file, &keys)).await {
                    Ok(rows) => {
                        let end = network.now();
                        counted.lock().unwrap().push(Counted { keys, start, end, rows });
                    }
                    Err(error) => allow(&error),
                }
            }
            _ => {
                let order = if random.bool() { Order::Key } else { Order::Any };
                let limit = random.bool().then(|| random.u64(1..20));
                if let Err(error) = scan(&network, &file, keys, order, limit).await {
                    allow(&error);
                }
            }
        }
    }
}

async fn write(network: &Simulated, file: &RangeFile, mode: WriteMode, ids: &[i64], text: &str) {
    let start = network.now();
    match file.write(mode, &rows(ids, text)).await {
        Ok(_) => {
            let row = network.row(text);
            let events = network.events();
            for id in ids {
                let is_done = events.iter().any(|(key, event)| {
                    let is_same = match event.action {
                        Action::Upsert(written) | Action::Insert(written) | Action::InsertAgain(written) => {
                            written == row
                        }
                        Action::Delete => mode == WriteMode::Delete,
                        _ => false,
                    };
                    key == id && is_same && event.start > start && event.end.is_some()
                });
                assert!(is_done, "key {id} of {text} was not acknowledged by its owner");
            }
        }
        Err(error) => allow(&error),
    }
}

async fn read(network: &Simulated, file: &RangeFile, id: i64) {
    let start = network.now();
    match file.get(bound(file, id)).await {
        Ok(found) => {
            let found = pairs(&found);
            assert!(found.len() <= 1 && found.iter().all(|(key, _)| *key == id), "key {id}: {found:?}");
            let row = found.first().map(|(_, text)| network.row(text));
            network.record(id, Event { action: Action::Read(row), start, end: Some(network.now()) });
        }
        Err(error) => allow(&error),
    }
}

async fn scan(
    network: &Simulated,
    file: &RangeFile,
    keys: std::ops::Range<i64>,
    order: Order,
    limit: Option<u64>,
) -> Result<()> {
    let start = network.now();
    let scanned =
        file.scan(interval(file, &keys), &ScanOptions { order, limit, ..ScanOptions::default() })?;
    let batches: Vec<RecordBatch> = scanned.rows.try_collect().await?;
    let end = Some(network.now());
    let found: Vec<(i64, String)> = batches.iter().flat_map(pairs).collect();
    assert!(found.iter().all(|(id, _)| keys.contains(id)), "{keys:?}: {found:?}");
    match order {
        Order::Key => assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "{found:?}"),
        Order::Any => {
            let different: HashSet<i64> = found.iter().map(|(id, _)| *id).collect();
            assert_eq!(different.len(), found.len(), "{found:?}");
        }
    }
    assert!(limit.is_none_or(|limit| found.len() as u64 <= limit));
    let is_limited = limit == Some(found.len() as u64);
    let texts: BTreeMap<i64, String> = found.into_iter().collect();
    // The keys of which it says something.
    let known: Vec<i64> = match (is_limited, order) {
        (false, _) => keys.collect(),
        (true, Order::Key) => (keys.start..=*texts.keys().next_back().expect("a row")).collect(),
        (true, Order::Any) => texts.keys().copied().collect(),
    };
    for id in known {
        let row = texts.get(&id).map(|text| network.row(text));
        network.record(id, Event { action: Action::Read(row), start, end });
    }
    Ok(())
}

/// Breaks things and mends them, until the clients have ended.
async fn disturb(
    cluster: &mut Cluster,
    mut random: fastrand::Rng,
    summary: &Summary,
    ended: watch::Receiver<bool>,
) {
    while !*ended.borrow() {
        sleep(Duration::from_millis(random.u64(100..2500))).await;
        let node = random.usize(0..NODES);
        match random.u32(0..10) {
            0..5 => {
                summary.crashes.fetch_add(1, Ordering::Relaxed);
                // At some write rather than between two.
                if random.bool() {
                    cluster.disks[node].cut_after(random.u64(0..40));
                    for _ in 0..100 {
                        if cluster.disks[node].is_off() {
                            break;
                        }
                        sleep(Duration::from_millis(10)).await;
                    }
                }
                cluster.crash(node, &mut random);
                sleep(Duration::from_millis(random.u64(0..6000))).await;
                restart(cluster, node, &mut random).await;
            }
            5..8 => {
                let places = ["client-0", "client-1", "client-2", "node-0:1", "node-1:1", "node-2:1"];
                let how = if random.bool() { Break::Silent } else { Break::Fails };
                match random.u32(0..3) {
                    0 => cluster.network.silence(&cluster.names[node]),
                    _ => {
                        cluster.network.part(&cluster.names[node], places[random.usize(0..places.len())], how)
                    }
                }
                sleep(Duration::from_millis(random.u64(0..14_000))).await;
                cluster.network.heal();
            }
            8 => {
                summary.crashes.fetch_add(1, Ordering::Relaxed);
                cluster.disks[node].set_full(true);
                // For a moment, or so long that other nodes must do without it.
                let longest = if random.bool() { 3000 } else { 30_000 };
                sleep(Duration::from_millis(random.u64(0..longest))).await;
                cluster.disks[node].set_full(false);
                // It goes on by itself.
                if random.bool() {
                    sleep(Duration::from_millis(random.u64(0..1000))).await;
                    cluster.crash(node, &mut random);
                    restart(cluster, node, &mut random).await;
                }
            }
            _ => {}
        }
    }
    cluster.network.heal();
}

async fn restart(cluster: &mut Cluster, node: usize, random: &mut fastrand::Rng) {
    cluster.start(node, random.u64(..)).await;
}

/// Waits until no split is under way.
pub(super) async fn settle(cluster: &Cluster) {
    for _ in 0..6000 {
        let mut unsettled = 0;
        for node in cluster.network.nodes() {
            unsettled += node.unsettled("t").await;
        }
        if unsettled == 0 {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("a split does not end");
}

/// Waits until all keys are divided among the buckets, none of which is too full. Returns their number. The nodes
/// are asked one after another: while a bucket changes, a key may seem to have two owners, or none.
async fn divided(cluster: &Cluster, file: &RangeFile) -> usize {
    let mut bounds = Vec::new();
    for _ in 0..1000 {
        settle(cluster).await;
        let (buckets, failed) = file.buckets().await;
        assert!(failed.is_empty(), "{failed:?}");
        let capacity = file.definition().capacity.max();
        let is_full = buckets.iter().any(|bucket| bucket.records > Some(capacity));
        bounds = buckets.into_iter().map(|bucket| (bucket.range.low, bucket.range.high)).collect();
        let is_whole = bounds.first().is_some_and(|first| first.0.is_empty())
            && bounds.last().is_some_and(|last| last.1.is_none());
        if is_whole && !is_full && bounds.windows(2).all(|pair| pair[0].1.as_ref() == Some(&pair[1].0)) {
            return bounds.len();
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("keys without one owner, or a bucket that stays full: {bounds:?}");
}

async fn history(seed: u64, summary: &Summary) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut cluster = Cluster::new(NODES, seed, random.u64(2..10));
    for node in 0..NODES {
        cluster.start(node, random.u64(..)).await;
    }
    let network = cluster.network.clone();
    let (_forever, dead) = watch::channel(true);
    let client = network.from("client", dead);
    let created = RangeFile::create(client, network.definition(), ClientOptions::default()).await;
    // It learns nothing until the end.
    let stale = created.expect("a file");
    let counted = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let name = format!("client-{client}");
        // One asks each bucket by itself, as far as there are few; the others ask trees of several shapes.
        let grouping = match client {
            0 => Grouping::Auto,
            _ => Grouping::Always { first: random.u32(1..4), fan_out: random.u32(1..3) },
        };
        let file = cluster.client(&name, grouping).await;
        clients.push(tokio::spawn(work(network.clone(), file, name, random.fork(), counted.clone())));
    }
    network.set_calm(false);
    let (end, ended) = watch::channel(false);
    let disturbing = disturb(&mut cluster, random.fork(), summary, ended);
    let working = async {
        let done = join_all(clients).await;
        let _ = end.send(true);
        done.into_iter().for_each(|done| done.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic())));
    };
    futures::join!(disturbing, working);
    network.set_calm(true);
    settle(&cluster).await;
    scan(&network, &stale, 0..KEYS, Order::Key, None).await.expect("all rows");
    for id in 0..KEYS {
        read(&network, &stale, id).await;
    }
    let buckets = divided(&cluster, &stale).await;
    summary.operations.fetch_add((CLIENTS * OPERATIONS) as u64, Ordering::Relaxed);
    summary.splits.fetch_add(buckets as u64 - 1, Ordering::Relaxed);
    summary.grouped.fetch_add(network.grouped(), Ordering::Relaxed);
    assert_eq!(network.broken(), Vec::<String>::new());
    let mut events: BTreeMap<i64, Vec<Event>> = BTreeMap::new();
    network.events().into_iter().for_each(|(key, event)| events.entry(key).or_default().push(event));
    for (key, events) in &mut events {
        events.sort_by_key(|event| event.start);
        assert!(is_linearizable(events), "key {key}: {events:#?}");
    }
    check_together(&network.answers(), &events);
    for counted in counted.lock().unwrap().iter() {
        check_count(counted, &events);
    }
}

/// A count has the keys that were there all the time, and none that was never there.
fn check_count(counted: &Counted, events: &BTreeMap<i64, Vec<Event>>) {
    let Counted { keys, start, end, rows } = counted;
    let (mut least, mut most) = (0, 0);
    for key in keys.clone() {
        let changes: Vec<&Event> =
            events.get(&key).into_iter().flatten().filter(|event| event.is_change()).collect();
        let ended = |event: &Event| event.end.unwrap_or(u64::MAX);
        let is_unsure = changes.iter().any(|event| event.start <= *end && ended(event) >= *start);
        let before: Vec<&&Event> = changes.iter().filter(|event| ended(event) < *start).collect();
        let last = before.iter().filter(|event| !before.iter().any(|later| later.start > ended(event)));
        let there: Vec<bool> = last.map(|event| event.action != Action::Delete).collect();
        least += u64::from(!is_unsure && !there.is_empty() && there.iter().all(|there| *there));
        most += u64::from(is_unsure || there.iter().any(|there| *there));
    }
    assert!((least..=most).contains(rows), "{rows} rows were counted, of {least} to {most} in {keys:?}");
}

#[test]
fn random_histories_are_linearizable() {
    let (summary, seeds) = (Summary::default(), seeds("LIGHTSHIP_HISTORIES", 20));
    for seed in seeds.clone() {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime().block_on(history(seed, &summary));
        }));
        if let Err(panic) = ran {
            eprintln!("seed {seed} failed; LIGHTSHIP_SEED={seed} repeats it");
            std::panic::resume_unwind(panic);
        }
    }
    let Summary { operations, splits, crashes, grouped } = summary;
    let grouped = grouped.into_inner();
    assert!(grouped > 0, "no tree has answered");
    eprintln!(
        "{} histories, seeds {}-{}: {} operations, {} splits, {} crashes, {} parts answered by trees, 0 faults",
        seeds.end() - seeds.start() + 1,
        seeds.start(),
        seeds.end(),
        operations.into_inner(),
        splits.into_inner(),
        crashes.into_inner(),
        grouped
    );
}
