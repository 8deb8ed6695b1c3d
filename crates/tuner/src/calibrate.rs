//! Calibration: fits a link's two planes to the measured times of messages.
//!
//! As in the thesis, each pair of sizes has a mean time, and the planes are fitted by least squares.
//! Every pair counts the same, however many messages it has. Errors are relative to the time of the
//! pair's batch. In seconds, only the largest batches would count.

use serde::{Deserialize, Serialize};

use crate::error::{Result, within};
use crate::fit::{Fit, Measured, fit};
use crate::model::{BYTES_MAX, LinkModel, Plane};

/// Longer times of a message are rejected.
const SECONDS_MAX: f64 = 1e6;

/// The minimum time of a batch: the resolution of a clock.
const BATCH_SECONDS_MIN: f64 = 1e-9;
/// How many times the two planes are fitted in turn. Each time they move at most a quarter as far as
/// before.
const TURNS: usize = 20;

/// What was measured at one batch size and one message size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// F^B.
    pub batch_bytes: f64,
    /// M.
    pub message_bytes: f64,
    /// Mean time of the first message of a batch, from the request to its arrival.
    pub first_seconds: f64,
    /// First messages measured; if zero, `first_seconds` is meaningless.
    pub first_count: u64,
    /// Mean time of the other messages, each since the previous one.
    pub next_seconds: f64,
    /// Other messages measured; if zero, as when a batch is one message, `next_seconds` is
    /// meaningless.
    pub next_count: u64,
}

impl Sample {
    fn check(&self) -> Result<()> {
        within("batch of a sample in bytes", self.batch_bytes, f64::MIN_POSITIVE, BYTES_MAX)?;
        within("message of a sample in bytes", self.message_bytes, f64::MIN_POSITIVE, BYTES_MAX)?;
        // With a count of zero the mean may be NaN.
        let seconds = |count: u64, mean: f64| if count > 0 { mean } else { 0.0 };
        within("time of first messages", seconds(self.first_count, self.first_seconds), 0.0, SECONDS_MAX)?;
        within("time of next messages", seconds(self.next_count, self.next_seconds), 0.0, SECONDS_MAX)
    }

    /// The mean number of other messages per batch.
    fn others(&self) -> f64 {
        if self.next_count > 0 { self.next_count as f64 / self.first_count.max(1) as f64 } else { 0.0 }
    }

    /// The mean time of a batch.
    fn batch_seconds(&self) -> f64 {
        let first = if self.first_count > 0 { self.first_seconds } else { 0.0 };
        let others = if self.next_count > 0 { self.others() * self.next_seconds } else { 0.0 };
        (first + others).max(BATCH_SECONDS_MIN)
    }

    /// The time that a plane gives for its sizes.
    fn at(&self, plane: Plane) -> f64 {
        plane.seconds(self.batch_bytes, self.message_bytes)
    }

    /// The time to fit the first message to: the mean of its measured time, and of the batch's time minus
    /// the fitted time of the other messages.
    fn first(&self, next: Option<Plane>) -> Measured {
        let left = |next| self.batch_seconds() - self.others() * self.at(next);
        let next = next.filter(|_| self.next_count > 0);
        let seconds = next.map_or(self.first_seconds, |next| f64::midpoint(self.first_seconds, left(next)));
        self.measured(seconds, 1.0)
    }

    /// The time to fit another message to, likewise.
    fn next(&self, first: Option<Plane>) -> Measured {
        let left = |first| (self.batch_seconds() - self.at(first)) / self.others();
        let first = first.filter(|_| self.first_count > 0);
        let seconds = first.map_or(self.next_seconds, |first| f64::midpoint(self.next_seconds, left(first)));
        self.measured(seconds, self.others())
    }

    /// A time that occurs `times` times per batch. Its error is weighted relative to the batch's time.
    fn measured(&self, seconds: f64, times: f64) -> Measured {
        let Self { batch_bytes, message_bytes, .. } = *self;
        Measured { batch_bytes, message_bytes, seconds, weight: (times / self.batch_seconds()).powi(2) }
    }

    /// The time of all messages, at `first_seconds` per first message and `next_seconds` per other one.
    fn total(&self, first_seconds: f64, next_seconds: f64) -> f64 {
        let of = |count: u64, seconds: f64| if count > 0 { count as f64 * seconds } else { 0.0 };
        of(self.first_count, first_seconds) + of(self.next_count, next_seconds)
    }
}

/// A calibrated link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The model that plans are computed from.
    pub model: LinkModel,
    /// How alpha was fitted.
    pub first: Fit,
    /// How beta was fitted.
    pub next: Fit,
    /// [`mean_relative_error`] of the model on the same samples.
    pub relative_error: Option<f64>,
}

