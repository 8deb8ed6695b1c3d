//! Cuts a batch into runs of rows that each fit in a message.

use arrow_array::RecordBatch;

use crate::error::{Result, WireError};
use crate::layout::message_bytes;

/// Cuts a batch into messages of at most a given size.
///
/// Runs have equal length if possible, so that the last message is not tiny. A row larger than a message is sent
/// alone if the consumer accepts messages of that size; otherwise the error states the size.
#[derive(Debug, Clone, Copy)]
pub struct Cutter {
    message_bytes: u64,
    message_bytes_max: u64,
}

impl Cutter {
    /// Cuts messages of at most `message_bytes`, or `message_bytes_max` for a single row.
    pub fn new(message_bytes: u32, message_bytes_max: u32) -> Self {
        let message_bytes = message_bytes.min(message_bytes_max);
        Self { message_bytes: message_bytes.into(), message_bytes_max: message_bytes_max.into() }
    }

    /// The maximum size of a message of several rows.
    pub fn message_bytes(&self) -> u64 {
        self.message_bytes
    }

    /// The number of rows from `start` for the next message. Zero only at the end.
    ///
    /// # Errors
    /// [`WireError::RowTooLarge`] if the row at `start` does not fit in a message.
    pub fn next_rows(&self, batch: &RecordBatch, start: usize) -> Result<usize> {
        let rest = (batch.num_rows() - start).min(u32::MAX as usize);
        if rest == 0 {
            return Ok(0);
        }
        let fits = |rows| message_bytes(batch, start, rows) <= self.message_bytes;
        let total = message_bytes(batch, start, rest);
        if total <= self.message_bytes {
            return Ok(rest);
        }
        let even = rest.div_ceil(total.div_ceil(self.message_bytes) as usize);
        if fits(even) {
            return Ok(even);
        }
        // The rows differ in size: find the maximum that fits. `low` fits, `high` does not.
        let (mut low, mut high) = (0, even);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        if low > 0 {
            return Ok(low);
        }
        let needed_bytes = message_bytes(batch, start, 1);
        if needed_bytes <= self.message_bytes_max {
            return Ok(1);
        }
        Err(WireError::RowTooLarge { row: start, needed_bytes, limit_bytes: self.message_bytes_max })
    }
}
