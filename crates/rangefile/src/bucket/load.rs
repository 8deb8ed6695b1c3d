//! What a bucket is asked for.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::request::BucketLoad;

/// Requests that a bucket has answered, and their rows.
#[derive(Debug, Default)]
pub(crate) struct Load {
    reads: AtomicU64,
    read_rows: AtomicU64,
    writes: AtomicU64,
    written_rows: AtomicU64,
    /// Rows that scans have copied one by one because several runs have keys between each other's, since the runs were last
    /// merged for that.
    copied_rows: AtomicU64,
}

impl Load {
    /// A request that reads. Its rows may come later.
    pub(crate) fn read(&self) {
        self.reads.fetch_add(1, Relaxed);
    }

    pub(crate) fn read_rows(&self, rows: usize) {
        self.read_rows.fetch_add(rows as u64, Relaxed);
    }

    pub(crate) fn written(&self, rows: u64) {
        self.writes.fetch_add(1, Relaxed);
        self.written_rows.fetch_add(rows, Relaxed);
    }

    pub(crate) fn copied_rows(&self, rows: u64) {
        self.copied_rows.fetch_add(rows, Relaxed);
    }

    /// Begins to count the rows that scans have copied one by one again, if they are at least this many. Returns whether they
    /// are.
    pub(crate) fn reset_copied_rows_if_at_least(&self, least: u64) -> bool {
        let enough = |rows: u64| (rows >= least).then_some(0);
        self.copied_rows.fetch_update(Relaxed, Relaxed, enough).is_ok()
    }

    /// Adds that of another bucket.
    pub(crate) fn add(&self, other: &Self) {
        let BucketLoad { reads, read_rows, writes, written_rows } = other.now();
        self.reads.fetch_add(reads, Relaxed);
        self.read_rows.fetch_add(read_rows, Relaxed);
        self.writes.fetch_add(writes, Relaxed);
        self.written_rows.fetch_add(written_rows, Relaxed);
    }

    pub(crate) fn now(&self) -> BucketLoad {
        BucketLoad {
            reads: self.reads.load(Relaxed),
            read_rows: self.read_rows.load(Relaxed),
            writes: self.writes.load(Relaxed),
            written_rows: self.written_rows.load(Relaxed),
        }
    }
}
