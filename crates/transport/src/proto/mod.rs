//! The protocol as two state machines without I/O: [`Client`] and [`Server`].
//!
//! The caller passes in frames and the time, and takes out frames to send, events to act on and the
//! next time to call again. A connection carries many results at once. Each has its own stream and its
//! own credit; each query takes the next stream number (`docs/decisions/0021-one-wire.md`). Messages of
//! one result may be striped over several connections (`docs/decisions/0007-several-connections.md`).

mod client;
mod liveness;
mod message;
mod outbox;
pub mod reception;
mod server;
mod stall;

pub use client::{Client, ClientEvent, CodecTotals, Resized, Retuned, Totals};
pub use liveness::Liveness;
pub use message::{Message, PendingMessage};
pub use outbox::Frame;
pub use server::{Server, ServerEvent};
pub use stall::{OVERSLEPT, Stall};

use std::time::Duration;

/// Messages that a batch of any size may have.
const BATCH_MESSAGES: u32 = 256;
/// A large batch may have one message for each of this many bytes.
const BATCH_BYTES_PER_MESSAGE: u32 = 1024;

/// The maximum number of messages in a batch of at most `batch_bytes`. It bounds the messages that wait
/// for the consumer in number as well as in bytes.
pub fn batch_messages_max(batch_bytes: u32) -> u32 {
    (batch_bytes / BATCH_BYTES_PER_MESSAGE).max(BATCH_MESSAGES)
}
/// Changes of the codec, and of the sizes, that are reported for each result.
pub const RETUNES_MAX: usize = 256;
/// The longest time that a client waits in a server's queue.
pub const QUEUE_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// The maximum number of concurrent results on one connection.
pub const STREAMS_MAX: usize = 4096;
/// The largest window that a server grants.
pub const WINDOW_BATCHES_MAX: u32 = 1024;

#[cfg(test)]
mod tests;
