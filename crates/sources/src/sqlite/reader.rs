//! Reads one result: a thread that steps through the rows, and the stream of its batches.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Field, Schema, SchemaRef};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{mpsc, oneshot};

use super::columns::{ColumnBuilder, SqliteType};
use super::errors;
use crate::{ReadOptions, Result, Rows, SourceError, parameters};

/// A batch is closed when it holds this many bytes. A value has at most 10^9 bytes
/// (SQLite's own limit), so no column exceeds the 2^31 - 1 bytes that Arrow's
/// offsets can count.
const BATCH_BYTES_MAX: usize = 1 << 30;

/// Steps of SQLite's virtual machine between two checks whether anybody still
/// waits: less than a millisecond of work.
const STEPS_PER_LOOK: i32 = 10_000;

/// A statement to run on a database.
pub(super) struct Job {
    pub(super) path: PathBuf,
    pub(super) options: ReadOptions,
    /// Plans the statement.
    pub(super) plan: Planner,
}

/// Plans a job, on the connection that will run it.
pub(super) type Planner = Box<dyn FnOnce(&Connection) -> Result<ReadPlan> + Send>;

/// A statement, and what is known about its result.
pub(super) struct ReadPlan {
    pub(super) sql: String,
    /// Kinds of the columns. For a column beyond these, and for `None`, the
    /// declared type or the first batch decides.
    pub(super) kinds: Vec<Option<SqliteType>>,
    pub(super) rows_estimate: Option<u64>,
    /// Of the parameters; `None` if none were given.
    pub(super) values: Option<Vec<Value>>,
}

/// What the thread sends. A channel that closes without `End` is an error.
enum Piece {
    Batch(RecordBatch),
    Failed(SourceError),
    End,
}

/// Opens an existing database for reading.
pub(super) fn open(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(path, flags).map_err(|error| errors::open(path, error))
}

/// Runs the job on its own thread, one batch ahead of the consumer.
///
/// Dropping the stream, or this future, ends the thread: it checks for that every
/// few steps, and it fails to send its next batch.
pub(super) async fn run(job: Job) -> Result<Rows> {
    let path = job.path.clone();
    let (schema_to, schema) = oneshot::channel();
    let (pieces_to, pieces) = mpsc::channel(1);
    std::thread::Builder::new()
        .name("sqlite-read".into())
        .spawn(move || {
            let last = match read(job, schema_to, &pieces_to) {
                Ok(()) => Piece::End,
                Err(error) => Piece::Failed(error),
            };
            // Nobody waits for the end of a result that was dropped.
            let _ = pieces_to.blocking_send(last);
        })
        .map_err(|source| SourceError::Io { path: path.display().to_string(), source })?;

    let ended_early = move || SourceError::Malformed {
        target: path.display().to_string(),
        reason: "its reader ended unexpectedly".into(),
    };
    let mut pieces = pieces;
    let Ok((schema, rows_estimate)) = schema.await else {
        return Err(match pieces.recv().await {
            Some(Piece::Failed(error)) => error,
            _ => ended_early(),
        });
    };
    let batches =
        futures::stream::try_unfold((pieces, ended_early), |(mut pieces, ended_early)| async move {
            match pieces.recv().await {
                Some(Piece::Batch(batch)) => Ok(Some((batch, (pieces, ended_early)))),
                Some(Piece::Failed(error)) => Err(error),
                Some(Piece::End) => Ok(None),
                None => Err(ended_early()),
            }
        });
    Ok(Rows { schema, batches: Box::pin(batches), rows_estimate, tuples: None })
}

type Described = (SchemaRef, Option<u64>);

