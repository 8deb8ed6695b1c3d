//! Joins a bucket with the one after it, and knows when that is worth a look.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::run::{Run, RunBuilder, RunWriter};
use super::{Bucket, NOT_SETTLED, Writer};
use crate::error::{RangeError, Result};
use crate::request::BucketRecord;
use crate::store::Change;

impl Bucket {
    /// Whether its neighbours are to be looked at: at most half of it is used, and since the last look it has
    /// shrunk by an eighth of its capacity. So a bucket that goes on to shrink is looked at a few times, and one
    /// that changes a little is not looked at again.
    pub(crate) fn may_join(&self) -> bool {
        let view = self.view();
        let (used, max) = (self.used(), self.definition.capacity.max());
        let settled = self.settled.load(SeqCst);
        view.is_active
            && !view.range.is_empty()
            && used <= max / 2
            && settled.saturating_sub(used) >= (max / 8).max(1)
            // Before its runs are merged, more seems to be used than is.
            && (settled == NOT_SETTLED || view.is_tidy())
    }

    /// How much of its capacity is used, about.
    pub(crate) fn used(&self) -> u64 {
        self.definition.capacity.used(self.view().content())
    }

    /// Lets its neighbours be looked at, however little it has shrunk.
    pub(crate) fn look_at_neighbours(&self) {
        self.settled.store(NOT_SETTLED, SeqCst);
    }

    /// Its neighbours are looked at while this much is used.
    pub(crate) fn looks_at_neighbours(&self, used: u64) {
        self.settled.store(used, SeqCst);
    }

    /// Its rows have changed.
    pub(crate) fn note_growth(&self) {
        self.settled.fetch_max(self.used(), SeqCst);
    }

    /// Takes over all keys of the bucket after it, in one commit, for the holder of both writers, while no runs
    /// of either are merged. `record` is the one of both. The other bucket is then removed.
    ///
    /// # Errors
    /// If the rows can't be read or stored. Then nothing is changed.
    pub(crate) async fn take_over(
        self: &Arc<Self>,
        writer: &mut Writer,
        other: &Arc<Self>,
        other_writer: &mut Writer,
        record: BucketRecord,
    ) -> Result<()> {
        let (number, age) = (writer.take_run(), writer.take_age());
        let (low, high) = (self.view(), other.view());
        let (bucket, views) = (self.clone(), [low.clone(), high.clone()]);
        let merged = tokio::task::spawn_blocking(move || -> Result<_> {
            let levels = views.iter().flat_map(|view| &view.runs).map(|run| run.level());
            let rows =
                views.iter().flat_map(|view| view.runs.iter().map(move |run| run.rows_of(&view.range))).sum();
            let builder = RunBuilder::new(&bucket.definition, levels.max().unwrap_or(0) + 1, age, rows);
            let mut run = RunWriter::new(builder, bucket.blocks.store(), bucket.id, number);
            for view in &views {
                // Only the rows within: runs may still have rows of keys that were given away, even to the other
                // bucket, which has changed or deleted them since.
                run.push_merged(&bucket.definition, &view.runs, &view.range, false)?;
            }
            run.finish()
        });
        let merged = merged.await.map_err(|_| RangeError::Closed)??;
        let mut changes: Vec<Change> =
            low.runs.iter().map(|run| Change::DeleteRun(self.id, run.number())).collect();
        let mut runs = Vec::new();
        if let Some((run, put)) = merged {
            changes.extend(put);
            runs.push(Arc::new(Run::new(self.blocks.clone(), self.id, number, run)));
        }
        changes.push(Change::PutBucket(self.id, Box::new(record.clone())));
        changes.push(Change::DeleteBucket(other.id));
        self.blocks.store().commit(changes).await?;
        // Until the other one refuses its keys, both have the same rows of them: nobody writes.
        writer.record = record;
        self.publish(&writer.record, runs);
        low.runs.iter().for_each(|run| run.make_obsolete());
        other.removed(other_writer);
        self.load.add(&other.load);
        Ok(())
    }
}
