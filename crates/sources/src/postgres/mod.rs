//! PostgreSQL: reads results as Arrow batches, and writes batches to tables.
//!
//! A statement is described first, so that the schema is known and errors have
//! positions in the user's own text; then it runs in binary format, and its rows
//! are decoded in place in the read buffer. A large table is read by several
//! connections that share one snapshot.
//!
//! Every result is read in its own read-only transaction.

mod array_text;
mod assign;
mod catalog;
mod config;
mod connection;
mod copy_in;
mod cursor;
mod decode;
mod encode;
mod files;
mod keep;
mod limit;
mod message;
mod native;
mod number;
mod numeric;
mod oid;
mod parameters;
mod read;
mod rows;
mod split;
mod stage;
mod target;
mod text_form;
mod tuples;
mod types;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use async_trait::async_trait;
use futures::future::join_all;
use futures::{FutureExt, StreamExt};

use self::catalog::Types;
use self::config::Config;
use self::connection::Connection;
use self::message::{Described, DescribedStatement, TextRow};
use self::parameters::Parameter;
use self::read::{ReadRequest, RowFormat, Work};
use self::split::{Parts, PlainSelect};
use self::types::PgType;
use crate::limit::{ConnectionLimits, Idle, Permit, ServerConnections};
use crate::rules::NumericRule;
use crate::{
    Dialect, ReadOptions, Result, Rows, Scan, Source, SourceError, StatementInfo, TableInfo, TableName,
};

pub use self::copy_in::PostgresDestination;
pub use self::cursor::PostgresCursor;
pub use self::tuples::Tuples;

const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
/// Maximum connections kept open between results.
const IDLE_MAX: usize = 4;

/// A PostgreSQL database to read from.
#[derive(Debug)]
pub struct PostgresSource {
    config: Arc<Config>,
    pool: Pool,
    types: Types,
}

/// Idle connections: logged in, and outside of any transaction.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    idle: Arc<Waiting>,
    server: Arc<ServerConnections>,
}

#[derive(Debug, Default)]
struct Waiting(Mutex<Vec<Connection>>);

impl Idle for Waiting {
    fn close_one(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().is_some()
    }
}

/// What a transaction begins with: an idle connection, or a permit for a new one.
enum Turn {
    Idle(Connection),
    New(Permit),
}

impl Pool {
    fn new(server: Arc<ServerConnections>) -> Self {
        let idle = Arc::new(Waiting::default());
        server.add_idle(&idle);
        Self { idle, server }
    }

    fn take(&self) -> Option<Connection> {
        self.idle.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn put(&self, connection: Connection) {
        let mut idle = self.idle.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && !self.server.is_awaited() {
            idle.push(connection);
        }
    }

    /// Waits for the first connection of a query.
    async fn turn(&self) -> Result<Turn> {
        match self.take() {
            Some(connection) => Ok(Turn::Idle(connection)),
            None => Ok(Turn::New(self.server.first().await?)),
        }
    }

    /// One more connection for a query, if one is free.
    fn another_turn(&self) -> Option<Turn> {
        self.take().map(Turn::Idle).or_else(|| self.server.another().map(Turn::New))
    }
}

impl PostgresSource {
    /// Logs in to the server of `uri`, in libpq's syntax:
    /// `postgresql://user:password@host:port/database?sslmode=...`. Missing parts
    /// come from the `PG...` environment variables.
    ///
    /// # Errors
    /// [`SourceError::Location`] when the URI is wrong, [`SourceError::Connect`]
    /// when there is no server, [`SourceError::Login`] when it refuses.
    pub async fn connect(uri: &str) -> Result<Self> {
        Self::connect_within(uri, &ConnectionLimits::unlimited()).await
    }

    /// As [`PostgresSource::connect`], with no more connections than these limits allow.
    ///
    /// # Errors
    /// As [`PostgresSource::connect`]; [`SourceError::Busy`] when no connection becomes free in time,
    /// here and in every read.
    pub async fn connect_within(uri: &str, limits: &ConnectionLimits) -> Result<Self> {
        let config = Arc::new(Config::parse(uri)?);
        let target = config.target();
        let server = target.strip_suffix(&format!("/{}", config.database)).unwrap_or(&target);
        let pool = Pool::new(limits.of(server));
        let source = Self { config, pool, types: Types::default() };
        source.pool.put(source.open(source.pool.server.first().await?).await?);
        Ok(source)
    }

