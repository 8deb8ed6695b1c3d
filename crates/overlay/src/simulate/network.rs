//! The state of a simulation's links and nodes.

use std::collections::{BTreeMap, VecDeque};

use crate::forwarding::{Classes, Credits};
use crate::latency::Histogram;
use crate::routes::Routes;

/// A message in transit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) hops: usize,
    pub(super) queued_ns: u64,
    /// The queue that holds it: the link whose far end it is at, and the class; none at its sender.
    pub(super) slot: Option<(usize, usize)>,
}

/// Whether a link accepts messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// A link of the topology. It stays even if a direct connection between the same nodes comes and goes,
    /// which happens when links are used one way and direct connections both ways.
    Stays,
    Open,
    Opening,
    /// Messages sent before it was closed still arrive.
    Closed,
}

/// One direction of a connection.
#[derive(Debug)]
pub(super) struct DirectedLink {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) state: State,
    /// It is carrying a message.
    pub(super) busy: bool,
    /// Room in the queues at the far end.
    pub(super) credits: Credits,
    /// Messages at the near end, by the class they will have at the far end.
    pub(super) waiting: Vec<VecDeque<Message>>,
    pub(super) waiting_count: usize,
}

impl DirectedLink {
    /// Takes the next message that can be sent; messages with the most hops go first.
    fn take(&mut self) -> Option<Message> {
        if self.busy || self.waiting_count == 0 {
            return None;
        }
        for (class, waiting) in self.waiting.iter_mut().enumerate().rev() {
            if !waiting.is_empty() && self.credits.take(class) {
                self.waiting_count -= 1;
                return waiting.pop_front();
            }
        }
        None
    }

    /// Whether messages may wait for it.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Stays | State::Open)
    }

    /// Closes a direct connection and returns the waiting messages, which need another route.
    pub(super) fn close(&mut self) -> Vec<Message> {
        if self.state == State::Stays {
            return Vec::new();
        }
        self.state = State::Closed;
        self.waiting_count = 0;
        self.waiting.iter_mut().flat_map(std::mem::take).collect()
    }
}

/// A job of a node's processor.
#[derive(Debug, Clone, Copy)]
pub(super) enum Job {
    Send { link: usize, message: Message },
    Receive { message: Message },
}

/// A node.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Links by neighbour.
    pub(super) links: BTreeMap<usize, usize>,
    /// Links in round-robin order, and the position of the next turn.
    pub(super) order: Vec<usize>,
    pub(super) turn: usize,
    pub(super) job: Option<Job>,
    /// Whether the processor sends next, if it can.
    pub(super) sends_next: bool,
    /// Messages that arrived and wait for the processor.
    pub(super) inbox: VecDeque<Message>,
    /// When the outbound and inbound ports become free.
    pub(super) out_free_ns: u64,
    pub(super) in_free_ns: u64,
    /// When it is scheduled to look for something to send.
    pub(super) wakes_ns: Option<u64>,
    pub(super) own_queued: usize,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) forwarded: u64,
    pub(super) sockets_max: usize,
    /// When its processor last finished a job.
    pub(super) last_ns: u64,
    pub(super) latency: Histogram,
}

/// All links and nodes.
#[derive(Debug)]
pub(super) struct Mesh {
    pub(super) links: Vec<DirectedLink>,
    pub(super) nodes: Vec<Node>,
    classes: Classes,
    queue_messages: usize,
}

impl Mesh {
    pub(super) fn new(routes: &Routes, classes: Classes, queue_messages: usize) -> Self {
        let topology = routes.topology();
        let nodes = (0..topology.nodes()).map(|_| Node::default()).collect();
        let mut mesh = Self { links: Vec::new(), nodes, classes, queue_messages };
        for from in 0..topology.nodes() {
            for to in topology.links(from) {
                let link = mesh.link(from, *to as usize);
                mesh.links[link].state = State::Stays;
            }
        }
        mesh
    }

    /// The link between two nodes. If there is none, a closed link is added.
    pub(super) fn link(&mut self, from: usize, to: usize) -> usize {
        let link = self.links.len();
        let node = &mut self.nodes[from];
        if let Some(link) = node.links.get(&to) {
            return *link;
        }
        node.links.insert(to, link);
        node.order.push(link);
        self.links.push(DirectedLink {
            from,
            to,
            state: State::Closed,
            busy: false,
            credits: Credits::new(&self.classes, self.queue_messages),
            waiting: vec![VecDeque::new(); self.classes.count()],
            waiting_count: 0,
        });
        link
    }

    /// The next message that a node sends, and its link. Links take turns.
    pub(super) fn next_message(&mut self, node: usize) -> Option<(usize, Message)> {
        let Node { order, turn, .. } = &mut self.nodes[node];
        for i in 0..order.len() {
            let at = (*turn + i) % order.len();
            let link = order[at];
            if let Some(message) = self.links[link].take() {
                *turn = at + 1;
                return Some((link, message));
            }
        }
        None
    }
}
