//! Latencies, counted in buckets 3% wide.

use serde::Serialize;

/// Buckets per power of two.
const BUCKETS: u64 = 1 << 5;

/// Percentiles in seconds, each at most 3% above the measured value.
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

/// Counts of latencies. Takes at most 8 KB of memory.
#[derive(Debug, Clone, Default)]
pub struct Histogram {
    counts: Vec<u32>,
    total: u64,
}

impl Histogram {
    /// Counts one latency.
    pub fn add(&mut self, nanoseconds: u64) {
        let bucket = bucket(nanoseconds);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
    }

    fn seconds(&self, part: f64) -> f64 {
        let rank = (part * self.total as f64).ceil().max(1.0) as u64;
        let mut counted = 0;
        let found = self.counts.iter().position(|count| {
            counted += u64::from(*count);
            counted >= rank
        });
        found.map_or(0.0, |bucket| upper(bucket) as f64 * 1e-9)
    }

    /// Percentiles of all counted latencies; zeros if there are none.
    pub fn percentiles(&self) -> Latencies {
        Latencies {
            p1_seconds: self.seconds(0.01),
            p25_seconds: self.seconds(0.25),
            p50_seconds: self.seconds(0.5),
            p75_seconds: self.seconds(0.75),
            p99_seconds: self.seconds(0.99),
            p999_seconds: self.seconds(0.999),
            max_seconds: self.seconds(1.0),
        }
    }
}

fn bucket(value: u64) -> usize {
    if value < BUCKETS {
        return value as usize;
    }
    let shift = u64::from(value.ilog2() - BUCKETS.ilog2());
    ((shift + 1) * BUCKETS + (value >> shift) - BUCKETS) as usize
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < BUCKETS {
        return bucket;
    }
    let shift = bucket / BUCKETS - 1;
    ((bucket % BUCKETS + BUCKETS + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_bounds_are_within_3_percent() {
        for value in (0..5000).chain([1 << 20, (1 << 20) + 1, 123_456_789_012]) {
            let upper = upper(bucket(value));
            assert!(upper >= value && upper - value <= value / 32, "{value}: {upper}");
        }
    }

    #[test]
    fn percentiles_are_at_most_3_percent_high() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentiles(), Latencies::default());
        (1..=1000).for_each(|i| histogram.add(i * 1000));
        let found = histogram.percentiles();
        for (seconds, expected) in
            [(found.p1_seconds, 1e-5), (found.p50_seconds, 5e-4), (found.max_seconds, 1e-3)]
        {
            assert!((expected..expected * 1.032).contains(&seconds), "{seconds} {expected}");
        }
    }
}
