//! Overlays come and go with the nodes.
//!
//! All nodes work out the same from the names that have met: numbers, topology, epoch. Each starts its relay, tries
//! again while others are not there, and tells in its description that it is; streams go over an overlay that all
//! of its nodes have told of. When the nodes change, a node opens no streams over it any more, and says so once
//! none is left here; when all have said so, it ends, and the next one is started. Rows go directly meanwhile.

use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use lightship_overlay::{Demand, Division, Knowledge, Pool, Routes, Topology, circulant};
use lightship_relay::{Circuits, Config, Incoming, Relay, RelayError};
use lightship_transport::net::Intake;
use rustls::pki_types::ServerName;
use tokio::sync::watch;

use super::super::members::{Members, OverlayNode};
use super::super::peer::{CIRCUIT_MESSAGE_BYTES, CIRCUITS};
use super::{Formed, Overlay};

/// A start that failed is tried again after this long; it doubles.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// What still goes over an overlay whose nodes have changed has this long to end.
const ENDING_MAX: Duration = Duration::from_secs(300);
/// A node that leaves forwards for others this long.
const LEAVING_MAX: Duration = Duration::from_secs(5);
/// Direct connections are given to other routes so often.
const PERIOD: Duration = Duration::from_secs(1);
/// For each pair of sockets of a cluster's topology that is enough, and takes milliseconds.
const TRIES: usize = 400;

/// The overlay that the nodes as they are now would form.
#[derive(Debug, Clone)]
struct Target {
    nodes: Vec<OverlayNode>,
    me: u32,
    division: Division,
    epoch: u64,
}

impl Target {
    /// Of nodes in order of their names. Nothing where direct connections fit, or somebody can't be part of one.
    fn of(nodes: Vec<OverlayNode>, me: &str) -> Option<Self> {
        let connections_max = nodes.iter().map(|node| node.connections_max).min()?;
        let division = Division::of(nodes.len(), connections_max)?;
        let place = nodes.iter().position(|node| node.name == me)?;
        let mut hash = Fnv::default();
        for node in &nodes {
            hash.write(node.name.as_bytes());
            hash.write(&[0]);
            hash.write(&node.instance.to_le_bytes());
        }
        Some(Self { me: place as u32, division, epoch: hash.finish(), nodes })
    }

    /// What is not the same in another one, for people.
    fn changed(&self, now: &[OverlayNode]) -> String {
        let is_in = |node: &OverlayNode, all: &[OverlayNode]| {
            all.iter().any(|other| other.name == node.name && other.instance == node.instance)
        };
        let gone = self.nodes.iter().filter(|node| !is_in(node, now));
        let come = now.iter().filter(|node| !is_in(node, &self.nodes));
        let gone = gone.map(|node| format!("node {} has gone", node.name));
        let texts: Vec<String> =
            gone.chain(come.map(|node| format!("node {} has come", node.name))).collect();
        if texts.is_empty() { "the nodes have changed".into() } else { texts.join(", ") }
    }
}

/// FNV-1a: the same on all nodes, whatever they were built with.
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

/// Ends a node's part in an overlay, whatever ends who holds this.
struct Held<'a> {
    overlay: &'a Overlay,
    members: &'a Members,
    formed: Arc<Formed>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.overlay.now().take();
        self.formed.cut(None);
        self.members.tell_epoch(None);
    }
}

impl Overlay {
    fn target(members: &Members) -> Option<Target> {
        Target::of(members.overlay_nodes()?, &members.me)
    }

