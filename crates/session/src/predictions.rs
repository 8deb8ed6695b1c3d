//! Predictions of run times, stored on disk, and the times that were measured later: for each label a file.
//!
//! The errors of earlier predictions decide how wide the ranges of later ones are ([`History`]). A user proceeds in
//! three steps:
//!
//! 1. `lightship usage what-if sort --cpu 2 --save` predicts the time of the run that is labelled `sort`, and stores
//!    the prediction ([`Predictions::save`]).
//! 2. The hardware is changed, or another host is used.
//! 3. `lightship usage run --label sort --changed cpu=2 -- COMMAND` runs the command again, and declares what has been
//!    changed since the prediction. The measured time is compared with it ([`Predictions::compare`]), and later
//!    predictions know the error ([`Predictions::history`]). `--changed` without a value means the change that was
//!    predicted last.
//!
//! Only the user knows what was changed, so that a run without `--changed` is never compared.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lightship_usage::{Change, History, PredictedRun, Prediction, UsageError};
use serde::{Deserialize, Serialize};

use crate::profile::unix_seconds;
use crate::state::{StateError, encoded_name, read_json, state_folder, write_json};

/// Version of the file format.
const VERSION: u32 = 1;
/// Environment variable that overrides the folder of usage records, in which the predictions have a folder.
const FOLDER_VARIABLE: &str = "LIGHTSHIP_USAGE";
/// The most predictions of a label; the oldest is forgotten first.
const PREDICTIONS_MAX: usize = 100;
/// The most measured runs of a prediction; the oldest is forgotten first.
const RUNS_MAX: usize = 100;
/// The most labels whose predictions make the history.
const LABELS_MAX: usize = 10_000;
/// Factors that differ by less than this fraction are the same.
const FACTOR_TOLERANCE: f64 = 1e-6;

/// A run under the conditions of a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRun {
    /// Its time in seconds.
    pub seconds: f64,
    /// When it was recorded, in seconds since 1970.
    pub at: u64,
}

/// A stored prediction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedPrediction {
    /// The label of the run that it was made from.
    pub label: String,
    /// What is changed.
    pub change: Change,
    /// The predicted time in seconds.
    pub seconds: f64,
    /// The least that it may be.
    pub low_seconds: f64,
    /// The most that it may be.
    pub high_seconds: f64,
    /// The time of the run that it was made from, in seconds.
    pub before_seconds: f64,
    /// When it was made, in seconds since 1970.
    pub saved_at: u64,
    /// The runs that were declared as changed in this way, the oldest first.
    pub runs: Vec<MeasuredRun>,
}

/// A prediction, and the time that was measured after the change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PredictionComparison {
    /// The prediction, with this run as its last one.
    pub prediction: SavedPrediction,
    /// The predicted and the measured time.
    pub run: PredictedRun,
    /// Whether the measured time is in the range of the prediction.
    pub is_within: bool,
}

impl fmt::Display for PredictionComparison {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SavedPrediction { change, low_seconds, high_seconds, .. } = &self.prediction;
        let PredictedRun { predicted_seconds, measured_seconds } = self.run;
        let percent = self.run.relative_error() * 100.0;
        let direction = if predicted_seconds < measured_seconds { "low" } else { "high" };
        let range = if self.is_within { "within" } else { "outside" };
        write!(
            out,
            "{change}: {predicted_seconds:.3} s predicted ({low_seconds:.3} s to {high_seconds:.3} s), \
             {measured_seconds:.3} s measured: {percent:.0}% too {direction}, {range} the range"
        )
    }
}

/// A prediction could not be stored, found or compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictionsError {
    /// The files can't be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// No such prediction is stored.
    #[error("{}", not_saved(.label, .change.as_ref(), .saved))]
    NotSaved {
        /// The label.
        label: String,
        /// The declared change; `None` if the last prediction was asked for.
        change: Option<Change>,
        /// The changes for which the label has predictions.
        saved: Vec<Change>,
    },
    /// A time or a change is out of range.
    #[error(transparent)]
    Invalid(#[from] UsageError),
}

