//! What limited a query, in a sentence with its evidence.

use serde::{Deserialize, Serialize};

use crate::evidence::{evidence, seconds};
use crate::footprint::Footprint;
use crate::part::{Basis, Part, PartTime};

/// A part from which a query is limited by it: half of the run time, so that no other can be larger.
pub(crate) const LIMITED: f64 = 0.5;
/// A part that is smaller than [`LIMITED`] must be at least this many times as large as the next one.
pub(crate) const CLEARLY_LARGEST: f64 = 1.5;
/// The smallest part that can be named as the limit. If it is smaller, most of the time was spent on other parts.
pub(crate) const LIMITED_MIN: f64 = 0.35;
/// Less explained time than this makes a query inefficient. The source draws the line at 15 to 25%.
pub(crate) const EXPLAINED_MIN: f64 = 0.2;
/// Waiting for a processor from which the processors count as contended: a wait that a scheduler gives to a process
/// that is alone is below 5%, and one hog on the query's processor makes 50%.
pub(crate) const CONTENDED_MIN: f64 = 0.15;
/// Acknowledgements that were awaited count this much when the limit is looked for: the query may not have waited for
/// them.
const INFERRED_WEIGHT: f64 = 0.5;
/// The fraction of the run that must be sampled for a verdict.
pub(crate) const COVERED_MIN: f64 = 0.5;

/// What limits a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Its own use of processors.
    Cpu,
    /// Processors that others used.
    CpuContended,
    /// The disk's sequential rate.
    DiskSequential,
    /// The disk's random accesses.
    DiskRandom,
    /// The network's rate.
    Network,
    /// The network's latency: synchronous round trips.
    RoundTrips,
    /// A receiver or client that takes rows slowly.
    Receiver,
    /// A send buffer that is too small for the link.
    Sender,
    /// A lock of the database.
    Lock,
    /// Other queries, until whose end there was no room for it.
    Queue,
    /// Memory that is short.
    Memory,
    /// No single one.
    Mixed,
    /// None that was sampled: the resources were mostly idle.
    Inefficient,
    /// Not known: too little was sampled.
    Unknown,
}

impl Limit {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU-limited",
            Self::CpuContended => "CPU-limited, contended by others",
            Self::DiskSequential => "disk-limited, sequential",
            Self::DiskRandom => "disk-limited, random",
            Self::Network => "network-limited",
            Self::RoundTrips => "latency-limited",
            Self::Receiver => "receiver-limited",
            Self::Sender => "send-buffer-limited",
            Self::Lock => "lock-limited",
            Self::Queue => "queued",
            Self::Memory => "memory-limited",
            Self::Mixed => "mixed",
            Self::Inefficient => "inefficient",
            Self::Unknown => "unknown",
        }
    }

    /// The parts of the run time that it stands for.
    pub fn parts(self) -> &'static [Part] {
        match self {
            Self::Cpu => &[Part::Cpu],
            Self::CpuContended => &[Part::Cpu, Part::RunQueueWait, Part::Stolen],
            Self::DiskSequential | Self::DiskRandom => &[Part::DiskSequential, Part::DiskRandom],
            Self::Network => &[Part::Network],
            Self::RoundTrips => &[Part::RoundTrips],
            Self::Receiver => &[Part::ReceiverLimited, Part::ClientWait],
            Self::Sender => &[Part::SenderLimited],
            Self::Lock => &[Part::LockWait],
            Self::Queue => &[Part::QueueWait],
            Self::Memory => &[Part::MemoryPressure],
            Self::Mixed | Self::Inefficient | Self::Unknown => &[],
        }
    }

    /// What would help.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Cpu => "Faster processors, more of them if the query can use them, or more nodes.",
            Self::CpuContended => "Move or limit the other work on these processors.",
            Self::DiskSequential => {
                "A disk with a higher rate, fewer bytes (compression, columns), more memory for \
                caching, or more nodes."
            }
            Self::DiskRandom => {
                "A disk with faster random access, more memory for caching, or an order of access \
                that follows the disk."
            }
            Self::Network => {
                "A faster link, or fewer bytes: compression, filters and aggregates at the source."
            }
            Self::RoundTrips => {
                "Larger messages (a larger fetch size), several requests in flight, or a client that \
                is nearer. A faster link would not help."
            }
            Self::Receiver => "A faster client, or one that reads in parallel. Faster nodes would not help.",
            Self::Sender => "A larger send buffer, or several connections.",
            Self::Lock => "Find the session that holds the lock, and end its transaction earlier.",
            Self::Queue => {
                "Fewer queries at a time, clients that take their rows faster, or more memory for the \
                node's rows (--memory). Faster hardware helps only if it ends the other queries earlier."
            }
            Self::Memory => "More memory, or a smaller memory setting of the query.",
            Self::Mixed => "No single change would help much.",
            Self::Inefficient => {
                "Look for waits inside the database: synchronous steps, sleeps, or hosts that were \
                not sampled. Faster hardware would not help."
            }
            Self::Unknown => "Sample the hosts and processes that run the query.",
        }
    }
}

/// What limited a query, and the evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What limited it.
    pub limit: Limit,
    /// The host that did; `None` if no single one.
    pub host: Option<String>,
    /// The fraction of the run time that the limit took; of a mixed or inefficient query, the explained fraction.
    pub fraction: f64,
    /// Whether it is at least half of the run time even at its lower bound.
    pub is_certain: bool,
    /// The verdict in a sentence.
    pub sentence: String,
    /// What it rests on, a sentence each.
    pub evidence: Vec<String>,
    /// What would help.
    pub advice: String,
}

