//! What can go wrong between nodes.

use std::io;

use lightship_overlay::forwarder::Refusal;

/// Result of this crate.
pub type Result<T, E = RelayError> = std::result::Result<T, E>;

/// Why a relay can't go on, or did not take a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// A configuration that can't work.
    #[error("{0}")]
    Config(String),
    /// No connection to a node that the topology has one to.
    #[error("no connection to node {node}: {reason}")]
    Connect {
        /// Which node.
        node: u32,
        /// Why.
        reason: String,
    },
    /// Others that the topology has connections from did not come.
    #[error("no connection from {}", list(.nodes))]
    Missing {
        /// Which nodes.
        nodes: Vec<u32>,
    },
    /// A node's connection broke, or another node said that it lost this one. What was on its way through
    /// it may be lost.
    #[error("node {node} was lost: {}", lost(*.kind, *.by))]
    Lost {
        /// Which node.
        node: u32,
        /// How the connection broke, where it was ours.
        kind: Option<io::ErrorKind>,
        /// Who said so, where it was another's.
        by: Option<u32>,
    },
    /// A node did what it may not, and was cut off.
    #[error("node {node} does not keep to the rules: {refusal}")]
    Rules {
        /// Which node.
        node: u32,
        /// What it did.
        refusal: Refusal,
    },
    /// A node sent what is no frame, or a message larger than agreed.
    #[error("node {node} sent what can't be read: {reason}")]
    Malformed {
        /// Which node.
        node: u32,
        /// What it is.
        reason: &'static str,
    },
    /// A message for a node that there is not, or for the sender itself, or that has lost its way.
    #[error("{0}")]
    Unroutable(Refusal),
    /// A message larger than was agreed between all nodes.
    #[error("a message of {bytes} bytes, and at most {max} were agreed on")]
    TooLarge {
        /// Bytes of the message.
        bytes: usize,
        /// Bytes of the largest.
        max: u32,
    },
    /// A node sent what no circuit allows, and is heard no more.
    #[error("node {node} does not keep to the rules of circuits: {reason}")]
    CircuitRules {
        /// Which node.
        node: u32,
        /// What it did.
        reason: &'static str,
    },
    /// A node takes no circuits' messages of this one any more.
    #[error("node {node} has cut off this one's circuits")]
    CutOff {
        /// Which node.
        node: u32,
    },
    /// All circuits that a node may have are open.
    #[error("all {max} circuits are open")]
    CircuitsFull {
        /// How many.
        max: usize,
    },
    /// The relay was closed.
    #[error("the relay is closed")]
    Closed,
}

impl RelayError {
    /// The node at fault, where it is another.
    pub fn node(&self) -> Option<u32> {
        match self {
            Self::Connect { node, .. }
            | Self::Lost { node, .. }
            | Self::Rules { node, .. }
            | Self::CircuitRules { node, .. }
            | Self::CutOff { node }
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
        (_, Some(by)) => format!("node {by} says so"),
        (Some(io::ErrorKind::UnexpectedEof), None) => "it closed its connection without a word".to_owned(),
        (Some(io::ErrorKind::TimedOut), None) => "no sign of life from it".to_owned(),
        (Some(kind), None) => kind.to_string(),
        (None, None) => "its connection broke".to_owned(),
    }
}
