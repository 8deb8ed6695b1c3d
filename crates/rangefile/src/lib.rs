//! Range-partitioned files: rows in the order of a key, in buckets over many nodes. A bucket that is full splits,
//! and its upper half moves to the node with the least; neighbours that have shrunk merge.
//!
//! After W. Litwin, M.-A. Neimat and D. Schneider, "RP*: A Family of Order Preserving Scalable Distributed Data
//! Structures" (1994): a client has an [`Image`] of where the keys are, which may be stale, and corrects it when a
//! bucket refuses what is not its own. A scan is complete when the answers cover its interval.
//!
//! - [`Definition`]: the columns of a file, its key, and the capacity of its buckets.
//! - [`Node`]: the buckets of one node, on disk, and its answers to requests.
//! - [`RangeFile`]: the client, which reads and writes a file on all nodes.
//! - [`Network`]: how requests reach nodes; [`Connections`] is one over the client protocol.
//!
//! There is one copy of each bucket: while its node is down, its keys can't be read or written.

mod bucket;
mod client;
mod connect;
mod definition;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod group;
mod image;
mod key;
mod key_bytes;
mod locate;
mod network;
mod node;
mod request;
#[cfg(test)]
mod simulation;
mod split;
mod store;

pub use client::{ClientOptions, Grouping, Order, RangeFile, RowWriter, ScanOptions, ScanReport, Scanned};
pub use connect::{Connections, LONE_NODE};
pub use definition::{Capacity, Definition};
pub use error::{RangeError, Result};
pub use image::{Image, Owner, Piece};
pub use key::{Interval, KEY_BYTES_MAX, Key, KeyFormat};
pub use lightship_transport::proto::reception::{ReceptionMode, ReceptionReport, ReceptionStrategy};
pub use network::{Network, Reply};
pub use node::Node;
pub use request::{BucketEntry, BucketLoad, RangeRecord, WriteMode};
