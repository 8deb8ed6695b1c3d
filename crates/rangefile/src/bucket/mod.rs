//! A bucket: the rows of a file whose keys are in one interval, on one node.
//!
//! Its rows are in runs, as in a log-structured merge tree: each commit adds a run, and runs of the same level are
//! merged. Writes that arrive while one is committed are committed together.

mod block;
mod blocks;
mod compact;
mod gather;
mod join;
mod load;
mod merge;
mod overlap;
mod run;
#[cfg(test)]
mod speed;
mod write;

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

pub(crate) use self::block::{KeyedRows, block_rows, decode_block};
pub(crate) use self::blocks::Blocks;
use self::load::Load;
pub(crate) use self::merge::Merge;
pub(crate) use self::run::{BLOCK_ROWS_MAX, Run, RunBuilder};
use self::write::Pending;
use crate::definition::Definition;
use crate::error::{RangeError, Result};
use crate::key::{Interval, Key};
use crate::request::{BucketEntry, BucketRecord};
use crate::split;
use crate::store::{Change, StoredBucket};

/// Writes to a bucket with more than this many times its capacity wait for its split.
const OVERFULL: u64 = 2;
/// The longest wait of a write for a split, which may not succeed.
const SPLIT_WAIT_MAX: Duration = Duration::from_secs(1);

/// See [`Bucket::may_join`].
const NOT_SETTLED: u64 = u64::MAX;

/// Nothing maintains a bucket.
const IDLE: u8 = 0;
/// A task maintains it.
const MAINTAINED: u8 = 1;
/// A task maintains it, and was asked to again since it began.
const ASKED_AGAIN: u8 = 2;

/// What readers of a bucket see. It never changes; a change replaces it.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) range: Interval,
    pub(crate) epoch: u64,
    /// Whether the keys are the bucket's own; otherwise it is still receiving them.
    pub(crate) is_active: bool,
    /// Whether a split has begun, and is not decided.
    pub(crate) is_splitting: bool,
    /// Oldest first.
    pub(crate) runs: Vec<Arc<Run>>,
    /// The number of its rows, once they were counted.
    pub(crate) rows: OnceLock<u64>,
    /// Why it serves nobody, if it is of an old copy of the node's disk.
    conflict: Option<Arc<RangeError>>,
}

impl View {
    /// Fails unless the bucket has all keys of the interval.
    pub(crate) fn check(&self, interval: &Interval) -> Result<()> {
        self.check_current()?;
        if self.is_active && self.range.covers(interval) { Ok(()) } else { Err(RangeError::Moved) }
    }

    /// Fails if the bucket is of an old copy of the node's disk.
    pub(crate) fn check_current(&self) -> Result<()> {
        self.conflict.as_ref().map_or(Ok(()), |conflict| Err(RangeError::clone(conflict)))
    }

    /// Whether it has at most one run, without rows that have moved to another bucket.
    pub(crate) fn is_compact(&self) -> bool {
        self.runs.len() <= 1 && self.runs.iter().all(|run| run.ends_within(&self.range))
    }

    /// Whether merging all runs would remove many rows.
    pub(crate) fn has_many_deletions(&self) -> bool {
        self.runs.iter().map(|run| run.deletions()).sum::<u64>() > self.content().0 / 4
    }

    /// About the bytes of its rows in an interval, as Arrow data.
    pub(crate) fn bytes_of(&self, interval: &Interval) -> u64 {
        self.runs.iter().map(|run| run.bytes_of(interval)).sum()
    }

    /// About its rows and their bytes. Rows that were replaced count until their runs are merged.
    pub(crate) fn content(&self) -> (u64, u64) {
        self.runs
            .iter()
            .map(|run| run.content_below(self.range.high.as_deref()))
            .fold((0, 0), |sum, run| (sum.0 + run.0, sum.1 + run.1))
    }
}

/// What only one task at a time may change.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) record: BucketRecord,
    next_run: u64,
    next_age: u64,
    /// Whether the bucket is no longer there. Nothing of it is stored any more.
    pub(crate) is_removed: bool,
    /// The disk may have another record: a change of it has failed, and may be stored nevertheless, or `record` is not stored
    /// yet. Rows are stored with `record`, so that they are not in a bucket that has given their keys away.
    pub(crate) is_unsure: bool,
}

impl Writer {
    /// Fails if the bucket is no longer there.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_removed { Err(RangeError::Moved) } else { Ok(()) }
    }

    pub(crate) fn take_run(&mut self) -> u64 {
        self.next_run += 1;
        self.next_run - 1
    }

    pub(crate) fn take_age(&mut self) -> u64 {
        self.next_age += 1;
        self.next_age - 1
    }
}

