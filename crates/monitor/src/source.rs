//! Where figures come from, or why they can't be had.

use std::borrow::Cow;
use std::collections::BTreeMap;

use lightship_usage::{Figure, Subject};

use Figure::{
    CpuIdleNs, CpuStolenNs, CpuSystemNs, CpuUserNs, Cycles, DiskBusyNs, DiskRandomRequests, DiskReadBytes,
    DiskReads, DiskSequentialBytes, DiskWaitNs, DiskWrites, DiskWrittenBytes, Instructions,
    InvoluntarySwitches, LoopbackReceivedBytes, LoopbackSentBytes, MemoryAvailableBytes, MemoryBytes,
    NetworkReceivedBytes, NetworkSentBytes, PressureCpuSomeNs, PressureIoFullNs, PressureIoSomeNs,
    PressureMemorySomeNs, RunQueueWaitNs, SocketBusyNs, SocketReceiverLimitedNs, SocketRetransmits,
    SocketSendBufferLimitedNs, VoluntarySwitches,
};

/// Most bytes of a text in [`Availability`]; longer ones are cut.
pub const TEXT_BYTES_MAX: usize = 160;

/// A kind of [`Subject`] whose figures an agent counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Scope {
    /// The whole host.
    Host,
    /// One disk.
    Disk,
    /// One network interface.
    Interface,
    /// One process.
    Process,
    /// The sockets of a process to one other host.
    Peer,
}

impl Scope {
    /// All of them, in the order of their numbers, which are part of the datagrams' format.
    pub const ALL: [Self; 5] = [Self::Host, Self::Disk, Self::Interface, Self::Process, Self::Peer];

    /// The scope of a subject; `None` for tasks, which programs count themselves.
    pub fn of(subject: &Subject) -> Option<Self> {
        match subject {
            Subject::Host => Some(Self::Host),
            Subject::Disk(_) => Some(Self::Disk),
            Subject::Interface(_) => Some(Self::Interface),
            Subject::Process { .. } => Some(Self::Process),
            Subject::Peer { .. } => Some(Self::Peer),
            Subject::Task { .. } => None,
        }
    }

    /// The figures that a subject of this scope can have.
    pub fn figures(self) -> &'static [Figure] {
        match self {
            Self::Host => &[
                CpuUserNs,
                CpuSystemNs,
                RunQueueWaitNs,
                CpuStolenNs,
                CpuIdleNs,
                Instructions,
                Cycles,
                DiskReadBytes,
                DiskWrittenBytes,
                DiskReads,
                DiskWrites,
                DiskSequentialBytes,
                DiskRandomRequests,
                NetworkReceivedBytes,
                NetworkSentBytes,
                LoopbackReceivedBytes,
                LoopbackSentBytes,
                SocketBusyNs,
                SocketReceiverLimitedNs,
                SocketSendBufferLimitedNs,
                SocketRetransmits,
                MemoryBytes,
                MemoryAvailableBytes,
                PressureCpuSomeNs,
                PressureIoSomeNs,
                PressureIoFullNs,
                PressureMemorySomeNs,
            ],
            Self::Disk => &[
                DiskReadBytes,
                DiskWrittenBytes,
                DiskReads,
                DiskWrites,
                DiskSequentialBytes,
                DiskRandomRequests,
                DiskBusyNs,
            ],
            Self::Interface => {
                &[NetworkReceivedBytes, NetworkSentBytes, LoopbackReceivedBytes, LoopbackSentBytes]
            }
            Self::Process => &[
                CpuUserNs,
                CpuSystemNs,
                RunQueueWaitNs,
                Instructions,
                Cycles,
                DiskReadBytes,
                DiskWrittenBytes,
                DiskSequentialBytes,
                DiskRandomRequests,
                DiskWaitNs,
                NetworkReceivedBytes,
                NetworkSentBytes,
                LoopbackReceivedBytes,
                LoopbackSentBytes,
                SocketBusyNs,
                SocketReceiverLimitedNs,
                SocketSendBufferLimitedNs,
                SocketRetransmits,
                MemoryBytes,
                VoluntarySwitches,
                InvoluntarySwitches,
            ],
            Self::Peer => &[
                NetworkReceivedBytes,
                NetworkSentBytes,
                LoopbackReceivedBytes,
                LoopbackSentBytes,
                SocketBusyNs,
                SocketReceiverLimitedNs,
                SocketSendBufferLimitedNs,
                SocketRetransmits,
            ],
        }
    }
}

/// Whether a figure can be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Availability {
    /// It can.
    Available {
        /// Where it comes from, and what it leaves out.
        from: Cow<'static, str>,
        /// The smallest difference that it can show, in the figure's own unit.
        resolution: u64,
    },
    /// It can't.
    Unavailable {
        /// Why not.
        reason: Cow<'static, str>,
    },
}

