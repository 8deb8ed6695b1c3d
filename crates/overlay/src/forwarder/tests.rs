//! Forwarders connected by in-memory wires and run in random order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fastrand::Rng;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_oneof, proptest};

use super::*;
use crate::{Result, Shape, Topology};

/// Frames that a wire holds.
const WIRE_FRAMES: usize = 2;

type Tested = std::result::Result<(), Box<dyn std::error::Error>>;
type End = (usize, ConnectionId);

/// All nodes, and the wire from each end of each connection to the other.
struct Net {
    nodes: Vec<Forwarder<u64>>,
    wires: BTreeMap<End, (End, VecDeque<Frame<u64>>)>,
    /// Messages that have arrived and are not yet consumed.
    arrived: Vec<(usize, QueueSlot)>,
    seen: BTreeSet<(u32, u64)>,
    sent: BTreeSet<(u32, u64)>,
    forwards: u64,
    /// Ends of connections that have broken, which their nodes have not noticed.
    torn: Vec<End>,
    /// Links of the topology that have broken and can be opened again.
    down: Vec<(usize, usize)>,
    /// Links that one end has opened again, and the other end will.
    half_open: Vec<(End, usize, u64)>,
    rng: Rng,
}

impl Net {
    fn new(shape: Shape, nodes: usize, queue_messages: usize, seed: u64) -> Result<Self> {
        let routes = Arc::new(Routes::new(Topology::new(shape, nodes)?));
        let forwarder = |node| Forwarder::new(Arc::clone(&routes), node as u32, queue_messages, seed);
        let mut net = Self {
            nodes: (0..nodes).map(forwarder).collect(),
            wires: BTreeMap::new(),
            arrived: Vec::new(),
            seen: BTreeSet::new(),
            sent: BTreeSet::new(),
            forwards: 0,
            torn: Vec::new(),
            down: Vec::new(),
            half_open: Vec::new(),
            rng: Rng::with_seed(seed),
        };
        for node in 0..nodes {
            let links = Forwarder::<u64>::topology_links(&routes, node as u32);
            for link in links.into_iter().filter(|link| link.opens) {
                let peer = link.peer as usize;
                let theirs = Forwarder::<u64>::topology_links(&routes, link.peer);
                let theirs = theirs.into_iter().find(|other| {
                    other.peer as usize == node
                        && other.sends == link.receives
                        && other.receives == link.sends
                });
                net.join((node, link.id), (peer, theirs.expect("both ends know the link").id));
            }
        }
        Ok(net)
    }

    fn join(&mut self, a: End, b: End) {
        self.wires.insert(a, (b, VecDeque::new()));
        self.wires.insert(b, (a, VecDeque::new()));
    }

    fn submit(&mut self, node: usize) {
        let (id, to) = (self.sent.len() as u64, self.rng.usize(..self.nodes.len()));
        let own = &mut self.nodes[node];
        if to != node && own.own_queued() < 3 {
            own.submit(to as u32, id, id).expect("there is a route");
            self.sent.insert((node as u32, id));
        }
    }

    fn open(&mut self) {
        let (node, peer) = (self.rng.usize(..self.nodes.len()), self.rng.usize(..self.nodes.len()));
        let few = self.nodes[node].direct().count() < 2 && self.nodes[peer].direct().count() < 4;
        if node != peer && few {
            let both_ways = self.rng.bool();
            let number = self.nodes[node].next_number();
            let mine =
                self.nodes[node].add_direct(peer as u32, Opened { here: true, number }, true, both_ways);
            let theirs =
                self.nodes[peer].add_direct(node as u32, Opened { here: false, number }, both_ways, true);
            self.join((node, mine), (peer, theirs));
        }
    }

    fn close(&mut self) {
        let node = self.rng.usize(..self.nodes.len());
        let direct: Vec<_> = self.nodes[node].direct().map(|(id, _)| id).collect();
        if let Some(id) = self.rng.choice(direct) {
            self.nodes[node].close(id).expect("there is another route");
        }
    }

    /// Moves a frame from a node to its wire.
    fn transmit(&mut self, end: End) -> bool {
        let Some((_, wire)) = self.wires.get_mut(&end) else { return false };
        if wire.len() >= WIRE_FRAMES {
            return false;
        }
        let node = &mut self.nodes[end.0];
        let Some(frame) = node.next_frame(end.1) else { return false };
        if let Frame::Message(packet) = &frame {
            self.forwards += u64::from(packet.slot.is_some());
        }
        wire.push_back(frame);
        true
    }

