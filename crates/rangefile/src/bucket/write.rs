//! Writes: those that arrive while one is committed are committed together.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, PoisonError};

use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::interleave::interleave_record_batch;
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::block::KeyedRows;
use super::compact::RUNS_MAX;
use super::run::{Run, RunBuilder};
use super::{Bucket, View, Writer};
use crate::error::{RangeError, Result};
use crate::request::WriteMode;
use crate::store::Change;

/// Rows that are committed together.
const TOGETHER_ROWS_MAX: usize = 64 << 10;

/// A write that waits.
pub(crate) struct Pending {
    mode: WriteMode,
    rows: KeyedRows,
    done: oneshot::Sender<Result<()>>,
}

impl Bucket {
    /// Writes rows. Returns once they are on disk.
    ///
    /// # Errors
    /// [`RangeError::Moved`] if the bucket does not have all their keys; [`RangeError::KeyExists`]; or that they
    /// can't be stored. Nothing is changed then.
    pub(crate) async fn write(self: &Arc<Self>, mode: WriteMode, rows: KeyedRows) -> Result<()> {
        while self.view().runs.len() > RUNS_MAX {
            let bucket = self.clone();
            let compacted = tokio::spawn(async move { bucket.compact(false).await });
            compacted.await.map_err(|_| RangeError::Closed)??;
        }
        let (done, mut outcome) = oneshot::channel();
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push(Pending { mode, rows, done });
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
                let change = Change::PutRun(self.id, number, Box::new(record.clone()), blocks);
                match self.blocks.store().commit(vec![change]).await {
                    Ok(()) => {
                        let run = Run::new(self.blocks.clone(), self.id, number, record);
                        let mut runs = self.view().runs.clone();
                        runs.push(Arc::new(run));
                        self.publish(&writer.record, runs);
                        Ok(())
                    }
                    Err(error) => Err(error.to_string()),
                }
            }
            Err(error) => Err(error.to_string()),
        };
        drop(writer);
        for (done, outcome) in outcomes {
            let _ = done.send(match (&stored, outcome) {
                (_, Err(refusal)) => Err(refusal),
                (Ok(()), Ok(())) => Ok(()),
                (Err(message), Ok(())) => Err(RangeError::Storage(message.clone())),
            });
        }
    }

    /// The run of a group of writes, in their order, and the outcome of each.
    #[expect(clippy::type_complexity, reason = "the parts of a run, and each write's outcome")]
    fn build(
        &self,
        view: &View,
        group: Vec<Pending>,
        age: u64,
    ) -> (
        Result<Option<(crate::request::RunRecord, Vec<Vec<u8>>)>>,
        Vec<(oneshot::Sender<Result<()>>, Result<()>)>,
    ) {
        let mut outcomes = Vec::with_capacity(group.len());
        let mut accepted: Vec<(WriteMode, KeyedRows)> = Vec::new();
        // For each key that the group changes: the write and its row.
        let mut changed: BTreeMap<Vec<u8>, (usize, usize)> = BTreeMap::new();
        let is_alone = group.len() == 1;
        for Pending { mode, rows, done } in group {
            let exists = |key: &[u8]| -> Result<Option<(KeyedRows, usize)>> {
                if let Some(&(write, row)) = changed.get(key) {
                    let (mode, rows): &(WriteMode, KeyedRows) = &accepted[write];
                    return Ok((*mode != WriteMode::Delete).then(|| (rows.clone(), row)));
                }
                Ok(self.find(view, key)?.map(|found| (found, 0)))
            };
            let checked = self.check(view, mode, &rows, exists);
            if checked.is_ok() {
                if !is_alone {
                    let write = accepted.len();
                    changed.extend((0..rows.len()).map(|row| (rows.key(row).to_vec(), (write, row))));
                }
                accepted.push((mode, rows));
            }
            outcomes.push((done, checked));
        }
        let built = || -> Result<_> {
            let mut builder = RunBuilder::new(&self.definition, 0, age);
            match accepted.as_slice() {
                [] => return Ok(None),
                [(mode, rows)] => {
                    let deleted =
                        (*mode == WriteMode::Delete).then(|| BooleanArray::from(vec![true; rows.len()]));
                    builder.push(&KeyedRows { deleted, ..rows.clone() })?;
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
        (built(), outcomes)
    }

    /// Whether a write is possible.
    fn check(
        &self,
        view: &View,
        mode: WriteMode,
        rows: &KeyedRows,
        exists: impl Fn(&[u8]) -> Result<Option<(KeyedRows, usize)>>,
    ) -> Result<()> {
        let Some(last) = rows.len().checked_sub(1) else { return Ok(()) };
        let has_all = view.range.contains(rows.key(0)) && view.range.contains(rows.key(last));
        if !view.is_active || !has_all {
            return Err(RangeError::Moved);
        }
        if matches!(mode, WriteMode::Upsert | WriteMode::Delete) {
            return Ok(());
        }
        for row in 0..rows.len() {
            if let Some((found, at)) = exists(rows.key(row))? {
                let is_same = mode == WriteMode::InsertAgain
                    && found.rows.slice(at, 1).columns() == rows.rows.slice(row, 1).columns();
                if !is_same {
                    let key = self.definition.format().display(rows.key(row));
                    return Err(RangeError::KeyExists { key });
                }
            }
        }
        Ok(())
    }

    /// The row with a key, unless it is deleted.
    pub(crate) fn find(&self, view: &View, key: &[u8]) -> Result<Option<KeyedRows>> {
        for run in view.runs.iter().rev() {
            if let Some(found) = run.find(&self.definition, key)? {
                return Ok((!found.is_deleted(0)).then_some(found));
            }
        }
        Ok(None)
    }
}
