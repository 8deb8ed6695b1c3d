//! The configuration of a node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lightship_overlay::Routes;

use crate::error::{RelayError, Result};
use crate::security::Security;

/// The configuration of a node of an overlay. All but `node` and `accepted_max` should be the same on all
/// nodes. Nodes with different epochs, topologies, queue sizes or message sizes refuse each other.
#[derive(Debug, Clone)]
pub struct Config {
    /// This node's number.
    pub node: u32,
    /// Where each node listens, by number.
    pub addresses: Vec<SocketAddr>,
    /// A number for anything else that all nodes must agree on, such as a hash of their names. Nodes of another
    /// epoch are refused; a node that starts early retries until [`Config::connect_timeout`].
    pub epoch: u64,
    /// The topology and its routes.
    pub routes: Arc<Routes>,
    /// Bytes of the largest message.
    pub message_bytes_max: u32,
    /// Messages that may wait at the receiving end of a connection, for each class of hops. With a larger
    /// value, a slow neighbour holds up others later; it costs memory.
    pub queue_messages: usize,
    /// Own messages that may be queued: [`Relay::send`](crate::Relay::send) waits for room.
    pub window_messages: usize,
    /// Most direct connections that others may open to this node; `None` is no limit.
    pub accepted_max: Option<usize>,
    /// Whether direct connections that this node opens carry messages both ways.
    pub direct_both_ways: bool,
    /// Time limit for opening the topology's connections, and for the hello on an accepted connection.
    pub connect_timeout: Duration,
    /// Interval of heartbeats. A connection that is silent for three intervals is broken.
    pub ping_interval: Duration,
    /// TLS and a token: required to listen beyond this host.
    pub security: Security,
    /// Seed of the choice between equally good routes.
    pub seed: u64,
}

impl Config {
    /// A node with queues of 4 messages and a window of 32, which accepts any number of direct connections,
    /// on this host only.
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

    /// Most bytes of messages that this node holds if it receives on this many direct connections: its own
    /// messages, a queue for each connection and class, and copies of what the other ends have not confirmed.
    /// Socket buffers are not included.
    pub fn memory_bytes_max(&self, direct: usize) -> u64 {
        let topology = self.routes.topology();
        let receives = if topology.both_ways() {
            topology.links(self.node as usize).len()
        } else {
            (0..topology.nodes()).filter(|other| topology.links(*other).contains(&self.node)).count()
        };
        let diameter = self.routes.diameter();
        // Detours have queues of one message.
        let detours = if topology.both_ways() { 2 * diameter } else { 0 };
        let queues = (receives + direct) * (diameter * self.queue_messages + detours);
        let messages = 2 * queues as u64 + self.window_messages as u64;
        messages.saturating_mul(self.message_bytes_max.into())
    }

    pub(crate) fn check(&self) -> Result<()> {
        let nodes = self.routes.topology().nodes();
        let wrong = |what: String| Err(RelayError::Config(what));
        if self.node as usize >= nodes || self.addresses.len() != nodes {
            let (node, addresses) = (self.node, self.addresses.len());
            return wrong(format!("node {node} with {addresses} addresses: the topology has {nodes} nodes"));
        }
        if self.queue_messages == 0 || self.window_messages == 0 || self.message_bytes_max == 0 {
            return wrong(
                "queue_messages, window_messages and message_bytes_max must be at least 1".to_owned(),
            );
        }
        Ok(())
    }

    /// A hash (FNV-1a) of what all nodes must agree on.
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
