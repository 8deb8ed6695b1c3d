//! The parts that a query's run time is divided into.

use serde::{Deserialize, Serialize};

/// Where a part of a query's run time went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Part {
    /// The query used a processor.
    Cpu,
    /// It was ready to run, but others used the processors.
    RunQueueWait,
    /// It ran, but the hypervisor took the processor away.
    Stolen,
    /// It waited for a disk that read or wrote one block after the other.
    DiskSequential,
    /// It waited for a disk that had to find its blocks.
    DiskRandom,
    /// The network was busy with its bytes.
    Network,
    /// Small messages were on their way, one after the other.
    RoundTrips,
    /// TCP had data to send, and the receiver did not read.
    ReceiverLimited,
    /// TCP had data to send, and the sender's buffer was too small.
    SenderLimited,
    /// It waited for a lock of the database.
    LockWait,
    /// It waited until there was room for it among other queries.
    QueueWait,
    /// The database waited for the query's client.
    ClientWait,
    /// It waited for memory: pages were reclaimed or swapped.
    MemoryPressure,
    /// None of these was sampled.
    Unexplained,
}

/// The number of parts.
pub(crate) const PARTS: usize = Part::ALL.len();
/// A number for each part, in the order of [`Part::ALL`].
pub(crate) type PerPart = [f64; PARTS];

impl Part {
    /// All of them, in order.
    pub const ALL: [Self; 14] = [
        Self::Cpu,
        Self::RunQueueWait,
        Self::Stolen,
        Self::DiskSequential,
        Self::DiskRandom,
        Self::Network,
        Self::RoundTrips,
        Self::ReceiverLimited,
        Self::SenderLimited,
        Self::LockWait,
        Self::QueueWait,
        Self::ClientWait,
        Self::MemoryPressure,
        Self::Unexplained,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::RunQueueWait => "waiting for a processor",
            Self::Stolen => "taken by the hypervisor",
            Self::DiskSequential => "disk, sequential",
            Self::DiskRandom => "disk, random",
            Self::Network => "network",
            Self::RoundTrips => "round trips",
            Self::ReceiverLimited => "receiver",
            Self::SenderLimited => "send buffer",
            Self::LockWait => "waiting for a lock",
            Self::QueueWait => "waiting for other queries",
            Self::ClientWait => "waiting for the client",
            Self::MemoryPressure => "memory pressure",
            Self::Unexplained => "unexplained",
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// What the time of a part is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The system or the database counted this time for the query's own threads or sockets.
    Counted,
    /// A device was busy for this time, less the share of others.
    DeviceBusy,
    /// Bytes and requests, divided by the calibrated speed.
    Formula,
    /// Exchanges of small messages, times the calibrated round trip, or the wait for them.
    Exchanges,
    /// The whole host waited, and the query's part in it is not known.
    HostPressure,
    /// The query was idle while this was busy, which does not prove that it waited for it.
    Inferred,
    /// What is left.
    Rest,
}

impl Basis {
    /// A description for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counted => "counted for the query",
            Self::DeviceBusy => "time that the device was busy",
            Self::Formula => "bytes and requests at the calibrated speed",
            Self::Exchanges => "exchanges of small messages",
            Self::HostPressure => "waits of the whole host",
            Self::Inferred => "inferred from the rest of the host",
            Self::Rest => "what is left",
        }
    }
}

/// The time of one part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartTime {
    /// The part.
    pub part: Part,
    /// Its time in nanoseconds.
    pub ns: u64,
    /// The least that it can be.
    pub low_ns: u64,
    /// The most that it can be, alone or hidden behind other parts.
    pub high_ns: u64,
    /// Whether a part of it is shared with others.
    pub is_shared: bool,
    /// What most of it is based on.
    pub basis: Basis,
}

/// A time within the run in which one part on one host prevailed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// When it began, in nanoseconds on the time line.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// The host that limited the query; empty if none was sampled.
    pub host: String,
    /// Seconds of each part, in the order of [`Part::ALL`]. They add up to the phase.
    pub seconds: [f64; 14],
    /// Of these, the seconds of work that more nodes would not divide: of coordinators and clients, and on nodes the
    /// planning and the stages that have one task.
    pub fixed_seconds: [f64; 14],
    /// Seconds of each part on the host with the most of it, including what was hidden behind other parts: of work that
    /// more nodes would divide.
    pub divided_demand_seconds: [f64; 14],
    /// The same, of work that more nodes would not divide.
    pub fixed_demand_seconds: [f64; 14],
}

impl Phase {
    /// The part with the most time; the first of equal ones.
    pub fn largest(&self) -> Part {
        let mut largest = Part::Cpu;
        for part in Part::ALL {
            if self.seconds[part.index()] > self.seconds[largest.index()] {
                largest = part;
            }
        }
        largest
    }

    pub(crate) fn length_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.began_ns)
    }

    /// Makes one phase of two neighbours; the longer one gives the host.
    pub(crate) fn join(&mut self, next: &Self) {
        if next.length_ns() > self.length_ns() {
            self.host.clone_from(&next.host);
        }
        self.ended_ns = next.ended_ns;
        for index in 0..PARTS {
            self.seconds[index] += next.seconds[index];
            self.fixed_seconds[index] += next.fixed_seconds[index];
            self.divided_demand_seconds[index] += next.divided_demand_seconds[index];
            self.fixed_demand_seconds[index] += next.fixed_demand_seconds[index];
        }
    }
}

/// The most phases of a [`Division`].
pub const PHASES_MAX: usize = 64;

/// A query's run time, divided into parts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Division {
    /// The run time in nanoseconds.
    pub run_ns: u64,
    /// All parts, in the order of [`Part::ALL`]. Their times add up to the run time.
    pub parts: Vec<PartTime>,
    /// The run in the order of time, at most [`PHASES_MAX`] phases.
    pub phases: Vec<Phase>,
    /// The time that each step of the division had, in nanoseconds: what happened faster is averaged.
    pub step_ns: u64,
}

impl Division {
    /// The time of a part in nanoseconds.
    pub fn ns(&self, part: Part) -> u64 {
        self.parts.iter().find(|time| time.part == part).map_or(0, |time| time.ns)
    }

    /// The time of a part, as a fraction of the run time.
    pub fn fraction(&self, part: Part) -> f64 {
        self.ns(part) as f64 / self.run_ns.max(1) as f64
    }

    /// The fraction of the run time that is explained.
    pub fn explained(&self) -> f64 {
        1.0 - self.fraction(Part::Unexplained)
    }
}
