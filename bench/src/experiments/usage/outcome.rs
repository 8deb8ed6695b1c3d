//! What was measured of one run, and the file that has every run.

use std::path::{Path, PathBuf};

use lightship_usage::{Footprint, Part, Verdict};

use crate::{Error, Result, places};

/// A run with its explanation.
pub(super) struct Explained {
    pub(super) footprint: Footprint,
    pub(super) verdict: Verdict,
}

impl Explained {
    /// Keeps the footprint beside the data, to look at it later.
    pub(super) fn keep(&self, row: &Row) -> Result<()> {
        let folder = places::data().join("usage-footprints");
        std::fs::create_dir_all(&folder)?;
        let name =
            row.place.join("_").replace(|c: char| !c.is_ascii_alphanumeric() && !"_.".contains(c), "-");
        let text = serde_json::to_string_pretty(&self.footprint)?;
        Ok(std::fs::write(folder.join(format!("{name}_{}.json", row.round)), text)?)
    }
}

/// A run: a line of the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// What ran where: the same dimensions for all runs of a file.
    pub(super) place: Vec<String>,
    /// The measured link, and the version of the other software.
    pub(super) link: String,
    pub(super) version: String,
    /// From 1.
    pub(super) round: u32,
    pub(super) seconds: f64,
    /// The class of the verdict, and the host that it names.
    pub(super) limit: String,
    pub(super) host: String,
    /// The sentence of the verdict, and its evidence.
    pub(super) evidence: String,
    /// Seconds of each part, in the order of [`Part::ALL`].
    pub(super) parts: Vec<f64>,
}

impl Row {
    pub(super) fn new(
        place: Vec<String>,
        (link, version): (String, String),
        round: u32,
        run: &Explained,
    ) -> Self {
        let Explained { footprint, verdict } = run;
        let evidence = [std::slice::from_ref(&verdict.sentence), &verdict.evidence[..]].concat().join(" ");
        Self {
            place,
            link,
            version,
            round,
            seconds: footprint.run_ns as f64 / 1e9,
            limit: verdict.limit.name().to_owned(),
            host: verdict.host.clone().unwrap_or_default(),
            evidence,
            parts: Part::ALL.map(|part| footprint.division.ns(part) as f64 / 1e9).to_vec(),
        }
    }

    /// The fraction of the time that is explained.
    pub(super) fn explained(&self) -> f64 {
        1.0 - self.of(Part::Unexplained) / self.seconds
    }

    /// Seconds of a part.
    pub(super) fn of(&self, part: Part) -> f64 {
        Part::ALL.iter().position(|known| *known == part).map_or(0.0, |at| self.parts[at])
    }
}

/// Columns between the dimensions and the parts.
const OWN: usize = 6;

/// All runs of a benchmark.
pub(super) struct Rows {
    path: PathBuf,
    dimensions: &'static [&'static str],
    pub(super) rows: Vec<Row>,
}

