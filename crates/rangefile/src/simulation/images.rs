//! Clients whose images are hundreds of splits old, and how many requests it takes to correct them.

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

/// Whether the nodes have heard of the splits of others, or each knows its own only.
#[test]
fn an_image_that_is_hundreds_of_splits_old_is_corrected_by_few_requests() {
    for (is_ascending, is_announced) in [(false, true), (false, false), (true, true), (true, false)] {
        runtime().block_on(async {
            let mut grown = Grown::start(&ids(is_ascending), CAPACITY, is_announced).await;
            assert!(grown.buckets > 200, "{} buckets", grown.buckets);
            let mut before = grown.cluster.network.sent("stale");
            let mut worst = 0;
            for id in [0, ROWS / 3, ROWS - 1] {
                let stale = grown.stale();
                let found = stale.get(bound(&stale, id)).await.expect("a row");
                assert_eq!(pairs(&found), [(id, "x".to_owned())]);
                worst = worst.max(grown.sent(&mut before));
            }
            // One after another, by the same client.
            let stale = grown.stale();
            let mut sum = 0;
            for id in 0..ROWS {
                assert_eq!(stale.get(bound(&stale, id)).await.expect("a row").num_rows(), 1);
                let sent = grown.sent(&mut before);
                (worst, sum) = (worst.max(sent), sum + sent);
            }
            assert!(worst <= REQUESTS_OF_KEY_MAX, "{worst} requests for a key");
            assert!(sum <= ROWS as u64 + grown.buckets * NODES as u64, "{sum} requests for all keys");
            let all: Vec<i64> = (0..ROWS).collect();
            // Of each bucket, at most what a key takes.
            let requests_max = grown.buckets * REQUESTS_OF_KEY_MAX;
            let mut scanned = Vec::new();
            for order in [Order::Key, Order::Any] {
                let mut found = scan(&grown.stale(), &ScanOptions { order, ..ScanOptions::default() }).await;
                found.sort_unstable();
                assert_eq!(found, all);
                scanned.push(grown.sent(&mut before));
            }
            assert_eq!(grown.stale().count(&Interval::ALL).await.expect("a number"), ROWS as u64);
            let counted = grown.sent(&mut before);
            let stale = grown.stale();
            stale.write(WriteMode::Upsert, &rows(&all, "y")).await.expect("written");
            let written = grown.sent(&mut before);
            let found = stale.get(bound(&stale, 7)).await.expect("a row");
            assert_eq!(pairs(&found), [(7, "y".to_owned())]);
            eprintln!(
                "ascending {is_ascending}, announced {is_announced}: {} buckets; requests: {worst} at most for a key, \
                 {sum} for all keys one by one, {scanned:?} for scans, {counted} for a count, {written} for a write",
                grown.buckets
            );
            for requests in scanned.into_iter().chain([counted, written]) {
                assert!(requests <= requests_max, "{requests} requests for {} buckets", grown.buckets);
            }
        });
    }
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
