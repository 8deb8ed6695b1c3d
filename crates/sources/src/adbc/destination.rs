//! Writes batches to a table by a driver's bulk ingestion.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adbc_core::error::Status;
use adbc_core::options::{IngestMode, OptionConnection, OptionStatement};
use adbc_core::{CancelHandle, Connection as _, Optionable as _, Statement as _};
use adbc_driver_manager::ManagedConnection;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use super::driver::Failures;
use super::{AdbcLocation, driver};
use crate::cancel::{self, StatementGuard};
use crate::columns::check_names;
use crate::{Destination, Result, SourceError, TableWrite, WriteMode, Written};

const STOPPED: &str = "the driver stopped reading before the last row";

/// What the driver reads. A channel that closes without `End` is a copy that failed.
enum Piece {
    Batch(RecordBatch),
    End,
}

/// A table of a database with an ADBC driver as a destination.
///
/// The driver writes the rows while they arrive, in one transaction if it has transactions. Which values fit which
/// columns is the driver's decision.
pub struct AdbcDestination {
    schema: SchemaRef,
    /// `None` once the copy has ended.
    running: Option<Running>,
    rows: u64,
    bytes: u64,
}

struct Running {
    target: String,
    to: mpsc::Sender<Piece>,
    ended: oneshot::Receiver<Result<()>>,
    handle: Box<dyn CancelHandle>,
}

impl fmt::Debug for AdbcDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdbcDestination").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// The batches, as the driver reads them.
struct Batches {
    schema: SchemaRef,
    pieces: mpsc::Receiver<Piece>,
    has_ended: bool,
    read: Arc<Read>,
}

/// What the driver has read.
#[derive(Default)]
struct Read {
    rows: AtomicU64,
    /// Whether it has read the end.
    is_complete: AtomicBool,
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        match self.pieces.blocking_recv() {
            Some(Piece::Batch(batch)) => {
                self.read.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
                Some(Ok(batch))
            }
            Some(Piece::End) => {
                self.has_ended = true;
                self.read.is_complete.store(true, Ordering::Release);
                None
            }
            None => {
                self.has_ended = true;
                Some(Err(ArrowError::ExternalError("the copy was abandoned".into())))
            }
        }
    }
}

impl RecordBatchReader for Batches {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

impl AdbcDestination {
    /// Loads the driver, opens the database, and starts the ingestion.
    ///
    /// # Errors
    /// As [`AdbcSource::open`](super::AdbcSource::open); [`SourceError::Unsupported`] for an upsert, which ADBC does
    /// not have.
    pub async fn create(location: &AdbcLocation, write: &TableWrite, schema: &SchemaRef) -> Result<Self> {
        if schema.fields().is_empty() {
            return Err(SourceError::Unsupported("rows without columns in a table".into()));
        }
        check_names(schema)?;
        write.check(schema)?;
        let mode = match write.mode {
            WriteMode::Append => IngestMode::CreateAppend,
            WriteMode::Existing => IngestMode::Append,
            WriteMode::Create => IngestMode::Create,
            WriteMode::Replace => IngestMode::Replace,
            WriteMode::Truncate => {
                return Err(SourceError::Unsupported(
                    "--mode truncate into a database with an ADBC driver; use --mode replace".into(),
                ));
            }
            WriteMode::Upsert => {
                return Err(SourceError::Unsupported(
                    "an upsert through an ADBC driver; copy into a table of its own, and merge it there"
                        .into(),
                ));
            }
        };
        let (location, table, columns) = (location.clone(), write.table.clone(), schema.clone());
        let target = location.to_string();
        let (to, pieces) = mpsc::channel(1);
        let (started_to, started) = oneshot::channel::<Result<Box<dyn CancelHandle>>>();
        let (ended_to, ended) = oneshot::channel();
        let guard = StatementGuard::begin(target.clone());
        std::thread::Builder::new()
            .name("adbc-write".into())
            .spawn(move || {
                let _guard = guard;
                let prepared = (|| -> Result<_> {
                    let (database, failures) = driver::open(&location)?;
                    let failed = |error| failures.statement(error);
                    let mut connection = database.connect().map_err(|error| failures.connect(error))?;
                    let has_transaction = begin(&mut connection, &failures)?;
                    let mut statement = connection.new_statement().map_err(failed)?;
                    statement
                        .set_option(OptionStatement::TargetTable, table.name.as_str().into())
                        .map_err(failed)?;
                    if let Some(schema) = &table.schema {
                        let option = OptionStatement::TargetDbSchema;
                        statement.set_option(option, schema.as_str().into()).map_err(failed)?;
                    }
                    statement.set_option(OptionStatement::IngestMode, mode.into()).map_err(failed)?;
                    let read = Arc::new(Read::default());
                    let batches = Batches { schema: columns, pieces, has_ended: false, read: read.clone() };
                    statement.bind_stream(Box::new(batches)).map_err(failed)?;
                    // A source of the same database shares this instance meanwhile.
                    Ok((database, connection, statement, failures, has_transaction, read))
                })();
                // The database is the last to be dropped.
                let (_database, mut connection, mut statement, failures, has_transaction, read) =
                    match prepared {
                        Ok(prepared) => prepared,
                        Err(error) => {
                            let _ = started_to.send(Err(error));
                            return;
                        }
                    };
                if started_to.send(Ok(statement.get_cancel_handle())).is_err() {
                    return;
                }
                let written = statement.execute_update().map_err(|error| failures.statement(error));
                let ended = written.and_then(|written| {
                    drop(statement);
                    if !read.is_complete.load(Ordering::Acquire) {
                        return Err(failures.malformed(STOPPED.into()));
                    }
                    let rows = read.rows.load(Ordering::Relaxed);
                    if let Some(written) = written.filter(|&written| written >= 0 && written as u64 != rows) {
                        let reason = format!("the driver says that it wrote {written} rows of {rows}");
                        return Err(failures.malformed(reason));
                    }
                    if has_transaction {
                        connection.commit().map_err(|error| failures.statement(error))?;
                    }
                    Ok(())
                });
                if ended.is_err() && has_transaction {
                    // The database rolls back when the connection ends, too.
                    let _ = connection.rollback();
                }
                let _ = ended_to.send(ended);
            })
            .map_err(|source| SourceError::Io { path: target.clone(), source })?;
        let handle = started.await.map_err(|_| ended_early(&target))??;
        let running = Some(Running { target, to, ended, handle });
        Ok(Self { schema: schema.clone(), running, rows: 0, bytes: 0 })
    }

