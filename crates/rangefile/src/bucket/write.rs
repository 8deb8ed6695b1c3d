//! Writes: those that arrive while one is committed are committed together.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, PoisonError};

use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::interleave::interleave_record_batch;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, oneshot};

use super::block::KeyedRows;
use super::run::{Run, RunBuilder, hash};
use super::{Bucket, View, Writer};
use crate::error::{RangeError, Result};
use crate::key::{Interval, after};
use crate::request::WriteMode;
use crate::store::Change;

/// Rows that are committed together.
const TOGETHER_ROWS_MAX: usize = 64 << 10;

/// A write that waits.
pub(crate) struct Pending {
    mode: WriteMode,
    rows: KeyedRows,
    done: oneshot::Sender<Result<()>>,
    reserved: OwnedSemaphorePermit,
}

/// Who waits for a write.
struct Waiting {
    done: oneshot::Sender<Result<()>>,
    /// Its memory, released once it is done.
    _reserved: OwnedSemaphorePermit,
}

impl Bucket {
    /// Writes rows, whose memory was reserved. Returns once they are on disk.
    ///
    /// # Errors
    /// [`RangeError::Moved`] if the bucket does not have all their keys; [`RangeError::KeyExists`]; or that they
    /// can't be stored. Nothing is changed then.
    pub(crate) async fn write(
        self: &Arc<Self>,
        mode: WriteMode,
        rows: KeyedRows,
        reserved: OwnedSemaphorePermit,
    ) -> Result<()> {
        while self.view().has_too_many_runs() {
            let bucket = self.clone();
            let compacted = tokio::spawn(async move { bucket.compact(false).await });
            compacted.await.map_err(|_| RangeError::Closed)??;
        }
        let (done, mut outcome) = oneshot::channel();
        let pending = Pending { mode, rows, done, reserved };
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push(pending);
        loop {
            tokio::select! {
                biased;
                outcome = &mut outcome => return outcome.unwrap_or(Err(RangeError::Closed)),
                writer = self.writer.clone().lock_owned() => {
                    let bucket = self.clone();
                    // A task of its own: the others' writes go on if this one's client is gone.
                    let _ = tokio::spawn(bucket.write_pending(writer)).await;
                }
            }
        }
    }

