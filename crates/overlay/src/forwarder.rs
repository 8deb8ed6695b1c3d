//! A node that sends, receives and forwards: a state machine without sockets.
//!
//! Whoever has the sockets asks [`Forwarder::next_frame`] what goes out on a connection, and says what
//! came in. Rules are those of [`forwarding`](crate::forwarding): a queue for each connection and
//! class of hops at the receiving end, of a bounded number of messages; a message goes out when
//! the next node has room in the class it will be in; its place is given back when it has left.
//!
//! Connections of the topology are known from the beginning and stay; direct ones come and go. A
//! connection is closed by both ends: each says that nothing follows, having found other ways for what
//! waited for it. Messages that came over it keep their places until they have left.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fastrand::Rng;

use crate::direct::{Direct, Pool};
use crate::forwarding::{Classes, Credits};
use crate::routes::Routes;
use crate::traffic::Demand;
use crate::ways::Through;

/// A connection, by a number that the node doesn't use twice.
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
    /// Whether messages go out on it.
    pub sends: bool,
    /// Whether they come in.
    pub receives: bool,
}

/// What goes over a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<T> {
    /// A message, on its way.
    Message(Packet<T>),
    /// Places of a class that are free again.
    Credit {
        /// Which class.
        class: usize,
        /// How many places.
        count: usize,
    },
    /// Nothing follows.
    Close,
}

/// A message on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet<T> {
    /// The node that made it.
    pub from: u32,
    /// The node it is for.
    pub to: u32,
    /// Its number among those of the node that made it.
    pub id: u64,
    /// Links it has crossed, the one it is sent on included.
    pub hops: usize,
    /// The message itself.
    pub body: T,
    /// Where it is held until it has left; none where it was made.
    pub place: Option<Place>,
}

/// A place in a queue: to be given back by [`Forwarder::left`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    connection: ConnectionId,
    class: usize,
}

/// What a peer did that it may not, or a way that is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A message to or from nobody, with hops that it can't have made or will have too many of.
    #[error("a message from {from} to {to} after {hops} hops has no business here")]
    Astray {
        /// Who is said to have made it.
        from: u32,
        /// Who it is said to be for.
        to: u32,
        /// Hops it is said to have made.
        hops: usize,
    },
    /// A message for which there was no room.
    #[error("a message without a place for it in class {class}")]
    NoRoom {
        /// The class it would be in.
        class: usize,
    },
    /// More credit than was taken, or of no class.
    #[error("{count} credits of class {class} that were not taken")]
    Credit {
        /// Which class.
        class: usize,
        /// How many.
        count: usize,
    },
    /// A frame on a connection that its sender had closed, that there is not, or that is not used this way.
    #[error("a frame on a connection that takes none")]
    Closed,
    /// All nodes that are nearer to where a message goes have closed their connections.
    #[error("there is no way to node {to} any more")]
    NoWay {
        /// Where it was to go.
        to: u32,
    },
}

/// Counts of messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Own ones that have left.
    pub sent: u64,
    /// Those for this node that have come.
    pub received: u64,
    /// Others' for others that have left.
    pub forwarded: u64,
}

#[derive(Debug)]
struct Connection<T> {
    peer: u32,
    sends: bool,
    receives: bool,
    direct: bool,
    /// Of the far end.
    credits: Credits,
    /// By the class they will be in at the far end.
    waiting: Vec<VecDeque<Packet<T>>>,
    waiting_count: usize,
    /// By class, places taken by what came over it, and those to give back.
    held: Vec<usize>,
    owed: Vec<usize>,
    closing: bool,
    close_sent: bool,
    peer_closed: bool,
    /// There is no socket any more.
    gone: bool,
}

impl<T> Connection<T> {
    fn takes_messages(&self) -> bool {
        self.sends && !self.closing
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
    /// By peer, connections to send on: that of the topology before direct ones.
    out: BTreeMap<u32, BTreeSet<ConnectionId>>,
    next_id: ConnectionId,
    /// Connections that may have something to send since last asked.
    ready: BTreeSet<ConnectionId>,
    own_queued: usize,
    forgotten: u64,
    counts: Counts,
    rng: Rng,
}

impl<T> Forwarder<T> {
    /// A node with the connections of the topology, none of which need be there yet; queues of
    /// `queue_messages`; ties of queues of the same length broken from `seed`.
    ///
    /// # Panics
    /// When the topology has no such node.
    pub fn new(routes: Arc<Routes>, node: u32, queue_messages: usize, seed: u64) -> Self {
        let nodes = routes.topology().nodes();
        assert!((node as usize) < nodes, "{nodes} nodes, and none that is {node}");
        let classes = Classes::for_shortest(routes.diameter(), Through::Own);
        let mut this = Self {
            node,
            classes,
            queue_messages: queue_messages.max(1),
            connections: BTreeMap::new(),
            out: BTreeMap::new(),
            next_id: 2 * nodes as u64,
            ready: BTreeSet::new(),
            own_queued: 0,
            forgotten: 0,
            counts: Counts::default(),
            rng: Rng::with_seed(seed ^ u64::from(node)),
            routes,
        };
        for link in Self::topology_links(&this.routes, node) {
            this.insert(link.id, link.peer, link.sends, link.receives, false);
        }
        this
    }

