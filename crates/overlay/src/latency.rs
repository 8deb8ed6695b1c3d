//! Counts latencies.

use serde::Serialize;

/// Significant digits of a counted latency. With three, the histograms of thousands of nodes would take
/// hundreds of megabytes.
const DIGITS: u8 = 2;

/// Percentiles in seconds, each at most 1% above the measured value.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Latencies {
    /// 1st percentile.
    pub p1_seconds: f64,
    /// 25th percentile.
    pub p25_seconds: f64,
    /// Median.
    pub p50_seconds: f64,
    /// 75th percentile.
    pub p75_seconds: f64,
    /// 99th percentile.
    pub p99_seconds: f64,
    /// 99.9th percentile.
    pub p999_seconds: f64,
    /// Maximum.
    pub max_seconds: f64,
}

/// Counts of latencies. Takes about 15 KB of memory.
#[derive(Debug, Clone)]
pub struct Histogram(hdrhistogram::Histogram<u32>);

impl Default for Histogram {
    fn default() -> Self {
        let counts = hdrhistogram::Histogram::new(DIGITS);
        Self(counts.unwrap_or_else(|_| unreachable!("two digits are valid")))
    }
}

impl Histogram {
    /// Counts one latency.
    pub fn add(&mut self, nanoseconds: u64) {
        // It grows as needed, which can fail only where memory can't be addressed by 64 bits.
        let _ = self.0.record(nanoseconds);
    }

    /// Percentiles of all counted latencies; zeros if there are none.
    pub fn percentiles(&self) -> Latencies {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 * 1e-9;
        Latencies {
            p1_seconds: at(0.01),
            p25_seconds: at(0.25),
            p50_seconds: at(0.5),
            p75_seconds: at(0.75),
            p99_seconds: at(0.99),
            p999_seconds: at(0.999),
            max_seconds: at(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_at_most_1_percent_high() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentiles(), Latencies::default());
        (1..=1000).for_each(|i| histogram.add(i * 1000));
        let found = histogram.percentiles();
        for (seconds, expected) in
            [(found.p1_seconds, 1e-5), (found.p50_seconds, 5e-4), (found.max_seconds, 1e-3)]
        {
            assert!((expected..expected * 1.01).contains(&seconds), "{seconds} {expected}");
        }
    }
}
