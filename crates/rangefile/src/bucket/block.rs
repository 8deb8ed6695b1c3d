//! Blocks: rows as bytes, in the order of their keys.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{BooleanArray, RecordBatch};
use arrow_buffer::Buffer;
use arrow_row::Rows;
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use lightship_wire::{Codec, Encoder, decode};

use crate::definition::Definition;
use crate::error::{RangeError, Result};

/// Before the message: flags (u8), three unused bytes, CRC-32C of the message (u32).
const HEADER_BYTES: usize = 8;
/// The rows have a column of deletions.
const HAS_DELETIONS: u8 = 1;
/// The largest message in a block.
const MESSAGE_BYTES_MAX: u32 = 1 << 30;

/// Rows with their keys, sorted; no key is there twice.
#[derive(Clone)]
pub(crate) struct KeyedRows {
    /// The columns of [`Definition::loose`]. Of deletions, only those of the key have values.
    pub(crate) rows: RecordBatch,
    /// The keys of the rows.
    pub(crate) keys: Arc<Rows>,
    /// The keys' first row in `keys`: rows are slices of others.
    pub(crate) offset: usize,
    /// Which rows are deletions; `None` if there are no deletions.
    pub(crate) deleted: Option<BooleanArray>,
}

impl std::fmt::Debug for KeyedRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyedRows({})", self.len())
    }
}

impl KeyedRows {
    /// Rows that are sorted.
    ///
    /// # Errors
    /// If they are not, or a key is NULL, too long, or there twice.
    pub(crate) fn new(
        definition: &Definition,
        rows: RecordBatch,
        deleted: Option<BooleanArray>,
    ) -> Result<Self> {
        let keys = definition.format().keys(&rows)?;
        if (1..keys.num_rows()).any(|row| keys.row(row - 1) >= keys.row(row)) {
            return Err(RangeError::Definition("rows are not in the order of their keys".into()));
        }
        let deleted = deleted.filter(|deleted| deleted.true_count() > 0);
        Ok(Self { rows, keys: Arc::new(keys), offset: 0, deleted })
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.num_rows()
    }

    pub(crate) fn key(&self, row: usize) -> &[u8] {
        self.keys.row(self.offset + row).data()
    }

    pub(crate) fn is_deleted(&self, row: usize) -> bool {
        self.deleted.as_ref().is_some_and(|deleted| deleted.value(row))
    }

    pub(crate) fn slice(&self, start: usize, len: usize) -> Self {
        Self {
            rows: self.rows.slice(start, len),
            keys: self.keys.clone(),
            offset: self.offset + start,
            deleted: self.deleted.as_ref().map(|deleted| deleted.slice(start, len)),
        }
    }

    /// The first row whose key is not less than `key`, from row `from` on.
    pub(crate) fn lower_bound(&self, from: usize, key: &[u8]) -> usize {
        self.bound_within(from, self.len(), key)
    }

    /// As [`KeyedRows::lower_bound`], and faster if it is near `from`.
    pub(crate) fn lower_bound_near(&self, from: usize, key: &[u8]) -> usize {
        let (mut low, mut step) = (from, 1);
        while low + step <= self.len() && self.key(low + step - 1) < key {
            low += step;
            step *= 2;
        }
        let end = self.len().min(low + step);
        self.bound_within(low, end, key)
    }

