//! Sockets around the state machines of [`crate::proto`].

mod answer;
mod client;
mod conversation;
mod descriptors;
mod door;
mod encoding;
mod endpoint;
mod frames;
mod intake;
mod jobs;
mod joined;
mod listen;
mod meet;
mod meter;
mod produce;
mod server;
mod shm;
mod striping;
mod tcp_info;
pub mod tls;
mod trunk;

pub use client::{ClientConfig, Connection, Incoming};
pub use descriptors::raise_descriptors;
pub use encoding::Encoders;
pub use endpoint::{Carrier, Endpoint};
pub use intake::Intake;
pub use listen::Listen;
pub use server::{Reserved, Server, ServerConfig};
pub use tcp_info::SegmentsSeen;
pub use trunk::Trunk;

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::Stream;
use lightship_wire::cluster::Task;
use lightship_wire::control::{ErrorCode, Failure, Query};
use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes that come.
pub type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
/// Where bytes go.
pub type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

/// Rows of a query as a service makes them.
pub type Rows = Pin<Box<dyn Stream<Item = Result<RecordBatch, Failure>> + Send>>;

/// What a service answers to a query.
pub struct Answer {
    /// Columns of every batch.
    pub schema: SchemaRef,
    /// How many rows are expected, where known.
    pub rows_estimate: Option<u64>,
    /// Shared by answers whose rows are of the same kind.
    pub encoders: Encoders,
    /// The rows. Dropped when the client cancels or goes away.
    pub rows: Rows,
}

impl Answer {
    /// An answer whose rows are like no other's.
    pub fn new(schema: SchemaRef, rows_estimate: Option<u64>, rows: Rows) -> Self {
        Self { schema, rows_estimate, encoders: Encoders::default(), rows }
    }
}

/// Who answers queries.
pub trait Service: Send + Sync + 'static {
    /// Plans a query. Called once for each query of each connection; many run at once.
    ///
    /// # Errors
    /// What the client is told.
    fn query<'a>(
        &'a self,
        query: &'a Query,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>>;

    /// Does what another node of the cluster asks for. Called only for those that have shown its token.
    ///
    /// # Errors
    /// What the node is told; always, where a service does not say otherwise.
    fn task<'a>(
        &'a self,
        _task: &'a Task,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async { Err(Failure::new(ErrorCode::Forbidden, "this node does no tasks of others")) })
    }

    /// Carries connections of another node of the cluster, which has shown its token, until the trunk ends; each of them is to
    /// come in by `intake`.
    fn carry<'a>(&'a self, _trunk: Trunk, _intake: Intake) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async {})
    }

    /// What else a server does, from its beginning: connections that come by other ways it may have from `intake`. When it
    /// shuts down it waits for this as it does for its connections, and then drops it.
    fn beside<'a>(&'a self, _intake: Intake) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async {})
    }
}

/// Locks what one task's own futures share; a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
