//! A descent that never goes uphill: the thesis' iteration with safeguards.
//!
//! The smooth form, divided by V, is
//! `(a1 + b - a) + (b1 - b) y/x + (c1 - c)/x + a x/y + c/y`. In the logarithms of x and y this
//! is convex wherever a first message costs no less than another (b1 >= b, c1 >= c): a
//! sum of exponentials. So the walk is made in logarithms, where there is one valley only, and
//! where a step in the size of a batch and one in that of a message are of the same kind.

use crate::cost::Cost;
use crate::error::Result;
use crate::model::{Limits, LinkModel, Point, Query, Region};
use crate::walk::{Halt, Rules, Walk, walk};

/// A step is halved at most so often.
const HALVINGS_MAX: usize = 40;
/// The part of what the slope promises that a step must keep (Armijo's rule).
const KEPT: f64 = 1e-4;
/// A step that saves less than this part of the cost is rounding, and none.
const ROUNDING: f64 = 1e-13;

/// Walks like [`newton`](crate::newton), from the same start, by the same rules and to the same
/// kind of answer, but no step makes the smooth form larger: where Newton's does not
/// descend the gradient's is taken, and either is halved until it does.
///
/// # Errors
/// As [`newton`](crate::newton).
pub fn descent(model: &LinkModel, query: &Query, limits: &Limits, rules: &Rules) -> Result<Walk> {
    walk(model, query, limits, rules, step)
}

fn step(cost: &Cost, region: &Region, at: Point) -> Result<Point, Halt> {
    let slope = Slope::at(cost, region, at);
    // A step may have come too far: at both maxima it goes back where that is downhill.
    if slope.held == [true, true] && region.at_both_maxima(at) {
        return Err(Halt::Limits);
    }
    slope.ways().find_map(|way| search(cost, region, at, &slope, way)).ok_or(Halt::NoGain)
}

/// The first point on the way, from its end backwards, that is low enough.
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

/// Derivatives by the logarithms of the sizes. A size that is at its limit and would go
/// beyond is held: it has no slope.
struct Slope {
    g: [f64; 2],
    held: [bool; 2],
    /// Twice by the batch, twice by the message, by both.
    h: [f64; 3],
    /// The message would outgrow its batch: they go together, and the batch's derivatives are
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

    /// What leads down: Newton's step, then the gradient's.
    fn ways(&self) -> impl Iterator<Item = [f64; 2]> {
        let together = |way: [f64; 2]| if self.tied { [way[0]; 2] } else { way };
        self.newton().into_iter().chain([self.downhill()]).map(together)
    }

    /// Newton's step over what is not held, where the form bends the right way.
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

    /// Against the gradient, so long that the larger part is a factor of e.
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

    /// A coefficient over many orders of magnitude, or none.
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
        fn it_never_rises_and_stays_inside(
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

        /// With no rule it finds the only valley there is.
        #[test]
        fn it_finds_the_least(first in plane(), next in plane(), query in query(), limits in limits()) {
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
    fn it_is_never_worse_than_newton() -> Result<()> {
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
    fn it_knows_what_is_held() -> Result<()> {
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
    fn where_newton_stops_it_goes_on() -> Result<()> {
        let wait = LinkModel { first: Plane::new(0.0, 0.0, 1.0), ..LinkModel::default() };
        let walk = descent(&wait, &Q3, &LIMITS, &Rules::default())?;
        assert_eq!(walk.plan.batch_rows, 30_000_000 / 27);
        assert_eq!(newton(&wait, &Q3, &LIMITS, &Rules::default())?.k, 0);
        Ok(())
    }
}
