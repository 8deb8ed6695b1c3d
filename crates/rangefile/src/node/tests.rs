//! What a node does when others answer late, or its memory is reserved.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use arrow_array::{BinaryArray, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use lightship_transport::net::Caller;
use lightship_wire::control::{ErrorCode, Failure};
use prost::Message;
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::*;
use crate::client::{ClientOptions, RangeFile, ScanOptions};
use crate::definition::Capacity;
use crate::key::Interval;
use crate::network::Reply;
use crate::request::{BucketLoad, Origin, Request, RequestKind, WriteMode};

/// Whether the answer to a request is held back.
type Holds = fn(&RequestKind) -> bool;

/// Nodes in this process. The answer to a request can be held back.
#[derive(Default)]
struct Held {
    nodes: Mutex<BTreeMap<String, Node>>,
    /// The first one.
    holds: Mutex<Option<Holds>>,
    /// The answer is held back.
    has_answer: Notify,
    /// It may go on.
    may_go_on: Notify,
    this: OnceLock<std::sync::Weak<Held>>,
}

impl Network for Held {
    fn nodes(&self) -> Vec<String> {
        self.nodes.lock().unwrap().keys().cloned().collect()
    }

    fn request(&self, node: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
        let found = self.nodes.lock().unwrap().get(node).cloned();
        let this = self.this.get().and_then(std::sync::Weak::upgrade).unwrap();
        async move {
            let down = || Failure::new(ErrorCode::Peer, "the node is down");
            let answer =
                found.ok_or_else(down)?.answer(&body, &Caller { is_peer: true, address: None }).await?;
            let kind = Request::decode(body.as_slice()).unwrap().kind.unwrap();
            if this.holds.lock().unwrap().take_if(|holds| holds(&kind)).is_some() {
                this.has_answer.notify_one();
                this.may_go_on.notified().await;
            }
            Ok(answer.into())
        }
        .boxed()
    }
}

struct Nodes {
    network: Arc<Held>,
    folders: Vec<TempDir>,
}

impl Nodes {
    fn start(count: usize) -> Self {
        Self::start_with(count, |_| false)
    }

    fn start_with(count: usize, holds: Holds) -> Self {
        let network = Arc::new(Held { holds: Mutex::new(Some(holds)), ..Held::default() });
        network.this.set(Arc::downgrade(&network)).unwrap();
        let nodes = Self { network, folders: (0..count).map(|_| tempfile::tempdir().unwrap()).collect() };
        for (number, folder) in nodes.folders.iter().enumerate() {
            let (name, network) = (format!("n{number}"), nodes.network.clone());
            let node = Node::open(folder.path(), &name, network, number as u64 + 1).unwrap();
            nodes.network.nodes.lock().unwrap().insert(name, node);
        }
        nodes
    }

    fn node(&self, number: usize) -> Node {
        self.network.nodes.lock().unwrap()[&format!("n{number}")].clone()
    }

    async fn create(&self) -> RangeFile {
        self.create_with(Capacity::default()).await
    }

    async fn create_with(&self, capacity: Capacity) -> RangeFile {
        let definition = definition(capacity);
        RangeFile::create(self.network.clone(), &definition, ClientOptions::default()).await.unwrap()
    }
}

fn definition(capacity: Capacity) -> Definition {
    let columns = Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("bytes", DataType::Binary, true),
    ]);
    Definition::new("t", &columns, &["id".into()], capacity).unwrap()
}

/// A bucket of the second node that receives keys from the first.
async fn incoming(node: &Node) -> (Arc<File>, Arc<Bucket>) {
    let file = node.file("t").unwrap();
    let record = BucketRecord {
        file: "t".into(),
        range: (&Interval::new(key(&file.definition, 5), None)).into(),
        epoch: 2,
        incoming: Some(Origin { node: "n0".into(), bucket: 7, runs: 0 }),
        ..BucketRecord::default()
    };
    let bucket = node.add_bucket(&file, 42, record).await.unwrap();
    (file, bucket)
}

fn key(definition: &Definition, id: i64) -> Vec<u8> {
    definition.format().key(&[Arc::new(Int64Array::from(vec![id]))]).unwrap()
}

