//! Fits a plane to measured points by weighted least squares, with non-negative coefficients.
//!
//! Sizes reach 3e7 and coefficients 1e-14, so columns are centred and scaled first. What remains is a
//! system of two equations in the columns' correlation.

use serde::{Deserialize, Serialize};

use crate::error::{Result, TunerError};
use crate::model::Plane;

/// The number of coefficients of a plane.
const SAMPLES_MIN: usize = 3;
/// Columns whose squared correlation is this close to 1 count as collinear: the difference between them
/// would be only rounding.
const APART_MIN: f64 = 1e-10;

/// A mean time, measured at a batch size and a message size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) batch_bytes: f64,
    pub(crate) message_bytes: f64,
    pub(crate) seconds: f64,
    /// The weight of its squared error.
    pub(crate) weight: f64,
}

/// A coefficient of a [`Plane`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Term {
    /// a: by the batch size.
    Batch,
    /// b: by the message size.
    Message,
    /// c: the constant.
    Constant,
}

/// Why a coefficient was set to zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// All samples have the same size, so its effect is unknown and is part of the constant.
    Unvaried,
    /// The best fit would have been negative, and costs with it.
    Negative,
}

/// A fitted plane, and the quality of the fit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The plane. No coefficient is negative.
    pub plane: Plane,
    /// Coefficients that were set to zero, and why.
    pub dropped: Vec<(Term, Why)>,
    /// Standard errors of the coefficients, zero for those that were dropped; `None` if there are no
    /// more samples than coefficients.
    pub standard_errors: Option<Plane>,
    /// The fraction of the samples' weighted variance that the plane explains, at most 1. Negative if a
    /// plane without a constant fits worse than the mean.
    pub r_squared: f64,
    /// Standard deviation of the residual of a sample of weight 1; `None` as for `standard_errors`.
    #[serde(default)]
    pub residual: Option<f64>,
    /// Samples used.
    pub samples: usize,
    /// Number of samples minus number of fitted coefficients.
    pub degrees_of_freedom: usize,
}

impl Fit {
    /// The fit if there are no samples at all.
    pub(crate) fn of_nothing() -> Self {
        Self {
            plane: Plane::default(),
            dropped: [Term::Batch, Term::Message, Term::Constant].map(|term| (term, Why::Unvaried)).into(),
            standard_errors: None,
            r_squared: 0.0,
            residual: None,
            samples: 0,
            degrees_of_freedom: 0,
        }
    }
}

/// Fits a plane. `what` names the kind of messages in errors. Weights must be positive and finite.
///
/// The result is the nearest of all planes with non-negative coefficients: every choice of
/// coefficients to set to zero is tried.
pub(crate) fn fit(what: &'static str, points: &[Measured]) -> Result<Fit> {
    if points.len() < SAMPLES_MIN {
        return Err(TunerError::TooFewSamples { what, found: points.len(), needed: SAMPLES_MIN });
    }
    let varies = |of: fn(&Measured) -> f64| points.iter().any(|p| of(p) != of(&points[0]));
    let sizes = [varies(|p| p.batch_bytes), varies(|p| p.message_bytes)];
    let all = Chosen { slopes: sizes, constant: true };
    let best = match all.solve(points).ok_or(TunerError::Collinear { what })? {
        whole if whole.feasible() => whole,
        _ => all.parts().filter_map(|part| part.solve(points)).filter(Solved::feasible).fold(
            Solved::nothing(points),
            |best, part| if part.squares < best.squares { part } else { best },
        ),
    };
    Ok(best.report(sizes, points))
}

/// The total weight of the points.
fn weight(points: &[Measured]) -> f64 {
    points.iter().map(|p| p.weight).sum()
}

/// The weighted mean.
fn mean(points: &[Measured], of: fn(&Measured) -> f64) -> f64 {
    points.iter().map(|p| p.weight * of(p)).sum::<f64>() / weight(points)
}

/// Which coefficients are fitted; the others are zero.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Chosen {
    slopes: [bool; 2],
    constant: bool,
}

/// The values of the coefficients, and the inverse of the system of equations.
#[derive(Debug, Clone, Copy)]
struct Solved {
    chosen: Chosen,
    slopes: [f64; 2],
    constant: f64,
    /// Variances and covariance of the slopes, in bytes^-2, divided by the residual's variance.
    inverse: [[f64; 2]; 2],
    /// The means that columns were centred on; zero without a constant.
    means: [f64; 2],
    /// Weighted sum of the squared residuals.
    squares: f64,
}

