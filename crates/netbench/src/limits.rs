//! Derives the limits of a node of a cluster from measurements of the hosts it talks to.

use crate::outcome::SavedPlateau;

/// Bounds that apply to a node regardless of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Number of other nodes. Each needs at least one connection.
    pub peers: u32,
    /// Maximum connections to all peers together.
    pub connections_max: u32,
    /// Minimum message size.
    pub message_bytes_min: u32,
    /// Maximum message size.
    pub message_bytes_max: u32,
}

/// The limits of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections to each peer, at least one. More are no faster when all peers are busy.
    pub connections_per_peer: u32,
    /// Message size. Larger messages are no faster over this many connections.
    pub message_bytes: u32,
}

impl Limits {
    /// Derives the limits from the outcomes saved for the peers' hosts; `None` if there are no outcomes.
    ///
    /// Connections to all peers together and the message size are those at which the most demanding
    /// host reached its plateau. With more peers than such connections, each peer gets one connection. That
    /// is more than pays off, and an overlay is worth considering.
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a SavedPlateau>, bounds: &Bounds) -> Option<Self> {
        let plateaus = outcomes.into_iter().map(|outcome| outcome.plateau);
        let most = plateaus
            .map(|plateau| (plateau.connections, plateau.message_bytes))
            .reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))?;
        let (connections, message_bytes) = most;
        let peers = bounds.peers.max(1);
        let wanted = connections.div_ceil(peers);
        Some(Self {
            connections_per_peer: wanted.min(bounds.connections_max / peers).max(1),
            message_bytes: message_bytes.max(bounds.message_bytes_min).min(bounds.message_bytes_max),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::row::Settings;
    use crate::table::tests::some_row;

    const BOUNDS: Bounds =
        Bounds { peers: 3, connections_max: 64, message_bytes_min: 4096, message_bytes_max: 1 << 20 };

    fn outcome(connections: u32, message_bytes: u32) -> SavedPlateau {
        let host = "node.test".parse().expect("a host");
        let rows = [some_row(connections, message_bytes, 1e9)];
        SavedPlateau::of(&host, &Settings::default(), &rows, UNIX_EPOCH).expect("a plateau")
    }

    #[track_caller]
    fn check(measured: &[(u32, u32)], bounds: Bounds, expected: (u32, u32)) {
        let outcomes: Vec<_> =
            measured.iter().map(|(connections, bytes)| outcome(*connections, *bytes)).collect();
        let (connections_per_peer, message_bytes) = expected;
        assert_eq!(Limits::of(&outcomes, &bounds), Some(Limits { connections_per_peer, message_bytes }));
    }

    #[test]
    fn connections_are_divided_among_peers() {
        check(&[(4, 8192)], Bounds { peers: 1, ..BOUNDS }, (4, 8192));
        check(&[(4, 8192)], BOUNDS, (2, 8192));
        check(&[(4, 8192)], Bounds { peers: 50, ..BOUNDS }, (1, 8192));
        // Without peers there must be no division by zero.
        check(&[(4, 8192)], Bounds { peers: 0, ..BOUNDS }, (4, 8192));
    }

    #[test]
    fn the_most_demanding_host_decides() {
        check(&[(2, 65_536), (16, 8192), (4, 256)], BOUNDS, (6, 65_536));
    }

    #[test]
    fn limits_stay_inside_the_bounds() {
        check(&[(2048, 256)], BOUNDS, (21, 4096));
        check(&[(2048, u32::MAX)], BOUNDS, (21, 1 << 20));
        // Every peer gets at least one connection.
        check(&[(8, 8192)], Bounds { connections_max: 2, ..BOUNDS }, (1, 8192));
        // With contradictory bounds the upper one wins, because it limits memory.
        check(&[(8, 8192)], Bounds { message_bytes_max: 1024, ..BOUNDS }, (3, 1024));
    }

    #[test]
    fn no_outcomes_give_no_limits() {
        assert_eq!(Limits::of([], &BOUNDS), None);
    }
}
