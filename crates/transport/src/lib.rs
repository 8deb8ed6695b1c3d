//! Sends the results of queries from a server to a client.
//!
//! - [`proto`]: the protocol as state machines without sockets or clock. Frames and times go in, frames and
//!   events come out.
//! - [`net`]: the I/O around them: TCP and Unix sockets, TLS, buffers.
//!
//! [`net::Server`] answers queries through a [`net::Service`]; [`net::Connection`] sends them. Other crates make
//! the plan of a transfer, produce the rows and consume them.

mod adapt;
mod error;
pub mod net;
pub mod proto;

pub use error::{Result, TransportError};
