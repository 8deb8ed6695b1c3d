//! Estimates the rate of the link to the consumer.

use std::time::Duration;

use super::Fading;

/// The half-life of measurements, in busy time; [`ROUND_TRIPS`] if that is longer. Short enough to follow a
/// link that changes, long enough to average over the oscillation of TCP's window.
const HALF_LIFE: Duration = Duration::from_millis(50);
const ROUND_TRIPS: u32 = 8;

/// Bursts after a pause are faster than the link by up to this factor.
const BURST: f64 = 2.0;

/// What a socket carried within an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Carried {
    /// Bytes that arrived at the peer.
    pub(crate) bytes: u64,
    /// The time during which bytes were in flight.
    pub(crate) busy: Duration,
    /// Whether there was always more to send. If not, the link may be faster than measured.
    pub(crate) saturated: bool,
}

/// The rate of a link.
#[derive(Debug, Clone)]
pub(crate) struct Bandwidth {
    rate: Fading,
    /// Whether the rate was measured while the link was saturated.
    saturated: bool,
    /// Whether the link was saturated in the last interval.
    saturated_now: bool,
}

impl Bandwidth {
    /// A link of which only the round-trip time is known.
    pub(crate) fn new(rtt: Duration) -> Self {
        let half_life = HALF_LIFE.max(rtt * ROUND_TRIPS);
        Self { rate: Fading::new(half_life.as_nanos() as f64), saturated: false, saturated_now: false }
    }

    /// Sets the expected rate before the first measurement: TCP sends `window_bytes` in each round trip. The rate
    /// is at most `bytes_per_ns_max`, because the round trip may be very short.
    pub(crate) fn expect(&mut self, window_bytes: u64, rtt: Duration, bytes_per_ns_max: f64) {
        let rtt_ns = rtt.as_nanos() as f64;
        if self.rate.rate().is_none() && rtt_ns > 0.0 {
            self.rate.add((window_bytes as f64).min(bytes_per_ns_max * rtt_ns), rtt_ns);
        }
    }

    /// Adds the measurement of an interval.
    pub(crate) fn observe(&mut self, carried: Carried) {
        let busy_ns = carried.busy.as_nanos() as f64;
        if busy_ns == 0.0 {
            return;
        }
        let seen = carried.bytes as f64 / busy_ns;
        // If too few bytes were sent, a low rate says nothing about the link (as in BBR: N. Cardwell
        // et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14-5, 2016, section
        // "application-limited"). A burst is faster than the rate of a saturated link.
        let bursts = if self.saturated { BURST } else { 1.0 };
        let more = self.rate.rate().is_none_or(|rate| seen > rate * bursts);
        self.saturated_now = carried.saturated;
        if carried.saturated || more {
            self.rate.add(carried.bytes as f64, busy_ns);
            self.saturated = carried.saturated;
        }
    }

    /// Whether the link is the bottleneck.
    pub(crate) fn is_saturated(&self) -> bool {
        self.saturated_now
    }

    /// The rate in bytes per nanosecond; `None` while unknown.
    pub(crate) fn bytes_per_ns(&self) -> Option<f64> {
        self.rate.rate().filter(|&rate| rate > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(bytes: u64, millis: u64, saturated: bool) -> Carried {
        Carried { bytes, busy: Duration::from_millis(millis), saturated }
    }

    fn mbit(bandwidth: &Bandwidth) -> f64 {
        bandwidth.bytes_per_ns().unwrap_or_default() * 8e3
    }

    #[test]
    fn the_first_estimate_comes_from_the_first_window() {
        let rtt = Duration::from_millis(100);
        let mut bandwidth = Bandwidth::new(rtt);
        assert_eq!(bandwidth.bytes_per_ns(), None);
        bandwidth.expect(12_500, rtt, 1.0);
        assert!((mbit(&bandwidth) - 1.0).abs() < 0.01);
        bandwidth.observe(carried(1_250_000, 1000, true));
        assert!((9.0..10.0).contains(&mbit(&bandwidth)), "{}", mbit(&bandwidth));
        bandwidth.expect(1, rtt, 1.0);
        assert!(mbit(&bandwidth) > 9.0);
    }

    #[test]
    fn the_estimate_follows_a_link_that_slows_and_recovers() {
        let mut bandwidth = Bandwidth::new(Duration::from_millis(1));
        for (mbits, seconds) in [(1000, 2), (100, 1), (1000, 1)] {
            for _ in 0..seconds * 20 {
                bandwidth.observe(carried(mbits * 6250, 50, true));
            }
            let ratio = mbit(&bandwidth) / mbits as f64;
            assert!((0.98..1.02).contains(&ratio), "{mbits}: {ratio}");
        }
    }

    #[test]
    fn an_idle_link_does_not_lower_the_estimate() {
        let mut bandwidth = Bandwidth::new(Duration::from_millis(1));
        bandwidth.observe(carried(12_500_000, 100, true));
        for _ in 0..100 {
            bandwidth.observe(carried(1000, 100, false));
            bandwidth.observe(carried(0, 0, true));
        }
        assert!((mbit(&bandwidth) - 1000.0).abs() < 1.0);
        // A higher rate counts even if the link was not saturated.
        bandwidth.observe(carried(125_000_000, 100, false));
        assert!(mbit(&bandwidth) > 2000.0);
    }
}
