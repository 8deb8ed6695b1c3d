//! SQLite.
//!
//! [`SqliteDestination`] writes tables. [`SqliteSource`] reads an existing database file, and never writes to it. Each
//! result has its own connection and its own thread, which is at most one batch
//! ahead of the consumer.
//!
//! # Types
//! In SQLite, values have types and columns have none: any column may hold any
//! value. An Arrow column has one type. It depends on the words in the column's
//! declared type:
//!
//! | declared as | Arrow |
//! |---|---|
//! | `...BOOL...` | `Boolean`; values must be 0 and 1 |
//! | `...INT...` | `Int64` |
//! | `...CHAR...`, `...CLOB...`, `...TEXT...` | `Utf8` |
//! | `...BLOB...`, `...BINARY...` | `Binary` |
//! | `...REAL...`, `...FLOA...`, `...DOUB...` | `Float64` |
//! | `DECIMAL(p, s)`, `NUMERIC`, `NUMBER(p, s)` | `Float64`, because SQLite stores them so; `(p)` and `(p, 0)`: `Int64` |
//! | anything else: `DATE`, `DATETIME`, `JSON`, nothing, an expression | the narrowest of `Int64`, `Float64`, `Utf8`, `Binary` that holds the values seen |
//!
//! So dates arrive as they are stored, as text or numbers. The values seen are
//! those of the first batch of a query, and of the first 1024 rows of a table for
//! [`Source::scan`] and [`Source::table`], whatever the scan leaves out. A column
//! in which only NULLs were seen is `Utf8`.
//!
//! A wider column also holds narrower values: reals hold integers that they
//! represent exactly, text holds numbers in digits, and blobs hold the bytes of
//! text. Any other value that does not fit is a [`SourceError::Value`] that names
//! the column, the row and a cast that reads the value.

mod assign;
mod columns;
mod destination;
mod errors;
mod parameters;
mod reader;
mod target;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_schema::{DataType, Field, Schema};
use async_trait::async_trait;
use futures::TryStreamExt;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension};

pub use self::destination::SqliteDestination;

use self::columns::SqliteType;
use self::reader::{Job, ReadPlan};
use crate::select::{self, rows_without_columns};
use crate::{
    Comparable, Comparison, Dialect, ReadOptions, Result, Rows, Scan, Source, SourceError, StatementInfo,
    TableInfo, TableName,
};

/// Rows of a table that are read to find the type of a column without a declared one.
const SNIFFED_ROWS: usize = 1024;

/// An SQLite database file.
#[derive(Debug)]
pub struct SqliteSource {
    path: PathBuf,
}

impl SqliteSource {
    /// Opens the file once, to check that it exists and is a database.
    ///
    /// # Errors
    /// [`SourceError::Connect`] when it is not.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let absent = |reason: String, source| SourceError::Connect {
            target: path.display().to_string(),
            reason,
            source,
        };
        match std::fs::metadata(&path) {
            Ok(file) if file.is_dir() => return Err(absent("it is a folder".into(), None)),
            Ok(_) => {}
            Err(error) => return Err(absent(error.to_string(), Some(Box::new(error)))),
        }
        let connection = reader::open(&path)?;
        connection
            .query_row("SELECT COUNT(*) FROM sqlite_schema", [], |_| Ok(()))
            .map_err(|error| errors::open(&path, error))?;
        Ok(Self { path })
    }

    /// Runs a statement, with these values of its parameters.
    async fn run(&self, sql: &str, values: Option<Vec<Value>>, options: &ReadOptions) -> Result<Rows> {
        let plan = ReadPlan { sql: sql.to_owned(), kinds: Vec::new(), rows_estimate: None, values };
        let plan = Box::new(|_: &Connection| Ok(plan));
        reader::run(Job { path: self.path.clone(), options: options.clone(), plan }).await
    }

    /// Runs `work` with a connection, on a thread where it may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, &Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let path = self.path.clone();
        let target = path.display().to_string();
        tokio::task::spawn_blocking(move || work(&reader::open(&path)?, &path))
            .await
            .unwrap_or_else(|error| Err(SourceError::Malformed { target, reason: error.to_string() }))
    }
}

