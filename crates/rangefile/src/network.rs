//! How requests reach nodes.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt};
use lightship_transport::net::{Answer, PushedConnection, blob};
use lightship_wire::control::{ErrorCode, Failure};
use prost::Message;
use tokio::time::timeout;

use crate::error::{RangeError, Result};
use crate::request::{Directory, Locate, Request, RequestKind};

/// Connects to nodes.
pub trait Network: Send + Sync + 'static {
    /// The names (HOST:PORT) of nodes that may have range files.
    fn nodes(&self) -> Vec<String>;

    /// Sends a request to a node, for [`Node::answer`](crate::Node::answer) there. Returns when the answer begins.
    /// Failures to reach the node are [`RangeError::Remote`] with [`ErrorCode::Peer`].
    fn request(&self, node: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>>;

    /// The longest round trip to a node that is connected, 0 if all are on this host; `None` if it isn't known.
    fn round_trip(&self) -> Option<Duration> {
        None
    }

    /// As [`Network::request`], on a connection that the node has opened. By default, connections of nodes are
    /// closed.
    fn request_on(
        &self,
        node: &str,
        connection: PushedConnection,
        body: Vec<u8>,
    ) -> BoxFuture<'static, Result<Reply>> {
        drop((connection, body));
        let failure = Failure::new(ErrorCode::Forbidden, format!("node {node} can't connect to this client"));
        async { Err(failure.into()) }.boxed()
    }
}

/// The answer of a node. Dropping it cancels the request.
pub struct Reply {
    /// Its columns.
    pub schema: SchemaRef,
    /// Its rows.
    pub rows: BoxStream<'static, Result<RecordBatch>>,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self { schema: answer.schema, rows: answer.rows.map_err(RangeError::Remote).boxed() }
    }
}

/// The bytes of a request.
pub(crate) fn body(kind: RequestKind) -> Vec<u8> {
    Request { kind: Some(kind) }.encode_to_vec()
}

/// The most bytes of an answer whose messages are kept: the definitions of ten thousand files are the most.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Sends a request whose answer is messages, of [`ANSWER_BYTES_MAX`] together.
///
/// # Errors
/// If the node fails, can't be reached, or answers something else.
pub(crate) async fn ask<M: Message + Default>(
    network: &Arc<dyn Network>,
    node: &str,
    kind: RequestKind,
) -> Result<Vec<M>> {
    let mut reply = network.request(node, body(kind)).await?;
    let mut messages = Vec::new();
    let mut bytes_left = ANSWER_BYTES_MAX;
    while let Some(rows) = reply.rows.try_next().await? {
        for row in 0..rows.num_rows() {
            let bytes = blob(&rows, row).ok_or_else(|| unexpected(node))?;
            // A message takes memory too, however short it is.
            bytes_left = bytes_left.checked_sub(bytes.len() + 64).ok_or_else(|| unexpected(node))?;
            messages.push(M::decode(bytes).map_err(|_| unexpected(node))?);
        }
    }
    Ok(messages)
}

/// Sends a request whose answer is one message.
///
/// # Errors
/// As [`ask`].
pub(crate) async fn ask_one<M: Message + Default>(
    network: &Arc<dyn Network>,
    node: &str,
    kind: RequestKind,
) -> Result<M> {
    ask(network, node, kind).await?.pop().ok_or_else(|| unexpected(node))
}

/// Sends a request whose answer is empty.
///
/// # Errors
/// As [`ask`].
pub(crate) async fn tell(network: &Arc<dyn Network>, node: &str, kind: RequestKind) -> Result<()> {
    ask::<crate::request::List>(network, node, kind).await.map(drop)
}

/// The answer to a request that may take long, such as one that changes many buckets. It is waited for as long as the node
/// answers other requests.
///
/// # Errors
/// That of the request; or the node has answered nothing for the time of `patience`.
pub(crate) async fn patiently<T>(
    network: &Arc<dyn Network>,
    node: &str,
    patience: Duration,
    request: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut request = std::pin::pin!(request);
    let signs = patience / 4;
    loop {
        if let Ok(answer) = timeout(patience - signs, request.as_mut()).await {
            return answer;
        }
        // No file has this name: any node answers this at once.
        let nothing = RequestKind::Locate(Locate { own: true, ..Locate::default() });
        let sign = timeout(signs, ask_one::<Directory>(network, node, nothing));
        tokio::select! {
            biased;
            answer = request.as_mut() => return answer,
            sign = sign => match sign {
                Err(_) => return Err(silent(node)),
                // The request is lost too, even if its connection does not know it yet.
                Ok(Err(RangeError::Remote(failure))) if failure.code == ErrorCode::Peer => {
                    return Err(failure.into());
                }
                Ok(_) => {}
            }
        }
    }
}

/// A node does not answer in time.
pub(crate) fn silent(node: &str) -> RangeError {
    Failure::new(ErrorCode::Peer, format!("node {node} sends nothing")).into()
}

pub(crate) fn unexpected(node: &str) -> RangeError {
    RangeError::Remote(Failure::new(ErrorCode::Protocol, format!("node {node} gave an unexpected answer")))
}
