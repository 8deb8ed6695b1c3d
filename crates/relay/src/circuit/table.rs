//! The circuits of a node as a state machine: handles received messages, and chooses the next one to send.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;

use super::header::{CircuitFrameKind, CircuitHeader, Why};
use super::pipe::{CircuitSizes, Pipe};
use crate::error::{RelayError, Result};

/// Refused circuits of a peer that may be open beyond twice the limit of circuits. A correct node with
/// about the same limit can't have more open.
const REFUSED_MAX: usize = 1024;

/// Circuits with little to send that may go before one with more.
const BRIEF_RUN_MAX: usize = 8;

/// Identifies a circuit on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// The node at the other end.
    pub(super) peer: u32,
    pub(super) circuit: u32,
    /// Whether this node opened it.
    pub(super) by_us: bool,
}

/// Counts of a node's circuits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) open_max: usize,
    pub(super) opened: u64,
    pub(super) accepted: u64,
    pub(super) refused: u64,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
}

/// All circuits of a node.
#[derive(Debug)]
pub(super) struct CircuitTable {
    node: u32,
    nodes: u32,
    pub(super) sizes: CircuitSizes,
    circuits_max: usize,
    pipes: HashMap<Key, Pipe>,
    /// Circuits that each peer has opened, including refused ones.
    theirs: BTreeMap<u32, usize>,
    /// Open circuits, without refused ones.
    open: usize,
    /// Nodes that are cut off, and why.
    off: BTreeMap<u32, RelayError>,
    /// The error that ended all circuits.
    failed: Option<RelayError>,
    closing: bool,
    /// Circuits with something urgent to send. A circuit is in a queue at most once.
    urgent: VecDeque<Key>,
    ready: VecDeque<Key>,
    /// Ready circuits with little to send, and how many of them have gone before the others in a row.
    brief: VecDeque<Key>,
    brief_run: usize,
    offs: VecDeque<u32>,
    /// The last message from `next_message` may not have been sent yet.
    sending: bool,
    accepts: VecDeque<Key>,
    accepting: bool,
    next_circuit: u32,
    pub(super) counts: Counts,
}

impl CircuitTable {
    pub(super) fn new(node: u32, nodes: u32, sizes: CircuitSizes, circuits_max: usize) -> Self {
        Self {
            node,
            nodes,
            sizes,
            circuits_max,
            pipes: HashMap::new(),
            theirs: BTreeMap::new(),
            open: 0,
            off: BTreeMap::new(),
            failed: None,
            closing: false,
            urgent: VecDeque::new(),
            ready: VecDeque::new(),
            brief: VecDeque::new(),
            brief_run: 0,
            offs: VecDeque::new(),
            sending: false,
            accepts: VecDeque::new(),
            accepting: true,
            next_circuit: 0,
            counts: Counts::default(),
        }
    }

    /// Opens a circuit.
    pub(super) fn open(&mut self, peer: u32) -> Result<Key> {
        self.check(peer)?;
        if peer == self.node || peer >= self.nodes {
            let (node, nodes) = (self.node, self.nodes);
            let message =
                format!("no circuit from node {node} to node {peer}: expected another of {nodes} nodes");
            return Err(RelayError::Config(message));
        }
        if self.open >= self.circuits_max {
            return Err(RelayError::CircuitsFull { max: self.circuits_max });
        }
        let key = loop {
            self.next_circuit = self.next_circuit.wrapping_add(1);
            let key = Key { peer, circuit: self.next_circuit, by_us: true };
            if !self.pipes.contains_key(&key) {
                break key;
            }
        };
        self.insert(key, Pipe::new(key.circuit, true, self.sizes));
        self.counts.opened += 1;
        self.schedule(key);
        Ok(key)
    }

    /// The next circuit that was opened to this node; `None` if there is none now, an error if there never
    /// will be.
    pub(super) fn accept(&mut self) -> Result<Option<Key>> {
        loop {
            if self.closing {
                return Err(RelayError::Closed);
            }
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            match self.accepts.pop_front() {
                // It was cut off in the meantime.
                Some(key) if !self.pipes.contains_key(&key) => {}
                Some(key) => {
                    self.counts.accepted += 1;
                    return Ok(Some(key));
                }
                None => return Ok(None),
            }
        }
    }

