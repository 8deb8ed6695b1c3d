//! Rows of several runs as one sequence in the order of their keys. Of rows with equal keys, the newest counts.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;

use super::block::KeyedRows;
use super::gather::{Stretch, gather};
use super::run::Run;
use crate::definition::Definition;
use crate::error::Result;
use crate::key::Interval;

/// Rows in the order of their keys.
pub(crate) struct Merged {
    pub(crate) rows: RecordBatch,
    /// Which of them are deletions; `None` if there are no deletions.
    pub(crate) deleted: Option<BooleanArray>,
    /// The same rows with their keys, if these are at hand.
    keyed: Option<KeyedRows>,
}

impl Merged {
    /// The rows with their keys.
    pub(crate) fn keyed(self, definition: &Definition) -> Result<KeyedRows> {
        self.keyed.map_or_else(|| KeyedRows::new(definition, self.rows, self.deleted), Ok)
    }
}

/// Rows of a run, from some row on.
struct Cursor {
    run: Arc<Run>,
    blocks: Range<u32>,
    rows: KeyedRows,
    row: usize,
}

impl Cursor {
    /// Reads blocks until there is a row. Returns whether there is one.
    fn fill(&mut self, definition: &Definition, interval: &Interval) -> Result<bool> {
        while self.row >= self.rows.len() {
            let Some(block) = self.blocks.next() else { return Ok(false) };
            let rows = self.run.block(definition, block)?;
            let start = rows.lower_bound(0, &interval.low);
            let end = interval.high.as_ref().map_or(rows.len(), |high| rows.lower_bound(start, high));
            (self.rows, self.row) = (rows.slice(start, end - start), 0);
        }
        Ok(true)
    }

    fn key(&self) -> &[u8] {
        self.rows.key(self.row)
    }

    /// Goes to the next row. Returns whether the block has ended.
    fn advance(&mut self) -> bool {
        self.row += 1;
        self.row == self.rows.len()
    }
}

/// With this many rows of one run in a row, they are sliced, not copied.
const SLICED_ROWS_MIN: usize = 256;

/// Merges runs within an interval.
pub(crate) struct Merge {
    definition: Arc<Definition>,
    interval: Interval,
    /// Those that have rows, newest first.
    cursors: Vec<Cursor>,
    /// Runs whose keys are not reached yet, so that none of their blocks is in memory; the one with the least keys is
    /// the last.
    later: Vec<Arc<Run>>,
    empty: KeyedRows,
    keeps_deletions: bool,
    rows_max: usize,
    /// Rows that were copied one by one, or in short stretches.
    copied: u64,
}

impl Merge {
    /// `runs` are in the order of their age, oldest first. Each batch has at most `rows_max` rows. Unless
    /// `keeps_deletions`, deleted rows are left out.
    pub(crate) fn new(
        definition: Arc<Definition>,
        runs: &[Arc<Run>],
        interval: Interval,
        keeps_deletions: bool,
        rows_max: usize,
    ) -> Self {
        let empty = KeyedRows {
            rows: RecordBatch::new_empty(definition.loose().clone()),
            keys: Arc::new(definition.format().no_keys()),
            offset: 0,
            deleted: None,
        };
        let mut later: Vec<Arc<Run>> = runs.iter().filter(|run| run.meets(&interval)).cloned().collect();
        later.sort_by(|a, b| b.first().cmp(a.first()));
        let rows_max = rows_max.max(1);
        Self { definition, interval, cursors: Vec::new(), later, empty, keeps_deletions, rows_max, copied: 0 }
    }

    /// Takes the number of rows that were copied since this was last asked for, because rows of other runs come between
    /// them.
    pub(crate) fn take_copied(&mut self) -> u64 {
        std::mem::take(&mut self.copied)
    }

    /// The next rows, and which of them are deletions; `None` after the last.
    pub(crate) fn next(&mut self) -> Result<Option<Merged>> {
        loop {
            if let Some(merged) = self.whole_block()? {
                if merged.rows.num_rows() > 0 {
                    return Ok(Some(merged));
                }
                continue;
            }
            self.fill()?;
            self.open()?;
            let merged = match self.cursors.len() {
                0 => return Ok(None),
                1 => {
                    let rows = (self.end(0, self.later_key()) - self.cursors[0].row).min(self.rows_max);
                    self.slice(0, rows)?
                }
                _ => self.interleave()?,
            };
            if merged.rows.num_rows() > 0 {
                return Ok(Some(merged));
            }
        }
    }

