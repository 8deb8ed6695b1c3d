//! A message that has come, not yet decoded, or that will.

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use lightship_wire::join::Dealt;
use lightship_wire::{Codec, decode, peek};

use crate::{Result, TransportError};

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

/// A message of which all is known but its payload, which comes by a joined connection.
#[derive(Debug, Clone)]
pub struct Awaited {
    pub(super) dealt: Dealt,
    pub(super) message: Message,
}

impl Awaited {
    /// Number of the connection, from 1: the payload is the next one there.
    pub fn connection(&self) -> u32 {
        self.dealt.connection
    }

    /// The message with its payload.
    ///
    /// # Errors
    /// When it is not the payload that was announced.
    pub fn arrive(self, payload: Buffer) -> Result<Message> {
        let found = peek(&payload)?;
        let Dealt { connection, bytes, rows, body_bytes } = self.dealt;
        if (payload.len() as u64, found.rows, found.body_bytes) != (bytes.into(), rows, body_bytes) {
            return Err(TransportError::Protocol(format!(
                "connection {connection} brought another message than was dealt to it"
            )));
        }
        Ok(Message { payload, ..self.message })
    }
}
