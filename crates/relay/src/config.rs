//! What a node is told before it starts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lightship_overlay::Routes;

use crate::error::{RelayError, Result};
use crate::security::Security;

/// A node of an overlay. All but `node` and `accepted_max` is to be the same for all nodes; those that have
/// another epoch or topology, other queues or larger messages refuse each other.
#[derive(Debug, Clone)]
pub struct Config {
    /// This node's number.
    pub node: u32,
    /// Where each node listens, by number.
    pub addresses: Vec<SocketAddr>,
    /// What else all nodes must agree on, as a number: of the members' names, say. Nodes of another epoch are
    /// refused; one that has come early tries again until [`Config::connect_timeout`].
    pub epoch: u64,
    /// The topology and its ways.
    pub routes: Arc<Routes>,
    /// Bytes of the largest message.
    pub message_bytes_max: u32,
    /// Messages that wait at the far end of a connection, for each class of hops. More cost memory, and let
    /// a slow neighbour hold up others later.
    pub queue_messages: usize,
    /// Own messages that are queued at a time: [`Relay::send`](crate::Relay::send) waits for room.
    pub window_messages: usize,
    /// Direct connections that others may open to this node; it refuses more.
    pub accepted_max: Option<usize>,
    /// Whether direct connections that this node opens carry messages both ways.
    pub direct_both_ways: bool,
    /// How long the topology's connections may take to be there, and a stranger to say who it is.
    pub connect_timeout: Duration,
    /// Neighbours give each other a sign of life this often; one that is silent for three times this is lost.
    pub ping_interval: Duration,
    /// TLS and tokens: needed beyond this host.
    pub security: Security,
    /// Of choices between ways that are alike.
    pub seed: u64,
}

impl Config {
    /// A node with queues of 4 messages and a window of 32, that accepts any number of direct connections,
    /// on this host alone.
    pub fn new(node: u32, addresses: Vec<SocketAddr>, routes: Arc<Routes>, message_bytes_max: u32) -> Self {
        Self {
            node,
            addresses,
            epoch: 0,
            routes,
            message_bytes_max,
            queue_messages: 4,
            window_messages: 32,
            accepted_max: None,
            direct_both_ways: true,
            connect_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(3),
            security: Security::default(),
            seed: 1,
        }
    }

    /// Bytes of messages that this node holds at most with so many direct connections to receive on: own
    /// ones, and a queue for each connection and class. What sockets hold comes on top.
    pub fn memory_bytes_max(&self, direct: usize) -> u64 {
        let topology = self.routes.topology();
        let receives = if topology.both_ways() {
            topology.links(self.node as usize).len()
        } else {
            (0..topology.nodes()).filter(|other| topology.links(*other).contains(&self.node)).count()
        };
        let queues = (receives + direct) as u64 * self.routes.diameter() as u64;
        let messages = queues * self.queue_messages as u64 + self.window_messages as u64;
        messages.saturating_mul(self.message_bytes_max.into())
    }

    pub(crate) fn check(&self) -> Result<()> {
        let nodes = self.routes.topology().nodes();
        let wrong = |what: String| Err(RelayError::Config(what));
        if self.node as usize >= nodes || self.addresses.len() != nodes {
            let (node, addresses) = (self.node, self.addresses.len());
            return wrong(format!("node {node} of {nodes} nodes, with {addresses} addresses"));
        }
        if self.queue_messages == 0 || self.window_messages == 0 || self.message_bytes_max == 0 {
            return wrong("queues, windows and messages have room for one at least".to_owned());
        }
        Ok(())
    }

    /// What nodes must have in common, in a number (FNV-1a).
    pub(crate) fn digest(&self) -> u64 {
        let topology = self.routes.topology();
        let links = (0..topology.nodes()).flat_map(|node| {
            let links = topology.links(node).iter().map(|to| u64::from(*to));
            std::iter::once(u64::MAX).chain(links)
        });
        let rest = [
            self.epoch,
            topology.both_ways().into(),
            self.queue_messages as u64,
            self.message_bytes_max.into(),
        ];
        rest.into_iter().chain(links).fold(0xcbf2_9ce4_8422_2325, |hash, value| {
            value
                .to_le_bytes()
                .iter()
                .fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
        })
    }
}
