//! The members of the cluster, and the tables of each.
//!
//! The roster lists the nodes that belong to the cluster ([`roster`], stored on disk by [`store`]). Nodes
//! watch each other ([`watch`]): each keeps a request open at every other node. The answer describes that
//! node and carries its roster. If the answer ends, the node has stopped; if it fails, the node was lost.
//! So a new node that knows one node learns of all, and every node knows which members are absent.

mod overlays;
mod roster;
pub(super) mod store;
mod watch;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lightship_transport::net::Endpoint;
use lightship_wire::control::{ErrorCode, Failure};
use tokio::sync::{Notify, watch as channel};
use tokio::task::AbortHandle;
use url::Url;

pub(crate) use self::overlays::OverlayNode;
pub(crate) use self::roster::Roster;
use self::roster::RosterError;
use self::store::{State, Store};
use super::MemberState;
use super::cost::rates::{LINK_UNKNOWN, ProcessorRates};
use super::links::LinkCost;
use super::peer::{Dial, Peer};
use super::request::{Description, LinkEntry, MemberEntry, OverlayPart, ProcessorEntry, Table};
use crate::error::{EngineError, Result};

/// Most nodes that are followed, including those that only other nodes or `--join` have named.
const FOLLOWED_MAX: usize = 2 * roster::NODES_MAX;

/// A node that has joined, as it was when a query was planned.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) url: Url,
    pub(crate) tables: Vec<Table>,
    /// What it has measured of its processor.
    pub(crate) processor: Option<ProcessorEntry>,
}

/// A node that belongs to the cluster and is not connected.
#[derive(Debug, Clone)]
pub(crate) struct Absent {
    pub(crate) name: String,
    pub(crate) state: MemberState,
    pub(crate) why: String,
    /// What the operator can do.
    pub(crate) hint: String,
    /// Its tables when it was last connected. Unknown if it has not been connected since this node started,
    /// because it may have more tables now.
    pub(crate) tables: Option<Vec<Table>>,
}

/// The cluster at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// Nodes that have joined, including this one, sorted by name.
    pub(crate) nodes: Vec<Node>,
    pub(crate) absent: Vec<Absent>,
    /// Why no table in parts can be complete, no matter which nodes are connected.
    pub(crate) incomplete: Option<Failure>,
    /// Nodes that were removed from the cluster.
    pub(crate) removed: Vec<String>,
    /// What was measured of links, by the places of their ends in `nodes`: from, to.
    pub(crate) links: HashMap<(usize, usize), LinkCost>,
    /// How fast each of `nodes` sends and receives.
    pub(crate) capacities: Vec<Capacity>,
}

/// How fast a node sends and receives, in bytes a second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    sends: f64,
    receives: f64,
}

impl Capacity {
    const UNKNOWN: Self = Self { sends: LINK_UNKNOWN, receives: LINK_UNKNOWN };
}

impl Snapshot {
    /// What was measured of a link; `None` if it was not measured yet, or `from` is `to`.
    pub(crate) fn link(&self, from: &str, to: &str) -> Option<LinkCost> {
        self.links.get(&(self.place(from)?, self.place(to)?)).copied()
    }

    /// All links that were measured: from, to, and the cost.
    pub(crate) fn links(&self) -> impl Iterator<Item = (&str, &str, LinkCost)> {
        let name = |place: usize| self.nodes[place].name.as_str();
        self.links.iter().map(move |((from, to), cost)| (name(*from), name(*to), *cost))
    }

    /// What a node has measured of its processor.
    pub(crate) fn processor(&self, node: &str) -> Option<ProcessorRates> {
        Some(self.nodes[self.place(node)?].processor?.into())
    }

    /// Bytes a second that a node sends. Its own link is as fast as the fastest of its links to others, each of which
    /// may be slower because of the other node.
    pub(crate) fn sends(&self, node: &str) -> f64 {
        self.capacity(node).sends
    }

    /// The same of what it receives.
    pub(crate) fn receives(&self, node: &str) -> f64 {
        self.capacity(node).receives
    }

    fn capacity(&self, node: &str) -> Capacity {
        let known = self.place(node).and_then(|place| self.capacities.get(place));
        known.copied().unwrap_or(Capacity::UNKNOWN)
    }

    /// The number of a node in `nodes`, which are sorted.
    fn place(&self, name: &str) -> Option<usize> {
        self.nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok()
    }

