//! Writes batches to a table of an SQLite file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use rusqlite::{Connection, InterruptHandle, OpenFlags};

use super::errors;
use super::target::{STAGE, Target};
use crate::columns::check_names;
use crate::tables::cells::Cells;
use crate::tables::null_in_key;
use crate::{Destination, Result, SourceError, TableWrite, Written};

/// How long others may keep the file locked.
const LOCKED_MAX: Duration = Duration::from_secs(10);

/// A table of an SQLite file as a destination. A missing file is created; it stays, empty, if the copy then fails,
/// because another process may have opened it.
///
/// Rows wait in a temporary table, in a file of its own, until all have arrived; then one transaction moves them
/// into their table. Until then, the file is not locked: it can be read and written by others, and by the query of
/// this copy.
///
/// Each value is stored as it is, or refused with its row and column. Dates and times are stored as text, and
/// decimals as numbers if a float preserves their digits.
#[derive(Debug)]
pub struct SqliteDestination {
    /// `None` while a batch is written, and after an error.
    open: Option<Open>,
    interrupt: Arc<Interrupt>,
}

/// What a thread for blocking work needs.
#[derive(Debug)]
struct Open {
    connection: Connection,
    path: PathBuf,
    target: Target,
    schema: SchemaRef,
    rows: u64,
    bytes: u64,
}

/// Interrupts what runs when nobody waits for it any more.
struct Interrupt(InterruptHandle);

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interrupt")
    }
}

impl SqliteDestination {
    /// Opens the file, and finds or plans the table as the mode requires.
    ///
    /// # Errors
    /// [`SourceError::Connect`] for a file that can't be opened; [`SourceError::Value`] for a column that the table
    /// lacks or whose type does not fit, [`SourceError::Unsupported`] for one that no table can have,
    /// [`SourceError::DuplicateColumn`] for two of the same name; [`SourceError::NoUniqueIndex`] for an upsert into
    /// a table that has none on the key.
    pub async fn create(path: &Path, write: &TableWrite, schema: &SchemaRef) -> Result<Self> {
        if schema.fields().is_empty() {
            return Err(SourceError::Unsupported("rows without columns in a table".into()));
        }
        check_names(schema)?;
        write.check(schema)?;
        let (path, write, schema) = (path.to_owned(), write.clone(), schema.clone());
        let open = blocking(move || Open::new(path, &write, schema)).await?;
        let interrupt = Arc::new(Interrupt(open.connection.get_interrupt_handle()));
        Ok(Self { open: Some(open), interrupt })
    }

    fn take(&mut self) -> Result<Open> {
        self.open.take().ok_or_else(|| SourceError::Unsupported("a write after an error".into()))
    }
}

impl Drop for SqliteDestination {
    fn drop(&mut self) {
        // Without effect unless a statement runs.
        self.interrupt.0.interrupt();
    }
}

/// Runs `work` on a thread for blocking work.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(SourceError::Unsupported("a write while the process is ending".into())),
    })
}

impl Open {
    fn new(path: PathBuf, write: &TableWrite, schema: SchemaRef) -> Result<Self> {
        let failed = |error| errors::open(&path, error);
        if !path.exists() {
            // A table that can't be made leaves no file.
            Target::open(&Connection::open_in_memory().map_err(failed)?, &path, write, &schema)?;
        }
        // Made before it is opened: a folder that is missing or read-only is reported as such.
        let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
        if let Err(source) = made
            && source.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(SourceError::Io { path: path.display().to_string(), source });
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags).map_err(failed)?;
        connection.busy_timeout(LOCKED_MAX).map_err(failed)?;
        // A memory of 8 MiB; what is larger is in a temporary file.
        connection
            .execute_batch(
                "PRAGMA temp_store = FILE; PRAGMA temp.cache_size = -8192; PRAGMA temp.journal_mode = OFF",
            )
            .map_err(failed)?;
        let target = Target::open(&connection, &path, write, &schema)?;
        connection.execute_batch("BEGIN").map_err(failed)?;
        Ok(Self { connection, path, target, schema, rows: 0, bytes: 0 })
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let path = &self.path;
        let fields = self.schema.fields().iter().map(|field| &**field);
        let columns = Cells::of_batch(batch, fields, self.rows)?;
        let places = vec!["?"; columns.len()].join(", ");
        let sql = format!("INSERT INTO {STAGE} VALUES ({places})");
        let failed = |error| errors::statement(path, &sql, error);
        let mut insert = self.connection.prepare(&sql).map_err(failed)?;
        for row in 0..batch.num_rows() {
            let number = self.rows + 1;
            for (at, column) in columns.iter().enumerate() {
                let (cell, field) = (column.get(row), self.schema.field(at));
                if matches!(cell, crate::tables::cells::Cell::Null) && self.target.is_key(field) {
                    return Err(null_in_key(number, field.name()));
                }
                let value = self.target.rules[at].value(cell).map_err(|unfit| SourceError::Unfit {
                    row: number,
                    column: field.name().clone(),
                    reason: unfit.reason,
                    hint: Some(unfit.hint.into()),
                })?;
                insert.raw_bind_parameter(at + 1, value).map_err(failed)?;
            }
            insert.raw_execute().map_err(failed)?;
            self.rows = number;
        }
        self.bytes += batch.get_array_memory_size() as u64;
        Ok(())
    }

    fn finish(self) -> Result<Written> {
        let path = &self.path;
        self.connection.execute_batch("COMMIT").map_err(|error| errors::statement(path, "COMMIT", error))?;
        self.target.fill(&self.connection, path, self.rows)?;
        Ok(Written { rows: self.rows, bytes: self.bytes })
    }
}

#[async_trait]
impl Destination for SqliteDestination {
    fn notices(&self) -> Vec<String> {
        self.open.as_ref().map_or_else(Vec::new, |open| open.target.notices.clone())
    }

    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let mut open = self.take()?;
        self.open = Some(
            blocking(move || {
                open.write(&batch)?;
                Ok(open)
            })
            .await?,
        );
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<Written> {
        let open = self.take()?;
        blocking(move || open.finish()).await
    }
}
