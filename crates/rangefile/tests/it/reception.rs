//! The ways to receive the rows of many buckets, over sockets.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use lightship_rangefile::{
    Capacity, ClientOptions, Interval, Order, RangeError, RangeFile, ReceptionMode, ReceptionStrategy,
    ScanOptions, WriteMode,
};
use lightship_transport::net::{PushAttempt, PushListener, PushToken, push_connect};
use lightship_transport::proto::reception::Refusal;

use crate::sockets::Sockets;
use crate::support::{Cluster, expected, options, rows, scan, until_buckets, upsert};

/// Every way, with every order that it has.
fn ways() -> Vec<ScanOptions> {
    let way = |reception, order, announced| ScanOptions {
        reception,
        order,
        announced,
        budget_bytes: 8 << 20,
        ..ScanOptions::default()
    };
    vec![
        way(ReceptionMode::Auto, Order::Key, false),
        way(ReceptionMode::Auto, Order::Any, false),
        way(ReceptionMode::Pull { connections: 3 }, Order::Key, false),
        way(ReceptionMode::Pull { connections: 3 }, Order::Any, false),
        way(ReceptionMode::Auto, Order::Key, true),
        way(ReceptionMode::Auto, Order::Any, true),
        way(ReceptionMode::Push, Order::Any, false),
        way(ReceptionMode::BackOff, Order::Any, false),
    ]
}