    /// The connections of the topology that a node has: of links used both ways the node with the lower
    /// number opens them.
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

    /// Classes that a message can be in when it comes: a node's memory is at most the connections it receives
    /// on x these x messages of a queue, and its own messages.
    pub fn classes_received(&self) -> usize {
        self.classes.count() - 1
    }

    /// Takes a direct connection into use. `sends` and `receives` as in [`TopologyLink`].
    pub fn add_direct(&mut self, peer: u32, sends: bool, receives: bool) -> ConnectionId {
        let id = self.next_id;
        self.next_id += 1;
        self.insert(id, peer, sends, receives, true);
        id
    }

    fn insert(&mut self, id: ConnectionId, peer: u32, sends: bool, receives: bool, direct: bool) {
        let classes = self.classes.count();
        let connection = Connection {
            peer,
            sends,
            receives,
            direct,
            credits: Credits::new(&self.classes, self.queue_messages),
            waiting: (0..classes).map(|_| VecDeque::new()).collect(),
            waiting_count: 0,
            held: vec![0; classes],
            owed: vec![0; classes],
            closing: false,
            close_sent: false,
            peer_closed: false,
            gone: false,
        };
        self.connections.insert(id, connection);
        if sends {
            self.out.entry(peer).or_default().insert(id);
        }
    }

    /// Own messages that have not left.
    pub fn own_queued(&self) -> usize {
        self.own_queued
    }

    /// What has been done.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Connections that may have something to send since this was asked last.
    pub fn take_ready(&mut self) -> BTreeSet<ConnectionId> {
        std::mem::take(&mut self.ready)
    }

    /// A message of this node. How many may be queued is for the caller to limit.
    ///
    /// # Errors
    /// [`Refusal::Astray`] for nobody, and for itself; [`Refusal::NoWay`].
    pub fn submit(&mut self, to: u32, id: u64, body: T) -> Result<(), Refusal> {
        let from = self.node;
        if to == from || to as usize >= self.routes.topology().nodes() {
            return Err(Refusal::Astray { from, to, hops: 0 });
        }
        self.queue(Packet { from, to, id, hops: 0, body, place: None })?;
        self.own_queued += 1;
        Ok(())
    }

    /// Judges a message by its header, and takes the place that it will have: called before there is
    /// memory for the rest.
    ///
    /// # Errors
    /// [`Refusal`], when its sender may not send it.
    pub fn admit(
        &mut self,
        connection: ConnectionId,
        (from, to, hops): (u32, u32, usize),
    ) -> Result<Place, Refusal> {
        let nodes = self.routes.topology().nodes();
        let is_node = |node: u32| (node as usize) < nodes;
        let astray = Refusal::Astray { from, to, hops };
        if hops == 0 || !is_node(from) || !is_node(to) || from == to || from == self.node {
            return Err(astray);
        }
        let class = self.classes.of(hops).ok_or(astray)?;
        // From here it still has this far to go.
        let left = self.routes.hops(self.node as usize, to as usize);
        hops.checked_add(left).and_then(|hops| self.classes.of(hops)).ok_or(astray)?;
        let limit = self.queue_messages;
        let link = self.connections.get_mut(&connection);
        let link = link.filter(|link| link.receives && !link.peer_closed).ok_or(Refusal::Closed)?;
        // Places owed but not yet given back are not the peer's either.
        if link.held[class] + link.owed[class] >= limit {
            return Err(Refusal::NoRoom { class });
        }
        link.held[class] += 1;
        Ok(Place { connection, class })
    }

    /// A message that has come: one for this node is given back, and is to be consumed, and then
    /// [`Forwarder::left`]; others are queued.
    ///
    /// # Errors
    /// [`Refusal::NoWay`].
    pub fn received(&mut self, packet: Packet<T>) -> Result<Option<Packet<T>>, Refusal> {
        if packet.to == self.node {
            self.counts.received += 1;
            return Ok(Some(packet));
        }
        self.queue(packet)?;
        Ok(None)
    }

    /// Credit that has come.
    ///
    /// # Errors
    /// [`Refusal::Credit`], [`Refusal::Closed`].
    pub fn credited(&mut self, connection: ConnectionId, class: usize, count: usize) -> Result<(), Refusal> {
        let link = self.connections.get_mut(&connection);
        let link = link.filter(|link| link.sends && !link.peer_closed).ok_or(Refusal::Closed)?;
        if count > link.credits.taken(class) {
            return Err(Refusal::Credit { class, count });
        }
        (0..count).for_each(|_| link.credits.give(class));
        self.ready.insert(connection);
        Ok(())
    }