fn not_saved(label: &str, change: Option<&Change>, saved: &[Change]) -> String {
    let of = change.map_or(String::new(), |change| format!(" with {change}"));
    let saved: Vec<String> = saved.iter().map(Change::to_string).collect();
    match saved.as_slice() {
        [] => format!("no prediction of {label}{of} is stored"),
        saved => format!("no prediction of {label}{of} is stored, only with {}", saved.join("; ")),
    }
}

/// The file of a label.
#[derive(Debug, Serialize, Deserialize)]
struct LabelFile {
    version: u32,
    predictions: Vec<SavedPrediction>,
}

/// The folder of stored predictions.
#[derive(Debug, Clone)]
pub struct Predictions {
    folder: PathBuf,
}

impl Predictions {
    /// The current user's, in the folder `predictions` of `LIGHTSHIP_USAGE`, or else of `lightship/usage` below
    /// `XDG_STATE_HOME` or `~/.local/state`.
    ///
    /// # Errors
    /// [`StateError::NoFolder`] if none of these is set.
    pub fn of_user() -> Result<Self, PredictionsError> {
        let missing = StateError::NoFolder { what: "predictions", variable: FOLDER_VARIABLE };
        let folder = state_folder("usage", Some(FOLDER_VARIABLE)).ok_or(missing)?;
        Ok(Self::at(folder.join("predictions")))
    }

    /// Predictions in `folder`, which is created when the first one is stored.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Stores a prediction that was made for `change` from the run with a label (`what-if --save`). Earlier ones of the
    /// label stay, up to a hundred. If two processes store predictions of the same label at the same time, one of them
    /// may be lost.
    ///
    /// # Errors
    /// If the change is out of range, or the file can't be read or written.
    pub fn save(
        &self,
        label: &str,
        change: &Change,
        prediction: &Prediction,
    ) -> Result<SavedPrediction, PredictionsError> {
        change.check()?;
        let saved = SavedPrediction {
            label: label.to_owned(),
            change: *change,
            seconds: prediction.seconds,
            low_seconds: prediction.low_seconds,
            high_seconds: prediction.high_seconds,
            before_seconds: prediction.measured_seconds,
            saved_at: unix_seconds(SystemTime::now()),
            runs: Vec::new(),
        };
        let mut predictions = self.of_label(label)?;
        push(&mut predictions, saved.clone(), PREDICTIONS_MAX);
        self.write(label, predictions)?;
        Ok(saved)
    }

    /// The predictions of a label, the oldest first; none if no prediction was stored.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn of_label(&self, label: &str) -> Result<Vec<SavedPrediction>, PredictionsError> {
        Ok(read(&self.path(label))?)
    }

    /// Compares the time of a run with the last prediction of its label for the declared change (`run --changed`), or
    /// with the last one for any change if `change` is `None`, and stores the time beside the prediction. The
    /// comparison is part of the history from then on. A prediction may be compared with several runs.
    ///
    /// # Errors
    /// [`PredictionsError::NotSaved`] if the label has no such prediction: it names those that exist. If the time is
    /// not valid, or the file can't be read or written.
    pub fn compare(
        &self,
        label: &str,
        change: Option<&Change>,
        measured_seconds: f64,
    ) -> Result<PredictionComparison, PredictionsError> {
        let mut predictions = self.of_label(label)?;
        let is_meant =
            |saved: &&mut SavedPrediction| change.is_none_or(|change| is_same(change, &saved.change));
        let Some(saved) = predictions.iter_mut().rev().find(is_meant) else {
            let mut changes: Vec<Change> = Vec::new();
            for saved in &predictions {
                if !changes.contains(&saved.change) {
                    changes.push(saved.change);
                }
            }
            let (label, change) = (label.to_owned(), change.copied());
            return Err(PredictionsError::NotSaved { label, change, saved: changes });
        };
        let run = PredictedRun { predicted_seconds: saved.seconds, measured_seconds };
        // It also checks the times.
        History::default().add(saved.change.kind(), run)?;
        let now = unix_seconds(SystemTime::now());
        push(&mut saved.runs, MeasuredRun { seconds: measured_seconds, at: now }, RUNS_MAX);
        let prediction = saved.clone();
        self.write(label, predictions)?;
        let is_within = (prediction.low_seconds..=prediction.high_seconds).contains(&measured_seconds);
        Ok(PredictionComparison { prediction, run, is_within })
    }

    /// All comparisons, for [`lightship_usage::what_if`]. Invalid times, which only a damaged file can have, are left
    /// out.
    ///
    /// # Errors
    /// If a file can't be read: the error names it. Later predictions are possible without it, from an empty history.
    pub fn history(&self) -> Result<History, PredictionsError> {
        let mut runs = Vec::new();
        for path in self.files()? {
            for saved in read(&path)? {
                let kind = saved.change.kind();
                let run = |run: &MeasuredRun| PredictedRun {
                    predicted_seconds: saved.seconds,
                    measured_seconds: run.seconds,
                };
                runs.extend(saved.runs.iter().map(|measured| (measured.at, kind, run(measured))));
            }
        }
        runs.sort_by_key(|(at, ..)| *at);
        let mut history = History::default();
        for (_, kind, run) in runs {
            // An invalid time is an error, and is not added.
            let _ = history.add(kind, run);
        }
        Ok(history)
    }

    fn path(&self, label: &str) -> PathBuf {
        self.folder.join(encoded_name(label) + ".json")
    }

    fn files(&self) -> Result<Vec<PathBuf>, StateError> {
        let io = |source| StateError::Io { path: self.folder.clone(), source };
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io(error)),
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(io)?.path();
            if path.extension().is_some_and(|extension| extension == "json") && files.len() < LABELS_MAX {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    fn write(&self, label: &str, predictions: Vec<SavedPrediction>) -> Result<(), StateError> {
        write_json(&self.path(label), &LabelFile { version: VERSION, predictions })
    }
}