    /// Refuses all circuits of others from now on.
    pub(super) fn accept_no_more(&mut self) {
        self.accepting = false;
        while let Some(key) = self.accepts.pop_front() {
            self.orphan(key, Why::Unwanted);
        }
    }

    /// The circuit's pipe, or the error that ended it.
    pub(super) fn pipe(&mut self, key: Key) -> Result<&mut Pipe> {
        self.check(key.peer)?;
        self.pipes.get_mut(&key).ok_or(RelayError::Closed)
    }

    fn check(&self, peer: u32) -> Result<()> {
        if let Some(error) = self.failed.as_ref().or_else(|| self.off.get(&peer)) {
            return Err(error.clone());
        }
        if self.closing { Err(RelayError::Closed) } else { Ok(()) }
    }

    /// Marks a circuit that was dropped on this node.
    pub(super) fn orphan(&mut self, key: Key, why: Why) {
        if let Some(pipe) = self.pipes.get_mut(&key) {
            pipe.orphan(why);
            self.schedule(key);
            self.forget_if_over(key);
        }
    }

    /// Puts the circuit into the queues for sending, if it has something to send.
    pub(super) fn schedule(&mut self, key: Key) {
        let Some(pipe) = self.pipes.get_mut(&key) else { return };
        if pipe.has_urgent() && !std::mem::replace(&mut pipe.is_urgent, true) {
            self.urgent.push_back(key);
        }
        if pipe.is_ready() && !std::mem::replace(&mut pipe.is_queued, true) {
            let queue = if pipe.send.is_brief() { &mut self.brief } else { &mut self.ready };
            queue.push_back(key);
        }
    }

    /// Whether there is a message to send.
    pub(super) fn has_message(&self) -> bool {
        let queues = [&self.urgent, &self.brief, &self.ready];
        !self.offs.is_empty() || queues.into_iter().any(|queue| !queue.is_empty())
    }

    /// Whether there is a circuit to accept, or never will be.
    pub(super) fn can_accept(&self) -> bool {
        !self.accepts.is_empty() || self.closing || self.failed.is_some()
    }

