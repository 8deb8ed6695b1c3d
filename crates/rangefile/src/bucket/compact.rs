//! Merges runs, so that readers have few to look at and rows that were replaced are gone.

use std::ops::Range;
use std::sync::Arc;

use super::overlap::depth;
use super::run::RunWriter;
use super::{Bucket, Merge, Run, RunBuilder, View};
use crate::definition::Definition;
use crate::error::{RangeError, Result};
use crate::key::Interval;
use crate::request::RunRecord;
use crate::store::Change;

/// This many adjacent runs of one level are merged into one of the next level, if they are small or their keys overlap.
const FAN_IN: usize = 8;
/// With more such runs than this, whatever their levels, all are merged, and writes wait for it.
const RUNS_MAX: usize = 64;
/// Runs with fewer bytes are small.
const SMALL_BYTES: u64 = 512 << 10;
/// Rows that are merged at a time.
const STEP_ROWS: usize = 8192;

impl Bucket {
    /// Whether runs wait to be merged.
    pub(crate) fn wants_compaction(&self) -> bool {
        candidates(&self.view(), false).is_some()
    }

    /// Merges runs as long as there are enough of a level; `all` of them into one if that is asked for. Reads
    /// and writes go on meanwhile.
    ///
    /// # Errors
    /// If they can't be read or stored.
    pub(crate) async fn compact(self: &Arc<Self>, all: bool) -> Result<()> {
        let merging = self.compaction.lock().await;
        loop {
            let view = self.view();
            let Some(chosen) = candidates(&view, all) else { break };
            let inputs = view.runs[chosen.clone()].to_vec();
            let turn = self.blocks.begin_merge().await?;
            let number = self.writer.lock().await.take_run();
            let bucket = self.clone();
            let keeps_deletions = chosen.start > 0;
            let range = view.range.clone();
            let merged =
                tokio::task::spawn_blocking(move || bucket.merge(&inputs, &range, keeps_deletions, number))
                    .await
                    .map_err(|_| RangeError::Closed)??;
            let writer = self.writer.lock().await;
            writer.check()?;
            // Writes have only added runs at the end.
            let mut runs = self.view().runs.clone();
            let inputs: Vec<Arc<Run>> = runs.drain(chosen.clone()).collect();
            let mut changes: Vec<Change> =
                inputs.iter().map(|run| Change::DeleteRun(self.id, run.number())).collect();
            if let Some((record, put)) = merged {
                changes.extend(put);
                let run = Run::new(self.blocks.clone(), self.id, number, record);
                runs.insert(chosen.start, Arc::new(run));
            }
            self.blocks.store().commit(changes).await?;
            self.publish(&writer.record, runs);
            inputs.iter().for_each(|run| run.make_obsolete());
            drop((writer, turn));
            if all {
                // Rows of the old runs, which scans have copied since the merge began, do not count for another one.
                self.load.reset_copied_rows_if_at_least(0);
                break;
            }
        }
        drop(merging);
        Ok(())
    }

    /// The rows of runs as one run, with the changes that store it.
    fn merge(
        &self,
        inputs: &[Arc<Run>],
        range: &Interval,
        keeps_deletions: bool,
        number: u64,
    ) -> Result<Option<(RunRecord, Vec<Change>)>> {
        let level = inputs.iter().map(|run| run.level()).max().unwrap_or(0) + 1;
        let age = inputs.iter().map(|run| run.age()).max().unwrap_or(0);
        let rows = inputs.iter().map(|run| run.rows_of(range)).sum();
        let builder = RunBuilder::new(&self.definition, level, age, rows);
        let mut run = RunWriter::new(builder, self.blocks.store(), self.id, number);
        run.push_merged(&self.definition, inputs, range, keeps_deletions)?;
        run.finish()
    }
}

impl RunWriter<'_> {
    /// Adds the rows of runs in an interval, all after those that were added before.
    pub(super) fn push_merged(
        &mut self,
        definition: &Arc<Definition>,
        inputs: &[Arc<Run>],
        interval: &Interval,
        keeps_deletions: bool,
    ) -> Result<()> {
        let mut merge = Merge::new(definition.clone(), inputs, interval.clone(), keeps_deletions, STEP_ROWS);
        while let Some(merged) = merge.next()? {
            self.push(&merged.keyed(definition)?)?;
        }
        Ok(())
    }
}

impl View {
    /// Whether it has so many runs that writes wait until they are merged.
    pub(super) fn has_too_many_runs(&self) -> bool {
        let small = || self.runs.iter().filter(|run| is_small(run)).count();
        self.runs.len() > RUNS_MAX && (depth(&self.runs) > RUNS_MAX || small() > RUNS_MAX)
    }
}

/// The runs to be merged, if any.
fn candidates(view: &View, all: bool) -> Option<Range<usize>> {
    let runs = &view.runs;
    if all {
        return (!view.is_compact()).then_some(0..runs.len());
    }
    if view.has_too_many_runs() || view.has_many_deletions() {
        return Some(0..runs.len());
    }
    let mut start = 0;
    for end in 1..=runs.len() {
        if end == runs.len() || runs[end].level() != runs[start].level() {
            if let Some(chosen) = of_level(&runs[start..end]) {
                return Some(start + chosen.start..start + chosen.end);
            }
            start = end;
        }
    }
    None
}

/// The runs to be merged, if any, of adjacent ones of one level.
fn of_level(runs: &[Arc<Run>]) -> Option<Range<usize>> {
    if runs.len() < FAN_IN {
        return None;
    }
    if depth(runs) >= FAN_IN {
        return Some(0..runs.len());
    }
    let mut start = 0;
    let mut streaks = runs.chunk_by(|a, b| is_small(a) == is_small(b)).map(|streak| {
        start += streak.len();
        (streak, start - streak.len()..start)
    });
    let many_small = streaks.find(|(streak, _)| streak.len() >= FAN_IN && is_small(&streak[0]));
    many_small.map(|(_, chosen)| chosen)
}

fn is_small(run: &Arc<Run>) -> bool {
    run.bytes() < SMALL_BYTES
}
