//! Connections that break although both nodes live: what was on them goes another way.
//!
//! A connection delivers in order, so an end knows what has arrived if it knows how many messages. Each end of
//! a broken connection tells all nodes how many it has received, in a [`LinkNotice`]. The other end then sends
//! the rest again by another route: no message is lost, and none arrives twice. Until it has that notice,
//! nothing is sent again.
//!
//! A notice goes to every neighbour once, before any message that was routed with its knowledge. So the next
//! node knows all that the routes of a message depend on, and does not send it back. Messages on detours make
//! more hops than the diameter of the topology; they have classes of their own ([`Classes::with_detours`]). A
//! message without a route is kept until a notice opens one.
//!
//! A link that is opened again has another number, and a notice says so.
//!
//! Links used one way do not recover: their ends can't reach each other to agree.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Connection, ConnectionId, Forwarder, Packet, Refusal};
#[cfg(doc)]
use crate::forwarding::Classes;
use crate::routes::{NONE, Routes, hops_from};

/// Which end has opened a connection, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Whether this end has opened it.
    pub here: bool,
    /// The opener's number for it: 0 for a link of the topology that is opened for the first time, and otherwise
    /// from [`Forwarder::next_number`].
    pub number: u64,
}

/// What an end of a connection tells all nodes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkNotice {
    /// The end that tells it.
    pub by: u32,
    /// The other end.
    pub peer: u32,
    /// Whether `by` has opened the connection.
    pub opened: bool,
    /// The opener's number for it.
    pub number: u64,
    /// Whether it belongs to the topology.
    pub topology: bool,
    /// Messages that `by` has received on it, if it broke; `None` if it was opened again.
    pub received: Option<u64>,
}

impl LinkNotice {
    /// The end that tells it, and the connections that it is about.
    fn key(&self) -> Key {
        (self.by, self.peer, self.opened, self.topology)
    }

    /// Later notices of a connection have a higher one.
    fn age(&self) -> Age {
        (self.number, self.received.is_some())
    }
}

type Key = (u32, u32, bool, bool);
type Age = (u64, bool);

/// What stands in the way of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It is not known which messages this node has received before the connection to it broke.
    Unsettled {
        /// The other end.
        peer: u32,
    },
    /// A message has no route to this node.
    Stranded {
        /// The destination.
        to: u32,
    },
}

/// Nodes to which an end may have had direct connections that broke.
const DIRECT_MAX: usize = 256;
/// Numbers that were drawn for connections and not opened, which are remembered.
pub(super) const DRAWN_MAX: usize = 64;
/// Notices of an end that are kept, for connections between the same two nodes. Older ones are of no use: their ends
/// have agreed, or have failed.
const NOTICES_MAX: usize = 64;

/// What a node knows of broken connections, its own and those of others.
#[derive(Debug)]
pub(super) struct Damage<T> {
    /// The last notices of each end, in order. A new neighbour gets all of them, because the connection that carried
    /// a notice may have broken too.
    notices: BTreeMap<Key, VecDeque<LinkNotice>>,
    /// Notices to send on each connection.
    untold: BTreeMap<ConnectionId, BTreeSet<(Key, Age)>>,
    /// Neighbours of each node over links that are not broken, if any is.
    links: Option<Vec<Vec<u32>>>,
    /// By destination, the hops to it over those links.
    hops: BTreeMap<u32, Vec<u16>>,
    /// Messages without a route.
    pub(super) stranded: VecDeque<Packet<T>>,
}

impl<T> Default for Damage<T> {
    fn default() -> Self {
        Self {
            notices: BTreeMap::new(),
            untold: BTreeMap::new(),
            links: None,
            hops: BTreeMap::new(),
            stranded: VecDeque::new(),
        }
    }
}

impl<T> Damage<T> {
    /// Whether no link that is left leads to a node.
    pub(super) fn cuts_off(&mut self, routes: &Routes, node: u32, to: u32) -> bool {
        self.links.is_some() && self.next_hops(routes, node, to).is_empty()
    }

