//! Frames and messages: encodes rows as bytes and decodes them, as `docs/format.md` specifies.
//!
//! - [`frame`]: the 32-byte header of each frame, with its checksums and limits.
//! - [`Encoder`] and [`decode`]: convert a run of rows to a self-contained [`EncodedMessage`] and back. Arrow
//!   buffers are sent as they are in memory and read without being copied. With a light [`Codec`], each column is
//!   sent in its cheapest encoding.
//! - [`Cutter`]: cuts a batch into runs of rows that each fit in a message.
//! - [`schema`]: columns and their types.
//! - [`control`]: all other frames, except those of the following modules. [`tuning`]: choice of codec and sizes.
//!   [`statement`]: statements with parameters. [`shm`]: shared memory on one host. [`join`]: a result over several connections. [`cluster`]: requests
//!   between nodes. [`overlay`]: frames that other nodes forward.
//!
//! The crate does no I/O, reads no clock and starts no threads. It does not trust its input: lengths are checked
//! before memory is allocated, and every failure is a [`WireError`].
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
mod gather;
mod head;
pub mod join;
mod layout;
mod light;
mod message;
pub mod overlay;
mod reason;
pub mod schema;
pub mod shm;
pub mod statement;
pub mod tuning;

pub use codec::Codec;
pub use cut::Cutter;
pub use decode::{Peek, decode, peek};
pub use encode::Encoder;
pub use error::{Result, WireError};
pub use layout::{joined_bytes, message_bytes, rows_bytes};
pub use message::EncodedMessage;