impl Chosen {
    /// All choices with fewer coefficients.
    fn parts(self) -> impl Iterator<Item = Self> {
        (0..7u8).map(move |bits| Self {
            slopes: [self.slopes[0] && bits & 1 > 0, self.slopes[1] && bits & 2 > 0],
            constant: bits & 4 > 0,
        })
    }

    /// Solves by least squares; `None` if the columns are collinear.
    fn solve(self, points: &[Measured]) -> Option<Solved> {
        let mean = |of: fn(&Measured) -> f64| if self.constant { mean(points, of) } else { 0.0 };
        let means = [mean(|p| p.batch_bytes), mean(|p| p.message_bytes)];
        let mean_seconds = mean(|p| p.seconds);
        let column = |p: &Measured| [p.batch_bytes - means[0], p.message_bytes - means[1]];
        // The lengths of the columns, their correlation, and the correlation of each with the times.
        let sum = |of: &dyn Fn(&Measured) -> f64| points.iter().map(|p| p.weight * of(p)).sum::<f64>();
        let length = [0, 1].map(|i| sum(&|p| column(p)[i].powi(2)).sqrt());
        let with_time = [0, 1].map(|i| sum(&|p| column(p)[i] / length[i] * (p.seconds - mean_seconds)));
        let mut scaled = [0.0; 2];
        let mut inverse = [[0.0; 2]; 2];
        match self.slopes {
            [true, true] => {
                let r = sum(&|p| column(p)[0] / length[0] * (column(p)[1] / length[1]));
                let apart = 1.0 - r * r;
                if apart < APART_MIN {
                    return None;
                }
                inverse = [[1.0 / apart, -r / apart], [-r / apart, 1.0 / apart]];
                scaled = [0, 1].map(|i| inverse[i][0] * with_time[0] + inverse[i][1] * with_time[1]);
            }
            [batch, message] => {
                for i in [batch.then_some(0), message.then_some(1)].into_iter().flatten() {
                    (scaled[i], inverse[i][i]) = (with_time[i], 1.0);
                }
            }
        }
        let unscaled = |i: usize, value: f64| if self.slopes[i] { value / length[i] } else { 0.0 };
        let slopes = [unscaled(0, scaled[0]), unscaled(1, scaled[1])];
        let constant = mean_seconds - slopes[0] * means[0] - slopes[1] * means[1];
        let inverse = [0, 1].map(|i| [0, 1].map(|j| unscaled(i, unscaled(j, inverse[i][j]))));
        let residual =
            |p: &Measured| p.seconds - mean_seconds - slopes[0] * column(p)[0] - slopes[1] * column(p)[1];
        let squares = sum(&|p| residual(p).powi(2));
        Some(Solved { chosen: self, slopes, constant, inverse, means, squares })
    }
}

impl Solved {
    /// All coefficients zero, for when every other choice has a negative one.
    fn nothing(points: &[Measured]) -> Self {
        Self {
            chosen: Chosen { slopes: [false; 2], constant: false },
            slopes: [0.0; 2],
            constant: 0.0,
            inverse: [[0.0; 2]; 2],
            means: [0.0; 2],
            squares: points.iter().map(|p| p.weight * p.seconds.powi(2)).sum(),
        }
    }

    fn feasible(&self) -> bool {
        self.slopes[0] >= 0.0 && self.slopes[1] >= 0.0 && self.constant >= 0.0
    }