fn read(path: &Path) -> Result<Vec<SavedPrediction>, StateError> {
    let Some(file) = read_json::<LabelFile>(path)? else { return Ok(Vec::new()) };
    if file.version != VERSION {
        let why = format!("format version {}, expected {VERSION}", file.version);
        return Err(StateError::Damaged { path: path.to_owned(), why });
    }
    Ok(file.predictions)
}

/// Adds a value at the end, and removes the first ones if there are too many.
fn push<T>(values: &mut Vec<T>, value: T, max: usize) {
    values.push(value);
    values.drain(..values.len().saturating_sub(max));
}

/// Whether two changes are the same, but for the digits that a user leaves out.
fn is_same(one: &Change, other: &Change) -> bool {
    let factors = |change: &Change| {
        [change.cpu, change.disk_sequential, change.disk_random, change.network, change.round_trip]
    };
    let near = |(a, b): (f64, f64)| (a - b).abs() <= FACTOR_TOLERANCE * a.abs().max(b.abs());
    let nodes = match (one.nodes, other.nodes) {
        (Some(a), Some(b)) => a.from == b.from && a.to == b.to && near((a.divided, b.divided)),
        (a, b) => a.is_none() && b.is_none(),
    };
    nodes && factors(one).into_iter().zip(factors(other)).all(near)
}

#[cfg(test)]
mod tests {
    use lightship_usage::ChangeKind;

    use super::*;

    fn change(text: &str) -> Change {
        text.parse().expect("a change")
    }

