//! Writes batches to a table with binary COPY, in one transaction.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;
use bytes::{BufMut, BytesMut};
use futures::FutureExt;

use super::assign::{WriteMethod, way};
use super::catalog::Types;
use super::config::Config;
use super::connection::Connection;
use super::encode::{ColumnType, Encoder, NUL};
use super::limit::Limit;
use super::message::{Described, ServerError};
use super::oid;
use super::quote_identifier;
use super::stage::{self, Stage};
use super::target::Target;
use super::text_form::TextForm;
use super::tuples::Tuples;
use super::types::PgType;
use crate::columns::check_names;
use crate::tables::null_in_key;
use crate::{Destination, NumericRule, Result, SourceError, TableWrite, Written};

/// Rows are sent once they have this many bytes.
const SEND_BYTES: usize = 128 << 10;
/// Maximum bytes of one message. The server copies a message before it reads the rows in it, so that large ones leave
/// its processor's cache (decision 0020).
const MESSAGE_BYTES_MAX: usize = 32 << 10;
/// The header of binary COPY: signature, flags, length of the extension.
const COPY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// The hint for a value that only the server can check.
pub(super) const CORRECT: &str = "correct it in the query, or choose another type for the column";

/// A table of PostgreSQL as a destination.
///
/// Everything happens in one transaction: unless it is finished, nothing is left,
/// not even the table. A table that is replaced can be read until the end, even by
/// this copy. Then it is locked for as long as it takes to rename the new table.
///
/// Each value is written unchanged, or refused with its row and column. Unsigned
/// integers get the next wider type, times without a zone are UTC if the column
/// has a zone, and text goes into any column that the server can parse it for.
#[derive(Debug)]
pub struct PostgresDestination {
    connection: Connection,
    target: Target,
    columns: Vec<Column>,
    /// Rows to be sent.
    pending: BytesMut,
    route: Route,
    /// Whether rows come as tuples of COPY.
    takes_tuples: bool,
    rows: u64,
    /// Rows before the present COPY.
    rows_before: u64,
}

/// Where the rows of COPY go.
#[derive(Debug)]
enum Route {
    /// To the table, with texts parsed here. The first text that only the server can parse sends the rows from
    /// there on to this stage, if there is one.
    Table(Option<Stage>),
    /// To a staging table, which is moved to the table at the end.
    Stage(Stage),
}

#[derive(Debug)]
struct Column {
    name: String,
    from: DataType,
    /// The type of the table's column.
    to: ColumnType,
    /// How texts get to a column of another type.
    texts: Option<Texts>,
    described: Described,
    is_key: bool,
}

#[derive(Debug)]
struct Texts {
    /// The form of those that are parsed here.
    form: Option<TextForm>,
    /// The type of the staging table's column.
    staged: ColumnType,
}

impl PostgresDestination {
    /// Logs in, starts the transaction, and finds or creates the table as the mode requires.
    ///
    /// # Errors
    /// As [`PostgresSource::connect`](super::PostgresSource::connect);
    /// [`SourceError::Value`] for a column that the table lacks or whose type does
    /// not fit, [`SourceError::Unsupported`] for one that no table can have,
    /// [`SourceError::DuplicateColumn`] for two of the same name; [`SourceError::NoUniqueIndex`] for an upsert
    /// into a table that has none on the key.
    pub async fn create(uri: &str, write: &TableWrite, schema: &SchemaRef) -> Result<Self> {
        let config = Arc::new(Config::parse(uri)?);
        if schema.fields().is_empty() {
            return Err(SourceError::Unsupported("rows without columns in a table".into()));
        }
        check_names(schema)?;
        write.check(schema)?;
        let mut connection = Connection::open(&config).await?;
        // A time in text without a zone is in UTC, like other values.
        connection.simple("BEGIN; SET LOCAL TimeZone = 'UTC'").await?;
        let target = Target::open(&mut connection, write, schema).await?;
        let (columns, stage) = assign(&mut connection, &target, schema, &write.key).await?;
        let only_server = |column: &Column| column.texts.as_ref().is_some_and(|texts| texts.form.is_none());
        let route = match stage {
            Some(stage) if !write.key.is_empty() || target.truncates() || columns.iter().any(only_server) => {
                Route::Stage(stage)
            }
            reserve => Route::Table(reserve),
        };
        let pending = BytesMut::with_capacity(2 * SEND_BYTES);
        let mut made = Self {
            connection,
            target,
            columns,
            pending,
            route,
            takes_tuples: false,
            rows: 0,
            rows_before: 0,
        };
        made.begin().await?;
        Ok(made)
    }

