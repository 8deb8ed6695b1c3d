//! The queries of a recorder: those that run, those that wait for the samples after their end, and the assessed ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lightship_usage::{Footprint, Known, Limit, Part, PartTime, Phase, Verdict};
use serde::Serialize;

use super::options::{QueryEnd, RecorderOptions};

/// The most bytes of an id; a longer one can't be that of a task.
pub(super) const ID_BYTES_MAX: usize = 256;
/// A query that waits for its assessment for so many times the wait for samples is not assessed.
const WAITS_MAX: u64 = 12;
/// What a record takes in memory beside its texts and footprint, about.
const RECORD_BYTES: usize = 1024;

/// How far a query is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryState {
    /// It runs.
    Running,
    /// It ended, and the samples after its end have not come yet.
    Waiting,
    /// It was assessed.
    Assessed,
    /// It was not assessed.
    NotAssessed,
}

/// How many queries met which fate.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct QueryCounts {
    /// An earlier run of the recorder has assessed them. The other counts do not have them, unless they are forgotten.
    pub restored: u64,
    /// They began.
    pub began: u64,
    /// They ended.
    pub ended: u64,
    /// They ended with an error.
    pub failed: u64,
    /// Seconds that they ran, together.
    pub seconds: f64,
    /// They were assessed.
    pub assessed: u64,
    /// They were assessed without samples after their end, because those did not come in time.
    pub assessed_late: u64,
    /// They were not assessed, because there were too many at a time; the shortest ones are left out.
    pub not_assessed: u64,
    /// Seconds that those ran, together.
    pub not_assessed_seconds: f64,
    /// They were forgotten to make room for later ones.
    pub forgotten: u64,
    /// Of those that are kept, the footprints that were dropped to make room for later ones.
    pub footprints_dropped: u64,
    /// Ends of queries that were not known, or not any more.
    pub unknown_ends: u64,
    /// Assessed queries by what limited them.
    pub by_limit: BTreeMap<Limit, u64>,
    /// Seconds of assessed queries by part.
    pub seconds_by_part: BTreeMap<Part, f64>,
}

/// What was found out about a query.
#[derive(Debug)]
pub(super) struct Assessment {
    /// How many queries were assessed until it was; 0 if an earlier recorder has assessed it.
    pub(super) order: u64,
    pub(super) verdict: Verdict,
    pub(super) parts: Vec<PartTime>,
    pub(super) hosts: Vec<String>,
    /// Hosts whose samples after the query's end did not come in time.
    pub(super) late_hosts: Vec<String>,
    /// `None` if it was dropped to make room.
    pub(super) footprint: Option<Box<Footprint>>,
    pub(super) footprint_bytes: usize,
}

#[derive(Debug)]
pub(super) enum Progress {
    Running,
    Waiting,
    Assessed(Box<Assessment>),
    NotAssessed(String),
}

#[derive(Debug)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) label: String,
    /// Below 0 if it began before the clock did, and was restored.
    pub(super) began_ns: i64,
    pub(super) ended_ns: Option<i64>,
    pub(super) error: Option<String>,
    pub(super) known: Known,
    pub(super) progress: Progress,
}

impl Record {
    pub(super) fn state(&self) -> QueryState {
        match self.progress {
            Progress::Running => QueryState::Running,
            Progress::Waiting => QueryState::Waiting,
            Progress::Assessed(_) => QueryState::Assessed,
            Progress::NotAssessed(_) => QueryState::NotAssessed,
        }
    }

    pub(super) fn run_ns(&self) -> u64 {
        let run_ns = self.ended_ns.map_or(0, |ended_ns| ended_ns.saturating_sub(self.began_ns));
        u64::try_from(run_ns).unwrap_or(0)
    }

    /// Whether it ran at some moment from `from` to `to`.
    pub(super) fn overlaps(&self, from: u64, to: u64) -> bool {
        let (from, to) = (signed(from), signed(to));
        self.began_ns < to && self.ended_ns.is_none_or(|ended_ns| ended_ns > from)
    }

    /// When it ran, as far as the clock knows.
    pub(super) fn span(&self) -> (u64, Option<u64>) {
        let unsigned = |ns: i64| u64::try_from(ns).unwrap_or(0);
        (unsigned(self.began_ns), self.ended_ns.map(unsigned))
    }

    fn text_bytes(&self) -> usize {
        self.id.len() + self.label.len() + self.error.as_ref().map_or(0, String::len)
    }

    fn footprint_bytes(&self) -> usize {
        match &self.progress {
            Progress::Assessed(assessment) if assessment.footprint.is_some() => assessment.footprint_bytes,
            _ => 0,
        }
    }
}

