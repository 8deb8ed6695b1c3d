//! A descent that never goes uphill: the thesis' iteration with safeguards.
//!
//! The smooth form, divided by V, is
//! `(a1 + b - a) + (b1 - b) y/x + (c1 - c)/x + a x/y + c/y`. In the logarithms of x and y this
//! is a sum of exponentials, and convex if a first message costs at least as much as another
//! (b1 >= b, c1 >= c). So the descent works in logarithms, where there is only one minimum, and where
//! steps in batch size and message size have the same scale.

use crate::cost::Cost;
use crate::error::Result;
use crate::model::{Limits, LinkModel, Point, Query, Region};
use crate::walk::{Halt, Rules, Walk, walk};

/// Maximum number of times that a step is halved.
const HALVINGS_MAX: usize = 40;
/// The fraction of the decrease predicted by the slope that a step must achieve (Armijo's rule).
const KEPT: f64 = 1e-4;
/// A decrease below this fraction of the cost is rounding, and does not count.
const ROUNDING: f64 = 1e-13;

/// Like [`newton`](crate::newton), with the same start, rules and kind of result, but no step increases
/// the smooth form. If Newton's step does not descend, the gradient's step is taken instead. Either is
/// halved until it descends.
///
/// # Errors
/// As [`newton`](crate::newton).
pub fn descent(model: &LinkModel, query: &Query, limits: &Limits, rules: &Rules) -> Result<Walk> {
    walk(model, query, limits, rules, step)
}

fn step(cost: &Cost, region: &Region, at: Point) -> Result<Point, Halt> {
    let slope = Slope::at(cost, region, at);
    // Stop at both maxima only if both sizes are held. An earlier step may have gone too far, so going
    // back may be downhill.
    if slope.held == [true, true] && region.at_both_maxima(at) {
        return Err(Halt::Limits);
    }
    slope.ways().find_map(|way| search(cost, region, at, &slope, way)).ok_or(Halt::NoGain)
}

/// Backtracks from the end of the step `way`, and returns the first point that is low enough.
fn search(cost: &Cost, region: &Region, at: Point, slope: &Slope, way: [f64; 2]) -> Option<Point> {
    let here = cost.smooth_at(at);
    let mut length = 1.0;
    for _ in 0..HALVINGS_MAX {
        let next =
            region.clamp(Point { x: at.x * (way[0] * length).exp(), y: at.y * (way[1] * length).exp() });
        let promised = slope.g[0] * (next.x / at.x).ln() + slope.g[1] * (next.y / at.y).ln();
        let saved = here - cost.smooth_at(next);
        if saved > ROUNDING * here && saved >= -KEPT * promised {
            return Some(next);
        }
        length /= 2.0;
    }
    None
}

/// Derivatives by the logarithms of the sizes. A size that is at its limit and would exceed it is
/// held: it does not change.
struct Slope {
    g: [f64; 2],
    held: [bool; 2],
    /// Second derivatives: by the batch, by the message, and mixed.
    h: [f64; 3],
    /// The message would outgrow its batch, so both change together, and the batch's derivatives are
    /// those of both.
    tied: bool,
}

impl Slope {
    fn at(cost: &Cost, region: &Region, Point { x, y }: Point) -> Self {
        let [g1, g2] = cost.gradient(x, y);
        let h = cost.hessian(x, y);
        let mut g = [x * g1, y * g2];
        let mut h = [x * x * h.batch + g[0], y * y * h.message + g[1], x * y * h.mixed];
        let tied = y >= x && y < region.y_max && g[1] < 0.0;
        if tied {
            g = [g[0] + g[1], 0.0];
            h = [h[0] + h[1] + 2.0 * h[2], 0.0, 0.0];
        }
        let held = [
            (x >= region.x_max && g[0] < 0.0) || (x <= region.x_min && g[0] > 0.0),
            tied || (y >= region.largest_message(x) && g[1] < 0.0) || (y <= region.y_min && g[1] > 0.0),
        ];
        Self { g, held, h, tied }
    }

    /// Candidate steps downhill: Newton's, then the gradient's.
    fn ways(&self) -> impl Iterator<Item = [f64; 2]> {
        let together = |way: [f64; 2]| if self.tied { [way[0]; 2] } else { way };
        self.newton().into_iter().chain([self.downhill()]).map(together)
    }

    /// Newton's step over the sizes that are not held; `None` if the form is not convex there.
    fn newton(&self) -> Option<[f64; 2]> {
        let ([g1, g2], [h11, h22, h12]) = (self.g, self.h);
        match self.held {
            [false, false] => {
                let determinant = h11 * h22 - h12 * h12;
                let step = [(g2 * h12 - g1 * h22) / determinant, (g1 * h12 - g2 * h11) / determinant];
                (h11 > 0.0 && determinant > 0.0).then_some(step)
            }
            [false, true] => (h11 > 0.0).then_some([-g1 / h11, 0.0]),
            [true, false] => (h22 > 0.0).then_some([0.0, -g2 / h22]),
            [true, true] => None,
        }
    }

