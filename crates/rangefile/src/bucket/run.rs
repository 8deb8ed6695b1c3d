//! Runs: sorted rows of a bucket that were written together, in blocks. A run never changes.

use std::sync::atomic::{AtomicBool, Ordering};

use fastbloom::BloomFilter;
use siphasher::sip::SipHasher13;

use super::block::{KeyedRows, block_encoder, encode_block};
use super::blocks::Blocks;
use crate::definition::Definition;
use crate::error::Result;
use crate::key::Interval;
use crate::request::{BlockRecord, RunRecord};
use crate::store::Change;

/// Bytes of Arrow data in a block. With its keys it is just below a power of two, the storage's unit.
const BLOCK_BYTES: u64 = 250 << 10;
/// Rows of a block.
const BLOCK_ROWS_MAX: usize = 8192;
/// Of a hundred keys that a run does not have, its filter passes about one.
const FILTER_ERROR: f64 = 0.01;

/// A run, as its blocks are added.
pub(crate) struct RunBuilder<'a> {
    definition: &'a Definition,
    encoder: lightship_wire::Encoder,
    hashes: Vec<u64>,
    record: RunRecord,
    blocks: Vec<Vec<u8>>,
}

impl<'a> RunBuilder<'a> {
    pub(crate) fn new(definition: &'a Definition, level: u32, age: u64) -> Self {
        let record = RunRecord { level, age, ..RunRecord::default() };
        Self { definition, encoder: block_encoder(), hashes: Vec::new(), record, blocks: Vec::new() }
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
        self.blocks.push(block);
        self.hashes.extend((0..rows.len()).map(|row| hash(rows.key(row))));
        self.record.has_deletions |= rows.deleted.is_some();
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
        self.blocks.iter().map(Vec::len).sum()
    }

    /// The run, if it has rows.
    pub(crate) fn finish(mut self) -> Option<(RunRecord, Vec<Vec<u8>>)> {
        if self.blocks.is_empty() {
            return None;
        }
        let mut filter = BloomFilter::with_false_pos(FILTER_ERROR).seed(&0).expected_items(self.hashes.len());
        for hash in &self.hashes {
            filter.insert_hash(*hash);
        }
        self.record.filter = filter.as_slice().to_vec();
        self.record.filter_hashes = filter.num_hashes();
        Some((self.record, self.blocks))
    }
}

/// The hash of a key in filters, which are stored.
fn hash(key: &[u8]) -> u64 {
    SipHasher13::new().hash(key)
}

/// A stored run.
pub(crate) struct Run {
    bucket: u64,
    number: u64,
    record: RunRecord,
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
        Self { bucket, number, record, filter, stored, is_obsolete: AtomicBool::new(false) }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn age(&self) -> u64 {
        self.record.age
    }

    pub(crate) fn level(&self) -> u32 {
        self.record.level
    }

    pub(crate) fn blocks(&self) -> &[BlockRecord] {
        &self.record.blocks
    }

    /// Rows and bytes with keys below `high`. Of the block with that key in it, half is counted.
    pub(crate) fn content_below(&self, high: Option<&[u8]>) -> (u64, u64) {
        let blocks = &self.record.blocks;
        let within = high.map_or(blocks.len(), |high| blocks.partition_point(|block| *block.first < *high));
        let is_cut = high.is_some_and(|high| match blocks.get(within) {
            Some(_) => true,
            None => *self.record.last >= *high,
        });
        blocks[..within].iter().enumerate().fold((0, 0), |(rows, bytes), (number, block)| {
            let divisor = if is_cut && number + 1 == within { 2 } else { 1 };
            (rows + u64::from(block.rows).div_ceil(divisor), bytes + block.bytes.div_ceil(divisor))
        })
    }

    /// Whether all its keys are below the end of the interval.
    pub(crate) fn ends_within(&self, interval: &Interval) -> bool {
        interval.high.as_ref().is_none_or(|high| self.record.last < *high)
    }

    /// Whether it may have rows with keys in the interval.
    pub(crate) fn meets(&self, interval: &Interval) -> bool {
        let first = self.record.blocks.first().map_or(&[][..], |block| &block.first);
        *interval.low <= *self.record.last && interval.high.as_ref().is_none_or(|high| *first < **high)
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

    /// The row with a key.
    pub(crate) fn find(&self, definition: &Definition, key: &[u8]) -> Result<Option<KeyedRows>> {
        if !self.meets(&Interval::of_key(key)) || !self.filter.contains_hash(hash(key)) {
            return Ok(None);
        }
        let block = self.record.blocks.partition_point(|block| *block.first <= *key).saturating_sub(1) as u32;
        let rows = self.stored.read_often(definition, (self.bucket, self.number, block))?;
        Ok(rows.find(key).map(|row| rows.slice(row, 1)))
    }

    /// The run is no longer part of its bucket: its blocks are removed once nobody reads them.
    pub(crate) fn make_obsolete(&self) {
        self.is_obsolete.store(true, Ordering::Relaxed);
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
