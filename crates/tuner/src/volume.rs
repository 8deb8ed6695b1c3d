//! Subgradient descent as in the volume algorithm (F. Barahona and R. Anbil, "The Volume Algorithm: Producing Primal
//! Solutions with a Subgradient Method", Mathematical Programming 87(3), 2000), which the thesis names as future work,
//! so that the value never rises. Simplified: every step that descends counts, and the primal part is omitted.

use crate::cost::Cost;
use crate::error::Result;
use crate::model::{Limits, LinkModel, Point, Query, Region};
use crate::walk::{Halt, Rules, Walk, walk};

/// Share of the newest gradient in the direction; the rest is the direction before.
const NEWEST: f64 = 0.5;
/// A step that descends makes the next one longer by this factor.
const LONGER: f64 = 1.1;
/// A step that does not descend makes the next one shorter by this factor.
const SHORTER: f64 = 0.66;
/// Length of the first step, in logarithms of the sizes.
const FIRST: f64 = 1.0;
/// A step shorter than this ends the walk.
const SHORTEST: f64 = 1e-4;

/// Like [`descent`](crate::descent), with the same start, rules and kind of result, but with gradients alone: each
/// step goes from the best sizes so far against an average of the gradients.
///
/// # Errors
/// As [`newton`](crate::newton).
pub fn volume(model: &LinkModel, query: &Query, limits: &Limits, rules: &Rules) -> Result<Walk> {
    let mut descent = Descent { direction: None, length: FIRST };
    walk(model, query, limits, rules, |cost, region, at| descent.step(cost, region, at))
}

struct Descent {
    /// The average of the gradients by the logarithms of the sizes, each of length 1.
    direction: Option<[f64; 2]>,
    length: f64,
}

impl Descent {
    /// The next sizes that cost less.
    fn step(&mut self, cost: &Cost, region: &Region, at: Point) -> Result<Point, Halt> {
        let least = cost.smooth_at(at);
        // Where the last trial ended; its gradient is the newest.
        let mut trial = at;
        while self.length > SHORTEST {
            let gradient = gradient(cost, trial);
            let direction = match self.direction {
                Some(old) => [0, 1].map(|size| NEWEST * gradient[size] + (1.0 - NEWEST) * old[size]),
                None => gradient,
            };
            self.direction = Some(direction);
            let moved = |from: f64, by: f64| from * (-by * self.length).exp();
            trial = region.clamp(Point { x: moved(at.x, direction[0]), y: moved(at.y, direction[1]) });
            if cost.smooth_at(trial) < least {
                self.length *= LONGER;
                return Ok(trial);
            }
            self.length *= SHORTER;
        }
        Err(if region.at_both_maxima(at) { Halt::Limits } else { Halt::NoGain })
    }
}

/// The gradient by the logarithms of the sizes, of length 1.
fn gradient(cost: &Cost, Point { x, y }: Point) -> [f64; 2] {
    let [g1, g2] = cost.gradient(x, y);
    let (g1, g2) = (x * g1, y * g2);
    let length = g1.hypot(g2).max(f64::MIN_POSITIVE);
    [g1 / length, g2 / length]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descent;
    use crate::thesis::{FIFTY_MEGABIT, LIMITS, QUERIES, TEN_GIGABIT};

    #[test]
    fn volume_never_rises_and_ends_near_the_descent() -> Result<()> {
        for model in [TEN_GIGABIT, FIFTY_MEGABIT] {
            for (name, query) in QUERIES {
                let walk = volume(&model, &query, &LIMITS, &Rules::default())?;
                for rows in walk.trace[..=walk.k].windows(2) {
                    assert!(rows[1].smooth_seconds < rows[0].smooth_seconds, "{name}: {walk:?}");
                }
                let least = descent(&model, &query, &LIMITS, &Rules::default())?;
                let of = |walk: &Walk| walk.trace[walk.k].smooth_seconds;
                assert!(of(&walk) <= 1.01 * of(&least), "{name}: {} {}", of(&walk), of(&least));
            }
        }
        Ok(())
    }
}