    /// A step against the gradient, scaled so that its larger component is a factor of e.
    fn downhill(&self) -> [f64; 2] {
        let free = |i: usize| if self.held[i] { 0.0 } else { -self.g[i] };
        let longest = free(0).abs().max(free(1).abs()).max(f64::MIN_POSITIVE);
        [free(0) / longest, free(1) / longest]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::Plane;
    use crate::newton;
    use crate::thesis::{FIFTY_MEGABIT, LIMITS, Q3, QUERIES, TEN_GIGABIT};
    use crate::walk::STEPS_MAX;

    /// A coefficient over many orders of magnitude, or zero.
    fn coefficient(exponents: std::ops::Range<f64>) -> impl Strategy<Value = f64> {
        prop_oneof![1 => Just(0.0), 9 => exponents.prop_map(|exponent| 10f64.powf(exponent))]
    }

    fn plane() -> impl Strategy<Value = Plane> {
        (coefficient(-16.0..-8.0), coefficient(-11.0..-6.0), coefficient(-7.0..0.0))
            .prop_map(|(a, b, c)| Plane::new(a, b, c))
    }

    fn query() -> impl Strategy<Value = Query> {
        (0.0..13f64, 1.0..1000f64)
            .prop_map(|(exponent, row_bytes)| Query { volume_bytes: 10f64.powf(exponent) as u64, row_bytes })
    }

    fn limits() -> impl Strategy<Value = Limits> {
        (1..5000u64, 0..1_000_000u64, 1000..50_000_000u64).prop_map(|(least, more, batch_bytes_max)| Limits {
            message_bytes_min: least,
            message_bytes_max: least + more,
            batch_bytes_max,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn descent_never_rises_and_stays_within_the_limits(
            first in plane(), next in plane(), query in query(), limits in limits(),
            gain_seconds in proptest::option::of(0.0..1f64),
        ) {
            let model = LinkModel { first, next };
            let rules = Rules { gain_seconds, ..Rules::default() };
            for walk in [descent(&model, &query, &limits, &rules)?, newton(&model, &query, &limits, &rules)?] {
                for rows in walk.trace[..=walk.k].windows(2) {
                    prop_assert!(rows[1].smooth_seconds < rows[0].smooth_seconds, "{:?}", walk);
                }
                let plan = walk.plan;
                prop_assert!(plan.batch_rows >= 1 && plan.batch_bytes <= limits.batch_bytes_max);
                prop_assert!(plan.message_bytes >= limits.message_bytes_min);
                prop_assert!(plan.message_bytes <= limits.message_bytes_max);
                prop_assert!(plan.predicted_seconds.is_finite() && plan.predicted_seconds >= 0.0);
                prop_assert!(walk.halt != Halt::Steps && walk.k < STEPS_MAX, "{:?}", walk.halt);
            }
        }

        /// Without rules it finds the only minimum.
        #[test]
        fn descent_finds_the_minimum(first in plane(), next in plane(), query in query(), limits in limits()) {
            let first = Plane {
                per_message_byte: first.per_message_byte + next.per_message_byte,
                constant: first.constant + next.constant,
                ..first
            };
            let model = LinkModel { first, next };
            let walk = descent(&model, &query, &limits, &Rules::default())?;
            let region = limits.region(&query)?;
            let cost = Cost::new(&model, &query)?;
            let between = |from: f64, to: f64, i: u32| from * (to / from).powf(f64::from(i) / 60.0);
            let found = walk.trace[walk.k].smooth_seconds;
            for (i, j) in (0..=60).flat_map(|i| (0..=60).map(move |j| (i, j))) {
                let x = between(region.x_min, region.x_max, i);
                let y = between(region.y_min, region.largest_message(x), j);
                let least = cost.smooth_seconds(x, y);
                prop_assert!(found <= least * (1.0 + 1e-6), "{} at {} {}: {:?}", least, x, y, walk);
            }
        }
    }

    #[test]
    fn descent_is_never_worse_than_newton() -> Result<()> {
        for model in [TEN_GIGABIT, FIFTY_MEGABIT] {
            for (name, query) in QUERIES {
                let of = |walk: Walk| walk.trace[walk.k].smooth_seconds;
                let ours = of(descent(&model, &query, &LIMITS, &Rules::default())?);
                let newton = of(newton(&model, &query, &LIMITS, &Rules::default())?);
                assert!(ours <= newton * (1.0 + 1e-9), "{name}: {ours} {newton}");
            }
        }
        Ok(())
    }

    #[test]
    fn descent_respects_a_size_held_at_its_limit() -> Result<()> {
        let rules = Rules::default();
        let theirs = newton(&FIFTY_MEGABIT, &Q3, &LIMITS, &rules)?;
        assert_eq!((theirs.k, theirs.halt), (15, Halt::NoGain));
        assert_eq!((theirs.trace[15].batch_bytes / 1e3).round(), 591.0);
        assert_eq!((theirs.trace[16].batch_bytes / 1e3).round(), 828.0);
        let ours = descent(&FIFTY_MEGABIT, &Q3, &LIMITS, &rules)?;
        assert_eq!((ours.trace[ours.k].batch_bytes / 1e3).round(), 665.0);
        assert!(ours.trace[ours.k].smooth_seconds < theirs.trace[theirs.k].smooth_seconds);
        Ok(())
    }

    #[test]
    fn descent_continues_where_newton_stops() -> Result<()> {
        let wait = LinkModel { first: Plane::new(0.0, 0.0, 1.0), ..LinkModel::default() };
        let walk = descent(&wait, &Q3, &LIMITS, &Rules::default())?;
        assert_eq!(walk.plan.batch_rows, 30_000_000 / 27);
        assert_eq!(newton(&wait, &Q3, &LIMITS, &Rules::default())?.k, 0);
        Ok(())
    }
}