    /// Moves a frame from a wire to the node at its other end.
    fn deliver(&mut self, end: End) -> bool {
        let Some((other, wire)) = self.wires.get_mut(&end) else { return false };
        let (at, connection) = *other;
        let Some(frame) = wire.pop_front() else { return false };
        let node = &mut self.nodes[at];
        match frame {
            Frame::Message(packet) => {
                let slot = node.admit(connection, (packet.from, packet.to, packet.hops));
                let slot = slot.expect("peers follow the protocol");
                let packet = Packet { slot: Some(slot), resent: false, ..packet };
                if let Some(packet) = node.received(packet).expect("there is a route") {
                    assert_eq!((packet.to as usize, packet.body), (at, packet.id));
                    assert!(self.seen.insert((packet.from, packet.id)), "twice: {packet:?}");
                    self.arrived.push((at, slot));
                }
            }
            Frame::Credit { class, count, received } => {
                // A node may still receive credit after it has closed.
                node.credited(connection, class, count, received).expect("peers follow the protocol");
            }
            Frame::Notice(notice) => {
                if let Some(broken) = node.noticed(connection, notice).expect("peers follow the protocol") {
                    self.torn.retain(|end| *end != (at, broken));
                    self.nodes[at].gone(broken);
                    return true;
                }
            }
            Frame::Close => node.peer_closed(connection).expect("there is another route"),
        }
        for (end, twin) in [((at, connection), end), (end, (at, connection))] {
            let over = |(node, id): End| self.nodes[node].is_over(id);
            let empty = |end| self.wires.get(&end).is_none_or(|(_, wire)| wire.is_empty());
            if over(end) && over(twin) && empty(end) && empty(twin) {
                self.wires.remove(&end);
                self.nodes[end.0].gone(end.1);
            }
        }
        true
    }

    fn consume(&mut self) -> bool {
        let Some(at) = self.rng.choice(0..self.arrived.len()) else { return false };
        let (node, slot) = self.arrived.swap_remove(at);
        self.nodes[node].consumed(slot);
        true
    }

    /// Breaks a connection; what is on it is lost. Another link of the topology is broken only when all nodes know
    /// that the last one is open again.
    fn tear(&mut self) {
        let ends: Vec<_> = self.wires.keys().copied().collect();
        let Some((node, id)) = self.rng.choice(ends) else { return };
        let is_direct = self.nodes[node].connections[&id].direct;
        // An end that has closed can't tell any more what it has received.
        let other = self.wires[&(node, id)].0;
        let is_closing =
            [(node, id), other].into_iter().any(|(node, id)| self.nodes[node].connections[&id].closing);
        let is_whole = self.down.is_empty()
            && self.half_open.is_empty()
            && self.nodes.iter().all(|node| node.broken_links() == 0);
        if is_closing || !(is_direct || is_whole) {
            return;
        }
        if !is_direct {
            let (low, high) = (node.min(other.0), node.max(other.0));
            self.down.push((low, high));
        }
        for end in [(node, id), other] {
            self.wires.remove(&end);
            self.torn.push(end);
        }
    }

    /// A node notices that a connection has broken.
    fn notice(&mut self) -> bool {
        let Some(at) = self.rng.choice(0..self.torn.len()) else { return false };
        let (node, id) = self.torn.swap_remove(at);
        self.nodes[node].broke(id).expect("there is another route");
        self.nodes[node].gone(id);
        true
    }

    /// Opens a broken link again, once both ends know that it is broken.
    fn mend(&mut self) -> bool {
        let Some((low, high)) = self.down.pop() else { return false };
        let unaware = self.torn.iter().any(|(node, id)| {
            let link = &self.nodes[*node].connections[id];
            !link.direct && [low, high].contains(node) && [low, high].contains(&(link.peer as usize))
        });
        if unaware {
            self.down.push((low, high));
            return false;
        }
        // The other end accepts it first.
        let number = self.nodes[low].next_number();
        let opened = Opened { here: false, number };
        let theirs = self.nodes[high].reopen(low as u32, opened).expect("there is a route");
        self.half_open.push(((high, theirs), low, number));
        true
    }

    /// The end that opens a link again gets the answer, or not: then the other end finds it broken.
    fn answer(&mut self) -> bool {
        let Some(((high, theirs), low, number)) = self.half_open.pop() else { return false };
        if self.rng.bool() && self.nodes[low].is_drawn(number) {
            let opened = Opened { here: true, number };
            let mine = self.nodes[low].reopen(high as u32, opened).expect("there is a route");
            self.join((low, mine), (high, theirs));
        } else {
            self.torn.push((high, theirs));
            self.down.push((low, high));
        }
        true
    }

    /// Takes one random step of a network whose connections break.
    fn rough_step(&mut self) {
        match self.rng.u8(..60) {
            0 => self.tear(),
            1..4 => drop(self.notice()),
            4 => drop(self.mend()),
            5..8 => drop(self.answer()),
            _ => self.step(),
        }
    }

