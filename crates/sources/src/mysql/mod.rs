//! MySQL and MariaDB.
//!
//! [`MySqlDestination`] writes tables. [`MySqlSource`] prepares each statement and runs it in a read-only transaction
//! on its own connection. It converts rows of the binary protocol to Arrow as they
//! arrive, and holds only the batch being built.
//!
//! The URI controls TLS: `?require_ssl=true` requires it, `?ssl_ca=FILE` trusts a
//! private CA, and `&verify_ca=false&verify_identity=false` turns verification off.
//!
//! A result comes over one connection, whatever [`ReadOptions::streams`] says:
//! connections can't share a snapshot, so parts of a table that are read in
//! parallel could be inconsistent.
//!
//! Cursors measure how drivers with a fetch size perform. The driver has no cursors, so they use our own
//! protocol code, which supports logins by password (`mysql_native_password`, `caching_sha2_password`) over
//! TCP, TLS or a Unix socket, without compression.
//!
//! # Types
//! | server | Arrow |
//! |---|---|
//! | `tinyint` (`bool` too), `smallint`, `mediumint`/`int`, `bigint` | `Int8`, `Int16`, `Int32`, `Int64`; `unsigned`: `UInt8` ... |
//! | `bit(n)` | `UInt64` |
//! | `year` | `Int16` |
//! | `float`, `double` | `Float32`, `Float64` |
//! | `decimal(p, s)` | `Decimal128(p, s)`, above 38 digits `Decimal256(p, s)` |
//! | `date` | `Date32` |
//! | `datetime` | `Timestamp(us)` without a zone |
//! | `timestamp` | `Timestamp(us, UTC)` |
//! | `time` | `Duration(us)`: it is a span of -838 to 838 hours, not a time of day |
//! | `char`, `varchar`, `text`, `enum`, `set` | `Utf8` |
//! | `json` | `Utf8` as `arrow.json`; MariaDB's `json` is an alias of `longtext` and becomes plain `Utf8` |
//! | `binary`, `varbinary`, `blob`, anything with collation `binary` | `Binary` |
//! | `geometry` | `Binary`: four bytes of SRID, then WKB |
//! | `NULL` without a type | `Null` |
//!
//! `0000-00-00` and other invalid dates are errors, which name the cast that reads
//! them. They never become NULL silently.

mod assign;
mod columns;
mod compared;
mod cursor;
mod destination;
mod errors;
mod estimate;
mod keep;
mod kill;
mod load;
mod native;
mod option_file;
mod parameters;
mod parse;
mod raw;
mod reader;
mod target;
mod values;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_schema::DataType;
use async_trait::async_trait;
use futures::TryStreamExt;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};
use tokio::time::timeout;

use self::kill::ConnectionLock;
use self::option_file::Defaults;
use self::raw::ProtocolConnection;
use self::reader::Connection;
use crate::limit::{ConnectionLimits, ServerConnections};
use crate::location;
use crate::select::{self, rows_without_columns};
use crate::{
    Dialect, ReadOptions, Result, Rows, Scan, Source, SourceError, StatementInfo, TableInfo, TableName,
};

pub use self::cursor::MySqlCursor;
pub use self::destination::MySqlDestination;

/// How long the server may take to accept a connection and a login.
const CONNECT_MAX: Duration = Duration::from_secs(30);

/// Brings every connection into a known state: `timestamp` in UTC, one snapshot
/// for all reads, and no writes. The session is read-only as well as the
/// transaction, because statements like `DROP` end the transaction. The server
/// disconnects a client that does not read for `net_write_timeout`, by default one
/// minute; a consumer may need longer for a batch.
const BEGIN: &str = "SET time_zone = '+00:00', net_write_timeout = 3600; \
     SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; \
     START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";

/// A MySQL or MariaDB server, and the login to it.
pub struct MySqlSource {
    opts: Opts,
    /// Files of certificate authorities that TLS trusts instead of the default ones.
    authorities: Vec<PathBuf>,
    /// `host:port`.
    server: Arc<str>,
    /// `user@host:port/database`.
    login: String,
    /// The connection limit of the server. Cursors don't count.
    connections: Arc<ServerConnections>,
    /// An idle connection for the next cursor.
    idle: Mutex<Option<ProtocolConnection>>,
}

impl MySqlSource {
    /// Connects once, to check the server, the login and the database.
    ///
    /// `uri` is `mysql://user:password@host:port/database`, with the driver's
    /// options after a `?`.
    ///
    /// # Errors
    /// [`SourceError::Location`] for an invalid URI, [`SourceError::Connect`] when
    /// the server does not answer, [`SourceError::Login`] when the server refuses
    /// user, password or database.
    pub async fn connect(uri: &str) -> Result<Self> {
        Self::connect_within(uri, &ConnectionLimits::unlimited()).await
    }

