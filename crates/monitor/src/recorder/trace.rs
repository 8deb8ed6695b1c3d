//! Export for trace viewers: the Trace Event Format, which Perfetto and Chromium's `about:tracing` read.
//!
//! Queries are slices of a process `queries`, with the phases of their division inside. Each host is a process with
//! the tasks of queries as slices, and its counters as tracks. Times are microseconds of the collector's clock.

use lightship_usage::Subject;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Recorder;
use super::queries::{Progress, Record};
use super::series::FigureGroup;
use super::state::State;

/// The most slices of a trace.
const SLICES_MAX: usize = 50_000;
/// The most rows of slices in a process.
const LANES_MAX: usize = 256;
/// The most points of a counter track, and of all tracks together, each of which takes about 150 bytes.
const POINTS_MAX: usize = 1000;
const ALL_POINTS_MAX: usize = 100_000;
/// The most characters in the name of a slice.
const NAME_CHARS_MAX: usize = 120;

/// One event of the format.
#[derive(Debug, Serialize)]
struct TraceEvent {
    name: String,
    ph: &'static str,
    pid: usize,
    tid: usize,
    /// Microseconds.
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    args: Map<String, Value>,
}

/// A trace.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Trace {
    trace_events: Vec<TraceEvent>,
    display_time_unit: &'static str,
    other_data: Map<String, Value>,
}

/// Rows of slices that don't overlap.
#[derive(Default)]
struct Lanes(Vec<u64>);

impl Lanes {
    /// The first row that is free at `from`, which is taken until `to`. Slices come in the order of their beginnings.
    fn take(&mut self, from: u64, to: u64) -> Option<usize> {
        if let Some(lane) = self.0.iter().position(|end| *end <= from) {
            self.0[lane] = to;
            return Some(lane);
        }
        (self.0.len() < LANES_MAX).then(|| {
            self.0.push(to);
            self.0.len() - 1
        })
    }
}

struct Writer {
    events: Vec<TraceEvent>,
    slices: usize,
    left_out: usize,
}

impl Writer {
    fn name(&mut self, ph: &'static str, pid: usize, tid: usize, name: &str) {
        let args = Map::from_iter([("name".to_owned(), Value::from(name))]);
        self.events.push(TraceEvent { name: ph.to_owned(), ph: "M", pid, tid, ts: 0.0, dur: None, args });
    }

    fn slice(&mut self, pid: usize, tid: usize, name: &str, (from, to): (u64, u64), args: Value) {
        if self.slices >= SLICES_MAX {
            self.left_out += 1;
            return;
        }
        self.slices += 1;
        let name = name.chars().take(NAME_CHARS_MAX).collect();
        let args = if let Value::Object(args) = args { args } else { Map::new() };
        let dur = Some(to.saturating_sub(from) as f64 / 1e3);
        self.events.push(TraceEvent { name, ph: "X", pid, tid, ts: from as f64 / 1e3, dur, args });
    }
}

impl Recorder {
    /// A trace of what happened from `from` to `to` nanoseconds of the collector's clock, as JSON in the Trace Event
    /// Format. At most 50,000 slices are written, the rest is counted in `otherData`.
    ///
    /// # Errors
    /// If JSON can't be written.
    pub fn trace(&self, from: u64, to: u64) -> serde_json::Result<Vec<u8>> {
        let mut writer = Writer { events: Vec::new(), slices: 0, left_out: 0 };
        let hosts = self.state().trace(&mut writer, (from, to));
        let tracks = hosts.len().max(1) * FigureGroup::ALL.len();
        let points = POINTS_MAX.min(ALL_POINTS_MAX / tracks);
        for (index, host) in hosts.iter().enumerate() {
            for group in FigureGroup::ALL {
                self.trace_counters(&mut writer, index + 1, (host, group), (from, to), points);
            }
        }
        let other_data = Map::from_iter([
            ("source".to_owned(), Value::from("Lightship")),
            ("slices_left_out".to_owned(), Value::from(writer.left_out)),
        ]);
        serde_json::to_vec(&Trace { trace_events: writer.events, display_time_unit: "ms", other_data })
    }

