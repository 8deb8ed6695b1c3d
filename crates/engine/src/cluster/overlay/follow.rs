//! Forms overlays, and replaces them when the nodes change.
//!
//! All nodes compute the same numbers, topology and epoch from the names of the connected nodes. Each
//! starts its relay, retries while others are not ready, and announces the epoch in its description.
//! Streams use an overlay once all of its nodes have announced it. When the nodes change, a node opens no
//! more streams over the overlay, and withdraws the announcement once none of its streams is left. When all
//! nodes have withdrawn it, the overlay ends and the next one is started. In the meantime, rows go
//! directly.

use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use lightship_overlay::{Routes, SocketBudget, Topology, circulant};
use lightship_relay::{Config, Incoming, Relay, RelayError, Tunnels, TunnelsConfig};
use lightship_transport::net::Intake;
use rustls::pki_types::ServerName;
use tokio::sync::watch;

use super::super::members::{Members, OverlayNode};
use super::instance::pipe;
use super::{Overlay, OverlayInstance};

/// The most bytes of a payload in a frame over a relay; larger payloads are sent in parts.
pub(super) const PART_BYTES_MAX: u32 = 64 << 10;
/// The first pause after a failed start; it doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long the streams of an overlay may continue after its nodes have changed.
const ENDING_MAX: Duration = Duration::from_secs(300);
/// How long a leaving node continues to forward for others.
const LEAVING_MAX: Duration = Duration::from_secs(5);
/// Candidates in the search for a topology: enough for any cluster, and takes milliseconds.
const TRIES: usize = 400;

/// The overlay that the current nodes would form.
#[derive(Debug, Clone)]
struct Target {
    nodes: Vec<OverlayNode>,
    me: u32,
    budget: SocketBudget,
    epoch: u64,
}

impl Target {
    /// The overlay of these nodes, which are sorted by name; `None` if direct connections suffice.
    fn of(nodes: Vec<OverlayNode>, me: &str) -> Option<Self> {
        let connections_max = nodes.iter().map(|node| node.connections_max).min()?;
        let budget = SocketBudget::of(nodes.len(), connections_max)?;
        let number = nodes.iter().position(|node| node.name == me)?;
        let mut hash = Fnv::default();
        for node in &nodes {
            hash.write(node.name.as_bytes());
            hash.write(&[0]);
            hash.write(&node.instance.to_le_bytes());
        }
        Some(Self { me: number as u32, budget, epoch: hash.finish(), nodes })
    }

    /// A message for users that says which nodes have changed.
    fn changed(&self, now: &[OverlayNode]) -> String {
        let is_in = |node: &OverlayNode, all: &[OverlayNode]| {
            all.iter().any(|other| other.name == node.name && other.instance == node.instance)
        };
        let left = self.nodes.iter().filter(|node| !is_in(node, now));
        let joined = now.iter().filter(|node| !is_in(node, &self.nodes));
        let left = left.map(|node| format!("node {} has left", node.name));
        let texts: Vec<String> =
            left.chain(joined.map(|node| format!("node {} has joined", node.name))).collect();
        if texts.is_empty() { "the nodes have changed".into() } else { texts.join(", ") }
    }
}

/// FNV-1a: the same on all nodes, with any compiler.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Ends a node's part in an overlay when dropped.
struct OverlayGuard<'a> {
    overlay: &'a Overlay,
    members: &'a Members,
    instance: Arc<OverlayInstance>,
}

impl Drop for OverlayGuard<'_> {
    fn drop(&mut self) {
        self.overlay.now().take();
        self.instance.abort(None);
        self.members.announce_epoch(None);
    }
}

impl Overlay {
    fn target(members: &Members) -> Option<Target> {
        Target::of(members.overlay_nodes()?, &members.me)
    }

    /// Forms and uses overlays until this node has left. `intake` serves the connections that others open
    /// over them.
    pub(crate) async fn follow(&self, members: &Members, intake: Intake) {
        let Some(mut changes) = members.subscribe() else { return };
        let (mut pause, mut warned) = (PAUSE_MIN, String::new());
        loop {
            let Some(target) = Self::target(members) else {
                match changes.changed().await {
                    Ok(()) => continue,
                    Err(_) => return,
                }
            };
            let started = tokio::select! {
                started = self.start(&target) => started,
                other = differs(&target, members, &mut changes) => match other {
                    true => { pause = PAUSE_MIN; continue }
                    false => return,
                },
            };
            match started {
                Ok((instance, incoming)) => {
                    pause = PAUSE_MIN;
                    if self.use_instance(&target, instance, incoming, members, &mut changes, &intake).await {
                        return;
                    }
                }
                // Shorter pauses are no reason to warn: other nodes may just start a little later.
                Err(why) if pause >= PAUSE_MAX && warned != why => {
                    tracing::warn!(why, "no overlay can be formed: rows go directly");
                    warned = why;
                }
                Err(why) => tracing::debug!(why, "no overlay yet"),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
                other = differs(&target, members, &mut changes) => match other {
                    true => pause = PAUSE_MIN,
                    false => return,
                },
            }
        }
    }

