//! A node that is stopped while its connections stay open: requests to it get no answer.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, TryStreamExt};
use prost::Message;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::cluster::{Cluster, bound};
use super::histories::settle;
use super::{pairs, rows, runtime};
use crate::error::{RangeError, Result};
use crate::key::Interval;
use crate::network::{Network, Reply, patiently};
use crate::request::{Request, RequestKind, WriteMode};
use crate::{ClientOptions, Definition, Grouping, Order, RangeFile, ScanOptions};

const NODES: usize = 3;
const ROWS: i64 = 90;
/// Within this time, what does not need the silent node is done.
const SOON: Duration = Duration::from_secs(6);
/// Of a client.
const PATIENCE: Duration = Duration::from_secs(10);
/// A tree of nodes, and finding out which keys other nodes have, may take a part of this.
const IN_TIME: Duration = Duration::from_secs(16);

/// A file on several nodes, one of which is silent, and clients that know only its first bucket.
struct Silenced {
    cluster: Cluster,
    /// Knows all buckets as they are.
    file: RangeFile,
    stale: Vec<RangeFile>,
    silent: String,
}

fn client(cluster: &Cluster) -> Arc<dyn Network> {
    cluster.network.from("client", watch::channel(true).1)
}

impl Silenced {
    async fn start(silent: usize, grouping: Grouping) -> Self {
        let mut cluster = Cluster::new(NODES, 1, 4);
        for node in 0..NODES {
            cluster.start(node, node as u64 + 1).await;
        }
        let definition = cluster.network.definition();
        let file =
            RangeFile::create(client(&cluster), definition, ClientOptions::default()).await.expect("a file");
        let mut stale = Vec::new();
        for _ in 0..8 {
            stale.push(cluster.client("client", grouping).await);
        }
        for start in (0..ROWS).step_by(6) {
            let ids: Vec<i64> = (start..start + 6).collect();
            file.write(WriteMode::Insert, &rows(&ids, "x")).await.expect("written");
        }
        settle(&cluster).await;
        // Nodes tell each other of the last split.
        sleep(Duration::from_secs(10)).await;
        file.buckets().await;
        let silent = cluster.names[silent].clone();
        let nodes: BTreeSet<String> = file.image().owners().map(|(_, owner)| owner.node.clone()).collect();
        assert_eq!(nodes.len(), NODES, "each node has buckets");
        cluster.network.silence(&silent);
        Self { cluster, file, stale, silent }
    }

    fn stale(&mut self) -> RangeFile {
        self.stale.pop().expect("a client")
    }

    /// The keys that are, or are not, on the silent node.
    fn ids(&self, is_silent: bool) -> Vec<i64> {
        let image = self.file.image();
        let is_on =
            |id: &i64| image.owner(&bound(&self.file, *id)).is_some_and(|owner| owner.node == self.silent);
        (0..ROWS).filter(|id| is_on(id) == is_silent).collect()
    }

    /// The intervals of the buckets that are, or are not, on the silent node.
    fn intervals(&self, is_silent: bool) -> Vec<Interval> {
        let image = self.file.image();
        let of = image.owners().filter(|(_, owner)| (owner.node == self.silent) == is_silent);
        of.map(|(interval, _)| interval).collect()
    }
}

/// The result of an operation that ends in time.
async fn within<T>(time: Duration, what: &str, operation: impl Future<Output = Result<T>>) -> Result<T> {
    let began = Instant::now();
    let done = operation.await;
    assert!(began.elapsed() <= time, "{what} took {:?}", began.elapsed());
    done
}

async fn scan(file: &RangeFile, intervals: &[Interval], order: Order) -> Result<Vec<i64>> {
    let options = ScanOptions { order, ..ScanOptions::default() };
    let rows: Vec<_> = file.scan_all(intervals, &options)?.rows.try_collect().await?;
    let mut ids: Vec<i64> = rows.iter().flat_map(pairs).map(|(id, _)| id).collect();
    ids.sort_unstable();
    Ok(ids)
}

fn groupings() -> [Grouping; 2] {
    [Grouping::Never, Grouping::Always { first: 1, fan_out: 1 }]
}

