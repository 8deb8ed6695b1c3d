//! Another node, and the connections to it.
//!
//! Nodes of other hosts are asked by circuits over one connection: a shuffle has as many streams as both sides have
//! partitions, and were each a TCP connection they would begin at once, overrun the first queue on their way, and wait for
//! their retransmissions. On one host nothing is lost, and a socket each costs less.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use lightship_relay::{Circuits, CircuitsConfig, End, RelayError};
use lightship_transport::TransportError;
use lightship_transport::net::{ClientConfig, Connection, Endpoint, Incoming, Intake, Trunk};
use lightship_wire::Codec;
use lightship_wire::cluster::Task;
use lightship_wire::control::{ErrorCode, Failure, Plan};
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use url::Url;

use super::ask::{Ask, Request};
use super::exchange::Lease;
use super::overlay::{Direct, Overlay, Passage};
use crate::error::{EngineError, Result};

/// Bytes of a circuit's message over a relay.
pub(super) const CIRCUIT_MESSAGE_BYTES: u32 = 64 << 10;
/// The same over a trunk: what one stream may send before another one's turn, which has to come before it would be given
/// up: 64 streams over 10 Mbit/s have theirs every two seconds.
const TRUNK_MESSAGE_BYTES: u32 = 32 << 10;
/// Connections to a node that are kept at rest, by one way.
pub(super) const IDLE_MAX: usize = 64;
/// What circuits of a connection may be and hold. A stream's own plan holds it to less.
pub(super) const CIRCUITS: CircuitsConfig = CircuitsConfig { window_bytes: 1 << 20, circuits_max: 4096 };
/// The acceptor of a trunk, to its opener.
const ACCEPTOR: u32 = 1;

/// How nodes are dialled.
#[derive(Clone)]
pub(crate) struct Dial {
    /// Where connections live.
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
    pub(crate) client: ClientConfig,
    /// Sockets to one node.
    pub(crate) connections_max: usize,
    /// Circuits on this host, too.
    pub(crate) trunk_on_host: bool,
    /// What rows may go over instead.
    pub(crate) overlay: Option<Arc<Overlay>>,
}

/// A node that can be asked.
pub(crate) struct Peer {
    /// HOST:PORT, by which all nodes know it.
    pub(crate) name: String,
    pub(crate) url: Url,
    endpoint: Endpoint,
    dial: Dial,
    /// Connections at rest.
    idle: Mutex<Vec<Way>>,
    places: Arc<Semaphore>,
    /// What circuits go over, once that is known. Who uses it keeps it open.
    trunk: Mutex<Option<Circuits>>,
    /// It is on this host, or knows of no trunks: no circuits.
    is_here: AtomicBool,
    /// One at a time finds out; and when, and how, the last one failed.
    dialling: tokio::sync::Mutex<Option<(Instant, Failure)>>,
}

/// A connection to the node.
struct Way {
    connection: Connection,
    _trunk: Option<Circuits>,
    _place: Option<OwnedSemaphorePermit>,
    /// Where it goes over the overlay.
    passage: Option<Passage>,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Peer").field(&self.name).finish()
    }
}

impl Peer {
    pub(crate) fn new(name: String, url: Url, endpoint: Endpoint, dial: Dial) -> Self {
        Self {
            name,
            url,
            endpoint,
            places: Arc::new(Semaphore::new(dial.connections_max)),
            dial,
            idle: Mutex::default(),
            trunk: Mutex::default(),
            is_here: AtomicBool::new(false),
            dialling: tokio::sync::Mutex::default(),
        }
    }

    /// Asks; answers as soon as the node has begun to.
    ///
    /// # Errors
    /// What the node says, or what has become of it.
    pub(crate) async fn ask(self: &Arc<Self>, ask: Ask, plan: Plan, lease: Option<Lease>) -> Result<Reply> {
        let peer = self.clone();
        let mut asking = JoinSet::new();
        asking.spawn_on(async move { peer.ask_here(ask, plan, lease).await }, &self.dial.runtime);
        match asking.join_next().await {
            Some(Ok(reply)) => reply,
            Some(Err(error)) => Err(EngineError::Internal(format!("asking node {}: {error}", self.name))),
            None => Err(EngineError::Internal("nothing was asked".into())),
        }
    }

