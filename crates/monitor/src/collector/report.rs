//! Reports of a collector about itself and about hosts.

use std::net::SocketAddr;

use crate::clock::Offset;
use crate::datagram::ProcessName;
use crate::facts::HostFacts;
use lightship_usage::{HostSources, HostSpeeds};

/// Datagrams that belong to no host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CollectorCounts {
    /// Not authentic: from an agent with another token, or from another sender.
    pub forged: u64,
    /// Not in the format.
    pub malformed: u64,
    /// Authentic, but the agent has not shown yet that it receives answers. The first ones of each run are counted
    /// here.
    pub unconfirmed: u64,
    /// Of an earlier run than the last one.
    pub old_runs: u64,
    /// Of hosts above the limit.
    pub refused: u64,
}

/// Datagrams and samples of one host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Datagrams that were accepted.
    pub received: u64,
    /// Datagrams that were not received so far. One that is received late is subtracted again.
    pub lost: u64,
    /// Datagrams that were received more than once.
    pub doubled: u64,
    /// Datagrams that were received after later ones.
    pub reordered: u64,
    /// Datagrams that were received too late to tell whether they had been received before. They count as lost, too.
    pub old: u64,
    /// Samples, whole or in part.
    pub samples: u64,
    /// Parts of samples that were not received.
    pub parts_missing: u64,
    /// Incomplete samples that were dropped because the memory for samples was full.
    pub dropped: u64,
}

/// What a collector knows about a host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostReport {
    /// Its name.
    pub host: String,
    /// The run of its agent.
    pub run: u64,
    /// Where its datagrams come from.
    pub from: Option<SocketAddr>,
    /// Whether it has been silent for too long.
    pub left: bool,
    /// The time since its last datagram, in nanoseconds.
    pub silent_ns: u64,
    /// The offset of its clock, and the bound; `None` if it is not known.
    pub offset: Option<Offset>,
    /// How much faster its clock is, in millionths.
    pub drift_ppm: Option<f64>,
    /// The shortest round trip, in nanoseconds.
    pub round_trip_ns: Option<u64>,
    /// How often its clock was set.
    pub clock_steps: u64,
    /// Exchanges with impossible times, or that contradict others.
    pub clock_lies: u64,
    /// Whether its clock contradicts itself at the moment.
    pub clock_doubtful: bool,
    /// Whether its clock was set so often that it is not used.
    pub clock_unreliable: bool,
    /// Datagrams and samples.
    pub counts: HostCounts,
    /// The time between two of its samples, in nanoseconds; 0 if it is not known.
    pub interval_ns: u64,
    /// Facts that its agent reports.
    pub facts: HostFacts,
    /// Where its figures come from.
    pub sources: HostSources,
    /// What it can do at most; `None` if it was not measured.
    pub speeds: Option<HostSpeeds>,
    /// Its processes that are counted, or were counted before.
    pub processes: Vec<ProcessName>,
}
