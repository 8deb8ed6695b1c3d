//! What a query's run time would be on other hardware, or with another number of nodes.
//!
//! Each phase of the division takes the time of its parts, each at its new speed, and no less than what any part takes
//! alone: what was hidden behind a slow part comes to light when that becomes faster. What is unexplained stays as it
//! is.
//!
//! Waiting for a processor, and what a hypervisor takes, shrink with faster processors; a send buffer's limit shrinks
//! with the round trip. Waits for locks, clients, receivers and memory stay.
//!
//! With more nodes, the work of hosts that divide it shrinks: processors, disks, and bytes over their links. The skew
//! between nodes stays. Round trips do not shrink, nor the work of coordinators and clients; of nodes, the planning and
//! the stages that have one task (`fixed.rs`).
//!
//! The interval covers the bounds of the parts, the unexplained part changing as much as the fastest changed part, and
//! the model's errors on past runs.

use serde::{Deserialize, Serialize};

use crate::error::{Result, UsageError, within};
use crate::evidence;
use crate::footprint::Footprint;
use crate::history::{ChangeKind, History, PredictionError};
use crate::part::{PARTS, Part, PerPart, Phase};
use crate::speeds::HostSpeeds;

/// The largest and, inverted, the smallest factor: beyond, another part is the limit anyway.
const FACTOR_MAX: f64 = 1e3;
/// The most nodes.
const NODES_MAX: u32 = 100_000;
/// The error of the model before its first checked prediction: the worst that the source found.
const UNTRIED_ERROR: f64 = 0.2;
/// The largest error that widens an interval: at ten times the time, a prediction is useless anyway.
const ERROR_MAX: f64 = 10.0;
/// Earlier runs from which their mean error is taken; of fewer, the worst.
const RUNS_FOR_MEAN: usize = 5;

/// Another number of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NodesChange {
    /// Nodes of the measured run.
    pub from: u32,
    /// Nodes to predict.
    pub to: u32,
    /// The fraction of the nodes' work that is on partitioned data, 0 to 1. Work on replicated tables is the same on
    /// each node, however many there are.
    pub divided: f64,
}

/// What is changed. Factors are speeds: 2 is twice as fast, so that a round trip takes half of the time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// Of each processor.
    pub cpu: f64,
    /// Of the disk's sequential rate.
    pub disk_sequential: f64,
    /// Of the disk's random accesses.
    pub disk_random: f64,
    /// Of the link's rate.
    pub network: f64,
    /// Of round trips.
    pub round_trip: f64,
    /// The nodes.
    pub nodes: Option<NodesChange>,
}

impl Default for Change {
    /// Nothing is changed.
    fn default() -> Self {
        Self { cpu: 1.0, disk_sequential: 1.0, disk_random: 1.0, network: 1.0, round_trip: 1.0, nodes: None }
    }
}

impl Change {
    /// Checks that all factors are finite and in range: a thousandth to a thousand, and 1 to 100,000 nodes.
    ///
    /// # Errors
    /// [`UsageError::OutOfRange`] names the first that is not.
    pub fn check(&self) -> Result<()> {
        let factors = [
            ("factor of the CPU", self.cpu),
            ("factor of the sequential disk", self.disk_sequential),
            ("factor of the random disk", self.disk_random),
            ("factor of the network", self.network),
            ("factor of the round trip", self.round_trip),
        ];
        for (what, factor) in factors {
            within(what, factor, 1.0 / FACTOR_MAX, FACTOR_MAX)?;
        }
        let Some(nodes) = self.nodes else { return Ok(()) };
        within("number of nodes before", nodes.from.into(), 1.0, NODES_MAX.into())?;
        within("number of nodes after", nodes.to.into(), 1.0, NODES_MAX.into())?;
        within("divided part of the work", nodes.divided, 0.0, 1.0)
    }

    /// The change from hosts of one kind to hosts of another, as they were calibrated. What was not calibrated on both
    /// is taken as equal.
    pub fn between(from: &HostSpeeds, to: &HostSpeeds) -> Self {
        let ratio = |more: Option<f64>, less: Option<f64>| match (more, less) {
            (Some(more), Some(less)) if less > 0.0 => more / less,
            _ => 1.0,
        };
        Self {
            cpu: ratio(to.cpu_units_per_second, from.cpu_units_per_second),
            disk_sequential: ratio(to.disk_read_bytes_per_second, from.disk_read_bytes_per_second),
            disk_random: ratio(from.disk_access_seconds, to.disk_access_seconds),
            network: ratio(to.link.sent_bytes_per_second, from.link.sent_bytes_per_second),
            round_trip: ratio(from.link.round_trip_seconds, to.link.round_trip_seconds),
            nodes: None,
        }
    }