impl Verdict {
    /// The verdict on a query.
    pub fn new(footprint: &Footprint) -> Self {
        let limit = limit(footprint);
        let division = &footprint.division;
        let parts = limit.parts();
        let fraction = if parts.is_empty() {
            division.explained()
        } else {
            parts.iter().map(|part| division.fraction(*part)).sum()
        };
        let low: u64 =
            division.parts.iter().filter(|time| parts.contains(&time.part)).map(|time| time.low_ns).sum();
        let host = footprint.bottleneck_host().filter(|_| !parts.is_empty());
        let host = host.map(|host| host.host.clone());
        Self {
            limit,
            fraction,
            is_certain: low as f64 >= LIMITED * footprint.run_ns as f64,
            sentence: sentence(footprint, limit, host.as_deref(), fraction),
            evidence: evidence(footprint, limit),
            advice: limit.advice().into(),
            host,
        }
    }
}

/// The limit of a query by the sizes of its parts.
fn limit(footprint: &Footprint) -> Limit {
    let division = &footprint.division;
    let of = |limit: Limit| {
        let fraction: f64 = limit.parts().iter().map(|part| division.fraction(*part)).sum();
        let is_guess = limit == Limit::RoundTrips && has_inferred_round_trips(footprint);
        if is_guess { fraction * INFERRED_WEIGHT } else { fraction }
    };
    let mut groups = [
        Limit::CpuContended,
        Limit::DiskSequential,
        Limit::Network,
        Limit::RoundTrips,
        Limit::Receiver,
        Limit::Sender,
        Limit::Lock,
        Limit::Queue,
        Limit::Memory,
    ]
    .map(|limit| (limit, of(limit)));
    groups.sort_by(|a, b| b.1.total_cmp(&a.1));
    let [(largest, most), (_, second), ..] = groups;
    let is_limit = most >= LIMITED || (most >= LIMITED_MIN && most >= CLEARLY_LARGEST * second);
    if is_limit {
        return named(footprint, largest);
    }
    let covered = footprint.hosts.iter().map(|host| host.covered_ns).max().unwrap_or(0);
    if (covered as f64) < COVERED_MIN * footprint.run_ns as f64 {
        Limit::Unknown
    } else if division.explained() >= EXPLAINED_MIN {
        Limit::Mixed
    } else if footprint.hosts.iter().all(|host| host.cpu_ns().is_none()) {
        Limit::Unknown
    } else {
        Limit::Inefficient
    }
}

/// Whether the round trips are acknowledgements of small messages, for which the query may not have waited.
pub(crate) fn has_inferred_round_trips(footprint: &Footprint) -> bool {
    let is_inferred = |time: &PartTime| time.part == Part::RoundTrips && time.basis == Basis::Inferred;
    footprint.division.parts.iter().any(is_inferred)
}

/// Tells apart what a group stands for.
fn named(footprint: &Footprint, limit: Limit) -> Limit {
    let fraction = |part| footprint.division.fraction(part);
    match limit {
        Limit::CpuContended if fraction(Part::RunQueueWait) + fraction(Part::Stolen) < CONTENDED_MIN => {
            Limit::Cpu
        }
        Limit::DiskSequential if fraction(Part::DiskRandom) > fraction(Part::DiskSequential) => {
            Limit::DiskRandom
        }
        other => other,
    }
}

fn sentence(footprint: &Footprint, limit: Limit, host: Option<&str>, fraction: f64) -> String {
    let run_ns = footprint.run_ns;
    let percent = fraction * 100.0;
    let took = format!("{} of {} ({percent:.0}%)", seconds(fraction * run_ns as f64), seconds(run_ns as f64));
    let of_host = host.map_or(String::new(), |host| format!(" of {host}"));
    match limit {
        Limit::Cpu => format!("Limited by the processors{of_host}: {took}."),
        Limit::CpuContended => {
            format!("Limited by the processors{of_host}, which others used at the same time: {took}.")
        }
        Limit::DiskSequential => {
            format!("Limited by the disk{of_host}, reading or writing in sequence: {took}.")
        }
        Limit::DiskRandom => format!("Limited by the disk{of_host}, with random accesses: {took}."),
        Limit::Network => format!("Limited by the network link{of_host}: {took}."),
        Limit::RoundTrips => {
            format!(
                "Limited by the network's latency, seen from {}: {took} were round trips.",
                host.unwrap_or("?")
            )
        }
        Limit::Receiver => {
            format!("Limited by the receiver of the rows{}: {took}.", host.map_or(String::new(), sent_by))
        }
        Limit::Sender => format!("Limited by the send buffer{of_host}: {took}."),
        Limit::Lock => {
            format!("Limited by a lock of the database{}: {took}.", host.map_or(String::new(), on))
        }
        Limit::Queue => {
            format!(
                "Limited by other queries{}: {took} passed before there was room.",
                host.map_or(String::new(), on)
            )
        }
        Limit::Memory => format!("Limited by the memory{of_host}: {took}."),
        Limit::Mixed => {
            let mut parts = footprint.division.parts.iter().filter(|time| time.ns > 0).collect::<Vec<_>>();
            parts.sort_by_key(|time| std::cmp::Reverse(time.ns));
            let part =
                |part: Part| format!("{} {:.0}%", part.name(), footprint.division.fraction(part) * 100.0);
            let parts: Vec<String> = parts.iter().take(4).map(|time| part(time.part)).collect();
            format!("Limited by no single resource: {}.", parts.join(", "))
        }
        Limit::Inefficient => {
            format!("Inefficient: processors, disks and network explain only {took}; mostly, all were idle.")
        }
        Limit::Unknown => format!("Unknown: too little was sampled, which explains {took}."),
    }
}

fn sent_by(host: &str) -> String {
    format!(" that {host} sent")
}

fn on(host: &str) -> String {
    format!(" on {host}")
}
