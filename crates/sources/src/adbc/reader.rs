//! Reads one result: a thread that calls the driver, and the stream of its batches.

use std::sync::Arc;

use adbc_core::options::OptionConnection;
use adbc_core::{CancelHandle, Connection as _, Optionable as _, Statement as _};
use arrow_array::{RecordBatch, RecordBatchOptions, RecordBatchReader};
use arrow_schema::{Schema, SchemaRef};
use tokio::sync::{mpsc, oneshot};

use super::driver::{Failures, OpenDatabase};
use crate::cancel::{self, StatementGuard};
use crate::limit::Permit;
use crate::{ReadOptions, Result, Rows, SourceError};

/// What the thread sends. A channel that closes without `End` is an error.
enum Piece {
    Batch(RecordBatch),
    Failed(SourceError),
    End,
}

/// Cancels the statement when nobody waits for its rows any more.
struct Canceller {
    target: String,
    /// `None` once the result has ended.
    handle: Option<Box<dyn CancelHandle>>,
}

impl Drop for Canceller {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        cancel::send(self.target.clone(), async move {
            // The thread of the result ends at the next batch in any case.
            let cancelled = tokio::task::spawn_blocking(move || handle.try_cancel()).await;
            if let Ok(Err(error)) = cancelled {
                tracing::debug!(status = ?error.status, "the driver can't cancel");
            }
            Ok(())
        });
    }
}

/// Runs a statement on a connection of its own, one batch ahead of the consumer. Without columns, only the rows are
/// counted.
pub(super) async fn run(
    database: Arc<OpenDatabase>,
    failures: Arc<Failures>,
    permit: Permit,
    sql: String,
    options: &ReadOptions,
    without_columns: bool,
) -> Result<Rows> {
    let target = failures.target().to_owned();
    let (handle_to, handle) = oneshot::channel();
    let (schema_to, schema) = oneshot::channel();
    let (pieces_to, mut pieces) = mpsc::channel(1);
    let options = options.clone();
    let guard = StatementGuard::begin(target.clone());
    std::thread::Builder::new()
        .name("adbc-read".into())
        .spawn(move || {
            let (_permit, _guard) = (permit, guard);
            let job = Job { failures: &failures, options: &options, without_columns, pieces: &pieces_to };
            let last = match job.run(&database, &sql, handle_to, schema_to) {
                Ok(()) => Piece::End,
                Err(error) => Piece::Failed(error),
            };
            // Nobody waits for the end of a result that was dropped.
            let _ = pieces_to.blocking_send(last);
        })
        .map_err(|source| SourceError::Io { path: target.clone(), source })?;

    let ended_early = {
        let target = target.clone();
        move || SourceError::Malformed { target, reason: "its reader ended unexpectedly".into() }
    };
    let canceller = Canceller { target, handle: handle.await.ok() };
    let Ok(schema) = schema.await else {
        let mut canceller = canceller;
        canceller.handle = None;
        return Err(match pieces.recv().await {
            Some(Piece::Failed(error)) => error,
            _ => ended_early(),
        });
    };
    let state = (pieces, canceller, ended_early);
    let batches = futures::stream::try_unfold(state, |(mut pieces, mut canceller, ended_early)| async move {
        let piece = pieces.recv().await;
        if !matches!(piece, Some(Piece::Batch(_))) {
            canceller.handle = None;
        }
        match piece {
            Some(Piece::Batch(batch)) => Ok(Some((batch, (pieces, canceller, ended_early)))),
            Some(Piece::Failed(error)) => Err(error),
            Some(Piece::End) => Ok(None),
            None => Err(ended_early()),
        }
    });
    Ok(Rows { schema, batches: Box::pin(batches), rows_estimate: None, tuples: None })
}

struct Job<'a> {
    failures: &'a Failures,
    options: &'a ReadOptions,
    without_columns: bool,
    pieces: &'a mpsc::Sender<Piece>,
}

impl Job<'_> {
    fn run(
        &self,
        database: &OpenDatabase,
        sql: &str,
        handle_to: oneshot::Sender<Box<dyn CancelHandle>>,
        schema_to: oneshot::Sender<SchemaRef>,
    ) -> Result<()> {
        let failed = |error| self.failures.statement(error);
        let mut connection = database.connect().map_err(|error| self.failures.connect(error))?;
        // Not all drivers know the option.
        let _ = connection.set_option(OptionConnection::ReadOnly, "true".into());
        let mut statement = connection.new_statement().map_err(failed)?;
        statement.set_sql_query(sql).map_err(failed)?;
        if handle_to.send(statement.get_cancel_handle()).is_err() {
            return Ok(());
        }
        let reader = statement.execute().map_err(failed)?;
        let read = reader.schema();
        if read.fields().is_empty() {
            return Err(SourceError::Unsupported("a statement that returns no rows".into()));
        }
        let schema = if self.without_columns { Arc::new(Schema::empty()) } else { read.clone() };
        if schema_to.send(schema.clone()).is_err() {
            return Ok(());
        }
        let mut rows = 0;
        for batch in reader {
            let batch = batch.map_err(|error| self.failures.stream(error))?;
            self.check(&batch, &read, rows)?;
            rows += batch.num_rows() as u64;
            let batch = match self.without_columns {
                false => RecordBatch::try_new(schema.clone(), batch.columns().to_vec())?,
                true => {
                    let count = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
                    RecordBatch::try_new_with_options(schema.clone(), vec![], &count)?
                }
            };
            if !self.send(&batch) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A driver may announce other columns than it sends.
    fn check(&self, batch: &RecordBatch, announced: &SchemaRef, rows_before: u64) -> Result<()> {
        let found = batch.schema_ref().fields();
        let wrong = |what: String| Err(self.failures.malformed(format!("after {rows_before} rows, {what}")));
        if found.len() != announced.fields().len() {
            return wrong(format!(
                "a batch of {} columns; announced were {}",
                found.len(),
                announced.fields().len()
            ));
        }
        for (found, announced) in found.iter().zip(announced.fields()) {
            if found.data_type() != announced.data_type() {
                let (name, found, announced) = (announced.name(), found.data_type(), announced.data_type());
                return wrong(format!("column `{name}` of type {found}; announced was {announced}"));
            }
        }
        let bytes = batch.get_array_memory_size() as u64;
        let bytes_max = self.options.row_bytes_max as u64;
        if batch.num_rows() == 1 && bytes > bytes_max {
            return Err(SourceError::RowTooLarge { row: rows_before + 1, part: None, bytes, bytes_max });
        }
        Ok(())
    }

    /// Sends a batch, in slices if it has too many rows or bytes. Returns whether anybody waits for more.
    fn send(&self, batch: &RecordBatch) -> bool {
        let rows = batch.num_rows();
        let row_bytes = (batch.get_array_memory_size() / rows.max(1)).max(1);
        let slice = (self.options.batch_bytes / row_bytes).clamp(1, self.options.batch_rows.max(1));
        let mut from = 0;
        while from < rows {
            let part = batch.slice(from, slice.min(rows - from));
            from += part.num_rows();
            if self.pieces.blocking_send(Piece::Batch(part)).is_err() {
                return false;
            }
        }
        !self.pieces.is_closed()
    }
}
