//! Direct, or over the overlay: chosen for each stream of a node.
//!
//! What is forwarded crosses the network once more, so direct is the choice wherever there are connections for it:
//! always where a node may have one to each of its peers, and beyond that for streams of large messages, as
//! long as some are left. MPI libraries, too, go direct for large messages, and beyond 32 KiB wait for no buffers
//! on the way.

use serde::{Deserialize, Serialize};

/// Messages from this size on are worth a direct connection, in bytes.
pub const LARGE_MESSAGE_BYTES: u64 = 32 << 10;
/// Fewer connections than a ring has connect no nodes.
pub const CONNECTIONS_MIN: usize = 2;

/// By which way a stream goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Over a connection to the peer itself.
    Direct,
    /// Over connections that there are anyway, by others where need be.
    Overlay,
}

/// How a node with more peers than connections divides these:
///
/// ```text
/// topology + opened + accepted + direct <= connections_max
/// ```
///
/// Half of them, at least two, are the topology's; of the rest one half is the overlay's own pool of direct
/// connections, an even number, as many to be opened as to be accepted; what is then left is for streams that
/// go direct. With an odd number of nodes the topology's are even.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Division {
    /// Sockets of the topology.
    pub topology: usize,
    /// Direct connections of the overlay's pool ([`Pool`](crate::Pool)) that the node opens.
    pub opened: usize,
    /// Those of others' pools that it accepts.
    pub accepted: usize,
    /// Peers that streams may go to directly, at a time.
    pub direct: usize,
}

impl Division {
    /// Of a cluster with so many nodes, this one included. Nothing where all peers may have connections, and direct
    /// is the choice for all; nor where there are fewer than [`CONNECTIONS_MIN`], with which there is no overlay.
    pub fn of(nodes: usize, connections_max: usize) -> Option<Self> {
        let peers = nodes.saturating_sub(1);
        if peers <= connections_max || connections_max < CONNECTIONS_MIN {
            return None;
        }
        let half = (connections_max / 2).max(CONNECTIONS_MIN);
        // There is no circulant of an odd number of both.
        let topology = if nodes % 2 == 1 { half - half % 2 } else { half };
        let rest = connections_max - topology;
        let pool = (rest / 2).next_multiple_of(2).min(rest - rest % 2);
        Some(Self { topology, opened: pool / 2, accepted: pool / 2, direct: rest - pool })
    }

    /// The way of a stream with messages of so many bytes, when streams go directly to `direct_now` peers, among
    /// them, or not (`is_direct`), the one that this stream is to.
    pub fn way(&self, direct_now: usize, is_direct: bool, message_bytes: u64) -> Way {
        let has_room = is_direct || direct_now < self.direct;
        if message_bytes >= LARGE_MESSAGE_BYTES && has_room { Way::Direct } else { Way::Overlay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Routes, Topology, circulant};

    #[test]
    fn direct_where_it_fits() {
        for (nodes, connections_max) in [(0, 0), (1, 0), (3, 4), (5, 4), (65, 64)] {
            assert_eq!(Division::of(nodes, connections_max), None, "{nodes} {connections_max}");
        }
        // One connection makes no topology.
        assert_eq!(Division::of(60, 1), None);
        assert!(Division::of(6, 4).is_some());
    }

    #[test]
    fn connections_are_divided_and_never_exceeded() {
        let division = |nodes, most| {
            let Division { topology, opened, accepted, direct } = Division::of(nodes, most).expect("one");
            (topology, opened, accepted, direct)
        };
        assert_eq!(division(7, 2), (2, 0, 0, 0));
        assert_eq!(division(7, 3), (2, 0, 0, 1));
        assert_eq!(division(7, 4), (2, 1, 1, 0));
        assert_eq!(division(60, 6), (3, 1, 1, 1));
        assert_eq!(division(61, 6), (2, 1, 1, 2));
        assert_eq!(division(60, 12), (6, 2, 2, 2));
        assert_eq!(division(60, 16), (8, 2, 2, 4));
        for nodes in 4..80 {
            for most in 2..nodes - 1 {
                let (topology, opened, accepted, direct) = division(nodes, most);
                assert_eq!(topology + opened + accepted + direct, most, "{nodes} {most}");
                let shape = circulant(nodes, topology, 1, 1).expect("a circulant");
                let routes = Routes::new(Topology::new(shape, nodes).expect("a topology"));
                assert_eq!(routes.topology().links(0).len(), topology, "{nodes} {most}");
            }
        }
    }

    #[test]
    fn large_messages_go_direct_while_there_is_room() {
        let division = Division { topology: 4, opened: 1, accepted: 1, direct: 2 };
        let (small, large) = (LARGE_MESSAGE_BYTES - 1, LARGE_MESSAGE_BYTES);
        assert_eq!(division.way(0, false, large), Way::Direct);
        assert_eq!(division.way(1, false, large), Way::Direct);
        assert_eq!(division.way(2, false, large), Way::Overlay);
        // One more to a peer that has some takes no place.
        assert_eq!(division.way(2, true, large), Way::Direct);
        // Small ones leave the places to others.
        assert_eq!(division.way(0, false, small), Way::Overlay);
        assert_eq!(division.way(2, true, small), Way::Overlay);
        let none = Division { direct: 0, ..division };
        assert_eq!(none.way(0, false, u64::MAX), Way::Overlay);
    }
}