    async fn write_pending(self: Arc<Self>, mut writer: OwnedMutexGuard<Writer>) {
        let group = {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            let mut rows = 0;
            let count = pending.iter().take_while(|write| {
                let fits = rows == 0 || rows + write.rows.len() <= TOGETHER_ROWS_MAX;
                rows += write.rows.len();
                fits
            });
            let count = count.count();
            let rest = pending.split_off(count);
            mem::replace(&mut *pending, rest)
        };
        if group.is_empty() {
            return;
        }
        let (bucket, view) = (self.clone(), self.view());
        let age = writer.take_age();
        let built = tokio::task::spawn_blocking(move || bucket.build(&view, group, age)).await;
        let Ok((changed, outcomes)) = built else { return };
        let stored = match changed {
            Ok(None) => Ok(()),
            Ok(Some((record, blocks))) => {
                let number = writer.take_run();
                let mut changes = vec![Change::PutRun(self.id, number, Box::new(record.clone()), blocks)];
                if writer.is_unsure {
                    changes.push(Change::PutBucket(self.id, Box::new(writer.record.clone())));
                }
                match self.blocks.store().commit(changes).await {
                    Ok(()) => {
                        writer.is_unsure = false;
                        let run = Run::new(self.blocks.clone(), self.id, number, record);
                        let mut runs = self.view().runs.clone();
                        runs.push(Arc::new(run));
                        self.publish(&writer.record, runs);
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        drop(writer);
        for (waiting, outcome) in outcomes {
            let _ = waiting.done.send(outcome.and_then(|()| stored.clone()));
        }
    }

    /// The run of a group of writes, in their order, and the outcome of each.
    #[expect(clippy::type_complexity, reason = "the parts of a run, and each write's outcome")]
    fn build(
        &self,
        view: &View,
        group: Vec<Pending>,
        age: u64,
    ) -> (Result<Option<(crate::request::RunRecord, Vec<Vec<u8>>)>>, Vec<(Waiting, Result<()>)>) {
        let mut outcomes = Vec::with_capacity(group.len());
        let mut accepted: Vec<(WriteMode, KeyedRows)> = Vec::new();
        // For each key that the group changes: the write and its row.
        let mut changed: BTreeMap<Vec<u8>, (usize, usize)> = BTreeMap::new();
        let are_apart = are_apart(&group);
        for Pending { mode, rows, done, reserved } in group {
            // The row that an earlier write of the group leaves for a key, if one changes it.
            let earlier = |key: &[u8]| {
                let &(write, row) = changed.get(key)?;
                let (mode, rows): &(WriteMode, KeyedRows) = &accepted[write];
                Some((*mode != WriteMode::Delete).then(|| rows.slice(row, 1)))
            };
            let checked = self.check(view, mode, &rows, earlier);
            if checked.is_ok() {
                if !are_apart {
                    let write = accepted.len();
                    changed.extend((0..rows.len()).map(|row| (rows.key(row).to_vec(), (write, row))));
                }
                accepted.push((mode, rows));
            }
            outcomes.push((Waiting { done, _reserved: reserved }, checked));
        }
        let built = |mut accepted: Vec<(WriteMode, KeyedRows)>| -> Result<_> {
            accepted.retain(|(_, rows)| rows.len() > 0);
            let rows = accepted.iter().map(|(_, rows)| rows.len()).sum();
            let rows = if are_apart { rows } else { changed.len() };
            let mut builder = RunBuilder::new(&self.definition, 0, age, rows);
            match accepted.as_slice() {
                [] => return Ok(None),
                _ if are_apart => {
                    accepted.sort_by(|(_, a), (_, b)| a.key(0).cmp(b.key(0)));
                    for (mode, rows) in accepted {
                        let deleted =
                            (mode == WriteMode::Delete).then(|| BooleanArray::from(vec![true; rows.len()]));
                        builder.push(&KeyedRows { deleted, ..rows })?;
                    }
                }
                _ => {
                    let batches: Vec<&RecordBatch> = accepted.iter().map(|(_, rows)| &rows.rows).collect();
                    let order: Vec<(usize, usize)> = changed.values().copied().collect();
                    let deleted: BooleanArray = order
                        .iter()
                        .map(|(write, _)| Some(accepted[*write].0 == WriteMode::Delete))
                        .collect();
                    let rows = interleave_record_batch(&batches, &order)?;
                    builder.push(&KeyedRows::new(&self.definition, rows, Some(deleted))?)?;
                }
            }
            Ok(builder.finish())
        };
        (built(accepted), outcomes)
    }

    /// Whether a write is possible. `earlier` returns what earlier writes that are not in the view yet leave for a
    /// key, if they change it.
    fn check(
        &self,
        view: &View,
        mode: WriteMode,
        rows: &KeyedRows,
        earlier: impl Fn(&[u8]) -> Option<Option<KeyedRows>>,
    ) -> Result<()> {
        let Some(last) = rows.len().checked_sub(1) else { return Ok(()) };
        view.check_current()?;
        let has_all = view.range.contains(rows.key(0)) && view.range.contains(rows.key(last));
        if !view.is_active || !has_all {
            return Err(RangeError::Moved);
        }
        if matches!(mode, WriteMode::Upsert | WriteMode::Delete) {
            return Ok(());
        }
        let within = Interval::new(rows.key(0).to_vec(), Some(after(rows.key(last))));
        let runs: Vec<&Arc<Run>> = view.runs.iter().rev().filter(|run| run.meets(&within)).collect();
        for row in 0..rows.len() {
            let key = rows.key(row);
            let found = match earlier(key) {
                Some(found) => found,
                None => self.find_in(&runs, key)?,
            };
            let Some(found) = found else { continue };
            let is_same =
                mode == WriteMode::InsertAgain && found.rows.columns() == rows.rows.slice(row, 1).columns();
            if !is_same {
                return Err(RangeError::KeyExists { key: self.definition.format().display(key) });
            }
        }
        Ok(())
    }

    /// The row with a key, unless it is deleted. `runs` are those that may have it, newest first.
    fn find_in(&self, runs: &[&Arc<Run>], key: &[u8]) -> Result<Option<KeyedRows>> {
        if runs.is_empty() {
            return Ok(None);
        }
        let hash = hash(key);
        for run in runs {
            if let Some(found) = run.find(&self.definition, key, hash)? {
                return Ok((!found.is_deleted(0)).then_some(found));
            }
        }
        Ok(None)
    }
}

/// Whether no key is in two of the writes.
fn are_apart(group: &[Pending]) -> bool {
    let mut ends: Vec<(&[u8], &[u8])> = group
        .iter()
        .filter_map(|write| {
            let last = write.rows.len().checked_sub(1)?;
            Some((write.rows.key(0), write.rows.key(last)))
        })
        .collect();
    ends.sort_unstable();
    ends.windows(2).all(|pair| pair[0].1 < pair[1].0)
}
