//! A message that has come, not yet decoded.

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use lightship_wire::{Codec, decode};

use crate::Result;

/// A run of rows as it came: for whoever has a thread to spare to decode it.
#[derive(Debug, Clone)]
pub struct Message {
    pub(super) codec: Codec,
    pub(super) payload: Buffer,
    pub(super) schema: SchemaRef,
    pub(super) body_bytes: u32,
    pub(super) body_bytes_max: u32,
}

impl Message {
    /// How the producer encoded it, by what it said.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Bytes that its rows take, by its own account.
    pub fn body_bytes(&self) -> u32 {
        self.body_bytes
    }

    /// Its rows.
    ///
    /// # Errors
    /// When it is no message of the result's columns.
    pub fn decode(self) -> Result<RecordBatch> {
        Ok(decode(&self.schema, self.payload, self.body_bytes_max)?)
    }
}
