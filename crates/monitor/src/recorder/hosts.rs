//! What a recorder tells of hosts: their use now, their clocks, and what was lost.

use std::sync::Arc;

use lightship_usage::{Figure, HostSpeeds, SampleCounts, Subject, Timeline};
use serde::Serialize;

use super::state::State;
use crate::collector::{HostReport, TimedSample};

/// The time over which the use of a host now is averaged, in nanoseconds, if its samples are not farther apart.
const NOW_NS: u64 = 2_000_000_000;
/// A host is late if nothing came from it for so many of its intervals.
const LATE_INTERVALS: u64 = 3;

/// A host, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Host {
    pub(super) report: Option<HostReport>,
    pub(super) last: Option<Arc<TimedSample>>,
    /// Samples that could not be placed on the time line.
    pub(super) without_clock: u64,
    /// Lost datagrams of which an event was made.
    pub(super) lost_noted: u64,
}

/// Whether samples of a host come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// They do.
    Live,
    /// None came for three intervals or more.
    Late,
    /// None came for so long that the host has left.
    Left,
}

/// The clock of a host, compared with the collector's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClockOverview {
    /// By how much it is ahead, in nanoseconds; `None` if it is not known.
    pub offset_ns: Option<i64>,
    /// By how much the offset may be wrong, in nanoseconds.
    pub bound_ns: Option<u64>,
    /// How much faster it is, in millionths.
    pub drift_ppm: Option<f64>,
    /// The least round trip, in nanoseconds.
    pub round_trip_ns: Option<u64>,
    /// How often it was set.
    pub steps: u64,
    /// It contradicts itself at the moment, or was set so often that it is not believed.
    pub is_doubtful: bool,
}

/// Datagrams and samples of a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct DatagramsOverview {
    /// Datagrams that came.
    pub received: u64,
    /// Datagrams that did not.
    pub lost: u64,
    /// Datagrams that came twice.
    pub doubled: u64,
    /// Datagrams that came after later ones.
    pub reordered: u64,
    /// Parts of samples that did not come.
    pub parts_missing: u64,
    /// Samples that are not on the time line because the clock of the host was not known.
    pub without_clock: u64,
}

/// What the agent says of its host.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FactsOverview {
    /// Processors.
    pub processors: u32,
    /// The processors that the agent's control group may use.
    pub processor_limit: Option<f64>,
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// The limit of the agent's control group, in bytes.
    pub memory_limit_bytes: Option<u64>,
    /// The version of the kernel.
    pub kernel: String,
    /// What the agent can't see. Empty if it sees all.
    pub hidden: String,
    /// Processes that are counted.
    pub processes: u32,
    /// Processes that are left out because there are too many.
    pub processes_left_out: u32,
}

/// For which fraction of the time some task waited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PressureOverview {
    /// For a processor.
    pub cpu: Option<f64>,
    /// For a disk.
    pub io: Option<f64>,
    /// For memory.
    pub memory: Option<f64>,
}

/// A host now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostOverview {
    /// Its name.
    pub name: String,
    /// Whether its samples come.
    pub state: HostState,
    /// The time since its last datagram, in nanoseconds.
    pub silent_ns: u64,
    /// The time between two samples, in nanoseconds; 0 if it is not known.
    pub interval_ns: u64,
    /// Where its datagrams come from.
    pub address: Option<String>,
    /// Processors that are in use, on average.
    pub cpu_used: Option<f64>,
    /// Processors that the hypervisor took away.
    pub cpu_stolen: Option<f64>,
    /// Threads that wait for a processor, on average.
    pub run_queue: Option<f64>,
    /// Bytes per second read from disks.
    pub disk_read_bytes_per_second: Option<f64>,
    /// Bytes per second written to disks.
    pub disk_written_bytes_per_second: Option<f64>,
    /// For which fraction of the time the busiest disk was busy.
    pub disk_busy: Option<f64>,
    /// Bytes per second received.
    pub network_received_bytes_per_second: Option<f64>,
    /// Bytes per second sent.
    pub network_sent_bytes_per_second: Option<f64>,
    /// Used memory, in bytes.
    pub memory_used_bytes: Option<u64>,
    /// Available memory, in bytes.
    pub memory_available_bytes: Option<u64>,
    /// Waits of the whole host.
    pub pressure: PressureOverview,
    /// Its clock.
    pub clock: ClockOverview,
    /// What came, and what was lost.
    pub datagrams: DatagramsOverview,
    /// What became of its samples on the time line.
    pub samples: Option<SampleCounts>,
    /// When the first and the last sample in memory were taken, in nanoseconds.
    pub span_ns: Option<(u64, u64)>,
    /// What its agent says of it.
    pub facts: FactsOverview,
    /// What it can do at most, as it was measured; `None` if it was not.
    pub speeds: Option<HostSpeeds>,
}

