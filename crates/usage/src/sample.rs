//! What an agent counts on a host at one moment.

use serde::{Deserialize, Serialize};

/// A thing that is counted. Counters only grow, so that a lost sample loses no total; gauges are marked as such.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Figure {
    /// Processor time in user mode, in nanoseconds.
    CpuUserNs,
    /// Processor time in the kernel, in nanoseconds.
    CpuSystemNs,
    /// Time for which threads were ready to run and had no processor, in nanoseconds.
    RunQueueWaitNs,
    /// Time that the hypervisor took away, in nanoseconds. Hosts only.
    CpuStolenNs,
    /// Time for which processors were idle, in nanoseconds, of all processors together. Hosts only.
    CpuIdleNs,
    /// Instructions executed.
    Instructions,
    /// Processor cycles.
    Cycles,
    /// Bytes read from disks.
    DiskReadBytes,
    /// Bytes written to disks.
    DiskWrittenBytes,
    /// Completed read requests. Disks and hosts only.
    DiskReads,
    /// Completed write requests. Disks and hosts only.
    DiskWrites,
    /// Bytes of requests that followed the one before on the disk, where that can be known.
    DiskSequentialBytes,
    /// Requests that did not follow the one before, where that can be known.
    DiskRandomRequests,
    /// Time for which a disk had at least one request, in nanoseconds. Disks only.
    DiskBusyNs,
    /// Time for which threads waited for a disk, in nanoseconds.
    DiskWaitNs,
    /// Bytes received over the network, loopback left out.
    NetworkReceivedBytes,
    /// Bytes sent over the network, loopback left out.
    NetworkSentBytes,
    /// Bytes received over loopback.
    LoopbackReceivedBytes,
    /// Bytes sent over loopback.
    LoopbackSentBytes,
    /// Time for which TCP had data to send, in nanoseconds.
    SocketBusyNs,
    /// Of that, time for which the receiver's window was full, in nanoseconds.
    SocketReceiverLimitedNs,
    /// Of that, time for which the send buffer was too small, in nanoseconds.
    SocketSendBufferLimitedNs,
    /// Segments that TCP sent again.
    SocketRetransmits,
    /// Resident memory of a process, or used memory of a host, in bytes. A gauge.
    MemoryBytes,
    /// Memory of a host that is available, in bytes. A gauge.
    MemoryAvailableBytes,
    /// Time for which some task waited for a processor, in nanoseconds (pressure stall information).
    PressureCpuSomeNs,
    /// Time for which some task waited for a disk, in nanoseconds.
    PressureIoSomeNs,
    /// Time for which all tasks waited for a disk, in nanoseconds.
    PressureIoFullNs,
    /// Time for which some task waited for memory, in nanoseconds.
    PressureMemorySomeNs,
    /// Times that a thread gave up the processor to wait.
    VoluntarySwitches,
    /// Times that a thread was made to give up the processor.
    InvoluntarySwitches,
    /// Time for which a database session waited for a lock, in nanoseconds. Tasks only.
    LockWaitNs,
    /// Time for which a database session waited for its client, in nanoseconds. Tasks only.
    ClientWaitNs,
    /// Segments with data that TCP received.
    SocketSegmentsReceived,
    /// Segments with data that TCP sent.
    SocketSegmentsSent,
    /// Processor time in user mode and in the kernel together, in nanoseconds, where they are not told apart. Tasks
    /// only.
    CpuNs,
}