    /// As [`MySqlSource::connect`], with no more connections than these limits allow.
    ///
    /// # Errors
    /// As [`MySqlSource::connect`]; [`SourceError::Busy`] when no connection becomes free in time,
    /// here and in every read.
    pub async fn connect_within(uri: &str, limits: &ConnectionLimits) -> Result<Self> {
        let (opts, authorities) = options(uri)?;
        let server = format!("{}:{}", opts.ip_or_hostname(), opts.tcp_port());
        let user = opts.user().map(|user| format!("{user}@")).unwrap_or_default();
        let database = opts.db_name().map(|database| format!("/{database}")).unwrap_or_default();
        let login = format!("{user}{server}{database}");
        let connections = limits.of(&server);
        let server = server.into();
        let source = Self { opts, authorities, server, login, connections, idle: Mutex::default() };
        source.open().await?.close().await;
        Ok(source)
    }

    /// A connection in a read-only transaction.
    async fn open(&self) -> Result<Connection> {
        let permit = self.connections.first().await?;
        let mark = ConnectionLock::new();
        let begin = async {
            let mut conn = Conn::new(self.opts.clone()).await?;
            let taken = conn.query_drop(mark.take()).await;
            let mark = mark.taken(taken)?;
            conn.query_drop(BEGIN).await?;
            Ok((conn, mark))
        };
        let (conn, mark) = self.in_time(begin).await?;
        Ok(Connection::new(conn, self.opts.clone(), mark, permit))
    }

    /// Runs `connect` for at most [`CONNECT_MAX`].
    async fn in_time<T>(&self, connect: impl Future<Output = Result<T, mysql_async::Error>>) -> Result<T> {
        match timeout(CONNECT_MAX, connect).await {
            Ok(Ok(connected)) => Ok(connected),
            Ok(Err(error)) => Err(errors::connect(&self.server, &self.login, error)),
            Err(_) => Err(SourceError::Connect {
                target: self.server.to_string(),
                reason: format!("no answer within {} s", CONNECT_MAX.as_secs()),
                source: None,
            }),
        }
    }

    /// The server's estimate of a table's rows; `None` for a view.
    async fn rows_estimate(&self, connection: &mut Connection, table: &TableName) -> Result<Option<u64>> {
        const SQL: &str = "SELECT CAST(table_rows AS UNSIGNED) FROM information_schema.tables \
             WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?";
        let estimate = async {
            let parameters = (table.schema.as_deref(), &table.name);
            connection.get()?.exec_first::<Option<u64>, _, _>(SQL, parameters).await
        };
        Ok(estimate.await.map_err(|error| errors::statement(&self.server, SQL, 0, error))?.flatten())
    }
}

/// Parses a URI into the driver's options, with three changes: what the URI lacks comes from MySQL's own defaults,
/// it accepts `ssl_ca`, which the driver lacks, and by default it does not ask the server for its socket path,
/// which may belong to another host or container.
fn options(uri: &str) -> Result<(Opts, Vec<PathBuf>)> {
    options_by(uri, &|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

fn options_by(uri: &str, env: &impl Fn(&str) -> Option<String>) -> Result<(Opts, Vec<PathBuf>)> {
    let refused = |reason: String| SourceError::Location { given: location::redact(uri), reason };
    let mut url = url::Url::parse(uri).map_err(|error| refused(error.to_string()))?;
    let defaults = Defaults::read(env).map_err(refused)?;
    let (has_host, has_port) = (url.host_str().is_some_and(|host| !host.is_empty()), url.port().is_some());
    let has_database = !url.path().trim_start_matches('/').is_empty();
    if !has_host {
        let host = defaults.host.as_deref().unwrap_or("localhost");
        url.set_host(Some(host)).map_err(|error| refused(error.to_string()))?;
    }
    let (ours, theirs): (Vec<_>, Vec<_>) =
        url.query_pairs().into_owned().partition(|(key, _)| key == "ssl_ca");
    let prefer_socket = theirs.iter().any(|(key, value)| key == "prefer_socket" && value == "true");
    url.set_query(None);
    if !theirs.is_empty() {
        url.query_pairs_mut().extend_pairs(theirs);
    }
    let opts = Opts::from_url(url.as_str()).map_err(|error| refused(error.to_string()))?;
    let mut authorities: Vec<_> = ours.into_iter().map(|(_, path)| PathBuf::from(path)).collect();
    // Otherwise the file would change whether TLS is used at all.
    if authorities.is_empty() && opts.ssl_opts().is_some() {
        authorities.extend(defaults.ssl_ca);
    }
    let tls = match (opts.ssl_opts().cloned(), authorities.is_empty()) {
        (tls, true) => tls,
        (tls, false) => {
            let roots = authorities.iter().cloned().map(Into::into).collect();
            Some(tls.unwrap_or_default().with_root_certs(roots))
        }
    };
    let (has_user, has_password, has_socket) =
        (opts.user().is_some(), opts.pass().is_some(), opts.socket().is_some());
    let mut builder = OptsBuilder::from_opts(opts).ssl_opts(tls).prefer_socket(prefer_socket);
    if !has_user {
        builder = builder.user(defaults.user);
    }
    if !has_password {
        builder = builder.pass(defaults.password);
    }
    if let (false, Some(port)) = (has_port, defaults.port) {
        builder = builder.tcp_port(port);
    }
    // Without a host, the server is on this one.
    if !has_host && !has_socket && defaults.host.is_none() {
        builder = builder.socket(defaults.socket);
    }
    if !has_database && defaults.database.is_some() {
        builder = builder.db_name(defaults.database);
    }
    Ok((builder.into(), authorities))
}

impl fmt::Debug for MySqlSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlSource").field("login", &self.login).finish_non_exhaustive()
    }
}