    async fn open(&self, permit: Permit) -> Result<Connection> {
        let mut connection = Connection::open(&self.config).await?;
        connection.hold(permit);
        Ok(connection)
    }

    /// A connection that has run `begin` and, if given, described `sql`.
    async fn begin(&self, begin: &str, sql: Option<&str>) -> Result<(Connection, DescribedStatement)> {
        self.begin_on(self.pool.turn().await?, begin, sql).await
    }

    async fn begin_on(
        &self,
        mut turn: Turn,
        begin: &str,
        sql: Option<&str>,
    ) -> Result<(Connection, DescribedStatement)> {
        loop {
            let (mut connection, was_idle) = match turn {
                Turn::Idle(connection) => (connection, true),
                Turn::New(permit) => (self.open(permit).await?, false),
            };
            match begin_on(&mut connection, begin, sql).await {
                Ok(described) => return Ok((connection, described)),
                // It was closed while it was idle.
                Err(SourceError::Lost { .. }) if was_idle => {
                    turn = match connection.into_permit() {
                        Some(permit) => Turn::New(permit),
                        None => self.pool.turn().await?,
                    };
                }
                Err(e) => {
                    if connection.simple("ROLLBACK").await.is_ok() {
                        self.pool.put(connection);
                    }
                    return Err(e);
                }
            }
        }
    }

    /// Ends the transaction, so that the connection can be used again.
    async fn end(&self, mut connection: Connection) -> Result<()> {
        connection.simple("ROLLBACK").await?;
        self.pool.put(connection);
        Ok(())
    }

    /// What is known of a statement's parameters, whose types have these OIDs.
    async fn parameters(&self, connection: &mut Connection, oids: &[u32]) -> Result<Vec<Parameter>> {
        let described = |&oid: &u32| Described { name: String::new(), oid, modifier: -1 };
        let described: Vec<_> = oids.iter().map(described).collect();
        let kinds = self.types.resolve(connection, &described, NumericRule::String).await?;
        let version = connection.version();
        let parameter = |(&oid, kind): (&u32, PgType)| {
            let element = self.types.element(oid).unwrap_or_default();
            Parameter { kind, element, version }
        };
        Ok(oids.iter().zip(kinds).map(parameter).collect())
    }

    /// Runs `sql` with these values of its parameters, in parts if `select` is given and can be split.
    async fn read(
        &self,
        sql: String,
        row: Option<&RecordBatch>,
        select: Option<PlainSelect>,
        options: &ReadOptions,
    ) -> Result<Rows> {
        let (mut connection, DescribedStatement { columns, parameters }) =
            self.begin(BEGIN, Some(&sql)).await?;
        let values = match row {
            None if parameters.is_empty() => Ok(Vec::new()),
            None => Err(crate::parameters::no_values(parameters.len())),
            Some(row) => {
                let parameters = self.parameters(&mut connection, &parameters).await?;
                parameters::encode(row, &parameters)
            }
        };
        let values = match values {
            Ok(values) => values,
            Err(error) => {
                // The first error is reported.
                let _ = self.end(connection).await;
                return Err(error);
            }
        };
        let kinds = self.types.resolve_for(&mut connection, &columns, options).await?;
        let schema = schema_for(&mut connection, &columns, &kinds, options).await?;
        let mut connections = vec![];
        let mut work = Work::Whole { sql, values };
        let mut rows_estimate = None;
        let streams = options.streams.get();
        if let (Some(select), Work::Whole { sql, .. }) = (select.filter(|_| streams > 1), &work) {
            match split::plan(&mut connection, sql, select, streams).await {
                Ok(None) => {}
                Ok(Some(parts)) => {
                    connections = self.join(&parts, streams - 1).await;
                    rows_estimate = parts.rows_estimate;
                    work = Work::Parts(parts);
                }
                // The statement as a whole may still run.
                Err(e) => {
                    tracing::debug!(error = %e, "the statement can't be split");
                    connection.simple("ROLLBACK").await?;
                    connection.simple(BEGIN).await?;
                }
            }
        }
        connections.push(connection);
        let tuples = Tuples::offer(&columns, options);
        let wanted = ReadRequest {
            work,
            schema: schema.clone(),
            kinds,
            options: options.clone(),
            pool: self.pool.clone(),
        };
        let batches = match &tuples {
            None => read::stream(connections, wanted, RowFormat::Decoded),
            Some(offer) => {
                let taken = offer.taken();
                let read = async move {
                    let form = if taken() { RowFormat::Tuples } else { RowFormat::Decoded };
                    read::stream(connections, wanted, form)
                };
                Box::pin(read.into_stream().flatten())
            }
        };
        Ok(Rows { schema, batches, rows_estimate, tuples })
    }

