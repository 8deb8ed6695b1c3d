//! Repeats measurements within a limit of time, and keeps their results.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{CalibrateOptions, CalibrateProgress, MeasuredSpread, SpeedKind, SpeedResult};

/// The time that is left, and the results so far.
pub(super) struct Pace<'a> {
    deadline: Instant,
    repetitions: u32,
    on_progress: &'a mut dyn FnMut(CalibrateProgress),
    results: BTreeMap<SpeedKind, SpeedResult>,
}

impl<'a> Pace<'a> {
    pub(super) fn new(options: &CalibrateOptions, on_progress: &'a mut dyn FnMut(CalibrateProgress)) -> Self {
        let deadline = Instant::now() + options.duration;
        Self { deadline, repetitions: options.repetitions, on_progress, results: BTreeMap::new() }
    }

    /// Measures a speed several times. `measure` gets the time until which it should go on, and does at least one piece
    /// of work even if that has passed. What earlier measurements did not need is left for later ones.
    ///
    /// # Errors
    /// The first error of `measure`.
    pub(super) fn repeat<E>(
        &mut self,
        kind: SpeedKind,
        mut measure: impl FnMut(Instant) -> Result<f64, E>,
    ) -> Result<MeasuredSpread, E> {
        let kinds = SpeedKind::ALL.len().saturating_sub(self.results.len()).max(1) as u32;
        let left = self.deadline.saturating_duration_since(Instant::now());
        let slice: Duration = left / kinds / self.repetitions;
        let mut values = Vec::with_capacity(self.repetitions as usize);
        for repetition in 1..=self.repetitions {
            (self.on_progress)(CalibrateProgress { kind, repetition, repetitions: self.repetitions });
            values.push(measure(Instant::now() + slice)?);
        }
        let spread = MeasuredSpread::of(&mut values);
        self.results.insert(kind, SpeedResult::Measured(spread));
        Ok(spread)
    }

    /// Sets a result that needs no time of its own.
    pub(super) fn set(&mut self, kind: SpeedKind, values: &mut [f64]) {
        self.results.insert(kind, SpeedResult::Measured(MeasuredSpread::of(values)));
    }

    /// Says why speeds can't be measured.
    pub(super) fn miss(&mut self, kinds: impl IntoIterator<Item = SpeedKind>, reason: &str) {
        for kind in kinds {
            self.results.insert(kind, SpeedResult::Missing { reason: reason.to_owned() });
        }
    }

    pub(super) fn into_results(self) -> BTreeMap<SpeedKind, SpeedResult> {
        self.results
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_that_of_sorted_values() {
        let odd = MeasuredSpread::of(&mut [5.0, 1.0, 9.0]);
        assert_eq!(odd, MeasuredSpread { median: 5.0, min: 1.0, max: 9.0, repetitions: 3 });
        assert_eq!(MeasuredSpread::of(&mut [4.0, 1.0, 2.0, 9.0]).median, 3.0);
    }

    #[test]
    fn time_that_is_not_needed_is_left_for_later_measurements_and_errors_end_them() {
        let options = CalibrateOptions { duration: Duration::from_secs(900), ..CalibrateOptions::new("/") };
        let mut seen = Vec::new();
        let mut on_progress = |progress: CalibrateProgress| seen.push((progress.kind, progress.repetition));
        let mut pace = Pace::new(&options, &mut on_progress);
        pace.miss(SpeedKind::LINK, "no other host");
        let mut slices = Vec::new();
        for kind in [SpeedKind::ProcessorOne, SpeedKind::DiskRead] {
            let began = Instant::now();
            let spread = pace.repeat(kind, |until| {
                slices.push((until - began).as_secs());
                Ok::<f64, ()>(slices.len() as f64)
            });
            assert_eq!(spread.unwrap().repetitions, 5);
        }
        // 900 s for nine kinds and five repetitions; then for eight.
        assert!(slices[0] <= 20 && slices[5] > slices[0], "{slices:?}");
        assert_eq!(pace.repeat(SpeedKind::DiskWrite, |_| Err("full")), Err("full"));
        assert_eq!(pace.into_results().len(), 2 + SpeedKind::LINK.len());
        assert_eq!(seen.len(), 11);
        assert_eq!(seen[4], (SpeedKind::ProcessorOne, 5));
    }
}
