//! Sockets around the state machines of [`crate::proto`].

mod admission;
mod answer;
mod blobs;
mod client;
mod client_task;
mod conversation;
mod delivery;
mod descriptors;
mod encoding;
mod endpoint;
mod frames;
mod intake;
mod jobs;
mod joined;
mod listen;
mod meter;
mod pipe;
mod produce;
mod push;
mod queries;
pub mod reception;
mod rendezvous;
mod server;
mod shared;
mod shm;
mod stream;
mod striping;
mod tcp_info;
pub mod tls;

pub use blobs::{blob, blobs};
pub use client::{ClientConfig, Connection, Incoming};
pub use delivery::Delivery;
pub use descriptors::raise_descriptors;
pub use encoding::Encoders;
pub use endpoint::{Carrier, Endpoint};
pub use intake::Intake;
pub use listen::Listen;
pub use pipe::{FramePart, FramePipe};
pub use push::{PushAttempt, PushListener, PushToken, PushedConnection, bind_datagrams, push_connect};
pub use server::{Reserved, Server, ServerConfig};
pub use shared::SharedConnection;
pub use tcp_info::SegmentsSeen;

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::Stream;
use lightship_wire::cluster::Task;
use lightship_wire::control::{ErrorCode, Failure, Query};
use tokio::io::{AsyncRead, AsyncWrite};

/// The reading half of a socket.
type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
/// The writing half of a socket.
type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

/// The rows of a query, as a service produces them.
pub type Rows = Pin<Box<dyn Stream<Item = Result<RecordBatch, Failure>> + Send>>;

/// A service's answer to a query.
pub struct Answer {
    /// Columns of every batch.
    pub schema: SchemaRef,
    /// The expected number of rows, if known.
    pub rows_estimate: Option<u64>,
    /// Encoders, if it shares them with answers that have similar rows.
    pub encoders: Option<Encoders>,
    /// Counts what is sent of them.
    pub delivery: Arc<Delivery>,
    /// The rows. Dropped when the client cancels or disconnects, or has been sent all of them.
    pub rows: Rows,
}

impl Answer {
    /// An answer that shares no encoders.
    pub fn new(schema: SchemaRef, rows_estimate: Option<u64>, rows: Rows) -> Self {
        Self { schema, rows_estimate, encoders: None, delivery: Arc::default(), rows }
    }
}

/// Who sends a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caller {
    /// Whether it is another node of the cluster, which has shown the cluster's token.
    pub is_peer: bool,
    /// The address that it has connected from. `None` for Unix sockets, pipes, and callers in this process.
    pub address: Option<IpAddr>,
}

/// What a statement needs and returns, found out without running it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Columns of its result.
    pub columns: SchemaRef,
    /// A field for each parameter, in order: its name (`$1`), and its type, which is `Null` if the statement does not
    /// determine it.
    pub parameters: SchemaRef,
    /// Whether it changes rows. Then its result is one row with one column, the number of rows that it changed.
    pub is_update: bool,
    /// Whether its rows have an order that it asks for, or that is not known.
    pub is_ordered: bool,
}

/// Answers the queries of a server.
pub trait Service: Send + Sync + 'static {
    /// Plans a query. Called once for each query, many at a time.
    ///
    /// # Errors
    /// The failure to send to the client.
    fn query<'a>(
        &'a self,
        query: &'a Query,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>>;

    /// Plans a statement without running it, for clients that ask for its columns and parameters first.
    ///
    /// # Errors
    /// The failure to send to the client. The default implementation always fails.
    fn prepare<'a>(
        &'a self,
        _sql: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<Prepared, Failure>> + Send + 'a>> {
        Box::pin(async { Err(Failure::new(ErrorCode::Forbidden, "this server does not prepare statements")) })
    }

    /// Plans and starts a statement, like [`Service::query`], with the values of its parameters: the columns of
    /// `parameters`, in order, which has one row. Its types are cast to those that the statement requires.
    ///
    /// # Errors
    /// The failure to send to the client: [`ErrorCode::Parameters`] if values are too few or too many, or one can't be
    /// cast. The default implementation always fails.
    fn execute<'a>(
        &'a self,
        _sql: &'a str,
        _parameters: &'a RecordBatch,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async { Err(Failure::new(ErrorCode::Forbidden, "this server does not take parameters")) })
    }

    /// Runs a task. Clients send only tasks for range files, and only if there are some.
    ///
    /// # Errors
    /// The failure to send to the node or client. The default implementation always fails.
    fn task<'a>(
        &'a self,
        _task: &'a Task,
        _caller: &'a Caller,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async { Err(Failure::new(ErrorCode::Forbidden, "this node is not in a cluster")) })
    }

    /// Whether it runs tasks for range files.
    fn has_range_files(&self) -> bool {
        false
    }

    /// Runs beside the server, from its start. It can pass connections to the server through `intake`. At
    /// shutdown, the server waits for it as for its connections, and then drops it.
    fn beside<'a>(&'a self, _intake: Intake) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async {})
    }
}

/// Locks a mutex. A panic of another holder is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
