//! Prints how long it takes to open a database whose node was killed, and what commits cost, with redb's quick repair and
//! without it. Nothing is checked but that everything is there. With nothing else on the machine:
//!
//!     cargo test --release -p lightship-rangefile --lib -- reopening --ignored --nocapture
//!
//! `LIGHTSHIP_RECORDS=2000000` is the number of records of 100 bytes.

use std::path::Path;
use std::time::{Duration, Instant};

use super::commit::{Job, write};
use super::*;
use crate::request::BlockRecord;

/// Of a block, as runs have them.
const BLOCK_BYTES: usize = 250 << 10;
const RECORD_BYTES: usize = 100;
/// Blocks of a commit that ends a merge.
const TOGETHER: usize = 32;
/// Commits of one small run, which are measured.
const SMALL: usize = 300;

fn database(path: &Path) -> Database {
    Database::builder().set_cache_size(CACHE_BYTES).create(path).unwrap()
}

fn put_run(run: u64, blocks: Vec<Vec<u8>>) -> Change {
    let block = BlockRecord { first: vec![1; 9], rows: 2500, bytes: BLOCK_BYTES as u64 };
    let record = RunRecord { blocks: vec![block; blocks.len()], last: vec![2; 9], ..RunRecord::default() };
    Change::PutRun(1, run, Box::new(record), blocks)
}

/// Copies a file, and drops the copy from the cache of the system.
fn copy_cold(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap();
    let file = std::fs::File::open(to).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

#[test]
#[ignore = "prints times"]
fn reopening_after_a_kill() {
    let records: usize =
        std::env::var("LIGHTSHIP_RECORDS").map_or(2_000_000, |records| records.parse().unwrap());
    let blocks = records * RECORD_BYTES / BLOCK_BYTES;
    let mut random = fastrand::Rng::with_seed(1);
    for is_quick in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let open = database(&path);
        load(&open, is_quick).unwrap();
        let commit = |changes: Vec<Change>| {
            let began = Instant::now();
            write(&open, &[Job::of(changes)], is_quick).unwrap();
            began.elapsed()
        };
        let bucket = BucketRecord::default();
        commit(vec![Change::PutBucket(1, Box::new(bucket))]);
        let mut block = |bytes: usize| (0..bytes).map(|_| random.u8(..)).collect::<Vec<u8>>();
        let whole = block(BLOCK_BYTES);
        let large: Vec<Duration> = (0..blocks.div_ceil(TOGETHER))
            .map(|run| commit(vec![put_run(run as u64, vec![whole.clone(); TOGETHER])]))
            .collect();
        let small: Vec<Duration> =
            (0..SMALL).map(|run| commit(vec![put_run((1 << 32) + run as u64, vec![block(1000)])])).collect();
        // As a kill leaves it: everything is committed, nothing is closed.
        let copy = folder.path().join("copy");
        let mut opened = [Vec::new(), Vec::new()];
        for is_cold in [0, 1, 0, 1] {
            copy_cold(&path, &copy);
            if is_cold == 0 {
                std::fs::read(&copy).unwrap();
            }
            let began = Instant::now();
            let database = database(&copy);
            let stored = load(&database, is_quick).unwrap();
            opened[is_cold].push(began.elapsed());
            assert_eq!(stored.buckets[0].runs.len(), blocks.div_ceil(TOGETHER) + SMALL);
        }
        let bytes = std::fs::metadata(&path).unwrap().len() >> 20;
        let [cached, cold] = opened.map(median);
        let (large, small) = (median(large), median(small));
        eprintln!(
            "{records} records, {bytes} MiB, quick repair {is_quick}: opened in {cached:.0} ms, {cold:.0} ms from the \
             disk; commits of 8 MiB {large:.1} ms, of 1 KB {small:.2} ms (medians)"
        );
    }
}
