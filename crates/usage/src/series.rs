//! Figures over time, for plots.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::figure::Figure;
use crate::sample::Subject;
use crate::timeline::Timeline;
use crate::track::Track;

/// Samples of a host that are so many times farther apart than usual have a gap between them.
const GAP_STEPS: u64 = 3;
/// The most points of a series.
const POINTS_MAX: usize = 4096;

/// Figures of a subject over time, at even distances.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The middle of each point's time, in nanoseconds on the time line.
    pub at_ns: Vec<u64>,
    /// The time that each point stands for, in nanoseconds.
    pub step_ns: u64,
    /// For each figure, one value for each point: of counters, the growth per second; of gauges, the last value. `None`
    /// where samples are missing. A figure without any value is left out.
    pub values: BTreeMap<Figure, Vec<Option<f64>>>,
}

/// Those of some subjects of which there are samples at about this time.
fn within<'a>(
    track: &Track,
    subjects: impl Iterator<Item = &'a Subject>,
    from: u64,
    to: u64,
) -> Vec<&'a Subject> {
    // What began and ended between two samples is first seen in the sample after it.
    let next = track.moments(to, u64::MAX).next().unwrap_or(to);
    let is_there = |subject: &&Subject| {
        track.subject_span(subject).is_some_and(|(first, last)| first <= next && last >= from)
    };
    subjects.filter(is_there).collect()
}

impl Timeline {
    /// Figures of a subject from `from` to `to` in nanoseconds on the time line, in at most `points_max` points, and
    /// none that is finer than the samples. Empty if there is no sample of it.
    pub fn series(
        &self,
        host: &str,
        subject: &Subject,
        figures: &[Figure],
        (from, to): (u64, u64),
        points_max: usize,
    ) -> Series {
        let Some(track) = self.track(host) else { return Series::default() };
        let (from, to) = match track.span() {
            Some((first, last)) => (from.max(first), to.min(last)),
            None => return Series::default(),
        };
        if to <= from {
            return Series::default();
        }
        let points_max = points_max.clamp(2, POINTS_MAX) as u64;
        let finest = self.step_ns(host, (from, to)).unwrap_or(to - from);
        let step_ns = (to - from).div_ceil(points_max - 1).max(finest).max(1);
        // Points stay where they are while time goes on, so that a plot does not flicker.
        let first = from / step_ns;
        let steps: Vec<(u64, u64)> = (first..=(to - 1) / step_ns)
            .map(|index| ((index * step_ns).max(from), (index + 1).saturating_mul(step_ns).min(to)))
            .collect();
        let gaps = gaps(track, (from, to), finest);
        let is_seen = |&(a, b): &(u64, u64)| {
            let middle = a + (b - a) / 2;
            let index = gaps.partition_point(|gap| gap.1 <= middle);
            gaps.get(index).is_none_or(|gap| gap.0 > middle)
        };
        let seen: Vec<bool> = steps.iter().map(is_seen).collect();
        let bound_ns = track.bound_ns(from, to);
        let mut values = BTreeMap::new();
        for &figure in figures {
            let column: Vec<Option<f64>> = if figure.is_gauge() {
                let value =
                    |&(a, b): &(u64, u64)| track.gauge(subject, figure, a, b).map(|last| last.2 as f64);
                steps.iter().map(value).collect()
            } else {
                let Some(curve) = track.curve(subject, figure, (from, to), bound_ns) else { continue };
                let rate = |&(a, b): &(u64, u64)| {
                    let covered = curve.covered_ns(a, b);
                    let amount = curve.between(a, b).filter(|_| covered * 2 >= b - a)?;
                    Some(amount.value / covered as f64 * 1e9)
                };
                steps.iter().map(rate).collect()
            };
            let column: Vec<_> =
                column.into_iter().zip(&seen).map(|(value, seen)| value.filter(|_| *seen)).collect();
            if column.iter().any(Option::is_some) {
                values.insert(figure, column);
            }
        }
        Series { at_ns: steps.iter().map(|(a, b)| a + (b - a) / 2).collect(), step_ns, values }
    }

    /// The subjects of a host of which there are samples at about the time from `from` to `to`, in order.
    pub fn subjects_within(&self, host: &str, from: u64, to: u64) -> Vec<&Subject> {
        self.track(host).map_or(Vec::new(), |track| within(track, track.subjects(), from, to))
    }

    /// The processes among them.
    pub fn processes_within(&self, host: &str, from: u64, to: u64) -> Vec<&Subject> {
        let of = |track| within(track, track.subjects_in(Subject::PROCESSES), from, to);
        self.track(host).map_or(Vec::new(), of)
    }

    /// Whether a subject is likely to have used anything from `from` to `to`: a counter of it changed then, or between
    /// the samples around.
    pub fn is_active(&self, host: &str, subject: &Subject, from: u64, to: u64) -> bool {
        self.track(host).is_some_and(|track| track.is_active(subject, from, to))
    }

