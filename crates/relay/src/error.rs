//! Errors of relays and tunnels.

use std::io;

use lightship_overlay::forwarder::Refusal;

/// Result of this crate.
pub type Result<T, E = RelayError> = std::result::Result<T, E>;

/// Why a relay has failed, or did not accept a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// An invalid configuration.
    #[error("{0}")]
    Config(String),
    /// A connection of the topology could not be opened.
    #[error("no connection to node {node}: {reason}")]
    Connect {
        /// Which node.
        node: u32,
        /// Why.
        reason: String,
    },
    /// Nodes did not open their connections of the topology to this one.
    #[error("no connection from {}", list(.nodes))]
    Missing {
        /// Which nodes.
        nodes: Vec<u32>,
    },
    /// No connection leads to a node any more, it has not told what it received on a broken one, or another node
    /// reported that it lost that node. Messages on their way through it may be lost.
    #[error("node {node} was lost: {}", lost(*.kind, *.by))]
    Lost {
        /// Which node.
        node: u32,
        /// How the connection broke, if it was a connection of this node.
        kind: Option<io::ErrorKind>,
        /// The node that reported it, if it was a connection of another node.
        by: Option<u32>,
    },
    /// A node broke the protocol, and was cut off.
    #[error("node {node} broke the protocol: {refusal}")]
    Rules {
        /// Which node.
        node: u32,
        /// What it did.
        refusal: Refusal,
    },
    /// A node sent an invalid frame, or a message that is too large.
    #[error("node {node} sent an invalid frame: {reason}")]
    Malformed {
        /// Which node.
        node: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// A message for an unknown node or for its sender, or without a route.
    #[error("{0}")]
    Unroutable(Refusal),
    /// A message that is larger than the limit of all nodes.
    #[error("a message of {bytes} bytes is too large: the limit is {max}")]
    TooLarge {
        /// Bytes of the message.
        bytes: usize,
        /// Bytes of the largest message.
        max: u32,
    },
    /// All tunnels that a node may have to another one are open.
    #[error("all {max} tunnels to node {node} are open")]
    TunnelsFull {
        /// The other node.
        node: u32,
        /// The limit.
        max: usize,
    },
    /// A tunnel's frames were not read in time.
    #[error("node {node} sent {bytes} bytes that are not read yet")]
    Unread {
        /// The node that sent them.
        node: u32,
        /// How many bytes.
        bytes: u64,
    },
    /// The relay was closed.
    #[error("the relay is closed")]
    Closed,
}

impl RelayError {
    /// The other node that is at fault, if there is one.
    pub fn node(&self) -> Option<u32> {
        match self {
            Self::Connect { node, .. }
            | Self::Lost { node, .. }
            | Self::Rules { node, .. }
            | Self::TunnelsFull { node, .. }
            | Self::Unread { node, .. }
            | Self::Malformed { node, .. } => Some(*node),
            Self::Missing { nodes } => nodes.first().copied(),
            _ => None,
        }
    }
}

fn list(nodes: &[u32]) -> String {
    let numbers: Vec<_> = nodes.iter().map(u32::to_string).collect();
    let plural = if numbers.len() == 1 { "" } else { "s" };
    format!("node{plural} {}", numbers.join(", "))
}

fn lost(kind: Option<io::ErrorKind>, by: Option<u32>) -> String {
    match (kind, by) {
        (_, Some(by)) => format!("reported by node {by}"),
        (Some(io::ErrorKind::UnexpectedEof), None) => "it closed its connection unexpectedly".to_owned(),
        (Some(io::ErrorKind::TimedOut), None) => "no sign of life from it".to_owned(),
        (Some(kind), None) => kind.to_string(),
        (None, None) => "its connection broke".to_owned(),
    }
}