    /// A new neighbour has to know everything.
    pub(super) fn greet(&mut self, connection: ConnectionId) {
        let all: BTreeSet<_> =
            self.notices.values().flatten().map(|notice| (notice.key(), notice.age())).collect();
        if !all.is_empty() {
            self.untold.insert(connection, all);
        }
    }

    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.untold.remove(&connection);
    }

    pub(super) fn next_notice(&mut self, connection: ConnectionId) -> Option<LinkNotice> {
        let untold = self.untold.get_mut(&connection)?;
        let (key, age) = untold.pop_first()?;
        if untold.is_empty() {
            self.untold.remove(&connection);
        }
        let known = self.notices.get(&key)?;
        known.binary_search_by_key(&age, LinkNotice::age).ok().map(|place| known[place])
    }

    /// Whether an end has told of direct connections to too many nodes.
    fn is_full(&self, notice: &LinkNotice) -> bool {
        let of_end = (notice.by, 0, false, false)..=(notice.by, u32::MAX, true, true);
        !notice.topology
            && !self.notices.contains_key(&notice.key())
            && self.notices.range(of_end).filter(|((.., topology), _)| !topology).count() >= DIRECT_MAX
    }

    /// Stores a notice. Returns false if it is known.
    fn learn(&mut self, notice: LinkNotice, routes: &Routes) -> bool {
        let known = self.notices.entry(notice.key()).or_default();
        let Err(place) = known.binary_search_by_key(&notice.age(), LinkNotice::age) else { return false };
        if place == 0 && known.len() == NOTICES_MAX {
            return false;
        }
        known.insert(place, notice);
        if known.len() > NOTICES_MAX
            && let Some(oldest) = known.pop_front()
        {
            let oldest = (oldest.key(), oldest.age());
            for untold in self.untold.values_mut() {
                untold.remove(&oldest);
            }
        }
        if notice.topology {
            self.hops.clear();
            self.links = self.links_left(routes);
        }
        true
    }

    fn is_broken(&self, a: u32, b: u32) -> bool {
        let (low, high) = (a.min(b), a.max(b));
        // The node with the lower number opens a link.
        let ends = [(low, high, true, true), (high, low, false, true)];
        let last = ends.map(|key| self.notices.get(&key).and_then(VecDeque::back).map(LinkNotice::age));
        // A link that was opened again can be used once both ends have it.
        match last {
            [None, None] => false,
            [Some((number, false)), Some((other, false))] => number != other,
            _ => true,
        }
    }

    fn links_left(&self, routes: &Routes) -> Option<Vec<Vec<u32>>> {
        let topology = routes.topology();
        let mut is_whole = true;
        let links = (0..topology.nodes())
            .map(|node| {
                let left =
                    topology.links(node).iter().copied().filter(|peer| !self.is_broken(node as u32, *peer));
                let left: Vec<u32> = left.collect();
                is_whole &= left.len() == topology.links(node).len();
                left
            })
            .collect();
        (!is_whole).then_some(links)
    }

    /// Every neighbour of a node that is one hop nearer to `to`, over links that are not broken.
    pub(super) fn next_hops(&mut self, routes: &Routes, node: u32, to: u32) -> Vec<usize> {
        let Some(links) = &self.links else { return routes.next_hops(node as usize, to as usize).collect() };
        // Links are used both ways, so that hops from a node are hops to it.
        let hops = self
            .hops
            .entry(to)
            .or_insert_with(|| hops_from(to as usize, |node| links[node].as_slice(), links.len()));
        let here = hops[node as usize];
        let nearer = links[node as usize].iter().map(|peer| *peer as usize);
        nearer.filter(|peer| hops[*peer] != NONE && hops[*peer] + 1 == here).collect()
    }
}

impl<T: Clone> Forwarder<T> {
    /// Whether broken connections are routed around: links must be used both ways.
    pub fn recovers(&self) -> bool {
        self.routes.topology().both_ways()
    }