#[async_trait]
impl Source for MySqlSource {
    fn dialect(&self) -> Dialect {
        Dialect::MySql
    }

    async fn query(&self, sql: &str, options: &ReadOptions) -> Result<Rows> {
        reader::run(self.open().await?, self.server.clone(), sql, None, None, options).await
    }

    async fn execute(&self, sql: &str, parameters: &RecordBatch, options: &ReadOptions) -> Result<Rows> {
        reader::run(self.open().await?, self.server.clone(), sql, Some(parameters), None, options).await
    }

    async fn describe(&self, sql: &str, options: &ReadOptions) -> Result<StatementInfo> {
        let mut connection = self.open().await?;
        let described = async {
            let statement = connection.get()?.prep(sql).await?;
            let natives = match options.native_types {
                true => native::names(connection.get()?, &statement.columns()).await?,
                false => vec![None; statement.columns().len()],
            };
            Ok((statement.columns().to_vec(), natives, usize::from(statement.num_params())))
        };
        let described = described.await;
        connection.close().await;
        let (columns, natives, parameters) =
            described.map_err(|error| errors::beginning(&self.server, sql, None, error))?;
        if columns.is_empty() {
            return Err(SourceError::Unsupported("a statement that returns no rows".into()));
        }
        // The server does not know their types.
        let parameters = crate::parameters::fields(vec![DataType::Null; parameters]);
        Ok(StatementInfo { columns: reader::schema(&columns, natives)?, parameters })
    }

    async fn scan(&self, scan: &Scan, options: &ReadOptions) -> Result<Rows> {
        let sql = select::statement(scan);
        let mut connection = self.open().await?;
        let estimate = match scan.filter {
            None => self.rows_estimate(&mut connection, &scan.table).await?,
            Some(_) => None,
        };
        let mut rows =
            reader::run(connection, self.server.clone(), &sql, None, Some(&scan.table.name), options).await?;
        if scan.columns.as_ref().is_some_and(Vec::is_empty) {
            let count = rows.batches.try_next().await?;
            let count = count.as_ref().and_then(|batch| batch.column(0).as_primitive_opt::<Int64Type>());
            let count =
                count.and_then(|count| u64::try_from(*count.values().first()?).ok()).ok_or_else(|| {
                    SourceError::Malformed {
                        target: self.server.to_string(),
                        reason: "the count is not a number".into(),
                    }
                })?;
            // Read up to the end of the result, so that the connection is closed cleanly.
            rows.batches.try_next().await?;
            return Ok(rows_without_columns(count, options.batch_rows));
        }
        rows.rows_estimate = match (estimate, scan.limit) {
            (Some(estimate), Some(limit)) => Some(estimate.min(limit)),
            (estimate, _) => estimate,
        };
        Ok(rows)
    }

    async fn table(&self, name: &TableName, _: &ReadOptions) -> Result<TableInfo> {
        let sql = format!("SELECT * FROM {}", select::table(name));
        let mut connection = self.open().await?;
        let described = async {
            let statement = connection.get()?.prep(sql.as_str()).await?;
            Ok(statement.columns().to_vec())
        };
        let described = described
            .await
            .map_err(|error| errors::beginning(&self.server, &sql, Some(&name.name), error))?;
        let rows_estimate = self.rows_estimate(&mut connection, name).await?;
        let schema = reader::schema(&described, vec![None; described.len()])?;
        let comparisons = compared::comparisons(&mut connection, &self.server, name, &schema).await?;
        connection.close().await;
        Ok(TableInfo { schema, comparisons, rows_estimate })
    }

    async fn tables(&self) -> Result<Vec<TableName>> {
        const SQL: &str = "SELECT table_name FROM information_schema.tables \
             WHERE table_schema = DATABASE() ORDER BY table_name";
        let mut connection = self.open().await?;
        let names = async { connection.get()?.query::<String, _>(SQL).await };
        let names = names.await.map_err(|error| errors::statement(&self.server, SQL, 0, error))?;
        connection.close().await;
        Ok(names.into_iter().map(|name| TableName { schema: None, name }).collect())
    }
}