/// The rows of a scan in the order of their keys, which is checked if the scan has it.
async fn in_order(file: &RangeFile, options: &ScanOptions) -> Vec<(i64, String)> {
    let reading = scan(file, Interval::ALL, options);
    let mut rows = tokio::time::timeout(Duration::from_secs(60), reading).await.expect("in time").unwrap();
    if options.order == Order::Any {
        rows.sort();
    }
    assert!(rows.is_sorted(), "{options:?}");
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_returns_all_rows_within_the_budget() {
    let sockets = Sockets::start(3).await;
    let file = sockets.create("t", Capacity::Records(50)).await;
    upsert(&file, 0..2000, "").await;
    until_buckets(&file, 40).await;
    for way in ways() {
        for shared_memory in [false, true] {
            // One that knows where all buckets are, and one that has to find them.
            let knowing = sockets.open("t", options(), shared_memory).await;
            knowing.buckets().await;
            let stale = sockets.open("t", options(), shared_memory).await;
            for file in [knowing, stale] {
                let scanned = file.scan(Interval::ALL, &way).unwrap();
                let read: usize =
                    scanned.rows.map(|rows| rows.unwrap().num_rows()).fold(0, async |a, b| a + b).await;
                assert_eq!(read, 2000, "{way:?}");
                let report = scanned.report.get().unwrap();
                assert!(report.parts >= 40 && report.used_bytes_peak <= way.budget_bytes, "{report:?}");
                assert_eq!(report.rows, 2000);
                let is_pulled = matches!(report.strategy, ReceptionStrategy::Pull { .. });
                assert_eq!(is_pulled, !matches!(way.reception, ReceptionMode::Push | ReceptionMode::BackOff));
                assert_eq!(in_order(&file, &way).await, expected(0..2000, ""), "{way:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_goes_on_while_buckets_split() {
    let sockets = Sockets::start(3).await;
    let file = sockets.create("t", Capacity::Records(20)).await;
    upsert(&file, 0..20, "").await;
    let writing = {
        let file = file.clone();
        tokio::spawn(async move {
            for id in 20..600 {
                file.write(WriteMode::Insert, &rows([id], "")).await.unwrap();
            }
        })
    };
    let mut ways = ways().into_iter().cycle();
    let mut scans = 0;
    while !writing.is_finished() || scans < 8 {
        let way = ways.next().unwrap();
        let stale = sockets.open("t", options(), false).await;
        let before = file.count(&Interval::ALL).await.unwrap();
        let found = in_order(&stale, &way).await;
        assert!(found.len() as u64 >= before, "{} of {before}: {way:?}", found.len());
        assert_eq!(found, expected(0..found.len() as i64, ""), "{way:?}");
        scans += 1;
    }
    writing.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_one_connection_hears_forty_buckets() {
    let sockets = Sockets::start(2).await;
    let file = sockets.create("t", Capacity::Records(50)).await;
    upsert(&file, 0..2000, "").await;
    until_buckets(&file, 40).await;
    let one = ClientOptions { connections_max: 1, ..options() };
    for reception in [ReceptionMode::Push, ReceptionMode::BackOff] {
        let file = sockets.open("t", one, false).await;
        let way = ScanOptions { reception, order: Order::Any, ..ScanOptions::default() };
        let scanned = file.scan(Interval::ALL, &way).unwrap();
        let read: Vec<_> = scanned.rows.try_collect().await.unwrap();
        assert_eq!(read.iter().map(arrow_array::RecordBatch::num_rows).sum::<usize>(), 2000);
        let report = scanned.report.get().unwrap();
        assert!(report.refused > 0, "{report:?}");
    }
}

#[tokio::test]
async fn only_those_with_the_token_connect() {
    let listener = PushListener::bind(4).unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port()));
    let (token, limit) = (listener.token(), Duration::from_secs(10));
    let mut connections = listener.connections();
    let refusing = tokio::spawn(async move {
        while let Some((part, connection)) = connections.next().await {
            assert_eq!(part, 7);
            connection.refuse(Refusal::Busy);
        }
    });
    let other = PushToken::random().unwrap();
    let attempt = push_connect(address, other, 7, limit).await;
    assert!(matches!(attempt, PushAttempt::Unreachable), "{attempt:?}");
    let attempt = push_connect(address, token, 7, limit).await;
    assert!(matches!(attempt, PushAttempt::Refused(Refusal::Busy)), "{attempt:?}");
    refusing.abort();
    let _ = refusing.await;
    let attempt = push_connect(address, token, 7, limit).await;
    assert!(matches!(attempt, PushAttempt::Unreachable), "{attempt:?}");
}

#[tokio::test]
async fn a_node_connects_only_to_the_address_of_the_request() {
    // Requests within a process have no address, as those over Unix sockets.
    let cluster = Cluster::start(1).await;
    let file = cluster.create("t", Capacity::default()).await;
    upsert(&file, 0..10, "").await;
    let way = ScanOptions { reception: ReceptionMode::Push, order: Order::Any, ..ScanOptions::default() };
    let error = scan(&file, Interval::ALL, &way).await.unwrap_err();
    assert!(error.to_string().contains("need a TCP connection to the node"), "{error}");
    // Announcements are not needed.
    let way = ScanOptions { announced: true, ..ScanOptions::default() };
    assert_eq!(scan(&file, Interval::ALL, &way).await.unwrap(), expected(0..10, ""));
    let way = ScanOptions { reception: ReceptionMode::Push, ..ScanOptions::default() };
    let error = scan(&file, Interval::ALL, &way).await.unwrap_err();
    assert!(matches!(error, RangeError::Definition(_)), "{error}");
}

/// Rows of about 1 KB.
async fn large(sockets: &Sockets) -> RangeFile {
    let file = sockets.create("t", Capacity::Records(4000)).await;
    upsert(&file, 0..16_000, &"x".repeat(1000)).await;
    until_buckets(&file, 4).await;
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_half_way_is_read_on() {
    let mut sockets = Sockets::start(2).await;
    let known = large(&sockets).await;
    let (buckets, _) = known.buckets().await;
    assert_eq!(buckets.iter().map(|bucket| &bucket.node).collect::<BTreeSet<_>>().len(), 2);
    for mut way in ways() {
        way.budget_bytes = 4 << 20;
        let file = sockets.open("t", options(), false).await;
        let mut scanned = file.scan(Interval::ALL, &way).unwrap();
        let mut found = scanned.rows.next().await.unwrap().unwrap().num_rows();
        for node in 0..2 {
            sockets.stop(node).await;
            sockets.begin(node).await;
        }
        while let Some(rows) = scanned.rows.next().await {
            found += rows.unwrap().num_rows();
        }
        let report = scanned.report.get().unwrap();
        assert_eq!(found, 16_000, "{way:?}: {report:?}");
        assert!(report.lost > 0 && report.used_bytes_peak <= 4 << 20, "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_node_that_is_down_are_named() {
    let mut sockets = Sockets::start(2).await;
    let file = sockets.create("t", Capacity::Records(50)).await;
    upsert(&file, 0..500, "").await;
    until_buckets(&file, 8).await;
    sockets.stop(1).await;
    for way in ways() {
        let hasty = ClientOptions { patience: Duration::from_secs(1), ..options() };
        let hasty = sockets.open("t", hasty, false).await;
        let error = scan(&hasty, Interval::ALL, &way).await.unwrap_err();
        assert!(matches!(&error, RangeError::Missing { .. }), "{way:?}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_sends_nothing_holds_up_only_its_own_keys() {
    let mut sockets = Sockets::start(2).await;
    let file = sockets.create("t", Capacity::Records(50)).await;
    upsert(&file, 0..500, "").await;
    crate::support::until_settled(&file, 50).await;
    let (buckets, _) = file.buckets().await;
    // The numbers of rows that buckets tell are about right.
    let lows = buckets.iter().map(|bucket| bucket.low_text.parse().unwrap_or(0));
    let ends = lows.clone().skip(1).chain([500]);
    let rows_of: Vec<_> = lows.zip(ends).map(|(low, end)| expected(low..end, "")).collect();
    let silent = sockets.silence(1).await;
    let is_soon = |began: Instant| began.elapsed() < Duration::from_secs(10);
    for way in ways() {
        let hasty = ClientOptions { patience: Duration::from_millis(500), ..options() };
        let hasty = sockets.open("t", hasty, false).await;
        let began = Instant::now();
        let error = scan(&hasty, Interval::ALL, &way).await.unwrap_err();
        assert!(matches!(&error, RangeError::Missing { .. }), "{way:?}: {error}");
        assert!(is_soon(began), "{way:?}: {:?}", began.elapsed());
        let client = sockets.open("t", options(), false).await;
        let began = Instant::now();
        for (bucket, expected) in buckets.iter().zip(&rows_of).filter(|(bucket, _)| bucket.node != silent) {
            let mut found = scan(&client, bucket.range.clone().into(), &way).await.unwrap();
            found.sort();
            assert_eq!(&found, expected, "{way:?}");
        }
        assert!(is_soon(began), "{way:?}: {:?}", began.elapsed());
    }
    let missing = buckets.iter().find(|bucket| bucket.node == silent).unwrap();
    let hasty = ClientOptions { patience: Duration::from_millis(500), ..options() };
    let hasty = sockets.open("t", hasty, false).await;
    let began = Instant::now();
    let error = hasty.get(missing.range.low.clone()).await.unwrap_err();
    assert!(matches!(&error, RangeError::Missing { .. }) && is_soon(began), "{error}");
    let error = hasty.count(&Interval::ALL).await.unwrap_err();
    assert!(matches!(&error, RangeError::Missing { .. }) && is_soon(began), "{error}");
    let error = hasty.write(WriteMode::Upsert, &rows(0..500, "!")).await.unwrap_err();
    assert!(matches!(&error, RangeError::Missing { .. }) && is_soon(began), "{error}");
}

#[test]
fn a_scan_that_is_dropped_leaves_no_sockets() {
    // In a process of its own, whose sockets are only those of this test.
    let test = ["--ignored", "--exact", "reception::sockets_are_closed"];
    let run = Command::new(std::env::current_exe().unwrap()).args(test).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
    assert!(String::from_utf8_lossy(&run.stdout).contains("1 passed"));
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in a process of its own"]
async fn sockets_are_closed() {
    let sockets = Sockets::start(2).await;
    let file = large(&sockets).await;
    assert_eq!(in_order(&file, &ScanOptions::default()).await.len(), 16_000);
    for way in ways() {
        let before = descriptors();
        let mut scanned =
            file.scan(Interval::ALL, &ScanOptions { budget_bytes: 4 << 20, ..way.clone() }).unwrap();
        assert!(scanned.rows.next().await.unwrap().unwrap().num_rows() > 0);
        drop(scanned);
        let closed = async {
            while descriptors() > before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), closed).await.unwrap_or_else(|_| {
            panic!("{} descriptors, {before} before: {way:?}", descriptors());
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn announcements_tell_where_all_buckets_are() {
    let sockets = Sockets::start(3).await;
    let file = sockets.create("t", Capacity::Records(50)).await;
    let mut stale = Vec::new();
    for _ in 0..5 {
        stale.push(sockets.open("t", options(), false).await);
    }
    upsert(&file, 0..2000, "").await;
    until_buckets(&file, 40).await;
    let way = ScanOptions { announced: true, ..ScanOptions::default() };
    let mut asked = Vec::new();
    for file in stale {
        let scanned = file.scan(Interval::ALL, &way).unwrap();
        let read: Vec<_> = scanned.rows.try_collect().await.unwrap();
        assert_eq!(read.iter().map(arrow_array::RecordBatch::num_rows).sum::<usize>(), 2000);
        asked.push(scanned.report.get().unwrap().asked);
    }
    // A message may be lost, and a bucket may split after it was announced.
    assert!(asked.contains(&0), "{asked:?}");
}