#[async_trait]
impl Source for SqliteSource {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    async fn query(&self, sql: &str, options: &ReadOptions) -> Result<Rows> {
        self.run(sql, None, options).await
    }

    async fn execute(&self, sql: &str, parameters: &RecordBatch, options: &ReadOptions) -> Result<Rows> {
        self.run(sql, Some(parameters::values(parameters)?), options).await
    }

    /// The types of columns without a declared type are those of a result with NULL for every parameter.
    async fn describe(&self, sql: &str, options: &ReadOptions) -> Result<StatementInfo> {
        let statement = sql.to_owned();
        let parameters = self
            .blocking(move |connection, path| {
                let prepared = connection.prepare(&statement);
                let prepared = prepared.map_err(|error| errors::statement(path, &statement, error))?;
                Ok(prepared.parameter_count())
            })
            .await?;
        let rows = self.run(sql, Some(vec![Value::Null; parameters]), options).await?;
        let parameters = crate::parameters::fields(vec![DataType::Null; parameters]);
        Ok(StatementInfo { columns: rows.schema, parameters })
    }

    async fn scan(&self, scan: &Scan, options: &ReadOptions) -> Result<Rows> {
        let (path, scan) = (self.path.clone(), scan.clone());
        let counts = scan.columns.as_ref().is_some_and(Vec::is_empty);
        let plan = Box::new(move |connection: &Connection| plan(connection, &path, &scan));
        let mut rows = reader::run(Job { path: self.path.clone(), options: options.clone(), plan }).await?;
        if counts {
            let count = rows.batches.try_next().await?;
            let count = count.as_ref().and_then(|batch| batch.column(0).as_primitive_opt::<Int64Type>());
            let count =
                count.and_then(|count| u64::try_from(*count.values().first()?).ok()).ok_or_else(|| {
                    let target = self.path.display().to_string();
                    SourceError::Malformed { target, reason: "the count is not a number".into() }
                })?;
            return Ok(rows_without_columns(count, options.batch_rows));
        }
        Ok(rows)
    }

    async fn table(&self, name: &TableName, _: &ReadOptions) -> Result<TableInfo> {
        let name = name.clone();
        self.blocking(move |connection, path| {
            let columns = describe(connection, path, &name)?;
            let is_ordinary = is_ordinary(connection, path, &name)?;
            let comparisons = columns.iter().map(|column| column.comparison(is_ordinary)).collect();
            let fields =
                columns.into_iter().map(|column| Field::new(column.name, column.kind.data_type(), true));
            Ok(TableInfo {
                schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())),
                comparisons,
                rows_estimate: rows_estimate(connection, &name),
            })
        })
        .await
    }

    async fn tables(&self) -> Result<Vec<TableName>> {
        const SQL: &str = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') \
             AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name";
        self.blocking(|connection, path| {
            let names = || -> rusqlite::Result<Vec<TableName>> {
                let mut statement = connection.prepare(SQL)?;
                let names =
                    statement.query_map([], |row| Ok(TableName { schema: None, name: row.get(0)? }))?;
                names.collect()
            };
            names().map_err(|error| errors::statement(path, SQL, error))
        })
        .await
    }
}

/// The statement of a scan, with the types of the table's columns.
fn plan(connection: &Connection, path: &Path, scan: &Scan) -> Result<ReadPlan> {
    let described = describe(connection, path, &scan.table)?;
    let kinds = match &scan.columns {
        None => described.iter().map(|column| Some(column.kind)).collect(),
        // SQLite refuses a column that does not exist.
        Some(wanted) => wanted
            .iter()
            .map(|wanted| {
                let same = |column: &&Column| column.name.eq_ignore_ascii_case(wanted);
                described.iter().find(same).map(|column| column.kind)
            })
            .collect(),
    };
    let estimate = scan.filter.is_none().then(|| rows_estimate(connection, &scan.table)).flatten();
    let rows_estimate = match (estimate, scan.limit) {
        (Some(estimate), Some(limit)) => Some(estimate.min(limit)),
        (estimate, _) => estimate,
    };
    Ok(ReadPlan { sql: select::statement(scan), kinds, rows_estimate, values: None })
}

/// A column of a table.
struct Column {
    name: String,
    declared: String,
    kind: SqliteType,
}

