//! Reads databases as streams of Arrow batches, and writes batches to files and tables.
//!
//! A [`Source`] answers SQL with [`Rows`]: a schema and a stream of record
//! batches, bounded in bytes. A [`Destination`] writes batches to a file, a stream
//! or a table; a file or table is complete or not written at all. [`Location`] is
//! a location as a user types it, parsed.
//!
//! This crate has no SQL engine: files are read by the engine's own scanners
//! (crate `lightship-engine`), so only their writers are here.

pub mod adbc;
mod bulk;
mod cancel;
pub mod columns;
mod common;
mod condition;
mod cursor;
mod decimal;
pub mod decoded;
mod error;
pub mod file_options;
mod identity;
pub mod limit;
pub mod location;
pub mod mysql;
mod native;
pub mod objects;
mod open;
mod parameters;
pub mod postgres;
mod rules;
mod select;
pub mod sqlite;
mod tables;
mod tls;
mod unfit;
pub mod writers;

use std::fmt;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::str::FromStr;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use futures::Stream;

pub use cancel::cancels_sent;
pub use common::{common_field, common_metadata, common_type};
pub use condition::{Comparable, Comparison, Condition, Literal, Operator};
pub use cursor::{Cursor, Cursors, Estimated, Fetched};
pub use error::{Result, SourceError};
pub use identity::identity;
pub use location::Location;
pub use open::open;
pub use postgres::Tuples;
pub use rules::{InfiniteRule, NumericRule};
pub use tables::{TableWrite, open_table};

/// Batches of one result, all with the same schema, in the order of the source.
pub type BatchStream = Pin<Box<dyn Stream<Item = Result<RecordBatch>> + Send>>;

/// The result of a query: its schema and a stream of its rows.
pub struct Rows {
    /// Schema of every batch.
    pub schema: SchemaRef,
    /// The batches. Dropping the stream stops the work at the source.
    pub batches: BatchStream,
    /// The source's estimate of the rows, if it has one without counting.
    pub rows_estimate: Option<u64>,
    /// The offer to deliver the rows undecoded. A destination must accept it before it reads the first batch.
    pub tuples: Option<Tuples>,
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows")
            .field("schema", &self.schema)
            .field("rows_estimate", &self.rows_estimate)
            .finish_non_exhaustive()
    }
}

/// How to read from a source. Every field has a default that suits most results.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// Maximum rows in a batch. A higher value means fewer, larger batches, and more memory.
    pub batch_rows: usize,
    /// A batch is closed once its columns hold this many bytes, however few rows it has.
    pub batch_bytes: usize,
    /// A row with more bytes than this is an error. Up to four copies of a row are in memory at once.
    pub row_bytes_max: usize,
    /// Maximum connections for one result, if the source can be split.
    /// Each costs a backend of the database and one open batch.
    pub streams: NonZeroUsize,
    /// How to read numbers of arbitrary precision.
    pub numeric: NumericRule,
    /// How to read infinite and not-a-number values that the Arrow type can't hold.
    pub infinite: InfiniteRule,
    /// Whether the source may offer undecoded rows ([`Rows::tuples`]). If it does, it reads no rows before
    /// the first batch is requested.
    pub tuples: bool,
    /// Whether the metadata of fields names the source's own types, such as `varchar(20)`, for a new table in a database
    /// of the same kind.
    pub native_types: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self {
            batch_rows: 8192,
            batch_bytes: 4 << 20,
            row_bytes_max: 256 << 20,
            streams: cores.min(NonZeroUsize::new(4).unwrap_or(NonZeroUsize::MIN)),
            numeric: NumericRule::RESULT,
            infinite: InfiniteRule::default(),
            tuples: false,
            native_types: false,
        }
    }
}

/// The SQL dialect of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB.
    MySql,
    /// SQLite.
    Sqlite,
    /// A database with an ADBC driver, whose SQL is unknown.
    Adbc,
}

/// A table by name, optionally in a schema (MySQL: a database).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableName {
    /// Schema; `None` is the source's default.
    pub schema: Option<String>,
    /// Name, as the source spells it (no quotes).
    pub name: String,
}

impl TableName {
    /// `[SCHEMA.]NAME`, without quotes.
    pub fn parse(text: &str) -> Self {
        match text.split_once('.') {
            Some((schema, name)) => Self { schema: Some(schema.into()), name: name.into() },
            None => Self { schema: None, name: text.into() },
        }
    }
}

/// What a source knows about a table without reading it.
#[derive(Debug, Clone)]
pub struct TableInfo {
    /// Columns, as a scan of the whole table would return them.
    pub schema: SchemaRef,
    /// How the source can compare each column.
    pub comparisons: Vec<Comparison>,
    /// The source's estimate of the rows.
    pub rows_estimate: Option<u64>,
}