    async fn ask_here(self: Arc<Self>, ask: Ask, plan: Plan, lease: Option<Lease>) -> Result<Reply> {
        let (way, direct) = self.way_of(&ask, &plan).await;
        let mut way = match way.or_else(|| self.take_idle()) {
            Some(way) => way,
            None => self.connect().await?,
        };
        let mut plan = plan;
        if plan.codec.is_none() {
            // Streams of a shuffle are short, and share a link: what each would find out for itself comes late.
            plan.codec = Some(if way.connection.same_host() { Codec::None } else { Codec::Light });
        }
        let task = Task { body: Request { ask: Some(ask) }.encode_to_vec(), plan };
        let schema = way.connection.task(&task).await.map_err(|e| self.blame_way(&way, e))?;
        let over_overlay = way.passage.is_some();
        let (peer, way) = (self.clone(), Some(way));
        Ok(Reply { peer, way, schema, bytes_wire: 0, over_overlay, direct, _lease: lease })
    }

    /// A connection over the overlay, if that is the way for what is asked; else what counts it among those that go
    /// directly. What are no rows goes directly and is not counted.
    async fn way_of(&self, ask: &Ask, plan: &Plan) -> (Option<Way>, Option<Direct>) {
        let overlay = self.dial.overlay.as_ref();
        let Some(overlay) = overlay.filter(|_| matches!(ask, Ask::Execute(_) | Ask::Scan(_))) else {
            return (None, None);
        };
        match overlay.connect(&self.name, plan.message_bytes).await {
            Ok((connection, passage)) => {
                (Some(Way { connection, _trunk: None, _place: None, passage: Some(passage) }), None)
            }
            Err(direct) => (None, Some(direct)),
        }
    }

    /// A new connection. It never waits for others to end, for they may wait for it.
    async fn connect(&self) -> Result<Way> {
        if let Some(trunk) = self.trunk().await? {
            let circuit = trunk.open(ACCEPTOR).map_err(|error| match error {
                RelayError::CircuitsFull { max } => self.full(max),
                error => self.blame(std::io::Error::other(error).into()),
            })?;
            let connection = Connection::over(circuit, &self.name, &self.dial.client).await;
            let connection = connection.map_err(|error| {
                // Who comes next tries another one.
                *self.open_trunk() = None;
                self.blame(error)
            })?;
            return Ok(Way { connection, _trunk: Some(trunk), _place: None, passage: None });
        }
        let place = self.places.clone().try_acquire_owned();
        let place = place.map_err(|_| self.full(self.dial.connections_max))?;
        let connection = Connection::connect(&self.endpoint, &self.dial.client).await;
        let connection = connection.map_err(|error| self.blame(error))?;
        Ok(Way { connection, _trunk: None, _place: Some(place), passage: None })
    }

    /// What circuits go over; nothing for a node of this host.
    async fn trunk(&self) -> Result<Option<Circuits>> {
        let asked = Instant::now();
        let mut failed = self.dialling.lock().await;
        if let Some((_, failure)) = failed.as_ref().filter(|(when, _)| *when > asked) {
            return Err(EngineError::Remote(failure.clone()));
        }
        if self.is_here.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if let Some(trunk) = self.open_trunk().as_ref().filter(|trunk| !trunk.has_failed()) {
            return Ok(Some(trunk.clone()));
        }
        let trunk = Trunk::connect(&self.endpoint, &self.dial.client).await.map_err(|error| {
            let error = self.blame(error);
            *failed = Some((Instant::now(), error.to_failure()));
            error
        })?;
        let Some(trunk) = trunk.filter(|trunk| !trunk.same_host || self.dial.trunk_on_host) else {
            self.is_here.store(true, Ordering::Relaxed);
            return Ok(None);
        };
        // It opens none to this node: its own requests come by its own trunk.
        let (circuits, _) = circuits(trunk, End::Opener)?;
        *self.open_trunk() = Some(circuits.clone());
        Ok(Some(circuits))
    }

    fn open_trunk(&self) -> MutexGuard<'_, Option<Circuits>> {
        self.trunk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full(&self, max: usize) -> EngineError {
        let message = format!("all {max} connections to node {} are taken", self.name);
        let failure = Failure::new(ErrorCode::Limit, message);
        EngineError::Remote(failure.hint("run fewer queries at once, or nodes with fewer --partitions"))
    }