    /// Adds what nodes have measured, once all nodes are known and sorted.
    fn set_links<'a>(&mut self, measured: impl Iterator<Item = (&'a str, &'a [LinkEntry])>) {
        for (to, links) in measured {
            let Some(to) = self.place(to) else { continue };
            for link in links {
                if let Some(from) = self.place(&link.from).filter(|from| *from != to) {
                    self.links.insert((from, to), link.into());
                }
            }
        }
        let mut fastest = vec![[0.0_f64; 2]; self.nodes.len()];
        for ((from, to), cost) in &self.links {
            fastest[*from][0] = fastest[*from][0].max(cost.bytes_per_second);
            fastest[*to][1] = fastest[*to][1].max(cost.bytes_per_second);
        }
        let known = |rate: f64| if rate > 0.0 { rate } else { LINK_UNKNOWN };
        let capacity =
            |[sends, receives]: [f64; 2]| Capacity { sends: known(sends), receives: known(receives) };
        self.capacities = fastest.into_iter().map(capacity).collect();
    }

    /// Why rows of a table in parts may be missing, if they may.
    pub(crate) fn missing(&self, table: &str) -> Option<Failure> {
        let fail = |why: &str, hint: &str| {
            let message = format!("rows of `{table}` may be missing: {why}");
            Failure { retryable: true, ..Failure::new(ErrorCode::Peer, message) }.hint(hint)
        };
        let may_have = |absent: &&Absent| {
            let tables = absent.tables.as_ref();
            tables.is_none_or(|tables| tables.iter().any(|one| one.name == table))
        };
        let incomplete = || {
            let failure = self.incomplete.as_ref()?;
            Some(fail(&failure.message, failure.hint.as_deref().unwrap_or_default()))
        };
        let absent = || self.absent.iter().find(may_have).map(|absent| fail(&absent.why, &absent.hint));
        incomplete().or_else(absent)
    }
}

/// What a node knows about its cluster when it starts.
#[derive(Debug, Clone, Default)]
pub(crate) struct MembersConfig {
    /// Where its state is stored.
    pub(crate) state_folder: Option<PathBuf>,
    /// Tables in parts are refused until this number of nodes has joined, including this one.
    pub(crate) expect_nodes: usize,
    /// Tables whose part it gives up.
    pub(crate) drop_parts: Vec<String>,
}

/// The members of the cluster, as this node knows them.
pub(crate) struct Members {
    pub(crate) me: String,
    pub(crate) url: Url,
    pub(crate) instance: u64,
    tables: Vec<Table>,
    dial: Dial,
    expect_nodes: usize,
    /// The same as on disk.
    state: Mutex<State>,
    store: Store,
    /// One change of the state at a time.
    changing: Arc<tokio::sync::Mutex<()>>,
    /// This node's part in overlays, as sent to the others.
    overlay: Mutex<Option<OverlayPart>>,
    /// What this node has measured, as sent to the others.
    measured: Mutex<(Vec<LinkEntry>, Option<ProcessorEntry>)>,
    known: Mutex<BTreeMap<String, PeerState>>,
    /// Addresses that resolve to this node, or to a node with another name.
    aliases: Mutex<BTreeSet<String>>,
    /// Counts changes; closed when this node leaves.
    changes: Mutex<Option<channel::Sender<u64>>>,
}

struct PeerState {
    peer: Arc<Peer>,
    /// Whether `--join` named it.
    joined: bool,
    /// Requests that it keeps open here.
    watching: usize,
    condition: MemberStatus,
    /// Notified to try again now.
    again: Arc<Notify>,
    task: AbortHandle,
}

#[derive(Debug, Clone)]
enum MemberStatus {
    /// Not tried yet.
    New,
    /// Not connected since this node started.
    Unmet {
        why: String,
    },
    Met(Description),
    Lost {
        why: String,
        had: Description,
    },
    /// It has announced that it leaves.
    Stopped {
        had: Description,
    },
}

