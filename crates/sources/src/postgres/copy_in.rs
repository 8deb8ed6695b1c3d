//! Batches into a table: binary COPY, in one transaction.

use std::io;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;
use bytes::{BufMut, BytesMut};
use futures::FutureExt;

use super::config::Config;
use super::connection::{Connection, Described};
use super::encode::{Encoder, Way, column_type, way};
use super::types::{Kind, Types};
use super::{quote_identifier, quote_literal, quote_table, shown};
use crate::{Destination, NumericRule, Result, SourceError, TableName, WriteMode, Written};

/// Rows are sent once they have this many bytes.
const SEND_BYTES: usize = 128 << 10;
/// Of one message; the server takes up to 1 GiB.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// What binary COPY begins with: signature, flags, length of the extension.
const COPY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// Holds rows with columns that only the server can read from text.
const STAGE: &str = "pg_temp.lightship_stage";

/// Where batches go when a table of PostgreSQL takes them.
///
/// All happens in one transaction: unless it is finished nothing is left, not
/// even the table. Unsigned integers get the next wider type, times without a
/// zone are UTC where the column has one, and text goes into any column that the
/// server can read it for.
#[derive(Debug)]
pub struct PostgresDestination {
    connection: Connection,
    columns: Vec<Column>,
    /// Rows to be sent.
    pending: BytesMut,
    /// Moves the rows from the stage to the table.
    from_stage: Option<String>,
    rows: u64,
}

#[derive(Debug)]
struct Column {
    name: String,
    from: DataType,
    /// What values are cast to.
    to: DataType,
    kind: Kind,
    element: u32,
}

/// A column of the table as it is there.
struct Target {
    described: Described,
    type_name: String,
}

impl PostgresDestination {
    /// Logs in, makes the table as `mode` says and starts the transaction.
    ///
    /// # Errors
    /// As [`PostgresSource::connect`](super::PostgresSource::connect);
    /// [`SourceError::Value`] for a column the table lacks or whose type does not
    /// fit, [`SourceError::Unsupported`] for one that no table can have.
    pub async fn create(uri: &str, table: &TableName, schema: &SchemaRef, mode: WriteMode) -> Result<Self> {
        let config = Arc::new(Config::parse(uri)?);
        if schema.fields().is_empty() {
            return Err(SourceError::Unsupported("rows without columns in a table".into()));
        }
        let mut connection = Connection::open(&config).await?;
        connection.simple("BEGIN").await?;
        let name = quote_table(table);
        if mode == WriteMode::Replace {
            connection.simple(&format!("DROP TABLE IF EXISTS {name}")).await?;
        }
        let mut targets = targets(&mut connection, &name).await?;
        if targets.is_empty() || mode == WriteMode::Create {
            let columns = schema
                .fields()
                .iter()
                .map(|field| match column_type(field) {
                    Ok(made) => Ok(format!("{} {made}", quote_identifier(field.name()))),
                    Err(what) => Err(SourceError::Unsupported(format!(
                        "column `{}` of type {what} in a table",
                        field.name()
                    ))),
                })
                .collect::<Result<Vec<_>>>()?;
            connection.simple(&format!("CREATE TABLE {name} ({})", columns.join(", "))).await?;
            targets = self::targets(&mut connection, &name).await?;
        }
        let types = Types::default();
        let described: Vec<_> = targets.iter().map(|target| target.described.clone()).collect();
        let kinds = types.resolve(&mut connection, &described, NumericRule::String).await?;

        let mut columns = Vec::with_capacity(schema.fields().len());
        let (mut names, mut stage, mut casts) = (vec![], vec![], vec![]);
        let mut staged = false;
        for field in schema.fields() {
            let fail = |reason: String| SourceError::Value { column: field.name().clone(), reason };
            let Some(at) = targets.iter().position(|target| target.described.name == *field.name()) else {
                let has: Vec<_> = targets.iter().map(|target| &*target.described.name).collect();
                let has = has.join(", ");
                return Err(fail(format!("table `{}` has no such column; it has {has}", shown(table))));
            };
            let (Target { described, type_name }, kind) = (&targets[at], &kinds[at]);
            let way = way(field.data_type(), kind).ok_or_else(|| {
                fail(format!(
                    "{} can't be written into `{}`, where it is {type_name}",
                    field.data_type(),
                    shown(table)
                ))
            })?;
            let name = quote_identifier(field.name());
            let column = |to, kind, element| Column {
                name: field.name().clone(),
                from: field.data_type().clone(),
                to,
                kind,
                element,
            };
            match way {
                Way::Binary(to) => {
                    let element = types.element(described.oid).unwrap_or(0);
                    columns.push(column(to, kind.clone(), element));
                    stage.push(format!("{name} {type_name}"));
                    casts.push(name.clone());
                }
                Way::Text => {
                    staged = true;
                    let (kind, made) = match field.data_type().is_nested() {
                        true => (Kind::List(Box::new(Kind::Utf8)), "text[]"),
                        false => (Kind::Utf8, "text"),
                    };
                    columns.push(column(kind.data_type(), kind, 25));
                    stage.push(format!("{name} {made}"));
                    casts.push(format!("{name}::{type_name}"));
                }
            }
            names.push(name);
        }
        let (names, casts) = (names.join(", "), casts.join(", "));
        let mut from_stage = None;
        let mut into = &*name;
        if staged {
            connection.simple(&format!("CREATE TEMPORARY TABLE {STAGE} ({})", stage.join(", "))).await?;
            from_stage =
                Some(format!("INSERT INTO {name} ({names}) SELECT {casts} FROM {STAGE}; DROP TABLE {STAGE}"));
            into = STAGE;
        }

        connection.ask(&format!("COPY {into} ({names}) FROM STDIN (FORMAT binary)"))?;
        connection.send().await?;
        loop {
            let frame = connection.frame().await.map_err(|e| connection.lost(e, 0))?;
            match frame.tag {
                b'G' => break,
                b'E' => return Err(connection.server_error(&frame.body, 0)),
                _ => {}
            }
        }
        let mut pending = BytesMut::with_capacity(2 * SEND_BYTES);
        pending.put_slice(COPY_HEADER);
        Ok(Self { connection, columns, pending, from_stage, rows: 0 })
    }