    /// Begins the COPY.
    async fn begin(&mut self) -> Result<()> {
        let connection = &mut self.connection;
        let into = match &self.route {
            Route::Stage(stage) => stage.open(connection).await?,
            Route::Table(_) => {
                let names: Vec<_> =
                    self.columns.iter().map(|column| quote_identifier(&column.name)).collect();
                format!("{} ({})", self.target.name, names.join(", "))
            }
        };
        connection.ask(&format!("COPY {into} FROM STDIN (FORMAT binary)"))?;
        connection.send().await?;
        loop {
            let frame = connection.frame().await.map_err(|e| connection.lost(e, self.rows))?;
            match frame.tag {
                b'G' => break,
                b'E' => return Err(connection.server_error(&frame.body, self.rows)),
                _ => {}
            }
        }
        self.rows_before = self.rows;
        self.pending.put_slice(COPY_HEADER);
        Ok(())
    }

    /// The columns of a batch as they are written. From the first text that only the server can parse, rows go to
    /// the stage.
    async fn parsed(&mut self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        if matches!(self.route, Route::Table(Some(_))) {
            let parse = |(column, array): (&Column, &ArrayRef)| match &column.texts {
                Some(texts) => texts.form?.parse(array),
                None => Some(array.clone()),
            };
            let parsed: Option<Vec<_>> = self.columns.iter().zip(batch.columns()).map(parse).collect();
            if let Some(parsed) = parsed {
                return Ok(parsed);
            }
            self.end().await?;
            if let Route::Table(Some(stage)) = std::mem::replace(&mut self.route, Route::Table(None)) {
                self.route = Route::Stage(stage);
            }
            self.begin().await?;
        }
        Ok(batch.columns().to_vec())
    }

    /// Sends the pending rows.
    async fn send(&mut self) -> Result<()> {
        let mut pending = std::mem::take(&mut self.pending);
        let sent = self.send_bytes(&pending).await;
        pending.clear();
        self.pending = pending;
        sent
    }

    async fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let result = self.connection.send_copy_data(bytes, MESSAGE_BYTES_MAX).await;
        if let Err(e) = result {
            // The server may have sent the reason before it closed the connection.
            return Err(match self.said().await {
                Some(error) => error,
                None => self.connection.lost(e, self.rows),
            });
        }
        // A refused row is reported before all rows are sent.
        match self.said().now_or_never().flatten() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The server's error, if it sends one.
    async fn said(&mut self) -> Option<SourceError> {
        loop {
            let frame = self.connection.frame().await.ok()?;
            if frame.tag == b'E' {
                return Some(self.refusal(&frame.body));
            }
        }
    }

    /// Ends the COPY.
    async fn end(&mut self) -> Result<()> {
        self.pending.put_i16(-1);
        self.send().await?;
        self.connection.send_copy_done().await?;
        let mut failed = None;
        loop {
            let frame = match self.connection.frame().await {
                Ok(frame) => frame,
                Err(e) => return Err(failed.unwrap_or_else(|| self.connection.lost(e, self.rows))),
            };
            match frame.tag {
                b'Z' => return failed.map_or(Ok(()), Err),
                b'E' => {
                    failed.get_or_insert(self.refusal(&frame.body));
                }
                _ => {}
            }
        }
    }

