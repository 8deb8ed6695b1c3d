//! The cost with several batches in flight.
//!
//! In the thesis a consumer requests a batch, waits for all of it, and requests the next. Each batch
//! takes one *cycle*, `alpha + (ceil(F^B / M) - 1) beta`. A part of alpha is waiting, with nothing in
//! transit: the round trip, but at most alpha - beta, because a first message is also a message. The
//! rest of the cycle is the batch's *wire time*, during which no other batch is transferred. With W
//! batches requested ahead, batch i arrives
//!
//! - no sooner than a wire time after batch i - 1, and
//! - no sooner than a cycle after batch i - W, whose arrival requested it.
//!
//! The later of the two decides, so the last of n batches arrives after
//!
//! `cycle + (n - 1) wire + floor((n - 1) / W) max(0, cycle - W wire)`:
//!
//! Every W batches the transfer stalls for the part of a cycle that W wire times don't cover. With
//! W = 1 that is `n cycle`, the thesis' cost. Once W wire times cover a cycle it is the *plateau*
//! `cycle + (n - 1) wire`, with a single wait. In between, a batch takes `max(wire, cycle / W)`.

use serde::{Deserialize, Serialize};

use crate::cost::{BatchSeconds, Cost};
use crate::error::{Result, within};
use crate::model::{LinkModel, Query};
use crate::stages::Rates;

/// A link and its two ends.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Link {
    /// The cost of messages.
    pub model: LinkModel,
    /// The measured round trip. It counts at most as much as a first message takes longer than another.
    /// Any further extra time of a first message is work that no window hides.
    pub rtt_seconds: f64,
    /// The maximum rates of the stages, as far as they are known.
    #[serde(default)]
    pub rates: Rates,
}

/// The cost of transferring a query's result over a link with W batches in flight.
#[derive(Debug, Clone, Copy)]
pub struct WindowCost {
    cost: Cost,
    rtt_seconds: f64,
    /// The time of the slowest stage.
    least_seconds: f64,
}

impl WindowCost {
    /// # Errors
    /// [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) as in [`Cost::new`] and
    /// [`Rates::check`], and for a round trip that is negative, not finite, or over a million seconds.
    pub fn new(link: &Link, query: &Query) -> Result<Self> {
        within("round trip in seconds", link.rtt_seconds, 0.0, 1e6)?;
        link.rates.check()?;
        Ok(Self {
            cost: Cost::new(&link.model, query)?,
            rtt_seconds: link.rtt_seconds,
            least_seconds: link.rates.least_seconds(query.volume_bytes),
        })
    }

    /// Seconds of the transfer with `window_batches` in flight (at least one), but at least the time of
    /// the slowest stage. A larger window never takes longer.
    pub fn seconds(&self, batch_bytes: f64, message_bytes: f64, window_batches: u64) -> f64 {
        let batches = self.cost.batches(batch_bytes);
        if batches < 1.0 {
            return 0.0;
        }
        let BatchSeconds { first, next, cycle } = self.cost.batch(batch_bytes, message_bytes);
        let wire = cycle - self.rtt_seconds.min((first - next).max(0.0));
        let window = window_batches.max(1) as f64;
        let stall = (cycle - window * wire).max(0.0);
        let seconds = cycle + (batches - 1.0) * wire + ((batches - 1.0) / window).floor() * stall;
        seconds.max(self.least_seconds)
    }

    /// The parts of the transfer's time, ignoring the slowest stage.
    pub(crate) fn parts(&self, batch_bytes: f64, message_bytes: f64, window_batches: u64) -> Parts {
        let batches = self.cost.batches(batch_bytes);
        if batches < 1.0 {
            return Parts::default();
        }
        let BatchSeconds { first, next, cycle } = self.cost.batch(batch_bytes, message_bytes);
        let wait = self.rtt_seconds.min((first - next).max(0.0));
        let wire = cycle - wait;
        let window = window_batches.max(1) as f64;
        let starting = (first - next).max(0.0) - wait;
        Parts {
            waiting: wait + ((batches - 1.0) / window).floor() * (cycle - window * wire).max(0.0),
            starting: batches * starting,
            messages: batches * (wire - starting),
        }
    }

