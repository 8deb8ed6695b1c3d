//! Messages from node to node over an overlay: forwarded where there is no connection.
//!
//! Every node has the connections of its [topology](lightship_overlay::Topology), and direct ones to where
//! it is told to have them ([`Relay::set_direct`]). A message goes by a shortest way; queues are
//! bounded, one for each connection and class of hops, and can't deadlock
//! ([`lightship_overlay::forwarding`]). What is sent arrives once, or every node has an error that names the
//! one that was lost. Messages from one node to another may arrive in another order.
//!
//! - [`Config`]: what a node is told before it starts; [`Security`], of it: TLS and a token, without which it
//!   listens on its own host only.
//! - [`Relay`], [`Inbox`]: send, receive.
//! - [`Circuits`], [`Incoming`], [`Circuit`]: in the messages' stead, ordered pipes of bytes between two nodes; also
//!   without a relay, over one connection ([`Circuits::over`], [`End`]).
//!
//! The rules are [`lightship_overlay::forwarder`]'s; here are its sockets. Frames and messages have checksums
//! (CRC-32C), the latter from end to end. Nodes that know the token trust each other: each is who it says it is.
//! Lost nodes are not routed around.
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
//! // A tree of three: from 1 to 2 the way leads over 0.
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

mod circuit;
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
mod socket;
mod state;

pub use circuit::{Circuit, Circuits, CircuitsConfig, CircuitsStats, End, Incoming};
pub use config::Config;
pub use error::{RelayError, Result};
pub use lightship_overlay::forwarder::{Counts, Refusal};
pub use relay::{Inbox, Message, Relay, Stats};
pub use security::{Security, Tls};