/// Rows with these keys, each with `bytes` random bytes.
fn rows(file: &RangeFile, ids: std::ops::Range<i64>, bytes: usize) -> RecordBatch {
    let mut random = fastrand::Rng::with_seed(3);
    let values: Vec<Vec<u8>> = ids.clone().map(|_| (0..bytes).map(|_| random.u8(..)).collect()).collect();
    let values: BinaryArray = values.iter().map(|value| Some(value.as_slice())).collect();
    let ids: Int64Array = ids.map(Some).collect();
    RecordBatch::try_new(file.definition().schema.clone(), vec![Arc::new(ids), Arc::new(values)]).unwrap()
}

#[tokio::test]
async fn a_directory_is_read_page_by_page() {
    let nodes = Nodes::start(2);
    let client = nodes.create().await;
    let file = nodes.node(0).file("t").unwrap();
    let count = 6000;
    let known = |number: u16| {
        let bound = |number: u16| [vec![1], number.to_be_bytes().to_vec()].concat();
        let range = Interval::new(bound(number), Some(bound(number + 1)));
        BucketEntry {
            bucket: u64::from(number) + 1000,
            node: "n1".into(),
            range: (&range).into(),
            epoch: 7,
            low_text: "x".repeat(300),
            ..BucketEntry::default()
        }
    };
    assert!((0..count).all(|number| file.image().learn(&known(number))));
    let network: Arc<dyn Network> = nodes.network.clone();
    let asked = crate::request::Locate { file: "t".into(), ..Default::default() };
    let page: Directory = crate::network::ask_one(&network, "n0", RequestKind::Locate(asked)).await.unwrap();
    assert!(page.next.is_some() && page.encoded_len() < PAGE_BYTES + (16 << 10));
    let whole = crate::locate::locate(&network, "n0", "t", false, &Default::default()).await.unwrap();
    // Its own bucket is there, too.
    assert_eq!(whole.buckets.len(), usize::from(count) + 1);
    assert!(whole.buckets.is_sorted_by_key(|bucket| bucket.range.low.clone()));
    let opened = RangeFile::open(network, "t", ClientOptions::default()).await.unwrap();
    let owner = |file: &RangeFile| {
        let image = file.image();
        image.owners().filter(|(_, owner)| owner.node == "n1").count()
    };
    assert_eq!((owner(&opened), owner(&client)), (usize::from(count), 0));
}

#[tokio::test]
async fn a_late_answer_does_not_remove_an_active_bucket() {
    let nodes = Nodes::start_with(2, |kind| matches!(kind, RequestKind::Outcome(_)));
    nodes.create().await;
    let node = nodes.node(1);
    let (file, bucket) = incoming(&node).await;
    let activating = async {
        nodes.network.has_answer.notified().await;
        node.activate(&file, &bucket).await.unwrap();
        nodes.network.may_go_on.notify_one();
    };
    let both = async { tokio::join!(node.settle(&file, &bucket, "n0"), activating) };
    timeout(Duration::from_secs(30), both).await.unwrap();
    assert!(file.bucket(42).is_some_and(|bucket| bucket.view().is_active));
}

#[tokio::test]
async fn a_bucket_whose_origin_was_dropped_is_removed() {
    let nodes = Nodes::start(2);
    nodes.create().await;
    let node = nodes.node(1);
    let (file, bucket) = incoming(&node).await;
    nodes.node(0).forget("t", None).await.unwrap();
    timeout(Duration::from_secs(30), node.settle(&file, &bucket, "n0")).await.unwrap();
    assert!(file.bucket(42).is_none());
    // Late requests don't bring it back.
    node.activate(&file, &bucket).await.unwrap_err();
    assert!(node.buckets("t").is_empty());
}

#[tokio::test]
async fn a_late_request_does_not_bring_a_dropped_file_back() {
    let nodes = Nodes::start(2);
    nodes.create().await;
    let node = nodes.node(1);
    let record = node.file("t").unwrap().record.clone();
    node.forget("t", None).await.unwrap();
    assert!(matches!(node.know(&record).await, Err(RangeError::NoFile(_))));
    assert!(node.files().is_empty());
    // Another file may have the name.
    nodes.node(0).forget("t", None).await.unwrap();
    nodes.create().await;
    assert_eq!(node.files(), ["t"]);
}