    /// Whether no circuit to any node can be opened any more.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some() || self.off.len() as u32 + 1 >= self.nodes
    }

    /// The error that ended all circuits.
    pub(super) fn error(&self) -> Option<RelayError> {
        self.failed.clone()
    }

    /// Whether no circuit is open and nothing is to be sent.
    pub(super) fn is_idle(&self) -> bool {
        self.failed.is_some() || (self.pipes.is_empty() && !self.sending && !self.has_message())
    }

    /// Circuits that are open, or not yet forgotten.
    pub(super) fn open_count(&self) -> usize {
        self.open
    }

    /// The next message and its destination. The previous one must have been sent.
    pub(super) fn next_message(&mut self) -> Option<(u32, Bytes)> {
        let next = self.choose();
        self.sending = next.is_some();
        next
    }

    fn choose(&mut self) -> Option<(u32, Bytes)> {
        if let Some(peer) = self.offs.pop_front() {
            return Some((peer, Bytes::copy_from_slice(&CircuitHeader::OFF.encode())));
        }
        while let Some(key) = self.urgent.pop_front() {
            let Some(pipe) = self.pipes.get_mut(&key) else { continue };
            pipe.is_urgent = false;
            let message = pipe.urgent();
            self.schedule(key);
            self.forget_if_over(key);
            if let Some(message) = message {
                return Some((key.peer, message));
            }
        }
        while let Some(key) = self.next_ready() {
            let Some(pipe) = self.pipes.get_mut(&key) else { continue };
            pipe.is_queued = false;
            let message = pipe.ready();
            self.schedule(key);
            self.forget_if_over(key);
            if let Some((message, bytes)) = message {
                self.counts.sent_bytes += bytes as u64;
                return Some((key.peer, message));
            }
        }
        None
    }

    /// Circuits with little to send go first, such as a heartbeat or a request, which would otherwise wait
    /// for a turn of all others. The others still get their turn.
    fn next_ready(&mut self) -> Option<Key> {
        let brief = if self.brief_run < BRIEF_RUN_MAX { self.brief.pop_front() } else { None };
        self.brief_run = if brief.is_some() { self.brief_run + 1 } else { 0 };
        brief.or_else(|| self.ready.pop_front()).or_else(|| self.brief.pop_front())
    }

    /// Handles a message. A node that breaks the protocol is cut off: its later messages are ignored.
    pub(super) fn received(&mut self, from: u32, message: &Bytes) {
        if self.failed.is_some() || self.off.contains_key(&from) {
            return;
        }
        if let Err(reason) = self.take(from, message) {
            self.cut_off(from, RelayError::CircuitRules { node: from, reason });
            self.offs.push_back(from);
        }
    }

    fn take(&mut self, from: u32, message: &Bytes) -> Result<(), &'static str> {
        let (header, bytes) = CircuitHeader::decode(message)?;
        if header.kind == CircuitFrameKind::Off {
            self.cut_off(from, RelayError::CutOff { node: from });
            return Ok(());
        }
        let key = Key { peer: from, circuit: header.circuit, by_us: !header.by_sender };
        if !self.pipes.contains_key(&key) {
            match header.kind {
                // Late credit for a circuit that is over.
                CircuitFrameKind::Credit => return Ok(()),
                _ if key.by_us => return Err("unknown circuit"),
                _ => self.admit(key)?,
            }
        }
        let Some(pipe) = self.pipes.get_mut(&key) else { return Ok(()) };
        self.counts.received_bytes += bytes.len() as u64;
        if pipe.handle(&header, bytes)? {
            if self.accepting {
                self.accepts.push_back(key);
            } else {
                self.orphan(key, Why::Unwanted);
            }
        }
        self.schedule(key);
        self.forget_if_over(key);
        Ok(())
    }

    /// Adds a circuit that another node opens.
    fn admit(&mut self, key: Key) -> Result<(), &'static str> {
        if self.theirs.get(&key.peer).is_some_and(|count| *count >= 2 * self.circuits_max + REFUSED_MAX) {
            return Err("too many circuits");
        }
        let refused = match () {
            () if self.closing => Some(Why::Closing),
            () if !self.accepting => Some(Why::Unwanted),
            () if self.open >= self.circuits_max => Some(Why::Full),
            () => None,
        };
        let mut pipe = Pipe::new(key.circuit, false, self.sizes);
        if let Some(why) = refused {
            // It stays until nothing more of it can arrive.
            pipe.is_refused = true;
            pipe.orphan(why);
            self.counts.refused += 1;
        }
        self.insert(key, pipe);
        Ok(())
    }

    fn insert(&mut self, key: Key, pipe: Pipe) {
        if !pipe.is_refused {
            self.open += 1;
            self.counts.open_max = self.counts.open_max.max(self.open);
        }
        if !key.by_us {
            *self.theirs.entry(key.peer).or_default() += 1;
        }
        self.pipes.insert(key, pipe);
    }

    fn forget_if_over(&mut self, key: Key) {
        if self.pipes.get(&key).is_some_and(Pipe::is_over) {
            self.forget(key);
        }
    }

    fn forget(&mut self, key: Key) {
        let Some(mut pipe) = self.pipes.remove(&key) else { return };
        pipe.wake();
        self.open -= usize::from(!pipe.is_refused);
        if let Some(count) = self.theirs.get_mut(&key.peer).filter(|_| !key.by_us) {
            *count -= 1;
        }
    }

    /// Ends all circuits with a node, and refuses new ones.
    pub(super) fn cut_off(&mut self, peer: u32, error: RelayError) {
        self.off.entry(peer).or_insert(error);
        let keys: Vec<_> = self.pipes.keys().filter(|key| key.peer == peer).copied().collect();
        keys.into_iter().for_each(|key| self.forget(key));
    }

    /// Ends all circuits with an error.
    pub(super) fn fail(&mut self, error: RelayError) {
        self.failed.get_or_insert(error);
        let keys: Vec<_> = self.pipes.keys().copied().collect();
        keys.into_iter().for_each(|key| self.forget(key));
        (self.urgent, self.ready, self.brief, self.offs) = Default::default();
        self.accepts.clear();
    }

    /// Opens and accepts no more circuits, and treats the open ones as dropped.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.accepts.clear();
        let keys: Vec<_> = self.pipes.keys().copied().collect();
        keys.into_iter().for_each(|key| self.orphan(key, Why::Closing));
    }
}
