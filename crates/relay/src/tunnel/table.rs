//! The tunnels of a node, without its relay.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::task::{Poll, Waker};

use bytes::Bytes;
use lightship_wire::frame::{FrameHeader, FrameKind, HEADER_BYTES};

use super::TunnelsConfig;
use crate::error::{RelayError, Result};
use crate::frame::RoutedFrame;

/// Tunnels of a peer that may be opened out of order.
const SKIPPED_MAX: usize = 1024;
/// Refused tunnels of a peer that it has not ended yet.
const REFUSED_MAX: usize = 1024;

/// A tunnel, as one of its ends names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) peer: u32,
    /// Its number, given by the end that opened it.
    pub(super) tunnel: u32,
    pub(super) opened_here: bool,
}

/// One end of a tunnel.
#[derive(Debug)]
struct End {
    /// Frames in order that were not read.
    unread: VecDeque<(FrameHeader, Bytes)>,
    /// Frames that have overtaken others, by number.
    early: HashMap<u32, RoutedFrame>,
    /// Of both, with their headers.
    held_bytes: u64,
    /// The number of the next frame in order.
    next: u32,
    /// The number of the next frame to send.
    sent: u32,
    /// The other end sends nothing more.
    peer_ended: bool,
    is_read: bool,
    is_written: bool,
    error: Option<RelayError>,
    waker: Option<Waker>,
}

impl End {
    fn new() -> Self {
        Self {
            unread: VecDeque::new(),
            early: HashMap::new(),
            held_bytes: 0,
            next: 0,
            sent: 0,
            peer_ended: false,
            is_read: true,
            is_written: true,
            error: None,
            waker: None,
        }
    }

    fn is_over(&self) -> bool {
        self.peer_ended && !self.is_read && !self.is_written
    }

    /// Takes a frame that has arrived, and all that it lets follow.
    fn take(&mut self, frame: RoutedFrame) -> std::result::Result<(), String> {
        // More than half of all numbers ahead is behind.
        let is_behind = frame.number.wrapping_sub(self.next) > u32::MAX / 2;
        if is_behind || self.peer_ended || self.early.contains_key(&frame.number) {
            return Err(format!("frame {} of tunnel {} has no place", frame.number, frame.tunnel));
        }
        self.held_bytes += bytes_held(&frame.part);
        self.early.insert(frame.number, frame);
        while let Some(frame) = self.early.remove(&self.next) {
            self.next = self.next.wrapping_add(1);
            if frame.header.kind == FrameKind::Close {
                self.peer_ended = true;
                if !self.early.is_empty() {
                    return Err(format!("frames of tunnel {} after its end", frame.tunnel));
                }
            }
            if self.is_read && self.error.is_none() && !self.peer_ended {
                self.unread.push_back((frame.plain_header(), frame.part));
            } else {
                self.held_bytes -= bytes_held(&frame.part);
            }
        }
        Ok(())
    }

    fn fail(&mut self, error: RelayError) {
        self.error.get_or_insert(error);
        self.discard();
        self.wake();
    }