    /// Up to `others` more connections with the snapshot of `parts`, as far as the limit has some
    /// free. If the server accepts fewer, the result is read with those.
    async fn join(&self, parts: &Parts, others: usize) -> Vec<Connection> {
        let others = others.min(parts.count().saturating_sub(1) as usize);
        let import = format!("{BEGIN}; SET TRANSACTION SNAPSHOT {}", quote_literal(&parts.snapshot));
        let turns = (0..others).map_while(|_| self.pool.another_turn());
        let opened = join_all(turns.map(|turn| self.begin_on(turn, &import, None))).await;
        opened
            .into_iter()
            .filter_map(|opened| match opened {
                Ok((connection, _)) => Some(connection),
                Err(e) => {
                    tracing::warn!(error = %e, "cannot open another connection; reading the result with fewer");
                    None
                }
            })
            .collect()
    }

    /// Runs a control query in its own transaction.
    async fn control(&self, sql: &str) -> Result<Vec<TextRow>> {
        let (mut connection, _) = self.begin(BEGIN, None).await?;
        let rows = connection.simple(sql).await?;
        self.end(connection).await?;
        Ok(rows)
    }
}

async fn begin_on(connection: &mut Connection, begin: &str, sql: Option<&str>) -> Result<DescribedStatement> {
    connection.ask(begin)?;
    if let Some(sql) = sql {
        connection.ask_describe(sql)?;
    }
    connection.send().await?;
    connection.until_ready(|_| Ok(())).await?;
    match sql {
        Some(_) => connection.described().await,
        None => Ok(DescribedStatement::default()),
    }
}

/// The schema of a result, with the server's own types if wanted.
async fn schema_for(
    connection: &mut Connection,
    columns: &[Described],
    kinds: &[PgType],
    options: &ReadOptions,
) -> Result<SchemaRef> {
    let plain = schema(columns, kinds);
    if !options.native_types {
        return Ok(plain);
    }
    let names = native::names(connection, columns, kinds, options).await?;
    Ok(Arc::new(crate::native::with_types(&plain, crate::native::POSTGRES, names)))
}

fn schema(columns: &[Described], kinds: &[PgType]) -> SchemaRef {
    let fields: Vec<_> = columns.iter().zip(kinds).map(|(column, kind)| kind.field(&column.name)).collect();
    Arc::new(Schema::new(fields))
}

/// Converts the server's errors for a missing table to [`SourceError::NoTable`].
fn no_table(name: &TableName) -> impl Fn(SourceError) -> SourceError + '_ {
    move |error| match &error {
        // undefined_table, invalid_schema_name
        SourceError::Sql { code: Some(code), .. } if matches!(&**code, "42P01" | "3F000") => {
            SourceError::NoTable { name: shown(name) }
        }
        _ => error,
    }
}

fn shown(name: &TableName) -> String {
    match &name.schema {
        Some(schema) => format!("{schema}.{}", name.name),
        None => name.name.clone(),
    }
}

fn malformed(connection: &Connection) -> SourceError {
    connection.lost(io::Error::new(io::ErrorKind::InvalidData, "unexpected contents of the catalog"), 0)
}

