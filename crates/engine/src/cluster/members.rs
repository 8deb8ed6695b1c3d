//! Who is in the cluster, and what each node has.
//!
//! Nodes watch each other: each keeps one question open at every other, whose answer says what that node has,
//! and whose end says that it has left (when the answer ends) or was lost (when it fails). Whom a node has met,
//! it tells; so a new node that knows one knows all.

mod overlays;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lightship_transport::net::Endpoint;
use lightship_wire::control::{ErrorCode, Failure, Plan};
use prost::Message as _;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use url::Url;

pub(crate) use self::overlays::OverlayNode;
use super::VERSION;
use super::ask::{Ask, Description, OverlayPart, Table, Watch};
use super::peer::{Dial, Peer};
use super::reply::first_binary;
use crate::error::{EngineError, Result};

/// The first pause before a node that could not be reached is tried again; it doubles.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// So many nodes are followed; what more are named is not.
const NODES_MAX: usize = 1024;

/// A node that takes part, as it was when a query was planned.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) url: Url,
    pub(crate) tables: Vec<Table>,
}

/// A node that should take part and does not.
#[derive(Debug, Clone)]
pub(crate) struct Absent {
    pub(crate) name: String,
    pub(crate) why: String,
    pub(crate) tried: bool,
    /// What it had, where that is known.
    pub(crate) tables: Option<Vec<Table>>,
}

/// The cluster at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// By name, this one among them.
    pub(crate) nodes: Vec<Node>,
    pub(crate) absent: Vec<Absent>,
}

/// The nodes.
pub(crate) struct Members {
    pub(crate) me: String,
    pub(crate) url: Url,
    pub(crate) instance: u64,
    tables: Vec<Table>,
    dial: Dial,
    /// This node's part in overlays, as others are told of it.
    overlay: Mutex<Option<OverlayPart>>,
    known: Mutex<BTreeMap<String, Known>>,
    /// Addresses that stand for this node, or for one of another name.
    aliases: Mutex<BTreeSet<String>>,
    /// Counts changes; closed when this node leaves.
    changes: Mutex<Option<watch::Sender<u64>>>,
}

struct Known {
    peer: Arc<Peer>,
    /// It was named when this node began.
    joined: bool,
    /// Questions that it keeps open here.
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
    /// Never reached.
    Unmet {
        why: String,
    },
    Met(Description),
    Lost {
        why: String,
        had: Description,
    },
    /// It has said goodbye.
    Left,
}

/// How a node has ended its description.
enum End {
    Left,
    /// It is this node, by another name.
    Me,
    /// It calls itself so.
    Alias(String),
}

impl Members {
    /// This node, of this name.
    ///
    /// # Errors
    /// When the name is no address.
    pub(crate) fn new(me: String, tables: Vec<Table>, dial: Dial) -> Result<Arc<Self>> {
        let (_, _, url) = address(&me).ok_or_else(|| {
            EngineError::Config(format!("`{me}` is no HOST:PORT by which a node could be reached"))
        })?;
        Ok(Arc::new(Self {
            // As it stands in plans.
            me: url.authority().to_owned(),
            url,
            aliases: Mutex::default(),
            instance: fastrand::u64(..),
            tables,
            overlay: Mutex::new(dial.overlay.as_ref().map(|overlay| overlay.part())),
            dial,
            known: Mutex::default(),
            changes: Mutex::new(Some(watch::Sender::new(0))),
        }))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self) -> MutexGuard<'_, Option<watch::Sender<u64>>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever follows changes.
    pub(crate) fn changed(&self) {
        if let Some(changes) = self.changes().as_ref() {
            changes.send_modify(|count| *count += 1);
        }
    }

    /// Follows the nodes that were named; a name may stand for several addresses.
    pub(crate) fn join(self: &Arc<Self>, names: &[String]) {
        for name in names {
            // Until it is known whom it stands for, somebody is missing.
            self.follow(name, true, 0);
            tokio::spawn(resolve(Arc::downgrade(self), name.clone()));
        }
    }

    /// Says goodbye to those who watch, and no longer takes part.
    pub(crate) fn leave(&self) {
        self.changes().take();
        for known in self.known().values() {
            known.task.abort();
            // They would be in the way of the others' leaving.
            known.peer.forget_connections();
        }
    }

