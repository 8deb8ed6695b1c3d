//! Runs: sorted rows of a bucket that were written together, in blocks. A run never changes.

use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::{BooleanArray, RecordBatch};
use fastbloom::BloomFilter;
use siphasher::sip::SipHasher13;

use super::View;
use super::block::{KeyedRows, block_encoder, decode_block, encode_block};
use super::blocks::Blocks;
use crate::definition::Definition;
use crate::error::Result;
use crate::key::{Interval, after};
use crate::request::{BlockRecord, RunRecord};
use crate::store::{Change, Store};

/// Bytes of Arrow data in a block. With its keys it is just below a power of two, the storage's unit.
const BLOCK_BYTES: u64 = 250 << 10;
/// Rows of a block.
pub(crate) const BLOCK_ROWS_MAX: usize = 8192;
/// Bytes of blocks that are stored together while a run is written.
const PIECE_BYTES: usize = 8 << 20;
/// Of a hundred keys that a run does not have, its filter passes about one.
const FILTER_ERROR: f64 = 0.01;

/// A filter may have room for this many times its keys, and for this many keys in any case.
const FILTER_WASTE_MAX: usize = 2;
const FILTER_KEYS_MIN: usize = 1024;

/// A filter without keys, with room for `keys`.
fn empty_filter(keys: usize) -> BloomFilter {
    BloomFilter::with_false_pos(FILTER_ERROR).seed(&0).expected_items(keys)
}

fn add_keys(filter: &mut BloomFilter, rows: &KeyedRows) {
    for row in 0..rows.len() {
        filter.insert_hash(hash(rows.key(row)));
    }
}

/// A run, as its blocks are added.
pub(crate) struct RunBuilder<'a> {
    definition: &'a Definition,
    encoder: lightship_wire::Encoder,
    /// `None` if only the blocks are needed.
    filter: Option<BloomFilter>,
    /// The keys that the filter has room for.
    rows_expected: usize,
    rows: usize,
    record: RunRecord,
    blocks: Vec<Vec<u8>>,
    /// Of `blocks`.
    bytes: usize,
}

impl<'a> RunBuilder<'a> {
    /// `rows_expected` is the most rows that will be added, about.
    pub(crate) fn new(definition: &'a Definition, level: u32, age: u64, rows_expected: usize) -> Self {
        let record = RunRecord { level, age, ..RunRecord::default() };
        let filter = Some(empty_filter(rows_expected));
        Self { filter, rows_expected, record, ..Self::of_blocks(definition) }
    }

    /// For blocks that are not a run yet.
    pub(crate) fn of_blocks(definition: &'a Definition) -> Self {
        Self {
            definition,
            encoder: block_encoder(),
            filter: None,
            rows_expected: 0,
            rows: 0,
            record: RunRecord::default(),
            blocks: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds rows, all after those that were added before.
    pub(crate) fn push(&mut self, rows: &KeyedRows) -> Result<()> {
        let Some(bytes_a_row) = rows.bytes().checked_div(rows.len() as u64) else { return Ok(()) };
        let rows_max = (BLOCK_BYTES / bytes_a_row.max(1)).clamp(1, BLOCK_ROWS_MAX as u64) as usize;
        // All blocks have about as many rows.
        let block_rows = rows.len().div_ceil(rows.len().div_ceil(rows_max));
        for start in (0..rows.len()).step_by(block_rows) {
            let rows = rows.slice(start, block_rows.min(rows.len() - start));
            let block = encode_block(self.definition, &mut self.encoder, &rows)?;
            self.push_block(&rows, block);
        }
        Ok(())
    }

    /// Adds rows that are encoded already.
    pub(crate) fn push_block(&mut self, rows: &KeyedRows, block: Vec<u8>) {
        let Some(last) = rows.len().checked_sub(1) else { return };
        self.bytes += block.len();
        self.blocks.push(block);
        self.rows += rows.len();
        if let Some(filter) = &mut self.filter {
            add_keys(filter, rows);
        }
        self.record.deletions += rows.deleted.as_ref().map_or(0, |deleted| deleted.true_count() as u64);
        self.record.last = rows.key(last).to_vec();
        self.record.blocks.push(BlockRecord {
            first: rows.key(0).to_vec(),
            rows: rows.len() as u32,
            bytes: rows.bytes(),
        });
    }

    /// The blocks alone.
    pub(crate) fn into_blocks(self) -> Vec<Vec<u8>> {
        self.blocks
    }

    /// Bytes of its blocks.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the blocks, which are stored before the others are there.
    fn take_blocks(&mut self) -> Vec<Vec<u8>> {
        self.bytes = 0;
        std::mem::take(&mut self.blocks)
    }

    /// The run, if it has rows, and the blocks that were not taken.
    pub(crate) fn finish(mut self) -> Option<(RunRecord, Vec<Vec<u8>>)> {
        if self.record.blocks.is_empty() {
            return None;
        }
        if let Some(filter) = self.filter {
            self.record.filter = filter.as_slice().to_vec();
            self.record.filter_hashes = filter.num_hashes();
        }
        Some((self.record, self.blocks))
    }
}

/// A run that is stored in pieces while its rows come, so that only one of them is in memory.
pub(crate) struct RunWriter<'a> {
    builder: RunBuilder<'a>,
    store: Store,
    bucket: u64,
    number: u64,
    /// Blocks that are stored.
    stored: u32,
    is_finished: bool,
}

impl<'a> RunWriter<'a> {
    pub(crate) fn new(builder: RunBuilder<'a>, store: &Store, bucket: u64, number: u64) -> Self {
        Self { builder, store: store.clone(), bucket, number, stored: 0, is_finished: false }
    }

