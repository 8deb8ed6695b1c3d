//! Nodes in this process, and a network between them that can lose nodes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::FutureExt;
use futures::future::BoxFuture;
use lightship_rangefile::{
    BucketEntry, Capacity, ClientOptions, Definition, Interval, Network, Node, Order, RangeError, RangeFile,
    Reply, Result, ScanOptions, WriteMode,
};
use lightship_transport::net::Caller;
use lightship_wire::control::{ErrorCode, Failure};
use tempfile::TempDir;

/// Nodes by name, as far as they run.
#[derive(Default)]
pub(crate) struct InProcess {
    nodes: Mutex<BTreeMap<String, Option<Node>>>,
}

impl Network for InProcess {
    fn nodes(&self) -> Vec<String> {
        self.nodes.lock().unwrap().keys().cloned().collect()
    }

    fn request(&self, node: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
        self.send(node, body, true)
    }
}

impl InProcess {
    /// Starts or stops a node of a name.
    pub(crate) fn set(&self, name: &str, node: Option<Node>) {
        self.nodes.lock().unwrap().insert(name.to_owned(), node);
    }

    fn send(&self, node: &str, body: Vec<u8>, is_peer: bool) -> BoxFuture<'static, Result<Reply>> {
        let found = self.nodes.lock().unwrap().get(node).cloned().flatten();
        let name = node.to_owned();
        async move {
            match found {
                Some(node) => Ok(node.answer(&body, &Caller { is_peer, address: None }).await?.into()),
                None => Err(Failure::new(ErrorCode::Peer, format!("node {name} is down")).into()),
            }
        }
        .boxed()
    }
}

/// The same network for clients, which may not request what only nodes may.
pub(crate) struct AsClient(Arc<InProcess>);

impl Network for AsClient {
    fn nodes(&self) -> Vec<String> {
        self.0.nodes()
    }

    fn request(&self, node: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
        self.0.send(node, body, false)
    }
}

/// Nodes with their folders.
pub(crate) struct Cluster {
    pub(crate) network: Arc<InProcess>,
    folders: Vec<TempDir>,
    starts: AtomicU64,
}

impl Cluster {
    pub(crate) async fn start(nodes: usize) -> Self {
        let folders = (0..nodes).map(|_| tempfile::tempdir().unwrap()).collect();
        let cluster = Self { network: Arc::default(), folders, starts: AtomicU64::new(1) };
        for node in 0..nodes {
            cluster.begin(node).await;
        }
        cluster
    }

    pub(crate) fn client(&self) -> Arc<dyn Network> {
        Arc::new(AsClient(self.network.clone()))
    }

    pub(crate) fn name(node: usize) -> String {
        format!("node-{node}:4270")
    }

    fn folder(&self, node: usize) -> PathBuf {
        self.folders[node].path().to_owned()
    }

    /// Starts a node, with what is on its disk.
    pub(crate) async fn begin(&self, node: usize) {
        let name = Self::name(node);
        let network: Arc<dyn Network> = self.network.clone();
        let opened = loop {
            // What the node was doing when it was stopped may still hold its disk.
            let seed = self.starts.fetch_add(1, Ordering::Relaxed);
            match Node::open(&self.folder(node), &name, network.clone(), seed) {
                Ok(node) => break node,
                Err(RangeError::InUse(_)) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        };
        self.network.set(&name, Some(opened.clone()));
        opened.recover().await;
    }

    /// Stops a node: it answers nobody.
    pub(crate) fn stop(&self, node: usize) {
        self.network.set(&Self::name(node), None);
    }

    pub(crate) async fn create(&self, name: &str, capacity: Capacity) -> RangeFile {
        let definition = Definition::new(name, &schema(), &["id".into()], capacity).unwrap();
        RangeFile::create(self.client(), &definition, options()).await.unwrap()
    }

    pub(crate) async fn open(&self, name: &str) -> RangeFile {
        RangeFile::open(self.client(), name, options()).await.unwrap()
    }
}

pub(crate) fn options() -> ClientOptions {
    ClientOptions { patience: Duration::from_secs(60), ..ClientOptions::default() }
}

pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("text", DataType::Utf8, true),
    ]))
}

