//! Run times of queries with the same text, by the number of hosts that worked for them.

use std::collections::BTreeMap;

use lightship_usage::Part;
use serde::Serialize;

use super::Recorder;
use super::queries::Progress;

/// The most texts of a report: those that ran last.
const TEXTS_MAX: usize = 12;

/// The runs of a query on a number of hosts. All times are means.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScalingRuns {
    /// The number of hosts.
    pub hosts: usize,
    /// Runs.
    pub runs: u64,
    /// Their run time, in seconds.
    pub seconds: f64,
    /// The shortest and the longest one, in seconds.
    pub range_seconds: (f64, f64),
    /// The parts that are above 0, in seconds. They add up to the run time.
    pub parts: Vec<(Part, f64)>,
}

/// A query that ran on several numbers of hosts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scaling {
    /// Its text.
    pub label: String,
    /// Its runs, those on the fewest hosts first.
    pub sizes: Vec<ScalingRuns>,
}

#[derive(Default)]
struct Sum {
    runs: u64,
    seconds: f64,
    range_seconds: Option<(f64, f64)>,
    parts: BTreeMap<Part, f64>,
}

impl Recorder {
    /// Assessed queries of those that are kept, of which each text ran on several numbers of hosts; the one that ran last
    /// comes first.
    pub fn scaling(&self) -> Vec<Scaling> {
        let state = self.state();
        let mut texts: BTreeMap<&str, (u64, BTreeMap<usize, Sum>)> = BTreeMap::new();
        for (number, record) in &state.queries.records {
            let Progress::Assessed(assessment) = &record.progress else { continue };
            if record.error.is_some() || assessment.hosts.is_empty() {
                continue;
            }
            let (last, sizes) = texts.entry(&record.label).or_default();
            *last = *number;
            let sum = sizes.entry(assessment.hosts.len()).or_default();
            let seconds = record.run_ns() as f64 / 1e9;
            sum.runs += 1;
            sum.seconds += seconds;
            let (least, most) = sum.range_seconds.unwrap_or((seconds, seconds));
            sum.range_seconds = Some((least.min(seconds), most.max(seconds)));
            for time in assessment.parts.iter().filter(|time| time.ns > 0) {
                *sum.parts.entry(time.part).or_default() += time.ns as f64 / 1e9;
            }
        }
        let mut texts: Vec<_> = texts.into_iter().filter(|(_, (_, sizes))| sizes.len() > 1).collect();
        texts.sort_by_key(|(_, (last, _))| std::cmp::Reverse(*last));
        let runs = |(hosts, sum): (usize, Sum)| {
            let mean = |seconds: f64| seconds / sum.runs.max(1) as f64;
            ScalingRuns {
                hosts,
                runs: sum.runs,
                seconds: mean(sum.seconds),
                range_seconds: sum.range_seconds.unwrap_or_default(),
                parts: sum.parts.iter().map(|(part, seconds)| (*part, mean(*seconds))).collect(),
            }
        };
        let scaling = |(label, (_, sizes)): (&str, (u64, BTreeMap<usize, Sum>))| Scaling {
            label: label.to_owned(),
            sizes: sizes.into_iter().map(runs).collect(),
        };
        texts.into_iter().take(TEXTS_MAX).map(scaling).collect()
    }
}
