//! Requests for many buckets, answered by a tree of nodes that refuse, hang, break off or lie, and requests that are
//! made to do harm.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use lightship_transport::net::{Caller, blob, blobs};
use lightship_wire::control::{ErrorCode, Failure};
use proptest::prelude::*;
use prost::Message;
use tokio::time::{Instant, sleep};

use super::cluster::{bound, interval};
use super::disk::Disk;
use super::{definition, pairs, rows, runtime};
use crate::error::Result;
use crate::group::{FAN_OUT_MAX, Group, GroupPart, Grouped, HOPS_MAX, ask_nodes};
use crate::key::Interval;
use crate::network::{Network, Reply, body};
use crate::request::{Request, RequestKind, WriteMode};
use crate::{ClientOptions, Grouping, Node, Order, RangeFile, ScanOptions};

/// What a node does with requests for many buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Refuses,
    /// It never answers.
    Hangs,
    /// Its answer breaks off after the first message.
    BreaksOff,
    /// It covers parts twice.
    Repeats,
    /// It covers parts that it was not asked for.
    Invents,
    /// It counts more rows than there can be.
    Overflows,
    /// It answers something else.
    Babbles,
}

/// Nodes in this process.
#[derive(Default)]
struct Nodes {
    nodes: Mutex<BTreeMap<String, Node>>,
    faults: Mutex<BTreeMap<String, Fault>>,
    /// The same node under another name.
    alias: Mutex<Option<(String, String)>>,
    /// Requests for many buckets, and requests to nodes that are none.
    asked: AtomicUsize,
    foreign: AtomicUsize,
}

impl Network for Arc<Nodes> {
    fn nodes(&self) -> Vec<String> {
        let alias = self.alias.lock().unwrap().clone();
        self.nodes.lock().unwrap().keys().cloned().chain(alias.map(|(alias, _)| alias)).collect()
    }

    fn request(&self, node: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
        let alias = self.alias.lock().unwrap().clone();
        let name = alias.filter(|(alias, _)| alias == node).map_or_else(|| node.to_owned(), |(_, name)| name);
        let is_group =
            matches!(Request::decode(&*body).expect("a request").kind, Some(RequestKind::Group(_)));
        let found = self.nodes.lock().unwrap().get(&name).cloned();
        let fault = self.faults.lock().unwrap().get(&name).copied().filter(|_| is_group);
        self.asked.fetch_add(usize::from(is_group), Ordering::Relaxed);
        self.foreign.fetch_add(usize::from(found.is_none()), Ordering::Relaxed);
        async move {
            // Time passes, so that answers come in some order.
            sleep(Duration::from_micros(200)).await;
            let gone = || Failure::new(ErrorCode::Peer, "the node is gone");
            match fault {
                Some(Fault::Refuses) => return Err(gone().into()),
                Some(Fault::Hangs) => std::future::pending().await,
                _ => {}
            }
            let caller = Caller { is_peer: true, address: None };
            let reply = Reply::from(found.ok_or_else(gone)?.answer(&body, &caller).await?);
            let change: fn(&mut Grouped) = match fault {
                None | Some(Fault::None | Fault::Refuses | Fault::Hangs) => return Ok(reply),
                Some(Fault::BreaksOff) => {
                    let broken = stream::once(async move { Err(gone().into()) });
                    return Ok(Reply {
                        schema: reply.schema,
                        rows: reply.rows.take(1).chain(broken).boxed(),
                    });
                }
                Some(Fault::Babbles) => {
                    return Ok(blobs(stream::iter([Ok(b"what?".to_vec())])).into());
                }
                Some(Fault::Overflows) => |grouped| grouped.count = u64::MAX,
                Some(Fault::Repeats) => |grouped| {
                    grouped.count *= 2;
                    grouped.covered.extend_from_within(..);
                    grouped.counts.extend_from_within(..);
                },
                Some(Fault::Invents) => |grouped| {
                    grouped.count += 1;
                    grouped.covered.push(100_000);
                    if grouped.rows.is_some() {
                        grouped.counts.push(1);
                    }
                },
            };
            let messages: Vec<Grouped> = messages(reply).await?;
            let lies = messages.into_iter().map(move |mut grouped| {
                change(&mut grouped);
                Ok(grouped.encode_to_vec())
            });
            Ok(blobs(stream::iter(lies)).into())
        }
        .boxed()
    }
}