/// Fits both planes with non-negative coefficients. The fit minimises the sum of the squares of three
/// errors of each pair: in the time of first messages, in the time of the other messages of a batch,
/// and in both together, each relative to the time of the batch.
///
/// The third error is for links that pass a burst at once. There, messages that arrive together with the
/// first are not waited for later, so the split of a batch's time into its messages says little.
///
/// The coefficient of a size that does not vary is zero, and so is one that would be negative
/// ([`Fit::dropped`]), so a cost is never negative. If batches never have more than one message, as from
/// a database without messages, beta is zero.
///
/// # Errors
/// [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) for invalid sizes and times,
/// [`TunerError::TooFewSamples`](crate::TunerError::TooFewSamples) with one or two samples for either
/// plane, or none for the first,
/// [`TunerError::Collinear`](crate::TunerError::Collinear) if both sizes vary, but only together.
pub fn calibrate(samples: &[Sample]) -> Result<Calibration> {
    samples.iter().try_for_each(Sample::check)?;
    let firsts: Vec<_> = samples.iter().filter(|sample| sample.first_count > 0).collect();
    let others: Vec<_> = samples.iter().filter(|sample| sample.next_count > 0).collect();
    let fit_first = |next| fit("first", &firsts.iter().map(|sample| sample.first(next)).collect::<Vec<_>>());
    let fit_next = |first| match others.as_slice() {
        [] => Ok(Fit::of_nothing()),
        others => fit("next", &others.iter().map(|sample| sample.next(first)).collect::<Vec<_>>()),
    };
    let (mut first, mut next) = (fit_first(None)?, fit_next(None)?);
    for _ in 0..TURNS {
        first = fit_first(Some(next.plane))?;
        next = fit_next(Some(first.plane))?;
    }
    let model = LinkModel { first: first.plane, next: next.plane };
    model.check()?;
    let relative_error = mean_relative_error(&model, samples);
    Ok(Calibration { model, first, next, relative_error })
}