/// What a source knows about a statement without running it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatementInfo {
    /// Columns of its result.
    pub columns: SchemaRef,
    /// A field for each parameter, in order: `$1` and so on. Its type is `Null` if the statement does not determine it.
    pub parameters: SchemaRef,
}

/// A read of one table, or of part of it.
#[derive(Debug, Clone)]
pub struct Scan {
    /// Which table.
    pub table: TableName,
    /// Columns to read, in this order; `None` is all. An empty list gives rows without columns.
    pub columns: Option<Vec<String>>,
    /// A condition in the source's own SQL.
    pub filter: Option<String>,
    /// Maximum number of rows.
    pub limit: Option<u64>,
}

/// A database that answers SQL with Arrow batches.
#[async_trait]
pub trait Source: Send + Sync + fmt::Debug {
    /// The SQL it speaks.
    fn dialect(&self) -> Dialect;

    /// Runs any statement that returns rows.
    ///
    /// # Errors
    /// When the source can't be reached, refuses the statement, or returns an
    /// unsupported type. Later errors come through the stream.
    async fn query(&self, sql: &str, options: &ReadOptions) -> Result<Rows>;

    /// Runs a statement as [`Source::query`] does, with the values of its parameters: the columns of `parameters`, in
    /// order, which has one row. The source's own placeholders are used: `$1` in PostgreSQL, `?` in MySQL, `?`, `?1`,
    /// `$a` and others in SQLite.
    ///
    /// # Errors
    /// As [`Source::query`]; [`SourceError::Parameters`] when there are fewer or more values than parameters, or one
    /// can't be sent. The default implementation always fails.
    async fn execute(&self, _sql: &str, _parameters: &RecordBatch, _options: &ReadOptions) -> Result<Rows> {
        Err(SourceError::Unsupported("parameters of statements".into()))
    }

    /// Describes a statement.
    ///
    /// # Errors
    /// As [`Source::query`]. The default implementation always fails.
    async fn describe(&self, _sql: &str, _options: &ReadOptions) -> Result<StatementInfo> {
        Err(SourceError::Unsupported("descriptions of statements".into()))
    }

    /// Reads a table, or part of it. A large table is read over several
    /// connections if the source can give them one consistent snapshot.
    ///
    /// # Errors
    /// As [`Source::query`].
    async fn scan(&self, scan: &Scan, options: &ReadOptions) -> Result<Rows>;

    /// Describes a table.
    ///
    /// # Errors
    /// [`SourceError::NoTable`] when no table has that name.
    async fn table(&self, name: &TableName, options: &ReadOptions) -> Result<TableInfo>;

    /// Tables in the default schema that this login can see.
    ///
    /// # Errors
    /// When the source can't be reached.
    async fn tables(&self) -> Result<Vec<TableName>>;
}

/// What to do if the table exists already. A missing table is created, except by [`Self::Existing`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteMode {
    /// Add the rows to the table. Columns are matched by name.
    #[default]
    Append,
    /// Add the rows to the table, and fail if it is missing.
    Existing,
    /// Fail.
    Create,
    /// Replace the table by a new one at the end, which has the columns of the result. The old table's indexes,
    /// constraints, privileges and comments are kept as far as they fit the new columns.
    Replace,
    /// Keep the table, and replace its rows.
    Truncate,
    /// Update the rows whose key exists, and insert the others. A new table gets the key as its primary key.
    Upsert,
}

impl FromStr for WriteMode {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "append" => Ok(Self::Append),
            "existing" => Ok(Self::Existing),
            "create" => Ok(Self::Create),
            "replace" => Ok(Self::Replace),
            "truncate" => Ok(Self::Truncate),
            "upsert" => Ok(Self::Upsert),
            other => Err(format!(
                "unknown mode `{other}`; expected append, existing, create, replace, truncate or upsert"
            )),
        }
    }
}

/// What was written to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Rows written.
    pub rows: u64,
    /// Bytes written to the file, the stream or the socket.
    pub bytes: u64,
}

/// A file, stream or table to which batches of one schema are written.
///
/// If it is dropped before [`Destination::finish`], it leaves no partial file
/// under the final name, and no rows in the table.
#[async_trait]
pub trait Destination: Send {
    /// What the user should know before rows are written, such as what of a replaced table is not kept.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Accepts an offer of undecoded rows if it can. If it returns `true`, batches of tuples follow.
    fn take_tuples(&mut self, _offer: Tuples) -> bool {
        false
    }

    /// Writes one batch. When it returns, the batch's memory may be freed.
    ///
    /// # Errors
    /// When the batch can't be written (disk full, broken pipe, a refused row).
    async fn write(&mut self, batch: RecordBatch) -> Result<()>;

    /// Makes what was written durable and visible under its final name.
    ///
    /// # Errors
    /// As [`Destination::write`].
    async fn finish(self: Box<Self>) -> Result<Written>;
}
