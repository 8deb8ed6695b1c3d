//! How a node finds out how the others are: a request that stays open at each.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lightship_wire::control::{ErrorCode, Failure, Plan};
use prost::Message as _;
use tokio::sync::{Notify, watch};

use super::super::VERSION;
use super::super::ask::{Ask, Description, Watch};
use super::super::peer::Peer;
use super::super::reply::first_binary;
use super::{Condition, Members, address};
use crate::error::{EngineError, Result};

/// The first pause before a node that could not be reached is tried again; it doubles.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How a node has ended its description.
enum End {
    Stopped,
    /// It is this node, by another name.
    Me,
    /// It calls itself so.
    Alias(String),
}

impl Members {
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
                // What it knows of others goes before: its rows don't count while theirs may be missing.
                self.learn(&peer.name, &description.members).await?;
                self.set(&peer.name, Condition::Met(description));
            }
        }
        Ok(End::Stopped)
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
            // Or it has restarted before its end was noticed: then it is let in when it tries again.
            return Err(Failure { retryable: true, ..twice(&by.name) });
        }
        // It calls itself so: the name is no other name of a node.
        self.aliases().remove(&by.name);
        // Not one that was removed: it reads here that it was.
        self.follow(&by.name, false, 1);
        Ok(Watched { members: self.clone(), by: by.name.clone(), changes, told: None })
    }
}

/// Follows one node for as long as it matters.
pub(super) async fn follow(members: Weak<Members>, peer: Arc<Peer>, again: Arc<Notify>) {
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
        let name = &peer.name;
        let is_member = members.state().members.is_member(name);
        let condition = match (ended, before) {
            // A node that belongs to the cluster is missed by its name until it is removed.
            (Ok(End::Me), _) if is_member => {
                Condition::Unmet { why: format!("node {name} now calls itself {}", members.me) }
            }
            (Ok(End::Alias(other)), _) if is_member => {
                members.follow(&other, false, 0);
                Condition::Unmet { why: format!("node {name} now calls itself {other}") }
            }
            (Ok(End::Me), _) => return members.forget(name, None),
            (Ok(End::Alias(other)), _) => return members.forget(name, Some(&other)),
            (Ok(End::Stopped), Some(Condition::Met(had) | Condition::Lost { had, .. })) => {
                Condition::Stopped { had }
            }
            // It has said that it would not be there.
            (Ok(End::Stopped) | Err(_), Some(Condition::Stopped { had })) => Condition::Stopped { had },
            (Ok(End::Stopped), _) => Condition::Unmet { why: format!("node {name} has stopped") },
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
            Self::Stopped { .. } => "stopped",
        }
    }
}

/// Follows the nodes that a name stands for, as long as this node runs: a name may stand for several addresses, and in
/// time for others.
pub(super) async fn resolve(members: Weak<Members>, name: String) {
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
        let is_one = found.len() < 2 || found.iter().all(|address| is_loopback(address));
        if !is_one && !members.state().members.is_member(&name) {
            found.iter().for_each(|address| members.follow(address, true, 0));
            members.aliases().insert(name.clone());
            if let Some(known) = members.known().remove(&name) {
                known.task.abort();
                members.changed();
            }
        }
        drop(members);
        tokio::time::sleep(PAUSE_MAX).await;
    }
}

/// Whether an address is this host's own: `localhost` is one node, though it stands for two addresses.
fn is_loopback(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
}

/// A node that watches this one.
pub(crate) struct Watched {
    members: Arc<Members>,
    by: String,
    changes: watch::Receiver<u64>,
    /// What was sent to it last.
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
