//! A node that sends, receives and forwards: a state machine without sockets.
//!
//! The owner of the sockets calls [`Forwarder::next_frame`] for the next frame to send on a connection,
//! and reports the frames it receives. The rules are those of [`forwarding`](crate::forwarding): the
//! receiving end keeps a bounded queue for each connection and hop class; a message is sent when the next
//! node has room in the message's next class; its slot is returned as credit once the message has left.
//!
//! Connections of the topology are known from the start and stay; direct connections come and go. Both
//! ends close a connection: each reroutes the messages that wait for it and sends [`Frame::Close`].
//! Messages received over it keep their slots until they have left. [`broken`] says what happens when a
//! connection breaks instead.

mod broken;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fastrand::Rng;

use self::broken::Damage;
pub use self::broken::{LinkNotice, Opened, Trouble};
use crate::direct::{Direct, DirectPolicy};
use crate::forwarding::{Classes, Credits};
use crate::routes::Routes;
use crate::traffic::TrafficMatrix;
use crate::ways::DirectUse;

/// The number of a connection. A node does not reuse numbers.
pub type ConnectionId = u64;

/// A connection of the topology, as one of its ends sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopologyLink {
    /// Its number.
    pub id: ConnectionId,
    /// The node at the other end.
    pub peer: u32,
    /// Whether this end opens it.
    pub opens: bool,
    /// Whether this end sends messages on it.
    pub sends: bool,
    /// Whether this end receives messages on it.
    pub receives: bool,
}

/// A frame on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<T> {
    /// A message in transit.
    Message(Packet<T>),
    /// Slots of a class that are free again.
    Credit {
        /// Which class.
        class: usize,
        /// How many slots.
        count: usize,
        /// Messages received on the connection so far.
        received: u64,
    },
    /// What became of a connection between two nodes.
    Notice(LinkNotice),
    /// Nothing follows.
    Close,
}

/// A message in transit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet<T> {
    /// The sender.
    pub from: u32,
    /// The destination.
    pub to: u32,
    /// The sender's number for the message.
    pub id: u64,
    /// Links it has crossed, including the one it is sent on.
    pub hops: usize,
    /// The message itself.
    pub body: T,
    /// The slot that holds it until it has left; none at its sender.
    pub slot: Option<QueueSlot>,
    /// Whether it was sent before, on a connection that broke. It holds no slot, and has been counted.
    pub resent: bool,
}

/// A slot in a queue. [`Forwarder::consumed`] returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueSlot {
    connection: ConnectionId,
    class: usize,
}

/// A violation of the protocol by a peer, or a destination that can't be reached any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A message whose sender or destination does not exist, or whose hop count is impossible or would
    /// exceed the limit.
    #[error("misrouted message from {from} to {to} after {hops} hops")]
    Astray {
        /// The sender in its header.
        from: u32,
        /// The destination in its header.
        to: u32,
        /// The hops in its header.
        hops: usize,
    },
    /// A message for which there was no room.
    #[error("received a message without credit for class {class}")]
    NoRoom {
        /// The class it would be in.
        class: usize,
    },
    /// More credit than was taken, or credit for a class that does not exist.
    #[error("received {count} credits for class {class}, more than were taken")]
    Credit {
        /// Which class.
        class: usize,
        /// How many.
        count: usize,
    },
    /// A frame on a connection that its sender has closed, that does not exist, or that is not used in
    /// this direction.
    #[error("received a frame on a connection that accepts none")]
    Closed,
    /// A receipt for messages that were not sent, or fewer than before.
    #[error("received a receipt for {received} messages that is impossible")]
    Receipt {
        /// Messages on the connection, by the receipt.
        received: u64,
    },
    /// The other end of a connection says that it broke, after both ends had closed it: messages have not arrived.
    #[error("the connection to node {by} broke while it was being closed")]
    Undelivered {
        /// The other end.
        by: u32,
    },
    /// A notice about a connection that can't exist.
    #[error("received a notice about a connection between nodes {by} and {peer} that can't exist")]
    Notice {
        /// The node that gave it.
        by: u32,
        /// The other end.
        peer: u32,
    },
    /// All neighbours nearer to a message's destination have closed their connections.
    #[error("no route to node {to} is left")]
    NoWay {
        /// The destination.
        to: u32,
    },
}

/// Counts of messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Own messages that have left.
    pub sent: u64,
    /// Messages received for this node.
    pub received: u64,
    /// Messages between other nodes that have left.
    pub forwarded: u64,
}