    /// Adds rows, all after those that were added before. Blocks the thread.
    pub(crate) fn push(&mut self, rows: &KeyedRows) -> Result<()> {
        self.builder.push(rows)?;
        if self.builder.bytes() < PIECE_BYTES {
            return Ok(());
        }
        let blocks = self.builder.take_blocks();
        let first = self.stored;
        // What is stored of a piece that fails is not known.
        self.stored += blocks.len() as u32;
        self.store.commit_blocking(vec![Change::PutBlocks(self.bucket, self.number, first, blocks)])
    }

    /// The run, if it has rows, and the changes that make it part of its bucket. Blocks the thread.
    ///
    /// # Errors
    /// If its blocks can't be read.
    pub(crate) fn finish(mut self) -> Result<Option<(RunRecord, Vec<Change>)>> {
        let keys = self.builder.rows.max(FILTER_KEYS_MIN);
        if self.builder.rows_expected / FILTER_WASTE_MAX > keys {
            self.builder.filter = Some(self.smaller_filter()?);
        }
        self.is_finished = true;
        let empty = RunBuilder::of_blocks(self.builder.definition);
        let Some((record, blocks)) = std::mem::replace(&mut self.builder, empty).finish() else {
            return Ok(None);
        };
        let rest = Change::PutBlocks(self.bucket, self.number, self.stored, blocks);
        let run = Change::PutRun(self.bucket, self.number, Box::new(record.clone()), Vec::new());
        Ok(Some((record, vec![rest, run])))
    }

    /// A filter for the rows that are there, after many were replaced or removed. It stays in memory with the run, so it
    /// is worth to read the blocks again.
    fn smaller_filter(&self) -> Result<BloomFilter> {
        let definition = self.builder.definition;
        let mut filter = empty_filter(self.builder.rows);
        for block in 0..self.stored {
            let rows =
                self.store.block(self.bucket, self.number, block, |block| decode_block(definition, block))?;
            add_keys(&mut filter, &rows);
        }
        for block in &self.builder.blocks {
            add_keys(&mut filter, &decode_block(definition, block)?);
        }
        Ok(filter)
    }
}

impl Drop for RunWriter<'_> {
    fn drop(&mut self) {
        if !self.is_finished && self.stored > 0 {
            self.store.commit_later(vec![Change::DeleteBlocks(self.bucket, self.number, self.stored)]);
        }
    }
}

/// The hash of a key in filters, which are stored.
pub(super) fn hash(key: &[u8]) -> u64 {
    SipHasher13::new().hash(key)
}

/// A stored run.
pub(crate) struct Run {
    bucket: u64,
    number: u64,
    record: RunRecord,
    /// Rows and bytes of the first blocks: of none, of one, and so on.
    sums: Vec<(u64, u64)>,
    filter: BloomFilter,
    stored: Blocks,
    /// Whether it is no longer part of its bucket. Its blocks are then removed with it.
    is_obsolete: AtomicBool,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Run({}, level {}, {} blocks)", self.number, self.record.level, self.record.blocks.len())
    }
}