    /// Takes one random step.
    fn step(&mut self) {
        let ends: Vec<_> = self.wires.keys().copied().collect();
        let end = self.rng.choice(ends).expect("there are wires");
        match self.rng.u8(..20) {
            0 => self.open(),
            1 => self.close(),
            2..6 => {
                let node = self.rng.usize(..self.nodes.len());
                self.submit(node);
            }
            6..12 => drop(self.transmit(end)),
            12..18 => drop(self.deliver(end)),
            _ => drop(self.consume()),
        }
    }

    /// Runs without new messages until nothing can move.
    fn settle(&mut self) {
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            let ends: Vec<_> = self.wires.keys().copied().collect();
            for end in ends {
                goes_on |= self.transmit(end) | self.deliver(end);
            }
            goes_on |= self.consume() | self.notice() | self.mend() | self.answer();
        }
    }

    fn check(&self) {
        assert!(!self.sent.is_empty());
        assert_eq!(self.seen, self.sent, "every message arrives exactly once");
        let counts = |of: fn(Counts) -> u64| self.nodes.iter().map(|node| of(node.counts())).sum::<u64>();
        let sent = self.sent.len() as u64;
        assert_eq!((counts(|c| c.sent), counts(|c| c.received)), (sent, sent));
        assert_eq!(counts(|c| c.forwarded), self.forwards);
        for node in &self.nodes {
            assert_eq!(node.own_queued(), 0);
            for link in node.connections.values() {
                assert_eq!((link.waiting_count, link.held.iter().sum::<usize>()), (0, 0));
                assert!(!link.gone, "an empty connection without a socket is forgotten: {link:?}");
            }
            assert_eq!((node.trouble(), node.broken_links(), node.unreachable()), (None, 0, None));
        }
    }
}

fn shapes() -> impl Strategy<Value = (Shape, usize)> {
    prop_oneof![
        (2..10usize).prop_map(|nodes| (Shape::Ring, nodes)),
        (3..10usize).prop_map(|nodes| (Shape::Tree { arity: 2 }, nodes)),
        (6..12usize, 2..4usize).prop_map(|(nodes, degree)| (Shape::Original { degree }, nodes)),
        (4..12usize, any::<bool>())
            .prop_map(|(nodes, both_ways)| (Shape::Kautz { degree: 2, both_ways }, nodes)),
        (2..9usize).prop_map(|nodes| (Shape::FullMesh, nodes)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 96, ..ProptestConfig::default() })]

    /// In any order, with queues of one or two messages, and direct connections that come and go.
    #[test]
    fn every_message_arrives_once((shape, nodes) in shapes(), queue in 1..3usize, seed in any::<u64>()) {
        let mut net = Net::new(shape, nodes, queue, seed)?;
        (0..3000).for_each(|_| net.step());
        net.settle();
        net.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 96, ..ProptestConfig::default() })]

    /// Connections break with what is on them, and links are opened again. No link is the only route to a node.
    #[test]
    fn every_message_arrives_once_over_links_that_break(
        (shape, nodes) in prop_oneof![
            (3..9usize).prop_map(|nodes| (Shape::Ring, nodes)),
            (7..14usize).prop_map(|nodes| (Shape::Circulant { offsets: vec![1, 3] }, nodes)),
            (3..7usize).prop_map(|nodes| (Shape::FullMesh, nodes)),
            (1..4u32).prop_map(|bits| (Shape::Hypercube, 2 << bits)),
        ],
        queue in 1..3usize,
        seed in any::<u64>(),
    ) {
        let mut net = Net::new(shape, nodes, queue, seed)?;
        (0..6000).for_each(|_| net.rough_step());
        net.settle();
        net.check();
    }
}

fn pair() -> Result<Forwarder<u64>> {
    Ok(Forwarder::new(Arc::new(Routes::new(Topology::new(Shape::Ring, 8)?)), 0, 1, 1))
}