    /// Begins to follow a node, unless it is followed already; `watching` more of its questions are open here.
    fn follow(self: &Arc<Self>, name: &str, joined: bool, watching: usize) {
        let Some((host, port, url)) = address(name) else {
            return tracing::warn!(name, "no HOST:PORT, and so no node");
        };
        let name = url.authority();
        let mut all = self.known();
        if name == self.me || self.is_alias(name) || (all.len() >= NODES_MAX && !all.contains_key(name)) {
            return;
        }
        if let Some(known) = all.get_mut(name) {
            known.joined |= joined;
            known.watching += watching;
            if !matches!(known.condition, Condition::Met(_)) {
                known.again.notify_one();
            }
            return;
        }
        let name = name.to_owned();
        let endpoint = Endpoint::Tcp { host, port, tls: self.dial.tls.clone() };
        let peer = Arc::new(Peer::new(name.clone(), url, endpoint, self.dial.clone()));
        let again = Arc::<Notify>::default();
        let task = tokio::spawn(follow(Arc::downgrade(self), peer.clone(), again.clone())).abort_handle();
        let condition = Condition::New;
        all.insert(name, Known { peer, joined, watching, condition, again, task });
    }

    /// One description after the other, to the end of them.
    async fn watch(self: Arc<Self>, peer: &Arc<Peer>) -> Result<End> {
        let ask =
            Ask::Watch(Watch { name: self.me.clone(), instance: self.instance, version: VERSION.into() });
        let mut reply = peer.ask(ask, Plan::default(), None).await?;
        while let Some(rows) = reply.next().await? {
            for row in 0..rows.num_rows() {
                let bytes = first_binary(&rows, row)?;
                let description = Description::decode(bytes)
                    .map_err(|e| EngineError::Internal(format!("node {}: {e}", peer.name)))?;
                if description.instance == self.instance {
                    return Ok(End::Me);
                }
                if description.name != peer.name {
                    return Ok(End::Alias(description.name));
                }
                tracing::debug!(node = peer.name, tables = description.tables.len(), "met");
                self.set(&peer.name, Condition::Met(description));
            }
        }
        Ok(End::Left)
    }

    /// Notes how a node is, and follows those whom it has met.
    fn set(self: &Arc<Self>, name: &str, condition: Condition) {
        if let Some(known) = self.known().get_mut(name) {
            known.condition = condition;
        }
        let named: Vec<String> = {
            let all = self.known();
            all.values()
                .filter_map(|k| match &k.condition {
                    Condition::Met(d) => Some(d.met.iter().cloned()),
                    _ => None,
                })
                .flatten()
                .collect()
        };
        for name in &named {
            self.follow(name, false, 0);
        }
        // Whom nobody has met, nobody has named, and who does not watch, there is not.
        self.known().retain(|name, known| {
            let wanted = known.joined
                || known.watching > 0
                || matches!(known.condition, Condition::Met(_) | Condition::Lost { .. })
                || named.contains(name);
            if !wanted {
                known.task.abort();
            }
            wanted
        });
        self.changed();
    }

    /// As this node describes itself.
    fn describe(&self) -> Description {
        let all = self.known();
        let met = |known: &&Known| matches!(known.condition, Condition::Met(_) | Condition::Lost { .. });
        Description {
            name: self.me.clone(),
            instance: self.instance,
            tables: self.tables.clone(),
            met: all.values().filter(met).map(|known| known.peer.name.clone()).collect(),
            overlay: self.overlay().clone(),
        }
    }

    /// Lets a node watch this one.
    ///
    /// # Errors
    /// When it is of another version, or has the name of another node.
    pub(crate) fn watched(self: &Arc<Self>, by: &Watch) -> Result<Watched, Failure> {
        if by.version != VERSION {
            let message = format!("node {} speaks `{VERSION}`, node {} `{}`", self.me, by.name, by.version);
            return Err(Failure::new(ErrorCode::Peer, message));
        }
        let twice = |name: &str| {
            Failure::new(ErrorCode::Peer, format!("two nodes are called {name}"))
                .hint("give each the address by which the others reach it (--advertise HOST:PORT)")
        };
        // A node that finds itself in its list asks itself, once.
        if by.name == self.me && by.instance != self.instance {
            return Err(twice(&self.me));
        }
        let Some(changes) = self.changes().as_ref().map(watch::Sender::subscribe) else {
            return Err(Failure::new(ErrorCode::ShuttingDown, format!("node {} is leaving", self.me)));
        };
        let other = match self.known().get(&by.name).map(|known| &known.condition) {
            Some(Condition::Met(description)) => Some(description.instance),
            _ => None,
        };
        if other.is_some_and(|instance| instance != by.instance) {
            // Or it has begun anew before its end was noticed: then it will be welcome when it tries again.
            return Err(Failure { retryable: true, ..twice(&by.name) });
        }
        self.follow(&by.name, false, 1);
        Ok(Watched { members: self.clone(), by: by.name.clone(), changes, told: None })
    }