impl State {
    pub(super) fn host_overviews(&self, now_ns: u64) -> Vec<HostOverview> {
        self.hosts.iter().map(|(name, host)| overview(&self.timeline, name, host, now_ns)).collect()
    }
}

fn overview(timeline: &Timeline, name: &str, host: &Host, now_ns: u64) -> HostOverview {
    let report = host.report.as_ref();
    let interval_ns = report.map_or(0, |report| report.interval_ns);
    let last_ns = host.last.as_ref().map_or(0, |last| last.time_ns);
    let silent_ns = report.map_or(now_ns.saturating_sub(last_ns), |report| report.silent_ns);
    let state = match report {
        Some(report) if report.left => HostState::Left,
        _ if silent_ns > interval_ns.max(NOW_NS / 2).saturating_mul(LATE_INTERVALS) => HostState::Late,
        _ => HostState::Live,
    };
    let span = timeline.span(name);
    let to = span.map_or(0, |span| span.1);
    let from = to.saturating_sub(NOW_NS.max(interval_ns.saturating_mul(2)));
    let used = timeline.used(name, &Subject::Host, from, to);
    // Of a host that is silent, the use now is not known.
    let is_live = state == HostState::Live;
    let rate = |figure: Figure| used.per_second(figure).filter(|_| is_live);
    let seconds = |figure| rate(figure).map(|ns_per_second| ns_per_second / 1e9);
    let level = |figure| {
        let entries = &host.last.as_ref().filter(|_| is_live)?.sample.entries;
        entries.iter().find(|entry| entry.subject == Subject::Host)?.figures.get(figure)
    };
    let disks = timeline.disks(name).filter_map(|disk| {
        let used = timeline.used(name, disk, from, to);
        let busy = used.per_second(Figure::DiskBusyNs).filter(|_| is_live)?;
        Some((busy / 1e9).min(1.0))
    });
    let cpu = [Figure::CpuUserNs, Figure::CpuSystemNs].map(seconds);
    HostOverview {
        name: name.to_owned(),
        state,
        silent_ns,
        interval_ns,
        address: report.and_then(|report| report.from).map(|from| from.to_string()),
        cpu_used: cpu[0].or(cpu[1]).map(|_| cpu.into_iter().flatten().sum()),
        cpu_stolen: seconds(Figure::CpuStolenNs),
        run_queue: seconds(Figure::RunQueueWaitNs),
        disk_read_bytes_per_second: rate(Figure::DiskReadBytes),
        disk_written_bytes_per_second: rate(Figure::DiskWrittenBytes),
        disk_busy: disks.max_by(f64::total_cmp),
        network_received_bytes_per_second: rate(Figure::NetworkReceivedBytes),
        network_sent_bytes_per_second: rate(Figure::NetworkSentBytes),
        memory_used_bytes: level(Figure::MemoryBytes),
        memory_available_bytes: level(Figure::MemoryAvailableBytes),
        pressure: PressureOverview {
            cpu: seconds(Figure::PressureCpuSomeNs),
            io: seconds(Figure::PressureIoSomeNs),
            memory: seconds(Figure::PressureMemorySomeNs),
        },
        clock: clock(report),
        datagrams: datagrams(host),
        samples: timeline.counts(name),
        span_ns: span,
        facts: report.map(facts).unwrap_or_default(),
        speeds: report.and_then(|report| report.speeds),
    }
}

fn clock(report: Option<&HostReport>) -> ClockOverview {
    let offset = report.and_then(|report| report.offset);
    ClockOverview {
        offset_ns: offset.map(|offset| offset.offset_ns),
        bound_ns: offset.map(|offset| offset.bound_ns),
        drift_ppm: report.and_then(|report| report.drift_ppm),
        round_trip_ns: report.and_then(|report| report.round_trip_ns),
        steps: report.map_or(0, |report| report.clock_steps),
        is_doubtful: report.is_some_and(|report| report.clock_doubtful || report.clock_unreliable),
    }
}

fn datagrams(host: &Host) -> DatagramsOverview {
    let without_clock = host.without_clock;
    let Some(report) = &host.report else { return DatagramsOverview { without_clock, ..Default::default() } };
    DatagramsOverview {
        received: report.counts.received,
        lost: report.counts.lost,
        doubled: report.counts.doubled,
        reordered: report.counts.reordered,
        parts_missing: report.counts.parts_missing,
        without_clock,
    }
}

fn facts(report: &HostReport) -> FactsOverview {
    let facts = &report.facts;
    FactsOverview {
        processors: facts.processors,
        processor_limit: facts.processor_limit_milli.map(|milli| milli as f64 / 1000.0),
        memory_bytes: facts.memory_bytes,
        memory_limit_bytes: facts.memory_limit_bytes,
        kernel: facts.kernel.clone(),
        hidden: facts.hidden.clone(),
        processes: facts.processes,
        processes_left_out: facts.processes_left_out,
    }
}