async fn messages(reply: Reply) -> Result<Vec<Grouped>> {
    let batches: Vec<_> = reply.rows.try_collect().await?;
    let all = batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |row| blob(batch, row)));
    Ok(all.map(|bytes| Grouped::decode(bytes.expect("a message")).expect("a message")).collect())
}

/// Rows of the file.
const ROWS: i64 = 80;

/// A file on some nodes, whose buckets have at most 4 rows, and a client that asks for each bucket by itself.
async fn started(nodes: usize) -> (Arc<Nodes>, RangeFile) {
    let network = Arc::new(Nodes::default());
    for number in 0..nodes {
        let (name, database) = (format!("n{number}"), Disk::default().database().unwrap());
        let node = Node::over(database, &name, Arc::new(network.clone()), number as u64 + 1).unwrap();
        network.nodes.lock().unwrap().insert(name, node);
    }
    let file =
        RangeFile::create(Arc::new(network.clone()), &definition(4), options(Grouping::Never)).await.unwrap();
    for start in (0..ROWS).step_by(8) {
        let ids: Vec<i64> = (start..start + 8).collect();
        file.write(WriteMode::Insert, &rows(&ids, "x")).await.unwrap();
    }
    loop {
        let (buckets, _) = file.buckets().await;
        let is_whole = buckets.first().is_some_and(|first| first.range.low.is_empty())
            && buckets.last().is_some_and(|last| last.range.high.is_none())
            && buckets.windows(2).all(|pair| pair[0].range.high.as_ref() == Some(&pair[1].range.low));
        if is_whole && buckets.iter().all(|bucket| bucket.records <= Some(4)) {
            return (network, file);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

fn options(grouping: Grouping) -> ClientOptions {
    ClientOptions { grouping, ..ClientOptions::default() }
}

async fn open(network: &Arc<Nodes>, grouping: Grouping) -> RangeFile {
    RangeFile::open(Arc::new(network.clone()), "t", options(grouping)).await.unwrap()
}

async fn ids(file: &RangeFile, keys: Interval, options: &ScanOptions) -> Vec<i64> {
    let batches: Vec<_> = file.scan(keys, options).unwrap().rows.try_collect().await.unwrap();
    batches.iter().flat_map(pairs).map(|(id, _)| id).collect()
}

/// The nodes have the network, and it has them.
fn end(network: &Arc<Nodes>) {
    network.nodes.lock().unwrap().clear();
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        4 => Just(Fault::None),
        1 => Just(Fault::Refuses),
        1 => Just(Fault::Hangs),
        1 => Just(Fault::BreaksOff),
        1 => Just(Fault::Repeats),
        1 => Just(Fault::Invents),
        1 => Just(Fault::Babbles),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever becomes of the requests to inner nodes, and whatever the client knows of the buckets.
    #[test]
    fn answers_of_trees_are_those_of_the_buckets(
        faults in prop::collection::vec(fault(), 6),
        first in 1..4_u32,
        fan_out in 1..4_u32,
        range in (0..ROWS, 0..=ROWS),
        is_stale in any::<bool>(),
        limit in prop::option::of(1..100_u64),
        in_order in any::<bool>(),
    ) {
        let order = if in_order { Order::Key } else { Order::Any };
        runtime().block_on(async {
            let (network, direct) = started(faults.len()).await;
            let faults = faults.iter().enumerate().map(|(node, fault)| (format!("n{node}"), *fault));
            *network.faults.lock().unwrap() = faults.collect();
            let file = open(&network, Grouping::Always { first, fan_out }).await;
            if is_stale {
                // Buckets that the client knows have other keys by now.
                let more: Vec<i64> = (0..ROWS).step_by(5).map(|id| ROWS + id).collect();
                direct.write(WriteMode::Insert, &rows(&more, "y")).await.unwrap();
            } else {
                file.buckets().await;
            }
            let keys = interval(&direct, &(range.0..range.0.max(range.1)));
            assert_eq!(file.count(&keys).await.unwrap(), direct.count(&keys).await.unwrap());
            let options = ScanOptions { order, ..ScanOptions::default() };
            let mut all = ids(&direct, keys.clone(), &options).await;
            let mut found = ids(&file, keys.clone(), &options).await;
            if order == Order::Any {
                all.sort_unstable();
                found.sort_unstable();
            }
            assert_eq!(found, all);
            let limited = ScanOptions { limit, ..options };
            let found = ids(&file, keys, &limited).await;
            let most = limit.map_or(all.len(), |limit| all.len().min(limit as usize));
            match order {
                Order::Key => assert_eq!(found, all[..most]),
                Order::Any => {
                    assert_eq!(found.len(), most);
                    assert!(found.iter().all(|id| all.contains(id)));
                }
            }
            end(&network);
        });
    }
}

/// The number is wrong then, as if a bucket had given it.
#[test]
fn numbers_that_are_too_large_do_not_overflow() {
    runtime().block_on(async {
        let (network, _) = started(3).await;
        let faults = (0..3).map(|node| (format!("n{node}"), Fault::Overflows));
        *network.faults.lock().unwrap() = faults.collect();
        for (first, fan_out) in [(3, 1), (1, 2), (1, 1)] {
            let file = open(&network, Grouping::Always { first, fan_out }).await;
            file.buckets().await;
            assert_eq!(file.count(&Interval::ALL).await.unwrap(), u64::MAX);
        }
        end(&network);
    });
}

#[test]
fn a_tree_asks_each_node_once() {
    runtime().block_on(async {
        let (network, direct) = started(6).await;
        for (first, fan_out) in [(1, 1), (1, 2), (2, 2), (1, 16), (16, 1)] {
            let file = open(&network, Grouping::Always { first, fan_out }).await;
            file.buckets().await;
            let nodes: std::collections::BTreeSet<String> =
                file.image().owners().map(|(_, owner)| owner.node.clone()).collect();
            network.asked.store(0, Ordering::Relaxed);
            assert_eq!(file.count(&Interval::ALL).await.unwrap(), ROWS as u64);
            let levels = if (first, fan_out) == (1, 1) { HOPS_MAX as usize + 1 } else { nodes.len() };
            assert_eq!(network.asked.load(Ordering::Relaxed), nodes.len().min(levels), "{first} {fan_out}");
            let keys = Interval::new(bound(&direct, 10), Some(bound(&direct, 50)));
            let before = network.asked.swap(0, Ordering::Relaxed);
            assert_eq!(ids(&file, keys, &ScanOptions::default()).await.len(), 40);
            assert!((1..=before).contains(&network.asked.load(Ordering::Relaxed)));
        }
        // Few buckets are asked by themselves.
        let file = open(&network, Grouping::Auto).await;
        network.asked.store(0, Ordering::Relaxed);
        file.count(&Interval::new(bound(&direct, 10), Some(bound(&direct, 12)))).await.unwrap();
        assert_eq!(network.asked.load(Ordering::Relaxed), 0);
        end(&network);
    });
}

/// Parts of all nodes, each many times, and of some that are no members.
fn hostile(file: &RangeFile, names: &[&str]) -> Group {
    let mut group =
        Group { file: "t".into(), fan_out: u32::MAX, hops: u32::MAX, wait_ms: u32::MAX, ..Group::default() };
    for (_, owner) in file.image().owners() {
        for name in names.iter().copied().chain([owner.node.as_str()]) {
            group.owners.push(group.nodes.len() as u32);
            group.nodes.push(name.to_owned());
            group.numbers.push(group.numbers.len() as u32 % 7);
            group.buckets.push(owner.bucket);
            group.epochs.push(owner.epoch);
            group.lows.push(Vec::new());
            group.highs.push(Vec::new());
        }
    }
    group
}

async fn answer(network: &Arc<Nodes>, node: &str, group: Group) -> Result<Vec<Grouped>> {
    let found = network.nodes.lock().unwrap()[node].clone();
    let caller = Caller { is_peer: false, address: None };
    messages(found.answer(&body(RequestKind::Group(group)), &caller).await?.into()).await
}

#[test]
fn a_hostile_request_goes_to_members_only_and_ends() {
    runtime().block_on(async {
        let (network, file) = started(4).await;
        file.buckets().await;
        let group = hostile(&file, &["n0", "n1", "n2", "n3", "elsewhere:1", "", "n9"]);
        network.foreign.store(0, Ordering::Relaxed);
        answer(&network, "n0", group).await.unwrap();
        assert_eq!(network.foreign.load(Ordering::Relaxed), 0);
        assert!(network.asked.load(Ordering::Relaxed) <= 3);
        // A node that is known by another name than its own asks itself, but not for ever.
        *network.alias.lock().unwrap() = Some(("alias".into(), "n0".into()));
        network.asked.store(0, Ordering::Relaxed);
        answer(&network, "n0", hostile(&file, &["alias"; 3])).await.unwrap();
        let asked = network.asked.load(Ordering::Relaxed);
        assert!((1..=4 * HOPS_MAX as usize).contains(&asked), "{asked}");
        // It is not answered at all if there are too many parts.
        let parts = crate::group::PARTS_MAX + 1;
        let mut group = hostile(&file, &[]);
        group.nodes.truncate(1);
        group.owners = vec![0; parts];
        group.numbers = vec![0; parts];
        group.buckets = vec![0; parts];
        group.epochs = vec![0; parts];
        group.lows = vec![Vec::new(); parts];
        group.highs = vec![Vec::new(); parts];
        let refused = answer(&network, "n0", group).await.unwrap_err();
        assert!(refused.to_string().contains("too many parts"), "{refused}");
        end(&network);
    });
}

#[test]
fn a_node_that_answers_many_requests_refuses_others() {
    runtime().block_on(async {
        let (network, file) = started(2).await;
        file.buckets().await;
        *network.faults.lock().unwrap() = [("n1".to_owned(), Fault::Hangs)].into();
        let caller = Caller::default();
        let node = network.nodes.lock().unwrap()["n0"].clone();
        let group = hostile(&file, &[]);
        let request = body(RequestKind::Group(Group { wait_ms: 1000, ..group.clone() }));
        let mut answers = Vec::new();
        let refused = loop {
            match node.answer(&request, &caller).await {
                Ok(answer) => answers.push(answer),
                Err(refused) => break refused,
            }
            assert!(answers.len() < 100);
        };
        assert_eq!(refused.code, ErrorCode::Busy);
        // Clients don't depend on it.
        let tree = open(&network, Grouping::Always { first: 1, fan_out: 1 }).await;
        assert_eq!(tree.count(&Interval::ALL).await.unwrap(), ROWS as u64);
        // What hangs ends in time.
        let began = Instant::now();
        messages(answers.pop().unwrap().into()).await.unwrap();
        assert!(began.elapsed() <= Duration::from_millis(1001), "{:?}", began.elapsed());
        drop(answers);
        assert!(node.answer(&request, &caller).await.is_ok());
        end(&network);
    });
}

#[test]
fn rows_for_which_there_is_no_room_are_left_out() {
    runtime().block_on(async {
        let (network, file) = started(3).await;
        file.buckets().await;
        let mut group = hostile(&file, &[]);
        group.numbers = (0..group.owners.len() as u32).collect();
        group.lows = file.image().owners().map(|(interval, _)| interval.low).collect();
        group.highs = file.image().owners().map(|(interval, _)| interval.high.unwrap_or_default()).collect();
        let covered = |bytes_max: u64| {
            let mut group = group.clone();
            group.rows = Some(crate::group::GroupRows { bytes_max, ..Default::default() });
            let network = network.clone();
            async move {
                let answered = answer(&network, "n1", group).await.unwrap();
                let rows = answered.iter().map(|grouped| grouped.count).sum::<u64>();
                (answered.iter().map(|grouped| grouped.covered.len()).sum::<usize>(), rows)
            }
        };
        let all = group.owners.len();
        assert_eq!(covered(1 << 20).await, (all, ROWS as u64));
        let (some, rows) = covered(400).await;
        assert!((1..all).contains(&some) && rows < ROWS as u64, "{some} of {all}");
        assert_eq!(covered(0).await.1, 0);
        end(&network);
    });
}

fn parts() -> impl Strategy<Value = BTreeMap<String, Vec<GroupPart>>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..4);
    let part = (any::<u32>(), any::<u64>(), any::<u64>(), bytes(), prop::option::of(bytes())).prop_map(
        |(number, bucket, epoch, low, high)| {
            let high = high.filter(|high| !high.is_empty());
            GroupPart { number, bucket, epoch, interval: Interval { low, high } }
        },
    );
    prop::collection::btree_map("[a-c]{1,3}", prop::collection::vec(part, 1..4), 0..40)
}

proptest! {
    #[test]
    fn parts_are_divided_without_loss(nodes in parts(), fan_out in 0..30_u32, wait_ms in 0..20_000_u64) {
        let subtrees = crate::group::Subtree::divide(nodes.clone(), fan_out);
        prop_assert!(subtrees.len() <= fan_out.clamp(1, FAN_OUT_MAX) as usize);
        let wanted = crate::group::Wanted {
            file: "t".into(),
            rows: None,
            fan_out,
            hops: 2,
            wait: Duration::from_millis(wait_ms),
        };
        let mut all = BTreeMap::new();
        let mut sizes = Vec::new();
        for subtree in subtrees {
            // As they are sent.
            let (nodes, wanted) = Group::new(subtree.into_nodes(), &wanted).decode_parts().unwrap();
            prop_assert!(wanted.wait <= crate::group::WAIT_MAX && wanted.fan_out >= 1);
            sizes.push(nodes.len());
            for (node, parts) in nodes {
                prop_assert!(all.insert(node, parts).is_none());
            }
        }
        prop_assert!(sizes.iter().max().unwrap_or(&0) - sizes.iter().min().unwrap_or(&0) <= 1);
        prop_assert_eq!(all, nodes);
    }

    /// What peers send is refused or within the limits.
    #[test]
    fn lists_that_do_not_fit_together_are_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        owners in prop::collection::vec(0..3_u32, 0..4),
        lengths in prop::collection::vec(0..4_usize, 6),
    ) {
        if let Ok(group) = Group::decode(&*bytes) {
            let _ = group.decode_parts();
        }
        let group = Group {
            owners: owners.clone(),
            nodes: vec!["n".into(); lengths[0]],
            numbers: vec![1; lengths[1]],
            buckets: vec![1; lengths[2]],
            epochs: vec![1; lengths[3]],
            lows: vec![Vec::new(); lengths[4]],
            highs: vec![Vec::new(); lengths[5]],
            ..Group::default()
        };
        let is_whole = lengths[1..].iter().all(|length| *length == owners.len())
            && lengths[0] <= owners.len()
            && owners.iter().all(|owner| (*owner as usize) < lengths[0]);
        prop_assert_eq!(group.decode_parts().is_ok(), is_whole);
    }
}

/// Without hops, nobody is asked.
#[test]
fn the_last_level_asks_nobody() {
    runtime().block_on(async {
        let (network, file) = started(2).await;
        file.buckets().await;
        let (nodes, mut wanted) = hostile(&file, &[]).decode_parts().unwrap();
        wanted.hops = 0;
        network.asked.store(0, Ordering::Relaxed);
        let asked: Arc<dyn Network> = Arc::new(network.clone());
        assert_eq!(ask_nodes(&asked, nodes, 16, &wanted).count().await, 0);
        assert_eq!(network.asked.load(Ordering::Relaxed), 0);
        end(&network);
    });
}
