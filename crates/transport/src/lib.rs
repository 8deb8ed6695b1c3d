//! Moves messages between two ends.
//!
//! - [`proto`]: what may be said when, as state machines without sockets or
//!   clock: frames and times go in, frames and events come out.
//! - [`net`]: the shell around them: TCP and Unix sockets, TLS, buffers.
//!
//! [`net::Server`] answers queries through a [`net::Service`];
//! [`net::Connection`] asks them. What a plan should be, and where a result
//! comes from or goes to, is not decided here.

mod adapt;
mod error;
pub mod net;
pub mod proto;

pub use error::{Result, TransportError};