/// The source of each figure, by scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    rows: BTreeMap<(Scope, Figure), Availability>,
    version: u64,
}

impl Default for Sources {
    fn default() -> Self {
        let mut this = Self { rows: BTreeMap::new(), version: 0 };
        for scope in Scope::ALL {
            this.unavailable(scope, scope.figures(), "not read yet");
        }
        this
    }
}

impl Sources {
    /// A table without rows, for one that is received.
    pub fn empty() -> Self {
        Self { rows: BTreeMap::new(), version: 0 }
    }

    /// The source of a figure; `None` if a subject of that scope can't have it.
    pub fn get(&self, scope: Scope, figure: Figure) -> Option<&Availability> {
        self.rows.get(&(scope, figure))
    }

    /// All rows, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Scope, Figure, &Availability)> {
        self.rows.iter().map(|((scope, figure), availability)| (*scope, *figure, availability))
    }

    /// Grows with each change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Sets one row. A row that the scope can't have is ignored, so that the table is bounded.
    pub fn set(&mut self, scope: Scope, figure: Figure, availability: Availability) {
        if scope.figures().contains(&figure) && self.rows.get(&(scope, figure)) != Some(&availability) {
            self.rows.insert((scope, figure), cut(availability));
            self.version += 1;
        }
    }

    /// Says where figures come from. `resolution` is in the figure's unit.
    pub(crate) fn available(
        &mut self,
        scope: Scope,
        figures: &[Figure],
        from: impl Into<Cow<'static, str>>,
        resolution: u64,
    ) {
        let from = from.into();
        for figure in figures {
            self.set(scope, *figure, Availability::Available { from: from.clone(), resolution });
        }
    }

    /// Says why figures can't be had.
    pub(crate) fn unavailable(
        &mut self,
        scope: Scope,
        figures: &[Figure],
        reason: impl Into<Cow<'static, str>>,
    ) {
        let reason = reason.into();
        for figure in figures {
            self.set(scope, *figure, Availability::Unavailable { reason: reason.clone() });
        }
    }

    /// Says where figures come from if they were read, and otherwise why not.
    pub(crate) fn note(
        &mut self,
        scope: Scope,
        figures: &[Figure],
        failed: Option<&str>,
        from: impl Into<Cow<'static, str>>,
        resolution: u64,
    ) {
        match failed {
            None => self.available(scope, figures, from, resolution),
            Some(reason) => self.unavailable(scope, figures, reason.to_owned()),
        }
    }
}

fn cut(availability: Availability) -> Availability {
    let short = |text: Cow<'static, str>| match text
        .char_indices()
        .find(|(at, c)| at + c.len_utf8() > TEXT_BYTES_MAX)
    {
        Some((at, _)) => text.get(..at).unwrap_or_default().to_owned().into(),
        None => text,
    };
    match availability {
        Availability::Available { from, resolution } => {
            Availability::Available { from: short(from), resolution }
        }
        Availability::Unavailable { reason } => Availability::Unavailable { reason: short(reason) },
    }
}

/// What an agent says of its host, beside the figures.
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
    /// What the agent can't see, in words, for example the processes outside its container. Empty if it sees all.
    pub hidden: String,
    /// Processes that are counted.
    pub processes: u32,
    /// Processes that the selection names, but that are left out because there are more than the limit.
    pub processes_left_out: u32,
    /// Entries left out of samples so far, because there were more than the limit.
    pub entries_left_out: u64,
    /// Sockets that could not be read or that were above the limit, in the last sample.
    pub sockets_left_out: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_table_has_a_row_for_each_figure_of_each_scope() {
        let sources = Sources::default();
        let expected: usize = Scope::ALL.iter().map(|scope| scope.figures().len()).sum();
        assert_eq!(sources.iter().count(), expected);
        assert!(sources.iter().all(|(_, _, row)| matches!(row, Availability::Unavailable { .. })));
    }

    #[test]
    fn only_changes_raise_the_version_and_long_texts_are_cut() {
        let mut sources = Sources::default();
        let before = sources.version();
        sources.available(Scope::Host, &[CpuUserNs], "/proc/stat", 1);
        sources.available(Scope::Host, &[CpuUserNs], "/proc/stat", 1);
        assert_eq!(sources.version(), before + 1);
        sources.unavailable(Scope::Host, &[CpuUserNs], "é".repeat(200));
        let Some(Availability::Unavailable { reason }) = sources.get(Scope::Host, CpuUserNs) else {
            panic!()
        };
        assert_eq!(reason.len(), TEXT_BYTES_MAX);
        sources.available(Scope::Peer, &[CpuUserNs], "nothing", 1);
        assert_eq!(sources.get(Scope::Peer, CpuUserNs), None);
    }
}
