//! The thesis' optimiser: Newton's method on the smooth form, clamped to the maxima, until a step
//! no longer pays off.

use crate::cost::Cost;
use crate::error::Result;
use crate::model::{Limits, LinkModel, Point, Query, Region};
use crate::walk::{Halt, Rules, Walk, walk};

/// Starts at `M = M_min`, `F^B = 2 M_min` and steps to `(F^B, M) - H^-1 g`. Each size is clamped to its
/// maximum after each step. A message is also limited to its batch, and a batch to the result; this
/// does not change the thesis' figures.
///
/// Where the form is not convex, a step may lead uphill. Such a step saves nothing and ends the walk,
/// while [`descent`](crate::descent) continues.
///
/// # Errors
/// [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) for invalid coefficients, sizes or
/// limits, [`TunerError::RowTooLarge`](crate::TunerError::RowTooLarge) if a row does not fit a batch.
pub fn newton(model: &LinkModel, query: &Query, limits: &Limits, rules: &Rules) -> Result<Walk> {
    walk(model, query, limits, rules, step)
}

fn step(cost: &Cost, region: &Region, at: Point) -> Result<Point, Halt> {
    if region.at_both_maxima(at) {
        return Err(Halt::Limits);
    }
    let [g1, g2] = cost.gradient(at.x, at.y);
    let h = cost.hessian(at.x, at.y);
    let determinant = h.batch * h.message - h.mixed * h.mixed;
    let next = Point {
        x: at.x - (g1 * h.message - g2 * h.mixed) / determinant,
        y: at.y - (g2 * h.batch - g1 * h.mixed) / determinant,
    };
    // With a singular Hessian the sizes are infinite or NaN.
    let usable = |size: f64| size.is_finite() && size > 0.0;
    if usable(next.x) && usable(next.y) { Ok(region.clamp(next)) } else { Err(Halt::NoStep) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Plane;
    use crate::thesis::{ITERATIONS, LIMITS, Q3, TEN_GIGABIT};

    fn q3(rules: Rules) -> Walk {
        newton(&TEN_GIGABIT, &Q3, &LIMITS, &rules).expect("published inputs")
    }

    fn apart(ours: f64, published: f64) -> f64 {
        (ours / published - 1.0).abs()
    }

    #[test]
    fn newton_repeats_the_published_iterations() {
        let walk = q3(Rules::default());
        assert_eq!((walk.trace[0].batch_bytes, walk.trace[0].message_bytes), (1024.0, 512.0));
        for (row, (batch_bytes, message_bytes, seconds)) in walk.trace[1..].iter().zip(ITERATIONS) {
            assert!(apart(row.batch_bytes.round(), batch_bytes) < 2e-4, "{row:?}");
            // Within half a unit of the last digit, or a relative error like that of the batch.
            assert!((row.message_bytes - message_bytes).abs() < 0.5f64.max(message_bytes * 3e-4), "{row:?}");
            assert!(apart(row.seconds, seconds) < 4e-3, "{row:?}");
            assert!(apart(row.smooth_seconds, seconds) < 1.5e-2, "{row:?}");
        }
        assert_eq!(walk.halt, Halt::Limits);
        assert_eq!((walk.plan.message_bytes, walk.k), (32_767, 25));
        assert_eq!(walk.plan.batch_rows, 30_000_000 / 27);
    }

    #[test]
    fn newton_stops_when_a_step_saves_less_than_a_second() {
        let walk = q3(Rules { gain_seconds: Some(1.0), ..Rules::default() });
        assert_eq!((walk.k, walk.halt, walk.trace.len()), (17, Halt::Gain, 19));
        // Published: 43,355 rows, 22,382 bytes.
        assert_eq!((walk.plan.batch_rows, walk.plan.message_bytes), (43_352, 22_377));
        assert_eq!(walk.plan.memory_bytes, 43_352 * 27);
        assert!(walk.trace[17].gain_seconds > 1.0 && walk.trace[18].gain_seconds <= 1.0);
    }

    #[test]
    fn newton_stops_when_a_second_costs_100_kilobytes() {
        let price = Rules { price_bytes_per_second: Some(100e3), ..Rules::default() };
        let walk = q3(price);
        assert_eq!((walk.k, walk.halt), (15, Halt::Price));
        // The first of two rules decides.
        let both = q3(Rules { gain_seconds: Some(1.0), ..price });
        assert_eq!((both.k, both.halt), (15, Halt::Price));
        let both = q3(Rules { gain_seconds: Some(10.0), ..price });
        assert_eq!((both.k, both.halt), (11, Halt::Gain));
    }

    #[test]
    fn empty_and_tiny_results_have_a_plan() -> Result<()> {
        for (volume_bytes, rows) in [(0, 1), (27, 1), (20, 1), (600, 22)] {
            let query = Query { volume_bytes, row_bytes: 27.0 };
            let walk = newton(&TEN_GIGABIT, &query, &LIMITS, &Rules::default())?;
            assert_eq!(walk.plan.batch_rows, rows, "{volume_bytes}: {walk:?}");
            assert!(walk.plan.predicted_seconds < 2e-3 && walk.trace.len() < 5, "{walk:?}");
        }
        Ok(())
    }

    #[test]
    fn newton_stops_if_there_is_no_minimum() -> Result<()> {
        let free = LinkModel::default();
        let walk = newton(&free, &Q3, &LIMITS, &Rules::default())?;
        assert_eq!((walk.halt, walk.plan.predicted_seconds), (Halt::NoStep, 0.0));
        // With only a wait the second row of the Hessian is zero.
        let wait = LinkModel { first: Plane::new(0.0, 0.0, 1.0), ..free };
        assert_eq!(newton(&wait, &Q3, &LIMITS, &Rules::default())?.halt, Halt::NoStep);
        // If first messages cost less than others, the form is not convex.
        let odd = LinkModel { first: TEN_GIGABIT.next, next: TEN_GIGABIT.first };
        let walk = newton(&odd, &Q3, &LIMITS, &Rules::default())?;
        assert!(matches!(walk.halt, Halt::NoGain | Halt::NoStep), "{walk:?}");
        assert!(walk.plan.predicted_seconds.is_finite());
        Ok(())
    }

    #[test]
    fn rules_are_checked() {
        for rules in [
            Rules { gain_seconds: Some(f64::NAN), ..Rules::default() },
            Rules { price_bytes_per_second: Some(-1.0), ..Rules::default() },
        ] {
            assert!(newton(&TEN_GIGABIT, &Q3, &LIMITS, &rules).is_err());
        }
    }
}
