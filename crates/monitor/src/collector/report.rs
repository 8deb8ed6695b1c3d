//! What a collector says of itself and of hosts.

use std::net::SocketAddr;

use crate::clock::Offset;
use crate::datagram::ProcessName;
use crate::source::{HostFacts, Sources};

/// Datagrams that belong to no host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CollectorCounts {
    /// Not authentic: of an agent with another token, or of somebody else.
    pub forged: u64,
    /// Not in the format.
    pub malformed: u64,
    /// Authentic, but its agent has not shown that it receives answers. The first ones of each run are counted here.
    pub unconfirmed: u64,
    /// Of an earlier run than the last one.
    pub old_runs: u64,
    /// Of hosts above the limit.
    pub refused: u64,
}

/// Datagrams and samples of one host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Datagrams that were taken in.
    pub received: u64,
    /// Datagrams that never came, up to now: one that comes late is not lost any more.
    pub lost: u64,
    /// Datagrams that came more than once.
    pub doubled: u64,
    /// Datagrams that came after later ones.
    pub reordered: u64,
    /// Datagrams that came too late to tell whether they had come before. They are counted as lost, too.
    pub old: u64,
    /// Samples, whole or in part.
    pub samples: u64,
    /// Parts of them that did not come.
    pub parts_missing: u64,
    /// Incomplete samples that were dropped because the memory for samples was full.
    pub dropped: u64,
}

/// What is known of a host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostReport {
    /// Its name.
    pub host: String,
    /// The run of its agent.
    pub run: u64,
    /// Where its datagrams come from.
    pub from: Option<SocketAddr>,
    /// It has been silent for too long.
    pub left: bool,
    /// The time since its last datagram, in nanoseconds.
    pub silent_ns: u64,
    /// The offset of its clock, and the bound; `None` if it is not known.
    pub offset: Option<Offset>,
    /// How much faster its clock is, in millionths.
    pub drift_ppm: Option<f64>,
    /// The least round trip, in nanoseconds.
    pub round_trip_ns: Option<u64>,
    /// How often its clock was set.
    pub clock_steps: u64,
    /// Exchanges that can't be true, or contradict others.
    pub clock_lies: u64,
    /// Its clock contradicts itself at the moment.
    pub clock_doubtful: bool,
    /// Its clock was set so often that it is not believed.
    pub clock_unreliable: bool,
    /// Datagrams and samples.
    pub counts: HostCounts,
    /// The time between two of its samples, in nanoseconds; 0 if it is not known.
    pub interval_ns: u64,
    /// What its agent says of it.
    pub facts: HostFacts,
    /// Where its figures come from.
    pub sources: Sources,
    /// Its processes that are or were counted.
    pub processes: Vec<ProcessName>,
}
