//! Databases and files as streams of Arrow batches, and the reverse.
//!
//! A [`Source`] answers SQL with [`Rows`]: a schema and a stream of record
//! batches, bounded in bytes. A [`Destination`] takes batches and lands them in
//! a file, on a stream or in a table, whole or not at all. [`Location`] is what
//! a user typed, parsed.
//!
//! This crate has no SQL engine: files are read by the engine's own scanners
//! (crate `lightship-engine`), so only their writers are here.

mod bulk;
mod cancel;
pub mod columns;
mod common;
mod condition;
mod cursor;
pub mod decoded;
mod error;
mod identity;
pub mod limit;
pub mod location;
pub mod mysql;
mod open;
pub mod postgres;
mod rules;
mod select;
pub mod sqlite;
mod tls;
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

/// Batches of one result, all of one schema, in the order of the source.
pub type BatchStream = Pin<Box<dyn Stream<Item = Result<RecordBatch>> + Send>>;

/// The answer to a query: what the columns are, and the rows to come.
pub struct Rows {
    /// Schema of every batch.
    pub schema: SchemaRef,
    /// The batches. Dropping the stream stops the work at the source.
    pub batches: BatchStream,
    /// How many rows the source expects, where it can say without counting.
    pub rows_estimate: Option<u64>,
    /// The rows undecoded, for a destination that takes them so: to be decided before the first batch.
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
    /// Most rows in a batch. More rows mean fewer, larger batches: memory grows with it.
    pub batch_rows: usize,
    /// A batch is closed once its columns hold this many bytes, however few its rows.
    pub batch_bytes: usize,
    /// A row with more bytes than this is an error. On its way through it is there up to four times.
    pub row_bytes_max: usize,
    /// Most connections to use for one result where the source can be split.
    /// Each costs a backend of the database and one open batch.
    pub streams: NonZeroUsize,
    /// What becomes of numbers of arbitrary precision.
    pub numeric: NumericRule,
    /// What becomes of values that are infinite or not a number, where Arrow's type has no such value.
    pub infinite: InfiniteRule,
    /// Whether rows may stay undecoded where the source can leave them so ([`Rows::tuples`]). They are
    /// read once the first batch is asked for then.
    pub tuples: bool,
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
        }
    }
}

/// Which SQL a source speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB.
    MySql,
    /// SQLite.
    Sqlite,
}

/// A table by name, optionally in a schema (MySQL: a database).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableName {
    /// Schema, or the source's default where absent.
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

/// What a source knows of a table without reading it.
#[derive(Debug, Clone)]
pub struct TableInfo {
    /// Columns as they would arrive from a scan of the whole table.
    pub schema: SchemaRef,
    /// What the source can be asked of each column.
    pub comparisons: Vec<Comparison>,
    /// The source's own estimate.
    pub rows_estimate: Option<u64>,
}

/// A read of one table, with what the source is to leave out.
#[derive(Debug, Clone)]
pub struct Scan {
    /// Which table.
    pub table: TableName,
    /// Columns wanted, in this order; `None` is all. May be empty: rows without columns.
    pub columns: Option<Vec<String>>,
    /// A condition in the source's own SQL.
    pub filter: Option<String>,
    /// No more rows than this.
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
    /// When the source can't be reached, refuses the statement, or returns a
    /// type that can't be carried; later errors come through the stream.
    async fn query(&self, sql: &str, options: &ReadOptions) -> Result<Rows>;

    /// Reads a table, or part of it; large tables on several connections where
    /// the source can give them one consistent state.
    ///
    /// # Errors
    /// As [`Source::query`].
    async fn scan(&self, scan: &Scan, options: &ReadOptions) -> Result<Rows>;

    /// Describes a table.
    ///
    /// # Errors
    /// [`SourceError::NoTable`] when there is none of that name.
    async fn table(&self, name: &TableName, options: &ReadOptions) -> Result<TableInfo>;

    /// Tables that this login can see, in the default schema.
    ///
    /// # Errors
    /// When the source can't be reached.
    async fn tables(&self) -> Result<Vec<TableName>>;
}

/// What becomes of a table that is there already. One that is not is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteMode {
    /// It keeps its rows and takes these too; columns are matched by name.
    #[default]
    Append,
    /// It is an error.
    Create,
    /// A new table takes its place at the end; its indexes, constraints and privileges go with it.
    Replace,
}

impl FromStr for WriteMode {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "append" => Ok(Self::Append),
            "create" => Ok(Self::Create),
            "replace" => Ok(Self::Replace),
            other => Err(format!("no mode `{other}`; there are append, create, replace")),
        }
    }
}

/// What a destination holds once it is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Rows landed.
    pub rows: u64,
    /// Bytes written to the file, the stream or the socket.
    pub bytes: u64,
}

/// A place where batches of one schema land.
///
/// Dropped before [`Destination::finish`], it leaves nothing behind: no half
/// file under the final name, no rows in the table.
#[async_trait]
pub trait Destination: Send {
    /// Takes the offer of rows as their source has them, if it can. Batches of tuples follow then.
    fn take_tuples(&mut self, _offer: Tuples) -> bool {
        false
    }

    /// Takes one batch. When it returns, the batch's memory may be freed.
    ///
    /// # Errors
    /// When it can't be written (disk full, broken pipe, a refused row).
    async fn write(&mut self, batch: RecordBatch) -> Result<()>;

    /// Makes what was written durable and visible under its final name.
    ///
    /// # Errors
    /// As [`Destination::write`].
    async fn finish(self: Box<Self>) -> Result<Written>;
}
