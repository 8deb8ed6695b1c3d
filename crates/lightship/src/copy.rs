//! Copies a query result to a file, a table or a pipe.

use arrow_schema::{DataType, FieldRef, SchemaRef};
use lightship_sources::postgres::PostgresDestination;
use lightship_sources::writers::{self, Format, WriteOptions};
use lightship_sources::{Destination, Location, NumericRule, TableName, WriteMode};

use crate::options::Options;
use crate::report::Report;
use crate::result::Connection;
use crate::{Error, Result};

/// Where rows are written.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Target {
    /// A file, a pipe or standard output.
    File {
        /// The file, pipe or standard output.
        target: writers::Target,
        /// The file format.
        format: Format,
        /// The settings of the format. Its memory limit is replaced by a third of
        /// [`Options::memory_bytes`].
        options: WriteOptions,
    },
    /// A table of a PostgreSQL database.
    Table {
        /// The URI of the database.
        uri: String,
        /// The table.
        table: TableName,
        /// What to do if the table exists.
        mode: WriteMode,
    },
}

impl Target {
    /// A file in this format.
    pub fn file(target: writers::Target, format: Format) -> Self {
        Self::File { target, format, options: WriteOptions::default() }
    }

    /// A table of a database.
    ///
    /// # Errors
    /// If the location is not a PostgreSQL database; other databases are read-only.
    pub fn table(location: &Location, table: TableName, mode: WriteMode) -> Result<Self> {
        match location {
            Location::Postgres(uri) => Ok(Self::Table { uri: uri.clone(), table, mode }),
            other => Err(Error::usage(format!("can't copy into {other}")).hint(
                "copy writes to PostgreSQL (postgresql://…) and to files (.parquet, .csv, .json, .arrow)",
            )),
        }
    }

    async fn open(self, schema: SchemaRef) -> Result<Box<dyn Destination>> {
        Ok(match self {
            Self::File { target, format, options } => writers::create(target, format, schema, options)?,
            Self::Table { uri, table, mode } => {
                Box::new(PostgresDestination::create(&uri, &table, &schema, mode).await?)
            }
        })
    }
}

/// Observes the progress of a copy.
pub trait Observer {
    /// The query has begun to return rows. `open_numbers` are the `numeric` columns without a declared
    /// precision, which are read as decimals. A value that does not fit the decimal type is an error,
    /// however late it arrives.
    fn began(&mut self, rows_estimate: Option<u64>, open_numbers: &[&str]) {
        let _ = (rows_estimate, open_numbers);
    }

    /// More rows have arrived; `bytes` is their size as Arrow buffers.
    fn arrived(&mut self, rows: u64, bytes: u64) {
        let _ = (rows, bytes);
    }
}

/// Observes nothing.
impl Observer for () {}

/// Runs a query at one or several sources and writes its result. A file or a table gets all rows or
/// none; a pipe and standard output get rows as they arrive. Dropping the future cancels the query, and
/// leaves no incomplete file or table.
///
/// The file or table is created only after all sources have begun to return rows with compatible columns.
///
/// # Errors
/// The first error of a source or of the target.
pub async fn copy(
    from: &[Location],
    sql: &str,
    to: Target,
    options: &Options,
    observer: &mut (dyn Observer + Send),
) -> Result<Report> {
    let tuples = matches!(to, Target::Table { .. }) && options.has_default_values();
    let to = match to {
        Target::File { target, format, options: write } => {
            let memory_bytes = usize::try_from(options.memory_bytes() / 3).unwrap_or(usize::MAX);
            Target::File { target, format, options: WriteOptions { memory_bytes, ..write } }
        }
        table => table,
    };
    let mut connection = Connection::open(from, options, tuples).await?;
    let mut result = connection.query(sql).await?;
    let schema = result.schema().clone();
    let mut destination = to.open(schema.clone()).await?;
    let is_decoded = !result.take_tuples().is_some_and(|offer| destination.take_tuples(offer));
    let open_numbers = if is_decoded { open_numbers(&schema) } else { Vec::new() };
    observer.began(result.rows_estimate(), &open_numbers);
    while let Some((batch, bytes)) = result.next_counted().await? {
        observer.arrived(batch.num_rows() as u64, bytes);
        destination.write(batch).await?;
    }
    let written = destination.finish().await?;
    Ok(result.report_written(written.bytes))
}

fn open_numbers(schema: &SchemaRef) -> Vec<&str> {
    let NumericRule::Decimal { precision, scale } = NumericRule::RESULT else { return Vec::new() };
    let is_open = |field: &&FieldRef| *field.data_type() == DataType::Decimal256(precision, scale);
    schema.fields().iter().filter(is_open).map(|field| field.name().as_str()).collect()
}