/// The mean relative error of a model on the total time of each sample. The samples may be of the query
/// that it was calibrated on, or of another. `None` if no sample took any time.
pub fn mean_relative_error(model: &LinkModel, samples: &[Sample]) -> Option<f64> {
    let errors = samples.iter().filter_map(|sample| {
        let measured = sample.total(sample.first_seconds, sample.next_seconds);
        let (x, y) = (sample.batch_bytes, sample.message_bytes);
        let predicted = sample.total(model.first.seconds(x, y), model.next.seconds(x, y));
        let error = (predicted - measured).abs() / measured;
        (measured > 0.0 && error.is_finite()).then_some(error)
    });
    let (sum, count) = errors.fold((0.0, 0u64), |(sum, count), error| (sum + error, count + 1));
    (count > 0).then(|| sum / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::TunerError;
    use crate::model::Query;
    use crate::thesis::{self, FIFTY_MEGABIT, Q3, TEN_GIGABIT};

    /// Samples of a query on the thesis' grid. `noise` gives the relative error of each time.
    fn measured(model: &LinkModel, query: &Query, mut noise: impl FnMut() -> f64) -> Vec<Sample> {
        let grid = thesis::grid();
        let pairs = grid.batch_rows.iter().flat_map(|&f| grid.message_bytes.iter().map(move |&m| (f, m)));
        pairs
            .map(|(rows, message_bytes)| {
                let (x, y) = (rows as f64 * query.row_bytes, message_bytes as f64);
                let first_count = (query.volume_bytes as f64 / x).ceil();
                Sample {
                    batch_bytes: x,
                    message_bytes: y,
                    first_seconds: model.first.seconds(x, y) * (1.0 + noise()),
                    first_count: first_count as u64,
                    next_seconds: model.next.seconds(x, y) * (1.0 + noise()),
                    next_count: (first_count * ((x / y).ceil() - 1.0)) as u64,
                }
            })
            .collect()
    }

    /// Uniform noise between -`by` and `by`, the same in every run.
    fn noise(by: f64) -> impl FnMut() -> f64 {
        let mut state = 1u64;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            by * ((state >> 11) as f64 / (1u64 << 52) as f64 - 1.0)
        }
    }

    fn terms(plane: &Plane) -> [f64; 3] {
        [plane.per_batch_byte, plane.per_message_byte, plane.constant]
    }

    #[test]
    fn exact_times_recover_the_planes() -> Result<()> {
        for model in [TEN_GIGABIT, FIFTY_MEGABIT] {
            let found = calibrate(&measured(&model, &Q3, || 0.0))?;
            for (fit, plane) in [(&found.first, model.first), (&found.next, model.next)] {
                for (ours, given) in terms(&fit.plane).into_iter().zip(terms(&plane)) {
                    assert!((ours / given - 1.0).abs() < 1e-9, "{found:?}");
                }
                assert!(fit.r_squared > 1.0 - 1e-9 && fit.dropped.is_empty(), "{fit:?}");
            }
            assert!(found.relative_error.is_some_and(|error| error < 1e-12), "{found:?}");
            assert_eq!((found.first.samples, found.first.degrees_of_freedom), (629, 626));
            // Some batches are a single message.
            assert!(found.next.samples < 629);
        }
        Ok(())
    }

    #[test]
    fn noisy_times_recover_the_planes_within_their_errors() -> Result<()> {
        for model in [TEN_GIGABIT, FIFTY_MEGABIT] {
            let found = calibrate(&measured(&model, &Q3, noise(0.05)))?;
            for (fit, plane) in [(&found.first, model.first), (&found.next, model.next)] {
                assert!(fit.dropped.is_empty(), "{fit:?}");
                let errors = terms(&fit.standard_errors.unwrap_or_default());
                for ((ours, given), error) in terms(&fit.plane).into_iter().zip(terms(&plane)).zip(errors) {
                    assert!(error > 0.0 && (ours - given).abs() < 4.0 * error, "{given}: {fit:?}");
                }
            }
            assert!(found.relative_error.is_some_and(|error| error < 0.03), "{found:?}");
        }
        Ok(())
    }

    #[test]
    fn a_model_calibrated_on_one_query_predicts_another() -> Result<()> {
        let model = calibrate(&measured(&FIFTY_MEGABIT, &Q3, noise(0.05)))?.model;
        for (name, query) in thesis::QUERIES {
            let error = mean_relative_error(&model, &measured(&FIFTY_MEGABIT, &query, || 0.0));
            assert!(error.is_some_and(|error| error < 0.02), "{name}: {error:?}");
        }
        Ok(())
    }

    /// A token bucket of 1 Gbit/s passes bundles of 64 KB at once. All messages of a smaller batch arrive
    /// with the first.
    #[test]
    fn small_batches_count_as_much_as_large_ones_if_bursts_pass_at_once() -> Result<()> {
        let (bytes_per_second, bundle, wait) = (119e6, 65_536.0, 50e-6);
        let mut samples = measured(&TEN_GIGABIT, &Q3, || 0.0);
        let batch_seconds = |x: f64| wait + x / bytes_per_second;
        for sample in &mut samples {
            sample.first_seconds = batch_seconds(sample.batch_bytes.min(bundle));
            let left = batch_seconds(sample.batch_bytes) - sample.first_seconds;
            sample.next_seconds = 2e-6 + left / sample.others().max(1.0);
        }
        let found = calibrate(&samples)?;
        assert!(found.relative_error.is_some_and(|error| error < 0.15), "{found:?}");
        for sample in samples {
            let (x, y) = (sample.batch_bytes, sample.message_bytes);
            let others = ((x / y).ceil() - 1.0).max(0.0);
            let predicted = found.model.first.seconds(x, y) + others * found.model.next.seconds(x, y);
            let error = predicted / batch_seconds(x) - 1.0;
            assert!(error.abs() < 0.6, "{error} {sample:?} {found:?}");
        }
        Ok(())
    }

    #[test]
    fn batches_of_one_message_have_no_others() -> Result<()> {
        let mut samples = measured(&TEN_GIGABIT, &Q3, || 0.0);
        // With a count of zero the mean is ignored, whatever its value.
        samples.iter_mut().for_each(|s| (s.next_count, s.next_seconds) = (0, f64::NAN));
        let found = calibrate(&samples)?;
        assert_eq!((found.model.next, found.next.samples), (Plane::default(), 0));
        assert!((found.model.first.constant / TEN_GIGABIT.first.constant - 1.0).abs() < 1e-9);
        Ok(())
    }

    #[test]
    fn invalid_samples_are_rejected() {
        let good = measured(&TEN_GIGABIT, &Q3, || 0.0);
        for spoil in [
            |s: &mut Sample| s.batch_bytes = f64::NAN,
            |s: &mut Sample| s.message_bytes = 0.0,
            |s: &mut Sample| s.first_seconds = -1.0,
            |s: &mut Sample| s.next_seconds = f64::INFINITY,
        ] {
            let mut samples = good.clone();
            samples.iter_mut().for_each(spoil);
            assert!(matches!(calibrate(&samples), Err(TunerError::OutOfRange { .. })));
        }
        assert!(matches!(calibrate(&[]), Err(TunerError::TooFewSamples { what: "first", found: 0, .. })));
        let mut samples = good;
        samples.iter_mut().skip(2).for_each(|s| s.next_count = 0);
        assert!(matches!(calibrate(&samples), Err(TunerError::TooFewSamples { what: "next", .. })));
        assert_eq!(mean_relative_error(&TEN_GIGABIT, &[]), None);
    }
}