    /// Starts this node's part. The other nodes may start theirs later.
    async fn start(&self, target: &Target) -> Result<(Arc<OverlayInstance>, Incoming), String> {
        let names: Vec<String> = target.nodes.iter().map(|node| node.name.clone()).collect();
        let (mut addresses, mut hosts) = (Vec::new(), Vec::new());
        for node in &target.nodes {
            let unknown = |why: String| format!("node {}: {}: {why}", node.name, node.address);
            let found = tokio::net::lookup_host(&node.address).await;
            let found = found.map_err(|e| unknown(e.to_string()))?.next();
            addresses.push(found.ok_or_else(|| unknown("no such host".into()))?);
            let host = node.address.rsplit_once(':').map_or(node.address.as_str(), |(host, _)| host);
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            if self.config.tls.is_some() {
                hosts.push(ServerName::try_from(host).map_err(|e| unknown(e.to_string()))?);
            }
        }
        let (nodes, sockets, epoch) = (target.nodes.len(), target.budget.topology, target.epoch);
        let search = tokio::task::spawn_blocking(move || {
            let shape = circulant(nodes, sockets, TRIES, epoch)?;
            Ok::<_, lightship_overlay::OverlayError>(Arc::new(Routes::new(Topology::new(shape, nodes)?)))
        });
        let routes = search.await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        let config = Config {
            epoch,
            // The topology has all connections.
            accepted_max: Some(0),
            security: self.security(hosts),
            seed: epoch ^ u64::from(target.me),
            ping_interval: self.client.ping_interval / 2,
            ..Config::new(target.me, addresses, routes, PART_BYTES_MAX)
        };
        let listener = self.config.listener.try_clone().and_then(tokio::net::TcpListener::from_std);
        let listener = listener.map_err(|e| e.to_string())?;
        let by_name = |error: RelayError| match error.node().and_then(|node| names.get(node as usize)) {
            Some(name) => format!("node {name}: {error}"),
            None => error.to_string(),
        };
        let (relay, inbox) = Relay::start(listener, config).await.map_err(by_name)?;
        let (tunnels, incoming) = Tunnels::start(relay, inbox, TunnelsConfig::default());
        let instance = OverlayInstance::new(names, epoch, target.budget, tunnels);
        Ok((Arc::new(instance), incoming))
    }

    /// Uses an overlay until it fails, or ends because the nodes have changed. Returns whether this
    /// node has left.
    async fn use_instance(
        &self,
        target: &Target,
        instance: Arc<OverlayInstance>,
        incoming: Incoming,
        members: &Members,
        changes: &mut watch::Receiver<u64>,
        intake: &Intake,
    ) -> bool {
        *self.now() = Some(instance.clone());
        let held = OverlayGuard { overlay: self, members, instance };
        let instance = &held.instance;
        members.announce_epoch(Some(instance.epoch));
        let left = tokio::select! {
            () = accept(incoming, instance, intake) => {
                tracing::info!(nodes = instance.names.len(), why = instance.failure(), "an overlay has ended");
                instance.end();
                self.now().take();
                members.announce_epoch(None);
                instance.others_notified().await;
                false
            }
            left = until_ended(target, instance, members, changes) => left,
        };
        drop(held);
        left || changes.has_changed().is_err()
    }
}

/// Waits until the nodes would form another overlay (true), or this node leaves (false).
async fn differs(target: &Target, members: &Members, changes: &mut watch::Receiver<u64>) -> bool {
    loop {
        changes.borrow_and_update();
        if Overlay::target(members).is_none_or(|now| now.epoch != target.epoch) {
            return true;
        }
        if changes.changed().await.is_err() {
            return false;
        }
    }
}

/// Serves the connections that others open, as long as the overlay lives.
async fn accept(mut incoming: Incoming, instance: &OverlayInstance, intake: &Intake) {
    while let Some((from, tunnel)) = incoming.accept().await {
        let from = instance.names.get(from as usize).map_or("another node", String::as_str);
        // A server that accepts no more connections is stopping. Until then, the messages of others are
        // still forwarded.
        let _ = intake.serve(pipe(tunnel), format!("node {from}, over the overlay")).await;
    }
}