    /// Sends what is pending.
    async fn send(&mut self) -> Result<()> {
        let result = self.connection.send_copy_data(&self.pending, MESSAGE_BYTES_MAX).await;
        self.pending.clear();
        if let Err(e) = result {
            // The server may have said why before it hung up.
            return Err(match self.said().await {
                Some(error) => error,
                None => self.connection.lost(e, self.rows),
            });
        }
        // A row refused is reported while the rest still flows.
        match self.said().now_or_never().flatten() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The error the server has sent, if it sends one.
    async fn said(&mut self) -> Option<SourceError> {
        loop {
            let frame = self.connection.frame().await.ok()?;
            if frame.tag == b'E' {
                return Some(self.connection.server_error(&frame.body, self.rows));
            }
        }
    }
}

/// Columns of the table `name` that can be written; none if there is no such table.
async fn targets(connection: &mut Connection, name: &str) -> Result<Vec<Target>> {
    let rows = connection
        .simple(&format!(
            "SELECT attname, atttypid, atttypmod, pg_catalog.format_type(atttypid, atttypmod) \
             FROM pg_catalog.pg_attribute WHERE attrelid = pg_catalog.to_regclass({}) \
             AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
            quote_literal(name)
        ))
        .await?;
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "a catalog that can't be read");
    rows.into_iter()
        .map(|row| {
            let [Some(name), Some(oid), Some(modifier), Some(type_name)] = <[_; 4]>::try_from(row).ok()?
            else {
                return None;
            };
            let described = Described { name, oid: oid.parse().ok()?, modifier: modifier.parse().ok()? };
            Some(Target { described, type_name })
        })
        .map(|target| target.ok_or_else(|| connection.lost(broken(), 0)))
        .collect()
}

#[async_trait]
impl Destination for PostgresDestination {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let mut encoders = Vec::with_capacity(self.columns.len());
        if batch.num_columns() != self.columns.len() {
            let reason =
                format!("{} columns where {} were announced", batch.num_columns(), self.columns.len());
            return Err(SourceError::Unsupported(reason));
        }
        for (column, array) in self.columns.iter().zip(batch.columns()) {
            let fail = |reason: String| SourceError::Value { column: column.name.clone(), reason };
            if *array.data_type() != column.from {
                return Err(fail(format!("{} where {} was announced", array.data_type(), column.from)));
            }
            let encoder = Encoder::new(array, &column.to, &column.kind, column.element);
            encoders.push(encoder.map_err(|e| fail(e.to_string()))?);
        }
        // The format counts columns in sixteen bits, and no table has more than 1600.
        let count = encoders.len() as u16;
        for row in 0..batch.num_rows() {
            self.pending.put_u16(count);
            for (encoder, column) in encoders.iter().zip(&self.columns) {
                encoder.put(row, &mut self.pending).map_err(|reason| SourceError::Value {
                    column: column.name.clone(),
                    reason: reason.into(),
                })?;
            }
            self.rows += 1;
            if self.pending.len() >= SEND_BYTES {
                self.send().await?;
            }
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<Written> {
        self.pending.put_i16(-1);
        self.send().await?;
        let connection = &mut self.connection;
        connection.end_copy().await?;
        if let Some(sql) = &self.from_stage {
            connection.simple(sql).await?;
        }
        connection.simple("COMMIT").await?;
        Ok(Written { rows: self.rows, bytes: connection.written() })
    }
}