    /// Converts the server's error about a row, with the row's number.
    fn refusal(&mut self, body: &[u8]) -> SourceError {
        let relation = match &self.route {
            Route::Stage(_) => stage::RELATION,
            Route::Table(_) => &self.target.relation,
        };
        let context = ServerError::parse(body).ok().and_then(|error| error.context).unwrap_or_default();
        let place = place(&context, relation).map(|(row, column)| (self.rows_before + row, column));
        match (self.connection.server_error(body, self.rows), place) {
            (SourceError::Sql { reason, hint, code, .. }, Some((row, Some(column)))) => {
                // untranslatable_character: a NUL in JSON, as `\u0000`
                let hint = if code.as_deref() == Some("22P05") { Some(NUL.into()) } else { hint };
                let hint = hint.or_else(|| Some(CORRECT.into()));
                SourceError::Unfit { row, column: column.to_owned(), reason, hint }
            }
            (SourceError::Sql { reason, position, code, hint }, Some((row, None))) => {
                SourceError::Sql { reason: format!("row {row}: {reason}"), position, code, hint }
            }
            (error, _) => error,
        }
    }
}

/// The row, and the column if there is one, in the context of an error, such as
/// `COPY t, line 3, column b` in the server's language.
fn place<'a>(context: &'a str, relation: &str) -> Option<(u64, Option<&'a str>)> {
    let copy = context.lines().find_map(|line| line.strip_prefix("COPY ")?.strip_prefix(relation))?;
    let mut parts = copy.strip_prefix(", ")?.splitn(2, ", ");
    let row = parts.next()?.rsplit(' ').next()?.parse().ok()?;
    Some((row, parts.next().and_then(|part| Some(part.split_once(' ')?.1))))
}

/// How each column of `schema` is written to the table, with a stage if any rows may have to pass through one.
async fn assign(
    connection: &mut Connection,
    target: &Target,
    schema: &SchemaRef,
    key: &[String],
) -> Result<(Vec<Column>, Option<Stage>)> {
    let types = Types::default();
    let described: Vec<_> = target.columns.iter().map(|column| column.described.clone()).collect();
    let kinds = types.resolve(connection, &described, NumericRule::String).await?;
    let version = connection.version();
    let mut columns = Vec::with_capacity(schema.fields().len());
    let mut stage = Stage::new(schema.fields().iter().map(|field| field.name().as_str()), key);
    for field in schema.fields() {
        let (name, from) = (field.name().clone(), field.data_type().clone());
        let fail = |reason: String| SourceError::Value { column: name.clone(), reason };
        let shown = &target.shown;
        let found = target.columns.iter().zip(&kinds).find(|(column, _)| column.described.name == name);
        let Some((column, kind)) = found else {
            let has: Vec<_> = target.columns.iter().map(|column| &*column.described.name).collect();
            return Err(fail(format!("table `{shown}` has no such column; it has {}", has.join(", "))));
        };
        let element = types.element(column.described.oid).unwrap_or(0);
        let to = ColumnType { kind: kind.clone(), element, limit: column.limit, version };
        let texts = match way(&from, kind) {
            Some(WriteMethod::Binary) => {
                stage.add(column);
                None
            }
            Some(WriteMethod::Text) => {
                let is_list = from.is_nested();
                stage.add_text(column, is_list);
                let kind = if is_list { PgType::List(Box::new(PgType::Utf8)) } else { PgType::Utf8 };
                let staged = ColumnType { kind, element: oid::TEXT, limit: Limit::None, version };
                let form = TextForm::of(&to.kind, to.limit).filter(|_| !is_list);
                Some(Texts { form, staged })
            }
            None => {
                let type_name = &column.type_name.with_modifier;
                return Err(fail(format!(
                    "{from} can't be written to `{shown}`, where its type is {type_name}; cast it in the query"
                )));
            }
        };
        let is_key = key.contains(&name);
        columns.push(Column { name, from, to, texts, described: column.described.clone(), is_key });
    }
    let is_needed = stage.is_needed() || target.truncates();
    Ok((columns, Some(stage).filter(|_| is_needed)))
}