#[tokio::test]
async fn nothing_is_written_before_other_nodes_have_accepted_a_new_file() {
    let nodes = Nodes::start_with(2, |kind| matches!(kind, RequestKind::Announce(_)));
    let creating = tokio::spawn({
        let network: Arc<dyn Network> = nodes.network.clone();
        async move { RangeFile::create(network, &definition(Capacity::default()), ClientOptions::default()).await }
    });
    nodes.network.has_answer.notified().await;
    let impatient = ClientOptions { patience: Duration::from_secs(2), ..ClientOptions::default() };
    let file = RangeFile::open(nodes.network.clone(), "t", impatient).await.unwrap();
    let refused = file.write(WriteMode::Insert, &rows(&file, 0..10, 8)).await.unwrap_err();
    assert!(refused.to_string().contains("is being created"), "{refused}");
    nodes.network.may_go_on.notify_one();
    let file = creating.await.unwrap().unwrap();
    assert_eq!(file.write(WriteMode::Insert, &rows(&file, 0..10, 8)).await.unwrap(), 10);
}

#[test]
fn a_scan_that_waits_for_its_client_occupies_no_thread() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let nodes = Nodes::start(1);
        let file = nodes.create().await;
        assert_eq!(file.write(WriteMode::Insert, &rows(&file, 0..100_000, 1)).await.unwrap(), 100_000);
        let mut scanned = file.scan(Interval::ALL, &ScanOptions::default()).unwrap().rows;
        let mut count = scanned.next().await.unwrap().unwrap().num_rows();
        // The only thread builds the run of this write.
        let more = rows(&file, 100_000..100_010, 1);
        let written = timeout(Duration::from_secs(30), file.write(WriteMode::Insert, &more));
        assert_eq!(written.await.unwrap().unwrap(), 10);
        while let Some(batch) = scanned.next().await {
            count += batch.unwrap().num_rows();
        }
        assert_eq!(count, 100_000);
    });
}

#[tokio::test]
async fn writes_to_a_bucket_that_is_far_too_full_wait_for_its_split() {
    let nodes = Nodes::start_with(2, |kind| matches!(kind, RequestKind::Prepare(_)));
    let file = nodes.create_with(Capacity::Records(10)).await;
    file.write(WriteMode::Insert, &rows(&file, 0..25, 8)).await.unwrap();
    nodes.network.has_answer.notified().await;
    let batch = rows(&file, 25..30, 8);
    let mut writing = std::pin::pin!(file.write(WriteMode::Insert, &batch));
    timeout(Duration::from_millis(50), &mut writing).await.unwrap_err();
    nodes.network.may_go_on.notify_one();
    assert_eq!(timeout(Duration::from_secs(30), writing).await.unwrap().unwrap(), 5);
    assert!(file.buckets().await.0.len() > 1);
}

