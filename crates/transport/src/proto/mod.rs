//! The protocol as two state machines without I/O: [`Client`] and [`Server`].
//!
//! Each is fed with frames and the time, and asked for frames to send, events
//! to act on and the next time it wants to be woken. One result travels on a
//! connection at a time; the next query takes the next stream number, so that
//! what is still on its way from a cancelled one is recognised. Payloads of its
//! messages may come by further connections, which do nothing else
//! (`docs/decisions/0007-several-connections.md`).

mod client;
mod liveness;
mod message;
mod outbox;
mod server;
mod stall;

pub use client::{Client, ClientEvent, CodecTotals, Resized, Retuned, Totals};
pub use liveness::Liveness;
pub use message::{Awaited, Message};
pub use outbox::{Frame, Payload};
pub use server::{Server, ServerEvent};
pub use stall::{OVERSLEPT, Stall};

use std::time::Duration;

/// A batch may have this many messages, however small it is.
const BATCH_MESSAGES: u32 = 256;
/// A larger one has a message for so many bytes.
const BATCH_BYTES_PER_MESSAGE: u32 = 1024;

/// Most messages of a batch of at most so many bytes, so that messages waiting to be consumed are
/// bounded in number as well as in bytes.
pub fn batch_messages_max(batch_bytes: u32) -> u32 {
    (batch_bytes / BATCH_BYTES_PER_MESSAGE).max(BATCH_MESSAGES)
}
/// So many changes of the codec, and of the sizes, are reported of a result.
pub const RETUNES_MAX: usize = 256;
/// No server has a client wait in line for longer, and no client waits.
pub const QUEUE_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Largest window a server grants.
pub const WINDOW_BATCHES_MAX: u32 = 1024;

#[cfg(test)]
mod tests;
