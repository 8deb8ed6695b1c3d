//! Which nodes there are, and what each one has.
//!
//! The roster says which nodes belong to the cluster ([`roster`], kept on disk by [`store`]). Nodes watch each other
//! ([`watch`]): each keeps one request open at every other, whose answer describes that node and carries its roster,
//! and whose end says that it has stopped (when the answer ends) or was lost (when it fails). So a new node that
//! knows one knows all, and a node that belongs to the cluster and is not there is missed.

mod overlays;
mod roster;
mod store;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
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
use super::ask::{Description, MemberEntry, OverlayPart, Table};
use super::peer::{Dial, Peer};
use crate::error::{EngineError, Result};

/// Nodes that are followed, those that only other nodes or `--join` have named included.
const FOLLOWED_MAX: usize = 2 * roster::NODES_MAX;

/// A node that has joined, as it was when a query was planned.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) url: Url,
    pub(crate) tables: Vec<Table>,
}

/// A node that should be there and is not.
#[derive(Debug, Clone)]
pub(crate) struct Absent {
    pub(crate) name: String,
    pub(crate) state: MemberState,
    pub(crate) why: String,
    /// What the operator can do.
    pub(crate) hint: String,
    /// What it had when it was met last; unknown where this node has not met it since its own start, for the other
    /// one may have come to have more since.
    pub(crate) tables: Option<Vec<Table>>,
}

/// The cluster at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// By name, this one among them.
    pub(crate) nodes: Vec<Node>,
    pub(crate) absent: Vec<Absent>,
    /// Why no table in parts can be whole, whichever nodes are there.
    pub(crate) incomplete: Option<Failure>,
    /// Nodes that were removed from the cluster.
    pub(crate) removed: Vec<String>,
}

impl Snapshot {
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

/// What a node knows of its cluster when it starts.
#[derive(Debug, Clone, Default)]
pub(crate) struct MembersConfig {
    /// Where its state is kept.
    pub(crate) state_folder: Option<PathBuf>,
    /// Tables in parts are refused until this number of nodes has joined, including this one.
    pub(crate) expect_nodes: usize,
    /// Tables of which it gives up its part.
    pub(crate) drop_parts: Vec<String>,
}

/// The nodes.
pub(crate) struct Members {
    pub(crate) me: String,
    pub(crate) url: Url,
    pub(crate) instance: u64,
    tables: Vec<Table>,
    dial: Dial,
    expect_nodes: usize,
    /// As it is on disk.
    state: Mutex<State>,
    store: Store,
    /// One change of the state at a time.
    changing: Arc<tokio::sync::Mutex<()>>,
    /// This node's part in overlays, as it tells the others.
    overlay: Mutex<Option<OverlayPart>>,
    known: Mutex<BTreeMap<String, Known>>,
    /// Addresses that stand for this node, or for one of another name.
    aliases: Mutex<BTreeSet<String>>,
    /// Counts changes; closed when this node leaves.
    changes: Mutex<Option<channel::Sender<u64>>>,
}

struct Known {
    peer: Arc<Peer>,
    /// It was named when this node began.
    joined: bool,
    /// Requests that it keeps open here.
    watching: usize,
    condition: Condition,
    /// Try again now.
    again: Arc<Notify>,
    task: AbortHandle,
}

#[derive(Debug, Clone)]
enum Condition {
    /// Not yet tried.
    New,
    /// Not met since this node began.
    Unmet {
        why: String,
    },
    Met(Description),
    Lost {
        why: String,
        had: Description,
    },
    /// It has said goodbye.
    Stopped {
        had: Description,
    },
}

impl Members {
    /// This node, of this name.
    ///
    /// # Errors
    /// When the name is no address, the state on disk can't be read or written, or the node had a part of a table
    /// that it no longer has.
    pub(crate) fn new(me: &str, tables: Vec<Table>, dial: Dial, config: MembersConfig) -> Result<Arc<Self>> {
        let (_, _, url) =
            address(me).ok_or_else(|| EngineError::Config(format!("`{me}`: expected HOST:PORT")))?;
        // As it stands in plans.
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

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self) -> MutexGuard<'_, Option<channel::Sender<u64>>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all who follow changes.
    pub(crate) fn changed(&self) {
        if let Some(changes) = self.changes().as_ref() {
            changes.send_modify(|count| *count += 1);
        }
    }