    /// Waits until each node that was named has been tried once.
    pub(crate) async fn tried(&self) {
        let Some(mut changes) = self.changes().as_ref().map(watch::Sender::subscribe) else { return };
        while self.known().values().any(|known| matches!(known.condition, Condition::New)) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// The nodes as they are now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut nodes =
            vec![Node { name: self.me.clone(), url: self.url.clone(), tables: self.tables.clone() }];
        let mut absent = Vec::new();
        for (name, known) in self.known().iter() {
            let tried = !matches!(known.condition, Condition::New);
            let mut gone =
                |why: String, tables| absent.push(Absent { name: name.clone(), why, tried, tables });
            match &known.condition {
                Condition::Met(description) => nodes.push(Node {
                    name: name.clone(),
                    url: known.peer.url.clone(),
                    tables: description.tables.clone(),
                }),
                Condition::New => gone(format!("node {name} has not been reached yet"), None),
                Condition::Unmet { why } => gone(why.clone(), None),
                Condition::Lost { why, had } => gone(why.clone(), Some(had.tables.clone())),
                Condition::Left => {}
            }
        }
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Snapshot { nodes, absent }
    }

    /// A node that can be asked.
    pub(crate) fn peer(&self, name: &str) -> Option<Arc<Peer>> {
        self.known().get(name).map(|known| known.peer.clone())
    }

    /// Counts changes, for whoever wants to follow them.
    pub(crate) fn subscribe(&self) -> Option<watch::Receiver<u64>> {
        self.changes().as_ref().map(watch::Sender::subscribe)
    }
}

/// Host, port, and address as plans name it, of a node's name.
fn address(name: &str) -> Option<(String, u16, Url)> {
    let url = Url::parse(&format!("lightship://{name}")).ok()?;
    let host = url.host_str()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some((host, url.port()?, url))
}