    /// The first row of `low..high` whose key is not less than `key`; `high` if there is none.
    fn bound_within(&self, mut low: usize, mut high: usize, key: &[u8]) -> usize {
        while low < high {
            let middle = low + (high - low) / 2;
            if self.key(middle) < key { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// The row with a key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        let row = self.lower_bound(0, key);
        (row < self.len() && self.key(row) == key).then_some(row)
    }

    /// About the bytes of its rows as Arrow data.
    pub(crate) fn bytes(&self) -> u64 {
        lightship_wire::rows_bytes(&self.rows)
    }
}

/// Encodes rows as a block.
pub(crate) fn encode_block(
    definition: &Definition,
    encoder: &mut Encoder,
    rows: &KeyedRows,
) -> Result<Vec<u8>> {
    let has_deletions = rows.deleted.is_some();
    let mut columns = rows.rows.columns().to_vec();
    if let Some(deleted) = &rows.deleted {
        columns.push(Arc::new(deleted.clone()));
    }
    let batch = RecordBatch::try_new(definition.stored(has_deletions).clone(), columns)?;
    let message = encoder.encode(&batch)?;
    let mut block = Vec::with_capacity(HEADER_BYTES + message.payload_bytes() as usize);
    block.extend_from_slice(&[if has_deletions { HAS_DELETIONS } else { 0 }, 0, 0, 0, 0, 0, 0, 0]);
    message.pieces().for_each(|piece| block.extend_from_slice(piece));
    let crc = crc_fast::checksum(Crc32Iscsi, &block[HEADER_BYTES..]) as u32;
    block[4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    Ok(block)
}

/// An encoder for blocks.
pub(crate) fn block_encoder() -> Encoder {
    Encoder::new(Codec::Light)
}

/// The rows of a block, as its head says; 0 if it is damaged.
pub(crate) fn block_rows(block: &[u8]) -> usize {
    let message = block.get(HEADER_BYTES..).unwrap_or_default();
    lightship_wire::peek(message).map_or(0, |head| head.rows as usize)
}

/// Decodes a block.
///
/// # Errors
/// [`RangeError::Damaged`] if it is not what was encoded.
pub(crate) fn decode_block(definition: &Definition, block: &[u8]) -> Result<KeyedRows> {
    let (rows, deleted) = decode_rows(definition, block)?;
    KeyedRows::new(definition, rows, deleted)
}

/// The rows of a block without their keys, and which of them are deletions.
pub(crate) type BlockRows = (RecordBatch, Option<BooleanArray>);

/// The row with a key in a block, and whether it is a deletion. Makes the keys of few rows.
///
/// # Errors
/// If a key can't be made: the block is damaged.
pub(crate) fn find_row(
    definition: &Definition,
    (rows, deleted): &BlockRows,
    key: &[u8],
) -> Result<Option<(RecordBatch, bool)>> {
    let (mut low, mut high) = (0, rows.num_rows());
    while low < high {
        let middle = low + (high - low) / 2;
        let row = rows.slice(middle, 1);
        match definition.format().keys(&row)?.row(0).data().cmp(key) {
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
            Ordering::Equal => {
                let is_deleted = deleted.as_ref().is_some_and(|deleted| deleted.value(middle));
                return Ok(Some((row, is_deleted)));
            }
        }
    }
    Ok(None)
}

/// The rows of a block, and which of them are deletions. Does not look at the order of their keys.
///
/// # Errors
/// As [`decode_block`].
pub(crate) fn decode_rows(definition: &Definition, block: &[u8]) -> Result<BlockRows> {
    let damaged = |why: String| RangeError::Damaged(format!("a block of {}: {why}", definition.name));
    let Some((header, message)) = block.split_at_checked(HEADER_BYTES) else {
        return Err(damaged(format!("it has {} bytes", block.len())));
    };
    let crc = crc_fast::checksum(Crc32Iscsi, message) as u32;
    if header[4..] != crc.to_le_bytes() {
        return Err(damaged("the checksum is wrong".into()));
    }
    let has_deletions = match header[0] {
        0 => false,
        HAS_DELETIONS => true,
        other => return Err(damaged(format!("unknown flags {other}"))),
    };
    // A copy that begins where memory is aligned, so that `decode` need not copy the columns again.
    let batch = decode(definition.stored(has_deletions), Buffer::from(message), MESSAGE_BYTES_MAX)
        .map_err(|error| damaged(error.to_string()))?;
    let columns = definition.schema.fields().len();
    let deleted = has_deletions.then(|| batch.column(columns).as_boolean().clone());
    let rows = RecordBatch::try_new(definition.loose().clone(), batch.columns()[..columns].to_vec())?;
    Ok((rows, deleted))
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, StringArray};
    use arrow_schema::Schema;

    use super::*;
    use crate::definition::Capacity;

    /// The bytes are stored: an upgrade of a library must not change them. Blocks that were written before must be
    /// read as well, so the bytes here are never edited.
    #[test]
    fn blocks_have_the_stored_bytes() {
        let columns = Schema::new(vec![
            arrow_schema::Field::new("id", arrow_schema::DataType::Int64, false),
            arrow_schema::Field::new("text", arrow_schema::DataType::Utf8, true),
        ]);
        let definition = Definition::new("t", &columns, &["id".into()], Capacity::default()).unwrap();
        let ids = Int64Array::from(vec![1, 2, 258]);
        let texts = StringArray::from(vec![Some("a"), None, Some("ü")]);
        let rows =
            RecordBatch::try_new(definition.loose().clone(), vec![Arc::new(ids), Arc::new(texts)]).unwrap();
        let deleted = BooleanArray::from(vec![false, true, false]);
        for (deleted, golden) in [(None, PLAIN), (Some(deleted), WITH_DELETIONS)] {
            let rows = KeyedRows::new(&definition, rows.clone(), deleted.clone()).unwrap();
            let block = encode_block(&definition, &mut block_encoder(), &rows).unwrap();
            let hex: String = block.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, golden);
            let without_keys = decode_rows(&definition, &block).unwrap();
            let read = decode_block(&definition, &block).unwrap();
            assert_eq!((&read.rows, &read.deleted), (&rows.rows, &deleted));
            for row in 0..rows.len() {
                let found = find_row(&definition, &without_keys, rows.key(row)).unwrap();
                assert_eq!(found, Some((rows.rows.slice(row, 1), rows.is_deleted(row))));
                let other = crate::key::after(rows.key(row));
                assert_eq!(find_row(&definition, &without_keys, &other).unwrap(), None);
            }
        }
    }

    const PLAIN: &str = "000000003b04d28f030000000000000002000000040000005000000003000000000000000300000001000000180000000100000010000000030000000000000000000000000000000100000000000000020000000000000002010000000000000000000000000000050000000000000000000000000000000000000001000000010000000300000061c3bc00000000000000000000000000";
    const WITH_DELETIONS: &str = "01000000a6c3ba2e030000000000000003000000050000006000000003000000000000000300000001000000030000000000000018000000010000001000000003000000010000000100000000000000020000000000000002010000000000000000000000000000050000000000000000000000000000000000000001000000010000000300000061c3bc0000000000000000000000000002000000000000000000000000000000";
}
