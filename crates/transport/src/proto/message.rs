//! A message that is not decoded yet, or whose payload has not arrived.

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use lightship_wire::join::Placeholder;
use lightship_wire::{Codec, decode, peek};

use crate::{Result, TransportError};

/// A run of rows that is not decoded yet. Any thread can decode it.
#[derive(Debug, Clone)]
pub struct Message {
    pub(super) codec: Codec,
    pub(super) payload: Buffer,
    pub(super) schema: SchemaRef,
    pub(super) body_bytes: u32,
    pub(super) body_bytes_max: u32,
}

impl Message {
    /// The codec that the producer announced.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// The size of its rows, as its head states.
    pub fn body_bytes(&self) -> u32 {
        self.body_bytes
    }

    /// Decodes the rows.
    ///
    /// # Errors
    /// If it is not a valid message with the result's columns.
    pub fn decode(self) -> Result<RecordBatch> {
        Ok(decode(&self.schema, self.payload, self.body_bytes_max)?)
    }
}

/// A message whose placeholder has arrived. Its payload comes over a joined connection.
#[derive(Debug, Clone)]
pub struct PendingMessage {
    pub(super) placeholder: Placeholder,
    pub(super) message: Message,
}

impl PendingMessage {
    /// The number of the connection, from 1. The payload is the next one on it.
    pub fn connection(&self) -> u32 {
        self.placeholder.connection
    }

    /// Completes the message with its payload.
    ///
    /// # Errors
    /// If the payload does not match the placeholder.
    pub fn arrive(self, payload: Buffer) -> Result<Message> {
        let found = peek(&payload)?;
        let Placeholder { connection, bytes, rows, body_bytes } = self.placeholder;
        if (payload.len() as u64, found.rows, found.body_bytes) != (bytes.into(), rows, body_bytes) {
            return Err(TransportError::Protocol(format!(
                "the payload on connection {connection} does not match its placeholder"
            )));
        }
        Ok(Message { payload, ..self.message })
    }
}
