//! An overlay that has been formed: its nodes by number, and the connections over it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lightship_overlay::SocketBudget;
use lightship_relay::{RelayError, Tunnel, Tunnels};
use lightship_transport::TransportError;
use lightship_transport::net::{ClientConfig, Connection, FramePipe};

use super::OverlayState;
use super::follow::PART_BYTES_MAX;

/// A relay that has failed takes about a second to notify the others.
const NOTIFYING_MAX: Duration = Duration::from_secs(3);

/// The phase of an overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// This node has started its part. Others may not have.
    Alone,
    /// All nodes have started their part.
    Open,
    /// It is ending: no new streams go over it.
    Ending,
}

pub(super) struct OverlayInstance {
    /// Names of the nodes, sorted. A node's number is its index.
    pub(super) names: Vec<String>,
    pub(super) epoch: u64,
    pub(super) budget: SocketBudget,
    pub(super) tunnels: Tunnels,
    inner: Mutex<Inner>,
    streams: AtomicU64,
    /// Why this node ended it, if it did.
    why: OnceLock<String>,
}

struct Inner {
    phase: Phase,
    /// The connection to each node, which all streams to it share. Locked while connecting.
    connections: HashMap<u32, Arc<tokio::sync::Mutex<Dialled>>>,
}

/// The connection to a node of the overlay.
#[derive(Default)]
struct Dialled {
    connection: Option<Connection>,
    /// When the last attempt failed.
    failed: Option<Instant>,
}

impl OverlayInstance {
    pub(super) fn new(names: Vec<String>, epoch: u64, budget: SocketBudget, tunnels: Tunnels) -> Self {
        Self {
            names,
            epoch,
            budget,
            tunnels,
            inner: Mutex::new(Inner { phase: Phase::Alone, connections: HashMap::new() }),
            streams: AtomicU64::new(0),
            why: OnceLock::new(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_open(&self) -> bool {
        self.inner().phase == Phase::Open && !self.tunnels.has_failed()
    }

    /// Opens it, because all nodes have started their part. Returns false if it was open or ending already.
    pub(super) fn open(&self) -> bool {
        let mut inner = self.inner();
        let was_alone = inner.phase == Phase::Alone;
        if was_alone {
            inner.phase = Phase::Open;
        }
        was_alone
    }

    /// Lets no new streams use it.
    pub(super) fn end(&self) {
        let connections = {
            let mut inner = self.inner();
            inner.phase = Phase::Ending;
            std::mem::take(&mut inner.connections)
        };
        drop(connections);
    }

    /// Ends it at once, with all of its streams; their readers get the reason.
    pub(super) fn abort(&self, why: Option<String>) {
        self.end();
        if let Some(why) = why {
            let _ = self.why.set(why);
        }
        self.tunnels.relay().kill();
    }

    /// Waits until a failed relay has notified the others which node was lost, or the time for that is over.
    pub(super) async fn others_notified(&self) {
        let _ = tokio::time::timeout(NOTIFYING_MAX, self.tunnels.relay().ended()).await;
    }

    /// The number of a node.
    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.names.binary_search_by(|other| other.as_str().cmp(name)).ok().map(|number| number as u32)
    }

    fn name(&self, node: u32) -> Option<&str> {
        self.names.get(node as usize).map(String::as_str)
    }

    /// Why it has failed, with the name of the node.
    pub(super) fn failure(&self) -> String {
        match self.tunnels.error() {
            None | Some(RelayError::Closed) => "it was closed".to_owned(),
            Some(error) => match error.node().and_then(|node| self.name(node)) {
                Some(name) => format!("node {name} has left or was lost ({error})"),
                None => error.to_string(),
            },
        }
    }

    /// The connection to a node, opened if necessary.
    ///
    /// # Errors
    /// When all tunnels are in use, the overlay has failed, or the node does not answer.
    pub(super) async fn connect(
        &self,
        node: u32,
        client: &ClientConfig,
    ) -> Result<Connection, TransportError> {
        self.streams.fetch_add(1, Ordering::Relaxed);
        let requested = Instant::now();
        let shared = {
            let mut inner = self.inner();
            if inner.phase == Phase::Ending {
                return Err(TransportError::Closed { during: Some("as the overlay ends") });
            }
            inner.connections.entry(node).or_default().clone()
        };
        let mut dialled = shared.lock().await;
        if let Some(connection) = dialled.connection.as_ref().filter(|connection| connection.is_open()) {
            return Ok(connection.share());
        }
        if dialled.failed.is_some_and(|failed| failed > requested) {
            return Err(TransportError::Closed { during: Some("before it was welcomed") });
        }
        let tunnel = self.tunnels.open(node).map_err(std::io::Error::other)?;
        match Connection::over(pipe(tunnel), self.name(node).unwrap_or_default(), client).await {
            Ok(connection) => Ok(dialled.connection.insert(connection).share()),
            Err(error) => {
                // All that wait for this attempt go directly.
                dialled.failed = Some(Instant::now());
                Err(error)
            }
        }
    }

    pub(super) fn state(&self) -> OverlayState {
        let relay = self.tunnels.relay().stats();
        OverlayState {
            nodes: self.names.clone(),
            is_open: self.is_open(),
            topology: self.budget.topology,
            streams: self.streams.load(Ordering::Relaxed),
            forwarded: relay.counts.forwarded,
            connections: relay.connections,
            connections_max: relay.connections_max,
            direct_peers_max: 0,
            broken_links: relay.broken_links,
        }
    }
}

/// The frames of a connection, over a tunnel.
pub(super) fn pipe(tunnel: Tunnel) -> FramePipe {
    let (frames, sink) = tunnel.split();
    FramePipe::new(frames, sink, PART_BYTES_MAX)
}

/// The route of a connection over an overlay.
pub(crate) struct OverlayRoute {
    instance: Arc<OverlayInstance>,
    node: u32,
}

impl OverlayRoute {
    pub(super) fn new(instance: Arc<OverlayInstance>, node: u32) -> Self {
        Self { instance, node }
    }

    /// What went wrong on the route, with the names of nodes: the errors of tunnels have only their
    /// numbers. `None` if the error is not the route's.
    pub(crate) fn fault(&self, error: &TransportError) -> Option<String> {
        let TransportError::Io(error) = error else { return None };
        let peer = self.instance.name(self.node).unwrap_or_default();
        Some(match (self.instance.tunnels.error(), self.instance.why.get()) {
            (_, Some(why)) => {
                format!("the rows of node {peer} are incomplete: the overlay was replaced, because {why}")
            }
            (Some(relay), None) => match relay.node().and_then(|node| self.instance.name(node)) {
                Some(name) => {
                    format!("node {name} was lost: it was part of the overlay that carried the rows")
                }
                None => format!("node {peer} was lost: the overlay that connected it has ended"),
            },
            (None, None) => format!("node {peer} was lost: {error}"),
        })
    }
}
