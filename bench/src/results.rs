//! The results of all runs: saved as CSV, summarised as medians.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) use lightship_plot::Summary;

use crate::{Error, Result};

/// A quantity that every run measures.
#[derive(Debug, PartialEq)]
pub(crate) struct Figure {
    /// Name with unit.
    pub(crate) name: &'static str,
    /// Digits after the point.
    pub(crate) digits: usize,
    /// Whether the table shows minimum and maximum beside the median.
    pub(crate) range: bool,
}

/// Where a comparison ran.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Case {
    /// A value for each dimension of the benchmark: a link, a data set.
    pub(crate) values: Vec<String>,
    /// Rows as a multiple of scale 1. Figures of different scales can't be compared.
    pub(crate) scale: f64,
    /// What else affects the figures, such as the measured speed of the link.
    pub(crate) note: String,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.values.iter().try_for_each(|value| write!(f, "{value} "))
    }
}

/// One run of one contender.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Run {
    pub(crate) place: Case,
    pub(crate) contender: String,
    /// From 1.
    pub(crate) round: u32,
    /// One value per figure.
    pub(crate) values: Vec<f64>,
}

/// All runs of a benchmark, of this invocation and of earlier ones.
#[derive(Debug)]
pub(crate) struct Results {
    path: PathBuf,
    /// The dimensions in which the places of this benchmark differ.
    pub(crate) dimensions: &'static [&'static str],
    /// The first figure is the one that is compared.
    pub(crate) figures: &'static [Figure],
    runs: Vec<Run>,
}

impl Results {
    /// Reads `folder/name.csv`. A file that is missing or has different columns counts as empty.
    ///
    /// # Errors
    /// When the file exists and can't be read.
    pub(crate) fn open(
        folder: &Path,
        name: &str,
        dimensions: &'static [&'static str],
        figures: &'static [Figure],
    ) -> Result<Self> {
        let mut results =
            Self { path: folder.join(format!("{name}.csv")), dimensions, figures, runs: Vec::new() };
        if results.path.exists() {
            let mut reader = csv::Reader::from_path(&results.path)?;
            if reader.headers()?.iter().eq(results.columns()) {
                for record in reader.records() {
                    results.runs.push(results.run(&record?)?);
                }
            }
        }
        Ok(results)
    }

    /// Adds the runs of one place and saves everything. They replace earlier runs of the same
    /// contenders there, and all runs there at another scale.
    pub(crate) fn add(&mut self, runs: Vec<Run>) -> Result<()> {
        let Some(place) = runs.first().map(|run| run.place.clone()) else { return Ok(()) };
        let key = |run: &Run| (run.place.values.clone(), run.contender.clone());
        let order = distinct(self.runs.iter().chain(&runs).map(key));
        let again = |run: &Run| runs.iter().any(|new| new.contender == run.contender);
        self.runs.retain(|run| {
            run.place.values != place.values || (run.place.scale == place.scale && !again(run))
        });
        self.runs.extend(runs);
        // A contender that ran again keeps its position.
        self.runs.sort_by_key(|run| order.iter().position(|known| *known == key(run)));
        self.save()
    }

    /// The places, each once, in order of their first run.
    pub(crate) fn places(&self) -> Vec<&[String]> {
        distinct(self.runs.iter().map(|run| run.place.values.as_slice()))
    }

    /// Values of the first two dimensions, each pair once.
    pub(crate) fn courses(&self) -> Vec<[String; 2]> {
        let first = self.runs.iter().filter_map(|run| run.place.values.first_chunk::<2>());
        distinct(first).into_iter().cloned().collect()
    }

    /// Values of a dimension, each once.
    pub(crate) fn values(&self, dimension: usize) -> Vec<&str> {
        distinct(self.runs.iter().filter_map(|run| Some(run.place.values.get(dimension)?.as_str())))
    }

    /// Contenders at a place, each once.
    pub(crate) fn contenders<S: AsRef<str>>(&self, place: &[S]) -> Vec<&str> {
        distinct(self.at(place).map(|run| run.contender.as_str()))
    }

    /// What affects the figures of a place: its scale, then its notes.
    pub(crate) fn notes<S: AsRef<str>>(&self, place: &[S]) -> Vec<String> {
        let scales = distinct(self.at(place).map(|run| format!("scale {}", run.place.scale)));
        let notes = self.at(place).map(|run| run.place.note.clone()).filter(|note| !note.is_empty());
        let notes = distinct(notes);
        scales.into_iter().filter(|scale| scale != "scale 0").chain(notes).collect()
    }

    /// How often a contender ran.
    pub(crate) fn rounds<S: AsRef<str>>(&self, place: &[S], contender: &str) -> usize {
        self.at(place).filter(|run| run.contender == contender).count()
    }

    /// A figure of a contender at a place; NaN if it has not run there.
    pub(crate) fn summary<S: AsRef<str>>(&self, place: &[S], contender: &str, figure: usize) -> Summary {
        let runs = self.at(place).filter(|run| run.contender == contender);
        Summary::of(runs.filter_map(|run| run.values.get(figure).copied()))
    }

    /// A figure of a contender, summed in each round over all places whose values begin with these.
    pub(crate) fn total<S: AsRef<str>>(&self, begin: &[S], contender: &str, figure: usize) -> Summary {
        let begins = |run: &&Run| {
            run.contender == contender
                && run.place.values.iter().zip(begin).all(|(value, wanted)| value == wanted.as_ref())
        };
        let mut rounds = BTreeMap::<u32, f64>::new();
        for run in self.runs.iter().filter(begins) {
            *rounds.entry(run.round).or_default() += run.values.get(figure).copied().unwrap_or(f64::NAN);
        }
        Summary::of(rounds.into_values())
    }

    /// A figure, summed over all runs, and their number.
    pub(crate) fn sum(&self, figure: usize) -> (f64, usize) {
        let sum = self.runs.iter().filter_map(|run| run.values.get(figure)).sum();
        (sum, self.runs.len())
    }

    /// The median of the first figure.
    pub(crate) fn median<S: AsRef<str>>(&self, place: &[S], contender: &str) -> f64 {
        self.summary(place, contender, 0).median
    }

    fn at<S: AsRef<str>>(&self, place: &[S]) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| {
            run.place.values.iter().map(String::as_str).eq(place.iter().map(AsRef::as_ref))
        })
    }

    fn columns(&self) -> impl Iterator<Item = &'static str> {
        let own = ["scale", "note", "contender", "round"];
        self.dimensions.iter().copied().chain(own).chain(self.figures.iter().map(|figure| figure.name))
    }

    fn run(&self, record: &csv::StringRecord) -> Result<Run> {
        let (values, rest) = (self.dimensions.len(), record.len().saturating_sub(self.figures.len()));
        let field = |at: usize| {
            record.get(at).ok_or_else(|| Error::from("a line of the CSV file has too few fields"))
        };
        let place = Case {
            values: record.iter().take(values).map(ToOwned::to_owned).collect(),
            scale: field(values)?.parse()?,
            note: field(values + 1)?.to_owned(),
        };
        let figures = record.iter().skip(rest).map(str::parse).collect::<Result<_, _>>()?;
        let (contender, round) = (field(values + 2)?.to_owned(), field(values + 3)?.parse()?);
        Ok(Run { place, contender, round, values: figures })
    }

    fn save(&self) -> Result<()> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(self.columns())?;
        for run in &self.runs {
            let own = [run.place.scale.to_string(), run.place.note.clone(), run.contender.clone()];
            let figures = run.values.iter().map(ToString::to_string);
            let round = run.round.to_string();
            writer.write_record(run.place.values.iter().cloned().chain(own).chain([round]).chain(figures))?;
        }
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        Ok(fs::write(&self.path, writer.into_inner().map_err(|e| e.into_error())?)?)
    }
}

fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    values.for_each(|value| {
        if !seen.contains(&value) {
            seen.push(value);
        }
    });
    seen
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const FIGURES: &[Figure] = &[
        Figure { name: "seconds", digits: 2, range: true },
        Figure { name: "wire MB", digits: 0, range: false },
    ];

    /// Runs over one link: the seconds of each contender by round.
    pub(crate) fn runs(link: &str, scale: f64, seconds: &[(&str, &[f64])]) -> Vec<Run> {
        let place = Case { values: vec![link.into()], scale, note: format!("{link}, \"measured\"") };
        let of = |&(contender, seconds): &(&str, &[f64])| {
            let (place, contender) = (place.clone(), contender.to_owned());
            let rounds = (1..).zip(seconds.to_vec());
            rounds.map(move |(round, seconds)| Run {
                place: place.clone(),
                contender: contender.clone(),
                round,
                values: vec![seconds, seconds * 10.0],
            })
        };
        seconds.iter().flat_map(of).collect()
    }

    pub(crate) fn open(folder: &Path) -> Results {
        Results::open(folder, "trial", &["link"], FIGURES).expect("readable")
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut results = open(folder.path());
        results.add(runs("lan", 1.0, &[("a, b", &[1.5, 2.5]), ("c", &[0.25])])).expect("saved");
        let again = open(folder.path());
        assert_eq!(again.runs, results.runs);
        assert_eq!(again.notes(&["lan"]), ["scale 1", "lan, \"measured\""]);
        assert_eq!(again.summary(&["lan"], "a, b", 1).median, 20.0);
        let other = Results::open(folder.path(), "trial", &["data"], FIGURES).expect("readable");
        assert!(other.runs.is_empty(), "a file with different columns counts as empty");
    }

    #[test]
    fn a_total_is_summed_by_round() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut results = open(folder.path());
        results.add(runs("lan", 1.0, &[("a", &[1.0, 2.0, 9.0]), ("b", &[5.0])])).expect("saved");
        results.add(runs("wan", 1.0, &[("a", &[10.0, 20.0, 30.0])])).expect("saved");
        assert_eq!(results.total(&["lan"], "a", 0).median, 2.0);
        let all = results.total::<&str>(&[], "a", 0);
        assert_eq!((all.min, all.median, all.max), (11.0, 22.0, 39.0));
    }

    #[test]
    fn new_runs_replace_only_those_of_their_contenders_and_of_other_scales() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut results = open(folder.path());
        results.add(runs("lan", 1.0, &[("a", &[1.0]), ("b", &[2.0])])).expect("saved");
        results.add(runs("wan", 1.0, &[("a", &[9.0])])).expect("saved");
        results.add(runs("lan", 1.0, &[("c", &[4.0]), ("a", &[3.0, 5.0])])).expect("saved");
        assert_eq!(results.places(), [["lan"], ["wan"]]);
        assert_eq!(results.contenders(&["lan"]), ["a", "b", "c"]);
        assert_eq!(results.median(&["lan"], "a"), 4.0);
        assert_eq!(results.rounds(&["lan"], "a"), 2);
        assert_eq!(results.median(&["wan"], "a"), 9.0);
        results.add(runs("lan", 0.1, &[("a", &[0.1])])).expect("saved");
        assert_eq!(results.contenders(&["lan"]), ["a"], "scales don't mix");
    }
}
