//! Predictions, stored before the runs that they predict, and compared afterwards.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lightship_session::Predictions;
use lightship_usage::{Change, ChangeKind, Footprint, what_if};

use super::outcome::Row;
use crate::{Result, places};

pub(super) const NAME: &str = "usage-what-if";
const COLUMNS: [&str; 14] = [
    "system",
    "from",
    "to",
    "query",
    "change",
    "kind",
    "limit before",
    "measured before, s",
    "predicted, s",
    "low, s",
    "high, s",
    "predicted at",
    "measured, s",
    "measured at",
];

/// A prediction.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    pub(super) system: String,
    /// Tables, nodes and hardware, before and after.
    pub(super) from: String,
    pub(super) to: String,
    pub(super) query: String,
    pub(super) change: String,
    pub(super) kind: String,
    pub(super) limit: String,
    pub(super) before: f64,
    pub(super) predicted: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Seconds since 1970.
    predicted_at: u64,
    /// Not a number until it was measured.
    pub(super) measured: f64,
    measured_at: u64,
}

impl Line {
    /// The error as a part of the measured time.
    pub(super) fn error(&self) -> f64 {
        (self.predicted - self.measured).abs() / self.measured
    }
}

/// All predictions: in a file with a line for each, and in the product's own store.
pub(super) struct Predicted {
    path: PathBuf,
    store: Predictions,
    /// Each with its change.
    open: Vec<(Vec<String>, String, Change)>,
    pub(super) lines: Vec<Line>,
}

impl Predicted {
    /// The predictions of other systems stay; those of this one are made again.
    pub(super) fn open(folder: &Path, system: &str) -> Result<Self> {
        let kept = places::data().join("usage-predictions").join(system);
        let _ = std::fs::remove_dir_all(&kept);
        let path = folder.join(format!("{NAME}.csv"));
        let mut lines = read(&path)?;
        lines.retain(|line| line.system != system);
        Ok(Self { path, store: Predictions::at(kept), open: Vec::new(), lines })
    }

    /// Predicts the time at another place from a run.
    pub(super) fn save(
        &mut self,
        here: &[String],
        run: &Row,
        there: &[String],
        footprint: &Footprint,
        change: &Change,
    ) -> Result<()> {
        let label = here.join(" ");
        let prediction = what_if(footprint, change, &self.store.history()?)?;
        let saved = self.store.save(&label, change, &prediction)?;
        let text = |place: &[String]| place[1..4].join(", ");
        self.lines.push(Line {
            system: here[0].clone(),
            from: text(here),
            to: text(there),
            query: here[4].clone(),
            change: change.to_string(),
            kind: kind(change.kind()).to_owned(),
            limit: run.limit.clone(),
            before: run.seconds,
            predicted: saved.seconds,
            low: saved.low_seconds,
            high: saved.high_seconds,
            predicted_at: saved.saved_at,
            measured: f64::NAN,
            measured_at: 0,
        });
        self.open.push((there.to_vec(), label, *change));
        self.write()
    }

    /// Compares the predictions for a place with what was measured there.
    pub(super) fn compare(&mut self, there: &[String], seconds: f64) -> Result<()> {
        let text = there[1..4].join(", ");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        for (_, label, change) in self.open.iter().filter(|(place, ..)| place == there) {
            let compared = self.store.compare(label, Some(change), seconds)?;
            eprintln!("{label}: {compared}");
        }
        let is_meant =
            |line: &&mut Line| line.system == there[0] && line.to == text && line.query == there[4];
        for line in self.lines.iter_mut().filter(is_meant) {
            (line.measured, line.measured_at) = (seconds, now);
        }
        self.write()
    }

    fn write(&self) -> Result<()> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(COLUMNS)?;
        for line in &self.lines {
            let numbers =
                [line.before, line.predicted, line.low, line.high].map(|seconds| format!("{seconds:.4}"));
            let Line { system, from, to, query, change, kind, limit, .. } = line;
            let texts = [system, from, to, query, change, kind, limit].map(Clone::clone);
            let (at, measured) = (line.predicted_at.to_string(), format!("{:.4}", line.measured));
            let rest = [at, measured, line.measured_at.to_string()];
            writer.write_record(texts.iter().chain(&numbers).chain(&rest))?;
        }
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(std::fs::write(&self.path, writer.into_inner().map_err(|e| e.into_error())?)?)
    }
}

/// The predictions in a file that have been compared; none if it is missing.
pub(super) fn compared(folder: &Path) -> Result<Vec<Line>> {
    let mut lines = read(&folder.join(format!("{NAME}.csv")))?;
    lines.retain(|line| line.measured.is_finite());
    Ok(lines)
}

fn read(path: &Path) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    if !path.exists() {
        return Ok(lines);
    }
    for record in csv::Reader::from_path(path)?.records() {
        let record = record?;
        let text = |at: usize| record.get(at).unwrap_or_default().to_owned();
        let number = |at: usize| text(at).parse::<f64>();
        lines.push(Line {
            system: text(0),
            from: text(1),
            to: text(2),
            query: text(3),
            change: text(4),
            kind: text(5),
            limit: text(6),
            before: number(7)?,
            predicted: number(8)?,
            low: number(9)?,
            high: number(10)?,
            predicted_at: text(11).parse()?,
            measured: number(12)?,
            measured_at: text(13).parse()?,
        });
    }
    Ok(lines)
}

fn kind(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Cpu => "CPU",
        ChangeKind::Disk => "disk",
        ChangeKind::Network => "network",
        ChangeKind::Nodes => "nodes",
        ChangeKind::Several => "several",
        ChangeKind::Same => "same",
    }
}