impl Figure {
    /// All of them, in the order of their numbers, which are part of the sample's format: new ones come last.
    pub const ALL: [Self; 36] = [
        Self::CpuUserNs,
        Self::CpuSystemNs,
        Self::RunQueueWaitNs,
        Self::CpuStolenNs,
        Self::CpuIdleNs,
        Self::Instructions,
        Self::Cycles,
        Self::DiskReadBytes,
        Self::DiskWrittenBytes,
        Self::DiskReads,
        Self::DiskWrites,
        Self::DiskSequentialBytes,
        Self::DiskRandomRequests,
        Self::DiskBusyNs,
        Self::DiskWaitNs,
        Self::NetworkReceivedBytes,
        Self::NetworkSentBytes,
        Self::LoopbackReceivedBytes,
        Self::LoopbackSentBytes,
        Self::SocketBusyNs,
        Self::SocketReceiverLimitedNs,
        Self::SocketSendBufferLimitedNs,
        Self::SocketRetransmits,
        Self::MemoryBytes,
        Self::MemoryAvailableBytes,
        Self::PressureCpuSomeNs,
        Self::PressureIoSomeNs,
        Self::PressureIoFullNs,
        Self::PressureMemorySomeNs,
        Self::VoluntarySwitches,
        Self::InvoluntarySwitches,
        Self::LockWaitNs,
        Self::ClientWaitNs,
        Self::SocketSegmentsReceived,
        Self::SocketSegmentsSent,
        Self::CpuNs,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::CpuUserNs => "processor time in user mode",
            Self::CpuSystemNs => "processor time in the kernel",
            Self::RunQueueWaitNs => "wait for a processor",
            Self::CpuStolenNs => "time taken by the hypervisor",
            Self::CpuIdleNs => "idle time of processors",
            Self::Instructions => "instructions",
            Self::Cycles => "processor cycles",
            Self::DiskReadBytes => "bytes read from disks",
            Self::DiskWrittenBytes => "bytes written to disks",
            Self::DiskReads => "read requests",
            Self::DiskWrites => "write requests",
            Self::DiskSequentialBytes => "bytes of sequential requests",
            Self::DiskRandomRequests => "random requests",
            Self::DiskBusyNs => "busy time of disks",
            Self::DiskWaitNs => "wait for disks",
            Self::NetworkReceivedBytes => "bytes received",
            Self::NetworkSentBytes => "bytes sent",
            Self::LoopbackReceivedBytes => "bytes received over loopback",
            Self::LoopbackSentBytes => "bytes sent over loopback",
            Self::SocketBusyNs => "busy time of sockets",
            Self::SocketReceiverLimitedNs => "time limited by receivers",
            Self::SocketSendBufferLimitedNs => "time limited by send buffers",
            Self::SocketRetransmits => "segments sent again",
            Self::MemoryBytes => "memory",
            Self::MemoryAvailableBytes => "available memory",
            Self::PressureCpuSomeNs => "pressure of processors",
            Self::PressureIoSomeNs => "pressure of disks, some tasks",
            Self::PressureIoFullNs => "pressure of disks, all tasks",
            Self::PressureMemorySomeNs => "pressure of memory",
            Self::VoluntarySwitches => "voluntary switches",
            Self::InvoluntarySwitches => "involuntary switches",
            Self::LockWaitNs => "wait for locks",
            Self::ClientWaitNs => "wait for the client",
            Self::SocketSegmentsReceived => "segments received",
            Self::SocketSegmentsSent => "segments sent",
            Self::CpuNs => "processor time",
        }
    }

    /// Whether it is a level at one moment, and not a sum since the beginning.
    pub fn is_gauge(self) -> bool {
        matches!(self, Self::MemoryBytes | Self::MemoryAvailableBytes)
    }
}

/// Figures of one subject. A figure that can't be had is missing, never 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Figures(std::collections::BTreeMap<Figure, u64>);

impl Figures {
    /// A figure; `None` if it can't be had.
    pub fn get(&self, figure: Figure) -> Option<u64> {
        self.0.get(&figure).copied()
    }

    /// Sets a figure, if there is one.
    pub fn set(&mut self, figure: Figure, value: impl Into<Option<u64>>) {
        match value.into() {
            Some(value) => drop(self.0.insert(figure, value)),
            None => drop(self.0.remove(&figure)),
        }
    }

    /// The figures that are there, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Figure, u64)> + '_ {
        self.0.iter().map(|(figure, value)| (*figure, *value))
    }
}

/// What a figure is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// The whole host.
    Host,
    /// A disk, by its name.
    Disk(String),
    /// A network interface, by its name.
    Interface(String),
    /// A process. The time at which it began, in nanoseconds after the host did, tells it from others with its number.
    Process {
        /// Its number.
        pid: u32,
        /// When it began.
        began_ns: u64,
    },
    /// The sockets of a process to one other host, by its address.
    Peer {
        /// The process.
        pid: u32,
        /// When the process began.
        began_ns: u64,
        /// The other host.
        address: core::net::IpAddr,
    },
    /// A part of a query that is counted by the program that runs it: a task of a stage, or a database session.
    Task {
        /// The query.
        query: String,
        /// Its stage, from 0.
        stage: u32,
        /// The task of the stage, from 0.
        task: u32,
    },
}

/// The figures of one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What they are of.
    pub subject: Subject,
    /// The figures.
    pub figures: Figures,
}

/// What an agent counted at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The agent's host, by name.
    pub host: String,
    /// The run of the agent: greater after each start. Counters of processes go on; the agent's own begin at 0.
    pub run: u64,
    /// The number of the sample within the run, from 0: gaps are lost samples.
    pub number: u64,
    /// When it was taken, in nanoseconds on the host's monotonic clock.
    pub at_ns: u64,
    /// The figures.
    pub entries: Vec<Entry>,
}
