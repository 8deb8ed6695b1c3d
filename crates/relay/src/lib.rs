//! Sends messages from node to node over an overlay; other nodes forward them where there is no connection.
//!
//! Every node has the connections of its [topology](lightship_overlay::Topology), and the direct
//! connections that [`Relay::set_direct`] requests. A message takes a shortest route. Queues are bounded,
//! one for each connection and class of hops, and can't deadlock ([`lightship_overlay::forwarding`]). A
//! message arrives once, or every node gets an error that names the lost node. Messages between two nodes
//! may overtake each other.
//!
//! - [`Config`]: the configuration of a node; [`Security`]: its TLS and token, without which it listens on its
//!   own host only.
//! - [`Relay`], [`Inbox`]: send, receive.
//! - [`Tunnels`], [`Incoming`], [`Tunnel`]: the frames of connections between two nodes, in order, instead of
//!   messages.
//! - [`shuffle`]: a whole shuffle between nodes of one process, to try overlays.
//!
//! [`lightship_overlay::forwarder`] is the state machine; this crate adds the sockets. Nodes send each other the
//! frames of Lightship's protocol (`docs/format.md`, section 10). Every node on the route verifies the checksum of
//! the header; the receiver verifies that of the payload. A node trusts any node that has the token to be the one that it claims to be. Connections
//! that break are routed around ([`lightship_overlay::forwarder`]); lost nodes are not.
//!
//! ```
//! use std::sync::Arc;
//!
//! use bytes::Bytes;
//! use lightship_overlay::{Routes, Shape, Topology};
//! use lightship_relay::{Config, Relay};
//! use tokio::net::TcpListener;
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! // A tree of three nodes: the route from 1 to 2 goes through 0.
//! let routes = Arc::new(Routes::new(Topology::new(Shape::Tree { arity: 2 }, 3)?));
//! let mut listeners = Vec::new();
//! for _ in 0..3 {
//!     listeners.push(TcpListener::bind("127.0.0.1:0").await?);
//! }
//! let addresses = listeners.iter().map(|l| l.local_addr()).collect::<Result<Vec<_>, _>>()?;
//! let start = |node, listener| {
//!     Relay::start(listener, Config::new(node, addresses.clone(), Arc::clone(&routes), 1024))
//! };
//! let mut starts = listeners.into_iter().zip(0..).map(|(listener, node)| start(node, listener));
//! let (a, b, c) = (starts.next().unwrap(), starts.next().unwrap(), starts.next().unwrap());
//! let ((a, _), (b, _), (c, mut inbox)) = tokio::try_join!(a, b, c)?;
//!
//! b.send(2, Bytes::from_static(b"hello")).await?;
//! let message = inbox.recv().await?.unwrap();
//! assert_eq!((message.from, message.hops, &message.bytes[..]), (1, 2, &b"hello"[..]));
//! tokio::try_join!(a.close(), b.close(), c.close())?;
//! assert_eq!(a.stats().counts.forwarded, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod connection;
mod driver;
mod error;
mod frame;
#[cfg(fuzzing)]
pub mod fuzzing;
mod pulse;
mod relay;
mod security;
pub mod shuffle;
mod socket;
mod state;
mod tunnel;

pub use config::Config;
pub use error::{RelayError, Result};
pub use lightship_overlay::forwarder::{Counts, Refusal};
pub use relay::{Inbox, Message, Relay, Stats};
pub use security::{Security, Tls};
pub use tunnel::{Incoming, Tunnel, Tunnels, TunnelsConfig};
