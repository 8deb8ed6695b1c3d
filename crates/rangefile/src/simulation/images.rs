//! How many requests operations of clients take.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use tokio::sync::watch;
use tokio::time::sleep;

use super::cluster::{Cluster, bound};
use super::histories::settle;
use super::{pairs, rows, runtime};
use crate::key::Interval;
use crate::network::Network;
use crate::request::WriteMode;
use crate::{ClientOptions, Grouping, Order, RangeFile, ScanOptions};

const NODES: usize = 3;
const ROWS: i64 = 1200;
const CAPACITY: u64 = 6;
/// For one key: a refusal of each node, and the answer of the owner.
const REQUESTS_OF_KEY_MAX: u64 = NODES as u64 + 1;

/// A file that has split many times, and clients that know only its first bucket.
struct Grown {
    cluster: Cluster,
    stale: Vec<RangeFile>,
    buckets: u64,
}

fn network(cluster: &Cluster, name: &str) -> Arc<dyn Network> {
    cluster.network.from(name, watch::channel(true).1)
}

impl Grown {
    async fn start(ids: &[i64], capacity: u64, is_announced: bool) -> Self {
        let mut cluster = Cluster::new(NODES, 1, capacity);
        for node in 0..NODES {
            cluster.start(node, node as u64 + 1).await;
        }
        cluster.network.set_announced(is_announced);
        let (definition, options) = (cluster.network.definition(), ClientOptions::default());
        let file = RangeFile::create(network(&cluster, "writer"), definition, options).await.expect("a file");
        let mut stale = Vec::new();
        for _ in 0..12 {
            stale.push(cluster.client("stale", Grouping::Never).await);
        }
        for ids in ids.chunks(24) {
            file.write(WriteMode::Insert, &rows(ids, "x")).await.expect("written");
        }
        settle(&cluster).await;
        sleep(Duration::from_secs(10)).await;
        file.buckets().await;
        let buckets = file.image().owners().count() as u64;
        Self { cluster, stale, buckets }
    }

    fn stale(&mut self) -> RangeFile {
        let stale = self.stale.pop().expect("a client");
        assert_eq!(stale.image().owners().count(), 1);
        stale
    }

    /// The requests that stale clients have sent since `before`.
    fn sent(&self, before: &mut u64) -> u64 {
        let sent = self.cluster.network.sent("stale");
        sent - std::mem::replace(before, sent)
    }
}

async fn scan(file: &RangeFile, options: &ScanOptions) -> Vec<i64> {
    let scanned = file.scan(Interval::ALL, options).expect("a scan");
    let rows: Vec<_> = scanned.rows.try_collect().await.expect("rows");
    rows.iter().flat_map(pairs).map(|(id, _)| id).collect()
}

fn ids(is_ascending: bool) -> Vec<i64> {
    let mut ids: Vec<i64> = (0..ROWS).collect();
    if !is_ascending {
        fastrand::Rng::with_seed(1).shuffle(&mut ids);
    }
    ids
}

#[test]
fn a_scan_with_a_limit_asks_few_buckets() {
    runtime().block_on(async {
        let grown = Grown::start(&ids(false)[..300], CAPACITY, true).await;
        assert!(grown.buckets > 40, "{} buckets", grown.buckets);
        for (grouping, order) in [Grouping::Never, Grouping::Auto]
            .into_iter()
            .flat_map(|grouping| [Order::Key, Order::Any].map(|order| (grouping, order)))
        {
            let file = grown.cluster.client("limited", grouping).await;
            file.buckets().await;
            for limit in [1, 5, 20] {
                let options = ScanOptions { order, limit: Some(limit), ..ScanOptions::default() };
                let (sent, grouped) =
                    (grown.cluster.network.sent("limited"), grown.cluster.network.grouped());
                assert_eq!(scan(&file, &options).await.len() as u64, limit);
                // A bucket has half of its capacity at least, or its neighbour has, and twice as many are asked each time.
                let (sent, grouped) =
                    (grown.cluster.network.sent("limited") - sent, grown.cluster.network.grouped() - grouped);
                assert!(sent + grouped <= 3 + 2 * limit, "{sent} and {grouped} for {limit} rows, {order:?}");
            }
        }
    });
}