    /// The number of all rows that are left. Blocks of which it is known without their rows are not read.
    pub(crate) fn count(mut self) -> Result<u64> {
        let mut count = 0;
        loop {
            while let Some((run, block, rows)) = self.next_alone() {
                count += match run.deletions() {
                    0 => rows as u64,
                    _ => {
                        let (rows, deleted) = run.rows(&self.definition, block)?;
                        (rows.num_rows() - deleted.map_or(0, |deleted| deleted.true_count())) as u64
                    }
                };
            }
            self.fill()?;
            self.open()?;
            if self.cursors.is_empty() {
                return Ok(count);
            }
            // Until a block ends, or another run is reached.
            loop {
                let (least, next) = self.least();
                let end = self.end(least, next);
                let cursor = &self.cursors[least];
                let deleted = (cursor.row..end).filter(|row| cursor.rows.is_deleted(*row)).count();
                count += (end - cursor.row - deleted) as u64;
                let has_ended = self.skip_others(least);
                let cursor = &mut self.cursors[least];
                cursor.row = end;
                if has_ended || end == cursor.rows.len() || self.is_reached() {
                    break;
                }
            }
        }
    }

    /// The next block of a run, if no other row comes between: its keys are not needed then, and making them would take
    /// longer than all else.
    fn whole_block(&mut self) -> Result<Option<Merged>> {
        let Some((run, block, _)) = self.next_alone() else { return Ok(None) };
        let (rows, deleted) = run.rows(&self.definition, block)?;
        self.undeleted(rows, deleted, None).map(Some)
    }

    /// Takes the next block of a run, if all its rows are the next ones. Returns its number and that of its rows.
    fn next_alone(&mut self) -> Option<(Arc<Run>, u32, usize)> {
        let [cursor] = &mut self.cursors[..] else { return None };
        if cursor.row < cursor.rows.len() {
            return None;
        }
        let number = cursor.blocks.clone().next()?;
        let (keys, rows) = cursor.run.block_bounds(number);
        let is_alone =
            self.later.last().is_none_or(|run| keys.high.as_deref().is_some_and(|high| high <= run.first()));
        if !is_alone || rows > self.rows_max || !self.interval.covers(&keys) {
            return None;
        }
        cursor.blocks.next();
        Some((cursor.run.clone(), number, rows))
    }

    /// Reads the next blocks, where they are needed.
    fn fill(&mut self) -> Result<()> {
        let mut index = 0;
        while index < self.cursors.len() {
            if self.cursors[index].fill(&self.definition, &self.interval)? {
                index += 1;
            } else {
                self.cursors.remove(index);
            }
        }
        Ok(())
    }

    /// The least key of the runs that are not reached yet.
    fn later_key(&self) -> Option<&[u8]> {
        self.later.last().map(|run| run.first())
    }

    /// Whether the rows of the next run may be the next ones.
    fn is_reached(&self) -> bool {
        let Some(first) = self.later_key() else { return false };
        self.cursors.iter().all(|cursor| first <= cursor.key())
    }

    /// Begins to read the runs that are reached.
    fn open(&mut self) -> Result<()> {
        while self.is_reached()
            && let Some(run) = self.later.pop()
        {
            let (blocks, rows) = (run.blocks_of(&self.interval), self.empty.clone());
            let mut cursor = Cursor { run, blocks, rows, row: 0 };
            if cursor.fill(&self.definition, &self.interval)? {
                let index = self.cursors.partition_point(|other| other.run.age() > cursor.run.age());
                self.cursors.insert(index, cursor);
            }
        }
        Ok(())
    }

    /// Rows of one run, which need not be copied: `rows` of the block that its cursor is in.
    fn slice(&mut self, cursor: usize, rows: usize) -> Result<Merged> {
        let cursor = &mut self.cursors[cursor];
        let sliced = cursor.rows.slice(cursor.row, rows);
        cursor.row += rows;
        let KeyedRows { rows, deleted, .. } = sliced.clone();
        self.undeleted(rows, deleted, Some(sliced))
    }

    /// Rows without those that are deleted, unless these are kept.
    fn undeleted(
        &self,
        rows: RecordBatch,
        deleted: Option<BooleanArray>,
        keyed: Option<KeyedRows>,
    ) -> Result<Merged> {
        match deleted {
            Some(deleted) if !self.keeps_deletions => {
                let keep = BooleanArray::new(!deleted.values(), None);
                Ok(Merged { rows: filter_record_batch(&rows, &keep)?, deleted: None, keyed: None })
            }
            deleted => Ok(Merged { rows, deleted, keyed }),
        }
    }