/// Whether the silent node is the one that a stale image names, or another one.
#[test]
fn keys_of_other_nodes_are_read_and_written_soon() {
    for (silent, grouping) in (0..NODES).flat_map(|node| groupings().map(|grouping| (node, grouping))) {
        runtime().block_on(async {
            let mut silenced = Silenced::start(silent, grouping).await;
            let (ids, intervals) = (silenced.ids(false), silenced.intervals(false));
            for order in [Order::Key, Order::Any] {
                let stale = silenced.stale();
                let found = within(SOON, "a scan", scan(&stale, &intervals, order)).await;
                assert_eq!(found.expect("rows"), ids);
            }
            let stale = silenced.stale();
            let found = within(SOON, "a get", stale.get(bound(&stale, ids[0]))).await;
            assert_eq!(found.expect("a row").num_rows(), 1);
            let last = bound(&stale, *ids.last().expect("an id"));
            let found = within(SOON, "a second get", stale.get(last)).await;
            assert_eq!(found.expect("a row").num_rows(), 1);
            let stale = silenced.stale();
            let mut counted = 0;
            for interval in &intervals {
                counted += within(SOON, "a count", stale.count(interval)).await.expect("a number");
            }
            assert_eq!(counted, ids.len() as u64);
            for mode in [WriteMode::Upsert, WriteMode::Delete] {
                let stale = silenced.stale();
                let written = within(SOON, "a write", stale.write(mode, &rows(&ids, "y"))).await;
                assert_eq!(written.expect("written"), ids.len() as u64);
            }
            silenced.cluster.network.heal();
        });
    }
}

#[test]
fn operations_on_keys_of_a_silent_node_end_in_time_and_name_them() {
    for (silent, grouping) in (0..NODES).flat_map(|node| groupings().map(|grouping| (node, grouping))) {
        runtime().block_on(async {
            let mut silenced = Silenced::start(silent, grouping).await;
            let (file, ids) = (silenced.file.clone(), silenced.ids(true));
            let mut named: Vec<String> = ids.iter().map(i64::to_string).collect();
            let ends = silenced.intervals(true).into_iter();
            named.extend(ends.map(|interval| file.definition().format().display_interval(&interval).0));
            let is_named = |error: &RangeError| {
                let RangeError::Missing { from, .. } = error else { return false };
                named.contains(from)
            };
            for known in [Some(file.clone()), None] {
                let client = |silenced: &mut Silenced| known.clone().unwrap_or_else(|| silenced.stale());
                for order in [Order::Key, Order::Any] {
                    let stale = client(&mut silenced);
                    let error = within(IN_TIME, "a scan", scan(&stale, &[Interval::ALL], order))
                        .await
                        .expect_err("keys are missing");
                    assert!(is_named(&error), "{error}");
                }
                let stale = client(&mut silenced);
                let got =
                    within(PATIENCE + Duration::from_millis(100), "a get", stale.get(bound(&file, ids[0])))
                        .await;
                assert!(is_named(&got.expect_err("a key is missing")));
                let stale = client(&mut silenced);
                let counted = within(IN_TIME, "a count", stale.count(&Interval::ALL)).await;
                assert!(is_named(&counted.expect_err("keys are missing")));
                let stale = client(&mut silenced);
                let all: Vec<i64> = (0..ROWS).collect();
                let written =
                    within(IN_TIME, "a write", stale.write(WriteMode::Upsert, &rows(&all, "z"))).await;
                assert!(is_named(&written.expect_err("keys are missing")));
                if known.is_some() {
                    // The others are written.
                    for id in silenced.ids(false) {
                        let found = file.get(bound(&file, id)).await.expect("a row");
                        assert_eq!(pairs(&found), [(id, "z".to_owned())]);
                    }
                }
            }
            let (_, failed) =
                within(IN_TIME, "the buckets", async { Ok(file.buckets().await) }).await.unwrap();
            let failed: Vec<String> = failed.into_iter().map(|(node, _)| node).collect();
            assert_eq!(failed, [silenced.silent.as_str()]);
            silenced.cluster.network.heal();
        });
    }
}

#[test]
fn a_file_is_opened_while_the_first_node_is_silent() {
    runtime().block_on(async {
        let silenced = Silenced::start(0, Grouping::Auto).await;
        let opened = RangeFile::open(client(&silenced.cluster), "t", ClientOptions::default());
        let file = within(SOON, "opening", opened).await.expect("a file");
        let id = silenced.ids(false)[0];
        assert_eq!(file.get(bound(&file, id)).await.expect("a row").num_rows(), 1);
        silenced.cluster.network.heal();
    });
}