impl Members {
    /// The members, as this node knows them at its start; `me` is its name.
    ///
    /// # Errors
    /// When the name is not an address, the state on disk can't be read or written, or the node had a part
    /// of a table that it no longer has.
    pub(crate) fn new(me: &str, tables: Vec<Table>, dial: Dial, config: MembersConfig) -> Result<Arc<Self>> {
        let (_, _, url) =
            address(me).ok_or_else(|| EngineError::Config(format!("`{me}`: expected HOST:PORT")))?;
        // Normalised, as in plans.
        let me = url.authority().to_owned();
        let store = Store::new(config.state_folder.as_deref(), &me);
        let mut state = store.read(&me)?;
        state.members.admit(&me).map_err(|error| EngineError::Config(error.to_string()))?;
        state.parts.retain(|table| !config.drop_parts.contains(table));
        let parts: BTreeSet<String> =
            tables.iter().filter(|table| !table.shared).map(|table| table.name.clone()).collect();
        if let Some(gone) = state.parts.difference(&parts).next() {
            return Err(EngineError::Config(format!(
                "node {me} no longer has its part of table `{gone}`, so answers would miss rows. Add the table with \
                 --table or --data, or drop its rows for good with --drop-part {gone}"
            )));
        }
        state.parts = parts;
        store.write(&state)?;
        Ok(Arc::new(Self {
            me,
            url,
            aliases: Mutex::default(),
            instance: fastrand::u64(..),
            tables,
            measured: Mutex::default(),
            overlay: Mutex::new(dial.overlay.as_ref().map(|overlay| overlay.part())),
            dial,
            expect_nodes: config.expect_nodes,
            state: Mutex::new(state),
            store,
            changing: Arc::default(),
            known: Mutex::default(),
            changes: Mutex::new(Some(channel::Sender::new(0))),
        }))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, PeerState>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self) -> MutexGuard<'_, Option<channel::Sender<u64>>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies all subscribers of a change.
    pub(crate) fn changed(&self) {
        if let Some(changes) = self.changes().as_ref() {
            changes.send_modify(|count| *count += 1);
        }
    }

    /// Follows the nodes of the roster and those in `names`; a name may resolve to several addresses.
    pub(crate) fn join(self: &Arc<Self>, names: &[String]) {
        self.follow_members();
        for name in names {
            // Until the name is resolved, it counts as an absent node.
            self.follow(name, true, 0);
            tokio::spawn(watch::resolve(Arc::downgrade(self), name.clone()));
        }
    }

    /// Ends the answers to all watching nodes, and accepts no more requests of the cluster.
    pub(crate) fn leave(&self) {
        self.changes().take();
        for known in self.known().values() {
            known.task.abort();
            // An open connection would delay the shutdown of the other nodes.
            known.peer.forget_connection();
        }
    }