impl Run {
    pub(crate) fn new(stored: Blocks, bucket: u64, number: u64, mut record: RunRecord) -> Self {
        let filter = std::mem::take(&mut record.filter);
        let filter = if filter.is_empty() { vec![u64::MAX] } else { filter };
        let filter = BloomFilter::from_vec(filter).seed(&0).hashes(record.filter_hashes.max(1));
        let mut sums = Vec::with_capacity(record.blocks.len() + 1);
        let mut sum = (0, 0);
        sums.push(sum);
        for block in &record.blocks {
            sum = (sum.0 + u64::from(block.rows), sum.1 + block.bytes);
            sums.push(sum);
        }
        Self { bucket, number, record, sums, filter, stored, is_obsolete: AtomicBool::new(false) }
    }

    /// Rows and bytes of the first blocks.
    fn sum(&self, blocks: usize) -> (u64, u64) {
        self.sums.get(blocks).or(self.sums.last()).copied().unwrap_or_default()
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The least key.
    pub(crate) fn first(&self) -> &[u8] {
        self.record.blocks.first().map_or(&[][..], |block| &block.first)
    }

    /// The greatest key.
    pub(crate) fn last(&self) -> &[u8] {
        &self.record.last
    }

    pub(crate) fn age(&self) -> u64 {
        self.record.age
    }

    pub(crate) fn level(&self) -> u32 {
        self.record.level
    }

    /// The number of its rows that are deletions.
    pub(crate) fn deletions(&self) -> u64 {
        self.record.deletions
    }

    pub(crate) fn blocks(&self) -> &[BlockRecord] {
        &self.record.blocks
    }

    /// Bytes of its rows as Arrow data.
    pub(crate) fn bytes(&self) -> u64 {
        self.sum(self.record.blocks.len()).1
    }

    /// Rows of its blocks that may have keys in the interval.
    pub(crate) fn rows_of(&self, interval: &Interval) -> usize {
        let blocks = self.blocks_of(interval);
        (self.sum(blocks.end as usize).0 - self.sum(blocks.start as usize).0) as usize
    }

    /// Bytes of its blocks that may have keys in the interval, as Arrow data.
    pub(crate) fn bytes_of(&self, interval: &Interval) -> u64 {
        let blocks = self.blocks_of(interval);
        self.sum(blocks.end as usize).1 - self.sum(blocks.start as usize).1
    }

    /// Rows and bytes with keys below `high`. Of the block with that key in it, half is counted.
    pub(crate) fn content_below(&self, high: Option<&[u8]>) -> (u64, u64) {
        let blocks = &self.record.blocks;
        let within = high.map_or(blocks.len(), |high| blocks.partition_point(|block| *block.first < *high));
        let is_cut = high.is_some_and(|high| match blocks.get(within) {
            Some(_) => true,
            None => *self.record.last >= *high,
        });
        let (rows, bytes) = self.sum(within);
        match within.checked_sub(1).and_then(|last| blocks.get(last)) {
            Some(last) if is_cut => (rows - u64::from(last.rows) / 2, bytes - last.bytes / 2),
            _ => (rows, bytes),
        }
    }

    /// Whether all its keys are below the end of the interval.
    pub(crate) fn ends_within(&self, interval: &Interval) -> bool {
        interval.high.as_ref().is_none_or(|high| self.record.last < *high)
    }

    /// Whether it may have rows with keys in the interval.
    pub(crate) fn meets(&self, interval: &Interval) -> bool {
        *interval.low <= *self.record.last && interval.high.as_ref().is_none_or(|high| *self.first() < **high)
    }

    /// The blocks that may have keys in the interval.
    pub(crate) fn blocks_of(&self, interval: &Interval) -> std::ops::Range<u32> {
        let blocks = &self.record.blocks;
        let start = blocks.partition_point(|block| block.first <= interval.low).saturating_sub(1);
        let end = interval
            .high
            .as_ref()
            .map_or(blocks.len(), |high| blocks.partition_point(|block| block.first < *high));
        start as u32..end.max(start) as u32
    }

    /// The rows of a block.
    pub(crate) fn block(&self, definition: &Definition, block: u32) -> Result<KeyedRows> {
        self.stored.read(definition, (self.bucket, self.number, block))
    }

    /// The rows of a block without their keys, and which of them are deletions.
    pub(crate) fn rows(
        &self,
        definition: &Definition,
        block: u32,
    ) -> Result<(RecordBatch, Option<BooleanArray>)> {
        self.stored.read_rows(definition, (self.bucket, self.number, block))
    }

    /// The interval in which the keys of a block are and no others of the run, and the number of its rows.
    pub(crate) fn block_bounds(&self, block: u32) -> (Interval, usize) {
        let blocks = &self.record.blocks;
        let next = blocks.get(block as usize + 1);
        let high = next.map_or_else(|| after(&self.record.last), |next| next.first.clone());
        let (low, rows) =
            blocks.get(block as usize).map_or((Vec::new(), 0), |block| (block.first.clone(), block.rows));
        (Interval::new(low, Some(high)), rows as usize)
    }

    /// The number of its rows in an interval, deletions too, if no block has an end of the interval.
    pub(crate) fn count_known(&self, interval: &Interval) -> Option<u64> {
        let blocks = self.blocks_of(interval);
        let is_whole =
            |block: Option<u32>| block.is_none_or(|block| interval.covers(&self.block_bounds(block).0));
        let ends = [blocks.clone().next(), blocks.clone().next_back()];
        let sum = |block: u32| self.sum(block as usize).0;
        ends.into_iter().all(is_whole).then(|| sum(blocks.end) - sum(blocks.start.min(blocks.end)))
    }

    /// The number of its rows in an interval, deletions too. Only blocks with an end of the interval are read.
    pub(crate) fn count(&self, definition: &Definition, interval: &Interval) -> Result<u64> {
        self.blocks_of(interval).try_fold(0, |count, number| {
            let (keys, rows) = self.block_bounds(number);
            if interval.covers(&keys) {
                return Ok(count + rows as u64);
            }
            let rows = self.block(definition, number)?;
            let start = rows.lower_bound(0, &interval.low);
            let end = interval.high.as_ref().map_or(rows.len(), |high| rows.lower_bound(start, high));
            Ok(count + (end - start) as u64)
        })
    }

    /// The row with a key, whose [`hash`] is given. Its block is kept, for others that will be looked up.
    pub(crate) fn find(&self, definition: &Definition, key: &[u8], hash: u64) -> Result<Option<KeyedRows>> {
        let Some(block) = self.block_with(key, hash) else { return Ok(None) };
        let rows = self.stored.read_often(definition, (self.bucket, self.number, block))?;
        Ok(rows.find(key).map(|row| rows.slice(row, 1)))
    }

    /// The row with a key, whose [`hash`] is given, and whether it is a deletion.
    fn get(&self, definition: &Definition, key: &[u8], hash: u64) -> Result<Option<(RecordBatch, bool)>> {
        let Some(block) = self.block_with(key, hash) else { return Ok(None) };
        self.stored.find(definition, (self.bucket, self.number, block), key)
    }

    /// The same, if it is known without reading.
    fn get_kept(
        &self,
        definition: &Definition,
        key: &[u8],
        hash: u64,
    ) -> Option<Result<Option<(RecordBatch, bool)>>> {
        match self.block_with(key, hash) {
            None => Some(Ok(None)),
            Some(block) => self.stored.find_kept(definition, (self.bucket, self.number, block), key),
        }
    }

    /// The block that has a key, if any has it.
    fn block_with(&self, key: &[u8], hash: u64) -> Option<u32> {
        if key < self.first() || *key > *self.record.last || !self.filter.contains_hash(hash) {
            return None;
        }
        Some(self.record.blocks.partition_point(|block| *block.first <= *key).saturating_sub(1) as u32)
    }

    /// The run is no longer part of its bucket: its blocks are removed once nobody reads them.
    pub(crate) fn make_obsolete(&self) {
        self.is_obsolete.store(true, Ordering::Relaxed);
    }
}

impl View {
    /// Bytes, as Arrow data, that its rows in an interval have at least.
    pub(crate) fn bytes_at_least(&self, interval: &Interval) -> u64 {
        // Rows of one run have different keys; those of others, and deletions, may replace each other.
        let runs = self.runs.iter().filter(|run| run.deletions() == 0);
        let bytes = runs.map(|run| {
            let blocks = run.blocks_of(interval);
            let inner = blocks.start as usize + 1..(blocks.end as usize).saturating_sub(1);
            run.sum(inner.end).1.saturating_sub(run.sum(inner.start).1)
        });
        bytes.max().unwrap_or(0)
    }