    /// The kind under which its errors are kept.
    pub fn kind(&self) -> ChangeKind {
        let changed = [
            (ChangeKind::Cpu, self.cpu != 1.0),
            (ChangeKind::Disk, self.disk_sequential != 1.0 || self.disk_random != 1.0),
            (ChangeKind::Network, self.network != 1.0 || self.round_trip != 1.0),
            (ChangeKind::Nodes, self.nodes.is_some_and(|nodes| nodes.from != nodes.to)),
        ];
        let mut kinds = changed.into_iter().filter(|(_, is_changed)| *is_changed).map(|(kind, _)| kind);
        match (kinds.next(), kinds.next()) {
            (None, _) => ChangeKind::Same,
            (Some(kind), None) => kind,
            _ => ChangeKind::Several,
        }
    }

    /// How many times as fast a part becomes, on hosts whose work more nodes divide, or on others.
    fn speed(&self, part: Part, divides: bool) -> f64 {
        let device = match part {
            Part::Cpu | Part::RunQueueWait | Part::Stolen => self.cpu,
            Part::DiskSequential => self.disk_sequential,
            Part::DiskRandom => self.disk_random,
            Part::Network => self.network,
            Part::RoundTrips | Part::SenderLimited => return self.round_trip,
            Part::ReceiverLimited
            | Part::LockWait
            | Part::QueueWait
            | Part::ClientWait
            | Part::MemoryPressure
            | Part::Unexplained => return 1.0,
        };
        let work = self.nodes.filter(|_| divides).map_or(1.0, |nodes| {
            (1.0 - nodes.divided) + nodes.divided * f64::from(nodes.from) / f64::from(nodes.to)
        });
        device / work
    }

    /// The new seconds that a part takes in a phase on the host that has most of it.
    fn alone(&self, phase: &Phase, part: Part) -> f64 {
        let divided = phase.divided_demand_seconds[part.index()] / self.speed(part, true);
        divided.max(phase.fixed_demand_seconds[part.index()] / self.speed(part, false))
    }

    /// The new seconds of one part of a phase.
    fn part_after(&self, phase: &Phase, part: Part) -> f64 {
        let fixed = phase.fixed_seconds[part.index()];
        let divided = (phase.seconds[part.index()] - fixed).max(0.0);
        divided / self.speed(part, true) + fixed / self.speed(part, false)
    }

    /// The new seconds of a phase's parts, and what has to be added so that no part alone takes longer.
    fn apply(&self, phase: &Phase) -> (PerPart, f64) {
        let seconds = Part::ALL.map(|part| self.part_after(phase, part));
        let longest = Part::ALL.map(|part| self.alone(phase, part)).into_iter().fold(0.0, f64::max);
        let sum: f64 = seconds.iter().sum();
        (seconds, (longest - sum).max(0.0))
    }
}

/// A predicted run time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The predicted time in seconds.
    pub seconds: f64,
    /// The least that it may be.
    pub low_seconds: f64,
    /// The most that it may be.
    pub high_seconds: f64,
    /// The measured time that it was made from.
    pub measured_seconds: f64,
    /// The seconds of each part; they add up to the predicted time.
    pub parts: Vec<(Part, f64)>,
    /// The kind of change.
    pub kind: ChangeKind,
    /// The errors of earlier runs of this kind, or of all kinds if this kind has no runs; `None` without earlier runs.
    pub error: Option<PredictionError>,
    /// What the prediction does not know.
    pub notes: Vec<String>,
}