    fn report(self, varied: [bool; 2], points: &[Measured]) -> Fit {
        let fitted = [self.chosen.slopes[0], self.chosen.slopes[1], self.chosen.constant];
        let varied = [varied[0], varied[1], true];
        let why = |i: usize| if varied[i] { Why::Negative } else { Why::Unvaried };
        let terms = [Term::Batch, Term::Message, Term::Constant].into_iter().enumerate();
        let dropped = terms.filter(|&(i, _)| !fitted[i]).map(|(i, term)| (term, why(i))).collect();
        let n = points.len();
        let degrees_of_freedom = n - fitted.iter().filter(|&&fitted| fitted).count();
        let variance = (degrees_of_freedom > 0).then(|| self.squares / degrees_of_freedom as f64);
        let of_mean: f64 = (0..2)
            .flat_map(|i| (0..2).map(move |j| (i, j)))
            .map(|(i, j)| self.means[i] * self.inverse[i][j] * self.means[j])
            .sum();
        let of_constant = if self.chosen.constant { 1.0 / weight(points) + of_mean } else { 0.0 };
        let error = |variance: f64, part: f64| (variance * part).sqrt();
        let mean = mean(points, |p| p.seconds);
        let spread: f64 = points.iter().map(|p| p.weight * (p.seconds - mean).powi(2)).sum();
        Fit {
            plane: Plane::new(self.slopes[0], self.slopes[1], self.constant),
            dropped,
            standard_errors: variance.map(|v| {
                Plane::new(error(v, self.inverse[0][0]), error(v, self.inverse[1][1]), error(v, of_constant))
            }),
            // If the times don't vary at all, there is no variance to explain.
            r_squared: if spread > 0.0 { 1.0 - self.squares / spread } else { 1.0 },
            residual: variance.map(f64::sqrt),
            samples: n,
            degrees_of_freedom,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn point(batch_bytes: f64, message_bytes: f64, seconds: f64) -> Measured {
        Measured { batch_bytes, message_bytes, seconds, weight: 1.0 }
    }

    /// A grid of sizes with times computed by a function.
    fn timed(seconds: impl Fn(f64, f64) -> f64) -> Vec<Measured> {
        let sizes = [2970.0, 29_700.0, 297_000.0, 2_970_000.0, 29_700_000.0];
        let messages = [1536.0, 8192.0, 16_384.0, 32_767.0];
        let pairs = sizes.into_iter().flat_map(|x| messages.map(|y| (x, y)));
        pairs.map(|(x, y)| point(x, y, seconds(x, y))).collect()
    }

    #[test]
    fn a_fit_matches_a_worked_example() -> Result<()> {
        // By hand: the columns are orthogonal around their means, so each slope is independent.
        let points = [(1.0, 1.0, 4.0), (1.0, 3.0, 8.0), (3.0, 1.0, 6.0), (3.0, 3.0, 11.0)];
        let fit = fit("first", &points.map(|(x, y, t)| point(x, y, t)))?;
        let near = |one: f64, other: f64| assert!((one - other).abs() < 1e-12, "{one} {other}");
        near(fit.plane.per_batch_byte, 1.25);
        near(fit.plane.per_message_byte, 2.25);
        near(fit.plane.constant, 0.25);
        // Residuals are +-0.25: a variance of 0.25 over one degree of freedom.
        near(fit.residual.unwrap_or(0.0), 0.5);
        near(fit.r_squared, 1.0 - 0.25 / 26.75);
        let errors = fit.standard_errors.unwrap_or_default();
        near(errors.per_batch_byte, 0.25);
        near(errors.per_message_byte, 0.25);
        near(errors.constant, 0.75);
        assert_eq!((fit.samples, fit.degrees_of_freedom, fit.dropped), (4, 1, vec![]));
        Ok(())
    }

    #[test]
    fn a_weight_counts_like_repeated_points() -> Result<()> {
        let points =
            [(1.0, 1.0, 9.0), (1.0, 3.0, 13.0), (3.0, 1.0, 11.0), (3.0, 3.0, 16.0), (5.0, 2.0, 19.0)];
        let points = points.map(|(x, y, t)| point(x, y, t));
        let weighted: Vec<_> = points.iter().map(|p| Measured { weight: p.batch_bytes, ..*p }).collect();
        let repeated: Vec<_> =
            points.iter().flat_map(|p| std::iter::repeat_n(*p, p.batch_bytes as usize)).collect();
        let (one, other) = (fit("first", &weighted)?, fit("first", &repeated)?);
        let near = |one: f64, other: f64| assert!((one - other).abs() < 1e-12, "{one} {other}");
        near(one.plane.per_batch_byte, other.plane.per_batch_byte);
        near(one.plane.per_message_byte, other.plane.per_message_byte);
        near(one.plane.constant, other.plane.constant);
        near(one.r_squared, other.r_squared);
        // The five weighted measurements remain five, so the degrees of freedom differ. The sum of
        // squares does not.
        assert_eq!((one.degrees_of_freedom, other.degrees_of_freedom), (2, 10));
        let off = |fit: &Fit| fit.residual.unwrap_or(0.0).powi(2) * fit.degrees_of_freedom as f64;
        near(off(&one), off(&other));
        let errors = |fit: &Fit| {
            let Plane { per_batch_byte, per_message_byte, constant } =
                fit.standard_errors.unwrap_or_default();
            [per_batch_byte, per_message_byte, constant].map(|error| error / fit.residual.unwrap_or(1.0))
        };
        errors(&one).into_iter().zip(errors(&other)).for_each(|(one, other)| near(one, other));
        Ok(())
    }

    #[test]
    fn a_size_that_does_not_vary_is_dropped() -> Result<()> {
        let one_message: Vec<_> =
            timed(|x, _| 1e-9 * x + 1e-3).into_iter().filter(|p| p.message_bytes == 8192.0).collect();
        let fitted = fit("first", &one_message)?;
        assert_eq!(fitted.dropped, [(Term::Message, Why::Unvaried)]);
        assert!((fitted.plane.per_batch_byte / 1e-9 - 1.0).abs() < 1e-9, "{fitted:?}");
        assert_eq!(fitted.degrees_of_freedom, 3);
        let one_point = [point(100.0, 10.0, 2.0), point(100.0, 10.0, 3.0), point(100.0, 10.0, 4.0)];
        let fitted = fit("first", &one_point)?;
        assert_eq!(fitted.plane, Plane::new(0.0, 0.0, 3.0));
        assert_eq!((fitted.dropped.len(), fitted.degrees_of_freedom), (2, 2));
        Ok(())
    }

    #[test]
    fn a_negative_coefficient_is_dropped() -> Result<()> {
        let down_by_message = fit("next", &timed(|x, y| 1e-9 * x - 1e-8 * y + 1e-2))?;
        assert_eq!(down_by_message.dropped, [(Term::Message, Why::Negative)]);
        assert!(down_by_message.plane.per_batch_byte > 0.0);
        let below_zero = fit("next", &timed(|x, y| (1e-9 * x + 1e-8 * y - 1e-4).max(0.0)))?;
        assert_eq!(below_zero.dropped, [(Term::Constant, Why::Negative)]);
        let nothing = fit("next", &timed(|_, _| 0.0))?;
        assert_eq!((nothing.plane, nothing.r_squared), (Plane::default(), 1.0));
        Ok(())
    }

    #[test]
    fn too_few_or_collinear_samples_are_an_error() {
        let two = [point(1.0, 1.0, 1.0), point(2.0, 5.0, 1.0)];
        let found = fit("next", &two);
        assert_eq!(found, Err(TunerError::TooFewSamples { what: "next", found: 2, needed: 3 }));
        let line = [1.0, 2.0, 5.0, 7.0].map(|x| point(x * 1e6, x * 3e3 + 7.0, 1e-3 * x));
        assert_eq!(fit("first", &line), Err(TunerError::Collinear { what: "first" }));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// No plane of non-negative coefficients is nearer.
        #[test]
        fn the_fit_is_the_nearest_plane(
            a in -1e-9..1e-9f64, b in -1e-7..1e-7f64, c in -1e-3..1e-3f64,
            noise in proptest::collection::vec(0.0..1e-3f64, 20),
            other in (0.0..1e-9f64, 0.0..1e-7f64, 0.0..1e-3f64), part in 0.0..1f64,
        ) {
            let mut points = timed(|x, y| (a * x + b * y + c).max(0.0));
            points.iter_mut().zip(noise).for_each(|(p, noise)| p.seconds += noise);
            let fitted = fit("first", &points)?.plane;
            prop_assert!(fitted.per_batch_byte >= 0.0 && fitted.per_message_byte >= 0.0 && fitted.constant >= 0.0);
            let squares = |plane: Plane| -> f64 {
                points.iter().map(|p| (p.seconds - plane.seconds(p.batch_bytes, p.message_bytes)).powi(2)).sum()
            };
            let towards = |from: f64, to: f64| from + part * (to - from);
            let near = Plane::new(
                towards(fitted.per_batch_byte, other.0),
                towards(fitted.per_message_byte, other.1),
                towards(fitted.constant, other.2),
            );
            prop_assert!(squares(fitted) <= squares(near) * (1.0 + 1e-9));
        }
    }
}
