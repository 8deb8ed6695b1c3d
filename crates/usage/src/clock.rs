//! The map from a host's clock to the time line.

use serde::{Deserialize, Serialize};

use crate::error::{Result, within};

/// The largest drift in parts per billion, half a second per second. A clock with more is broken.
const DRIFT_PPB_MAX: f64 = 5e8;

/// How a host's monotonic clock reads on the time line: at a moment when the host reads `host_ns`, the time line is at
/// `line_ns`, give or take `bound_ns`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockMap {
    /// The host's clock at the moment of the measurement, in nanoseconds.
    pub host_ns: u64,
    /// The time line at that moment, in nanoseconds. The difference of both is the offset.
    pub line_ns: u64,
    /// By how much the offset may be wrong, in nanoseconds: half of the round trip of the measurement, or more.
    pub bound_ns: u64,
    /// Nanoseconds by which the time line gains on the host in a second of the host: parts per billion.
    pub drift_ppb: i64,
    /// By how much the drift may be wrong, in parts per billion. The bound grows by it with the distance in time.
    pub drift_bound_ppb: u64,
}

impl ClockMap {
    /// The map of a host whose clock is the time line.
    pub fn identity() -> Self {
        Self::default()
    }

    /// Checks the drift.
    ///
    /// # Errors
    /// [`UsageError::OutOfRange`](crate::UsageError::OutOfRange) if the clock would stand still or run backwards.
    pub fn check(&self) -> Result<()> {
        within("drift of a clock in parts per billion", self.drift_ppb as f64, -DRIFT_PPB_MAX, DRIFT_PPB_MAX)
    }

    /// The moment on the time line, in nanoseconds. A moment before or after the time line is moved to its end.
    pub fn to_line(&self, at_ns: u64) -> u64 {
        let since = i128::from(at_ns) - i128::from(self.host_ns);
        let drift = since * i128::from(self.drift_ppb) / 1_000_000_000;
        let at = i128::from(self.line_ns) + since + drift;
        at.clamp(0, i128::from(u64::MAX)) as u64
    }

    /// By how much [`ClockMap::to_line`] may be wrong, in nanoseconds.
    pub fn bound_ns(&self, at_ns: u64) -> u64 {
        let since = u128::from(at_ns.abs_diff(self.host_ns));
        let grown = since * u128::from(self.drift_bound_ppb) / 1_000_000_000;
        (u128::from(self.bound_ns) + grown).min(u128::from(u64::MAX)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_mapped_with_offset_drift_and_bound() {
        let map = ClockMap {
            host_ns: 1_000,
            line_ns: 5_000_000_000,
            bound_ns: 100,
            drift_ppb: 1_000,
            drift_bound_ppb: 10,
        };
        assert_eq!(map.to_line(1_000), 5_000_000_000);
        assert_eq!(map.to_line(10_000_001_000), 15_000_010_000);
        assert_eq!(map.bound_ns(10_000_001_000), 200);
        assert_eq!(map.to_line(0), 4_999_999_000);
    }

    #[test]
    fn absurd_clocks_end_at_the_ends() {
        let map = ClockMap { host_ns: u64::MAX, drift_ppb: i64::MIN, ..ClockMap::default() };
        assert!(map.check().is_err());
        let early = ClockMap { host_ns: u64::MAX, ..ClockMap::default() };
        assert_eq!(early.to_line(0), 0);
        let late = ClockMap { line_ns: u64::MAX, drift_bound_ppb: u64::MAX, ..ClockMap::default() };
        assert_eq!(late.to_line(u64::MAX), u64::MAX);
        assert_eq!(late.bound_ns(u64::MAX), u64::MAX);
    }
}