/// Predicts a query's run time after a change.
///
/// # Errors
/// If a factor is out of range, or the number of nodes changes and no sampled host's work would be divided.
pub fn what_if(footprint: &Footprint, change: &Change, history: &History) -> Result<Prediction> {
    change.check()?;
    let division = &footprint.division;
    let changes_nodes = change.nodes.is_some_and(|nodes| nodes.from != nodes.to);
    if changes_nodes && !footprint.hosts.iter().any(|host| host.divides) {
        return Err(UsageError::NothingDivides { label: footprint.label.clone() });
    }
    let mut before: PerPart = [0.0; PARTS];
    let mut after: PerPart = [0.0; PARTS];
    for phase in &division.phases {
        let (seconds, hidden) = change.apply(phase);
        for index in 0..PARTS {
            before[index] += phase.seconds[index];
            after[index] += seconds[index];
        }
        // What comes to light was not a part of the time before: the part that takes longest alone.
        let longest = longest(change, phase);
        after[longest.index()] += hidden;
    }
    let seconds: f64 = after.iter().sum();
    let run = division.run_ns as f64 / 1e9;
    let (mut low, mut high) = (run, run);
    let mut floor = 0.0f64;
    let (mut fastest, mut slowest) = (1.0f64, 1.0f64);
    for time in division.parts.iter().filter(|time| time.part != Part::Unexplained) {
        let index = time.part.index();
        let speed = [change.speed(time.part, true), change.speed(time.part, false)];
        // A part that is in phases of both kinds of hosts has the mean of both savings.
        let saved = if before[index] > 0.0 {
            1.0 - division.phases.iter().map(|phase| change.part_after(phase, time.part)).sum::<f64>()
                / before[index]
        } else if changes_nodes {
            0.0
        } else {
            1.0 - 1.0 / speed[0]
        };
        let (least, most) = (time.low_ns as f64 / 1e9, time.high_ns as f64 / 1e9);
        low -= saved * if saved > 0.0 { most } else { least };
        high -= saved * if saved > 0.0 { least } else { most };
        floor = floor.max(least * (1.0 - saved));
        fastest = speed.into_iter().fold(fastest, f64::max);
        slowest = speed.into_iter().fold(slowest, f64::min);
    }
    let unexplained = division.ns(Part::Unexplained) as f64 / 1e9;
    low = low.min(seconds - unexplained * (1.0 - 1.0 / fastest)).max(floor);
    high = high.max(seconds + unexplained * (1.0 / slowest - 1.0));
    let kind = change.kind();
    let error = history.error(kind).or_else(|| history.error_of_all());
    if kind != ChangeKind::Same {
        let past =
            |error: PredictionError| if error.runs >= RUNS_FOR_MEAN { error.mean } else { error.worst };
        let error = error.map_or(UNTRIED_ERROR, past).min(ERROR_MAX);
        low = low.min(seconds / (1.0 + error));
        high = high.max(seconds * (1.0 + error));
    }
    Ok(Prediction {
        seconds,
        low_seconds: low.min(seconds).max(0.0),
        high_seconds: high.max(seconds),
        measured_seconds: run,
        parts: Part::ALL.into_iter().map(|part| (part, after[part.index()])).collect(),
        kind,
        error,
        notes: notes(footprint, change, error.is_none() && kind != ChangeKind::Same),
    })
}

/// The part that takes longest alone after a change.
fn longest(change: &Change, phase: &Phase) -> Part {
    let alone = |part: Part| change.alone(phase, part);
    Part::ALL
        .into_iter()
        .fold(Part::Cpu, |longest, part| if alone(part) > alone(longest) { part } else { longest })
}

fn notes(footprint: &Footprint, change: &Change, is_untried: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let unexplained = footprint.division.fraction(Part::Unexplained);
    if unexplained > 0.1 {
        notes.push(format!(
            "{:.0}% of the measured time is unexplained and taken as fixed",
            unexplained * 100.0
        ));
    }
    if is_untried {
        let error = UNTRIED_ERROR * 100.0;
        notes.push(format!("no earlier prediction was checked: an error of {error:.0}% is assumed"));
    }
    if let Some(nodes) = change.nodes {
        if nodes.from == 1 && nodes.to > 1 {
            notes.push("what nodes would send to each other was not measured with one node".into());
        }
        let phases = footprint.division.phases.iter();
        let fixed: f64 = phases.flat_map(|phase| phase.fixed_seconds).sum();
        if fixed > 0.0 {
            notes.push(format!(
                "{} of the measured time would not be divided among more nodes",
                evidence::seconds(fixed * 1e9)
            ));
        } else if footprint.known.planned_ns.is_none() && footprint.hosts.iter().all(|host| host.divides) {
            notes.push("no coordinator was sampled: its work is taken as nothing".into());
        }
    }
    if footprint.division.parts.iter().any(|time| time.is_shared && time.ns > 0) {
        notes.push("a part of the time is shared with other work, which may change".into());
    }
    notes
}
