//! Another node, and the connection to it.
//!
//! All streams of a shuffle to a node share one connection. There is a stream for each pair of partitions;
//! if each were a TCP connection, all would start at once, overflow the first queue on the path, and wait
//! for retransmissions.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use lightship_transport::TransportError;
use lightship_transport::net::{ClientConfig, Connection, Endpoint, Incoming, SharedConnection};
use lightship_wire::Codec;
use lightship_wire::cluster::{Recipient, Task};
use lightship_wire::control::{ErrorCode, Failure, Plan};
use prost::Message as _;
use tokio::task::JoinSet;
use url::Url;

use super::exchange::Lease;
use super::overlay::{Direct, Overlay, OverlayRoute};
use super::request::{Request, RequestKind};
use crate::error::{EngineError, Result};

/// How to connect to other nodes.
#[derive(Clone)]
pub(crate) struct Dial {
    /// Where the tasks of connections run.
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
    pub(crate) client: ClientConfig,
    /// An overlay that may carry rows instead.
    pub(crate) overlay: Option<Arc<Overlay>>,
}

/// Another node, to send requests to.
pub(crate) struct Peer {
    /// HOST:PORT, its name on all nodes.
    pub(crate) name: String,
    pub(crate) url: Url,
    endpoint: Endpoint,
    dial: Dial,
    /// The open connection. A running answer keeps its connection open.
    connection: SharedConnection,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Peer").field(&self.name).finish()
    }
}

impl Peer {
    pub(crate) fn new(name: String, url: Url, endpoint: Endpoint, dial: Dial) -> Self {
        Self { name, url, endpoint, dial, connection: SharedConnection::default() }
    }

    /// Sends a request; returns as soon as the node starts to answer.
    ///
    /// # Errors
    /// The node's failure, or that the node can't be reached or was lost.
    pub(crate) async fn request(
        self: &Arc<Self>,
        kind: RequestKind,
        plan: Plan,
        lease: Option<Lease>,
    ) -> Result<Reply> {
        let peer = self.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn_on(async move { peer.request_here(kind, plan, lease).await }, &self.dial.runtime);
        match tasks.join_next().await {
            Some(Ok(reply)) => reply,
            Some(Err(error)) => Err(EngineError::Internal(format!("request to node {}: {error}", self.name))),
            None => Err(EngineError::Internal("no request was started".into())),
        }
    }

    async fn request_here(
        self: Arc<Self>,
        kind: RequestKind,
        mut plan: Plan,
        lease: Option<Lease>,
    ) -> Result<Reply> {
        let message_bytes = lease.as_ref().map_or(plan.message_bytes, |lease| lease.message_bytes);
        let (mut connection, route, direct) = match self.over_overlay(&kind, message_bytes).await {
            Some(Ok((connection, route))) => (connection, Some(route), None),
            Some(Err(direct)) => (self.connect().await?, None, Some(direct)),
            None => (self.connect().await?, None, None),
        };
        if plan.codec.is_none() && connection.same_host() {
            plan.codec = Some(Codec::None);
        }
        let body = Request { kind: Some(kind) }.encode_to_vec();
        let task = Task { recipient: Recipient::Engine, body, plan };
        let schema = connection.task(&task).await.map_err(|e| self.blame_route(route.as_ref(), e))?;
        let (peer, connection) = (self.clone(), Some(connection));
        Ok(Reply {
            peer,
            connection,
            route,
            schema,
            bytes_wire: 0,
            decoded_bytes: [0; Codec::ALL.len()],
            direct,
            lease,
        })
    }

    /// For requests of rows: a connection over the overlay, if the stream is to use it; otherwise a guard
    /// that counts the stream as a direct one. Other requests go directly and are not counted.
    async fn over_overlay(
        &self,
        kind: &RequestKind,
        message_bytes: u32,
    ) -> Option<std::result::Result<(Connection, OverlayRoute), Direct>> {
        let overlay = self.dial.overlay.as_ref();
        let overlay = overlay.filter(|_| matches!(kind, RequestKind::Execute(_) | RequestKind::Scan(_)))?;
        Some(overlay.connect(&self.name, message_bytes).await)
    }

    /// The shared connection, opened if necessary.
    async fn connect(&self) -> Result<Connection> {
        let blame = |error| self.blame(error).to_failure();
        let connection = self.connection.get(&self.endpoint, &self.dial.client, blame).await;
        connection.map_err(EngineError::Remote)
    }

    /// Drops the connection because the node is gone. Running answers continue to their end.
    pub(crate) fn forget_connection(&self) {
        self.connection.forget();
    }

    /// Like [`Peer::blame`], for a connection that may go over the overlay.
    fn blame_route(&self, route: Option<&OverlayRoute>, error: TransportError) -> EngineError {
        match route.and_then(|route| route.fault(&error)) {
            Some(message) => EngineError::Remote(lost(message)),
            None => self.blame(error),
        }
    }

    /// The error that a client gets when this node, or the connection to it, fails.
    pub(crate) fn blame(&self, error: TransportError) -> EngineError {
        let name = &self.name;
        EngineError::Remote(match error {
            // The message already names another node.
            TransportError::Failed(failure) if failure.code == ErrorCode::Peer => failure,
            TransportError::Failed(failure) => {
                Failure { message: format!("node {name}: {}", failure.message), ..failure }
            }
            TransportError::Connect { source, .. } => lost(format!("can't reach node {name}: {source}")),
            TransportError::Unwelcome { awaited, after, .. } => {
                lost(format!("can't reach node {name}: {awaited} within {} seconds", after.as_secs_f32()))
            }
            TransportError::Full { max } => {
                let message = format!("all {max} streams to node {name} are in use");
                Failure::new(ErrorCode::Limit, message)
                    .hint("run fewer queries at once, or nodes with fewer --partitions")
            }
            error => lost(format!("node {name} was lost: {error}")),
        })
    }
}

fn lost(message: String) -> Failure {
    Failure { retryable: true, ..Failure::new(ErrorCode::Peer, message) }
}

/// The answer of a node. Dropping it before its end cancels the request.
pub(crate) struct Reply {
    peer: Arc<Peer>,
    /// None once the answer has ended.
    connection: Option<Connection>,
    /// Set if the answer comes over the overlay.
    route: Option<OverlayRoute>,
    pub(crate) schema: SchemaRef,
    /// Its bytes on the wire, set when it ends.
    pub(crate) bytes_wire: u64,
    /// Bytes of its rows in memory, by [`Codec::index`] of the codec that they came in, set when it ends.
    pub(crate) decoded_bytes: [u64; Codec::ALL.len()],
    direct: Option<Direct>,
    lease: Option<Lease>,
}

impl Reply {
    /// Its memory, for a holder that outlives it.
    pub(crate) fn take_lease(&mut self) -> Option<Lease> {
        self.lease.take()
    }

    pub(crate) fn is_over_overlay(&self) -> bool {
        self.route.is_some()
    }

    /// The next rows; `None` after the last. Cancel-safe.
    ///
    /// # Errors
    /// The node's failure, or that the node was lost.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let Some(connection) = &mut self.connection else { return Ok(None) };
        match connection.next().await {
            Ok(Incoming::Rows(rows)) => Ok(Some(rows)),
            Ok(Incoming::Finished(totals)) => {
                self.bytes_wire = totals.bytes_wire;
                self.decoded_bytes = connection.progress().decoded.map(|work| work.bytes);
                (self.direct, self.connection) = (None, None);
                Ok(None)
            }
            Err(error) => {
                self.connection = None;
                Err(self.peer.blame_route(self.route.as_ref(), error))
            }
        }
    }
}
