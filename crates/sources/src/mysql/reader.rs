//! Reads one result: the connection that runs the statement, and the stream of its batches.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use mysql_async::prelude::Queryable;
use mysql_async::{BinaryProtocol, Column, Conn, Opts, Params, QueryResult, Row};

use super::columns::{self, ColumnBuilder};
use super::errors;
use super::kill::{ConnectionLock, kill};
use super::{native, parameters};
use crate::limit::Permit;
use crate::native::{MYSQL, with_types};
use crate::{BatchStream, ReadOptions, Result, Rows, SourceError};

/// A batch is closed when it holds this many bytes. A row has at most 1 GiB (the
/// server's largest packet), so no column exceeds the 2^31 - 1 bytes that Arrow's
/// offsets can count.
const BATCH_BYTES_MAX: usize = 1 << 30;

/// A connection whose statement is killed at the server when it is dropped
/// before [`Connection::close`].
///
/// Closing the socket is not enough: the server notices it only when it writes,
/// and a statement may sort or join for an hour before that. The driver itself
/// would read the rest of the result, however long it is.
pub(super) struct Connection {
    conn: Option<Conn>,
    opts: Opts,
    mark: Option<ConnectionLock>,
    _permit: Permit,
}

impl Connection {
    pub(super) fn new(conn: Conn, opts: Opts, mark: Option<ConnectionLock>, permit: Permit) -> Self {
        Self { conn: Some(conn), opts, mark, _permit: permit }
    }

    /// The driver's connection, until [`Connection::close`].
    pub(super) fn get(&mut self) -> Result<&mut Conn, mysql_async::Error> {
        self.conn.as_mut().ok_or_else(|| mysql_async::DriverError::ConnectionClosed.into())
    }