/// The queries, by a number that grows with each.
#[derive(Debug, Default)]
pub(super) struct Queries {
    pub(super) records: BTreeMap<u64, Record>,
    pub(super) counts: QueryCounts,
    /// The query of each id.
    by_id: BTreeMap<String, u64>,
    /// Those that wait for their assessment, by run time. Of equal ones, the oldest come last, and are given up last.
    waiting: BTreeSet<(u64, Reverse<u64>)>,
    /// Those that are being assessed, and have not been forgotten.
    in_work: BTreeSet<u64>,
    next: u64,
    text_bytes: usize,
    footprint_bytes: usize,
}

impl Queries {
    pub(super) fn get(&self, id: &str) -> Option<&Record> {
        self.records.get(self.by_id.get(id)?)
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    pub(super) fn running(&self) -> usize {
        self.records.values().filter(|record| record.ended_ns.is_none()).count()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len() + self.in_work.len()
    }

    pub(super) fn all_waiting(&self) -> impl Iterator<Item = &Record> {
        self.waiting.iter().filter_map(|(_, Reverse(number))| self.records.get(number))
    }

    pub(super) fn began(&mut self, options: &RecorderOptions, id: String, label: String, at_ns: u64) {
        self.counts.began += 1;
        if id.len() > ID_BYTES_MAX {
            self.counts.forgotten += 1;
            return;
        }
        let record = Record {
            label,
            began_ns: signed(at_ns),
            ended_ns: None,
            error: None,
            known: Known::default(),
            progress: Progress::Running,
            id,
        };
        if let Some(before) = self.by_id.get(&record.id) {
            // The query before it with this id could not be asked for any more.
            self.forget(*before);
        }
        let number = self.next;
        self.next += 1;
        self.text_bytes += record.text_bytes();
        self.by_id.insert(record.id.clone(), number);
        self.records.insert(number, record);
        self.make_room(options);
    }

    pub(super) fn ended(&mut self, options: &RecorderOptions, id: &str, at_ns: u64, end: QueryEnd) {
        let number = self.by_id.get(id).copied();
        let record = number.and_then(|number| Some((number, self.records.get_mut(&number)?)));
        let Some((number, record)) = record.filter(|(_, record)| record.ended_ns.is_none()) else {
            self.counts.unknown_ends += 1;
            return;
        };
        self.text_bytes -= record.text_bytes();
        record.ended_ns = Some(signed(at_ns).max(record.began_ns));
        record.error = end.error;
        record.known = end.known;
        record.progress = Progress::Waiting;
        self.text_bytes += record.text_bytes();
        self.counts.ended += 1;
        self.counts.failed += u64::from(record.error.is_some());
        self.counts.seconds += record.run_ns() as f64 / 1e9;
        self.waiting.insert((record.run_ns(), Reverse(number)));
        while self.waiting.len() > options.waiting_max {
            let Some((_, Reverse(number))) = self.waiting.pop_first() else { break };
            self.give_up(number, "too many queries ended at the same time, and this one was short");
        }
        self.make_room(options);
    }

    /// Gives up those that have waited for too long.
    pub(super) fn expire(&mut self, options: &RecorderOptions, now_ns: u64) {
        let limit_ns = options.wait_ns.saturating_mul(WAITS_MAX);
        let is_old = |number: &u64| {
            let ended_ns = self.records.get(number).and_then(|record| record.span().1);
            ended_ns.is_none_or(|ended_ns| now_ns.saturating_sub(ended_ns) > limit_ns)
        };
        let old: Vec<(u64, Reverse<u64>)> =
            self.waiting.iter().filter(|(_, Reverse(number))| is_old(number)).copied().collect();
        for (run_ns, Reverse(number)) in old {
            self.waiting.remove(&(run_ns, Reverse(number)));
            self.give_up(number, "too many longer queries were assessed first");
        }
    }

    /// Takes the longest query that waits and is ready. It must be given to [`Queries::assessed`] or
    /// [`Queries::not_assessable`].
    pub(super) fn next_waiting(&mut self, is_ready: impl Fn(&Record) -> bool) -> Option<u64> {
        let ready =
            |(_, Reverse(number)): &&(u64, Reverse<u64>)| self.records.get(number).is_some_and(&is_ready);
        let key = *self.waiting.iter().rev().find(ready)?;
        self.waiting.remove(&key);
        self.in_work.insert(key.1.0);
        Some(key.1.0)
    }

    /// A query that was taken could not be assessed.
    pub(super) fn not_assessable(&mut self, number: u64, reason: &str) {
        if self.in_work.remove(&number) {
            self.give_up(number, reason);
        }
    }

    fn give_up(&mut self, number: u64, reason: &str) {
        let Some(record) = self.records.get_mut(&number) else { return };
        record.progress = Progress::NotAssessed(reason.to_owned());
        self.counts.not_assessed += 1;
        self.counts.not_assessed_seconds += record.run_ns() as f64 / 1e9;
    }

    /// Keeps what was found out about a query that was taken, unless it has been forgotten.
    pub(super) fn assessed(
        &mut self,
        options: &RecorderOptions,
        number: u64,
        footprint: Footprint,
        late_hosts: Vec<String>,
    ) {
        if !self.in_work.remove(&number) {
            return;
        }
        let Some(record) = self.records.get_mut(&number) else { return };
        let verdict = Verdict::new(&footprint);
        self.counts.assessed += 1;
        self.counts.assessed_late += u64::from(!late_hosts.is_empty());
        *self.counts.by_limit.entry(verdict.limit).or_default() += 1;
        for time in &footprint.division.parts {
            *self.counts.seconds_by_part.entry(time.part).or_default() += time.ns as f64 / 1e9;
        }
        let footprint_bytes = bytes_of(&footprint);
        record.progress = Progress::Assessed(Box::new(Assessment {
            order: self.counts.assessed,
            verdict,
            parts: footprint.division.parts.clone(),
            hosts: footprint.hosts.iter().map(|host| host.host.clone()).collect(),
            late_hosts,
            footprint: Some(Box::new(footprint)),
            footprint_bytes,
        }));
        self.footprint_bytes += footprint_bytes;
        self.drop_footprints(options);
    }

    /// Takes a query of an earlier recorder.
    pub(super) fn restore(&mut self, options: &RecorderOptions, record: Record) {
        if self.by_id.contains_key(&record.id) {
            return;
        }
        self.counts.restored += 1;
        self.text_bytes += record.text_bytes();
        self.footprint_bytes += record.footprint_bytes();
        self.by_id.insert(record.id.clone(), self.next);
        self.records.insert(self.next, record);
        self.next += 1;
        self.drop_footprints(options);
        self.make_room(options);
    }

    /// Drops the oldest footprints, until the others have room.
    fn drop_footprints(&mut self, options: &RecorderOptions) {
        if self.footprint_bytes <= options.footprints_bytes_max {
            return;
        }
        for record in self.records.values_mut() {
            if self.footprint_bytes <= options.footprints_bytes_max {
                break;
            }
            let bytes = record.footprint_bytes();
            if let Progress::Assessed(assessment) = &mut record.progress
                && assessment.footprint.take().is_some()
            {
                self.footprint_bytes -= bytes;
                self.counts.footprints_dropped += 1;
            }
        }
    }

    /// Drops queries, first those that are the cheapest to lose; of equal ones, the oldest.
    fn make_room(&mut self, options: &RecorderOptions) {
        while self.records.len() > options.queries_max.max(1)
            || (self.text_bytes > options.texts_bytes_max && self.records.len() > 1)
        {
            let worth = |record: &Record| match record.progress {
                Progress::NotAssessed(_) => 0_u8,
                Progress::Assessed(_) => 1,
                Progress::Waiting => 2,
                Progress::Running => 3,
            };
            let cheapest = self.records.iter().min_by_key(|(number, record)| (worth(record), **number));
            let Some((&number, _)) = cheapest else { return };
            self.forget(number);
        }
    }

    fn forget(&mut self, number: u64) {
        let Some(record) = self.records.remove(&number) else { return };
        self.text_bytes -= record.text_bytes();
        self.footprint_bytes -= record.footprint_bytes();
        self.counts.forgotten += 1;
        let waited = self.waiting.remove(&(record.run_ns(), Reverse(number)));
        if waited || self.in_work.remove(&number) {
            self.counts.not_assessed += 1;
            self.counts.not_assessed_seconds += record.run_ns() as f64 / 1e9;
        }
        self.by_id.remove(&record.id);
    }
}

/// A time of the clock that can be compared with times before it began.
fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

/// What a footprint takes in memory, about.
pub(super) fn bytes_of(footprint: &Footprint) -> usize {
    let of_host = |host: &lightship_usage::HostFootprint| {
        let text: usize = host.unavailable.values().map(String::len).sum();
        let entries = host.figures.len() + host.host_figures.len() + host.unavailable.len();
        1024 + entries * 192 + text + host.missing.len() * 96
    };
    let hosts: usize = footprint.hosts.iter().map(of_host).sum();
    RECORD_BYTES + hosts + footprint.division.phases.len() * size_of::<Phase>()
}

/// A text of at most so many bytes.
pub(super) fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = (0..=bytes_max.saturating_sub(3)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", text.get(..end).unwrap_or_default())
}
