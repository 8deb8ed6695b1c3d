//! What is known of a link and a query before the transfer: from its profile, and from transfers that were.

use lightship_tuner::{Link, LinkModel, Plane, Query, Rates, Sizes, WindowCost};

use crate::history::Fact;
use crate::profile::Profile;

/// Of the latest facts of a kind, so many count.
const FACTS_MAX: usize = 9;
/// What took less is not measured well.
const SECONDS_MIN: f64 = 0.1;
/// Of another statement a result of less says more about that statement than about the link.
const BYTES_MIN: u64 = 8 << 20;

/// What is known of a transfer before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Known {
    /// Bytes of rows a second that came in at the end of all stages.
    pub bytes_per_second: Option<f64>,
    /// The round trip.
    pub rtt_seconds: Option<f64>,
    /// Bytes of rows that the query's result had before.
    pub volume_bytes: Option<u64>,
}

impl Known {
    /// From the link's profile and the facts of its transfers, the latest last. The query's own count first, by
    /// their medians; then those of other queries; then what was measured of the link.
    pub fn of(profile: Option<&Profile>, facts: &[Fact], sql: &str) -> Self {
        let query = Fact::fingerprint(sql);
        let latest = |wanted: &dyn Fn(&Fact) -> bool, of: &dyn Fn(&Fact) -> f64| {
            median(facts.iter().rev().filter(|fact| wanted(fact)).take(FACTS_MAX).map(of).collect())
        };
        let same = |fact: &Fact| fact.query == query;
        // What a user fixed is no measure of what there is.
        let fair = |fact: &Fact| fact.ours && fact.seconds >= SECONDS_MIN && fact.volume_bytes > 0;
        let large = |fact: &Fact| fair(fact) && fact.volume_bytes >= BYTES_MIN;
        let pace = |fact: &Fact| fact.volume_bytes as f64 / fact.seconds;
        let measured = profile.and_then(|profile| profile.bytes_per_second);
        let bytes_per_second =
            latest(&|fact| same(fact) && fair(fact), &pace).or_else(|| latest(&large, &pace));
        Self {
            bytes_per_second: bytes_per_second.or(measured).filter(|pace| pace.is_finite() && *pace > 0.0),
            rtt_seconds: profile.map(|profile| profile.rtt_seconds),
            volume_bytes: latest(&same, &|fact| fact.volume_bytes as f64).map(|bytes| bytes as u64),
        }
    }

    /// Seconds that a result of so many bytes should take with these sizes; nothing where no pace is known. The
    /// model of the link is that of its pace alone: what the stages together did before.
    pub fn predict(&self, volume_bytes: u64, sizes: Sizes) -> Option<f64> {
        let rtt_seconds = self.rtt_seconds.unwrap_or(0.0);
        let next = Plane::new(0.0, 1.0 / self.bytes_per_second?, 0.0);
        let model = LinkModel { first: Plane { constant: rtt_seconds, ..next }, next };
        let link = Link { model, rtt_seconds, rates: Rates::default() };
        // A result that is smaller than a message is one.
        let message = (sizes.message_bytes.min(volume_bytes) as f64).max(1.0);
        let query = Query { volume_bytes, row_bytes: 1.0 };
        let cost = WindowCost::new(&link, &query).ok()?;
        Some(cost.seconds(message, message, sizes.window_batches).max(rtt_seconds))
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(sql: &str, volume_bytes: u64, seconds: f64) -> Fact {
        Fact { query: Fact::fingerprint(sql), volume_bytes, seconds, ours: true, ..Fact::default() }
    }

    #[test]
    fn the_query_itself_counts_before_others_and_they_before_the_profile() {
        let nothing = Known::of(None, &[], "a");
        assert_eq!(nothing, Known::default());
        assert_eq!(nothing.predict(1 << 30, Sizes { message_bytes: 1, window_batches: 1 }), None);
        let mb = |n: u64| n << 20;
        // Of the last, one was too short, one too small, and one a user's own settings'.
        let mut facts = vec![
            fact("b", mb(10), 1.0),
            fact("b", mb(30), 1.0),
            fact("b", mb(20), 1.0),
            fact("b", mb(90), 0.01),
        ];
        facts.extend([fact("count", 8, 10.0), Fact { ours: false, ..fact("b", mb(9), 100.0) }]);
        let others = Known::of(None, &facts, "a");
        assert_eq!((others.bytes_per_second, others.volume_bytes), (Some(mb(20) as f64), None));
        facts.push(fact("a", 0, 1.0));
        assert_eq!(Known::of(None, &facts, "a").bytes_per_second, Some(mb(20) as f64));
        facts.pop();
        facts.push(fact("a", 50, 0.5));
        let own = Known::of(None, &facts, "a");
        assert_eq!((own.bytes_per_second, own.volume_bytes), (Some(100.0), Some(50)));
        // What no file should say.
        for seconds in [0.0, -1.0, f64::NAN] {
            assert_eq!(Known::of(None, &[fact("a", 1, seconds)], "a").bytes_per_second, None, "{seconds}");
        }
    }

    #[test]
    fn a_link_that_has_changed_is_believed_after_a_few_transfers() {
        let before = std::iter::repeat_n(fact("a", 1000, 1.0), 100);
        let facts: Vec<_> = before.chain(std::iter::repeat_n(fact("a", 10, 1.0), 5)).collect();
        assert_eq!(Known::of(None, &facts, "a").bytes_per_second, Some(10.0));
    }

    #[test]
    fn the_time_is_that_of_the_pace_and_one_round_trip() {
        let known = Known { bytes_per_second: Some(1e6), rtt_seconds: Some(0.5), ..Known::default() };
        let sizes = Sizes { message_bytes: 100_000, window_batches: 10 };
        let seconds = known.predict(10_000_000, sizes).expect("a pace");
        assert!((seconds - 10.5).abs() < 1e-6, "{seconds}");
        // One round trip and its own time, not that of a whole message.
        let small = known.predict(1_000, sizes).expect("a pace");
        assert!((small - 0.501).abs() < 1e-6, "{small}");
        assert_eq!(known.predict(0, sizes), Some(0.5));
    }
}