impl Column {
    fn encoder(&self, array: &ArrayRef, route: &Route, rows_before: u64) -> Result<Encoder> {
        let to = match (&self.texts, route) {
            (Some(texts), Route::Stage(_)) => &texts.staged,
            _ => &self.to,
        };
        Encoder::new(array, to).map_err(|error| {
            // A cast's error does not name the row: it is the first one that can't be cast alone.
            let is_unfit = |row: &usize| Encoder::new(&array.slice(*row, 1), to).is_err();
            let row = (0..array.len()).find(is_unfit).unwrap_or(0);
            SourceError::Unfit {
                row: rows_before + row as u64 + 1,
                column: self.name.clone(),
                reason: error.to_string(),
                hint: None,
            }
        })
    }
}

#[async_trait]
impl Destination for PostgresDestination {
    fn take_tuples(&mut self, offer: Tuples) -> bool {
        self.takes_tuples = matches!(self.route, Route::Table(None))
            && offer.take_for(self.columns.iter().map(|column| &column.described));
        self.takes_tuples
    }

    fn notices(&self) -> Vec<String> {
        self.target.notices.clone()
    }

    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        if self.takes_tuples {
            // The header of COPY.
            if !self.pending.is_empty() {
                self.send().await?;
            }
            let tuples = batch.column(0).as_binary::<i32>();
            let (first, last) = (tuples.offsets()[0] as usize, tuples.offsets()[tuples.len()] as usize);
            self.send_bytes(&tuples.value_data()[first..last]).await?;
            self.rows += tuples.len() as u64;
            return Ok(());
        }
        let mut encoders = Vec::with_capacity(self.columns.len());
        if batch.num_columns() != self.columns.len() {
            let reason =
                format!("a batch of {} columns; expected {}", batch.num_columns(), self.columns.len());
            return Err(SourceError::Unsupported(reason));
        }
        for (column, array) in self.columns.iter().zip(batch.columns()) {
            if *array.data_type() != column.from {
                let reason = format!("type {}; expected {}", array.data_type(), column.from);
                return Err(SourceError::Value { column: column.name.clone(), reason });
            }
        }
        let arrays = self.parsed(&batch).await?;
        for (column, array) in self.columns.iter().zip(&arrays) {
            encoders.push(column.encoder(array, &self.route, self.rows)?);
        }
        let is_staged = matches!(self.route, Route::Stage(_));
        // The format counts columns in sixteen bits, and no table has more than 1600.
        let count = encoders.len() as u16 + u16::from(is_staged);
        for row in 0..batch.num_rows() {
            let number = self.rows + 1;
            self.pending.put_u16(count);
            if is_staged {
                self.pending.put_i32(8);
                self.pending.put_u64(number);
            }
            for (encoder, column) in encoders.iter().zip(&self.columns) {
                if column.is_key && encoder.is_null(row) {
                    return Err(null_in_key(number, &column.name));
                }
                encoder.put(row, &mut self.pending).map_err(|unfit| SourceError::Unfit {
                    row: number,
                    column: column.name.clone(),
                    reason: unfit.reason,
                    hint: Some(unfit.hint.into()),
                })?;
            }
            self.rows = number;
            if self.pending.len() >= SEND_BYTES {
                self.send().await?;
            }
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<Written> {
        self.end().await?;
        if let Route::Stage(stage) = &self.route {
            stage.close(&mut self.connection, &self.target).await?;
        }
        self.target.swap(&mut self.connection).await?;
        self.connection.simple("COMMIT").await?;
        Ok(Written { rows: self.rows, bytes: self.connection.written() })
    }
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn rows_are_found_in_the_context_of_errors() {
        let check = |context: &str, relation: &str, expected: Option<(u64, Option<&str>)>| {
            assert_eq!(place(context, relation), expected, "{context}");
        };
        check("COPY t, line 3, column b", "t", Some((3, Some("b"))));
        check("COPY t, line 12", "t", Some((12, None)));
        check("COPY t, Zeile 3, Spalte b, c", "t", Some((3, Some("b, c"))));
        check("PL/pgSQL function f() line 1 at RAISE\nCOPY a, line 9, line 7", "a, line 9", Some((7, None)));
        check("PL/pgSQL function f() line 1 at RAISE", "f", None);
        check("COPY t, line x", "t", None);
        check("COPY t", "t", None);
    }
}