impl Rows {
    /// Reads `folder/name.csv`. A file that is missing or has other columns counts as empty.
    pub(super) fn open(folder: &Path, name: &str, dimensions: &'static [&'static str]) -> Result<Self> {
        let mut all = Self { path: folder.join(format!("{name}.csv")), dimensions, rows: Vec::new() };
        if all.path.exists() {
            let mut reader = csv::Reader::from_path(&all.path)?;
            if reader.headers()?.iter().eq(all.columns().iter().map(String::as_str)) {
                for record in reader.records() {
                    let row = all.row(&record?)?;
                    all.rows.push(row);
                }
            }
        }
        Ok(all)
    }

    /// Adds runs, which replace earlier ones at the same places, and saves everything.
    pub(super) fn add(&mut self, rows: Vec<Row>) -> Result<()> {
        self.rows.retain(|row| !rows.iter().any(|new| new.place == row.place));
        self.rows.extend(rows);
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(self.columns())?;
        for row in &self.rows {
            let own =
                [row.link.clone(), row.version.clone(), row.round.to_string(), format!("{:.4}", row.seconds)];
            let verdict = [row.limit.clone(), row.host.clone()];
            let parts = row.parts.iter().map(|seconds| format!("{seconds:.4}"));
            let cells = row.place.iter().cloned().chain(own).chain(verdict).chain(parts);
            writer.write_record(cells.chain([row.evidence.clone()]))?;
        }
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(std::fs::write(&self.path, writer.into_inner().map_err(|e| e.into_error())?)?)
    }

    /// The runs at a place.
    pub(super) fn at(&self, place: &[String]) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.place == place)
    }

    /// The run with the median time at a place.
    pub(super) fn median(&self, place: &[String]) -> Option<&Row> {
        let mut rows: Vec<&Row> = self.rows.iter().filter(|row| row.place == place).collect();
        rows.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        rows.get(rows.len().checked_sub(1)? / 2).copied()
    }

    /// The links, each with the system that used it, and the versions of other software, each once.
    pub(super) fn circumstances(&self, system: usize) -> [Vec<String>; 2] {
        let [mut links, mut versions] = [Vec::new(), Vec::new()];
        for row in &self.rows {
            let link = format!("{}, {}", row.place[system], row.link);
            for (text, known) in [(link, &mut links), (row.version.clone(), &mut versions)] {
                if !text.is_empty() && !known.contains(&text) {
                    known.push(text);
                }
            }
        }
        [links, versions]
    }

    /// The places whose values begin with these, each once, in order of their first run.
    pub(super) fn places(&self, begin: &[&str]) -> Vec<Vec<String>> {
        let mut places: Vec<Vec<String>> = Vec::new();
        for row in &self.rows {
            let begins = row.place.iter().zip(begin).all(|(value, wanted)| value == wanted);
            if begins && !places.contains(&row.place) {
                places.push(row.place.clone());
            }
        }
        places
    }

    fn columns(&self) -> Vec<String> {
        let own = ["link", "version", "round", "seconds", "limit", "host"];
        let parts = Part::ALL.iter().map(|part| format!("{}, s", part.name()));
        let first = self.dimensions.iter().chain(&own).map(ToString::to_string);
        first.chain(parts).chain(["evidence".to_owned()]).collect()
    }

    fn row(&self, record: &csv::StringRecord) -> Result<Row> {
        let count = self.dimensions.len();
        let field = |at: usize| {
            record.get(at).ok_or_else(|| Error::from("a line of the CSV file has too few fields"))
        };
        let parts = (0..Part::ALL.len()).map(|part| Ok(field(count + OWN + part)?.parse()?));
        Ok(Row {
            place: record.iter().take(count).map(ToOwned::to_owned).collect(),
            link: field(count)?.to_owned(),
            version: field(count + 1)?.to_owned(),
            round: field(count + 2)?.parse()?,
            seconds: field(count + 3)?.parse()?,
            limit: field(count + 4)?.to_owned(),
            host: field(count + 5)?.to_owned(),
            parts: parts.collect::<Result<_>>()?,
            evidence: field(count + OWN + Part::ALL.len())?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_read_as_they_were_written_and_replace_those_of_their_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = || Rows::open(folder.path(), "runs", &["system", "query"]).expect("readable");
        let row = |query: &str, round, seconds| Row {
            place: vec!["a, \"b\"".into(), query.into()],
            link: "1 Gbit/s".into(),
            version: String::new(),
            round,
            seconds,
            limit: "CPU-limited".into(),
            host: "node1".into(),
            evidence: "Limited.\nTwice.".into(),
            parts: (0..Part::ALL.len()).map(|part| part as f64).collect(),
        };
        let mut rows = open();
        rows.add(vec![row("1", 1, 1.5), row("1", 2, 0.5), row("1", 3, 9.0)]).expect("saved");
        rows.add(vec![row("2", 1, 4.0)]).expect("saved");
        rows.add(vec![row("2", 1, 5.0)]).expect("saved");
        assert_eq!(open().rows, rows.rows);
        assert_eq!(open().rows.len(), 4);
        assert_eq!(rows.median(&row("1", 1, 0.0).place).map(|row| row.seconds), Some(1.5));
        assert_eq!(rows.places(&["a, \"b\""]).len(), 2);
    }
}