#[tokio::test]
async fn writes_wait_for_memory() {
    let nodes = Nodes::start(1);
    let file = nodes.create().await;
    let node = nodes.node(0);
    // More than there is waits for all of it.
    let reserved = node.shared.blocks.reserve_write(u32::MAX).await.unwrap();
    let batch = rows(&file, 0..10, 8);
    let mut writing = std::pin::pin!(file.write(WriteMode::Insert, &batch));
    timeout(Duration::from_millis(50), &mut writing).await.unwrap_err();
    drop(reserved);
    assert_eq!(writing.await.unwrap(), 10);
    // It is released once they are done.
    let reserved = timeout(Duration::from_secs(30), node.shared.blocks.reserve_write(u32::MAX)).await;
    assert!(reserved.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merged_run_is_stored_in_pieces() {
    let nodes = Nodes::start(1);
    let file = nodes.create().await;
    // 20 MiB, of which 8 are stored at a time.
    for part in 0..5 {
        file.write(WriteMode::Insert, &rows(&file, part * 64..(part + 1) * 64, 64 << 10)).await.unwrap();
    }
    let bucket = nodes.node(0).file("t").unwrap().all().remove(0);
    bucket.compact(true).await.unwrap();
    let view = bucket.view();
    let [run] = view.runs.as_slice() else { panic!("{view:?}") };
    let read: usize =
        (0..run.blocks().len() as u32).map(|block| run.block(&bucket.definition, block).unwrap().len()).sum();
    assert_eq!(read, 5 * 64);
}

/// The most that is not full stays; it is not merged, and only the end is moved.
#[tokio::test(flavor = "multi_thread")]
async fn ascending_keys_stay_where_they_are() {
    let nodes = Nodes::start(1);
    let capacity = 8 << 20;
    let file = nodes.create_with(Capacity::Bytes(capacity)).await;
    for part in 0..12 {
        file.write(WriteMode::Insert, &rows(&file, part * 16..(part + 1) * 16, 64 << 10)).await.unwrap();
    }
    let first = || {
        let all = nodes.node(0).file("t").unwrap().all();
        all.into_iter().find(|bucket| bucket.view().range.low.is_empty()).unwrap()
    };
    let split = async {
        while first().view().range.high.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(30), split).await.unwrap();
    let view = first().view();
    assert!((capacity * 3 / 4..=capacity).contains(&view.content().1), "{:?}", view.content());
    assert!(view.runs.iter().all(|run| run.level() == 0), "{view:?}");
    assert_eq!(file.count(&Interval::ALL).await.unwrap(), 12 * 16);
}

#[tokio::test]
async fn rows_of_a_run_are_counted_without_its_blocks() {
    let nodes = Nodes::start(1);
    let file = nodes.create().await;
    file.write(WriteMode::Insert, &rows(&file, 0..100, 10_000)).await.unwrap();
    let key = |id| key(file.definition(), id);
    let within = Interval::new(key(30), Some(key(70)));
    assert_eq!(file.count(&within).await.unwrap(), 40);
    assert_eq!(file.count(&Interval::new(key(30), Some(key(31)))).await.unwrap(), 1);
    let bucket = nodes.node(0).file("t").unwrap().all().remove(0);
    let run = bucket.view().runs[0].clone();
    let blocks = run.blocks().len() as u32;
    assert!(blocks > 2);
    let gone = Change::DeleteBlocks(bucket.id, run.number(), blocks);
    nodes.node(0).shared.blocks.store().commit(vec![gone]).await.unwrap();
    assert_eq!(file.count(&Interval::ALL).await.unwrap(), 100);
    file.count(&within).await.unwrap_err();
}

#[tokio::test]
async fn a_join_does_not_bring_back_keys_that_were_given_away() {
    let nodes = Nodes::start(1);
    // Too small to join by themselves.
    let client = nodes.create_with(Capacity::Records(10)).await;
    for part in [0..7, 7..10] {
        client.write(WriteMode::Insert, &rows(&client, part, 8)).await.unwrap();
    }
    let node = nodes.node(0);
    let file = node.file("t").unwrap();
    let low = file.all().remove(0);
    let split = node.hand_over(&file, &low, key(&file.definition, 7), "7".into(), "n0".into()).await;
    assert!(split.is_ok());
    let high = file.all().into_iter().find(|bucket| bucket.id != low.id).unwrap();
    let confirmed = async {
        while !high.view().is_active || low.writer.lock().await.record.given.is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(30), confirmed).await.unwrap();
    client.write(WriteMode::Delete, &rows(&client, 8..9, 8)).await.unwrap();
    // The lower bucket still has the row in a run.
    assert!(!low.view().is_compact());
    assert!(node.join(&file, &low, &high).await.is_ok());
    let found = client.get(key(&file.definition, 8)).await.unwrap();
    assert_eq!((found.num_rows(), client.count(&Interval::ALL).await.unwrap()), (0, 9));
    assert_eq!(node.buckets("t").len(), 1);
    // The other one refuses what comes late.
    assert!(high.view().check(&Interval::of_key(&key(&file.definition, 9))).is_err());
    assert!(node.join(&file, &low, &high).await.is_err());
}

#[tokio::test]
async fn a_bucket_that_is_filled_while_its_neighbours_are_looked_at_splits() {
    let nodes = Nodes::start_with(2, |kind| matches!(kind, RequestKind::Locate(locate) if locate.own));
    let client = nodes.create_with(Capacity::Records(10)).await;
    for part in [0..7, 7..10] {
        client.write(WriteMode::Insert, &rows(&client, part, 8)).await.unwrap();
    }
    let node = nodes.node(0);
    let file = node.file("t").unwrap();
    let low = file.all().remove(0);
    let moved = node.hand_over(&file, &low, key(&file.definition, 7), "7".into(), "n1".into()).await;
    assert!(moved.is_ok());
    // The new bucket asks for the one before it.
    timeout(Duration::from_secs(30), nodes.network.has_answer.notified()).await.unwrap();
    client.write(WriteMode::Insert, &rows(&client, 10..25, 8)).await.unwrap();
    nodes.network.may_go_on.notify_one();
    // No other write tells it that it is full.
    let split = async {
        while (0..2).map(|number| nodes.node(number).buckets("t").len()).sum::<usize>() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(30), split).await.expect("a bucket stays full");
}

#[tokio::test]
async fn buckets_say_what_they_were_asked_for() {
    let nodes = Nodes::start(1);
    let file = nodes.create().await;
    file.write(WriteMode::Insert, &rows(&file, 0..100, 8)).await.unwrap();
    file.write(WriteMode::Insert, &rows(&file, 50..60, 8)).await.unwrap_err();
    file.write(WriteMode::Delete, &rows(&file, 0..10, 8)).await.unwrap();
    let load = || nodes.node(0).buckets("t")[0].load.unwrap();
    assert_eq!(load(), BucketLoad { writes: 2, written_rows: 110, ..BucketLoad::default() });
    let within = Interval::new(key(file.definition(), 20), Some(key(file.definition(), 40)));
    let read: Vec<_> = file.scan(within.clone(), &ScanOptions::default()).unwrap().rows.collect().await;
    assert!(read.iter().all(std::result::Result::is_ok));
    file.get(key(file.definition(), 30)).await.unwrap();
    file.get(key(file.definition(), 5)).await.unwrap();
    file.count(&within).await.unwrap();
    let expected = BucketLoad { reads: 4, read_rows: 21, ..load() };
    assert_eq!(load(), expected);
    // All of it is asked for together.
    let grouping = crate::Grouping::Always { first: 1, fan_out: 1 };
    let options = ClientOptions { grouping, ..ClientOptions::default() };
    let tree = RangeFile::open(nodes.network.clone(), "t", options).await.unwrap();
    tree.count(&Interval::ALL).await.unwrap();
    let read: Vec<_> = tree.scan(within, &ScanOptions::default()).unwrap().rows.collect().await;
    assert!(read.iter().all(std::result::Result::is_ok));
    assert_eq!(load(), BucketLoad { reads: 6, read_rows: 41, ..expected });
}

/// The runs of the only bucket of a file.
fn runs(nodes: &Nodes) -> usize {
    nodes.node(0).file("t").unwrap().all().remove(0).view().runs.len()
}

async fn scan_all(file: &RangeFile) -> usize {
    let read: Vec<_> = file.scan(Interval::ALL, &ScanOptions::default()).unwrap().rows.collect().await;
    read.into_iter().map(|rows| rows.unwrap().num_rows()).sum()
}

const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::test(start_paused = true)]
async fn runs_that_a_scan_had_to_merge_are_merged_once_it_is_quiet() {
    let nodes = Nodes::start(1);
    let file = nodes.create().await;
    for part in [0..100, 0..100] {
        file.write(WriteMode::Upsert, &rows(&file, part, 8)).await.unwrap();
    }
    // Neither without scans, nor for one that copies few rows.
    tokio::time::sleep(A_DAY).await;
    let within = Interval::new(key(file.definition(), 60), Some(key(file.definition(), 70)));
    let read: Vec<_> = file.scan(within, &ScanOptions::default()).unwrap().rows.collect().await;
    assert!(read.iter().all(std::result::Result::is_ok));
    tokio::time::sleep(A_DAY).await;
    assert_eq!((scan_all(&file).await, runs(&nodes)), (100, 2));
    let merged = async {
        while runs(&nodes) > 1 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(10), merged).await.expect("its runs are not merged");
    assert_eq!(scan_all(&file).await, 100);
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_is_scanned_all_the_time_is_merged_too() {
    let nodes = Nodes::start(1);
    let file = nodes.create().await;
    for part in [0..100, 0..100] {
        file.write(WriteMode::Upsert, &rows(&file, part, 8)).await.unwrap();
    }
    let mut scans = 0;
    while runs(&nodes) > 1 {
        assert_eq!(scan_all(&file).await, 100);
        scans += 1;
        assert!(scans < 100, "its runs are not merged");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(scans > 4, "merged after {scans} scans");
}

/// Their rows are read block by block, in one order or the other.
#[tokio::test(start_paused = true)]
async fn runs_that_follow_each_other_are_not_merged_for_scans() {
    let nodes = Nodes::start(1);
    let file = nodes.create().await;
    for part in [0..100, 100..150] {
        file.write(WriteMode::Upsert, &rows(&file, part, 8)).await.unwrap();
    }
    for _ in 0..20 {
        assert_eq!(scan_all(&file).await, 150);
    }
    tokio::time::sleep(A_DAY).await;
    assert_eq!(runs(&nodes), 2);
}