/// Bytes of a text or blob; 0 for other values.
fn bytes_of(row: &rusqlite::Row<'_>, at: usize) -> usize {
    match row.get_ref(at) {
        Ok(ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => bytes.len(),
        _ => 0,
    }
}

/// The work of the thread.
fn read(job: Job, schema_to: oneshot::Sender<Described>, pieces: &mpsc::Sender<Piece>) -> Result<()> {
    let Job { path, options, plan } = job;
    let mut connection = open(&path)?;
    let listener = pieces.clone();
    connection
        .progress_handler(STEPS_PER_LOOK, Some(move || listener.is_closed()))
        .map_err(|error| errors::open(&path, error))?;
    let ReadPlan { sql, kinds, rows_estimate, values } = plan(&connection)?;
    let failed = |error| errors::statement(&path, &sql, error);

    let mut statement = connection.prepare(&sql).map_err(failed)?;
    if statement.column_count() == 0 {
        return Err(SourceError::Unsupported("a statement that returns no rows".into()));
    }
    match (values, statement.parameter_count()) {
        (None, 0) => {}
        (None, parameters) => return Err(parameters::no_values(parameters)),
        (Some(values), parameters) => {
            parameters::check_values(values.len(), parameters)?;
            for (index, value) in values.into_iter().enumerate() {
                statement.raw_bind_parameter(index + 1, value).map_err(failed)?;
            }
        }
    }
    let mut columns: Vec<_> = statement
        .columns()
        .enumerate()
        .map(|(index, column)| {
            let known = kinds.get(index).copied().flatten();
            ColumnBuilder::new(
                column.name(),
                known.or_else(|| column.decl_type().and_then(SqliteType::declared)),
            )
        })
        .collect();
    let names: Vec<_> = statement.column_names().map(str::to_owned).collect();
    let describe = |columns: &[ColumnBuilder]| -> SchemaRef {
        let fields =
            names.iter().zip(columns).map(|(name, column)| Field::new(name, column.data_type(), true));
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    };

    // If the columns are known, the schema is known before any row.
    let mut schema_to = Some(schema_to);
    let mut schema = describe(&columns);
    if !columns.iter().any(ColumnBuilder::undecided)
        && let Some(to) = schema_to.take()
        && to.send((schema.clone(), rows_estimate)).is_err()
    {
        return Ok(());
    }

    let batch_rows = options.batch_rows.max(1);
    let batch_bytes = options.batch_bytes.min(BATCH_BYTES_MAX);
    let mut rows = statement.raw_query();
    let mut read: u64 = 0;
    let mut ended = Ok(false);
    while matches!(ended, Ok(false)) {
        let mut held = 0;
        let mut bytes = 0;
        while held < batch_rows && bytes < batch_bytes {
            match rows.next() {
                Ok(Some(row)) => {
                    read += 1;
                    let row_bytes: usize = (0..columns.len()).map(|at| bytes_of(row, at)).sum();
                    if row_bytes > options.row_bytes_max {
                        let (bytes, bytes_max) = (row_bytes as u64, options.row_bytes_max as u64);
                        ended = Err(SourceError::RowTooLarge { row: read, part: None, bytes, bytes_max });
                        break;
                    }
                    for (index, column) in columns.iter_mut().enumerate() {
                        bytes += column.append(row.get_ref(index).map_err(failed)?, read)?;
                    }
                    held += 1;
                }
                Ok(None) => {
                    ended = Ok(true);
                    break;
                }
                // The rows before the error are sent first.
                Err(error) => {
                    ended = Err(failed(error));
                    break;
                }
            }
        }
        if let Some(to) = schema_to.take() {
            for column in &mut columns {
                column.decide()?;
            }
            schema = describe(&columns);
            if to.send((schema.clone(), rows_estimate)).is_err() {
                return Ok(());
            }
        }
        if held > 0 {
            let arrays = columns.iter_mut().map(ColumnBuilder::finish).collect();
            let batch = RecordBatch::try_new(schema.clone(), arrays)?;
            if pieces.blocking_send(Piece::Batch(batch)).is_err() {
                return Ok(());
            }
        }
    }
    ended.map(|_| ())
}
