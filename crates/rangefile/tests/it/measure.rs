//! Prints times of requests over real sockets; nothing is checked but the answers. All nodes and the client are in this
//! process. In release mode, with nothing else on the machine:
//!
//!     cargo test --release -p lightship-rangefile --test it measure -- --ignored --nocapture

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use lightship_rangefile::{Capacity, ClientOptions, Grouping, Interval, RangeFile, ScanOptions, WriteMode};

use crate::sockets::Sockets;
use crate::support::{key, options, rows, until_settled};

/// Rounds, in which the ways alternate.
const ROUNDS: usize = 21;
/// Rows of the file, and about their bytes.
const SIZES: [(i64, usize); 6] =
    [(410, 100), (820, 100), (6_500, 100), (52_000, 100), (6_500, 400), (6_500, 1600)];
/// The most rows of a bucket.
const CAPACITY: u64 = 100;

fn median(times: &mut [Duration]) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

/// The time of all rows with keys in some intervals.
async fn scan_time(file: &RangeFile, intervals: &[Interval], expected: usize) -> Duration {
    let began = Instant::now();
    let scanned = file.scan_all(intervals, &ScanOptions::default()).unwrap();
    let batches: Vec<_> = scanned.rows.try_collect().await.unwrap();
    assert_eq!(batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), expected);
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints times"]
async fn counts_and_scans_of_many_buckets() {
    let ways = [
        ("direct", Grouping::Never),
        ("nodes", Grouping::Always { first: 16, fan_out: 16 }),
        ("one node", Grouping::Always { first: 1, fan_out: 16 }),
        ("tree of 4", Grouping::Always { first: 4, fan_out: 4 }),
        ("auto", Grouping::Auto),
    ];
    eprintln!("nodes, buckets, bytes of a row, what, way: milliseconds, median of {ROUNDS}");
    for nodes in [4, 16] {
        let sockets = Sockets::start(nodes).await;
        for (rows_of_file, row_bytes) in SIZES {
            let name = format!("t{rows_of_file}x{row_bytes}");
            let file = sockets.create(&name, Capacity::Records(CAPACITY)).await;
            let text = "x".repeat(row_bytes - 20);
            for part in 0..8 {
                let ids = (part..rows_of_file).step_by(8);
                file.write(WriteMode::Insert, &rows(ids, &text)).await.unwrap();
            }
            until_settled(&file, CAPACITY).await;
            let mut clients = Vec::new();
            for (way, grouping) in ways {
                let client = sockets.open(&name, ClientOptions { grouping, ..options() }, false).await;
                client.buckets().await;
                clients.push((way, client));
            }
            let bounds: Vec<_> = file.image().owners().map(|(interval, _)| interval).collect();
            let points: Vec<_> = (0..bounds.len() as i64)
                .map(|bucket| Interval::of_key(&key(&file, bucket * rows_of_file / bounds.len() as i64)))
                .collect();
            let mut times: BTreeMap<(usize, usize), Vec<Duration>> = BTreeMap::new();
            for _ in 0..ROUNDS {
                for (way, (_, client)) in clients.iter().enumerate() {
                    let began = Instant::now();
                    assert_eq!(client.count(&Interval::ALL).await.unwrap(), rows_of_file as u64);
                    times.entry((0, way)).or_default().push(began.elapsed());
                    let points_time = scan_time(client, &points, points.len()).await;
                    times.entry((1, way)).or_default().push(points_time);
                    let all = scan_time(client, &[Interval::ALL], rows_of_file as usize).await;
                    times.entry((2, way)).or_default().push(all);
                }
            }
            for ((what, way), times) in &mut times {
                let what = ["count", "a row of each", "all rows"][*what];
                let (buckets, way) = (bounds.len(), clients[*way].0);
                eprintln!(
                    "{nodes:>2} {buckets:>5} {row_bytes:>5} {what:>14} {way:>10} {:9.2}",
                    median(times)
                );
            }
        }
    }
}

/// A row, and a key that no row has: what it costs to read a row.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints times"]
async fn single_rows() {
    let sockets = Sockets::start(4).await;
    let file = sockets.create("t", Capacity::Bytes(64 << 20)).await;
    let text = "x".repeat(80);
    let count = 3_000_000;
    for start in (0..count).step_by(50_000) {
        // Every other key.
        let ids = (start..start + 50_000).map(|id| id * 2);
        file.write(WriteMode::Insert, &rows(ids, &text)).await.unwrap();
    }
    let client = sockets.open("t", options(), false).await;
    client.buckets().await;
    let mut random = fastrand::Rng::with_seed(7);
    for (what, keys) in [("of 3000000", count), ("of 300000", 300_000), ("of 2000", 2000)] {
        let mut times: [Vec<Duration>; 2] = Default::default();
        for _ in 0..4000 {
            for (is_missing, times) in (0..).zip(&mut times) {
                let id = random.i64(0..keys) * 2 + is_missing;
                let key = key(&client, id);
                let began = Instant::now();
                let found = client.get(key).await.unwrap();
                times.push(began.elapsed());
                assert_eq!(found.num_rows() as i64, 1 - is_missing);
            }
        }
        let [found, missing] = &mut times;
        let (found, missing) = (median(found) * 1e3, median(missing) * 1e3);
        eprintln!("one row {what}: {found:.1} us, no row {missing:.1} us, ratio {:.2}", found / missing);
    }
}