    /// The disks of a host.
    pub fn disks(&self, host: &str) -> impl Iterator<Item = &Subject> {
        self.track(host).into_iter().flat_map(|track| track.subjects_in(Subject::DISKS))
    }

    /// The tasks of a query on a host.
    pub fn tasks_of(&self, host: &str, query: &str) -> impl Iterator<Item = &Subject> {
        self.track(host).into_iter().flat_map(move |track| track.subjects_in(Subject::tasks(query)))
    }

    /// The tasks of a host, with the first and the last moment at which each was sampled.
    pub fn tasks(&self, host: &str) -> impl Iterator<Item = (&Subject, (u64, u64))> {
        self.track(host).into_iter().flat_map(Track::tasks)
    }

    /// When the last samples of a host were taken, at most `count`, the latest first.
    pub fn last_samples(&self, host: &str, count: usize) -> Vec<u64> {
        self.track(host).map_or(Vec::new(), |track| track.last_moments(count))
    }

    /// When the first and the last sample with a subject were taken.
    pub fn subject_span(&self, host: &str, subject: &Subject) -> Option<(u64, u64)> {
        self.track(host)?.subject_span(subject)
    }
}

/// Times without samples that are longer than usual, in order.
fn gaps(track: &Track, (from, to): (u64, u64), step_ns: u64) -> Vec<(u64, u64)> {
    let mut before = from;
    let moments = track.moments(from, to).chain([to]);
    let gaps = moments.filter_map(|at| {
        let gap = (std::mem::replace(&mut before, at), at);
        (gap.1.saturating_sub(gap.0) > step_ns.saturating_mul(GAP_STEPS)).then_some(gap)
    });
    gaps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClockMap, Entry, Figures, Sample, TimelineLimits};

    const SECOND: u64 = 1_000_000_000;

    fn timeline(numbers: impl Iterator<Item = u64>) -> Timeline {
        let mut timeline = Timeline::new(TimelineLimits::default());
        timeline.set_clock("a", ClockMap::identity()).unwrap();
        for number in numbers {
            let mut figures = Figures::default();
            figures.set(Figure::DiskReadBytes, number * 500);
            figures.set(Figure::MemoryBytes, 7 + number);
            let entries = vec![Entry { subject: Subject::Host, figures }];
            let sample = Sample { host: "a".into(), run: 1, number, at_ns: number * SECOND, entries };
            timeline.insert(sample).unwrap();
        }
        timeline
    }

    const FIGURES: [Figure; 3] = [Figure::DiskReadBytes, Figure::MemoryBytes, Figure::CpuUserNs];

    #[test]
    fn counters_are_rates_and_gauges_are_levels() {
        let series = timeline(0..=100).series("a", &Subject::Host, &FIGURES, (0, 200 * SECOND), 1000);
        assert_eq!(series.step_ns, SECOND);
        assert_eq!(series.at_ns.len(), 100);
        let rates = &series.values[&Figure::DiskReadBytes];
        assert!(rates.iter().all(|rate| (rate.unwrap() - 500.0).abs() < 1e-6), "{rates:?}");
        assert_eq!(series.values[&Figure::MemoryBytes][10], Some(18.0));
        assert!(!series.values.contains_key(&Figure::CpuUserNs));
    }

    #[test]
    fn missing_samples_leave_a_gap() {
        let numbers = (0..=100).filter(|number| !(40..60).contains(number));
        let series = timeline(numbers).series("a", &Subject::Host, &FIGURES, (0, 100 * SECOND), 1000);
        for (at, rate) in series.at_ns.iter().zip(&series.values[&Figure::DiskReadBytes]) {
            assert_eq!(rate.is_none(), (39 * SECOND..60 * SECOND).contains(at), "{at}");
        }
    }

    proptest::proptest! {
        #[test]
        fn series_have_few_points_in_order_and_within_the_span(
            from in 0..200_u64, length in 0..200_u64, points in 0..100_usize,
            numbers in proptest::collection::btree_set(0..200_u64, 0..100),
        ) {
            let span = (from * SECOND, (from + length) * SECOND);
            let series = timeline(numbers.into_iter()).series("a", &Subject::Host, &FIGURES, span, points);
            assert!(series.at_ns.len() <= points.max(2));
            assert!(series.at_ns.is_sorted());
            assert!(series.at_ns.iter().all(|at| (span.0..=span.1).contains(at)));
            assert!(series.values.values().all(|values| values.len() == series.at_ns.len()));
            let rates = series.values.get(&Figure::DiskReadBytes).into_iter().flatten().flatten();
            assert!(rates.into_iter().all(|rate| (rate - 500.0).abs() < 1e-3));
        }
    }
}