    /// Drops what was not read.
    fn discard(&mut self) {
        let bytes: u64 = self.unread.drain(..).map(|(_, part)| bytes_held(&part)).sum();
        self.held_bytes -= bytes;
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// The memory of a frame that is held.
fn bytes_held(part: &Bytes) -> u64 {
    (part.len() + 2 * HEADER_BYTES) as u64
}

/// Which tunnels of a peer have been opened. They are numbered from 1, but may arrive in another order.
#[derive(Debug, Default)]
struct Seen {
    /// All up to this number have.
    up_to: u32,
    above: BTreeSet<u32>,
}

impl Seen {
    fn contains(&self, tunnel: u32) -> bool {
        tunnel <= self.up_to || self.above.contains(&tunnel)
    }

    fn insert(&mut self, tunnel: u32) {
        self.above.insert(tunnel);
        while self.above.remove(&(self.up_to + 1)) {
            self.up_to += 1;
        }
    }
}

#[derive(Debug)]
pub(super) struct TunnelTable {
    node: u32,
    nodes: u32,
    config: TunnelsConfig,
    ends: HashMap<Key, End>,
    /// To be accepted.
    arrived: VecDeque<Key>,
    accepts: bool,
    /// The number of the last tunnel that was opened to each node.
    opened: HashMap<u32, u32>,
    seen: HashMap<u32, Seen>,
    /// Ends of tunnels that are to be sent.
    closing: Vec<(u32, RoutedFrame)>,
    error: Option<RelayError>,
}

impl TunnelTable {
    pub(super) fn new(node: u32, nodes: u32, config: TunnelsConfig) -> Self {
        Self {
            node,
            nodes,
            config,
            ends: HashMap::new(),
            arrived: VecDeque::new(),
            accepts: true,
            opened: HashMap::new(),
            seen: HashMap::new(),
            closing: Vec::new(),
            error: None,
        }
    }

    pub(super) fn open(&mut self, to: u32) -> Result<Key> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if to == self.node || to >= self.nodes {
            let (node, nodes) = (self.node, self.nodes);
            let why = format!("no tunnel from node {node} to node {to}: expected another of {nodes} nodes");
            return Err(RelayError::Config(why));
        }
        if self.count(to) >= self.config.tunnels_max {
            return Err(RelayError::TunnelsFull { node: to, max: self.config.tunnels_max });
        }
        let last = self.opened.entry(to).or_default();
        *last += 1;
        let key = Key { peer: to, tunnel: *last, opened_here: true };
        self.ends.insert(key, End::new());
        Ok(key)
    }

    /// The number of tunnels to a node.
    fn count(&self, peer: u32) -> usize {
        self.ends.keys().filter(|key| key.peer == peer).count()
    }

    /// Handles a frame from another node.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn received(&mut self, from: u32, frame: RoutedFrame) -> std::result::Result<(), String> {
        if frame.tunnel == 0 {
            return Err("a frame outside of tunnels".into());
        }
        let key = Key { peer: from, tunnel: frame.tunnel, opened_here: frame.accepted };
        if !self.ends.contains_key(&key) {
            let is_known = if key.opened_here {
                frame.tunnel <= self.opened.get(&from).copied().unwrap_or_default()
            } else {
                self.seen.get(&from).is_some_and(|seen| seen.contains(frame.tunnel))
            };
            // Its end failed here, and frames were on their way.
            if is_known {
                return Ok(());
            }
            if key.opened_here {
                return Err(format!("a frame of tunnel {}, which was not opened", frame.tunnel));
            }
            let open = self.count(from);
            if open >= self.config.tunnels_max + REFUSED_MAX {
                return Err(format!("it has opened {open} tunnels"));
            }
            let seen = self.seen.entry(from).or_default();
            seen.insert(frame.tunnel);
            if seen.above.len() > SKIPPED_MAX {
                return Err(format!("tunnel {} was opened out of order", frame.tunnel));
            }
            self.ends.insert(key, End::new());
            if self.accepts && open < self.config.tunnels_max {
                self.arrived.push_back(key);
            } else {
                self.refuse(key);
            }
        }
        let Some(end) = self.ends.get_mut(&key) else { return Ok(()) };
        // It has failed here, and frames were on their way.
        if end.peer_ended && end.error.is_some() {
            return Ok(());
        }
        end.take(frame)?;
        if end.held_bytes > self.config.unread_bytes_max {
            end.fail(RelayError::Unread { node: from, bytes: end.held_bytes });
            // The rest waits for a frame that does not come.
            if end.held_bytes > self.config.unread_bytes_max {
                return Err(format!("tunnel {} has {} bytes out of order", key.tunnel, end.held_bytes));
            }
        }
        end.wake();
        self.forget_if_over(key);
        Ok(())
    }

    /// The next frame; `None` at the end. Wakes the reader later if there is none yet.
    pub(super) fn next(&mut self, key: Key, waker: &Waker) -> Result<Poll<Option<(FrameHeader, Bytes)>>> {
        let Some(end) = self.ends.get_mut(&key) else { return Ok(Poll::Ready(None)) };
        if let Some((header, part)) = end.unread.pop_front() {
            end.held_bytes -= bytes_held(&part);
            return Ok(Poll::Ready(Some((header, part))));
        }
        if let Some(error) = end.error.as_ref().or(self.error.as_ref()) {
            return Err(error.clone());
        }
        if end.peer_ended {
            return Ok(Poll::Ready(None));
        }
        end.waker = Some(waker.clone());
        Ok(Poll::Pending)
    }