    /// The driver's error, after it has stopped reading.
    async fn failed(&mut self) -> SourceError {
        let Some(running) = self.running.take() else { return after_an_error() };
        match running.ended.await {
            Ok(Err(error)) => error,
            Ok(Ok(())) => SourceError::Malformed { target: running.target, reason: STOPPED.into() },
            Err(_) => ended_early(&running.target),
        }
    }
}

/// Starts a transaction; returns whether the driver has transactions.
fn begin(connection: &mut ManagedConnection, failures: &Failures) -> Result<bool> {
    match connection.set_option(OptionConnection::AutoCommit, "false".into()) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.status, Status::NotImplemented | Status::InvalidArguments) => {
            let error = failures.statement(error);
            tracing::warn!(%error, "the driver has no transactions: if the copy fails, some rows may stay");
            Ok(false)
        }
        Err(error) => Err(failures.statement(error)),
    }
}

fn ended_early(target: &str) -> SourceError {
    SourceError::Malformed { target: target.to_owned(), reason: "its writer ended unexpectedly".into() }
}

fn after_an_error() -> SourceError {
    SourceError::Unsupported("a write after an error".into())
}

impl Drop for AdbcDestination {
    fn drop(&mut self) {
        let Some(Running { target, to, handle, .. }) = self.running.take() else { return };
        // The driver's next batch is an error.
        drop(to);
        cancel::send(target, async move {
            let handle: Arc<dyn CancelHandle> = handle.into();
            if let Ok(Err(error)) = tokio::task::spawn_blocking(move || handle.try_cancel()).await {
                tracing::debug!(status = ?error.status, "the driver can't cancel");
            }
            Ok(())
        });
    }
}

#[async_trait]
impl Destination for AdbcDestination {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let (rows, bytes) = (batch.num_rows() as u64, batch.get_array_memory_size() as u64);
        let batch = RecordBatch::try_new(self.schema.clone(), batch.columns().to_vec())?;
        let Some(running) = &self.running else { return Err(after_an_error()) };
        if running.to.send(Piece::Batch(batch)).await.is_err() {
            return Err(self.failed().await);
        }
        (self.rows, self.bytes) = (self.rows + rows, self.bytes + bytes);
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<Written> {
        let Some(running) = &mut self.running else { return Err(after_an_error()) };
        if running.to.send(Piece::End).await.is_err() {
            return Err(self.failed().await);
        }
        let ended = (&mut running.ended).await;
        let target = running.target.clone();
        self.running = None;
        ended.map_err(|_| ended_early(&target))??;
        Ok(Written { rows: self.rows, bytes: self.bytes })
    }
}