    fn prediction(seconds: f64) -> Prediction {
        Prediction {
            seconds,
            low_seconds: seconds * 0.8,
            high_seconds: seconds * 1.2,
            measured_seconds: 10.0,
            parts: Vec::new(),
            kind: ChangeKind::Cpu,
            error: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_run_is_compared_with_the_last_prediction_for_its_change_and_the_history_knows_the_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let predictions = Predictions::at(folder.path().join("not/there/yet"));
        assert_eq!(predictions.history().expect("empty"), History::default());
        predictions.save("sort", &change("cpu=2"), &prediction(6.0)).expect("saved");
        predictions.save("sort", &change("cpu=2"), &prediction(5.0)).expect("saved");
        predictions.save("sort", &change("disk=3"), &prediction(8.0)).expect("saved");
        let compared = predictions.compare("sort", Some(&change("cpu=2.0000000001")), 4.0).expect("compared");
        assert_eq!(compared.run, PredictedRun { predicted_seconds: 5.0, measured_seconds: 4.0 });
        assert!(compared.is_within);
        assert_eq!(
            compared.to_string(),
            "cpu=2: 5.000 s predicted (4.000 s to 6.000 s), 4.000 s measured: 25% too high, within the range"
        );
        // Without a declared change it is the one that was predicted last.
        let compared = predictions.compare("sort", None, 16.0).expect("compared");
        assert_eq!((compared.prediction.change, compared.is_within), (change("disk=3"), false));
        predictions.compare("sort", Some(&change("cpu=2")), 10.0).expect("compared again");
        let history = Predictions::at(predictions.folder.clone()).history().expect("read");
        let error = history.error(ChangeKind::Cpu).expect("two runs");
        assert_eq!((error.runs, error.worst), (2, 0.5));
        assert_eq!(history.error(ChangeKind::Disk).expect("a run").mean, 0.5);
        assert_eq!(
            history.runs(ChangeKind::Cpu).map(|run| run.measured_seconds).collect::<Vec<_>>(),
            [4.0, 10.0]
        );
        let saved = predictions.of_label("sort").expect("read");
        assert_eq!(saved.iter().map(|saved| saved.runs.len()).collect::<Vec<_>>(), [0, 2, 1]);
        assert!(saved.iter().all(|saved| saved.saved_at > 1_500_000_000 && saved.before_seconds == 10.0));
    }

    #[test]
    fn runs_without_a_prediction_and_invalid_times_are_errors_and_change_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let predictions = Predictions::at(folder.path());
        let error = predictions.compare("q1", None, 1.0).expect_err("nothing is saved");
        assert_eq!(error.to_string(), "no prediction of q1 is stored");
        for text in ["cpu=2", "nodes=6", "cpu=2"] {
            predictions.save("q1", &change(text), &prediction(1.0)).expect("saved");
        }
        let error = predictions.compare("q1", Some(&change("cpu=3")), 1.0).expect_err("another change");
        assert_eq!(error.to_string(), "no prediction of q1 with cpu=3 is stored, only with cpu=2; nodes=1:6");
        assert!(predictions.compare("q1", Some(&change("nodes=3:6")), 1.0).is_err());
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = predictions.compare("q1", None, seconds).expect_err("no time");
            assert!(matches!(error, PredictionsError::Invalid(_)), "{error}");
        }
        let wrong = Change { cpu: 0.0, ..Change::default() };
        assert!(predictions.save("q1", &wrong, &prediction(1.0)).is_err());
        assert!(predictions.of_label("q1").expect("read").iter().all(|saved| saved.runs.is_empty()));
    }

    #[test]
    fn the_files_are_bounded_and_damaged_ones_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let predictions = Predictions::at(folder.path());
        for number in 0..PREDICTIONS_MAX + 3 {
            predictions.save("a", &change("cpu=2"), &prediction(number as f64 + 1.0)).expect("saved");
        }
        for _ in 0..RUNS_MAX + 3 {
            predictions.compare("a", None, 1.0).expect("compared");
        }
        let saved = predictions.of_label("a").expect("read");
        assert_eq!((saved.len(), saved[0].seconds), (PREDICTIONS_MAX, 4.0));
        assert_eq!(saved[PREDICTIONS_MAX - 1].runs.len(), RUNS_MAX);
        assert_eq!(predictions.history().expect("read").runs(ChangeKind::Cpu).count(), RUNS_MAX);
        let path = predictions.path("a");
        let text = fs::read_to_string(&path).expect("there");
        for damaged in [text.replace("\"version\": 1", "\"version\": 2"), text[..text.len() / 2].to_owned()] {
            fs::write(&path, damaged).expect("written");
            let error = predictions.history().expect_err("damaged").to_string();
            assert!(error.contains("a.json is damaged"), "{error}");
        }
        // Times that are not valid are left out.
        fs::write(&path, text.replacen("\"seconds\": 1.0", "\"seconds\": -1.0", 1)).expect("written");
        assert_eq!(predictions.history().expect("read").runs(ChangeKind::Cpu).count(), RUNS_MAX - 1);
    }
}