/// A bucket of this node.
pub(crate) struct Bucket {
    pub(crate) id: u64,
    pub(crate) definition: Arc<Definition>,
    pub(crate) blocks: Blocks,
    view: RwLock<Arc<View>>,
    /// See [`View::check_current`]. It stays until the node starts again.
    conflict: OnceLock<Arc<RangeError>>,
    pub(crate) writer: Arc<tokio::sync::Mutex<Writer>>,
    /// Writes that wait for the writer.
    pending: Mutex<Vec<Pending>>,
    /// Held while runs are merged.
    pub(crate) compaction: tokio::sync::Mutex<()>,
    /// Whether a task merges or splits: [`IDLE`], [`MAINTAINED`] or [`ASKED_AGAIN`].
    maintenance: AtomicU8,
    /// Maintenance has ended.
    maintained: Notify,
    /// How much of its capacity was used when no neighbour fitted into it, or at most since then;
    /// [`NOT_SETTLED`] if its neighbours are to be looked at.
    settled: AtomicU64,
    /// How often its maintenance has failed in sequence.
    failures: AtomicU32,
    /// Whether a task waits to maintain it again.
    pub(crate) awaits_maintenance: AtomicBool,
    /// Whether a task waits until it is quiet, to merge its runs if scans had to.
    pub(crate) is_watched: AtomicBool,
    /// Whether its runs are to be merged into one.
    pub(crate) is_untidy: AtomicBool,
    pub(crate) load: Load,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bucket({:x}, {:?})", self.id, self.view())
    }
}

impl Bucket {
    /// A bucket as it was stored.
    pub(crate) fn new(definition: Arc<Definition>, blocks: Blocks, stored: StoredBucket) -> Arc<Self> {
        let StoredBucket { id, record, runs } = stored;
        let next_run = runs.iter().map(|(number, _)| number + 1).max().unwrap_or(0);
        let next_age = runs.iter().map(|(_, run)| run.age + 1).max().unwrap_or(0);
        let mut runs: Vec<Arc<Run>> = runs
            .into_iter()
            .map(|(number, record)| Arc::new(Run::new(blocks.clone(), id, number, record)))
            .collect();
        runs.sort_by_key(|run| run.age());
        let view = view_of(&record, runs, None);
        let writer = Writer { record, next_run, next_age, is_removed: false, is_unsure: false };
        Arc::new(Self {
            id,
            definition,
            blocks,
            view: RwLock::new(Arc::new(view)),
            conflict: OnceLock::new(),
            writer: Arc::new(tokio::sync::Mutex::new(writer)),
            pending: Mutex::default(),
            compaction: tokio::sync::Mutex::default(),
            maintenance: AtomicU8::new(IDLE),
            maintained: Notify::new(),
            settled: AtomicU64::new(NOT_SETTLED),
            failures: AtomicU32::new(0),
            awaits_maintenance: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            is_untidy: AtomicBool::new(false),
            load: Load::default(),
        })
    }