/// Whether the node that is asked is silent, or another one.
#[test]
fn files_are_created_listed_and_dropped_in_time() {
    for silent in [0, 1] {
        runtime().block_on(async {
            let silenced = Silenced::start(silent, Grouping::Auto).await;
            let (network, options) = (client(&silenced.cluster), ClientOptions::default());
            let known = silenced.file.definition();
            let other = Definition::new("other", &known.schema, &known.key, known.capacity).expect("a file");
            let in_time = PATIENCE + Duration::from_millis(100);
            let created = RangeFile::create(network.clone(), &other, options);
            let created = within(in_time, "creating", created).await.map(drop);
            let listed = within(in_time, "listing", RangeFile::list(&network, options)).await;
            let dropped = within(in_time, "dropping", RangeFile::drop_file(&network, "t", options)).await;
            let is_named =
                |error: RangeError| assert!(error.to_string().contains(&silenced.silent), "{error}");
            // The node would bring its rows back.
            is_named(dropped.expect_err("a node is silent"));
            if silent == 0 {
                is_named(created.expect_err("the node is silent"));
                is_named(listed.expect_err("the node is silent"));
            } else {
                created.expect("created");
                assert_eq!(listed.expect("files").len(), 2);
            }
            silenced.cluster.network.heal();
        });
    }
}

#[test]
fn a_request_is_waited_for_as_long_as_its_node_answers() {
    runtime().block_on(async {
        let silenced = Silenced::start(1, Grouping::Auto).await;
        let (network, names) = (client(&silenced.cluster), &silenced.cluster.names);
        let slow = async {
            sleep(10 * PATIENCE).await;
            Ok(7)
        };
        assert_eq!(patiently(&network, &names[0], PATIENCE, slow).await.expect("an answer"), 7);
        let lost = patiently(&network, &names[1], PATIENCE, futures::future::pending::<Result<()>>());
        within(PATIENCE, "a lost request", lost).await.expect_err("the node is silent");
        silenced.cluster.network.heal();
    });
}

/// A node that is slow, but answers within the client's patience, is waited for.
#[test]
fn a_node_that_is_silent_for_a_while_is_waited_for() {
    runtime().block_on(async {
        let mut silenced = Silenced::start(1, Grouping::Never).await;
        let ids = silenced.ids(true);
        let (stale, network) = (silenced.stale(), silenced.cluster.network.clone());
        let healing = async {
            sleep(PATIENCE - Duration::from_secs(1)).await;
            network.heal();
        };
        let some = rows(&[ids[0], 1000], "y");
        let writing = within(IN_TIME, "a write", stale.write(WriteMode::Insert, &some));
        let reading = within(IN_TIME, "a get", silenced.file.get(bound(&silenced.file, ids[1])));
        let (_, written, read) = futures::join!(healing, writing, reading);
        assert!(matches!(written, Err(RangeError::Remote(_))), "{written:?}");
        assert_eq!(read.expect("a row").num_rows(), 1);
    });
}

/// A network on which writes take their time.
struct Slow {
    network: Arc<dyn Network>,
    /// Nodes that were asked for their buckets.
    located: Mutex<BTreeSet<String>>,
}

impl Network for Arc<Slow> {
    fn nodes(&self) -> Vec<String> {
        self.network.nodes()
    }

    fn request(&self, node: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
        let kind = Request::decode(&*body).expect("a request").kind;
        if matches!(kind, Some(RequestKind::Locate(_))) {
            self.located.lock().unwrap().insert(node.to_owned());
        }
        let sent = self.network.request(node, body);
        async move {
            if matches!(kind, Some(RequestKind::Write(_))) {
                sleep(SOON).await;
            }
            sent.await
        }
        .boxed()
    }
}

#[test]
fn other_nodes_are_not_asked_while_one_is_only_slow() {
    runtime().block_on(async {
        let silenced = Silenced::start(1, Grouping::Never).await;
        silenced.cluster.network.heal();
        let slow = Arc::new(Slow { network: client(&silenced.cluster), located: Mutex::default() });
        let network: Arc<dyn Network> = Arc::new(slow.clone());
        let file = RangeFile::open(network, "t", ClientOptions::default()).await.expect("a file");
        file.buckets().await;
        slow.located.lock().unwrap().clear();
        let began = Instant::now();
        file.write(WriteMode::Upsert, &rows(&[7], "y")).await.expect("written");
        assert!(began.elapsed() >= SOON);
        let image = file.image();
        let owner = image.owner(&bound(&file, 7)).expect("an owner");
        assert_eq!(*slow.located.lock().unwrap(), BTreeSet::from([owner.node.clone()]));
    });
}