/// Rows with these keys; the text of each is its key and `note`.
pub(crate) fn rows(ids: impl IntoIterator<Item = i64>, note: &str) -> RecordBatch {
    let ids: Int64Array = ids.into_iter().map(Some).collect();
    let texts: StringArray = ids.iter().map(|id| id.map(|id| format!("{id}{note}"))).collect();
    RecordBatch::try_new(schema(), vec![Arc::new(ids), Arc::new(texts)]).unwrap()
}

pub(crate) fn key(file: &RangeFile, id: i64) -> Vec<u8> {
    file.definition().format().key(&[Arc::new(Int64Array::from(vec![id]))]).unwrap()
}

pub(crate) fn interval(file: &RangeFile, from: i64, to: i64) -> Interval {
    Interval::new(key(file, from), Some(key(file, to)))
}

pub(crate) async fn upsert(file: &RangeFile, ids: impl IntoIterator<Item = i64>, note: &str) {
    file.write(WriteMode::Upsert, &rows(ids, note)).await.unwrap();
}

/// The rows of a scan.
pub(crate) async fn scan(
    file: &RangeFile,
    interval: Interval,
    options: &ScanOptions,
) -> Result<Vec<(i64, String)>> {
    use futures::TryStreamExt;
    let batches: Vec<RecordBatch> = file.scan(interval, options)?.rows.try_collect().await?;
    let row = |batch: &RecordBatch, row: usize| {
        let id = batch.column(0).as_primitive::<Int64Type>().value(row);
        (id, batch.column(1).as_string::<i32>().value(row).to_owned())
    };
    Ok(batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |at| row(batch, at))).collect())
}

pub(crate) async fn all(file: &RangeFile) -> Vec<(i64, String)> {
    let in_order = scan(file, Interval::ALL, &ScanOptions::default()).await.unwrap();
    let mut any = scan(file, Interval::ALL, &ScanOptions { order: Order::Any, ..ScanOptions::default() })
        .await
        .unwrap();
    any.sort();
    assert_eq!(in_order, any);
    assert_eq!(file.count(&Interval::ALL).await.unwrap(), in_order.len() as u64);
    in_order
}

pub(crate) fn expected(ids: impl IntoIterator<Item = i64>, note: &str) -> Vec<(i64, String)> {
    ids.into_iter().map(|id| (id, format!("{id}{note}"))).collect()
}

/// Waits until a file has at least this many buckets, without a split that goes on.
pub(crate) async fn until_buckets(file: &RangeFile, at_least: usize) {
    let waiting = async {
        while file.buckets().await.0.len() < at_least {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(120), waiting).await.is_err() {
        panic!("the buckets are {:#?}", file.buckets().await);
    }
}

/// Waits until a file has at most this many buckets, without holes between them.
pub(crate) async fn until_merged(file: &RangeFile, at_most: usize) {
    until(file, |buckets| buckets.len() <= at_most).await;
}

/// Waits until no bucket of a file has to split, or is being split.
pub(crate) async fn until_settled(file: &RangeFile, capacity: u64) {
    until(file, |buckets| buckets.iter().all(|bucket| bucket.records.is_some_and(|rows| rows <= capacity)))
        .await;
}

/// Waits until the buckets of a file are without holes, and as they should be.
async fn until(file: &RangeFile, is_reached: impl Fn(&[BucketEntry]) -> bool) {
    let waiting = async {
        loop {
            let (buckets, failed) = file.buckets().await;
            let is_whole = buckets.first().is_some_and(|first| first.range.low.is_empty())
                && buckets.last().is_some_and(|last| last.range.high.is_none())
                && buckets.windows(2).all(|pair| pair[0].range.high.as_ref() == Some(&pair[1].range.low));
            if failed.is_empty() && is_whole && is_reached(&buckets) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(120), waiting).await.is_err() {
        panic!("the buckets are {:#?}", file.buckets().await);
    }
}
