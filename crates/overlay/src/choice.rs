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
/// topology + direct <= connections_max
/// ```
///
/// All of them belong to the topology, so that messages are forwarded as seldom as possible. With an odd number of nodes the
/// topology's share is even; if that leaves one, it is for streams that go direct. Nothing is reserved for direct
/// connections: queries divide their rows evenly among nodes, and a direct connection, which takes a socket at both ends,
/// then carries no more than a link of the topology, which also shortens other routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketBudget {
    /// Sockets of the topology.
    pub topology: usize,
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
        // A circulant can't have an odd number of both nodes and sockets.
        let direct = if nodes % 2 == 1 { connections_max % 2 } else { 0 };
        Some(Self { topology: connections_max - direct, direct })
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
    use crate::{Routes, Topology, circulant, moore_mean_hops};

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
            let SocketBudget { topology, direct } = SocketBudget::of(nodes, most).expect("one");
            (topology, direct)
        };
        assert_eq!(budget(7, 2), (2, 0));
        assert_eq!(budget(7, 3), (2, 1));
        assert_eq!(budget(7, 4), (4, 0));
        assert_eq!(budget(60, 6), (6, 0));
        assert_eq!(budget(60, 7), (7, 0));
        assert_eq!(budget(61, 7), (6, 1));
        for nodes in 4..80 {
            for most in 2..nodes - 1 {
                let (topology, direct) = budget(nodes, most);
                assert_eq!(topology + direct, most, "{nodes} {most}");
                let shape = circulant(nodes, topology, 1, 1).expect("a circulant");
                let routes = Routes::new(Topology::new(shape, nodes).expect("a topology"));
                assert_eq!(routes.topology().links(0).len(), topology, "{nodes} {most}");
            }
        }
    }

    /// Why nothing is reserved: even traffic can't be forwarded much less, however the connections are divided.
    #[test]
    fn the_topology_alone_is_nearly_the_best_for_even_traffic() {
        for (nodes, most) in [(16, 4), (16, 8), (32, 4), (32, 8), (32, 16), (60, 12)] {
            let topology = SocketBudget::of(nodes, most).expect("one").topology;
            let shape = circulant(nodes, topology, 400, 1).expect("a circulant");
            let routes = Routes::new(Topology::new(shape, nodes).expect("a topology"));
            let forwards_min = moore_mean_hops(nodes, most, true) - 1.0;
            let forwards = routes.mean_hops() - 1.0;
            assert!(forwards <= 1.3 * forwards_min, "{nodes} {most}: {forwards} {forwards_min}");
        }
    }

    #[test]
    fn large_messages_go_direct_while_there_is_room() {
        let budget = SocketBudget { topology: 4, direct: 2 };
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