#[derive(Debug)]
struct Connection<T> {
    peer: u32,
    sends: bool,
    receives: bool,
    direct: bool,
    opened: Opened,
    /// Room in the queues at the far end.
    credits: Credits,
    /// Messages received.
    received: u64,
    /// Messages sent whose receipt is not known, in order, and how many were sent before them.
    unconfirmed: VecDeque<Packet<T>>,
    confirmed: u64,
    /// Messages to send, by the class they will have at the far end.
    waiting: Vec<VecDeque<Packet<T>>>,
    waiting_count: usize,
    /// By class: slots that received messages hold, and slots to return as credit.
    held: Vec<usize>,
    owed: Vec<usize>,
    closing: bool,
    close_sent: bool,
    peer_closed: bool,
    /// It broke before both ends had closed it.
    broken: bool,
    /// It broke, and what the other end has not received is not sent again yet.
    unsettled: bool,
    /// What the other end says it has received in all, if it has broken.
    arrived: Option<u64>,
    /// The socket is closed.
    gone: bool,
}

impl<T> Connection<T> {
    fn takes_messages(&self) -> bool {
        self.sends && !self.closing
    }

    /// The far end has received this many messages.
    fn confirm(&mut self, received: u64) -> Result<(), Refusal> {
        let sent = self.confirmed + self.unconfirmed.len() as u64;
        if !(self.confirmed..=sent).contains(&received) {
            return Err(Refusal::Receipt { received });
        }
        self.unconfirmed.drain(..(received - self.confirmed) as usize);
        self.confirmed = received;
        Ok(())
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Forwarder<T> {
    node: u32,
    routes: Arc<Routes>,
    classes: Classes,
    queue_messages: usize,
    connections: BTreeMap<ConnectionId, Connection<T>>,
    /// By peer, connections to send on: the topology's before direct ones.
    out: BTreeMap<u32, BTreeSet<ConnectionId>>,
    next_id: ConnectionId,
    next_number: u64,
    /// Numbers for connections that are not open yet.
    drawn: BTreeSet<u64>,
    /// Connections that may have something to send since the last call of `take_ready`.
    ready: BTreeSet<ConnectionId>,
    own_queued: usize,
    /// Messages of others that wait without a slot.
    detached: usize,
    forgotten: u64,
    counts: Counts,
    rng: Rng,
    damage: Damage<T>,
}

impl<T: Clone> Forwarder<T> {
    /// A node with the connections of the topology, which need not be open yet. Each queue holds
    /// `queue_messages` messages. `seed` breaks ties between queues of the same length.
    ///
    /// # Panics
    /// If the topology has no such node.
    pub fn new(routes: Arc<Routes>, node: u32, queue_messages: usize, seed: u64) -> Self {
        let nodes = routes.topology().nodes();
        assert!((node as usize) < nodes, "no node {node}: the topology has {nodes} nodes");
        let classes = match routes.topology().both_ways() {
            true => Classes::with_detours(routes.diameter()),
            false => Classes::for_shortest(routes.diameter(), DirectUse::Own),
        };
        let mut this = Self {
            node,
            classes,
            queue_messages: queue_messages.max(1),
            connections: BTreeMap::new(),
            out: BTreeMap::new(),
            next_id: 2 * nodes as u64,
            next_number: 0,
            drawn: BTreeSet::new(),
            detached: 0,
            ready: BTreeSet::new(),
            own_queued: 0,
            forgotten: 0,
            counts: Counts::default(),
            rng: Rng::with_seed(seed ^ u64::from(node)),
            damage: Damage::default(),
            routes,
        };
        for link in Self::topology_links(&this.routes, node) {
            let opened = Opened { here: link.opens, number: 0 };
            this.insert(link.id, link.peer, opened, (link.sends, link.receives), false);
        }
        this
    }

    /// The connections of the topology that a node has. The node with the lower number opens a link that
    /// is used both ways.
    pub fn topology_links(routes: &Routes, node: u32) -> Vec<TopologyLink> {
        let topology = routes.topology();
        let (mine, nodes) = (topology.links(node as usize), topology.nodes());
        let out = mine.iter().map(|&peer| TopologyLink {
            id: peer.into(),
            peer,
            opens: !topology.both_ways() || node < peer,
            sends: true,
            receives: topology.both_ways(),
        });
        let mut links: Vec<_> = out.collect();
        if !topology.both_ways() {
            let others = (0..nodes).filter(|other| topology.links(*other).contains(&node));
            links.extend(others.map(|other| TopologyLink {
                id: (nodes + other) as u64,
                peer: other as u32,
                opens: false,
                sends: false,
                receives: true,
            }));
        }
        links
    }

    /// Adds a direct connection. `sends` and `receives` as in [`TopologyLink`].
    pub fn add_direct(&mut self, peer: u32, opened: Opened, sends: bool, receives: bool) -> ConnectionId {
        let id = self.next_id;
        self.next_id += 1;
        self.insert(id, peer, opened, (sends, receives), true);
        id
    }

    fn insert(
        &mut self,
        id: ConnectionId,
        peer: u32,
        opened: Opened,
        (sends, receives): (bool, bool),
        direct: bool,
    ) {
        if opened.here {
            self.drawn.remove(&opened.number);
        }
        let classes = self.classes.count();
        let connection = Connection {
            peer,
            sends,
            receives,
            direct,
            opened,
            credits: Credits::new(&self.classes, self.queue_messages),
            received: 0,
            unconfirmed: VecDeque::new(),
            confirmed: 0,
            waiting: (0..classes).map(|_| VecDeque::new()).collect(),
            waiting_count: 0,
            held: vec![0; classes],
            owed: vec![0; classes],
            closing: false,
            close_sent: false,
            peer_closed: false,
            broken: false,
            unsettled: false,
            arrived: None,
            gone: false,
        };
        self.connections.insert(id, connection);
        if sends {
            self.out.entry(peer).or_default().insert(id);
        }
        self.damage.greet(id);
    }

    /// Own messages that have not left.
    pub fn own_queued(&self) -> usize {
        self.own_queued
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Connections that may have something to send since the last call.
    pub fn take_ready(&mut self) -> BTreeSet<ConnectionId> {
        std::mem::take(&mut self.ready)
    }

    /// Queues a message of this node. The caller limits how many are queued.
    ///
    /// # Errors
    /// [`Refusal::Astray`] if `to` is this node or does not exist; [`Refusal::NoWay`].
    pub fn submit(&mut self, to: u32, id: u64, body: T) -> Result<(), Refusal> {
        let from = self.node;
        if to == from || to as usize >= self.routes.topology().nodes() {
            return Err(Refusal::Astray { from, to, hops: 0 });
        }
        self.queue(Packet { from, to, id, hops: 0, body, slot: None, resent: false })?;
        self.own_queued += 1;
        Ok(())
    }

    /// Checks the header of a message and takes a queue slot for it. Call it before allocating memory for
    /// the body.
    ///
    /// # Errors
    /// [`Refusal`] if the peer may not send the message.
    pub fn admit(
        &mut self,
        connection: ConnectionId,
        (from, to, hops): (u32, u32, usize),
    ) -> Result<QueueSlot, Refusal> {
        let nodes = self.routes.topology().nodes();
        let is_node = |node: u32| (node as usize) < nodes;
        let astray = Refusal::Astray { from, to, hops };
        // On a detour, a message may come back to its sender.
        let is_back = from == self.node && !self.recovers();
        if hops == 0 || !is_node(from) || !is_node(to) || from == to || is_back {
            return Err(astray);
        }
        let class = self.classes.of(hops).ok_or(astray)?;
        let left = self.routes.hops(self.node as usize, to as usize);
        hops.checked_add(left).and_then(|hops| self.classes.of(hops)).ok_or(astray)?;
        let limit = self.classes.limit(class, self.queue_messages);
        let link = self.connections.get_mut(&connection);
        let link = link.filter(|link| link.receives && !link.peer_closed).ok_or(Refusal::Closed)?;
        // The peer does not yet have the slots that are owed to it.
        if link.held[class] + link.owed[class] >= limit {
            return Err(Refusal::NoRoom { class });
        }
        link.held[class] += 1;
        Ok(QueueSlot { connection, class })
    }

    /// Handles a received message. A message for this node is returned: consume it, then call
    /// [`Forwarder::consumed`]. Any other message is queued for forwarding.
    ///
    /// # Errors
    /// [`Refusal::NoWay`].
    pub fn received(&mut self, packet: Packet<T>) -> Result<Option<Packet<T>>, Refusal> {
        if let Some(slot) = packet.slot
            && let Some(link) = self.connections.get_mut(&slot.connection)
        {
            if link.broken {
                // The other end was told that it has not arrived, and sends it by another route.
                self.consumed(slot);
                return Ok(None);
            }
            link.received += 1;
        }
        if packet.to == self.node {
            self.counts.received += 1;
            return Ok(Some(packet));
        }
        self.queue(packet)?;
        Ok(None)
    }

    /// Handles received credit, and the receipt for the messages that the far end has `received` in all.
    ///
    /// # Errors
    /// [`Refusal::Credit`], [`Refusal::Receipt`], [`Refusal::Closed`].
    pub fn credited(
        &mut self,
        connection: ConnectionId,
        class: usize,
        count: usize,
        received: u64,
    ) -> Result<(), Refusal> {
        let Some(link) = self.connections.get_mut(&connection).filter(|link| link.sends) else {
            return Err(Refusal::Closed);
        };
        if link.broken {
            return Ok(());
        }
        if link.peer_closed {
            return Err(Refusal::Closed);
        }
        if count > link.credits.taken(class) {
            return Err(Refusal::Credit { class, count });
        }
        link.confirm(received)?;
        (0..count).for_each(|_| link.credits.give(class));
        // What has left the far end has arrived there.
        if link.unconfirmed.len() > link.credits.all_taken() {
            return Err(Refusal::Receipt { received });
        }
        self.ready.insert(connection);
        Ok(())
    }

    /// The next frame to send on a connection: notices first, then credit, then the message with the most hops
    /// that has room at the far end. A message has then left this node; a copy is kept until the far end has
    /// confirmed its receipt.
    pub fn next_frame(&mut self, connection: ConnectionId) -> Option<Frame<T>> {
        let link = self.connections.get_mut(&connection)?;
        if link.close_sent || link.gone {
            return None;
        }
        if let Some(notice) = self.damage.next_notice(connection) {
            return Some(Frame::Notice(notice));
        }
        if link.closing {
            link.close_sent = true;
            return Some(Frame::Close);
        }
        if let Some(class) = link.owed.iter().position(|owed| *owed > 0) {
            let count = std::mem::take(&mut link.owed[class]);
            return Some(Frame::Credit { class, count, received: link.received });
        }
        let (class, packet) = link.waiting.iter_mut().enumerate().rev().find_map(|(class, waiting)| {
            let has_room = !waiting.is_empty() && link.credits.take(class);
            has_room.then(|| waiting.pop_front()).flatten().map(|packet| (class, packet))
        })?;
        link.waiting_count -= 1;
        if packet.resent && packet.hops == 0 && packet.from != self.node {
            self.detached = self.detached.saturating_sub(1);
        }
        let kept = Packet { slot: None, resent: true, ..packet.clone() };
        link.unconfirmed.push_back(kept);
        if !packet.resent {
            match packet.slot {
                Some(slot) => {
                    self.counts.forwarded += 1;
                    self.consumed(slot);
                }
                None => {
                    self.own_queued = self.own_queued.saturating_sub(1);
                    self.counts.sent += 1;
                }
            }
        }
        debug_assert_eq!(self.classes.of(packet.hops + 1), Some(class), "queued by its class");
        Some(Frame::Message(Packet { hops: packet.hops + 1, ..packet }))
    }

    /// Releases the slot of a message that was consumed here or has left.
    pub fn consumed(&mut self, QueueSlot { connection, class }: QueueSlot) {
        let Some(link) = self.connections.get_mut(&connection) else { return };
        link.held[class] = link.held[class].saturating_sub(1);
        link.owed[class] += 1;
        if link.gone {
            self.forget_if_empty(connection);
        } else {
            self.ready.insert(connection);
        }
    }

    /// Begins to close a connection and reroutes the messages that wait for it.
    ///
    /// # Errors
    /// [`Refusal::NoWay`].
    pub fn close(&mut self, connection: ConnectionId) -> Result<(), Refusal> {
        let Some(link) = self.connections.get_mut(&connection) else { return Ok(()) };
        if link.closing {
            return Ok(());
        }
        link.closing = true;
        link.waiting_count = 0;
        let astray: Vec<_> = link.waiting.iter_mut().flat_map(std::mem::take).collect();
        if let Some(out) = self.out.get_mut(&link.peer) {
            out.remove(&connection);
        }
        self.ready.insert(connection);
        astray.into_iter().try_for_each(|packet| self.queue(packet))
    }

    /// Handles [`Frame::Close`] from the other end: this end closes too.
    ///
    /// # Errors
    /// [`Refusal::NoWay`]; [`Refusal::Closed`] if the other end has closed before.
    pub fn peer_closed(&mut self, connection: ConnectionId) -> Result<(), Refusal> {
        let link = self.connections.get_mut(&connection).filter(|link| !link.peer_closed);
        link.ok_or(Refusal::Closed)?.peer_closed = true;
        self.close(connection)
    }

    /// Whether both ends have sent [`Frame::Close`].
    pub fn is_over(&self, connection: ConnectionId) -> bool {
        self.connections.get(&connection).is_none_or(|link| link.close_sent && link.peer_closed)
    }

    /// Handles the end of a socket. The connection counts until the messages received over it have left.
    pub fn gone(&mut self, connection: ConnectionId) {
        let Some(link) = self.connections.get_mut(&connection) else { return };
        link.gone = true;
        link.closing = true;
        if let Some(out) = self.out.get_mut(&link.peer) {
            out.remove(&connection);
        }
        self.forget_if_empty(connection);
    }

    fn forget_if_empty(&mut self, connection: ConnectionId) {
        let is_empty = |link: &Connection<T>| !link.unsettled && link.held.iter().all(|held| *held == 0);
        if self.connections.get(&connection).is_some_and(is_empty) {
            self.connections.remove(&connection);
            self.damage.forget(connection);
            self.forgotten += 1;
        }
    }

    /// Direct connections that still count, with the nodes at their other ends.
    pub fn direct(&self) -> impl Iterator<Item = (ConnectionId, u32)> + '_ {
        self.connections.iter().filter(|(_, link)| link.direct).map(|(id, link)| (*id, link.peer))
    }

    /// How many connections have been forgotten. When this grows, there is room for new ones.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Connections that are not closing. Those of the topology are included even before they are opened.
    pub fn open(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.connections.iter().filter(|(_, link)| !link.closing).map(|(id, _)| *id)
    }

    /// Whether messages reach a node without forwarding.
    pub fn is_connected(&self, peer: u32) -> bool {
        self.out.get(&peer).is_some_and(|out| !out.is_empty())
    }

    /// Queues a message for its destination if connected, else for the nearer neighbour with the shortest
    /// queue.
    fn queue(&mut self, mut packet: Packet<T>) -> Result<(), Refusal> {
        let mut route = self.route(&packet);
        if matches!(route, Err(Refusal::Astray { .. })) && self.recovers() {
            // Links have broken before it again and again. Its hops are counted from here on, outside of all queues.
            if self.detached >= self.queue_messages * self.connections.len() {
                return route.map(|_| ());
            }
            if let Some(slot) = packet.slot.take() {
                self.consumed(slot);
                self.detached += 1;
            }
            (packet.hops, packet.resent) = (0, true);
            route = self.route(&packet);
        }
        match route {
            Ok((connection, class)) => {
                if let Some(link) = self.connections.get_mut(&connection) {
                    link.waiting[class].push_back(packet);
                    link.waiting_count += 1;
                    self.ready.insert(connection);
                }
                Ok(())
            }
            // The next notice may open a route.
            Err(_) if self.damage.cuts_off(&self.routes, self.node, packet.to) => {
                self.damage.stranded.push_back(packet);
                Ok(())
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// The connection on which a message goes next, and its class at the far end.
    fn route(&mut self, packet: &Packet<T>) -> Result<(ConnectionId, usize), Refusal> {
        let to = packet.to;
        let first = |peer: u32| {
            let ids = self.out.get(&peer)?.iter().copied();
            ids.filter(|id| self.connections.get(id).is_some_and(Connection::takes_messages)).min()
        };
        let mut next: Vec<_> = match first(to) {
            Some(id) => vec![id],
            None => self
                .damage
                .next_hops(&self.routes, self.node, to)
                .into_iter()
                .filter_map(|peer| first(peer as u32))
                .collect(),
        };
        let length = |id: &ConnectionId| self.connections.get(id).map_or(0, |link| link.waiting_count);
        let least = next.iter().map(length).min();
        next.retain(|id| Some(length(id)) == least);
        let id = self.rng.choice(next).ok_or(Refusal::NoWay { to })?;
        let astray = Refusal::Astray { from: packet.from, to, hops: packet.hops };
        let peer = self.connections.get(&id).map_or(to, |link| link.peer);
        if !self.classes.may_hop(packet.hops, self.routes.hops(peer as usize, to as usize)) {
            return Err(astray);
        }
        let class = self.classes.of(packet.hops + 1).ok_or(astray)?;
        Ok((id, class))
    }
}

impl DirectPolicy {
    /// The destinations, best first, to which a node that knows only its own traffic would open direct
    /// connections. `now` lists the direct connections it has.
    pub fn preferred(
        &self,
        routes: &Routes,
        node: u32,
        sent: &TrafficMatrix,
        now: &[u32],
        rng: &mut Rng,
    ) -> Vec<u32> {
        let now: Direct = now.iter().map(|peer| (node, *peer)).collect();
        self.ranked(routes, sent, &now, rng)
            .into_iter()
            .filter(|(from, _)| *from == node)
            .map(|(_, to)| to)
            .collect()
    }
}

#[cfg(test)]
mod tests;
