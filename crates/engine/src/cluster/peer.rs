//! Another node, and the connections to it.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use lightship_transport::TransportError;
use lightship_transport::net::{ClientConfig, Connection, Endpoint, Incoming};
use lightship_wire::Codec;
use lightship_wire::cluster::Task;
use lightship_wire::control::{ErrorCode, Failure, Plan};
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use url::Url;

use super::ask::{Ask, Request};
use super::exchange::Lease;
use crate::error::{EngineError, Result};

/// A node that can be asked.
pub(crate) struct Peer {
    /// HOST:PORT, by which all nodes know it.
    pub(crate) name: String,
    pub(crate) url: Url,
    endpoint: Endpoint,
    config: ClientConfig,
    /// Connections at rest.
    idle: Mutex<Vec<Connection>>,
    places: Arc<Semaphore>,
    connections_max: usize,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Peer").field(&self.name).finish()
    }
}

impl Peer {
    pub(crate) fn new(
        name: String,
        url: Url,
        endpoint: Endpoint,
        config: ClientConfig,
        connections_max: usize,
    ) -> Self {
        let places = Arc::new(Semaphore::new(connections_max));
        Self { name, url, endpoint, config, idle: Mutex::default(), places, connections_max }
    }

    /// Asks; answers as soon as the node has begun to.
    ///
    /// # Errors
    /// What the node says, or what has become of it.
    pub(crate) async fn ask(self: &Arc<Self>, ask: Ask, plan: Plan, lease: Option<Lease>) -> Result<Reply> {
        // It never waits for others to end, for they may wait for it.
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            let message = format!("all {} connections to node {} are taken", self.connections_max, self.name);
            let failure = Failure::new(ErrorCode::Limit, message);
            EngineError::Remote(failure.hint("run fewer queries at once, or nodes with fewer --partitions"))
        })?;
        let mut connection = match self.take_idle() {
            Some(connection) => connection,
            None => Connection::connect(&self.endpoint, &self.config).await.map_err(|e| self.blame(e))?,
        };
        let mut plan = plan;
        if plan.codec.is_none() {
            // Streams of a shuffle are short, and share a link: what each would find out for itself comes late.
            plan.codec = Some(if connection.same_host() { Codec::None } else { Codec::Light });
        }
        let task = Task { body: Request { ask: Some(ask) }.encode_to_vec(), plan };
        let schema = connection.task(&task).await.map_err(|e| self.blame(e))?;
        Ok(Reply {
            peer: self.clone(),
            connection: Some(connection),
            schema,
            bytes_wire: 0,
            _place: place,
            _lease: lease,
        })
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(connection) = idle.pop() {
            if connection.is_open() {
                return Some(connection);
            }
        }
        None
    }

    /// Closes the connections at rest: the node has gone.
    pub(crate) fn forget_connections(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
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
            error => lost(format!("node {name} was lost: {error}")),
        })
    }
}

fn lost(message: String) -> Failure {
    Failure { retryable: true, ..Failure::new(ErrorCode::Peer, message) }
}

/// The answer of a node. Dropped before its end, it is cancelled.
pub(crate) struct Reply {
    peer: Arc<Peer>,
    connection: Option<Connection>,
    pub(crate) schema: SchemaRef,
    /// What it took on the wire, once it has ended.
    pub(crate) bytes_wire: u64,
    _place: OwnedSemaphorePermit,
    _lease: Option<Lease>,
}

impl Reply {
    /// The next rows; none after the last. Cancel-safe.
    ///
    /// # Errors
    /// What the node says, or what has become of it.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let Some(connection) = &mut self.connection else { return Ok(None) };
        match connection.next().await {
            Ok(Incoming::Rows(rows)) => Ok(Some(rows)),
            Ok(Incoming::Finished(totals)) => {
                self.bytes_wire = totals.bytes_wire;
                let mut idle = self.peer.idle.lock().unwrap_or_else(PoisonError::into_inner);
                idle.extend(self.connection.take());
                Ok(None)
            }
            Err(error) => {
                self.connection = None;
                Err(self.peer.blame(error))
            }
        }
    }
}