    /// The row with a key.
    ///
    /// # Errors
    /// If it can't be read.
    pub(crate) fn get(&self, definition: &Definition, key: &[u8]) -> Result<Option<RecordBatch>> {
        let hash = hash(key);
        for run in self.runs.iter().rev() {
            if let Some((row, is_deleted)) = run.get(definition, key, hash)? {
                return Ok((!is_deleted).then_some(row));
            }
        }
        Ok(None)
    }

    /// The row with a key, if all blocks that may have it are in memory.
    pub(crate) fn get_kept(
        &self,
        definition: &Definition,
        key: &[u8],
    ) -> Option<Result<Option<RecordBatch>>> {
        let hash = hash(key);
        for run in self.runs.iter().rev() {
            match run.get_kept(definition, key, hash)? {
                Ok(Some((row, is_deleted))) => return Some(Ok((!is_deleted).then_some(row))),
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(None))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.is_obsolete.load(Ordering::Relaxed) {
            let blocks = self.record.blocks.len() as u32;
            self.stored.store().commit_later(vec![Change::DeleteBlocks(self.bucket, self.number, blocks)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Int64Array, RecordBatch};
    use arrow_schema::{DataType, Field, Schema};

    use super::*;
    use crate::definition::Capacity;

    /// The bits are stored: an upgrade of a library must not change them, or keys are not found.
    #[test]
    fn filters_have_the_stored_bits() {
        let definition = definition_of_ids();
        let ids: Int64Array = (0..20).map(|id| Some(id * 7)).collect();
        let rows = RecordBatch::try_new(definition.loose().clone(), vec![Arc::new(ids)]).unwrap();
        let mut builder = RunBuilder::new(&definition, 0, 0, 20);
        builder.push(&KeyedRows::new(&definition, rows, None).unwrap()).unwrap();
        let (record, _) = builder.finish().unwrap();
        assert_eq!((record.filter, record.filter_hashes), (FILTER.to_vec(), 7));
        assert_eq!(hash(b"lightship"), 15605782144331435971);
    }

    /// Most rows replace others.
    #[tokio::test]
    async fn a_filter_has_room_for_the_rows_that_are_left() {
        let definition = definition_of_ids();
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        let of_rows = move |ids: std::ops::Range<i64>, rows_expected| {
            let ids: Int64Array = ids.map(Some).collect();
            let rows = RecordBatch::try_new(definition.loose().clone(), vec![Arc::new(ids)]).unwrap();
            let builder = RunBuilder::new(&definition, 0, 0, rows_expected);
            let mut writer = RunWriter::new(builder, &store, 1, 0);
            writer.push(&KeyedRows::new(&definition, rows, None).unwrap()).unwrap();
            let (record, _) = writer.finish().unwrap().unwrap();
            (record.filter.len(), Run::new(Blocks::new(store.clone()), 1, 0, record))
        };
        let built = move || {
            let (exact, _) = of_rows(0..5000, 5000);
            let (many, _) = of_rows(0..5000, 10_000);
            let (few, run) = of_rows(0..5000, 40_000);
            assert_eq!(few, exact);
            assert!(many > exact && many <= 2 * exact + 1, "{many} {exact}");
            let has = |id: i64| {
                let key: Int64Array = [Some(id)].into_iter().collect();
                let key = definition_of_ids().format().key(&[Arc::new(key)]).unwrap();
                run.filter.contains_hash(hash(&key))
            };
            assert!((0..5000).all(has));
            assert!((5000..10_000).filter(|id| has(*id)).count() < 200);
        };
        tokio::task::spawn_blocking(built).await.unwrap();
    }

    fn definition_of_ids() -> Definition {
        let columns = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
        Definition::new("t", &columns, &["id".into()], Capacity::default()).unwrap()
    }

    const FILTER: [u64; 3] = [13959090605652200016, 18062736321125080227, 9249789543722999911];
}
