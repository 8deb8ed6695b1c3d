//! Statistics of measured times.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Times from sending a message until its echo of the same size has arrived, in microseconds, with
/// a relative error of at most 1/1000.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of measured times.
    pub count: u64,
    /// Minimum.
    pub min_us: f64,
    /// Mean.
    pub avg_us: f64,
    /// 1st percentile.
    pub p1_us: f64,
    /// 25th percentile.
    pub p25_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 75th percentile.
    pub p75_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Maximum.
    pub max_us: f64,
}

impl Latency {
    /// `None` if nothing was measured.
    fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |quantile| us(histogram.value_at_quantile(quantile).min(histogram.max()));
        (!histogram.is_empty()).then(|| Self {
            count: histogram.len(),
            min_us: us(histogram.min()),
            avg_us: (histogram.mean() / 10.0).round() / 100.0,
            p1_us: at(0.01),
            p25_us: at(0.25),
            p50_us: at(0.5),
            p75_us: at(0.75),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(histogram.max()),
        })
    }
}

/// Significant digits of a recorded time.
const DIGITS: u8 = 3;
/// Longer times count as this one. A ping times out long before.
const LONGEST: Duration = Duration::from_secs(600);
/// Times that a connection buffers before it takes the lock.
const OWN_TIMES: usize = 128;

/// The times of all connections of a phase.
#[derive(Debug)]
pub(crate) struct Recorder {
    // Shared by all connections: thousands of histograms would take hundreds of megabytes.
    histogram: Mutex<Histogram<u64>>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let longest_ns = LONGEST.as_nanos() as u64;
        // These bounds are valid. The fallback is a histogram that resizes itself.
        let histogram = Histogram::new_with_bounds(1, longest_ns, DIGITS)
            .or_else(|_| Histogram::new(DIGITS))
            .unwrap_or_else(|_| unreachable!("three digits are valid"));
        Self { histogram: Mutex::new(histogram) }
    }

    /// A recorder for one connection.
    pub(crate) fn times(&self) -> Times<'_> {
        Times { recorder: self, own: Vec::with_capacity(OWN_TIMES) }
    }

    pub(crate) fn latency(&self) -> Option<Latency> {
        Latency::of(&self.histogram.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The times of one connection. Dropping this adds them to the histogram.
pub(crate) struct Times<'a> {
    recorder: &'a Recorder,
    own: Vec<u64>,
}

impl Times<'_> {
    pub(crate) fn record(&mut self, time: Duration) {
        self.own.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        if self.own.len() == OWN_TIMES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let mut histogram = self.recorder.histogram.lock().unwrap_or_else(PoisonError::into_inner);
        self.own.drain(..).for_each(|ns| histogram.saturating_record(ns));
    }
}

impl Drop for Times<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn latency_combines_the_times_of_all_connections() {
        let recorder = Recorder::new();
        assert_eq!(recorder.latency(), None);
        let (mut one, mut other) = (recorder.times(), recorder.times());
        for us in 1..=500 {
            one.record(Duration::from_micros(2 * us - 1));
            other.record(Duration::from_micros(2 * us));
        }
        drop((one, other));
        let latency = recorder.latency().expect("some");
        let near = |found: f64, us: f64| assert!((found / us - 1.0).abs() < 2e-3, "{found}: {latency:?}");
        assert_eq!(latency.count, 1000);
        near(latency.min_us, 1.0);
        near(latency.p1_us, 10.0);
        near(latency.p50_us, 500.0);
        near(latency.avg_us, 500.5);
        near(latency.p99_us, 990.0);
        near(latency.p999_us, 999.0);
        near(latency.max_us, 1000.0);
    }

    proptest! {
        #[test]
        fn percentiles_are_sorted(times in prop::collection::vec(0..=u64::MAX, 1..300)) {
            let recorder = Recorder::new();
            let mut own = recorder.times();
            times.iter().for_each(|ns| own.record(Duration::from_nanos(*ns)));
            drop(own);
            let l = recorder.latency().expect("some");
            let rising = [l.min_us, l.p1_us, l.p25_us, l.p50_us, l.p75_us, l.p99_us, l.p999_us, l.max_us];
            prop_assert!(rising.is_sorted(), "{:?}", l);
            prop_assert_eq!(l.count, times.len() as u64);
            prop_assert!(l.avg_us <= l.max_us * 1.001 && l.avg_us >= l.min_us * 0.999 - 0.01);
        }
    }
}