    /// Numbers a frame to be sent.
    pub(super) fn number(&mut self, key: Key, header: FrameHeader, part: Bytes) -> Result<RoutedFrame> {
        let closed = self.error.clone().unwrap_or(RelayError::Closed);
        let end = self.ends.get_mut(&key).filter(|_| self.error.is_none()).ok_or(closed)?;
        if let Some(error) = &end.error {
            return Err(error.clone());
        }
        let number = end.sent;
        end.sent = number.wrapping_add(1);
        let (accepted, tunnel) = (!key.opened_here, key.tunnel);
        Ok(RoutedFrame { accepted, tunnel, number, ..RoutedFrame::new(header, part) })
    }

    /// Nothing more is sent.
    pub(super) fn end(&mut self, key: Key) {
        let Some(end) = self.ends.get_mut(&key) else { return };
        end.is_written = false;
        if self.error.is_some() {
            return;
        }
        let header = FrameHeader::whole(FrameKind::Close, 0, 0, 0, &[]);
        let close = RoutedFrame {
            accepted: !key.opened_here,
            tunnel: key.tunnel,
            number: end.sent,
            has_slot: false,
            ..RoutedFrame::new(header, Bytes::new())
        };
        self.closing.push((key.peer, close));
        self.forget_if_over(key);
    }

    /// Nothing more is read.
    pub(super) fn stop_reading(&mut self, key: Key) {
        let Some(end) = self.ends.get_mut(&key) else { return };
        end.is_read = false;
        end.discard();
        self.forget_if_over(key);
    }

    fn refuse(&mut self, key: Key) {
        self.stop_reading(key);
        self.end(key);
    }

    fn forget_if_over(&mut self, key: Key) {
        if self.ends.get(&key).is_some_and(End::is_over) {
            self.ends.remove(&key);
        }
    }

    pub(super) fn accept(&mut self) -> Result<Option<Key>> {
        match &self.error {
            Some(error) => Err(error.clone()),
            None => Ok(self.arrived.pop_front()),
        }
    }

    pub(super) fn accept_no_more(&mut self) {
        self.accepts = false;
        for key in std::mem::take(&mut self.arrived) {
            self.refuse(key);
        }
    }

    /// Fails all tunnels.
    pub(super) fn fail(&mut self, error: RelayError) {
        self.ends.values_mut().for_each(|end| end.fail(error.clone()));
        self.error.get_or_insert(error);
    }

    /// Fails the tunnels to one node.
    pub(super) fn fail_peer(&mut self, peer: u32, error: &RelayError) {
        let ends = self.ends.iter_mut().filter(|(key, _)| key.peer == peer);
        ends.for_each(|(_, end)| {
            end.peer_ended = true;
            end.fail(error.clone());
        });
        self.ends.retain(|_, end| !end.is_over());
    }

    /// Ends of tunnels that are to be sent.
    pub(super) fn take_ends(&mut self) -> Vec<(u32, RoutedFrame)> {
        std::mem::take(&mut self.closing)
    }

    pub(super) fn can_accept(&self) -> bool {
        self.error.is_some() || !self.arrived.is_empty()
    }

    pub(super) fn error(&self) -> Option<RelayError> {
        self.error.clone()
    }

    pub(super) fn open_count(&self) -> usize {
        self.ends.len()
    }

    #[cfg(test)]
    pub(super) fn set_next(&mut self, key: Key, number: u32) {
        self.ends.get_mut(&key).expect("an open tunnel").next = number;
    }

    pub(super) fn is_idle(&self) -> bool {
        self.error.is_some() || self.ends.is_empty()
    }
}

/// Receives arbitrary frames of another node, while this node has tunnels of its own. Memory stays bounded.
#[cfg(fuzzing)]
pub(crate) fn fuzz(frames: impl Iterator<Item = RoutedFrame>) {
    let config = TunnelsConfig { unread_bytes_max: 10_000, tunnels_max: 4 };
    let mut table = TunnelTable::new(0, 3, config);
    let waker = Waker::noop();
    let ours = table.open(1).expect("room");
    let mut accepted = None;
    for (at, frame) in frames.enumerate() {
        if table.received(1, frame).is_err() {
            return;
        }
        accepted = table.accept().expect("no failure").or(accepted);
        if at % 3 == 0 {
            let _ = table.next(ours, waker);
            let _ = accepted.map(|key| table.next(key, waker));
        }
        assert!(table.ends.len() <= config.tunnels_max + REFUSED_MAX);
        assert!(table.ends.values().all(|end| end.held_bytes <= config.unread_bytes_max));
    }
}
