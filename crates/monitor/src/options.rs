//! What an agent counts, and how often.

use crate::datagram::HOST_BYTES_MAX;

/// Which processes an agent counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Watch {
    /// Only the host.
    #[default]
    Nothing,
    /// These processes, by number.
    Processes(Vec<u32>),
    /// Processes with one of these names, of which the kernel knows 15 bytes.
    Names(Vec<String>),
    /// These processes and their descendants, even if a process in between has ended.
    Trees(Vec<u32>),
    /// The processes that used the most processor time since the last look, up to the limit.
    Busiest,
    /// All.
    All,
}

impl Watch {
    /// This process alone, without its children.
    pub fn this_process() -> Self {
        Self::Processes(vec![std::process::id()])
    }
}

/// Settings of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentOptions {
    /// The name of the host.
    pub host: String,
    /// Which processes are counted.
    pub watch: Watch,
    /// The most processes that are counted. Each one that has run takes about 25 us of a sample, and four open files.
    pub processes_max: usize,
    /// The time between two samples, in nanoseconds.
    pub interval_ns: u64,
    /// The least time between two readings of sockets, in nanoseconds: all sockets of the host are listed, at 2 us
    /// each. Samples in between have no figures of sockets.
    pub sockets_interval_ns: u64,
    /// The most entries for one process and one remote host in a sample: those with the most bytes.
    pub peers_max: usize,
    /// The most entries of a sample that the program adds itself ([`crate::Agent::with_entries`]).
    pub tasks_max: usize,
}

impl AgentOptions {
    /// The shortest interval.
    pub const INTERVAL_NS_MIN: u64 = 10_000_000;
    /// The longest interval.
    pub const INTERVAL_NS_MAX: u64 = 3_600_000_000_000;
    /// The most processes.
    pub const PROCESSES_MAX: usize = 5000;

    /// Defaults: only the host, each second.
    pub fn new(host: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            watch: Watch::default(),
            processes_max: 300,
            interval_ns: 1_000_000_000,
            sockets_interval_ns: 500_000_000,
            peers_max: 256,
            tasks_max: 1000,
        }
    }

    /// The same, with every value within its limits.
    pub fn bounded(mut self) -> Self {
        // Datagrams limit the bytes of the name, and a terminal would interpret control characters.
        let host: String = self.host.chars().filter(|c| !c.is_control()).collect();
        let end = (0..=HOST_BYTES_MAX.min(host.len())).rev().find(|end| host.is_char_boundary(*end));
        self.host =
            host.get(..end.unwrap_or(0)).filter(|host| !host.is_empty()).unwrap_or("unnamed").to_owned();
        self.interval_ns = self.interval_ns.clamp(Self::INTERVAL_NS_MIN, Self::INTERVAL_NS_MAX);
        self.processes_max = self.processes_max.min(Self::PROCESSES_MAX);
        self.peers_max = self.peers_max.min(Self::PROCESSES_MAX);
        self.tasks_max = self.tasks_max.min(Self::PROCESSES_MAX);
        self
    }
}
