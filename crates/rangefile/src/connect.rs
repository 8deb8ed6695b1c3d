//! Connections to nodes: one to each, which all requests share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use lightship_transport::TransportError;
use lightship_transport::net::{
    ClientConfig, Connection, Endpoint, Incoming, PushedConnection, SharedConnection,
};
use lightship_wire::Codec;
use lightship_wire::cluster::{Recipient, Task};
use lightship_wire::control::{ErrorCode, Failure, Plan};

use crate::error::Result;
use crate::network::{Network, Reply};

/// The name of a node that is not in a cluster. Clients know such a node by the address that they have of it.
pub const LONE_NODE: &str = "this node";

/// The size to which the messages of an answer are cut.
const MESSAGE_BYTES: u32 = 256 << 10;
/// Messages of an answer that may be in flight.
const WINDOW_MESSAGES: u32 = 4;
/// Bytes of an answer that may be in flight, unless a single row is larger. It bounds what a scan of many buckets
/// has in memory, and is enough for 8 Gbit/s with a round trip of 1 ms.
pub(crate) const WINDOW_BYTES: u64 = MESSAGE_BYTES as u64 * WINDOW_MESSAGES as u64;

/// The names of the nodes.
type Names = Box<dyn Fn() -> Vec<String> + Send + Sync>;
/// The address of a node.
type Addresses = Box<dyn Fn(&str) -> Result<Endpoint, Failure> + Send + Sync>;

/// Connects to nodes over the client protocol. A connection is opened when it is first needed, and again after
/// it was lost.
pub struct Connections {
    nodes: Names,
    address: Addresses,
    config: ClientConfig,
    open: Mutex<HashMap<String, Arc<SharedConnection>>>,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connections")
    }
}

impl Connections {
    /// Connections to the nodes that `nodes` returns, at the addresses that `address` returns for their names.
    pub fn new(
        nodes: impl Fn() -> Vec<String> + Send + Sync + 'static,
        address: impl Fn(&str) -> Result<Endpoint, Failure> + Send + Sync + 'static,
        config: ClientConfig,
    ) -> Self {
        Self { nodes: Box::new(nodes), address: Box::new(address), config, open: Mutex::default() }
    }

    fn shared(&self, node: &str) -> Arc<SharedConnection> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.entry(node.to_owned()).or_default().clone()
    }
}

impl Network for Connections {
    fn nodes(&self) -> Vec<String> {
        (self.nodes)()
    }

    fn request(&self, node: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
        let (shared, endpoint, config) = (self.shared(node), (self.address)(node), self.config.clone());
        let name = node.to_owned();
        async move {
            let connection = shared.get(&endpoint?, &config, |error| blame(&name, &error)).await?;
            // A node on this host decompresses what it has just compressed.
            let codec = connection.same_host().then_some(Codec::None);
            request_on(connection, name, body, codec).await
        }
        .boxed()
    }

    fn round_trip(&self) -> Option<Duration> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.values().filter_map(|shared| shared.round_trip()).max()
    }

    fn request_on(
        &self,
        node: &str,
        connection: PushedConnection,
        body: Vec<u8>,
    ) -> BoxFuture<'static, Result<Reply>> {
        let (endpoint, config, name) = ((self.address)(node), self.config.clone(), node.to_owned());
        async move {
            let accepted = Connection::accepted(connection, &endpoint?, &config).await;
            let connection = accepted.map_err(|error| blame(&name, &error))?;
            let codec = connection.same_host().then_some(Codec::None);
            request_on(connection, name, body, codec).await
        }
        .boxed()
    }
}

/// Sends a request on a connection.
async fn request_on(
    mut connection: Connection,
    node: String,
    body: Vec<u8>,
    codec: Option<Codec>,
) -> Result<Reply> {
    let plan = Plan {
        codec,
        batch_bytes: MESSAGE_BYTES,
        message_bytes: MESSAGE_BYTES,
        window_batches: WINDOW_MESSAGES,
        ..Plan::default()
    };
    let task = Task { recipient: Recipient::RangeFiles, body, plan };
    let schema = connection.task(&task).await.map_err(|error| match error {
        TransportError::Config(without) => {
            let failure = Failure::new(ErrorCode::Forbidden, format!("node {node}: {without}"));
            failure.hint("start the node with --range-data FOLDER")
        }
        error => blame(&node, &error),
    })?;
    let rows = futures::stream::unfold(Some((connection, node)), |open| async move {
        let (mut connection, node) = open?;
        match connection.next().await {
            Ok(Incoming::Rows(rows)) => Some((Ok(rows), Some((connection, node)))),
            Ok(Incoming::Finished(_)) => None,
            Err(error) => Some((Err(blame(&node, &error).into()), None)),
        }
    });
    Ok(Reply { schema, rows: rows.boxed() })
}

/// The failure of a request to a node.
fn blame(node: &str, error: &TransportError) -> Failure {
    let lost = |message: String| Failure { retryable: true, ..Failure::new(ErrorCode::Peer, message) };
    match error {
        TransportError::Failed(failure) => failure.clone(),
        TransportError::Config(why) => Failure::new(ErrorCode::Forbidden, format!("node {node}: {why}")),
        TransportError::Connect { source, .. } => lost(format!("can't reach node {node}: {source}")),
        TransportError::Full { max } => {
            Failure::new(ErrorCode::Busy, format!("all {max} requests to node {node} are in use"))
        }
        error => lost(format!("node {node} was lost: {error}")),
    }
}