    fn trace_counters(
        &self,
        writer: &mut Writer,
        pid: usize,
        (host, group): (&str, FigureGroup),
        span: (u64, u64),
        points: usize,
    ) {
        let Some(series) = self.series(host, group, span, points) else { return };
        for (index, at) in series.at_ns.iter().enumerate() {
            let values = series.lines.iter().filter_map(|line| {
                let value = line.values.get(index).copied().flatten()?;
                Some((line.name.clone(), json!((value * 1e6).round() / 1e6)))
            });
            let args: Map<String, Value> = values.collect();
            if !args.is_empty() {
                let name = format!("{} ({})", group.name(), group.unit());
                let ts = *at as f64 / 1e3;
                writer.events.push(TraceEvent { name, ph: "C", pid, tid: 0, ts, dur: None, args });
            }
        }
    }
}

impl State {
    /// Writes queries and tasks; returns the names of the hosts, whose processes have the numbers from 1.
    fn trace(&self, writer: &mut Writer, (from, to): (u64, u64)) -> Vec<String> {
        writer.name("process_name", 0, 0, "queries");
        let mut records: Vec<&Record> =
            self.queries.records.values().filter(|record| record.overlaps(from, to)).collect();
        records.sort_by_key(|record| record.began_ns);
        let mut lanes = Lanes::default();
        for record in &records {
            let (began_ns, ended_ns) = record.span();
            let span = (began_ns, ended_ns.unwrap_or(to.max(began_ns)));
            match lanes.take(span.0, span.1) {
                Some(lane) => query(writer, record, lane, span),
                None => writer.left_out += 1,
            }
        }
        let hosts: Vec<String> = self.timeline.hosts().map(str::to_owned).collect();
        for (index, host) in hosts.iter().enumerate() {
            writer.name("process_name", index + 1, 0, host);
            self.trace_tasks(writer, index + 1, host, (from, to));
        }
        hosts
    }

    fn trace_tasks(&self, writer: &mut Writer, pid: usize, host: &str, (from, to): (u64, u64)) {
        let mut tasks: Vec<_> = self
            .timeline
            .tasks(host)
            .filter(|(_, (first, last))| *first <= to && *last >= from)
            .filter_map(|(subject, span)| match subject {
                Subject::Task { query, stage, task } => Some((span, query, *stage, *task)),
                _ => None,
            })
            .collect();
        tasks.sort();
        let mut lanes = Lanes::default();
        for ((first, last), query, stage, task) in tasks {
            let record = self.queries.get(query);
            let label = record.map_or(query.as_str(), |record| &record.label);
            match lanes.take(first, last) {
                Some(lane) => {
                    let name = format!("stage {stage} task {task}: {label}");
                    writer.slice(pid, lane + 1, &name, (first, last), json!({ "query": query }));
                }
                None => writer.left_out += 1,
            }
        }
    }
}

fn query(writer: &mut Writer, record: &Record, lane: usize, span: (u64, u64)) {
    let assessment = match &record.progress {
        Progress::Assessed(assessment) => Some(assessment),
        _ => None,
    };
    let mut args = json!({ "id": record.id, "label": record.label });
    if let Some(assessment) = assessment {
        args["verdict"] = Value::from(assessment.verdict.sentence.as_str());
        args["advice"] = Value::from(assessment.verdict.advice.as_str());
    }
    if let Some(error) = &record.error {
        args["error"] = Value::from(error.as_str());
    }
    writer.slice(0, lane + 1, &record.label, span, args);
    let footprint = assessment.and_then(|assessment| assessment.footprint.as_deref());
    for phase in footprint.into_iter().flat_map(|footprint| &footprint.division.phases) {
        let span = (phase.began_ns, phase.ended_ns);
        writer.slice(0, lane + 1, phase.largest().name(), span, json!({ "host": phase.host }));
    }
}
