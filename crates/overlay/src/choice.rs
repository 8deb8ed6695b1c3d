//! Chooses for each stream of a node whether it goes direct or over the overlay.
//!
//! A forwarded message crosses the network more than once, so streams go direct as long as there are
//! connections: always if a node may have one to each of its peers; otherwise for streams of large messages
//! while some connections are left. MPI libraries also send large messages direct: beyond 32 KiB they don't
//! wait for intermediate buffers.

use serde::{Deserialize, Serialize};

/// Messages of at least this many bytes are worth a direct connection.
pub const LARGE_MESSAGE_BYTES: u64 = 32 << 10;
/// The minimum number of connections per node of an overlay: those of a ring.
pub const CONNECTIONS_MIN: usize = 2;

/// The route of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamRoute {
    /// Over a connection to the peer itself.
    Direct,
    /// Over the connections of the overlay, forwarded by other nodes if necessary.
    Overlay,
}

/// How a node with more peers than connections divides its connections:
///
/// ```text
/// topology + opened + accepted + direct <= connections_max
/// ```
///
/// Half of them, at least two, belong to the topology. Half of the rest, an even number, belong to the
/// overlay's pool of direct connections: the node opens as many as it accepts. What is then left is for
/// streams that go direct. With an odd number of nodes, the topology's share is even.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketBudget {
    /// Sockets of the topology.
    pub topology: usize,
    /// Direct connections of the overlay's pool ([`DirectPolicy`](crate::DirectPolicy)) that the node opens.
    pub opened: usize,
    /// Direct connections of other nodes' pools that it accepts.
    pub accepted: usize,
    /// Peers to which streams may go direct at the same time.
    pub direct: usize,
}

impl SocketBudget {
    /// The budget for a cluster of `nodes` nodes, including this one. `None` if there are enough connections
    /// for all peers, so that all streams go direct, or fewer than [`CONNECTIONS_MIN`], too few for an overlay.
    pub fn of(nodes: usize, connections_max: usize) -> Option<Self> {
        let peers = nodes.saturating_sub(1);
        if peers <= connections_max || connections_max < CONNECTIONS_MIN {
            return None;
        }
        let half = (connections_max / 2).max(CONNECTIONS_MIN);
        // A circulant can't have an odd number of both nodes and sockets.
        let topology = if nodes % 2 == 1 { half - half % 2 } else { half };
        let rest = connections_max - topology;
        let pool = (rest / 2).next_multiple_of(2).min(rest - rest % 2);
        Some(Self { topology, opened: pool / 2, accepted: pool / 2, direct: rest - pool })
    }

    /// The route of a stream with messages of `message_bytes`. Streams currently go direct to `direct_now`
    /// peers; `is_direct` says whether this stream's peer is one of them.
    pub fn route(&self, direct_now: usize, is_direct: bool, message_bytes: u64) -> StreamRoute {
        let has_room = is_direct || direct_now < self.direct;
        if message_bytes >= LARGE_MESSAGE_BYTES && has_room {
            StreamRoute::Direct
        } else {
            StreamRoute::Overlay
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Routes, Topology, circulant};

    #[test]
    fn no_budget_without_need_or_enough_connections() {
        for (nodes, connections_max) in [(0, 0), (1, 0), (3, 4), (5, 4), (65, 64)] {
            assert_eq!(SocketBudget::of(nodes, connections_max), None, "{nodes} {connections_max}");
        }
        // One connection is too few for a topology.
        assert_eq!(SocketBudget::of(60, 1), None);
        assert!(SocketBudget::of(6, 4).is_some());
    }

    #[test]
    fn connections_are_divided_and_never_exceeded() {
        let budget = |nodes, most| {
            let SocketBudget { topology, opened, accepted, direct } =
                SocketBudget::of(nodes, most).expect("one");
            (topology, opened, accepted, direct)
        };
        assert_eq!(budget(7, 2), (2, 0, 0, 0));
        assert_eq!(budget(7, 3), (2, 0, 0, 1));
        assert_eq!(budget(7, 4), (2, 1, 1, 0));
        assert_eq!(budget(60, 6), (3, 1, 1, 1));
        assert_eq!(budget(61, 6), (2, 1, 1, 2));
        assert_eq!(budget(60, 12), (6, 2, 2, 2));
        assert_eq!(budget(60, 16), (8, 2, 2, 4));
        for nodes in 4..80 {
            for most in 2..nodes - 1 {
                let (topology, opened, accepted, direct) = budget(nodes, most);
                assert_eq!(topology + opened + accepted + direct, most, "{nodes} {most}");
                let shape = circulant(nodes, topology, 1, 1).expect("a circulant");
                let routes = Routes::new(Topology::new(shape, nodes).expect("a topology"));
                assert_eq!(routes.topology().links(0).len(), topology, "{nodes} {most}");
            }
        }
    }

    #[test]
    fn large_messages_go_direct_while_there_is_room() {
        let budget = SocketBudget { topology: 4, opened: 1, accepted: 1, direct: 2 };
        let (small, large) = (LARGE_MESSAGE_BYTES - 1, LARGE_MESSAGE_BYTES);
        assert_eq!(budget.route(0, false, large), StreamRoute::Direct);
        assert_eq!(budget.route(1, false, large), StreamRoute::Direct);
        assert_eq!(budget.route(2, false, large), StreamRoute::Overlay);
        // Another stream to a peer that is already direct takes no place.
        assert_eq!(budget.route(2, true, large), StreamRoute::Direct);
        // Small messages leave the places to others.
        assert_eq!(budget.route(0, false, small), StreamRoute::Overlay);
        assert_eq!(budget.route(2, true, small), StreamRoute::Overlay);
        let none = SocketBudget { direct: 0, ..budget };
        assert_eq!(none.route(0, false, u64::MAX), StreamRoute::Overlay);
    }
}
