//! The cost of a transfer: with ceilings, and in a smooth form with derivatives.
//!
//! A batch costs alpha for its first message and beta for every other. Source:
//! A. Belghoul, "Optimizing Communication Cost in Distributed Query Processing", PhD thesis,
//! Université Clermont Auvergne, 2017.

use crate::error::Result;
use crate::model::{BYTES_MAX, Batch, LinkModel, Plan, Point, Query};

/// The cost of transferring a query's result over a link.
///
/// Sizes below one byte count as one byte. No size makes a cost negative or NaN.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    model: LinkModel,
    volume: f64,
}

/// Seconds of one batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchSeconds {
    /// alpha.
    pub(crate) first: f64,
    /// beta.
    pub(crate) next: f64,
    /// All messages of the batch: `alpha + (ceil(F^B / M) - 1) beta`.
    pub(crate) cycle: f64,
}

/// Second derivatives of the smooth form, in seconds per square byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hessian {
    /// Twice by the batch size.
    pub batch: f64,
    /// Twice by the message size.
    pub message: f64,
    /// By both.
    pub mixed: f64,
}

impl Cost {
    /// # Errors
    /// [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) as in [`LinkModel::check`] and
    /// [`Query::check`].
    pub fn new(model: &LinkModel, query: &Query) -> Result<Self> {
        model.check()?;
        query.check()?;
        Ok(Self { model: *model, volume: query.volume() })
    }

    /// How many batches the result takes: `ceil(V / F^B)`.
    pub(crate) fn batches(&self, batch_bytes: f64) -> f64 {
        (self.volume / sane(batch_bytes)).ceil()
    }

    /// The time of one batch.
    pub(crate) fn batch(&self, batch_bytes: f64, message_bytes: f64) -> BatchSeconds {
        let (x, y) = (sane(batch_bytes), sane(message_bytes));
        let (first, next) = (self.model.first.seconds(x, y), self.model.next.seconds(x, y));
        BatchSeconds { first, next, cycle: first + next * ((x / y).ceil() - 1.0) }
    }

    /// Seconds of the transfer:
    /// `alpha ceil(V / F^B) + beta ceil(V / F^B) (ceil(F^B / M) - 1)`.
    pub fn seconds(&self, batch_bytes: f64, message_bytes: f64) -> f64 {
        self.batches(batch_bytes) * self.batch(batch_bytes, message_bytes).cycle
    }

    /// The cost without ceilings, for x = `batch_bytes` and y = `message_bytes`:
    /// `(a1 x + b1 y + c1) V/x + (a x + b y + c) (V/x) (x/y - 1)`.
    ///
    /// A message larger than its batch counts as equal to the batch.
    pub fn smooth_seconds(&self, batch_bytes: f64, message_bytes: f64) -> f64 {
        let (x, y) = (sane(batch_bytes), sane(message_bytes));
        let (first, next) = (self.model.first.seconds(x, y), self.model.next.seconds(x, y));
        self.volume / x * (first + next * (x / y - 1.0).max(0.0))
    }

    /// First derivatives of the smooth form by batch and message size, in seconds per byte, for
    /// messages no larger than their batch.
    pub fn gradient(&self, batch_bytes: f64, message_bytes: f64) -> [f64; 2] {
        let (x, y, v) = (sane(batch_bytes), sane(message_bytes), self.volume);
        let (first, next) = (self.model.first, self.model.next);
        [
            v * self.apart(y) / (x * x) + next.per_batch_byte * v / y,
            v * (first.per_message_byte - next.per_message_byte) / x
                - v * (next.per_batch_byte * x + next.constant) / (y * y),
        ]
    }

    /// Second derivatives of the smooth form, for messages no larger than their batch.
    pub fn hessian(&self, batch_bytes: f64, message_bytes: f64) -> Hessian {
        let (x, y, v) = (sane(batch_bytes), sane(message_bytes), self.volume);
        let (first, next) = (self.model.first, self.model.next);
        Hessian {
            batch: -2.0 * v * self.apart(y) / (x * x * x),
            message: 2.0 * v * (next.per_batch_byte * x + next.constant) / (y * y * y),
            mixed: v * (next.per_message_byte - first.per_message_byte) / (x * x)
                - next.per_batch_byte * v / (y * y),
        }
    }

    /// Beta minus alpha, without the terms of the batch size: `(c - c1) + (b - b1) y`.
    fn apart(&self, y: f64) -> f64 {
        let (first, next) = (self.model.first, self.model.next);
        (next.constant - first.constant) + (next.per_message_byte - first.per_message_byte) * y
    }

