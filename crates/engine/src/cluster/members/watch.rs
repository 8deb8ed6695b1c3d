//! How a node learns the state of the others: it keeps a request open at each.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lightship_wire::control::{ErrorCode, Failure, Plan};
use tokio::sync::{Notify, watch};

use super::super::VERSION;
use super::super::peer::Peer;
use super::super::request::{Description, RequestKind, Watch, message_at};
use super::{MemberStatus, Members, address};
use crate::error::{EngineError, Result};

/// The first pause before an unreachable node is tried again; it doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How a node's answer has ended.
enum End {
    Stopped,
    /// It is this node, under another name.
    Me,
    /// The node has this other name.
    Alias(String),
}

impl Members {
    /// Receives one description after the other until the answer ends.
    async fn watch(self: Arc<Self>, peer: &Arc<Peer>) -> Result<End> {
        let kind = RequestKind::Watch(Watch {
            name: self.me.clone(),
            instance: self.instance,
            version: VERSION.into(),
        });
        let mut reply = peer.request(kind, Plan::default(), None).await?;
        while let Some(rows) = reply.next().await? {
            for row in 0..rows.num_rows() {
                let description: Description = message_at(&rows, row)
                    .map_err(|e| EngineError::Internal(format!("node {}: {e}", peer.name)))?;
                if description.instance == self.instance {
                    return Ok(End::Me);
                }
                if description.name != peer.name {
                    return Ok(End::Alias(description.name));
                }
                tracing::debug!(node = peer.name, tables = description.tables.len(), "description received");
                // The members that it knows come first: its rows must not count while theirs may be missing.
                self.learn(&peer.name, &description.members).await?;
                self.set(&peer.name, MemberStatus::Met(description));
            }
        }
        Ok(End::Stopped)
    }

    /// Lets a node watch this one.
    ///
    /// # Errors
    /// When it has another version, or the name of another node.
    pub(crate) fn watched(self: &Arc<Self>, by: &Watch) -> Result<Watched, Failure> {
        if by.version != VERSION {
            let message =
                format!("node {} has version `{VERSION}`, node {} has `{}`", self.me, by.name, by.version);
            return Err(Failure::new(ErrorCode::Peer, message));
        }
        let twice = |name: &str| {
            Failure::new(ErrorCode::Peer, format!("two nodes have the name {name}"))
                .hint("give each the address by which the others reach it (--advertise HOST:PORT)")
        };
        // A node that finds its own address in --join watches itself once.
        if by.name == self.me && by.instance != self.instance {
            return Err(twice(&self.me));
        }
        let Some(changes) = self.changes().as_ref().map(watch::Sender::subscribe) else {
            return Err(Failure::new(ErrorCode::ShuttingDown, format!("node {} is leaving", self.me)));
        };
        let other = match self.known().get(&by.name).map(|known| &known.condition) {
            Some(MemberStatus::Met(description)) => Some(description.instance),
            _ => None,
        };
        if other.is_some_and(|instance| instance != by.instance) {
            // Or it has restarted before its end was noticed: then its next attempt succeeds.
            return Err(Failure { retryable: true, ..twice(&by.name) });
        }
        // This is the node's own name, so it is not an alias.
        self.aliases().remove(&by.name);
        // A removed node is not followed, but it learns of its removal here.
        self.follow(&by.name, false, 1);
        Ok(Watched { members: self.clone(), by: by.name.clone(), changes, sent: None })
    }
}

/// Follows a node until this node leaves, or the name turns out to be an alias.
pub(super) async fn follow(members: Weak<Members>, peer: Arc<Peer>, again: Arc<Notify>) {
    let mut pause = PAUSE_MIN;
    loop {
        let Some(strong) = members.upgrade() else { return };
        let ended = strong.watch(&peer).await;
        peer.forget_connection();
        let Some(members) = members.upgrade() else { return };
        let before = members.known().get(&peer.name).map(|known| known.condition.clone());
        let was_met = matches!(before, Some(MemberStatus::Met(_)));
        if was_met {
            pause = PAUSE_MIN;
        }
        let name = &peer.name;
        let is_member = members.state().members.is_member(name);
        let condition = match (ended, before) {
            // A member counts as absent under its name until it is removed.
            (Ok(End::Me), _) if is_member => {
                MemberStatus::Unmet { why: format!("node {name} now has the name {}", members.me) }
            }
            (Ok(End::Alias(other)), _) if is_member => {
                members.follow(&other, false, 0);
                MemberStatus::Unmet { why: format!("node {name} now has the name {other}") }
            }
            (Ok(End::Me), _) => return members.forget(name, None),
            (Ok(End::Alias(other)), _) => return members.forget(name, Some(&other)),
            (Ok(End::Stopped), Some(MemberStatus::Met(had) | MemberStatus::Lost { had, .. })) => {
                MemberStatus::Stopped { had }
            }
            // It announced that it would leave.
            (Ok(End::Stopped) | Err(_), Some(MemberStatus::Stopped { had })) => MemberStatus::Stopped { had },
            (Ok(End::Stopped), _) => MemberStatus::Unmet { why: format!("node {name} has stopped") },
            (Err(error), Some(MemberStatus::Met(had) | MemberStatus::Lost { had, .. })) => {
                MemberStatus::Lost { why: error.to_string(), had }
            }
            (Err(error), _) => MemberStatus::Unmet { why: error.to_string() },
        };
        if was_met || matches!(condition, MemberStatus::Unmet { .. }) && pause == PAUSE_MIN {
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

impl MemberStatus {
    fn why(&self) -> &str {
        match self {
            Self::New => "not tried yet",
            Self::Unmet { why } | Self::Lost { why, .. } => why,
            Self::Met(_) => "joined",
            Self::Stopped { .. } => "stopped",
        }
    }
}

/// Follows the nodes that a name resolves to, as long as this node runs: a name may resolve to several
/// addresses, and they may change.
pub(super) async fn resolve(members: Weak<Members>, name: String) {
    let Some((host, port, _)) = address(&name) else { return };
    if host.parse::<std::net::IpAddr>().is_ok() {
        return;
    }
    loop {
        let found: BTreeSet<String> = match tokio::net::lookup_host((host.as_str(), port)).await {
            Ok(found) => found.map(|address| address.to_string()).collect(),
            // The attempt to connect reports the reason.
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

/// Whether an address is a loopback address: `localhost` is one node, although it resolves to two addresses.
fn is_loopback(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
}

/// A node that watches this one.
pub(crate) struct Watched {
    members: Arc<Members>,
    by: String,
    changes: watch::Receiver<u64>,
    /// The last description that was sent to it.
    sent: Option<Description>,
}

impl Watched {
    /// The next description; `None` once this node leaves.
    pub(crate) async fn next(&mut self) -> Option<Description> {
        loop {
            if self.sent.is_some() {
                self.changes.changed().await.ok()?;
            }
            self.changes.borrow_and_update();
            let description = self.members.describe();
            // Without this check, two nodes would send each other unchanged descriptions for ever.
            if self.sent.as_ref() != Some(&description) {
                self.sent = Some(description.clone());
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