    /// A number for a connection that this node opens.
    pub fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.drawn.insert(self.next_number);
        if self.drawn.len() > DRAWN_MAX {
            self.drawn.pop_first();
        }
        self.next_number
    }

    /// Whether a connection can still be opened with a number of [`Forwarder::next_number`]: not if the other end
    /// has accepted it, and has already found it broken.
    pub fn is_drawn(&self, number: u64) -> bool {
        self.drawn.contains(&number)
    }

    /// Whether a connection has broken.
    pub fn is_broken(&self, connection: ConnectionId) -> bool {
        self.connections.get(&connection).is_none_or(|link| link.broken)
    }

    /// The connection that is a link of the topology to this node, even if it is broken, with its number.
    pub fn link_to(&self, peer: u32) -> Option<(ConnectionId, u64)> {
        let links = self.connections.iter().filter(|(_, link)| !link.direct && link.peer == peer);
        links.map(|(id, link)| (*id, link.opened.number)).max_by_key(|(_, number)| *number)
    }

    /// A broken link of the topology was opened again.
    ///
    /// # Errors
    /// As [`Forwarder::broke`].
    pub fn reopen(&mut self, peer: u32, opened: Opened) -> Result<ConnectionId, Refusal> {
        let id = self.next_id;
        self.next_id += 1;
        self.insert(id, peer, opened, (true, true), false);
        let (by, number) = (self.node, opened.number);
        let notice = LinkNotice { by, peer, opened: opened.here, number, topology: true, received: None };
        self.tell(notice, None)?;
        Ok(id)
    }

    /// A connection broke before both ends had closed it. Messages that wait for it take another route; so do
    /// those that were sent on it and have not arrived, once the other end has said which those are.
    ///
    /// # Errors
    /// [`Refusal::NoWay`] and [`Refusal::Astray`], if a message has no route and never will;
    /// [`Refusal::Receipt`].
    pub fn broke(&mut self, connection: ConnectionId) -> Result<(), Refusal> {
        let by = self.node;
        let Some(link) = self.connections.get_mut(&connection).filter(|link| !link.broken) else {
            return Ok(());
        };
        (link.broken, link.unsettled) = (true, true);
        (link.closing, link.close_sent, link.peer_closed) = (true, true, true);
        link.waiting_count = 0;
        let waiting: Vec<_> = link.waiting.iter_mut().flat_map(std::mem::take).collect();
        let (peer, opened) = (link.peer, link.opened);
        let notice = LinkNotice {
            by,
            peer,
            opened: opened.here,
            number: opened.number,
            topology: !link.direct,
            received: Some(link.received),
        };
        if let Some(out) = self.out.get_mut(&peer) {
            out.remove(&connection);
        }
        self.damage.forget(connection);
        self.tell(notice, None)?;
        self.settle(connection)?;
        waiting.into_iter().try_for_each(|packet| self.queue(packet))
    }

    /// Handles a notice. Returns the connection of this node that it says is broken, if this node did not know
    /// that: its socket is of no more use.
    ///
    /// # Errors
    /// As [`Forwarder::broke`]; [`Refusal::Notice`] if there can't be such a connection.
    pub fn noticed(
        &mut self,
        connection: ConnectionId,
        notice: LinkNotice,
    ) -> Result<Option<ConnectionId>, Refusal> {
        let LinkNotice { by, peer, opened, number, topology, received } = notice;
        let all = self.routes.topology();
        let impossible = Refusal::Notice { by, peer };
        let is_node = |node: u32| (node as usize) < all.nodes();
        if !self.recovers() || !is_node(by) || !is_node(peer) || by == peer {
            return Err(impossible);
        }
        if self.damage.is_full(&notice) {
            return Err(impossible);
        }
        if topology && (!all.links(by as usize).contains(&peer) || opened != (by < peer)) {
            return Err(impossible);
        }
        if by == self.node {
            // What this node tells comes back to it.
            return Ok(None);
        }
        let is_new = self.tell(notice, Some(connection))?;
        if peer != self.node || received.is_none() {
            return Ok(None);
        }
        let is_it = |link: &Connection<T>| {
            link.peer == by && link.direct != topology && link.opened == Opened { here: !opened, number }
        };
        let Some((&broken, link)) = self.connections.iter_mut().find(|(_, link)| is_it(link)) else {
            if !opened && self.drawn.remove(&number) {
                // The other end has accepted a connection that this one never had.
                let (by, peer) = (peer, by);
                let answer = LinkNotice { by, peer, opened: true, received: Some(0), ..notice };
                self.tell(answer, None)?;
                return Ok(None);
            }
            // If it is new, both ends had closed it, but messages that this end has sent did not arrive.
            return if is_new { Err(Refusal::Undelivered { by }) } else { Ok(None) };
        };
        link.arrived = received;
        if link.broken {
            self.settle(broken)?;
            return Ok(None);
        }
        self.broke(broken)?;
        Ok(Some(broken))
    }

    /// Stores a notice and sends it on, except on the connection that it came from. Returns false if it is known.
    fn tell(&mut self, notice: LinkNotice, except: Option<ConnectionId>) -> Result<bool, Refusal> {
        if !self.damage.learn(notice, &self.routes) {
            return Ok(false);
        }
        for (id, link) in &self.connections {
            if !link.close_sent && !link.gone && Some(*id) != except {
                self.damage.untold.entry(*id).or_default().insert((notice.key(), notice.age()));
                self.ready.insert(*id);
            }
        }
        if notice.topology {
            let stranded = std::mem::take(&mut self.damage.stranded);
            stranded.into_iter().try_for_each(|packet| self.queue(packet))?;
        }
        Ok(true)
    }

    /// Sends again what the other end of a broken connection has not received, if it has said what that is.
    fn settle(&mut self, connection: ConnectionId) -> Result<(), Refusal> {
        let Some(link) = self.connections.get_mut(&connection).filter(|link| link.unsettled) else {
            return Ok(());
        };
        let Some(arrived) = link.arrived else { return Ok(()) };
        link.confirm(arrived)?;
        link.unsettled = false;
        let again = std::mem::take(&mut link.unconfirmed);
        if link.gone {
            self.forget_if_empty(connection);
        }
        again.into_iter().try_for_each(|packet| self.queue(packet))
    }

    /// A node that can't be reached any more, if there is one.
    pub fn unreachable(&self) -> Option<u32> {
        let links = self.damage.links.as_ref()?;
        let hops = hops_from(self.node as usize, |node| links[node].as_slice(), links.len());
        hops.iter().position(|hops| *hops == NONE).map(|node| node as u32)
    }

    /// What stands in the way of messages, if anything does.
    pub fn trouble(&self) -> Option<Trouble> {
        let unsettled = self.connections.values().find(|link| link.unsettled);
        let unsettled = unsettled.map(|link| Trouble::Unsettled { peer: link.peer });
        unsettled.or_else(|| self.damage.stranded.front().map(|packet| Trouble::Stranded { to: packet.to }))
    }

    /// Links of the topology that are broken, each end counted once.
    pub fn broken_links(&self) -> usize {
        let topology = self.routes.topology();
        let all: usize = (0..topology.nodes()).map(|node| topology.links(node).len()).sum();
        let left = self.damage.links.as_ref().map(|links| links.iter().map(Vec::len).sum());
        (all - left.unwrap_or(all)) / 2
    }
}