impl Column {
    fn comparison(&self, is_of_ordinary_table: bool) -> Comparison {
        // The affinity of a view's column is unknown.
        let comparable =
            if is_of_ordinary_table { self.kind.comparable(&self.declared) } else { Comparable::Nulls };
        let plain = Comparison::backticked(&self.name, comparable);
        match self.kind {
            // The column's own collation may be defined only in the application.
            SqliteType::Text => Comparison { operand: format!("{} COLLATE BINARY", plain.column), ..plain },
            _ => plain,
        }
    }
}

/// Whether it is a table, rather than a view or a virtual table.
fn is_ordinary(connection: &Connection, path: &Path, table: &TableName) -> Result<bool> {
    const TYPE: &str = "SELECT type FROM pragma_table_list WHERE name = ?1 COLLATE NOCASE \
         AND schema = COALESCE(?2, schema) COLLATE NOCASE";
    let found: Option<String> = connection
        .query_row(TYPE, (&table.name, &table.schema), |row| row.get(0))
        .optional()
        .map_err(|error| errors::statement(path, TYPE, error))?;
    match found {
        Some(found) => Ok(found == "table"),
        None => Err(SourceError::NoTable { name: table.name.clone() }),
    }
}

/// A table's columns.
fn describe(connection: &Connection, path: &Path, table: &TableName) -> Result<Vec<Column>> {
    is_ordinary(connection, path, table)?;
    let quoted = select::table(table);
    let sql = format!("SELECT * FROM {quoted}");
    let statement = connection.prepare(&sql).map_err(|error| errors::statement(path, &sql, error))?;
    let declared: Vec<_> = statement
        .columns()
        .map(|column| (column.name().to_owned(), column.decl_type().unwrap_or_default().to_owned()))
        .collect();
    let undeclared = declared.iter().filter(|(_, declared)| SqliteType::declared(declared).is_none());
    let mut sniffed =
        sniff(connection, path, &quoted, undeclared.map(|(name, _)| name.as_str()))?.into_iter();
    let column = |(name, declared): (String, String)| {
        let kind = SqliteType::declared(&declared).or_else(|| sniffed.next()).unwrap_or(SqliteType::Text);
        Column { name, declared, kind }
    };
    Ok(declared.into_iter().map(column).collect())
}

/// The kinds of columns, by the first rows of the table.
fn sniff<'a>(
    connection: &Connection,
    path: &Path,
    quoted_table: &str,
    columns: impl Iterator<Item = &'a str>,
) -> Result<Vec<SqliteType>> {
    let types: Vec<_> = columns.map(|column| format!("typeof({})", select::identifier(column))).collect();
    if types.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!("SELECT {} FROM {quoted_table} LIMIT {SNIFFED_ROWS}", types.join(", "));
    let seen = || -> rusqlite::Result<Vec<Option<SqliteType>>> {
        let mut seen = vec![None; types.len()];
        let mut statement = connection.prepare(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            for (index, widest) in seen.iter_mut().enumerate() {
                *widest = (*widest).max(SqliteType::named(row.get_ref(index)?.as_str()?));
            }
        }
        Ok(seen)
    };
    let seen = seen().map_err(|error| errors::statement(path, &sql, error))?;
    Ok(seen.into_iter().map(SqliteType::widest).collect())
}

/// The number of rows that `ANALYZE` stored, or else the largest row id: rows are
/// numbered from 1, and ids of deleted rows stay unused. `None` for views.
fn rows_estimate(connection: &Connection, table: &TableName) -> Option<u64> {
    let schema = select::identifier(table.schema.as_deref().unwrap_or("main"));
    let noted = format!("SELECT stat FROM {schema}.sqlite_stat1 WHERE tbl = ?1 COLLATE NOCASE");
    let noted: Option<String> = connection.query_row(&noted, [&table.name], |row| row.get(0)).ok();
    let noted = noted.and_then(|stat| stat.split(' ').next()?.parse().ok());
    noted.or_else(|| {
        let largest = format!("SELECT COALESCE(MAX(_rowid_), 0) FROM {}", select::table(table));
        let largest: i64 = connection.query_row(&largest, [], |row| row.get(0)).ok()?;
        u64::try_from(largest).ok()
    })
}
