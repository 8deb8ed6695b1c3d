//! Files that grow over nodes, some of which stop.

use std::collections::BTreeSet;
use std::time::Duration;

use lightship_rangefile::{Capacity, ClientOptions, RangeError, RangeFile, WriteMode};

use crate::support::{Cluster, all, expected, key, rows, until_buckets, upsert};

#[tokio::test(flavor = "multi_thread")]
async fn a_growing_file_spreads_over_the_nodes() {
    let cluster = Cluster::start(3).await;
    let file = cluster.create("t", Capacity::Records(50)).await;
    let mut random = fastrand::Rng::with_seed(15);
    let mut ids: Vec<i64> = (0..2000).collect();
    random.shuffle(&mut ids);
    for part in ids.chunks(100) {
        file.write(WriteMode::Insert, &rows(part.iter().copied(), "")).await.unwrap();
    }
    until_buckets(&file, 40).await;
    let (buckets, failed) = file.buckets().await;
    assert!(failed.is_empty());
    let nodes: BTreeSet<&str> = buckets.iter().map(|bucket| bucket.node.as_str()).collect();
    assert_eq!(nodes.len(), 3, "{nodes:?}");
    assert_eq!(all(&file).await, expected(0..2000, ""));
    // A client that knows nothing of it.
    assert_eq!(all(&cluster.open("t").await).await, expected(0..2000, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_and_writers_go_on_while_buckets_split() {
    let cluster = Cluster::start(3).await;
    let file = cluster.create("t", Capacity::Records(20)).await;
    let stale = cluster.open("t").await;
    upsert(&file, 0..10, "").await;
    let writing = {
        let file = file.clone();
        tokio::spawn(async move {
            for id in 10..600 {
                file.write(WriteMode::Insert, &rows([id], "")).await.unwrap();
            }
        })
    };
    while !writing.is_finished() {
        // What was acknowledged before the scan began is in it, in order and once.
        let before = stale.count(&lightship_rangefile::Interval::ALL).await.unwrap();
        let rows = crate::support::scan(&stale, lightship_rangefile::Interval::ALL, &Default::default())
            .await
            .unwrap();
        assert!(rows.len() as u64 >= before, "{} of {before}", rows.len());
        assert!(rows.iter().zip(0..).all(|((id, _), expected)| *id == expected));
    }
    writing.await.unwrap();
    assert_eq!(all(&file).await, expected(0..600, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_is_an_error_that_names_its_keys() {
    let cluster = Cluster::start(2).await;
    let file = cluster.create("t", Capacity::Records(50)).await;
    upsert(&file, 0..500, "").await;
    until_buckets(&file, 8).await;
    let hasty = ClientOptions { patience: Duration::from_secs(1), ..ClientOptions::default() };
    let hasty = RangeFile::open(cluster.client(), "t", hasty).await.unwrap();
    hasty.buckets().await;
    cluster.stop(1);
    let error = hasty.count(&lightship_rangefile::Interval::ALL).await.unwrap_err();
    assert!(matches!(&error, RangeError::Missing { .. }), "{error}");
    cluster.begin(1).await;
    assert_eq!(all(&file).await, expected(0..500, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_while_it_splits_loses_nothing() {
    for seed in 0..6 {
        let cluster = Cluster::start(3).await;
        let file = cluster.create("t", Capacity::Records(30)).await;
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..10 {
            upsert(&file, (0..100).map(|id| id * 10 + round), "").await;
            let node = random.usize(0..3);
            cluster.stop(node);
            cluster.begin(node).await;
        }
        assert_eq!(all(&file).await, expected(0..1000, ""), "seed {seed}");
        assert_eq!(file.get(key(&file, 7)).await.unwrap(), rows([7], ""));
    }
}
