//! Assessed queries in a form that outlives the recorder.

use lightship_usage::{Footprint, PartTime, Verdict};
use serde::{Deserialize, Serialize};

use super::queries::{Assessment, ID_BYTES_MAX, Progress, Record, cut};
use super::state::State;
use super::{Recorder, lock};

/// The version of the form.
const VERSION: u32 = 1;
/// The most queries that are given at a time.
const BATCH_MAX: usize = 64;

/// An assessed query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredQuery {
    pub(super) version: u32,
    /// Its id.
    pub id: String,
    /// Its label.
    pub label: String,
    /// When it began, in nanoseconds since 1970.
    pub began_unix_ns: i64,
    /// Its run time, in nanoseconds.
    pub run_ns: u64,
    /// The error that ended it.
    pub error: Option<String>,
    /// What limited it.
    pub verdict: Verdict,
    /// The parts of its run time.
    pub parts: Vec<PartTime>,
    /// The hosts that worked for it.
    pub hosts: Vec<String>,
    /// Hosts whose samples after its end did not come in time.
    pub late_hosts: Vec<String>,
    /// What it used. Its phases begin with the query at 0. `None` if it was dropped to make room.
    pub footprint: Option<Footprint>,
}

impl StoredQuery {
    fn new(record: &Record, assessment: &Assessment, unix_offset_ns: i64) -> Self {
        let footprint = assessment.footprint.as_deref().map(|footprint| {
            let mut footprint = footprint.clone();
            for phase in &mut footprint.division.phases {
                let since = |at: u64| at.saturating_sub(u64::try_from(record.began_ns).unwrap_or(0));
                (phase.began_ns, phase.ended_ns) = (since(phase.began_ns), since(phase.ended_ns));
            }
            footprint
        });
        Self {
            version: VERSION,
            id: record.id.clone(),
            label: record.label.clone(),
            began_unix_ns: record.began_ns.saturating_add(unix_offset_ns),
            run_ns: record.run_ns(),
            error: record.error.clone(),
            verdict: assessment.verdict.clone(),
            parts: assessment.parts.clone(),
            hosts: assessment.hosts.clone(),
            late_hosts: assessment.late_hosts.clone(),
            footprint,
        }
    }

    /// Whether it is of this version, and could be of a recorder.
    pub(crate) fn is_valid(&self) -> bool {
        self.version == VERSION && self.id.len() <= ID_BYTES_MAX && i64::try_from(self.run_ns).is_ok()
    }

    fn into_record(self, text_bytes_max: usize, unix_offset_ns: i64) -> Record {
        let began_ns = self.began_unix_ns.saturating_sub(unix_offset_ns);
        let mut footprint = self.footprint;
        // Those before the clock began stay at 0.
        if let (Some(footprint), Ok(began_ns)) = (&mut footprint, u64::try_from(began_ns)) {
            for phase in &mut footprint.division.phases {
                phase.began_ns = phase.began_ns.saturating_add(began_ns);
                phase.ended_ns = phase.ended_ns.saturating_add(began_ns);
            }
        }
        Record {
            label: cut(&self.label, text_bytes_max),
            began_ns,
            ended_ns: Some(began_ns.saturating_add(i64::try_from(self.run_ns).unwrap_or(i64::MAX))),
            error: self.error.map(|error| cut(&error, text_bytes_max)),
            known: footprint.as_ref().map(|footprint| footprint.known.clone()).unwrap_or_default(),
            progress: Progress::Assessed(Box::new(Assessment {
                order: 0,
                verdict: self.verdict,
                parts: self.parts,
                hosts: self.hosts,
                late_hosts: self.late_hosts,
                footprint_bytes: footprint.as_ref().map_or(0, super::queries::bytes_of),
                footprint: footprint.map(Box::new),
            })),
            id: self.id,
        }
    }
}

impl Recorder {
    /// Takes queries of an earlier recorder, the oldest first, before others begin.
    pub fn restore(&self, queries: Vec<StoredQuery>) {
        let mut state = lock(&self.state);
        let State { options, queries: kept, .. } = &mut *state;
        for query in queries.into_iter().filter(StoredQuery::is_valid) {
            kept.restore(options, query.into_record(options.text_bytes_max, options.unix_offset_ns));
        }
    }

    /// The queries that were assessed after the first `count` ones, some of them at a time, and how many were assessed
    /// up to the last of these. Those that have been forgotten since are missing.
    pub fn assessed_after(&self, count: u64) -> (Vec<StoredQuery>, u64) {
        let state = self.state();
        let mut assessed: Vec<(&Record, &Assessment)> = state
            .queries
            .records
            .values()
            .filter_map(|record| match &record.progress {
                Progress::Assessed(assessment) => Some((record, &**assessment)),
                _ => None,
            })
            .filter(|(_, assessment)| assessment.order > count)
            .collect();
        assessed.sort_by_key(|(_, assessment)| assessment.order);
        assessed.truncate(BATCH_MAX);
        let last = assessed.last().map_or(count, |(_, assessment)| assessment.order);
        let offset_ns = state.options.unix_offset_ns;
        let stored = assessed.into_iter().map(|(record, one)| StoredQuery::new(record, one, offset_ns));
        (stored.collect(), last)
    }
}
