//! What a recorder tells of itself and of queries.

use lightship_usage::{Footprint, Limit, Part, Subject, Verdict};
use serde::Serialize;

use super::Recorder;
use super::hosts::HostOverview;
use super::queries::{Progress, QueryCounts, QueryState, Record};
use super::state::State;
use crate::history::HistoryStatus;

/// The most tasks in a report.
const TASKS_MAX: usize = 2000;

/// Something that happened to a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotableEvent {
    /// When, in nanoseconds of the collector's clock.
    pub at_ns: u64,
    /// The host.
    pub host: String,
    /// What.
    pub text: String,
}

/// Datagrams that belong to no host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CollectorOverview {
    /// Not authentic.
    pub forged: u64,
    /// Not in the format.
    pub malformed: u64,
    /// Of agents that have not shown that they receive answers.
    pub unconfirmed: u64,
    /// Of an earlier run than the last one.
    pub old_runs: u64,
    /// Of hosts above the limit.
    pub refused: u64,
}

/// What the recorder holds, and what it had no room for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecorderCounts {
    /// Bytes of samples.
    pub sample_bytes: usize,
    /// The most bytes of samples.
    pub sample_bytes_max: usize,
    /// Queries that run.
    pub queries_running: usize,
    /// Queries that wait for their assessment.
    pub queries_waiting: usize,
    /// Queries that are kept.
    pub queries_kept: usize,
    /// The most queries that are kept.
    pub queries_max: usize,
    /// Samples, and beginnings and ends of queries, that arrived while there was no room for them.
    pub arrivals_dropped: u64,
    /// Samples of hosts above the limit, and those that were too large.
    pub samples_refused: u64,
}

/// What there is to see at first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overview {
    /// The time of the overview, in nanoseconds of the collector's clock.
    pub now_ns: u64,
    /// What is added to a time to get nanoseconds since 1970.
    pub unix_offset_ns: i64,
    /// The host that coordinates queries, if it is sampled.
    pub own_host: Option<String>,
    /// The hosts, in the order of their names.
    pub hosts: Vec<HostOverview>,
    /// Datagrams that belong to no host.
    pub collector: CollectorOverview,
    /// What became of the queries.
    pub queries: QueryCounts,
    /// What the recorder holds.
    pub recorder: RecorderCounts,
    /// The samples on disk; `None` if they are not kept there.
    pub history: Option<HistoryStatus>,
    /// What happened to hosts, the latest last.
    pub events: Vec<NotableEvent>,
}

/// A part of a query's run time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PartFraction {
    /// The part.
    pub part: Part,
    /// Its fraction of the run time.
    pub fraction: f64,
}

/// A query in a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueryRow {
    /// Its id.
    pub id: String,
    /// Its label.
    pub label: String,
    /// When it began, in nanoseconds of the collector's clock. Below 0 if that was before the clock began, which is when
    /// the host was started.
    pub began_ns: i64,
    /// When it ended.
    pub ended_ns: Option<i64>,
    /// How far it is.
    pub state: QueryState,
    /// Why it was not assessed.
    pub reason: Option<String>,
    /// The error that ended it.
    pub error: Option<String>,
    /// What limited it.
    pub limit: Option<Limit>,
    /// The name of the limit.
    pub limit_name: Option<&'static str>,
    /// The verdict in a sentence.
    pub sentence: Option<String>,
    /// The hosts that worked for it.
    pub hosts: Vec<String>,
    /// The parts of its run time that are above 0, in their order.
    pub parts: Vec<PartFraction>,
}

/// When a task of a query was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskReport {
    /// The host.
    pub host: String,
    /// The stage of the query.
    pub stage: u32,
    /// The task of the stage.
    pub task: u32,
    /// The first sample with it, in nanoseconds of the collector's clock.
    pub first_ns: u64,
    /// The last one.
    pub last_ns: u64,
}

/// All that is known of a query.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueryReport {
    /// What the list says of it.
    #[serde(flatten)]
    pub row: QueryRow,
    /// What limited it, and why it is thought so.
    pub verdict: Option<Verdict>,
    /// What it used. `None` if it was not assessed, or if the footprint was dropped to make room.
    pub footprint: Option<Footprint>,
    /// Whether the footprint was dropped to make room.
    pub is_footprint_dropped: bool,
    /// Hosts whose samples after the query's end did not come in time.
    pub late_hosts: Vec<String>,
    /// Its tasks, as far as they are in samples.
    pub tasks: Vec<TaskReport>,
}