/// Opens the overlay when all nodes have announced it. Returns when its nodes have changed and it is no
/// longer needed; true if this node has left.
async fn until_ended(
    target: &Target,
    instance: &OverlayInstance,
    members: &Members,
    changes: &mut watch::Receiver<u64>,
) -> bool {
    loop {
        changes.borrow_and_update();
        match Overlay::target(members) {
            Some(now) if now.epoch == target.epoch => {
                let others = now.nodes.iter().filter(|node| node.name != members.me);
                if others.clone().all(|node| node.epoch == Some(instance.epoch)) && instance.open() {
                    tracing::info!(
                        nodes = instance.names.len(),
                        sockets = instance.budget.topology,
                        "rows go over an overlay"
                    );
                    members.changed();
                }
            }
            _ => break,
        }
        if changes.changed().await.is_err() {
            instance.end();
            // The others end it when they no longer need it, which ends it here too.
            tokio::time::sleep(LEAVING_MAX).await;
            return true;
        }
    }
    instance.end();
    members.changed();
    let withdraw = async {
        instance.tunnels.idle().await;
        members.announce_epoch(None);
        std::future::pending::<std::convert::Infallible>().await
    };
    let others = others_ended(target, instance, members, changes);
    let ended = tokio::select! {
        never = withdraw => match never {},
        ended = tokio::time::timeout(ENDING_MAX, others) => ended,
    };
    match ended {
        Ok(Ended::Unused) => false,
        Ok(Ended::Left) => true,
        Ok(Ended::Lost(name)) => {
            if let Some(node) = instance.number(&name) {
                instance.tunnels.relay().give_up(node);
            }
            instance.others_notified().await;
            false
        }
        Err(_) => {
            let why = target.changed(&members.overlay_nodes().unwrap_or_default());
            tracing::warn!(why, "an overlay was ended before its streams");
            instance.abort(Some(why));
            false
        }
    }
}

/// Why an overlay ends after its nodes have changed.
enum Ended {
    /// No node needs it any more.
    Unused,
    /// This node has left.
    Left,
    /// This node was lost. It may hold messages of others that never arrive.
    Lost(String),
}

/// Waits until no node needs an overlay any more.
async fn others_ended(
    target: &Target,
    instance: &OverlayInstance,
    members: &Members,
    changes: &mut watch::Receiver<u64>,
) -> Ended {
    loop {
        changes.borrow_and_update();
        if let Some(lost) = target.nodes.iter().find(|node| members.is_lost(&node.name, node.instance)) {
            return Ended::Lost(lost.name.clone());
        }
        let is_of = |name: &str, instance: u64| {
            target.nodes.iter().any(|node| node.name == name && node.instance == instance)
        };
        if !members.is_part_of(instance.epoch) && !members.is_announced(instance.epoch, is_of) {
            return Ended::Unused;
        }
        if changes.changed().await.is_err() {
            return Ended::Left;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(names: &[(&str, u64)], connections_max: usize) -> Vec<OverlayNode> {
        let node = |(name, instance): &(&str, u64)| OverlayNode {
            name: (*name).to_owned(),
            instance: *instance,
            address: "localhost:1".into(),
            connections_max,
            epoch: None,
        };
        names.iter().map(node).collect()
    }

    #[test]
    fn all_nodes_compute_the_same_overlay() {
        let all = nodes(&[("a:1", 1), ("b:1", 2), ("c:1", 3), ("d:1", 4)], 2);
        let of = |me: &str| Target::of(all.clone(), me).unwrap();
        assert_eq!((of("a:1").me, of("d:1").me), (0, 3));
        assert_eq!(of("a:1").epoch, of("d:1").epoch);
        let mut restarted = all.clone();
        restarted[1].instance = 9;
        assert_ne!(Target::of(restarted.clone(), "a:1").unwrap().epoch, of("a:1").epoch);
        assert!(of("a:1").changed(&restarted).contains("node b:1 has left, node b:1 has joined"));
        assert!(of("a:1").changed(&all[1..]).contains("node a:1 has left"));
    }

    #[test]
    fn there_is_no_overlay_if_direct_connections_suffice() {
        let three = nodes(&[("a:1", 1), ("b:1", 2), ("c:1", 3)], 4);
        assert!(Target::of(three, "a:1").is_none());
        // The smallest limit applies to all.
        let mut four = nodes(&[("a:1", 1), ("b:1", 2), ("c:1", 3), ("d:1", 4)], 64);
        assert!(Target::of(four.clone(), "a:1").is_none());
        four[2].connections_max = 2;
        assert!(Target::of(four, "a:1").is_some());
    }
}
