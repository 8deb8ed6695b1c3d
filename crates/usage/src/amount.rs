//! A measured amount with its bounds.

use serde::{Deserialize, Serialize};

/// An amount, in its figure's unit, and the bounds within which it lies. All are finite, and
/// `0 <= low <= value <= high`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Amount {
    /// The best estimate.
    pub value: f64,
    /// The least that it can be.
    pub low: f64,
    /// The most that it can be.
    pub high: f64,
}

/// The largest amount, so that sums and products of a few amounts stay finite.
const AMOUNT_MAX: f64 = 1e30;

impl Amount {
    /// An amount with its bounds, which are put in order: bounds that exclude the value are moved to it, and NaN
    /// becomes 0.
    pub fn new(value: f64, low: f64, high: f64) -> Self {
        let value = tame(value);
        Self { value, low: tame(low).min(value), high: tame(high).max(value) }
    }

    /// An amount that is known exactly.
    pub fn exact(value: f64) -> Self {
        Self::new(value, value, value)
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self::new(self.value + other.value, self.low + other.low, self.high + other.high)
    }

    /// A multiple of it; the factor is at least 0.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self::new(self.value * factor, self.low * factor, self.high * factor)
    }

    /// The share of one of several users: an equal share is the estimate, and anything from nothing to all is possible.
    #[must_use]
    pub fn shared(self, users: usize) -> Self {
        Self::new(self.value / users.max(1) as f64, 0.0, self.high)
    }
}

fn tame(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, AMOUNT_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_stay_in_order_and_finite() {
        let odd = Amount::new(f64::NAN, 5.0, -3.0);
        assert_eq!(odd, Amount { value: 0.0, low: 0.0, high: 0.0 });
        let large = Amount::exact(f64::INFINITY);
        assert!(large.plus(large).times(1e300).high.is_finite());
        let shared = Amount::new(6.0, 5.0, 7.0).shared(3);
        assert_eq!(shared, Amount { value: 2.0, low: 0.0, high: 7.0 });
    }
}
