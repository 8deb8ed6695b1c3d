//! Derives the limits of a node of a cluster from measurements of the hosts it talks to.

use crate::outcome::SavedPlateau;

/// Bounds that apply to a node regardless of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
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
    /// Connections to all peers together; more are slower. `None` if as many as were measured are as fast.
    pub connections: Option<u32>,
    /// Message size. Larger messages are no faster.
    pub message_bytes: u32,
}

impl Limits {
    /// Derives the limits from the outcomes saved for the peers' hosts; `None` if there are no outcomes.
    ///
    /// Fewer connections mean that rows are forwarded, so a node has as many as no host is slower with: the plateau of the
    /// host where it ends first. The message size is that at which the most demanding host reached its plateau.
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a SavedPlateau>, bounds: &Bounds) -> Option<Self> {
        let plateaus = outcomes.into_iter().map(|outcome| outcome.plateau);
        let (connections, message_bytes) = plateaus
            .map(|plateau| (plateau.connections_max, plateau.message_bytes))
            .reduce(|a, b| (a.0.into_iter().chain(b.0).min(), a.1.max(b.1)))?;
        Some(Self {
            connections: connections.map(|connections| connections.min(bounds.connections_max)),
            // With contradictory bounds the upper one wins, because it limits memory.
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
        Bounds { connections_max: 64, message_bytes_min: 4096, message_bytes_max: 1 << 20 };

    /// A plateau that ends with this number of connections, or with the last of the measured ones.
    fn outcome((to, message_bytes): (Option<u32>, u32)) -> SavedPlateau {
        let host = "node.test".parse().expect("a host");
        let most = to.unwrap_or(512);
        let mut rows = vec![some_row(2, message_bytes, 1e9), some_row(most, message_bytes, 0.96e9)];
        rows.extend(to.map(|_| some_row(2 * most, message_bytes, 0.5e9)));
        SavedPlateau::of(&host, &Settings::default(), &rows, UNIX_EPOCH).expect("a plateau")
    }

    #[track_caller]
    fn check(
        measured: &[(Option<u32>, u32)],
        bounds: Bounds,
        (connections, message_bytes): (Option<u32>, u32),
    ) {
        let outcomes: Vec<_> = measured.iter().copied().map(outcome).collect();
        assert_eq!(Limits::of(&outcomes, &bounds), Some(Limits { connections, message_bytes }));
    }

    #[test]
    fn the_plateau_that_ends_first_and_the_largest_messages_decide() {
        check(&[(Some(48), 65_536), (Some(32), 8192), (None, 256)], BOUNDS, (Some(32), 65_536));
        check(&[(None, 8192), (None, 4096)], BOUNDS, (None, 8192));
    }

    #[test]
    fn limits_stay_inside_the_bounds() {
        check(&[(Some(2048), 256)], BOUNDS, (Some(64), 4096));
        check(&[(Some(2048), u32::MAX)], BOUNDS, (Some(64), 1 << 20));
        check(&[(Some(8), 8192)], Bounds { message_bytes_max: 1024, ..BOUNDS }, (Some(8), 1024));
    }

    #[test]
    fn no_outcomes_give_no_limits() {
        assert_eq!(Limits::of([], &BOUNDS), None);
    }
}
