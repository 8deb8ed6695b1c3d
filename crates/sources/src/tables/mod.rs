//! Tables of databases as destinations: what is written to which table, and how it is opened.

pub(crate) mod cells;
mod nested;
pub(crate) mod text;

use std::collections::HashSet;

use arrow_schema::SchemaRef;

use self::nested::Nested;
use crate::adbc::AdbcDestination;
use crate::mysql::MySqlDestination;
use crate::postgres::PostgresDestination;
use crate::sqlite::SqliteDestination;
use crate::{Destination, Location, Result, SourceError, TableName, WriteMode};

/// A table to write, and what to do if it exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableWrite {
    /// The table.
    pub table: TableName,
    /// What to do if it exists.
    pub mode: WriteMode,
    /// For [`WriteMode::Upsert`], the columns that identify a row; empty in other modes.
    pub key: Vec<String>,
}

impl TableWrite {
    /// A write without a key.
    pub fn new(table: TableName, mode: WriteMode) -> Self {
        Self { table, mode, key: Vec::new() }
    }

    /// A write that updates the rows whose key exists, and inserts the others.
    pub fn upsert(table: TableName, key: Vec<String>) -> Self {
        Self { table, mode: WriteMode::Upsert, key }
    }

    /// Checks that there is a key if the mode requires one, and that its columns are those of the result.
    pub(crate) fn check(&self, schema: &SchemaRef) -> Result<()> {
        if (self.mode == WriteMode::Upsert) == self.key.is_empty() {
            let reason = match self.key.is_empty() {
                true => "an upsert without a key",
                false => "a key in a mode other than upsert",
            };
            return Err(SourceError::Unsupported(reason.into()));
        }
        let mut seen = HashSet::new();
        for column in &self.key {
            let fail = |reason: String| SourceError::Value { column: column.clone(), reason };
            if !seen.insert(column) {
                return Err(fail("it is twice in the key".into()));
            }
            if schema.field_with_name(column).is_err() {
                let has: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                return Err(fail(format!(
                    "it is in the key, but not in the result, which has {}",
                    has.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// The error for a table without a unique index on the key.
    pub(crate) fn no_unique_index(&self, shown: &str) -> SourceError {
        SourceError::NoUniqueIndex { table: shown.to_owned(), key: self.key.join(", ") }
    }
}

/// The error for NULL in a column of the key.
pub(crate) fn null_in_key(row: u64, column: &str) -> SourceError {
    SourceError::Unfit {
        row,
        column: column.to_owned(),
        reason: "NULL in a column of the key".into(),
        hint: Some("exclude the row in the query: NULL equals no other value, so the row has no key".into()),
    }
}

/// Finds or creates a table of a database, to write rows with these columns. Nested columns that the database has no
/// type for become JSON.
///
/// # Errors
/// [`SourceError::Unsupported`] for a location that is not a database, and the errors of the destination's
/// constructor.
pub async fn open_table(
    location: &Location,
    write: &TableWrite,
    schema: &SchemaRef,
) -> Result<Box<dyn Destination>> {
    let nested = Nested::of(location, schema)?;
    let schema = nested.as_ref().map_or(schema, Nested::schema);
    let destination: Box<dyn Destination> = match location {
        Location::Postgres(uri) => Box::new(PostgresDestination::create(uri, write, schema).await?),
        Location::MySql(uri) => Box::new(MySqlDestination::create(uri, write, schema).await?),
        Location::Sqlite(path) => Box::new(SqliteDestination::create(path, write, schema).await?),
        Location::Adbc(location) => Box::new(AdbcDestination::create(location, write, schema).await?),
        other => return Err(SourceError::Unsupported(format!("{other} is not a database"))),
    };
    Ok(match nested {
        Some(nested) => nested.before(destination),
        None => destination,
    })
}