/// The values of a row without NULL.
fn values<const N: usize>(row: TextRow) -> Option<[String; N]> {
    row.into_iter().collect::<Option<Vec<_>>>()?.try_into().ok()
}

fn quote_identifier(name: &str) -> String {
    postgres_protocol::escape::escape_identifier(name)
}

fn quote_literal(text: &str) -> String {
    postgres_protocol::escape::escape_literal(text)
}

pub(crate) fn quote_table(name: &TableName) -> String {
    match &name.schema {
        Some(schema) => format!("{}.{}", quote_identifier(schema), quote_identifier(&name.name)),
        None => quote_identifier(&name.name),
    }
}

#[async_trait]
impl Source for PostgresSource {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    async fn query(&self, sql: &str, options: &ReadOptions) -> Result<Rows> {
        self.read(sql.to_owned(), None, PlainSelect::parse(sql), options).await
    }

    async fn execute(&self, sql: &str, parameters: &RecordBatch, options: &ReadOptions) -> Result<Rows> {
        self.read(sql.to_owned(), Some(parameters), None, options).await
    }

    async fn describe(&self, sql: &str, options: &ReadOptions) -> Result<StatementInfo> {
        let (mut connection, described) = self.begin(BEGIN, Some(sql)).await?;
        let kinds = self.types.resolve_for(&mut connection, &described.columns, options).await?;
        let columns = schema_for(&mut connection, &described.columns, &kinds, options).await?;
        let parameters = self.parameters(&mut connection, &described.parameters).await?;
        self.end(connection).await?;
        Ok(StatementInfo {
            columns,
            parameters: crate::parameters::fields(parameters.iter().map(|one| one.kind.data_type())),
        })
    }

    async fn scan(&self, scan: &Scan, options: &ReadOptions) -> Result<Rows> {
        let relation = quote_table(&scan.table);
        let columns = match &scan.columns {
            None => "*".to_owned(),
            Some(names) => names.iter().map(|name| quote_identifier(name)).collect::<Vec<_>>().join(", "),
        };
        let select = PlainSelect {
            head: format!("SELECT {columns} FROM {relation}"),
            relation,
            filter: scan.filter.clone(),
        };
        let whole = select.sql(None);
        let read = match scan.limit {
            None => self.read(whole, None, Some(select), options).await,
            Some(limit) => self.read(format!("{whole} LIMIT {limit}"), None, None, options).await,
        };
        read.map_err(no_table(&scan.table))
    }

    async fn table(&self, name: &TableName, options: &ReadOptions) -> Result<TableInfo> {
        let relation = quote_table(name);
        let sql = format!("SELECT * FROM {relation}");
        let (mut connection, DescribedStatement { columns, .. }) =
            self.begin(BEGIN, Some(&sql)).await.map_err(no_table(name))?;
        let kinds = self.types.resolve_for(&mut connection, &columns, options).await?;
        let comparisons = self.types.comparisons(&columns, &kinds, options.infinite, &connection);
        let rows = connection
            .simple(&format!(
                "SELECT reltuples::int8 FROM pg_catalog.pg_class \
                 WHERE oid = pg_catalog.to_regclass({}) AND reltuples >= 0 AND relkind IN ('r', 'm')",
                quote_literal(&relation)
            ))
            .await?;
        self.end(connection).await?;
        let rows_estimate = rows.first().and_then(|row| row.first()?.as_deref()?.parse().ok());
        Ok(TableInfo { schema: schema(&columns, &kinds), comparisons, rows_estimate })
    }

    async fn tables(&self) -> Result<Vec<TableName>> {
        let rows = self
            .control(
                "SELECT relname FROM pg_catalog.pg_class WHERE relkind IN ('r', 'p', 'v', 'm', 'f') \
                 AND NOT relispartition AND relnamespace = pg_catalog.current_schema()::regnamespace \
                 AND pg_catalog.has_table_privilege(oid, 'SELECT') ORDER BY 1",
            )
            .await?;
        let names = rows.into_iter().filter_map(|row| row.into_iter().next()?);
        Ok(names.map(|name| TableName { schema: None, name }).collect())
    }
}