    /// The time of the slowest stage.
    pub(crate) fn least_seconds(&self) -> f64 {
        self.least_seconds
    }

    /// The smallest window within `windows` (minimum, maximum) that takes at most `target_seconds`; `None`
    /// if even the largest takes longer.
    pub(crate) fn window_for(
        &self,
        batch_bytes: f64,
        message_bytes: f64,
        windows: (u64, u64),
        target_seconds: f64,
    ) -> Option<u64> {
        let (window_min, window_max) = windows;
        // A window larger than the number of batches gains nothing.
        let most = window_max.min(self.cost.batches(batch_bytes) as u64).max(window_min).max(1);
        let reaches = |window| self.seconds(batch_bytes, message_bytes, window) <= target_seconds;
        if !reaches(most) {
            return None;
        }
        let (mut low, mut high) = (window_min.saturating_sub(1), most);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if reaches(middle) { high = middle } else { low = middle }
        }
        Some(high)
    }

    /// For given sizes, the smallest window that takes at most `1 + tolerance` times as long as the
    /// largest: the least memory that reaches the plateau.
    pub fn least_window(&self, batch_bytes: f64, message_bytes: f64, window_max: u64, tolerance: f64) -> u64 {
        let plateau = self.seconds(batch_bytes, message_bytes, window_max);
        let target = plateau * (1.0 + tolerance.max(0.0));
        self.window_for(batch_bytes, message_bytes, (1, window_max), target).unwrap_or(window_max.max(1))
    }
}

