//! Files that shrink: their buckets merge.

use lightship_rangefile::{Capacity, Interval, WriteMode};

use crate::support::{
    Cluster, all, expected, interval, rows, scan, until_buckets, until_merged, until_settled, upsert,
};

async fn delete(file: &lightship_rangefile::RangeFile, ids: impl IntoIterator<Item = i64>) {
    file.write(WriteMode::Delete, &rows(ids, "")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn buckets_that_shrink_merge() {
    let cluster = Cluster::start(3).await;
    let file = cluster.create("t", Capacity::Records(50)).await;
    upsert(&file, 0..1000, "").await;
    until_buckets(&file, 16).await;
    let stale = cluster.open("t").await;
    let left = |id: &i64| id % 100 == 7;
    delete(&file, (0..1000).filter(|id| !left(id))).await;
    until_merged(&file, 1).await;
    assert_eq!(all(&file).await, expected((0..1000).filter(left), ""));
    // A client that knows only the buckets that are gone.
    assert_eq!(all(&stale).await, expected((0..1000).filter(left), ""));
    // It grows again, and what was deleted does not come back.
    upsert(&stale, (0..1000).filter(|id| id % 2 == 0), "!").await;
    until_buckets(&file, 8).await;
    let now: Vec<_> = (0..1000).filter(|id| left(id) || id % 2 == 0).collect();
    let note = |id: i64| if id % 2 == 0 { "!" } else { "" };
    let now: Vec<_> = now.into_iter().map(|id| (id, format!("{id}{}", note(id)))).collect();
    assert_eq!(all(&file).await, now);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_file_has_one_bucket() {
    let cluster = Cluster::start(2).await;
    let file = cluster.create("t", Capacity::Records(20)).await;
    for round in 0..3 {
        upsert(&file, 0..300, &round.to_string()).await;
        until_buckets(&file, 8).await;
        delete(&file, 0..300).await;
        until_merged(&file, 1).await;
        assert_eq!(all(&file).await, []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_and_writers_go_on_while_buckets_merge() {
    let cluster = Cluster::start(3).await;
    let file = cluster.create("t", Capacity::Records(40)).await;
    upsert(&file, 0..800, "").await;
    until_buckets(&file, 16).await;
    let stale = cluster.open("t").await;
    // Those that end with 0 stay. Those that end with 5 are written again and again.
    let writing = {
        let file = file.clone();
        tokio::spawn(async move {
            for round in 0..20 {
                upsert(&file, (0..800).filter(|id| id % 100 == 5), &format!("-{round}")).await;
            }
        })
    };
    let deleting = {
        let file = file.clone();
        tokio::spawn(async move {
            for part in 0..20 {
                let gone = |id: &i64| id % 100 != 5 && id % 100 != 50;
                delete(&file, (part * 40..(part + 1) * 40).filter(gone)).await;
            }
        })
    };
    let mut is_last = false;
    while !is_last {
        is_last = writing.is_finished() && deleting.is_finished();
        let found = scan(&stale, Interval::ALL, &Default::default()).await.unwrap();
        assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "{found:?}");
        let stay = found.iter().filter(|(id, _)| id % 100 == 50 || id % 100 == 5).count();
        assert_eq!(stay, 16, "{found:?}");
    }
    writing.await.unwrap();
    deleting.await.unwrap();
    let now: Vec<_> = (0..800)
        .filter(|id| id % 100 == 5 || id % 100 == 50)
        .map(|id| (id, if id % 100 == 5 { format!("{id}-19") } else { id.to_string() }))
        .collect();
    // Rows that were replaced count until their runs are merged, so not all buckets need merge.
    until_merged(&file, 12).await;
    assert_eq!(all(&file).await, now);
    assert_eq!(all(&stale).await, now);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_were_given_away_do_not_come_back() {
    let cluster = Cluster::start(1).await;
    let file = cluster.create("t", Capacity::Records(50)).await;
    // The lower bucket keeps the rows that it has given away in its runs until they are merged.
    upsert(&file, 0..51, "").await;
    until_buckets(&file, 2).await;
    delete(&file, 30..51).await;
    upsert(&file, [29], "!").await;
    delete(&file, 5..25).await;
    until_merged(&file, 1).await;
    let now = [expected((0..5).chain(25..29), ""), expected([29], "!")].concat();
    assert_eq!(all(&file).await, now);
    assert_eq!(file.count(&interval(&file, 29, 60)).await.unwrap(), 1);
    cluster.stop(0);
    cluster.begin(0).await;
    assert_eq!(all(&cluster.open("t").await).await, now);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_stop_while_buckets_merge_lose_nothing() {
    for seed in 0..4 {
        let cluster = Cluster::start(3).await;
        let file = cluster.create("t", Capacity::Records(30)).await;
        upsert(&file, 0..500, "").await;
        until_buckets(&file, 12).await;
        let mut random = fastrand::Rng::with_seed(seed);
        for part in 0..10 {
            delete(&file, (part * 50..(part + 1) * 50).filter(|id| id % 100 != 0)).await;
            let node = random.usize(0..3);
            cluster.stop(node);
            cluster.begin(node).await;
        }
        let now = expected((0..500).filter(|id| id % 100 == 0), "");
        assert_eq!(all(&file).await, now, "seed {seed}");
        until_merged(&file, 1).await;
        assert_eq!(all(&file).await, now, "seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn buckets_wait_for_a_neighbour_that_is_down() {
    let cluster = Cluster::start(2).await;
    let file = cluster.create("t", Capacity::Records(50)).await;
    upsert(&file, 0..300, "").await;
    until_settled(&file, 50).await;
    // Both nodes have buckets. Those of the second one shrink, and don't know of it before they are back.
    let (buckets, _) = file.buckets().await;
    assert!(buckets.iter().any(|bucket| bucket.node == Cluster::name(1)));
    cluster.stop(1);
    let here = buckets.iter().filter(|bucket| bucket.node == Cluster::name(0));
    for bucket in here {
        let range = Interval::from(bucket.range.clone());
        let found = scan(&file, range, &Default::default()).await.unwrap();
        delete(&file, found.into_iter().map(|(id, _)| id)).await;
    }
    cluster.begin(1).await;
    delete(&file, 0..299).await;
    until_merged(&file, 1).await;
    let last = scan(&file, Interval::ALL, &Default::default()).await.unwrap();
    assert!(last.iter().all(|(id, _)| *id == 299));
}