/// Follows one node for as long as it matters.
async fn follow(members: Weak<Members>, peer: Arc<Peer>, again: Arc<Notify>) {
    let mut pause = PAUSE_MIN;
    loop {
        let Some(strong) = members.upgrade() else { return };
        let ended = strong.watch(&peer).await;
        peer.forget_connections();
        let Some(members) = members.upgrade() else { return };
        let before = members.known().get(&peer.name).map(|known| known.condition.clone());
        let was_met = matches!(before, Some(Condition::Met(_)));
        if was_met {
            pause = PAUSE_MIN;
        }
        let condition = match (ended, before) {
            (Ok(End::Me), _) => return members.forget(&peer.name, None),
            (Ok(End::Alias(name)), _) => return members.forget(&peer.name, Some(&name)),
            (Ok(End::Left), _) => Condition::Left,
            // It has said that it would not be there.
            (Err(_), Some(Condition::Left)) => Condition::Left,
            (Err(error), Some(Condition::Met(had) | Condition::Lost { had, .. })) => {
                Condition::Lost { why: error.to_string(), had }
            }
            (Err(error), _) => Condition::Unmet { why: error.to_string() },
        };
        if was_met || matches!(condition, Condition::Unmet { .. }) && pause == PAUSE_MIN {
            tracing::info!(node = peer.name, now = ?condition.why(), "node");
        }
        members.set(&peer.name, condition);
        drop(members);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = again.notified() => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

impl Condition {
    fn why(&self) -> &str {
        match self {
            Self::New => "not yet tried",
            Self::Unmet { why } | Self::Lost { why, .. } => why,
            Self::Met(_) => "met",
            Self::Left => "left",
        }
    }
}

impl Members {
    /// An address that stands for this node, or for one of another name.
    fn forget(self: &Arc<Self>, name: &str, alias_of: Option<&str>) {
        self.aliases.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        let joined = self.known().get(name).is_some_and(|known| known.joined);
        if let Some(other) = alias_of {
            self.follow(other, joined, 0);
        }
        // Only now: in between somebody would seem to be missing, rather than nobody.
        self.known().remove(name);
        self.changed();
    }

    fn is_alias(&self, name: &str) -> bool {
        self.aliases.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }
}

/// Follows whoever a name stands for, as long as there are nodes: a name may stand for several addresses, and in
/// time for others.
async fn resolve(members: Weak<Members>, name: String) {
    let Some((host, port, _)) = address(&name) else { return };
    if host.parse::<std::net::IpAddr>().is_ok() {
        return;
    }
    loop {
        let found: BTreeSet<String> = match tokio::net::lookup_host((host.as_str(), port)).await {
            Ok(found) => found.map(|address| address.to_string()).collect(),
            // Following it says why.
            Err(_) => BTreeSet::new(),
        };
        let Some(members) = members.upgrade() else { return };
        if members.changes().is_none() {
            return;
        }
        if found.len() > 1 {
            found.iter().for_each(|address| members.follow(address, true, 0));
            members.aliases.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
            if let Some(known) = members.known().remove(&name) {
                known.task.abort();
                members.changed();
            }
        }
        drop(members);
        tokio::time::sleep(PAUSE_MAX).await;
    }
}

/// A node that watches this one.
pub(crate) struct Watched {
    members: Arc<Members>,
    by: String,
    changes: watch::Receiver<u64>,
    /// What it was told last.
    told: Option<Description>,
}

impl Watched {
    /// The next description; none once this node leaves.
    pub(crate) async fn next(&mut self) -> Option<Description> {
        loop {
            if self.told.is_some() {
                self.changes.changed().await.ok()?;
            }
            self.changes.borrow_and_update();
            let description = self.members.describe();
            // What is no news here would be no news there, and there and back again without end.
            if self.told.as_ref() != Some(&description) {
                self.told = Some(description.clone());
                return Some(description);
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(known) = self.members.known().get_mut(&self.by) {
            known.watching = known.watching.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use lightship_transport::net::ClientConfig;

    use super::*;

    fn members(name: &str) -> Arc<Members> {
        let client = ClientConfig::default();
        let runtime = tokio::runtime::Handle::current();
        let dial =
            Dial { runtime, tls: None, client, connections_max: 1, trunk_on_host: false, overlay: None };
        Members::new(name.into(), Vec::new(), dial).unwrap()
    }

    fn watch(name: &str, instance: u64, version: &str) -> Watch {
        Watch { name: name.into(), instance, version: version.into() }
    }

    fn met(members: &Arc<Members>, name: &str, instance: u64, met: &[&str]) {
        members.follow(name, false, 0);
        let met = met.iter().map(|name| (*name).to_owned()).collect();
        let description = Description { name: name.into(), instance, met, ..Description::default() };
        members.set(name, Condition::Met(description));
    }

    fn names(members: &Members) -> Vec<String> {
        members.known().keys().cloned().collect()
    }

    #[tokio::test]
    async fn who_is_of_another_version_or_has_anothers_name_is_not_let_in() {
        let members = members("localhost:1");
        let failure = members.watched(&watch("localhost:2", 7, "lightship 99")).err().unwrap();
        assert!(failure.message.contains("lightship 99") && failure.message.contains("localhost:2"));
        let failure = members.watched(&watch("localhost:1", 7, VERSION)).err().unwrap();
        assert!(failure.message.contains("two nodes are called localhost:1"), "{failure:?}");
        assert!(members.watched(&watch("localhost:1", members.instance, VERSION)).is_ok(), "itself");
        met(&members, "localhost:2", 7, &[]);
        assert!(members.watched(&watch("localhost:2", 7, VERSION)).is_ok());
        let failure = members.watched(&watch("localhost:2", 8, VERSION)).err().unwrap();
        assert!(failure.message.contains("two nodes are called localhost:2") && failure.retryable);
    }

    #[tokio::test]
    async fn names_come_from_those_who_have_met_them_and_go_with_them() {
        let members = members("localhost:1");
        members.join(&["localhost:9".into()]);
        met(&members, "localhost:2", 2, &["localhost:1", "localhost:3"]);
        assert_eq!(names(&members), ["localhost:2", "localhost:3", "localhost:9"]);
        assert_eq!(members.describe().met, ["localhost:2"], "only whom it has met itself");
        met(&members, "localhost:2", 2, &[]);
        assert_eq!(names(&members), ["localhost:2", "localhost:9"]);
        members.set("localhost:2", Condition::Left);
        assert_eq!(names(&members), ["localhost:9"], "it was named when the node began");
    }

    #[tokio::test]
    async fn who_watches_is_told_what_is_new_and_no_more() {
        use futures::FutureExt;
        let members = members("localhost:1");
        let mut watched = members.watched(&watch("localhost:2", 2, VERSION)).unwrap();
        assert!(watched.next().await.unwrap().met.is_empty());
        met(&members, "localhost:2", 2, &[]);
        assert_eq!(watched.next().await.unwrap().met, ["localhost:2"]);
        // It tells the same again, or something that is its own business.
        met(&members, "localhost:2", 2, &[]);
        met(&members, "localhost:2", 2, &["localhost:1"]);
        assert!(watched.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn who_leaves_says_so_to_those_who_watch() {
        let members = members("localhost:1");
        let mut watched = members.watched(&watch("localhost:2", 7, VERSION)).unwrap();
        assert_eq!(watched.next().await.unwrap().name, "localhost:1");
        members.leave();
        assert!(watched.next().await.is_none());
        assert!(members.watched(&watch("localhost:2", 7, VERSION)).is_err());
    }
}