/// The parts of a transfer's time, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Parts {
    /// Time with nothing in transit: before the first batch, and whenever the window does not cover a
    /// round trip.
    pub(crate) waiting: f64,
    /// Extra time of first messages, not counting the wait.
    pub(crate) starting: f64,
    /// Time of all messages.
    pub(crate) messages: f64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::Plane;
    use crate::thesis::{FIFTY_MEGABIT, Q3, TEN_GIGABIT};

    /// The recurrence, batch by batch.
    fn simulated(link: &Link, query: &Query, x: f64, y: f64, window: usize) -> Result<f64> {
        let cost = Cost::new(&link.model, query)?;
        let BatchSeconds { first, next, cycle } = cost.batch(x, y);
        let wire = cycle - link.rtt_seconds.min((first - next).max(0.0));
        let mut there: Vec<f64> = Vec::new();
        for i in 0..cost.batches(x) as usize {
            let asked = if i >= window { there[i - window] } else { 0.0 };
            let after = there.last().map_or(0.0, |last| last + wire);
            there.push(after.max(asked + cycle));
        }
        Ok(there.last().copied().unwrap_or(0.0))
    }

    fn link() -> impl Strategy<Value = Link> {
        (any::<bool>(), 0.0..2.0f64).prop_map(|(slow, part)| {
            let model = if slow { FIFTY_MEGABIT } else { TEN_GIGABIT };
            Link { model, rtt_seconds: part * model.first.constant, rates: Rates::default() }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_formula_matches_a_simulation_of_the_batches(
            link in link(), volume_bytes in 0..30_000_000u64, x in 3e4..3e6f64, part in 0.001..1.5f64, window in 1..40u64,
        ) {
            let query = Query { volume_bytes, row_bytes: 27.0 };
            let ours = WindowCost::new(&link, &query)?.seconds(x, x * part, window);
            let theirs = simulated(&link, &query, x, x * part, window as usize)?;
            prop_assert!((ours - theirs).abs() <= 1e-9 * theirs, "{} {}", ours, theirs);
        }

        #[test]
        fn a_window_of_one_costs_as_in_the_thesis(link in link(), x in 27.0..3e7f64, y in 512.0..32_767f64) {
            let (ours, theirs) = (WindowCost::new(&link, &Q3)?.seconds(x, y, 1), Cost::new(&link.model, &Q3)?.seconds(x, y));
            prop_assert!((ours / theirs - 1.0).abs() < 1e-12, "{} {}", ours, theirs);
        }

        #[test]
        fn the_parts_sum_to_the_whole(link in link(), x in 27.0..3e7f64, y in 512.0..32_767f64, window in 1..100u64) {
            let cost = WindowCost::new(&link, &Q3)?;
            let parts = cost.parts(x, y, window);
            let (sum, seconds) = (parts.waiting + parts.starting + parts.messages, cost.seconds(x, y, window));
            prop_assert!((sum / seconds - 1.0).abs() < 1e-9, "{} {}", sum, seconds);
            prop_assert!(parts.waiting >= 0.0 && parts.starting >= 0.0 && parts.messages >= 0.0);
        }

        #[test]
        fn more_in_flight_never_takes_longer(link in link(), x in 27.0..3e7f64, y in 512.0..32_767f64, window in 1..1000u64) {
            let cost = WindowCost::new(&link, &Q3)?;
            prop_assert!(cost.seconds(x, y, window + 1) <= cost.seconds(x, y, window) * (1.0 + 1e-12));
        }

        #[test]
        fn no_smaller_window_reaches_the_target(link in link(), x in 27.0..3e7f64, y in 512.0..32_767f64, tolerance in 0.0..0.2f64) {
            let cost = WindowCost::new(&link, &Q3)?;
            let window = cost.least_window(x, y, 1000, tolerance);
            let allowed = cost.seconds(x, y, 1000) * (1.0 + tolerance);
            prop_assert!(cost.seconds(x, y, window) <= allowed);
            prop_assert!(window == 1 || cost.seconds(x, y, window - 1) > allowed);
        }
    }

    /// 1 Gbit/s and 10 ms. A batch of one message of 125 KB takes 1 ms on the wire.
    const LONG: Link = Link {
        model: LinkModel { first: Plane::new(0.0, 8e-9, 0.010), next: Plane::new(0.0, 8e-9, 0.0) },
        rtt_seconds: 0.010,
        rates: Rates { produce: None, encode: None, send: None, decode: None, consume: None },
    };
    const GIGABYTE: Query = Query { volume_bytes: 1_000_000_000, row_bytes: 100.0 };

    #[test]
    fn the_round_trip_vanishes_once_the_window_covers_it() -> Result<()> {
        let cost = WindowCost::new(&LONG, &GIGABYTE)?;
        let seconds = |window| cost.seconds(125e3, 125e3, window);
        for (window, expected) in [(1, 88.0), (2, 44.001), (11, 8.01), (1000, 8.01)] {
            assert!((seconds(window) - expected).abs() < 1e-6, "{window}: {}", seconds(window));
        }
        // The bandwidth-delay product is ten batches; one more is on the wire.
        assert_eq!(cost.least_window(125e3, 125e3, 1000, 1e-9), 11);
        assert_eq!(cost.least_window(125e3, 125e3, 4, 0.0), 4);
        assert_eq!(cost.least_window(125e3, 125e3, 0, 0.0), 1);
        Ok(())
    }

    #[test]
    fn the_time_is_at_least_that_of_the_slowest_stage() -> Result<()> {
        let rates = Rates { decode: Some(50e6), ..Rates::default() };
        let cost = WindowCost::new(&Link { rates, ..LONG }, &GIGABYTE)?;
        assert_eq!(cost.seconds(125e3, 125e3, 1000), 20.0);
        assert!(cost.seconds(125e3, 125e3, 1) > 87.0);
        // Twenty seconds need far fewer batches in flight.
        assert_eq!(cost.least_window(125e3, 125e3, 1000, 0.02), 5);
        Ok(())
    }

    #[test]
    fn an_invalid_link_is_rejected() {
        for rtt_seconds in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(WindowCost::new(&Link { rtt_seconds, ..LONG }, &GIGABYTE).is_err());
        }
        let rates = Rates { send: Some(0.0), ..Rates::default() };
        assert!(WindowCost::new(&Link { rates, ..LONG }, &GIGABYTE).is_err());
    }
}
