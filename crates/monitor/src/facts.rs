//! Facts about a host that an agent reports besides figures.

/// Facts about a host that its agent reports besides figures.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostFacts {
    /// Processors that are online.
    pub processors: u32,
    /// The processors that the agent's control group may use, in thousandths; `None` without a limit.
    pub processor_limit_milli: Option<u64>,
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// The limit of the agent's control group, in bytes; `None` without a limit.
    pub memory_limit_bytes: Option<u64>,
    /// The version of the kernel.
    pub kernel: String,
    /// What the agent can't see, in words, such as the processes outside its container. Empty if it sees all of them.
    pub hidden: String,
    /// Processes that are counted.
    pub processes: u32,
    /// Processes that are selected, but left out because there are more than the limit.
    pub processes_left_out: u32,
    /// Entries that were left out of samples so far, because there were more than the limit.
    pub entries_left_out: u64,
    /// Sockets that were left out of the last sample, because there were more than the limit.
    pub sockets_left_out: u64,
}
