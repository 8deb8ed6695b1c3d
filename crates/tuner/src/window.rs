//! The cost with several batches in flight.
//!
//! In the thesis a consumer asks for a batch, waits for all of it, and asks for the next: one
//! *cycle* a batch, `alpha + (ceil(F^B / M) - 1) beta`. A part of alpha is waiting, in which
//! nothing moves: the round trip, but no more than alpha is over beta, for a first message is
//! also a message. The rest of the cycle is the batch's *wire time*, in which no other batch
//! moves. With W batches asked for ahead, batch i is there
//!
//! - no sooner than a wire time after batch i - 1, and
//! - no sooner than a cycle after batch i - W, whose arrival asked for it.
//!
//! The later of the two decides, so the last of n batches is there after
//!
//! `cycle + (n - 1) wire + floor((n - 1) / W) max(0, cycle - W wire)`:
//!
//! every W batches the transfer stalls for what W batches don't cover of a cycle. With W = 1 that
//! is `n cycle`, the thesis' cost; once W wire times cover a cycle it is the *plateau*
//! `cycle + (n - 1) wire`, with a single wait in it. The time of a batch in between is
//! `max(wire, cycle / W)`.

use serde::{Deserialize, Serialize};

use crate::cost::{BatchSeconds, Cost};
use crate::error::{Result, within};
use crate::model::{LinkModel, Query};
use crate::stages::Rates;

/// A link and its two ends.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Link {
    /// What messages cost.
    pub model: LinkModel,
    /// The measured round trip. Of it counts no more than a first message takes longer than another;
    /// what a first message takes beyond both is work that no window hides.
    pub rtt_seconds: f64,
    /// What the stages can do at most, as far as that is known.
    #[serde(default)]
    pub rates: Rates,
}

/// What carrying a query's result over a link costs with W batches in flight.
#[derive(Debug, Clone, Copy)]
pub struct WindowCost {
    cost: Cost,
    rtt_seconds: f64,
    /// Of the slowest stage.
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

    /// Seconds of the transfer with `window_batches` in flight, at least one; never less than the
    /// slowest stage takes. A larger window never takes longer.
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

    /// What the time of the transfer is made of, but for the slowest stage.
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

    /// Of the slowest stage.
    pub(crate) fn least_seconds(&self) -> f64 {
        self.least_seconds
    }

    /// The least window within `windows` whose time is no more than `target_seconds`; `None` when
    /// that of the largest is more as well.
    pub(crate) fn window_for(
        &self,
        batch_bytes: f64,
        message_bytes: f64,
        windows: (u64, u64),
        target_seconds: f64,
    ) -> Option<u64> {
        let (window_min, window_max) = windows;
        // As many as there are batches are as good as any more.
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

    /// For given sizes, the least window that takes at most `1 + tolerance` times what the
    /// largest takes: the least memory of the plateau.
    pub fn least_window(&self, batch_bytes: f64, message_bytes: f64, window_max: u64, tolerance: f64) -> u64 {
        let plateau = self.seconds(batch_bytes, message_bytes, window_max);
        let target = plateau * (1.0 + tolerance.max(0.0));
        self.window_for(batch_bytes, message_bytes, (1, window_max), target).unwrap_or(window_max.max(1))
    }
}

/// Seconds of a transfer by what they are spent on.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Parts {
    /// Nothing moves: for the first batch, and wherever the window does not cover a round trip.
    pub(crate) waiting: f64,
    /// What a first message takes beyond another and beyond the wait.
    pub(crate) starting: f64,
    /// What messages take wherever they stand.
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
        fn it_is_what_the_batches_do(
            link in link(), volume_bytes in 0..30_000_000u64, x in 3e4..3e6f64, part in 0.001..1.5f64, window in 1..40u64,
        ) {
            let query = Query { volume_bytes, row_bytes: 27.0 };
            let ours = WindowCost::new(&link, &query)?.seconds(x, x * part, window);
            let theirs = simulated(&link, &query, x, x * part, window as usize)?;
            prop_assert!((ours - theirs).abs() <= 1e-9 * theirs, "{} {}", ours, theirs);
        }

        #[test]
        fn a_window_of_one_is_the_thesis(link in link(), x in 27.0..3e7f64, y in 512.0..32_767f64) {
            let (ours, theirs) = (WindowCost::new(&link, &Q3)?.seconds(x, y, 1), Cost::new(&link.model, &Q3)?.seconds(x, y));
            prop_assert!((ours / theirs - 1.0).abs() < 1e-12, "{} {}", ours, theirs);
        }

        #[test]
        fn the_parts_make_the_whole(link in link(), x in 27.0..3e7f64, y in 512.0..32_767f64, window in 1..100u64) {
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
        fn the_least_window_is_the_least(link in link(), x in 27.0..3e7f64, y in 512.0..32_767f64, tolerance in 0.0..0.2f64) {
            let cost = WindowCost::new(&link, &Q3)?;
            let window = cost.least_window(x, y, 1000, tolerance);
            let allowed = cost.seconds(x, y, 1000) * (1.0 + tolerance);
            prop_assert!(cost.seconds(x, y, window) <= allowed);
            prop_assert!(window == 1 || cost.seconds(x, y, window - 1) > allowed);
        }
    }

    /// 1 Gbit/s and 10 ms, in batches of one message of 125 KB: each takes 1 ms of the wire.
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
        // Bandwidth x delay are ten batches; one more is on the wire.
        assert_eq!(cost.least_window(125e3, 125e3, 1000, 1e-9), 11);
        assert_eq!(cost.least_window(125e3, 125e3, 4, 0.0), 4);
        assert_eq!(cost.least_window(125e3, 125e3, 0, 0.0), 1);
        Ok(())
    }

    #[test]
    fn the_slowest_stage_is_the_floor() -> Result<()> {
        let rates = Rates { decode: Some(50e6), ..Rates::default() };
        let cost = WindowCost::new(&Link { rates, ..LONG }, &GIGABYTE)?;
        assert_eq!(cost.seconds(125e3, 125e3, 1000), 20.0);
        assert!(cost.seconds(125e3, 125e3, 1) > 87.0);
        // Twenty seconds are reached with far fewer in flight.
        assert_eq!(cost.least_window(125e3, 125e3, 1000, 0.02), 5);
        Ok(())
    }

    #[test]
    fn a_link_that_makes_no_sense() {
        for rtt_seconds in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(WindowCost::new(&Link { rtt_seconds, ..LONG }, &GIGABYTE).is_err());
        }
        let rates = Rates { send: Some(0.0), ..Rates::default() };
        assert!(WindowCost::new(&Link { rates, ..LONG }, &GIGABYTE).is_err());
    }
}