    /// Closes the connection cleanly, after its statement has ended.
    pub(super) async fn close(&mut self) {
        if let Some(conn) = self.conn.take() {
            // The result is complete, so an error here does not matter.
            let _ = conn.disconnect().await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(conn) = self.conn.take() else { return };
        // Outside of the runtime, the driver only closes the socket.
        let _ = std::thread::Builder::new().name("mysql-close".into()).spawn(move || drop(conn));
        if let Some(mark) = self.mark.take() {
            kill(self.opts.clone(), mark);
        }
    }
}

/// Runs `sql`, with these values of its parameters, and reads its first result. `table` is the only table that it
/// reads, if known.
pub(super) async fn run(
    mut connection: Connection,
    server: Arc<str>,
    sql: &str,
    row: Option<&RecordBatch>,
    table: Option<&str>,
    options: &ReadOptions,
) -> Result<Rows> {
    let described = async {
        let failed = |error| errors::beginning(&server, sql, table, error);
        let conn = connection.get().map_err(failed)?;
        let statement = conn.prep(sql).await.map_err(failed)?;
        let natives = match options.native_types {
            true => native::names(conn, &statement.columns()).await.map_err(failed)?,
            false => vec![None; statement.columns().len()],
        };
        let values = match row {
            None => Params::Empty,
            Some(row) => parameters::values(row, statement.num_params().into())?,
        };
        let result = conn.exec_iter(&statement, values).await.map_err(failed)?;
        Ok((result.columns().unwrap_or_default(), natives))
    };
    let described: Result<(Arc<[Column]>, _)> = described.await;
    let (described, natives) = match described {
        Ok(described) => described,
        Err(error) => {
            connection.close().await;
            return Err(error);
        }
    };
    if described.is_empty() {
        connection.close().await;
        return Err(SourceError::Unsupported("a statement that returns no rows".into()));
    }
    let schema = schema(&described, natives)?;
    let columns =
        described.iter().zip(schema.fields()).map(|(column, field)| ColumnBuilder::new(column, field));
    let reader = Reader {
        columns: columns.collect::<Result<_>>()?,
        connection,
        server,
        sql: sql.into(),
        schema: schema.clone(),
        batch_rows: options.batch_rows.max(1),
        batch_bytes: options.batch_bytes.min(BATCH_BYTES_MAX),
        row_bytes_max: options.row_bytes_max,
        rows: 0,
        ended: None,
        is_cut: false,
    };
    let batches: BatchStream = Box::pin(futures::stream::try_unfold(reader, |mut reader| async move {
        Ok(reader.next_batch().await?.map(|batch| (batch, reader)))
    }));
    Ok(Rows { schema, batches, rows_estimate: None, tuples: None })
}

/// The schema of a result whose columns have these types at the server, as far as they are known.
pub(super) fn schema(described: &[Column], natives: Vec<Option<String>>) -> Result<SchemaRef> {
    let fields = described.iter().map(columns::field).collect::<Result<Vec<_>>>()?;
    // The server does not describe the result of a procedure before it has run.
    let natives = if natives.len() == described.len() { natives } else { vec![None; described.len()] };
    Ok(Arc::new(with_types(&Schema::new(fields), MYSQL, natives)))
}

struct Reader {
    connection: Connection,
    server: Arc<str>,
    sql: Box<str>,
    schema: SchemaRef,
    columns: Vec<ColumnBuilder>,
    batch_rows: usize,
    batch_bytes: usize,
    row_bytes_max: usize,
    /// Rows in the batches returned so far.
    rows: u64,
    /// How the result ended, once it has. Rows that precede an error are returned first.
    ended: Option<Result<()>>,
    /// Whether the server has more to send.
    is_cut: bool,
}

impl Reader {
    /// The next batch, or `None` at the end of the result.
    async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let mut rows = 0;
        let mut bytes = 0;
        if self.ended.is_none() {
            let conn = self
                .connection
                .get()
                .map_err(|e| errors::statement(&self.server, &self.sql, self.rows, e))?;
            let mut result = QueryResult::<BinaryProtocol>::new(conn);
            while rows < self.batch_rows && bytes < self.batch_bytes {
                match result.next().await {
                    Ok(Some(row)) => {
                        let number = self.rows + rows as u64 + 1;
                        let row_bytes = bytes_of(&row);
                        if row_bytes > self.row_bytes_max {
                            let (bytes, bytes_max) = (row_bytes as u64, self.row_bytes_max as u64);
                            let part = None;
                            self.ended =
                                Some(Err(SourceError::RowTooLarge { row: number, part, bytes, bytes_max }));
                            self.is_cut = true;
                            break;
                        }
                        bytes += append(&mut self.columns, &row, number)?;
                        rows += 1;
                    }
                    Ok(None) if result.is_empty() => {
                        self.ended = Some(Ok(()));
                        break;
                    }
                    Ok(None) => {
                        let reason =
                            "a statement with more than one result; only the first was read".to_owned();
                        self.ended = Some(Err(SourceError::Unsupported(reason)));
                        self.is_cut = true;
                        break;
                    }
                    Err(error) => {
                        let rows = self.rows + rows as u64;
                        self.ended = Some(Err(errors::statement(&self.server, &self.sql, rows, error)));
                        break;
                    }
                }
            }
        }
        if rows > 0 {
            self.rows += rows as u64;
            let arrays = self.columns.iter_mut().map(ColumnBuilder::finish).collect();
            return Ok(Some(RecordBatch::try_new(self.schema.clone(), arrays)?));
        }
        // A clean close would read all remaining rows; without it the statement is killed.
        if !self.is_cut {
            self.connection.close().await;
        }
        self.ended.take().unwrap_or(Ok(())).map(|()| None)
    }
}

/// Bytes of the text and binary values in a row.
fn bytes_of(row: &Row) -> usize {
    let bytes = |at| match row.as_ref(at) {
        Some(mysql_async::Value::Bytes(bytes)) => bytes.len(),
        _ => 0,
    };
    (0..row.len()).map(bytes).sum()
}

/// Appends row `number` (from 1) to the columns; returns the bytes they grew by.
fn append(columns: &mut [ColumnBuilder], row: &Row, number: u64) -> Result<usize> {
    let mut bytes = 0;
    for (index, column) in columns.iter_mut().enumerate() {
        bytes += column.append(row.as_ref(index).unwrap_or(&mysql_async::Value::NULL), number)?;
    }
    Ok(bytes)
}
