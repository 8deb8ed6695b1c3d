//! A node whose disk is full: what it has is read, and it stores again once there is room, without a restart.
//! It needs to mount a file system in memory, as root; where it can't, it says why.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lightship_rangefile::{
    Capacity, Definition, Interval, Node, RangeError, RangeFile, ScanOptions, WriteMode,
};
use tokio::runtime::Runtime;

use crate::support::{InProcess, all, options, rows, scan, schema, until_settled, upsert};

const NAME: &str = "node:1";
const ROWS: i64 = 20_000;
const CAPACITY: u64 = 4000;
const BLOCK: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// A small file system. It is unmounted when it is dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn new() -> Result<Self, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let mount = ["-t", "tmpfs", "-o", "size=64m", "none"];
        let mounted = Command::new("mount").args(mount).arg(folder.path()).output();
        let mounted = mounted.map_err(|error| error.to_string())?;
        let why = || String::from_utf8_lossy(&mounted.stderr).into_owned();
        mounted.status.success().then_some(Self(folder)).ok_or_else(why)
    }

    fn filler(&self) -> PathBuf {
        self.0.path().join("filler")
    }

    /// Takes all its space.
    fn fill(&self) {
        let mut filler = File::create(self.filler()).expect("a file");
        let mut piece = vec![7; BLOCK];
        while !piece.is_empty() {
            match filler.write_all(&piece) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => piece.truncate(piece.len() / 2),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn free(&self) {
        std::fs::remove_file(self.filler()).expect("removed");
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Starts a node with a network of its own, does something with it, and ends it with all that it does in the background,
/// as the end of its process would.
fn with_node<T>(small: &Small, seed: u64, work: impl AsyncFnOnce(Arc<InProcess>) -> T) -> T {
    let runtime = Runtime::new().expect("a runtime");
    let done = runtime.block_on(async {
        let network = start(small, seed).await;
        let done = work(network.clone()).await;
        // Each has the other.
        network.set(NAME, None);
        done
    });
    runtime.shutdown_timeout(PATIENCE);
    done
}

async fn start(small: &Small, seed: u64) -> Arc<InProcess> {
    let network = Arc::new(InProcess::default());
    let folder = small.0.path().join("range");
    let deadline = Instant::now() + PATIENCE;
    let node = loop {
        match Node::open(&folder, NAME, network.clone(), seed) {
            Ok(node) => break node,
            // The thread that commits for the last one may still have to end.
            Err(RangeError::InUse(_)) if Instant::now() < deadline => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    };
    network.set(NAME, Some(node.clone()));
    node.recover().await;
    network
}

/// Scans the file until `is_over`, at least once. Returns how often.
async fn read_until(network: Arc<InProcess>, is_over: Arc<AtomicBool>, expected: Vec<(i64, String)>) -> u32 {
    let file = RangeFile::open(network, "t", options()).await.unwrap();
    let mut scans = 0;
    loop {
        let found = scan(&file, Interval::ALL, &ScanOptions::default()).await.unwrap();
        assert!(found.len() >= expected.len() && found[..expected.len()] == expected, "{}", found.len());
        scans += 1;
        if is_over.load(Ordering::Relaxed) {
            return scans;
        }
    }
}

#[test]
fn a_node_whose_disk_is_full_is_read_and_stores_again_when_there_is_room() {
    let skipped = |why| eprintln!("skipped: no tmpfs can be mounted here: {why}");
    let Ok(small) = Small::new().map_err(skipped) else { return };
    let definition = Definition::new("t", &schema(), &["id".into()], Capacity::Records(CAPACITY)).unwrap();
    let expected: Vec<(i64, String)> = (0..ROWS).map(|id| (id, format!("{id}a"))).collect();
    with_node(&small, 1, async |network| {
        let file = RangeFile::create(network, &definition, options()).await.unwrap();
        for start in (0..ROWS).step_by(2000) {
            upsert(&file, start..start + 2000, "a").await;
        }
        assert!(all(&file).await == expected);
        until_settled(&file, CAPACITY).await;
    });
    // The next node has nothing in its memory.
    small.fill();
    let found = with_node(&small, 2, async |network| {
        let found = write_until_full(network.clone(), &expected).await;
        small.free();
        let file = RangeFile::open(network, "t", options()).await.unwrap();
        upsert(&file, 0..2000, "c").await;
        let again = all(&file).await;
        assert_eq!((again.len(), again[0].1.as_str()), (found.len(), "0c"));
        again
    });
    // And everything is there after a restart.
    with_node(&small, 3, async |network| {
        let file = RangeFile::open(network, "t", options()).await.unwrap();
        assert!(all(&file).await == found);
    });
}

/// Writes until the disk is full, and once more, while others read. Returns what is there then.
async fn write_until_full(network: Arc<InProcess>, expected: &[(i64, String)]) -> Vec<(i64, String)> {
    let file = RangeFile::open(network.clone(), "t", options()).await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let reading = tokio::spawn(read_until(network, is_over.clone(), expected.to_vec()));
    let mut new = 0;
    let failed = loop {
        // There is room in its file at first.
        let ids = ROWS + new..ROWS + new + 2000;
        match file.write(WriteMode::Upsert, &rows(ids, "b")).await {
            Ok(_) => new += 2000,
            Err(error) => break error,
        }
    };
    assert!(failed.to_string().contains("No space left on device"), "{failed}");
    let found = all(&file).await;
    // Some rows of the last write may be there too, if they were of two buckets.
    assert!(found.len() as i64 >= ROWS + new && found[..ROWS as usize] == *expected, "{}", found.len());
    let again = file.write(WriteMode::Upsert, &rows(0..2000, "b")).await;
    again.expect_err("the disk is still full");
    assert!(all(&file).await == found);
    is_over.store(true, Ordering::Relaxed);
    let scans = reading.await.expect("all scans succeed");
    eprintln!("{scans} scans while writes failed");
    found
}
