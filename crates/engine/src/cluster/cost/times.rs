//! How long the edges between two stages took in the last runs, and how long they are expected to take in the next one.

/// Runs that are remembered.
const RUNS_MAX: usize = 4;
/// Edges that are remembered of a run, from the fastest to the slowest, beside the slowest.
const SAMPLES_MAX: usize = 8;
/// Errors are relative to at least 10 ms.
const SECONDS_MIN: f64 = 0.01;

/// The time of the edges between two stages, from the request of their rows to their end, in the last runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct EdgeTimes {
    /// The last one first.
    runs: Vec<RunTimes>,
}

/// The edges of one run: seconds for each row of an average edge.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RunTimes {
    /// In ascending order.
    samples: Vec<f32>,
    slowest: f32,
}

impl RunTimes {
    /// Keeps some of the edges of a run, which sent `rows` together. `None` without rows.
    pub(super) fn new(mut seconds: Vec<f64>, rows: u64) -> Option<Self> {
        if rows == 0 {
            return None;
        }
        let edges = seconds.len();
        let of_row = |seconds: f64| (seconds * edges as f64 / rows as f64) as f32;
        seconds.sort_by(f64::total_cmp);
        let slowest = of_row(*seconds.last()?);
        let samples = match edges <= SAMPLES_MAX {
            true => seconds.into_iter().map(of_row).collect(),
            // The middle one of each eighth.
            false => (0..SAMPLES_MAX)
                .map(|part| of_row(seconds[(2 * part + 1) * edges / (2 * SAMPLES_MAX)]))
                .collect(),
        };
        Some(Self { samples, slowest })
    }
}

impl EdgeTimes {
    pub(super) fn add(&mut self, run: RunTimes) {
        self.runs.truncate(RUNS_MAX - 1);
        self.runs.insert(0, run);
    }

    /// Expected seconds of an edge, from the mean number of rows of these edges.
    pub(super) fn usual(&self, rows: f64) -> f64 {
        expected(self.runs.iter().flat_map(|run| &run.samples).map(|of_row| f64::from(*of_row) * rows))
    }

    /// Expected seconds of the slowest edge, from the mean number of rows of these edges.
    pub(super) fn slowest(&self, rows: f64) -> f64 {
        expected(self.runs.iter().map(|run| f64::from(run.slowest) * rows))
    }
}

/// The time with the least mean error relative to those that were measured: their median, weighted by 1/time. The mean
/// is wrong by many times for edges of which rows were ready when they were requested, if others have waited.
fn expected(seconds: impl Iterator<Item = f64>) -> f64 {
    let mut seconds: Vec<f64> = seconds.collect();
    seconds.sort_by(f64::total_cmp);
    let weight = |seconds: &f64| 1.0 / seconds.max(SECONDS_MIN);
    let mut rest = seconds.iter().map(weight).sum::<f64>() / 2.0;
    let middle = seconds.iter().find(|seconds| {
        rest -= weight(seconds);
        rest <= 0.0
    });
    middle.or(seconds.last()).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(seconds: Vec<f64>, rows: u64) -> RunTimes {
        RunTimes::new(seconds, rows).unwrap()
    }

    fn is_about(found: f64, expected: f64) -> bool {
        (found / expected - 1.0).abs() < 1e-6
    }

    #[test]
    fn the_last_runs_count_with_as_many_rows_as_are_expected() {
        let mut times = EdgeTimes::default();
        times.add(run(vec![0.1, 0.1], 2));
        for seconds in [3.0, 2.0, 1.0, 4.0] {
            // Each edge has 5 rows.
            times.add(run(vec![seconds, 2.0 * seconds], 10));
        }
        // The weights of 1 to 8 seconds are their inverses; those of 1 and 2 (twice) are more than half of them.
        assert!(is_about(times.usual(5.0), 2.0) && is_about(times.usual(10.0), 4.0), "{times:?}");
        // Of 2, 4, 6 and 8 seconds.
        assert!(is_about(times.slowest(5.0), 4.0), "{times:?}");
        assert_eq!(times.runs.len(), RUNS_MAX);
        assert_eq!((RunTimes::new(vec![1.0], 0), RunTimes::new(vec![], 1)), (None, None));
    }

    #[test]
    fn of_many_edges_some_are_remembered_and_the_slowest() {
        let seconds: Vec<f64> = (1..=992).map(f64::from).rev().collect();
        let times = run(seconds, 992);
        assert_eq!(times.samples, [63.0, 187.0, 311.0, 435.0, 559.0, 683.0, 807.0, 931.0]);
        assert_eq!(times.slowest, 992.0);
    }

    #[test]
    fn times_that_have_become_longer_are_expected_once_most_runs_were_as_long() {
        let mut times = EdgeTimes::default();
        let mut found = Vec::new();
        for seconds in [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0] {
            times.add(run(vec![seconds; 8], 8));
            found.push(times.usual(1.0));
        }
        assert_eq!(found, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0]);
    }

    #[test]
    fn short_times_weigh_no_more_than_10_ms() {
        assert_eq!(expected([0.0, 0.012, 0.012].into_iter()), 0.012);
        assert_eq!(expected([0.001, 0.002, 0.003].into_iter()), 0.002);
        assert_eq!(expected([].into_iter()), 0.0);
    }

    proptest! {
        #[test]
        fn no_other_time_has_a_smaller_error(seconds in prop::collection::vec(0.0_f64..0.1, 1..40)) {
            let error = |expected: f64| {
                seconds.iter().map(|took| (expected - took).abs() / took.max(SECONDS_MIN)).sum::<f64>()
            };
            let found = error(expected(seconds.iter().copied()));
            for other in &seconds {
                prop_assert!(found <= error(*other) * (1.0 + 1e-9) + 1e-12, "{other}");
            }
        }
    }
}