    fn take_idle(&self) -> Option<Way> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(way) = idle.pop() {
            if way.connection.is_open() {
                return Some(way);
            }
        }
        None
    }

    /// Closes the connections at rest: the node has gone. What is in use goes on to its end.
    pub(crate) fn forget_connections(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.open_trunk() = None;
        self.is_here.store(false, Ordering::Relaxed);
    }

    /// The same, where it may be the overlay's fault.
    fn blame_way(&self, way: &Way, error: TransportError) -> EngineError {
        match way.passage.as_ref().and_then(|passage| passage.fault(&error)) {
            Some(message) => EngineError::Remote(lost(message)),
            None => self.blame(error),
        }
    }

    /// Keeps a connection for the next who asks.
    fn rest(&self, way: Way) {
        match way {
            Way { connection, passage: Some(passage), .. } => passage.rest(connection),
            way => {
                let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
                if idle.len() < IDLE_MAX {
                    idle.push(way);
                }
            }
        }
    }

    /// What a client is told of a failure of this node, or of the way to it.
    pub(crate) fn blame(&self, error: TransportError) -> EngineError {
        let name = &self.name;
        EngineError::Remote(match error {
            // It names another node already.
            TransportError::Failed(failure) if failure.code == ErrorCode::Peer => failure,
            TransportError::Failed(failure) => {
                Failure { message: format!("node {name}: {}", failure.message), ..failure }
            }
            TransportError::Connect { source, .. } => lost(format!("can't reach node {name}: {source}")),
            TransportError::Unwelcome { awaited, after, .. } => {
                lost(format!("can't reach node {name}: {awaited} within {} seconds", after.as_secs_f32()))
            }
            // It would name the node by a number that nobody knows.
            TransportError::Io(error) if error.get_ref().is_some_and(|inner| inner.is::<RelayError>()) => {
                lost(format!("node {name} was lost: its connection broke"))
            }
            error => lost(format!("node {name} was lost: {error}")),
        })
    }
}

fn circuits(trunk: Trunk, end: End) -> Result<(Circuits, lightship_relay::Incoming)> {
    let Trunk { read, write, .. } = trunk;
    Circuits::over(read, write, end, TRUNK_MESSAGE_BYTES, CIRCUITS)
        .map_err(|error| EngineError::Internal(error.to_string()))
}

/// Takes in what another node opens over its trunk, until it closes that; where the server ends, until all of it has ended.
pub(crate) async fn carry(trunk: Trunk, intake: Intake) {
    // Without these the other node finds its trunk closed.
    let Ok((circuits, mut incoming)) = circuits(trunk, End::Acceptor) else { return };
    loop {
        let opened = tokio::select! {
            opened = incoming.accept() => opened,
            () = intake.closed() => break,
        };
        let Some((_, circuit)) = opened else {
            return tracing::debug!(why = ?circuits.error(), "a node's trunk ended");
        };
        if intake.serve(circuit, "a circuit".into()).await.is_err() {
            break;
        }
    }
    // The server ends: others are refused, and what runs may end in time.
    drop(incoming);
    circuits.idle().await;
}

fn lost(message: String) -> Failure {
    Failure { retryable: true, ..Failure::new(ErrorCode::Peer, message) }
}

/// The answer of a node. Dropped before its end, it is cancelled.
pub(crate) struct Reply {
    peer: Arc<Peer>,
    way: Option<Way>,
    pub(crate) schema: SchemaRef,
    /// What it took on the wire, once it has ended.
    pub(crate) bytes_wire: u64,
    /// Whether it comes over the overlay.
    pub(crate) over_overlay: bool,
    direct: Option<Direct>,
    _lease: Option<Lease>,
}

impl Reply {
    /// The next rows; none after the last. Cancel-safe.
    ///
    /// # Errors
    /// What the node says, or what has become of it.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let Some(way) = &mut self.way else { return Ok(None) };
        match way.connection.next().await {
            Ok(Incoming::Rows(rows)) => Ok(Some(rows)),
            Ok(Incoming::Finished(totals)) => {
                self.bytes_wire = totals.bytes_wire;
                self.direct = None;
                if let Some(way) = self.way.take() {
                    self.peer.rest(way);
                }
                Ok(None)
            }
            Err(error) => {
                let error = self.peer.blame_way(way, error);
                self.way = None;
                Err(error)
            }
        }
    }
}