    /// The row after those of a cursor that are before the next key of the others.
    fn end(&self, cursor: usize, next: Option<&[u8]>) -> usize {
        let cursor = &self.cursors[cursor];
        next.map_or(cursor.rows.len(), |next| cursor.rows.lower_bound_near(cursor.row + 1, next))
    }

    /// The newest of the cursors with the least key, and the least key of the others.
    fn least(&self) -> (usize, Option<&[u8]>) {
        let (mut least, mut next) = (0, self.later_key());
        for (index, cursor) in self.cursors.iter().enumerate().skip(1) {
            let (key, least_key) = (cursor.key(), self.cursors[least].key());
            let other = if key < least_key {
                least = index;
                least_key
            } else {
                key
            };
            next = Some(next.map_or(other, |next| next.min(other)));
        }
        (least, next)
    }

    /// Rows of several runs, until a block of one of them ends, or another run is reached.
    fn interleave(&mut self) -> Result<Merged> {
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut picked = 0;
        // Cursors in the order of their keys, the least one last; of equal keys, that of the newest run. After a row, only
        // the cursor that it came from has to find its place.
        let mut order: Vec<usize> = (0..self.cursors.len()).collect();
        order.sort_unstable_by(|a, b| self.place(*b).cmp(&self.place(*a)));
        while picked < self.rows_max
            && let Some(&least) = order.last()
        {
            let cursor = &self.cursors[least];
            let later = self.later_key();
            if later.is_some_and(|first| first <= cursor.key()) {
                break;
            }
            let other = order.len().checked_sub(2).map(|other| self.cursors[order[other]].key());
            let next = match (other, later) {
                (Some(other), Some(later)) => Some(other.min(later)),
                (other, later) => other.or(later),
            };
            let is_shared = other == Some(cursor.key());
            let rows = (self.end(least, next) - cursor.row).min(self.rows_max - picked);
            if rows >= SLICED_ROWS_MIN || (rows == self.rows_max && picked == 0) {
                if picked == 0 {
                    self.skip_others(least);
                    return self.slice(least, rows);
                }
                break;
            }
            if self.keeps_deletions || cursor.rows.deleted.is_none() {
                stretches.push(Stretch { batch: least, row: cursor.row, rows });
                picked += rows;
            } else {
                for row in (cursor.row..cursor.row + rows).filter(|row| !cursor.rows.is_deleted(*row)) {
                    stretches.push(Stretch { batch: least, row, rows: 1 });
                    picked += 1;
                }
            }
            let mut has_ended = is_shared && self.skip_others(least);
            let cursor = &mut self.cursors[least];
            cursor.row += rows;
            has_ended |= cursor.row == cursor.rows.len();
            if has_ended {
                break;
            }
            if is_shared {
                order.sort_unstable_by(|a, b| self.place(*b).cmp(&self.place(*a)));
            } else {
                order.pop();
                let place = self.place(least);
                let position = order.partition_point(|other| self.place(*other) > place);
                order.insert(position, least);
            }
        }
        self.copied += picked as u64;
        let batches: Vec<&RecordBatch> = self.cursors.iter().map(|cursor| &cursor.rows.rows).collect();
        let rows = gather(self.definition.loose(), &batches, &stretches)?;
        let is_deleted = stretches.iter().flat_map(|stretch| {
            let rows = &self.cursors[stretch.batch].rows;
            (stretch.row..stretch.row + stretch.rows).map(|row| rows.is_deleted(row))
        });
        let has_deletions =
            self.keeps_deletions && self.cursors.iter().any(|cursor| cursor.rows.deleted.is_some());
        let deleted = has_deletions.then(|| is_deleted.collect::<Vec<bool>>());
        let deleted = deleted.filter(|deleted| deleted.contains(&true)).map(BooleanArray::from);
        Ok(Merged { rows, deleted, keyed: None })
    }

    /// The place of a cursor among the others: by key, and of equal keys by age, the newest first.
    fn place(&self, cursor: usize) -> (&[u8], usize) {
        (self.cursors[cursor].key(), cursor)
    }

    /// Skips the rows of older runs with the key that a cursor is at. Returns whether a block has ended.
    fn skip_others(&mut self, cursor: usize) -> bool {
        let (first, older) = self.cursors[cursor..].split_at_mut(1);
        let mut has_ended = false;
        for other in older {
            if other.key() == first[0].key() {
                has_ended |= other.advance();
            }
        }
        has_ended
    }
}