    /// Changes the roster, on disk first: if a node counted before it was on disk, this node could answer
    /// without its rows after a crash.
    ///
    /// # Errors
    /// When the change fails, or can't be stored; then nothing has changed.
    async fn change(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Roster) -> Result<(), RosterError>,
    ) -> Result<(), EngineError> {
        let guard = self.changing.clone().lock_owned().await;
        let mut next = self.state().clone();
        change(&mut next.members).map_err(|error| EngineError::Config(error.to_string()))?;
        if next == *self.state() {
            return Ok(());
        }
        // Runs to its end even if the caller is cancelled, so that disk and memory agree and changes stay
        // in order.
        let me = self.clone();
        let changed = tokio::task::spawn_blocking(move || {
            let _guard = guard;
            me.store.write(&next)?;
            *me.state() = next;
            me.follow_members();
            me.changed();
            Ok(())
        });
        changed.await.map_err(|error| EngineError::Internal(error.to_string()))?
    }

    /// Removes a node from the cluster for good.
    ///
    /// # Errors
    /// When it does not belong to the cluster, or is this one.
    pub(crate) async fn remove(self: &Arc<Self>, name: &str) -> Result<()> {
        if name == self.me {
            return Err(EngineError::Config(format!("node {name} can't remove itself: ask another node")));
        }
        self.change(|roster| roster.remove(name)).await
    }

    /// Adds a removed node again.
    ///
    /// # Errors
    /// When it was not removed.
    pub(crate) async fn restore(self: &Arc<Self>, name: &str) -> Result<()> {
        self.change(|roster| roster.restore(name)).await
    }

    /// Adds a connected node to the roster, with the members that it knows.
    async fn learn(self: &Arc<Self>, met: &str, members: &[MemberEntry]) -> Result<()> {
        for entry in members {
            // A node whose name is not an address could never be reached, nor removed by hand.
            if address(&entry.name).is_none_or(|(_, _, url)| url.authority() != entry.name) {
                return Err(EngineError::Internal(format!(
                    "node {met} has a member `{}`: expected HOST:PORT",
                    entry.name
                )));
            }
        }
        let other = Roster::from_entries(members);
        self.change(|roster| {
            roster.merge(&other)?;
            roster.admit(met)
        })
        .await
    }

    /// Follows all nodes that belong to the cluster, and stops following removed ones.
    fn follow_members(self: &Arc<Self>) {
        let roster = self.state().members.clone();
        roster.members().filter(|name| *name != self.me).for_each(|name| self.follow(name, false, 0));
        self.known().retain(|name, known| {
            let stays = !roster.is_removed(name);
            if !stays {
                known.task.abort();
                known.peer.forget_connection();
            }
            stays
        });
    }

    /// Starts to follow a node, unless it is followed already. `watching` is the number of its requests
    /// that were just opened here.
    fn follow(self: &Arc<Self>, name: &str, joined: bool, watching: usize) {
        let Some((host, port, url)) = address(name) else {
            return tracing::warn!(name, "the name of a node must be HOST:PORT");
        };
        let name = url.authority();
        let roster = self.state().members.clone();
        let is_other_name = self.aliases().contains(name) && !roster.is_member(name);
        if name == self.me || roster.is_removed(name) || is_other_name {
            return;
        }
        let mut all = self.known();
        if let Some(known) = all.get_mut(name) {
            known.joined |= joined;
            known.watching += watching;
            if !matches!(known.condition, MemberStatus::Met(_)) {
                known.again.notify_one();
            }
            return;
        }
        if all.len() >= FOLLOWED_MAX {
            return tracing::warn!(name, "ignored: a cluster can't have this many nodes");
        }
        let name = name.to_owned();
        let endpoint = Endpoint::Tcp { host, port, tls: self.dial.tls.clone() };
        let peer = Arc::new(Peer::new(name.clone(), url, endpoint, self.dial.clone()));
        let again = Arc::<Notify>::default();
        let followed = watch::follow(Arc::downgrade(self), peer.clone(), again.clone());
        let task = tokio::spawn(followed).abort_handle();
        let condition = MemberStatus::New;
        all.insert(name, PeerState { peer, joined, watching, condition, again, task });
    }

    /// Sets the status of a node.
    fn set(&self, name: &str, condition: MemberStatus) {
        {
            let roster = self.state().members.clone();
            let mut all = self.known();
            if let Some(known) = all.get_mut(name) {
                known.condition = condition;
            }
            // Forgets nodes that are not in --join, are not members, and have no request open here.
            all.retain(|name, known| {
                let wanted = known.joined || known.watching > 0 || roster.is_member(name);
                if !wanted {
                    known.task.abort();
                }
                wanted
            });
        }
        self.changed();
    }

    /// The description of this node.
    fn describe(&self) -> Description {
        let (links, processor) = self.measured().clone();
        Description {
            name: self.me.clone(),
            instance: self.instance,
            tables: self.tables.clone(),
            members: self.state().members.to_entries(),
            overlay: self.overlay().clone(),
            links,
            processor,
        }
    }

    fn measured(&self) -> MutexGuard<'_, (Vec<LinkEntry>, Option<ProcessorEntry>)> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the other nodes what this one has measured of the links to it.
    pub(crate) fn announce_links(&self, links: Vec<LinkEntry>) {
        if std::mem::replace(&mut self.measured().0, links.clone()) != links {
            self.changed();
        }
    }

    /// Tells the other nodes what this one has measured of its processor.
    pub(crate) fn announce_processor(&self, processor: ProcessorEntry) {
        self.measured().1 = Some(processor);
        self.changed();
    }

    /// The other nodes that have joined.
    pub(crate) fn met(&self) -> Vec<Arc<Peer>> {
        let known = self.known();
        let met = known.values().filter(|known| matches!(known.condition, MemberStatus::Met(_)));
        met.map(|known| known.peer.clone()).collect()
    }

    /// Waits until each known node has been tried once.
    pub(crate) async fn tried(&self) {
        let Some(mut changes) = self.changes().as_ref().map(channel::Sender::subscribe) else { return };
        while self.known().values().any(|known| matches!(known.condition, MemberStatus::New)) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// The nodes as they are now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (links, processor) = self.measured().clone();
        let own =
            Node { name: self.me.clone(), url: self.url.clone(), tables: self.tables.clone(), processor };
        let mut snapshot = Snapshot { nodes: vec![own], ..Snapshot::default() };
        // The roster is read first: a node that joins in between may be included early, but is never missing.
        let roster = self.state().members.clone();
        let all = self.known();
        for (name, known) in all.iter().filter(|(name, _)| !roster.is_removed(name)) {
            let absence = match &known.condition {
                MemberStatus::Met(description) => {
                    snapshot.nodes.push(Node {
                        name: name.clone(),
                        url: known.peer.url.clone(),
                        tables: description.tables.clone(),
                        processor: description.processor,
                    });
                    continue;
                }
                MemberStatus::New => (MemberState::Connecting, None, None),
                MemberStatus::Unmet { why } => (MemberState::Unreachable, Some(why), None),
                MemberStatus::Lost { why, had } => (MemberState::Lost, Some(why), Some(had)),
                MemberStatus::Stopped { had } => (MemberState::Stopped, None, Some(had)),
            };
            snapshot.absent.push(self.absent(name, absence, roster.is_member(name)));
        }
        for name in roster.members().filter(|name| *name != self.me && !all.contains_key(*name)) {
            snapshot.absent.push(self.absent(name, (MemberState::Connecting, None, None), true));
        }
        snapshot.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let others = all.iter().filter_map(|(name, known)| match &known.condition {
            MemberStatus::Met(description) => Some((name.as_str(), description.links.as_slice())),
            _ => None,
        });
        snapshot.set_links(others.chain([(self.me.as_str(), links.as_slice())]));
        drop(all);
        snapshot.absent.sort_by(|a, b| a.name.cmp(&b.name));
        snapshot.incomplete = self.incomplete(&roster);
        snapshot.removed = roster.removed().map(str::to_owned).collect();
        snapshot
    }

    fn absent(
        &self,
        name: &str,
        (state, why, had): (MemberState, Option<&String>, Option<&Description>),
        is_member: bool,
    ) -> Absent {
        let why = match (state, why) {
            (_, Some(why)) => why.clone(),
            (MemberState::Stopped, None) => format!("node {name} has stopped"),
            (_, None) => format!("node {name} has not been reached yet"),
        };
        let hint = match is_member {
            true => format!(
                "start node {name}, or remove it and its rows from the cluster: lightship cluster remove lightship://{} {name}",
                self.me
            ),
            false => format!("start node {name}, or remove it from --join and restart the others"),
        };
        Absent { name: name.into(), state, why, hint, tables: had.map(|had| had.tables.clone()) }
    }

    /// Why the cluster is not complete, no matter which of its nodes are connected.
    fn incomplete(&self, roster: &Roster) -> Option<Failure> {
        let me = &self.me;
        if roster.is_removed(me) {
            let why = format!("node {me} was removed from the cluster");
            let hint =
                format!("add it again from another node: lightship cluster add lightship://HOST:PORT {me}");
            return Some(Failure::new(ErrorCode::Peer, why).hint(hint));
        }
        (roster.len() < self.expect_nodes).then(|| {
            let why = format!("{} of {} nodes have joined", roster.len(), self.expect_nodes);
            Failure::new(ErrorCode::Peer, why).hint("start the other nodes, or lower --expect-nodes")
        })
    }

    /// The node of this name, to send requests to.
    pub(crate) fn peer(&self, name: &str) -> Option<Arc<Peer>> {
        self.known().get(name).map(|known| known.peer.clone())
    }

    /// A receiver that is notified of changes; none once this node leaves.
    pub(crate) fn subscribe(&self) -> Option<channel::Receiver<u64>> {
        self.changes().as_ref().map(channel::Sender::subscribe)
    }

    /// Forgets a name that turned out to be an alias of this node, or of node `alias_of`.
    fn forget(self: &Arc<Self>, name: &str, alias_of: Option<&str>) {
        self.aliases().insert(name.to_owned());
        let joined = self.known().get(name).is_some_and(|known| known.joined);
        if let Some(other) = alias_of {
            self.follow(other, joined, 0);
        }
        // Last, so that the node counts as absent in between, rather than as unknown.
        self.known().remove(name);
        self.changed();
    }

    fn aliases(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.aliases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The host, the port, and the URL in plans, from a node's name.
fn address(name: &str) -> Option<(String, u16, Url)> {
    let url = Url::parse(&format!("lightship://{name}")).ok()?;
    let host = url.host_str()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some((host, url.port()?, url))
}

#[cfg(test)]
mod tests;
