//! What is known about a link and a query before a transfer, from the link's profile and earlier transfers.

use lightship_tuner::{Link, LinkModel, Plane, Query, Rates, Sizes, WindowCost, median};

use crate::history::TransferRecord;
use crate::profile::Profile;

/// Medians use at most this many of the latest matching records.
const FACTS_MAX: usize = 9;
/// Shorter transfers are not measured accurately.
const SECONDS_MIN: f64 = 0.1;
/// A smaller result of another statement says more about that statement than about the link.
const BYTES_MIN: u64 = 8 << 20;

/// What is known about a transfer before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinkPrior {
    /// The pace: bytes of rows per second that arrived after all stages.
    pub bytes_per_second: Option<f64>,
    /// The round trip.
    pub rtt_seconds: Option<f64>,
    /// Bytes of the rows of the query's earlier results.
    pub volume_bytes: Option<u64>,
}

impl LinkPrior {
    /// Combines the link's profile and the records of its transfers, oldest first. The pace is the
    /// median of the same query's transfers, or else of other queries' transfers, or else the profile's
    /// rate.
    pub fn of(profile: Option<&Profile>, facts: &[TransferRecord], sql: &str) -> Self {
        let query = TransferRecord::fingerprint(sql);
        let latest = |wanted: &dyn Fn(&TransferRecord) -> bool, of: &dyn Fn(&TransferRecord) -> f64| {
            median(facts.iter().rev().filter(|fact| wanted(fact)).take(FACTS_MAX).map(of))
        };
        let same = |fact: &TransferRecord| fact.query == query;
        // Transfers with settings fixed by the user don't show what the link can do.
        let fair = |fact: &TransferRecord| fact.ours && fact.seconds >= SECONDS_MIN && fact.volume_bytes > 0;
        let large = |fact: &TransferRecord| fair(fact) && fact.volume_bytes >= BYTES_MIN;
        let pace = |fact: &TransferRecord| fact.volume_bytes as f64 / fact.seconds;
        let measured = profile.and_then(|profile| profile.bytes_per_second);
        let bytes_per_second =
            latest(&|fact| same(fact) && fair(fact), &pace).or_else(|| latest(&large, &pace));
        Self {
            bytes_per_second: bytes_per_second.or(measured).filter(|pace| pace.is_finite() && *pace > 0.0),
            rtt_seconds: profile.map(|profile| profile.rtt_seconds),
            volume_bytes: latest(&same, &|fact| fact.volume_bytes as f64).map(|bytes| bytes as u64),
        }
    }

    /// Predicts the seconds for a result of `volume_bytes` with these sizes; `None` if no pace is
    /// known. The link model uses only the pace, which covers all stages together.
    pub fn predict(&self, volume_bytes: u64, sizes: Sizes) -> Option<f64> {
        let rtt_seconds = self.rtt_seconds.unwrap_or(0.0);
        let next = Plane::new(0.0, 1.0 / self.bytes_per_second?, 0.0);
        let model = LinkModel { first: Plane { constant: rtt_seconds, ..next }, next };
        let link = Link { model, rtt_seconds, rates: Rates::default() };
        // A result smaller than a message is a single message.
        let message = (sizes.message_bytes.min(volume_bytes) as f64).max(1.0);
        let query = Query { volume_bytes, row_bytes: 1.0 };
        let cost = WindowCost::new(&link, &query).ok()?;
        Some(cost.seconds(message, message, sizes.window_batches).max(rtt_seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(sql: &str, volume_bytes: u64, seconds: f64) -> TransferRecord {
        TransferRecord {
            query: TransferRecord::fingerprint(sql),
            volume_bytes,
            seconds,
            ours: true,
            ..TransferRecord::default()
        }
    }

    #[test]
    fn the_same_query_takes_precedence_over_other_queries_and_these_over_the_profile() {
        let nothing = LinkPrior::of(None, &[], "a");
        assert_eq!(nothing, LinkPrior::default());
        assert_eq!(nothing.predict(1 << 30, Sizes { message_bytes: 1, window_batches: 1 }), None);
        let mb = |n: u64| n << 20;
        // The last three don't count: one is too short, one too small, and one has settings fixed by
        // the user.
        let mut facts = vec![
            fact("b", mb(10), 1.0),
            fact("b", mb(30), 1.0),
            fact("b", mb(20), 1.0),
            fact("b", mb(90), 0.01),
        ];
        facts.extend([fact("count", 8, 10.0), TransferRecord { ours: false, ..fact("b", mb(9), 100.0) }]);
        let others = LinkPrior::of(None, &facts, "a");
        assert_eq!((others.bytes_per_second, others.volume_bytes), (Some(mb(20) as f64), None));
        facts.push(fact("a", 0, 1.0));
        assert_eq!(LinkPrior::of(None, &facts, "a").bytes_per_second, Some(mb(20) as f64));
        facts.pop();
        facts.push(fact("a", 50, 0.5));
        let own = LinkPrior::of(None, &facts, "a");
        assert_eq!((own.bytes_per_second, own.volume_bytes), (Some(100.0), Some(50)));
        // Values that a damaged file may contain.
        for seconds in [0.0, -1.0, f64::NAN] {
            assert_eq!(
                LinkPrior::of(None, &[fact("a", 1, seconds)], "a").bytes_per_second,
                None,
                "{seconds}"
            );
        }
    }

    #[test]
    fn the_pace_follows_a_changed_link_after_a_few_transfers() {
        let before = std::iter::repeat_n(fact("a", 1000, 1.0), 100);
        let facts: Vec<_> = before.chain(std::iter::repeat_n(fact("a", 10, 1.0), 5)).collect();
        assert_eq!(LinkPrior::of(None, &facts, "a").bytes_per_second, Some(10.0));
    }

    #[test]
    fn the_predicted_time_is_the_volume_at_the_pace_plus_one_round_trip() {
        let known = LinkPrior { bytes_per_second: Some(1e6), rtt_seconds: Some(0.5), ..LinkPrior::default() };
        let sizes = Sizes { message_bytes: 100_000, window_batches: 10 };
        let seconds = known.predict(10_000_000, sizes).expect("a pace");
        assert!((seconds - 10.5).abs() < 1e-6, "{seconds}");
        // One round trip plus the time of the result itself, not of a whole message.
        let small = known.predict(1_000, sizes).expect("a pace");
        assert!((small - 0.501).abs() < 1e-6, "{small}");
        assert_eq!(known.predict(0, sizes), Some(0.5));
    }
}
