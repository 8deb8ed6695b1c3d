//! The things that are counted.

use serde::{Deserialize, Serialize};

use crate::source::SubjectKind;
use crate::source::SubjectKind::{Disk, Host, Interface, Peer, Process};

/// Makes [`Figure`] of a table: documentation, variant, name in reports, and the kinds of subjects that agents count it
/// of.
macro_rules! figures {
    ($($(#[$doc:meta])+ $figure:ident: $name:literal, [$($kind:ident),*];)+) => {
        /// A thing that is counted. Counters only grow, so that a lost sample loses no total; gauges are marked as
        /// such. The numbers of the variants are part of the datagrams' format: new ones come last.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[repr(u8)]
        pub enum Figure {
            $($(#[$doc])+ $figure,)+
        }

        impl Figure {
            const COUNT: usize = [$($name),+].len();

            /// All of them, in the order of their numbers.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$figure),+];

            /// Its name in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$figure => $name,)+
                }
            }

            /// The kinds of subjects that an agent counts it of, if the system has it. Tasks are not among them:
            /// programs count them themselves, and they can have any figure.
            pub fn kinds(self) -> &'static [SubjectKind] {
                match self {
                    $(Self::$figure => &[$($kind),*],)+
                }
            }
        }
    };
}

figures! {
    /// Processor time in user mode, in nanoseconds.
    CpuUserNs: "processor time in user mode", [Host, Process];
    /// Processor time in the kernel, in nanoseconds.
    CpuSystemNs: "processor time in the kernel", [Host, Process];
    /// Time for which threads were ready to run and had no processor, in nanoseconds.
    RunQueueWaitNs: "wait for a processor", [Host, Process];
    /// Time that the hypervisor took away, in nanoseconds. Hosts only.
    CpuStolenNs: "time taken by the hypervisor", [Host];
    /// Time for which processors were idle, in nanoseconds, of all processors together. Hosts only.
    CpuIdleNs: "idle time of processors", [Host];
    /// Instructions executed.
    Instructions: "instructions", [Host, Process];
    /// Processor cycles.
    Cycles: "processor cycles", [Host, Process];
    /// Bytes read from disks.
    DiskReadBytes: "bytes read from disks", [Host, Disk, Process];
    /// Bytes written to disks.
    DiskWrittenBytes: "bytes written to disks", [Host, Disk, Process];
    /// Completed read requests. Disks and hosts only.
    DiskReads: "read requests", [Host, Disk];
    /// Completed write requests. Disks and hosts only.
    DiskWrites: "write requests", [Host, Disk];
    /// Bytes of requests that followed the one before on the disk, where that can be known.
    DiskSequentialBytes: "bytes of sequential requests", [Host, Disk, Process];
    /// Requests that did not follow the one before, where that can be known.
    DiskRandomRequests: "random requests", [Host, Disk, Process];
    /// Time for which a disk had at least one request, in nanoseconds. Disks only.
    DiskBusyNs: "busy time of disks", [Disk];
    /// Time for which threads waited for a disk, in nanoseconds.
    DiskWaitNs: "wait for disks", [Process];
    /// Bytes received over the network, loopback left out.
    NetworkReceivedBytes: "bytes received", [Host, Interface, Process, Peer];
    /// Bytes sent over the network, loopback left out.
    NetworkSentBytes: "bytes sent", [Host, Interface, Process, Peer];
    /// Bytes received over loopback.
    LoopbackReceivedBytes: "bytes received over loopback", [Host, Interface, Process, Peer];
    /// Bytes sent over loopback.
    LoopbackSentBytes: "bytes sent over loopback", [Host, Interface, Process, Peer];
    /// Time for which TCP had data to send, in nanoseconds.
    SocketBusyNs: "busy time of sockets", [Host, Process, Peer];
    /// Of that, time for which the receiver's window was full, in nanoseconds.
    SocketReceiverLimitedNs: "time limited by receivers", [Host, Process, Peer];
    /// Of that, time for which the send buffer was too small, in nanoseconds.
    SocketSendBufferLimitedNs: "time limited by send buffers", [Host, Process, Peer];
    /// Segments that TCP sent again.
    SocketRetransmits: "segments sent again", [Host, Process, Peer];
    /// Resident memory of a process, or used memory of a host, in bytes. A gauge.
    MemoryBytes: "memory", [Host, Process];
    /// Memory of a host that is available, in bytes. A gauge.
    MemoryAvailableBytes: "available memory", [Host];
    /// Time for which some task waited for a processor, in nanoseconds (pressure stall information).
    PressureCpuSomeNs: "pressure of processors", [Host];
    /// Time for which some task waited for a disk, in nanoseconds.
    PressureIoSomeNs: "pressure of disks, some tasks", [Host];
    /// Time for which all tasks waited for a disk, in nanoseconds.
    PressureIoFullNs: "pressure of disks, all tasks", [Host];
    /// Time for which some task waited for memory, in nanoseconds.
    PressureMemorySomeNs: "pressure of memory", [Host];
    /// Times that a thread gave up the processor to wait.
    VoluntarySwitches: "voluntary switches", [Process];
    /// Times that a thread was made to give up the processor.
    InvoluntarySwitches: "involuntary switches", [Process];
    /// Time for which a database session waited for a lock, in nanoseconds. Tasks only.
    LockWaitNs: "wait for locks", [];
    /// Time for which a database session waited for its client, in nanoseconds. Tasks only.
    ClientWaitNs: "wait for the client", [];
    /// Segments with data that TCP received.
    SocketSegmentsReceived: "segments received", [Host, Process, Peer];
    /// Segments with data that TCP sent.
    SocketSegmentsSent: "segments sent", [Host, Process, Peer];
    /// Processor time in user mode and in the kernel together, in nanoseconds, where they are not told apart. Tasks
    /// only.
    CpuNs: "processor time", [];
    /// Of the wait for a processor, the time for which the limit of a control group held threads back, in nanoseconds.
    QuotaWaitNs: "wait for the limit of the control group", [Process];
}

impl Figure {
    /// Whether it is a level at one moment, and not a sum since the beginning.
    pub fn is_gauge(self) -> bool {
        matches!(self, Self::MemoryBytes | Self::MemoryAvailableBytes)
    }

    /// Whether it is a wait of threads that the kernel counts when it ends: until then, the counter stands still.
    pub(crate) fn is_counted_at_end(self) -> bool {
        matches!(self, Self::DiskWaitNs | Self::RunQueueWaitNs | Self::QuotaWaitNs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_numbers_of_the_format_and_distinct_names() {
        // Those of the first and the last figure of the datagrams' version 1.
        assert_eq!((Figure::CpuUserNs as u8, Figure::SocketSegmentsSent as u8), (0, 34));
        assert!((0..).zip(Figure::ALL).all(|(number, figure)| figure as u8 == number));
        let names: std::collections::BTreeSet<&str> = Figure::ALL.into_iter().map(Figure::name).collect();
        assert_eq!(names.len(), Figure::COUNT);
        assert_eq!(Figure::DiskBusyNs.kinds(), [Disk]);
    }
}