    /// Forms overlays, and takes part in them, until this node has left. What others open comes in by `intake`.
    pub(crate) async fn follow(&self, members: &Members, intake: Intake) {
        let Some(mut changes) = members.subscribe() else { return };
        let (mut pause, mut told) = (PAUSE_MIN, String::new());
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
                Ok((formed, incoming)) => {
                    pause = PAUSE_MIN;
                    if self.take_part(&target, formed, incoming, members, &mut changes, &intake).await {
                        return;
                    }
                }
                // Others may just be a little later.
                Err(why) if pause >= PAUSE_MAX && told != why => {
                    tracing::warn!(why, "no overlay can be formed: rows go directly");
                    told = why;
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

    /// Starts this node's part. The others' need not be there when it is.
    async fn start(&self, target: &Target) -> Result<(Arc<Formed>, Incoming), String> {
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
        let (nodes, sockets, epoch) = (target.nodes.len(), target.division.topology, target.epoch);
        let search = tokio::task::spawn_blocking(move || {
            let shape = circulant(nodes, sockets, TRIES, epoch)?;
            Ok::<_, lightship_overlay::OverlayError>(Arc::new(Routes::new(Topology::new(shape, nodes)?)))
        });
        let routes = search.await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        let config = Config {
            epoch,
            accepted_max: Some(target.division.accepted),
            security: self.security(hosts),
            seed: epoch ^ u64::from(target.me),
            ping_interval: self.client.ping_interval / 2,
            ..Config::new(target.me, addresses, routes.clone(), CIRCUIT_MESSAGE_BYTES)
        };
        let listener = self.config.listener.try_clone().and_then(tokio::net::TcpListener::from_std);
        let listener = listener.map_err(|e| e.to_string())?;
        let by_name = |error: RelayError| match error.node().and_then(|node| names.get(node as usize)) {
            Some(name) => format!("node {name}: {error}"),
            None => error.to_string(),
        };
        let (relay, inbox) = Relay::start(listener, config).await.map_err(by_name)?;
        let (circuits, incoming) = Circuits::start(relay, inbox, CIRCUITS).map_err(by_name)?;
        let formed = Formed::new(names, target.me, epoch, target.division, routes, circuits);
        Ok((Arc::new(formed), incoming))
    }

    /// Takes part until the overlay fails, or has ended as the nodes have changed. Whether this node has left.
    async fn take_part(
        &self,
        target: &Target,
        formed: Arc<Formed>,
        incoming: Incoming,
        members: &Members,
        changes: &mut watch::Receiver<u64>,
        intake: &Intake,
    ) -> bool {
        *self.now() = Some(formed.clone());
        let held = Held { overlay: self, members, formed };
        let formed = &held.formed;
        members.tell_epoch(Some(formed.epoch));
        let left = tokio::select! {
            () = accept(incoming, formed, intake) => {
                tracing::info!(nodes = formed.names.len(), why = formed.failure(), "an overlay has ended");
                formed.end();
                self.now().take();
                members.tell_epoch(None);
                formed.told().await;
                false
            }
            () = give_direct(formed) => false,
            left = until_ended(target, formed, members, changes) => left,
        };
        drop(held);
        left || changes.has_changed().is_err()
    }
}

/// Comes back when the nodes would form another overlay than this, or (false) this node leaves.
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

/// Has what others open answered, as long as the overlay lives.
async fn accept(mut incoming: Incoming, formed: &Formed, intake: &Intake) {
    while let Some((from, circuit)) = incoming.accept().await {
        let from = formed.names.get(from as usize).map_or("another node", String::as_str);
        // A server that takes in no more is about to end. Others' messages pass until then.
        let _ = intake.serve(circuit, format!("node {from}, over the overlay")).await;
    }
}

/// Gives direct connections to the routes that waste most, for ever.
async fn give_direct(formed: &Formed) {
    let (division, me) = (formed.division, formed.me);
    let Some(relay) = formed.circuits.relay().filter(|_| division.opened > 0) else {
        return std::future::pending().await;
    };
    let own = Pool::new(division.opened, Some(division.accepted));
    let pool = Pool { knowledge: Knowledge::Local, ..own };
    let mut recent = Demand::new(formed.names.len());
    let mut rng = Rng::with_seed(formed.epoch ^ u64::from(me));
    let mut period = tokio::time::interval(PERIOD);
    period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        period.tick().await;
        let sent = relay.take_demand();
        if sent.is_empty() {
            // Who sends nothing may keep what he has.
            continue;
        }
        sent.into_iter().for_each(|(to, bytes)| recent.add(me as usize, to as usize, bytes as f64));
        let peers = pool.preferred(&formed.routes, me, &recent, &relay.direct(), &mut rng);
        relay.set_direct(peers, division.opened);
        recent.fade(pool.memory);
    }
}

/// Opens the overlay when all nodes are there, and comes back when it is no longer needed, after its nodes have
/// changed; true where this node has left.
async fn until_ended(
    target: &Target,
    formed: &Formed,
    members: &Members,
    changes: &mut watch::Receiver<u64>,
) -> bool {
    loop {
        changes.borrow_and_update();
        match Overlay::target(members) {
            Some(now) if now.epoch == target.epoch => {
                let others = now.nodes.iter().filter(|node| node.name != members.me);
                if others.clone().all(|node| node.epoch == Some(formed.epoch)) && formed.open() {
                    tracing::info!(
                        nodes = formed.names.len(),
                        sockets = formed.division.topology,
                        "rows go over an overlay"
                    );
                    members.changed();
                }
            }
            _ => break,
        }
        if changes.changed().await.is_err() {
            formed.end();
            // The others end it when they need it no more, and that is its end here.
            tokio::time::sleep(LEAVING_MAX).await;
            return true;
        }
    }
    formed.end();
    members.changed();
    let tell = async {
        formed.circuits.idle().await;
        members.tell_epoch(None);
        std::future::pending::<std::convert::Infallible>().await
    };
    let others = others_ended(target, formed, members, changes);
    let ended = tokio::select! {
        never = tell => match never {},
        ended = tokio::time::timeout(ENDING_MAX, others) => ended,
    };
    match ended {
        Ok(Ended::Unused) => false,
        Ok(Ended::Left) => true,
        Ok(Ended::Lost(name)) => {
            if let (Some(relay), Some(node)) = (formed.circuits.relay(), formed.number(&name)) {
                relay.give_up(node);
            }
            formed.told().await;
            false
        }
        Err(_) => {
            let why = target.changed(&members.overlay_nodes().unwrap_or_default());
            tracing::warn!(why, "an overlay was ended before all that went over it");
            formed.cut(Some(why));
            false
        }
    }
}

/// How an overlay's end has come, after its nodes have changed.
enum Ended {
    /// Nobody needs it any more.
    Unused,
    /// This node has left.
    Left,
    /// A node was lost that may have messages of others, and may never let go of them.
    Lost(String),
}

/// Waits until no node needs an overlay any more.
async fn others_ended(
    target: &Target,
    formed: &Formed,
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
        if !members.is_part_of(formed.epoch) && !members.has_told(formed.epoch, is_of) {
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
    fn all_nodes_work_out_the_same_overlay() {
        let all = nodes(&[("a:1", 1), ("b:1", 2), ("c:1", 3), ("d:1", 4)], 2);
        let of = |me: &str| Target::of(all.clone(), me).unwrap();
        assert_eq!((of("a:1").me, of("d:1").me), (0, 3));
        assert_eq!(of("a:1").epoch, of("d:1").epoch);
        let mut anew = all.clone();
        anew[1].instance = 9;
        assert_ne!(Target::of(anew.clone(), "a:1").unwrap().epoch, of("a:1").epoch);
        assert!(of("a:1").changed(&anew).contains("node b:1 has gone, node b:1 has come"));
        assert!(of("a:1").changed(&all[1..]).contains("node a:1 has gone"));
    }

    #[test]
    fn where_direct_fits_there_is_none() {
        let three = nodes(&[("a:1", 1), ("b:1", 2), ("c:1", 3)], 4);
        assert!(Target::of(three, "a:1").is_none());
        // The smallest limit counts for all.
        let mut four = nodes(&[("a:1", 1), ("b:1", 2), ("c:1", 3), ("d:1", 4)], 64);
        assert!(Target::of(four.clone(), "a:1").is_none());
        four[2].connections_max = 2;
        assert!(Target::of(four, "a:1").is_some());
    }
}