impl Recorder {
    /// The hosts as of `now_ns`, and what was counted.
    pub fn overview(&self, now_ns: u64) -> Overview {
        self.state().overview(now_ns)
    }

    /// The last queries, the latest first.
    pub fn queries(&self, limit: usize) -> Vec<QueryRow> {
        self.state().queries.records.values().rev().take(limit).map(row).collect()
    }

    /// All that is known of the query with an id; `None` if there is none.
    pub fn query(&self, id: &str) -> Option<QueryReport> {
        let state = self.state();
        let record = state.queries.get(id)?;
        let assessment = match &record.progress {
            Progress::Assessed(assessment) => Some(assessment),
            _ => None,
        };
        let footprint = assessment.and_then(|assessment| assessment.footprint.as_deref());
        Some(QueryReport {
            row: row(record),
            verdict: assessment.map(|assessment| assessment.verdict.clone()),
            footprint: footprint.cloned(),
            is_footprint_dropped: assessment.is_some() && footprint.is_none(),
            late_hosts: assessment.map(|assessment| assessment.late_hosts.clone()).unwrap_or_default(),
            tasks: state.tasks_of(&record.id, TASKS_MAX),
        })
    }
}

impl State {
    pub(super) fn overview(&self, now_ns: u64) -> Overview {
        let counts = self.collector;
        Overview {
            now_ns,
            unix_offset_ns: self.options.unix_offset_ns,
            own_host: self.options.own_host.clone(),
            hosts: self.host_overviews(now_ns),
            collector: CollectorOverview {
                forged: counts.forged,
                malformed: counts.malformed,
                unconfirmed: counts.unconfirmed,
                old_runs: counts.old_runs,
                refused: counts.refused,
            },
            queries: self.queries.counts.clone(),
            recorder: RecorderCounts {
                sample_bytes: self.timeline.bytes(),
                sample_bytes_max: self.options.samples.bytes_max,
                queries_running: self.queries.running(),
                queries_waiting: self.queries.waiting(),
                queries_kept: self.queries.records.len(),
                queries_max: self.options.queries_max,
                arrivals_dropped: self.arrivals_dropped,
                samples_refused: self.samples_refused,
            },
            history: self.history.clone(),
            events: self.events.iter().cloned().collect(),
        }
    }

    /// The tasks of a query, as far as they are in samples.
    pub(super) fn tasks_of(&self, id: &str, tasks_max: usize) -> Vec<TaskReport> {
        let tasks = self.timeline.hosts().flat_map(|host| {
            self.timeline.tasks_of(host, id).filter_map(move |subject| match subject {
                Subject::Task { stage, task, .. } => {
                    let (first_ns, last_ns) = self.timeline.subject_span(host, subject)?;
                    Some(TaskReport { host: host.to_owned(), stage: *stage, task: *task, first_ns, last_ns })
                }
                _ => None,
            })
        });
        tasks.take(tasks_max).collect()
    }
}

pub(super) fn row(record: &Record) -> QueryRow {
    let mut row = QueryRow {
        id: record.id.clone(),
        label: record.label.clone(),
        began_ns: record.began_ns,
        ended_ns: record.ended_ns,
        state: record.state(),
        reason: None,
        error: record.error.clone(),
        limit: None,
        limit_name: None,
        sentence: None,
        hosts: Vec::new(),
        parts: Vec::new(),
    };
    match &record.progress {
        Progress::Running | Progress::Waiting => {}
        Progress::NotAssessed(reason) => row.reason = Some(reason.clone()),
        Progress::Assessed(assessment) => {
            let run_ns = record.run_ns().max(1) as f64;
            let parts = assessment.parts.iter().filter(|time| time.ns > 0);
            let part = |time: &lightship_usage::PartTime| PartFraction {
                part: time.part,
                fraction: time.ns as f64 / run_ns,
            };
            row.limit = Some(assessment.verdict.limit);
            row.limit_name = Some(assessment.verdict.limit.name());
            row.sentence = Some(assessment.verdict.sentence.clone());
            row.hosts.clone_from(&assessment.hosts);
            row.parts = parts.map(part).collect();
        }
    }
    row
}