    pub(crate) fn view(&self) -> Arc<View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces what readers see, for the holder of the writer.
    pub(crate) fn publish(&self, record: &BucketRecord, runs: Vec<Arc<Run>>) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        *view = Arc::new(view_of(record, runs, self.conflict.get().cloned()));
    }

    /// Compares it with another bucket, or with itself as another node knows it. If that has some of its keys since the
    /// same epoch or a later one, this one serves nobody from now on.
    pub(crate) fn compare(&self, other: &BucketEntry) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let shared = view.range.intersection(&other.range.clone().into());
        let is_later =
            if other.bucket == self.id { other.epoch > view.epoch } else { other.epoch >= view.epoch };
        if !view.is_active || !is_later || shared.is_empty() || view.conflict.is_some() {
            return;
        }
        let text = |key: &Key| self.definition.format().display(key);
        let from = if shared.low.is_empty() { "the first".to_owned() } else { text(&shared.low) };
        let to = shared.high.as_ref().map_or_else(|| "the last".to_owned(), text);
        let conflict = Arc::new(RangeError::OldDisk {
            from,
            to,
            node: other.node.clone(),
            epoch: other.epoch,
            own_epoch: view.epoch,
        });
        tracing::error!(file = self.definition.name, bucket = self.id, %conflict, "a bucket serves nobody");
        let _ = self.conflict.set(conflict.clone());
        *view = Arc::new(View { conflict: Some(conflict), ..View::clone(&view) });
    }

    /// The bucket is no longer stored: it refuses readers and writers. Those who read it go on.
    pub(crate) fn removed(&self, writer: &mut Writer) {
        writer.is_removed = true;
        let before = self.view();
        let none = Interval::new(before.range.low.clone(), Some(before.range.low.clone()));
        let after = View {
            range: none,
            epoch: before.epoch,
            is_active: false,
            is_splitting: false,
            runs: Vec::new(),
            rows: OnceLock::new(),
            conflict: None,
        };
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(after);
        before.runs.iter().for_each(|run| run.make_obsolete());
    }

    /// Stores the record, and then lets readers see it.
    ///
    /// # Errors
    /// [`RangeError::Moved`] if the bucket was removed; or that it can't be stored.
    pub(crate) async fn put_record(&self, writer: &mut Writer, record: BucketRecord) -> Result<()> {
        writer.check()?;
        let change = Change::PutBucket(self.id, Box::new(record.clone()));
        writer.is_unsure = true;
        self.blocks.store().commit(vec![change]).await?;
        writer.is_unsure = false;
        writer.record = record;
        self.publish(&writer.record, self.view().runs.clone());
        Ok(())
    }

    /// Lets readers and writers see that the keys are its own, and then stores that. It serves them even if the disk is full:
    /// the bucket that gave it the keys tells it again until that is stored, also after a restart, and the next rows that are
    /// written are stored together with it.
    ///
    /// # Errors
    /// [`RangeError::Moved`] if the bucket was removed; or that it can't be stored yet.
    pub(crate) async fn activate(&self, writer: &mut Writer) -> Result<()> {
        writer.check()?;
        if writer.record.incoming.is_some() {
            writer.record = split::activate(&writer.record);
            writer.is_unsure = true;
            self.publish(&writer.record, self.view().runs.clone());
        }
        if !writer.is_unsure {
            return Ok(());
        }
        self.put_record(writer, writer.record.clone()).await
    }

    /// The entry that other nodes and clients get.
    pub(crate) fn entry(&self, node: &str) -> BucketEntry {
        let view = self.view();
        let (records, bytes) = view.content();
        let low = &view.range.low;
        BucketEntry {
            bucket: self.id,
            node: node.to_owned(),
            range: (&view.range).into(),
            epoch: view.epoch,
            records: Some(records),
            bytes: Some(bytes),
            low_text: if low.is_empty() { String::new() } else { self.definition.format().display(low) },
            load: Some(self.load.now()),
        }
    }

    /// Whether it should split, as far as is known without merging its runs.
    pub(crate) fn is_full(&self) -> bool {
        let view = self.view();
        let capacity = self.definition.capacity;
        view.is_active && capacity.used(view.content()) > capacity.max()
    }

    /// The key to split at, if there are two rows or more: it divides the rows in halves or, if their keys have
    /// ascended, leaves what is full as it is. All runs should have been merged before, unless the view is tidy.
    pub(crate) fn split_key(&self) -> Result<Option<Key>> {
        let view = self.view();
        if !view.is_compact() {
            return Ok(view.split_key(self.definition.capacity));
        }
        let Some(run) = view.runs.iter().max_by_key(|run| run.content_below(view.range.high.as_deref()).0)
        else {
            return Ok(None);
        };
        let range = run.blocks_of(&view.range);
        let blocks = &run.blocks()[range.start as usize..range.end as usize];
        let half = blocks.iter().map(|block| u64::from(block.rows)).sum::<u64>() / 2;
        let mut before = 0;
        for (number, block) in range.zip(blocks) {
            let rows = u64::from(block.rows);
            if before + rows > half {
                let rows = run.block(&self.definition, number)?;
                let key = rows.key((half - before) as usize).to_vec();
                let is_inside = key > view.range.low && view.range.contains(&key);
                return Ok(is_inside.then_some(key));
            }
            before += rows;
        }
        Ok(None)
    }

    /// Whether nothing else maintains the bucket. Then the caller does, until [`Bucket::end_maintenance`];
    /// otherwise the one that does learns that it was asked for again.
    pub(crate) fn begin_maintenance(&self) -> bool {
        let next = |state| Some(if state == IDLE { MAINTAINED } else { ASKED_AGAIN });
        self.maintenance.fetch_update(SeqCst, SeqCst, next) == Ok(IDLE)
    }

    /// Counts the failures in sequence. Returns their number before.
    pub(crate) fn maintenance_failed(&self) -> u32 {
        self.failures.fetch_add(1, SeqCst)
    }

    pub(crate) fn maintenance_succeeded(&self) {
        self.failures.store(0, SeqCst);
    }

    /// Returns whether maintenance was asked for since it began: the bucket may have changed after it was looked at.
    pub(crate) fn end_maintenance(&self) -> bool {
        let is_asked_again = self.maintenance.swap(IDLE, SeqCst) == ASKED_AGAIN;
        self.maintained.notify_waiters();
        is_asked_again
    }

    /// Waits while it has far more than its capacity and is about to split: otherwise rows could come faster than a
    /// split moves them away. Not for long, in case the split does not succeed.
    pub(crate) async fn wait_for_split(&self) {
        let maintained = self.maintained.notified();
        let view = self.view();
        let capacity = self.definition.capacity;
        let is_overfull = capacity.used(view.content()) > capacity.max().saturating_mul(OVERFULL);
        if is_overfull && self.maintenance.load(SeqCst) != IDLE {
            let _ = timeout(SPLIT_WAIT_MAX, maintained).await;
        }
    }
}

fn view_of(record: &BucketRecord, runs: Vec<Arc<Run>>, conflict: Option<Arc<RangeError>>) -> View {
    let range = record.range.clone().into();
    let (is_active, is_splitting) = (record.incoming.is_none(), record.splitting.is_some());
    View { range, epoch: record.epoch, is_active, is_splitting, runs, rows: OnceLock::new(), conflict }
}