#[test]
fn protocol_violations_by_a_peer_are_refused() -> Tested {
    let mut node = pair()?;
    let astray = |from, to, hops| Err(Refusal::Astray { from, to, hops });
    // Nodes that don't exist, a message to its sender, no hops, and more hops than classes, now or before it
    // would arrive.
    for (from, to, hops) in
        [(8, 0, 1), (1, 8, 1), (1, 1, 1), (1, 0, 0), (1, 0, 13), (1, 4, 9), (1, 0, usize::MAX)]
    {
        assert_eq!(node.admit(1, (from, to, hops)), astray(from, to, hops), "{from} {to} {hops}");
    }
    assert_eq!(node.admit(5, (1, 0, 1)), Err(Refusal::Closed));
    assert!(node.admit(1, (1, 0, 1)).is_ok());
    assert_eq!(node.admit(1, (1, 0, 1)), Err(Refusal::NoRoom { class: 1 }));
    for (class, count) in [(1, 1), (99, 1), (usize::MAX, usize::MAX)] {
        assert_eq!(node.credited(1, class, count, 0), Err(Refusal::Credit { class, count }));
    }
    assert_eq!(node.credited(1, 1, 0, 1), Err(Refusal::Receipt { received: 1 }));
    assert_eq!(node.submit(0, 0, 0), Err(Refusal::Astray { from: 0, to: 0, hops: 0 }));
    assert_eq!(node.submit(8, 0, 0), Err(Refusal::Astray { from: 0, to: 8, hops: 0 }));
    node.peer_closed(1)?;
    assert_eq!(node.peer_closed(1), Err(Refusal::Closed));
    assert_eq!(node.credited(1, 1, 1, 0), Err(Refusal::Closed));
    Ok(())
}

#[test]
fn messages_wait_for_room_and_return_it() -> Tested {
    let mut node = pair()?;
    node.submit(1, 0, 10)?;
    node.submit(1, 1, 11)?;
    assert_eq!(node.take_ready(), BTreeSet::from([1]));
    let Some(Frame::Message(packet)) = node.next_frame(1) else { panic!("a message goes out") };
    assert_eq!((packet.hops, packet.body), (1, 10));
    // The slot is taken until the far end returns it.
    assert_eq!(node.next_frame(1), None);
    node.credited(1, 1, 1, 1)?;
    assert!(matches!(node.next_frame(1), Some(Frame::Message(Packet { body: 11, .. }))));
    // Forward from one neighbour to the other.
    let slot = node.admit(1, (1, 7, 1))?;
    let packet = Packet { from: 1, to: 7, id: 5, hops: 1, body: 12, slot: Some(slot), resent: false };
    assert_eq!(node.received(packet)?, None);
    assert!(matches!(node.next_frame(7), Some(Frame::Message(Packet { body: 12, .. }))), "it is forwarded");
    assert_eq!(node.next_frame(1), Some(Frame::Credit { class: 1, count: 1, received: 1 }));
    assert_eq!(node.counts(), Counts { sent: 2, received: 0, forwarded: 1 });
    Ok(())
}

#[test]
fn a_message_without_a_route_is_an_error() -> Tested {
    let mut node = pair()?;
    node.submit(4, 0, 0)?;
    node.peer_closed(1)?;
    // The message is rerouted to the other side of the ring.
    assert!(node.connections[&7].waiting_count == 1 && node.connections[&1].waiting_count == 0);
    assert_eq!(node.peer_closed(7), Err(Refusal::NoWay { to: 4 }));
    assert_eq!(node.submit(3, 1, 0), Err(Refusal::NoWay { to: 3 }));
    Ok(())
}

#[test]
fn a_direct_connection_is_used_and_closed() -> Tested {
    let mut node = pair()?;
    let direct = node.add_direct(4, Opened { here: true, number: 1 }, true, true);
    assert!(node.is_connected(4));
    node.submit(4, 0, 0)?;
    node.close(direct)?;
    assert!(!node.is_connected(4));
    assert_eq!(node.next_frame(direct), Some(Frame::Close));
    assert_eq!(node.next_frame(direct), None);
    // The other end may still send, until it has closed too.
    let slot = node.admit(direct, (4, 0, 1))?;
    node.peer_closed(direct)?;
    assert!(node.is_over(direct));
    node.gone(direct);
    assert_eq!(node.direct().collect::<Vec<_>>(), [(direct, 4)]);
    node.consumed(slot);
    assert_eq!(node.direct().count(), 0);
    assert_eq!(node.connections[&1].waiting_count + node.connections[&7].waiting_count, 1);
    Ok(())
}

#[test]
fn a_node_prefers_destinations_by_score() -> Result<()> {
    let routes = Routes::new(Topology::new(Shape::Ring, 12)?);
    let mut sent = TrafficMatrix::new(12);
    [(2, 100.0), (6, 30.0), (1, 1e6)].into_iter().for_each(|(to, bytes)| sent.add(0, to, bytes));
    let pool = DirectPolicy { knowledge: crate::TrafficKnowledge::Local, ..DirectPolicy::new(1, None) };
    assert_eq!(pool.preferred(&routes, 0, &sent, &[], &mut Rng::with_seed(1)), [6, 2]);
    assert!(pool.preferred(&routes, 5, &sent, &[], &mut Rng::with_seed(1)).is_empty());
    Ok(())
}
