//! Frames and messages: rows to bytes and back, as `docs/format.md` specifies.
//!
//! - [`frame`]: the 32-byte header before everything that is sent, with its
//!   checksums and limits.
//! - [`Encoder`] and [`decode`]: a run of rows as one self-contained
//!   [`EncodedMessage`] and back. Arrow buffers go out as they lie in memory and
//!   come in without being copied.
//!   With a light [`Codec`] each column goes out in the cheapest encoding of its own.
//! - [`Cutter`]: a batch as runs of rows that each fit a message.
//! - [`schema`]: columns and their types.
//! - [`control`]: everything else two ends say to each other; [`tuning`]: what they
//!   say so that the producer can choose the codec; [`local`]: what is said only
//!   where both are on one host; [`join`]: what is said of a result that comes over
//!   several connections; [`cluster`]: what nodes ask each other for.
//!
//! No I/O, no clock, no threads. Nothing here trusts what it reads: lengths are
//! checked before memory is taken, and every failure is a [`WireError`].
//!
//! ```
//! use std::sync::Arc;
//! use arrow_array::{Int64Array, RecordBatch};
//! use arrow_buffer::Buffer;
//! use lightship_wire::{Codec, Encoder, decode};
//!
//! let batch = RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(vec![1, 2, 3])) as _)])?;
//! let message = Encoder::new(Codec::None).encode(&batch)?;
//! let payload = Buffer::from_vec(message.to_vec());
//! assert_eq!(decode(&batch.schema(), payload, 1 << 20)?, batch);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bytes;
pub mod cluster;
mod codec;
pub mod control;
mod cut;
mod decode;
mod encode;
mod error;
pub mod frame;
mod head;
pub mod join;
mod layout;
mod light;
pub mod local;
mod message;
pub mod schema;
pub mod tuning;

pub use codec::Codec;
pub use cut::Cutter;
pub use decode::{Peek, decode, peek};
pub use encode::Encoder;
pub use error::{Result, WireError};
pub use layout::{message_bytes, rows_bytes};
pub use message::EncodedMessage;
