//! The events of a simulation, ordered by virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::network::Message;

/// An event.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// A node's processor finishes its job.
    Done { node: usize },
    /// A node may find something to send.
    Wake { node: usize },
    /// A link can take the next message.
    Idle { link: usize },
    /// The end of a message has crossed a link.
    Arrived { message: Message },
    /// A message has passed the receiving node's inbound port.
    In { message: Message },
    /// A queue at the far end of a link has room.
    Credit { link: usize, class: usize },
    /// A direct connection is open.
    Opened { link: usize },
    /// Direct connections are reassigned.
    Period,
}

/// Events ordered by time, then by the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Event>,
    unused: Vec<usize>,
    made: u64,
}

impl Agenda {
    pub(super) fn add(&mut self, ns: u64, event: Event) {
        let slot = match self.unused.pop() {
            Some(slot) => {
                self.events[slot] = event;
                slot
            }
            None => {
                self.events.push(event);
                self.events.len() - 1
            }
        };
        self.heap.push(Reverse((ns, self.made, slot)));
        self.made += 1;
    }

    pub(super) fn next(&mut self) -> Option<(u64, Event)> {
        let Reverse((ns, _, slot)) = self.heap.pop()?;
        self.unused.push(slot);
        Some((ns, self.events[slot]))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}