    pub(crate) fn smooth_at(&self, at: Point) -> f64 {
        self.smooth_seconds(at.x, at.y)
    }

    /// The plan near a point, rounded to whole rows and bytes, with one batch in flight.
    pub(crate) fn plan_at(&self, query: &Query, at: Point) -> Plan {
        let batch = Batch::fitting(query, at.x);
        let message_bytes = at.y.floor();
        Plan {
            batch_rows: batch.rows as u64,
            batch_bytes: batch.bytes as u64,
            message_bytes: message_bytes as u64,
            window_batches: 1,
            predicted_seconds: self.seconds(batch.bytes, message_bytes),
            memory_bytes: batch.bytes as u64,
        }
    }
}

#[expect(clippy::manual_clamp, reason = "`f64::max` replaces NaN by one byte")]
fn sane(bytes: f64) -> f64 {
    bytes.max(1.0).min(BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::thesis;

    #[test]
    fn the_cost_with_ceilings_matches_a_worked_example() -> Result<()> {
        // 10 batches of 4 messages, the last ones short.
        let query = Query { volume_bytes: 9_500, row_bytes: 1.0 };
        let model = thesis::TEN_GIGABIT;
        let cost = Cost::new(&model, &query)?;
        let by_hand = 10.0 * model.first.seconds(1000.0, 300.0) + 30.0 * model.next.seconds(1000.0, 300.0);
        assert!((cost.seconds(1000.0, 300.0) / by_hand - 1.0).abs() < 1e-12);
        // A message larger than its batch is a single message.
        assert_eq!(cost.seconds(1000.0, 2000.0), 10.0 * model.first.seconds(1000.0, 2000.0));
        Ok(())
    }

    #[test]
    fn an_empty_result_costs_nothing_and_any_size_has_a_finite_cost() -> Result<()> {
        let odd = [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e-300, 1.0, 1e300];
        for volume_bytes in [0, 1, 1 << 60] {
            let cost = Cost::new(&thesis::TEN_GIGABIT, &Query { volume_bytes, row_bytes: 27.0 })?;
            for (x, y) in odd.iter().flat_map(|&x| odd.map(|y| (x, y))) {
                let (seconds, smooth) = (cost.seconds(x, y), cost.smooth_seconds(x, y));
                assert!(seconds >= 0.0 && seconds.is_finite() && (volume_bytes > 0 || seconds == 0.0));
                assert!(smooth >= 0.0 && smooth.is_finite(), "{x} {y}: {smooth}");
                assert!(cost.gradient(x, y).iter().all(|g| g.is_finite()));
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Compares with finite differences, at points inside the limits.
        #[test]
        fn derivatives_match_finite_differences(x in 2e3..3e7f64, part in 0.01..0.9f64, slow in any::<bool>()) {
            let model = if slow { thesis::FIFTY_MEGABIT } else { thesis::TEN_GIGABIT };
            let cost = Cost::new(&model, &thesis::Q3)?;
            let y = x * part;
            let (dx, dy) = (x * 1e-5, y * 1e-5);
            let [g1, g2] = cost.gradient(x, y);
            let hessian = cost.hessian(x, y);
            let by_x = |f: &dyn Fn(f64, f64) -> f64| (f(x + dx, y) - f(x - dx, y)) / (2.0 * dx);
            let by_y = |f: &dyn Fn(f64, f64) -> f64| (f(x, y + dy) - f(x, y - dy)) / (2.0 * dy);
            let smooth = |x, y| cost.smooth_seconds(x, y);
            // Near a zero of the derivative terms cancel, so the error is relative to the cost.
            let scale = cost.smooth_seconds(x, y);
            prop_assert!((by_x(&smooth) - g1).abs() < 1e-6 * (g1.abs() + scale / x));
            prop_assert!((by_y(&smooth) - g2).abs() < 1e-6 * (g2.abs() + scale / y));
            let (first, second) = (|x, y| cost.gradient(x, y)[0], |x, y| cost.gradient(x, y)[1]);
            prop_assert!((by_x(&first) - hessian.batch).abs() < 1e-6 * (hessian.batch.abs() + scale / x / x));
            prop_assert!((by_y(&first) - hessian.mixed).abs() < 1e-6 * (hessian.mixed.abs() + scale / x / y));
            prop_assert!((by_y(&second) - hessian.message).abs() < 1e-6 * (hessian.message.abs() + scale / y / y));
        }
    }
}
