//! An overlay that was formed: its nodes by number, and the connections over it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lightship_overlay::{Division, Routes};
use lightship_relay::{Circuits, RelayError};
use lightship_transport::TransportError;
use lightship_transport::net::{ClientConfig, Connection};

use super::super::peer::IDLE_MAX;
use super::OverlayState;

/// A relay that has failed takes about a second to say so to others.
const TELLING_MAX: Duration = Duration::from_secs(3);

/// How far an overlay is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// This node is there. Others may not be.
    Alone,
    /// All are.
    Open,
    /// It is to end: nothing new goes over it.
    Ending,
}

pub(super) struct Formed {
    /// Names of the nodes, in order: their numbers.
    pub(super) names: Vec<String>,
    /// This node's number.
    pub(super) me: u32,
    pub(super) epoch: u64,
    pub(super) division: Division,
    pub(super) routes: Arc<Routes>,
    pub(super) circuits: Circuits,
    inner: Mutex<Inner>,
    streams: AtomicU64,
    /// Why it was ended, where this node has.
    why: OnceLock<String>,
}

struct Inner {
    phase: Phase,
    /// Connections at rest, by node.
    idle: HashMap<u32, Vec<Connection>>,
}

impl Formed {
    pub(super) fn new(
        names: Vec<String>,
        me: u32,
        epoch: u64,
        division: Division,
        routes: Arc<Routes>,
        circuits: Circuits,
    ) -> Self {
        Self {
            names,
            me,
            epoch,
            division,
            routes,
            circuits,
            inner: Mutex::new(Inner { phase: Phase::Alone, idle: HashMap::new() }),
            streams: AtomicU64::new(0),
            why: OnceLock::new(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_open(&self) -> bool {
        self.inner().phase == Phase::Open && !self.circuits.has_failed()
    }

    /// All nodes are there. Whether that is news.
    pub(super) fn open(&self) -> bool {
        let mut inner = self.inner();
        let is_news = inner.phase == Phase::Alone;
        if is_news {
            inner.phase = Phase::Open;
        }
        is_news
    }

    /// Nothing new goes over it.
    pub(super) fn end(&self) {
        let idle = {
            let mut inner = self.inner();
            inner.phase = Phase::Ending;
            std::mem::take(&mut inner.idle)
        };
        drop(idle);
    }

    /// Cuts it off, with all that still goes over it; why, for those who read from it.
    pub(super) fn cut(&self, why: Option<String>) {
        self.end();
        if let Some(why) = why {
            let _ = self.why.set(why);
        }
        if let Some(relay) = self.circuits.relay() {
            relay.kill();
        }
    }

    /// Comes back when a relay that has failed has told the others who was lost, or has had the time to.
    pub(super) async fn told(&self) {
        if let Some(relay) = self.circuits.relay() {
            let _ = tokio::time::timeout(TELLING_MAX, relay.ended()).await;
        }
    }

    /// The number of a node.
    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.names.binary_search_by(|other| other.as_str().cmp(name)).ok().map(|place| place as u32)
    }

    fn name(&self, node: u32) -> Option<&str> {
        self.names.get(node as usize).map(String::as_str)
    }

    /// Why it has failed, with a node's name for its number.
    pub(super) fn failure(&self) -> String {
        let at_fault = self.circuits.error().and_then(|error| self.name(error.node()?));
        at_fault.map_or_else(
            || "it was closed".to_owned(),
            |name| format!("node {name} has left it, or was lost"),
        )
    }

    /// A connection to a node, one at rest or a new one.
    ///
    /// # Errors
    /// When there are as many circuits as there may be, or the overlay has failed, or the node does not answer.
    pub(super) async fn connect(
        &self,
        node: u32,
        client: &ClientConfig,
    ) -> Result<Connection, TransportError> {
        self.streams.fetch_add(1, Ordering::Relaxed);
        while let Some(connection) = self.take_idle(node) {
            if connection.is_open() {
                return Ok(connection);
            }
        }
        let circuit = self.circuits.open(node).map_err(std::io::Error::other)?;
        Connection::over(circuit, self.name(node).unwrap_or_default(), client).await
    }

    fn take_idle(&self, node: u32) -> Option<Connection> {
        self.inner().idle.get_mut(&node)?.pop()
    }

    pub(super) fn state(&self) -> OverlayState {
        let relay = self.circuits.stats().relay;
        OverlayState {
            nodes: self.names.clone(),
            is_open: self.is_open(),
            topology: self.division.topology,
            streams: self.streams.load(Ordering::Relaxed),
            forwarded: relay.map_or(0, |relay| relay.counts.forwarded),
            connections: relay.map_or(0, |relay| relay.connections),
            connections_max: relay.map_or(0, |relay| relay.connections_max),
        }
    }
}

/// A connection's way over an overlay.
pub(crate) struct Passage {
    formed: Arc<Formed>,
    node: u32,
}

impl Passage {
    pub(super) fn new(formed: Arc<Formed>, node: u32) -> Self {
        Self { formed, node }
    }

    /// Keeps a connection for the next stream, unless there is to be none.
    pub(crate) fn rest(self, connection: Connection) {
        let mut inner = self.formed.inner();
        if inner.phase == Phase::Open {
            let idle = inner.idle.entry(self.node).or_default();
            if idle.len() < IDLE_MAX {
                idle.push(connection);
            }
        }
    }

    /// What was wrong on the way, by the names of nodes: errors of circuits have numbers that nobody knows. Nothing where
    /// it was not the way.
    pub(crate) fn fault(&self, error: &TransportError) -> Option<String> {
        let TransportError::Io(error) = error else { return None };
        let peer = self.formed.name(self.node).unwrap_or_default();
        let of_relay = error.get_ref().and_then(|inner| inner.downcast_ref::<RelayError>());
        Some(match (of_relay, self.formed.why.get()) {
            (_, Some(why)) => {
                format!("node {peer} can't be read to the end: the overlay was formed anew, as {why}")
            }
            (Some(relay), None) => match relay.node().and_then(|node| self.formed.name(node)) {
                Some(name) => format!("node {name} was lost: rows came over the overlay that it was part of"),
                None => format!("node {peer} was lost: the overlay to it has ended"),
            },
            (None, None) => format!("node {peer} was lost: {}", error.kind()),
        })
    }
}