    /// What goes out next on a connection: places given back, then the message that has come furthest and
    /// has room. When it is out, its place is to be given back: [`Forwarder::left`].
    pub fn next_frame(&mut self, connection: ConnectionId) -> Option<Frame<T>> {
        let link = self.connections.get_mut(&connection)?;
        if link.close_sent || link.gone {
            return None;
        }
        if link.closing {
            link.close_sent = true;
            return Some(Frame::Close);
        }
        if let Some(class) = link.owed.iter().position(|owed| *owed > 0) {
            let count = std::mem::take(&mut link.owed[class]);
            return Some(Frame::Credit { class, count });
        }
        for (class, waiting) in link.waiting.iter_mut().enumerate().rev() {
            if !waiting.is_empty() && link.credits.take(class) {
                link.waiting_count -= 1;
                let packet = waiting.pop_front()?;
                return Some(Frame::Message(Packet { hops: packet.hops + 1, ..packet }));
            }
        }
        None
    }

    /// A message has left: it is out on a connection (`forwarded`), or was consumed here.
    pub fn left(&mut self, place: Option<Place>, forwarded: bool) {
        let Some(Place { connection, class }) = place else {
            self.own_queued = self.own_queued.saturating_sub(1);
            self.counts.sent += 1;
            return;
        };
        self.counts.forwarded += u64::from(forwarded);
        let Some(link) = self.connections.get_mut(&connection) else { return };
        link.held[class] = link.held[class].saturating_sub(1);
        link.owed[class] += 1;
        if link.gone {
            self.forget_if_empty(connection);
        } else {
            self.ready.insert(connection);
        }
    }

    /// Begins to close a connection: what waits for it goes other ways.
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

    /// The other end has said that nothing follows; so does this one then.
    ///
    /// # Errors
    /// [`Refusal::NoWay`]; [`Refusal::Closed`] when it had said so before.
    pub fn peer_closed(&mut self, connection: ConnectionId) -> Result<(), Refusal> {
        let link = self.connections.get_mut(&connection).filter(|link| !link.peer_closed);
        link.ok_or(Refusal::Closed)?.peer_closed = true;
        self.close(connection)
    }

    /// Whether both ends have said that nothing follows.
    pub fn is_over(&self, connection: ConnectionId) -> bool {
        self.connections.get(&connection).is_none_or(|link| link.close_sent && link.peer_closed)
    }

    /// The socket is no more. The connection counts until what came over it has left.
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
        if self.connections.get(&connection).is_some_and(|link| link.held.iter().all(|held| *held == 0)) {
            self.connections.remove(&connection);
            self.forgotten += 1;
        }
    }

    /// Direct connections that still count, and their other ends.
    pub fn direct(&self) -> impl Iterator<Item = (ConnectionId, u32)> + '_ {
        self.connections.iter().filter(|(_, link)| link.direct).map(|(id, link)| (*id, link.peer))
    }

    /// How many connections have been forgotten: where it grows, there is room for others.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Connections that are not closing; the topology's count whether they are there or not.
    pub fn open(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.connections.iter().filter(|(_, link)| !link.closing).map(|(id, _)| *id)
    }

    /// Whether messages go to a node without others in between.
    pub fn is_connected(&self, peer: u32) -> bool {
        self.out.get(&peer).is_some_and(|out| !out.is_empty())
    }

    /// Puts a message where it waits: for the destination itself, or for the neighbour nearer to it with the
    /// shortest queue.
    fn queue(&mut self, packet: Packet<T>) -> Result<(), Refusal> {
        let (node, to) = (self.node as usize, packet.to);
        let first = |peer: u32| {
            let ids = self.out.get(&peer)?.iter().copied();
            ids.filter(|id| self.connections.get(id).is_some_and(Connection::takes_messages)).min()
        };
        let mut next: Vec<_> = match first(to) {
            Some(id) => vec![id],
            None => self.routes.next_hops(node, to as usize).filter_map(|peer| first(peer as u32)).collect(),
        };
        let length = |id: &ConnectionId| self.connections.get(id).map_or(0, |link| link.waiting_count);
        let least = next.iter().map(length).min();
        next.retain(|id| Some(length(id)) == least);
        let id = self.rng.choice(next).ok_or(Refusal::NoWay { to })?;
        let astray = Refusal::Astray { from: packet.from, to, hops: packet.hops };
        let class = self.classes.of(packet.hops + 1).ok_or(astray)?;
        let link = self.connections.get_mut(&id).ok_or(Refusal::NoWay { to })?;
        link.waiting[class].push_back(packet);
        link.waiting_count += 1;
        self.ready.insert(id);
        Ok(())
    }
}

impl Pool {
    /// Where a node that knows only what it sends itself would like its direct connections to lead, best
    /// first, when it has those of `now`.
    pub fn preferred(
        &self,
        routes: &Routes,
        node: u32,
        sent: &Demand,
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
