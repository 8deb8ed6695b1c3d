//! The results of a query that is executed once for each row of bound parameters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adbc_core::error::Result;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use lightship::blocking::{Connection, Reader};
use lightship::{Error, ErrorKind, Statement};

use crate::errors::{from_library, not_implemented};
use crate::statement::Running;

/// The rows of all executions, one after another. The next row of parameters is read once the rows of the last execution
/// have been, on the thread that reads them.
pub(crate) struct BoundReader {
    connection: Connection,
    running: Running,
    sql: String,
    rows: Box<dyn RecordBatchReader + Send>,
    /// The batch that the next row is taken from, and the number of that row.
    batch: Option<(RecordBatch, usize)>,
    /// Of the current execution; `None` after the last.
    reader: Option<Reader>,
    schema: SchemaRef,
    /// Rows that all executions have added; `None` for a query.
    affected: Option<u64>,
    /// Set by those who cancel, also between two executions.
    is_cancelled: Arc<AtomicBool>,
}

impl BoundReader {
    /// Executes the query with the first row, and waits until its columns are known. Without any row, nothing is executed.
    pub(crate) fn begin(
        connection: Connection,
        running: Running,
        sql: String,
        rows: Box<dyn RecordBatchReader + Send>,
    ) -> Result<Self> {
        let mut this = Self {
            connection,
            running,
            sql,
            rows,
            batch: None,
            reader: None,
            schema: Arc::new(Schema::empty()),
            affected: None,
            is_cancelled: Arc::default(),
        };
        this.schema = match this.execute().map_err(|failure| from_library(&failure))? {
            Some(schema) => schema,
            None => {
                let described = this.connection.describe(&this.sql);
                described.map_err(|failure| from_library(&failure))?.columns
            }
        };
        Ok(this)
    }

    /// Reads all rows and gives them up. Returns the number of rows that were added, if the statement adds some.
    pub(crate) fn run(mut self) -> Result<Option<u64>> {
        while self.next_batch().map_err(|failure| from_library(&failure))?.is_some() {}
        Ok(self.affected)
    }

    /// The next row of parameters.
    fn next_row(&mut self) -> lightship::Result<Option<RecordBatch>> {
        loop {
            if let Some((batch, row)) = &mut self.batch
                && *row < batch.num_rows()
            {
                let next = batch.slice(*row, 1);
                *row += 1;
                return Ok(Some(next));
            }
            let Some(batch) = self.rows.next() else { return Ok(None) };
            let batch = batch.map_err(|e| Error::new(ErrorKind::Data, format!("bound parameters: {e}")))?;
            self.batch = Some((batch, 0));
        }
    }

    /// Executes the query with the next row, if there is one. Returns its columns.
    fn execute(&mut self) -> lightship::Result<Option<SchemaRef>> {
        self.reader = None;
        let Some(row) = self.next_row()? else { return Ok(None) };
        let mut reader = self.connection.start(Statement::with_row(&self.sql, row)?)?;
        self.running.set_query(reader.canceller(), Some(self.is_cancelled.clone()));
        if self.is_cancelled.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Cancelled, "cancelled"));
        }
        reader.begin()?;
        let schema = reader.columns()?.clone();
        self.reader = Some(reader);
        Ok(Some(schema))
    }

    fn next_batch(&mut self) -> lightship::Result<Option<RecordBatch>> {
        loop {
            let Some(reader) = &mut self.reader else { return Ok(None) };
            if let Some(batch) = reader.next_batch()? {
                return Ok(Some(batch));
            }
            if let Some(affected) = reader.affected() {
                self.affected = Some(self.affected.unwrap_or(0).saturating_add(affected));
            }
            match self.execute()? {
                None => return Ok(None),
                Some(schema) if schema == self.schema => {}
                Some(_) => {
                    self.reader = None;
                    let message = "the columns have other types than those of the execution before";
                    return Err(Error::new(ErrorKind::Data, message).hint(
                        "cast the columns in the query, so that their types do not depend on the parameters",
                    ));
                }
            }
        }
    }
}

impl Iterator for BoundReader {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_batch();
        if next.is_err() {
            // Nothing follows an error.
            self.reader = None;
        }
        next.map_err(|failure| ArrowError::ExternalError(failure.with_hint().into())).transpose()
    }
}

impl RecordBatchReader for BoundReader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

/// The error of a partitioned query with parameters.
pub(crate) fn no_partitions() -> adbc_core::error::Error {
    not_implemented("partitions of a query with parameters")
}
