//! Predictions against facts.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::error::{Result, within};

/// The longest time of a run, in seconds.
const SECONDS_MAX: f64 = 1e8;
/// The most runs that are kept of each kind of change; the oldest is forgotten first.
const RUNS_MAX: usize = 1000;

/// What a prediction was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// Other processors.
    Cpu,
    /// Another disk.
    Disk,
    /// Another network.
    Network,
    /// Another number of nodes.
    Nodes,
    /// More than one of these.
    Several,
    /// Nothing: the same run again.
    Same,
}

/// A predicted time and the one that was measured, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PredictedRun {
    /// The prediction, made before the run.
    pub predicted_seconds: f64,
    /// The measured time.
    pub measured_seconds: f64,
}

impl PredictedRun {
    /// The error as a fraction of the measured time.
    pub fn relative_error(&self) -> f64 {
        (self.predicted_seconds - self.measured_seconds).abs() / self.measured_seconds
    }
}

/// The errors of the predictions of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PredictionError {
    /// Runs, at least 1.
    pub runs: usize,
    /// The mean of the absolute errors, each as a fraction of the measured time.
    pub mean: f64,
    /// The worst.
    pub worst: f64,
}

impl std::fmt::Display for PredictionError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (mean, worst) = (self.mean * 100.0, self.worst * 100.0);
        write!(out, "mean error {mean:.0}%, worst {worst:.0}%, in {} earlier runs", self.runs)
    }
}

/// The predictions that were made, and what happened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct History(BTreeMap<ChangeKind, VecDeque<PredictedRun>>);

impl History {
    /// Adds a run.
    ///
    /// # Errors
    /// If a time is not positive, or longer than 100 million seconds.
    pub fn add(&mut self, kind: ChangeKind, run: PredictedRun) -> Result<()> {
        within("predicted time in seconds", run.predicted_seconds, 0.0, SECONDS_MAX)?;
        within("measured time in seconds", run.measured_seconds, 1e-9, SECONDS_MAX)?;
        let runs = self.0.entry(kind).or_default();
        while runs.len() >= RUNS_MAX {
            runs.pop_front();
        }
        runs.push_back(run);
        Ok(())
    }

    /// The runs of a kind, the oldest first.
    pub fn runs(&self, kind: ChangeKind) -> impl Iterator<Item = &PredictedRun> {
        self.0.get(&kind).into_iter().flatten()
    }

    /// The errors of a kind; `None` without runs. Invalid times, which only a damaged file can have, are left out.
    pub fn error(&self, kind: ChangeKind) -> Option<PredictionError> {
        summary(self.runs(kind))
    }

    /// The errors of all kinds together; `None` without runs.
    pub fn error_of_all(&self) -> Option<PredictionError> {
        summary(self.0.values().flatten())
    }
}

fn summary<'a>(runs: impl Iterator<Item = &'a PredictedRun>) -> Option<PredictionError> {
    let errors: Vec<f64> =
        runs.map(PredictedRun::relative_error).filter(|error| error.is_finite() && *error >= 0.0).collect();
    let sum: f64 = errors.iter().sum();
    let worst = errors.iter().copied().reduce(f64::max)?;
    Some(PredictionError { runs: errors.len(), mean: sum / errors.len() as f64, worst })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_to_what_was_measured() {
        let mut history = History::default();
        assert_eq!(history.error(ChangeKind::Cpu), None);
        for (predicted_seconds, measured_seconds) in [(9.0, 10.0), (13.0, 10.0)] {
            history.add(ChangeKind::Cpu, PredictedRun { predicted_seconds, measured_seconds }).unwrap();
        }
        let error = history.error(ChangeKind::Cpu).unwrap();
        assert!((error.mean - 0.2).abs() < 1e-12 && (error.worst - 0.3).abs() < 1e-12);
        assert_eq!(error.to_string(), "mean error 20%, worst 30%, in 2 earlier runs");
        assert_eq!(history.error_of_all(), Some(error));
        let json = serde_json::to_string(&history).unwrap();
        assert_eq!(serde_json::from_str::<History>(&json).unwrap(), history);
    }

    #[test]
    fn the_history_is_bounded_and_refuses_invalid_times() {
        let mut history = History::default();
        for measured_seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let run = PredictedRun { predicted_seconds: 1.0, measured_seconds };
            assert!(history.add(ChangeKind::Disk, run).is_err());
        }
        for _ in 0..RUNS_MAX + 5 {
            let run = PredictedRun { predicted_seconds: 1.0, measured_seconds: 1.0 };
            history.add(ChangeKind::Disk, run).unwrap();
        }
        assert_eq!(history.runs(ChangeKind::Disk).count(), RUNS_MAX);
    }
}
