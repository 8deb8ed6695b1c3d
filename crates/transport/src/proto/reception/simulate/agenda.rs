//! The events of a simulation, ordered by virtual time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::proto::reception::Refusal;

/// An event. `connection` is the sender's number of its connection: events of earlier ones are void.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// The query reaches all senders.
    Query,
    /// A sender's deadline.
    SenderTimer { sender: u32 },
    /// The receiver's deadline.
    ReceiverTimer,
    /// A datagram reaches the receiver's socket.
    Datagram { sender: u32 },
    /// The receiver has read an announcement.
    Announced { sender: u32 },
    /// A connection request reaches the receiver.
    Syn { sender: u32, connection: u32, attempt: u32 },
    /// The system gives up connecting.
    Unreachable { sender: u32, connection: u32 },
    /// The receiver has accepted a connection, and knows whose it is.
    Connected { sender: u32, connection: u32 },
    /// The receiver's own connection is open.
    Opened { sender: u32, connection: u32 },
    /// The request reaches the sender.
    Requested { sender: u32, connection: u32, from_message: u32, grant_bytes: u64 },
    /// The sender can send its first message.
    Ready { sender: u32, connection: u32 },
    /// More credit reaches the sender.
    Granted { sender: u32, connection: u32, bytes: u64 },
    /// A message reaches the receiver.
    Message { sender: u32, connection: u32, number: u32 },
    /// The end of a part reaches the receiver.
    End { sender: u32, connection: u32 },
    /// The receiver notices that a connection is gone.
    Lost { sender: u32, connection: u32 },
    /// The receiver has decoded a message.
    Decoded { sender: u32 },
    /// The sender's connection is refused.
    Refused { sender: u32, connection: u32, reason: Refusal },
    /// An acknowledgement reaches the sender.
    Acknowledged { sender: u32 },
    /// The sender learns that its part isn't wanted.
    Stopped { sender: u32 },
    /// The sender is asked again.
    Asked { sender: u32 },
}

#[derive(Debug)]
struct Entry {
    ns: u64,
    made: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.ns, self.made).cmp(&(other.ns, other.made))
    }
}

/// Events ordered by time, then by the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<Entry>>,
    made: u64,
}

impl Agenda {
    pub(super) fn add(&mut self, ns: u64, event: Event) {
        self.heap.push(Reverse(Entry { ns, made: self.made, event }));
        self.made += 1;
    }

    pub(super) fn next(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse(entry)| (entry.ns, entry.event))
    }
}