    /// Follows the nodes of the roster, and those that were named; a name may stand for several addresses.
    pub(crate) fn join(self: &Arc<Self>, names: &[String]) {
        self.follow_members();
        for name in names {
            // Until it is known which node it stands for, one is missing.
            self.follow(name, true, 0);
            tokio::spawn(watch::resolve(Arc::downgrade(self), name.clone()));
        }
    }

    /// Says goodbye to those who watch, and no longer answers for the cluster.
    pub(crate) fn leave(&self) {
        self.changes().take();
        for known in self.known().values() {
            known.task.abort();
            // They would be in the way of the others' leaving.
            known.peer.forget_connections();
        }
    }

    /// Changes the roster. On disk first: were rows of a node counted that is not on disk, this node could answer
    /// without them after a crash.
    ///
    /// # Errors
    /// What the change fails with, or when it can't be kept; then nothing has changed.
    async fn change(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Roster) -> Result<(), RosterError>,
    ) -> Result<(), EngineError> {
        let one = self.changing.clone().lock_owned().await;
        let mut next = self.state().clone();
        change(&mut next.members).map_err(|error| EngineError::Config(error.to_string()))?;
        if next == *self.state() {
            return Ok(());
        }
        // To its end, even where nobody waits for it any more: disk and memory agree, and no other change comes between.
        let me = self.clone();
        let changed = tokio::task::spawn_blocking(move || {
            let _one = one;
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

    /// Takes a node in again that was removed.
    ///
    /// # Errors
    /// When it was not removed.
    pub(crate) async fn restore(self: &Arc<Self>, name: &str) -> Result<()> {
        self.change(|roster| roster.restore(name)).await
    }

    /// Takes in a node that was met, and what it knows of others.
    async fn learn(self: &Arc<Self>, met: &str, members: &[MemberEntry]) -> Result<()> {
        for entry in members {
            // A name that is no address could never be reached, nor removed by hand.
            if address(&entry.name).is_none_or(|(_, _, url)| url.authority() != entry.name) {
                return Err(EngineError::Internal(format!("node {met} names a node `{}`", entry.name)));
            }
        }
        let other = Roster::from_entries(members);
        self.change(|roster| {
            roster.merge(&other)?;
            roster.admit(met)
        })
        .await
    }

    /// Follows all nodes that belong to the cluster, and none that was removed.
    fn follow_members(self: &Arc<Self>) {
        let roster = self.state().members.clone();
        roster.members().filter(|name| *name != self.me).for_each(|name| self.follow(name, false, 0));
        self.known().retain(|name, known| {
            let stays = !roster.is_removed(name);
            if !stays {
                known.task.abort();
                known.peer.forget_connections();
            }
            stays
        });
    }

    /// Begins to follow a node, unless it is followed already; `watching` more of its requests are open here.
    fn follow(self: &Arc<Self>, name: &str, joined: bool, watching: usize) {
        let Some((host, port, url)) = address(name) else {
            return tracing::warn!(name, "expected HOST:PORT as the name of a node");
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
            if !matches!(known.condition, Condition::Met(_)) {
                known.again.notify_one();
            }
            return;
        }
        if all.len() >= FOLLOWED_MAX {
            return tracing::warn!(name, "more nodes are named than a cluster can have");
        }
        let name = name.to_owned();
        let endpoint = Endpoint::Tcp { host, port, tls: self.dial.tls.clone() };
        let peer = Arc::new(Peer::new(name.clone(), url, endpoint, self.dial.clone()));
        let again = Arc::<Notify>::default();
        let followed = watch::follow(Arc::downgrade(self), peer.clone(), again.clone());
        let task = tokio::spawn(followed).abort_handle();
        let condition = Condition::New;
        all.insert(name, Known { peer, joined, watching, condition, again, task });
    }

    /// Notes how a node is.
    fn set(&self, name: &str, condition: Condition) {
        {
            let roster = self.state().members.clone();
            let mut all = self.known();
            if let Some(known) = all.get_mut(name) {
                known.condition = condition;
            }
            // A name that no one gave, that never joined, and that does not ask anything here, is forgotten.
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

    /// As this node describes itself.
    fn describe(&self) -> Description {
        Description {
            name: self.me.clone(),
            instance: self.instance,
            tables: self.tables.clone(),
            members: self.state().members.to_entries(),
            overlay: self.overlay().clone(),
        }
    }

    /// Waits until each node that is known of has been tried once.
    pub(crate) async fn tried(&self) {
        let Some(mut changes) = self.changes().as_ref().map(channel::Sender::subscribe) else { return };
        while self.known().values().any(|known| matches!(known.condition, Condition::New)) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// The nodes as they are now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let own = Node { name: self.me.clone(), url: self.url.clone(), tables: self.tables.clone() };
        let mut snapshot = Snapshot { nodes: vec![own], ..Snapshot::default() };
        // The roster first: a node that joins in between is more than is needed, and never less.
        let roster = self.state().members.clone();
        let all = self.known();
        for (name, known) in all.iter().filter(|(name, _)| !roster.is_removed(name)) {
            let absence = match &known.condition {
                Condition::Met(description) => {
                    let (url, tables) = (known.peer.url.clone(), description.tables.clone());
                    snapshot.nodes.push(Node { name: name.clone(), url, tables });
                    continue;
                }
                Condition::New => (MemberState::Connecting, None, None),
                Condition::Unmet { why } => (MemberState::Unreachable, Some(why), None),
                Condition::Lost { why, had } => (MemberState::Lost, Some(why), Some(had)),
                Condition::Stopped { had } => (MemberState::Stopped, None, Some(had)),
            };
            snapshot.absent.push(self.absent(name, absence, roster.is_member(name)));
        }
        for name in roster.members().filter(|name| *name != self.me && !all.contains_key(*name)) {
            snapshot.absent.push(self.absent(name, (MemberState::Connecting, None, None), true));
        }
        drop(all);
        snapshot.nodes.sort_by(|a, b| a.name.cmp(&b.name));
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

    /// Why the cluster is not whole, whichever of its nodes are there.
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

    /// A node that can be asked.
    pub(crate) fn peer(&self, name: &str) -> Option<Arc<Peer>> {
        self.known().get(name).map(|known| known.peer.clone())
    }

    /// Counts changes, for those who want to follow them.
    pub(crate) fn subscribe(&self) -> Option<channel::Receiver<u64>> {
        self.changes().as_ref().map(channel::Sender::subscribe)
    }

    /// An address that stands for this node, or for one of another name.
    fn forget(self: &Arc<Self>, name: &str, alias_of: Option<&str>) {
        self.aliases().insert(name.to_owned());
        let joined = self.known().get(name).is_some_and(|known| known.joined);
        if let Some(other) = alias_of {
            self.follow(other, joined, 0);
        }
        // Only now: in between a node would seem to be missing, rather than none.
        self.known().remove(name);
        self.changed();
    }

    fn aliases(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.aliases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Host, port, and address as plans name it, of a node's name.
fn address(name: &str) -> Option<(String, u16, Url)> {
    let url = Url::parse(&format!("lightship://{name}")).ok()?;
    let host = url.host_str()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some((host, url.port()?, url))
}

#[cfg(test)]
mod tests;
