//! Any database with an ADBC driver: a shared library that its vendor or others provide.
//!
//! [`AdbcSource`] reads results, [`AdbcDestination`] writes tables by the driver's bulk ingestion. A driver is code
//! that runs in this process: only who starts the process names it, in a URI. Nothing that a client of a node sends
//! becomes a URI.
//!
//! Calls of a driver block, so each result has a thread of its own, which is one batch ahead of the consumer. A
//! result that nobody reads any more is cancelled by the driver's cancel handle. Libraries stay loaded: many drivers
//! start threads, and some can't be unloaded.

mod destination;
mod driver;
mod reader;
mod uri;

use std::sync::Arc;

use adbc_core::error::Status;
use adbc_core::options::{ObjectDepth, OptionConnection};
use adbc_core::{Connection as _, Optionable as _};
use adbc_driver_manager::ManagedConnection;
use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch, StructArray};
use arrow_schema::SchemaRef;
use async_trait::async_trait;

pub use self::destination::AdbcDestination;
pub use self::uri::AdbcLocation;

use self::driver::{Failures, OpenDatabase};
use crate::limit::{ConnectionLimits, ServerConnections};
use crate::{
    Comparable, Comparison, Dialect, ReadOptions, Result, Rows, Scan, Source, SourceError, TableInfo,
    TableName,
};

/// A database that an ADBC driver has opened.
#[derive(Clone)]
pub struct AdbcSource {
    database: Arc<OpenDatabase>,
    failures: Arc<Failures>,
    connections: Arc<ServerConnections>,
}

impl std::fmt::Debug for AdbcSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdbcSource").field("location", &self.failures.target()).finish_non_exhaustive()
    }
}

impl AdbcSource {
    /// Loads the driver, opens the database, and connects once, to check the login.
    ///
    /// # Errors
    /// [`SourceError::Driver`] for a driver that can't be loaded, and the driver's errors.
    pub async fn open(location: &AdbcLocation) -> Result<Self> {
        Self::open_within(location, &ConnectionLimits::unlimited()).await
    }

    /// As [`AdbcSource::open`], with no more connections than these limits allow.
    ///
    /// # Errors
    /// As [`AdbcSource::open`]; [`SourceError::Busy`] when no connection becomes free in time, here and in every
    /// read.
    pub async fn open_within(location: &AdbcLocation, limits: &ConnectionLimits) -> Result<Self> {
        let connections = limits.of(&location.to_string());
        let _permit = connections.first().await?;
        let location = location.clone();
        let (database, failures) = blocking(move || {
            let opened = driver::open(&location)?;
            let (database, failures) = &opened;
            drop(database.connect().map_err(|error| failures.connect(error))?);
            Ok(opened)
        })
        .await?;
        Ok(Self { database: Arc::new(database), failures, connections })
    }

    /// Runs `work` with a new connection, on a thread for blocking work.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ManagedConnection, &Failures) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = self.connections.first().await?;
        let (database, failures) = (self.database.clone(), self.failures.clone());
        blocking(move || {
            let _permit = permit;
            let mut connection = database.connect().map_err(|error| failures.connect(error))?;
            work(&mut connection, &failures)
        })
        .await
    }
}

/// Runs `work` on a thread for blocking work.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(SourceError::Unsupported("a call of a driver while the process is ending".into())),
    })
}

/// Quotes a name as standard SQL does.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn quoted_table(table: &TableName) -> String {
    match &table.schema {
        Some(schema) => format!("{}.{}", quoted(schema), quoted(&table.name)),
        None => quoted(&table.name),
    }
}

/// The statement of a scan.
fn statement(scan: &Scan) -> String {
    let table = quoted_table(&scan.table);
    let columns = match scan.columns.as_deref() {
        None => "*".to_owned(),
        // The values are not used, but the rows are counted.
        Some([]) => "1".to_owned(),
        Some(columns) => columns.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", "),
    };
    let filter = scan.filter.as_ref().map(|filter| format!(" WHERE ({filter}\n)")).unwrap_or_default();
    let limit = scan.limit.map(|limit| format!(" LIMIT {limit}")).unwrap_or_default();
    format!("SELECT {columns} FROM {table}{filter}{limit}")
}

#[async_trait]
impl Source for AdbcSource {
    fn dialect(&self) -> Dialect {
        Dialect::Adbc
    }

    async fn query(&self, sql: &str, options: &ReadOptions) -> Result<Rows> {
        let permit = self.connections.first().await?;
        reader::run(self.database.clone(), self.failures.clone(), permit, sql.to_owned(), options, false)
            .await
    }

    async fn scan(&self, scan: &Scan, options: &ReadOptions) -> Result<Rows> {
        let permit = self.connections.first().await?;
        let without_columns = scan.columns.as_ref().is_some_and(Vec::is_empty);
        let (database, failures) = (self.database.clone(), self.failures.clone());
        reader::run(database, failures, permit, statement(scan), options, without_columns).await
    }

    async fn table(&self, name: &TableName, _: &ReadOptions) -> Result<TableInfo> {
        let name = name.clone();
        self.with(move |connection, failures| {
            let schema = match connection.get_table_schema(None, name.schema.as_deref(), &name.name) {
                Ok(schema) => schema,
                Err(error) if error.status == Status::NotFound => {
                    return Err(SourceError::NoTable { name: shown(&name) });
                }
                Err(error) => {
                    // Not all drivers have a status for it.
                    let is_listed = |tables: &[TableName]| tables.iter().any(|table| table.name == name.name);
                    return Err(match list(connection, failures) {
                        Ok(tables) if !is_listed(&tables) => SourceError::NoTable { name: shown(&name) },
                        _ => failures.statement(error),
                    });
                }
            };
            let schema: SchemaRef = Arc::new(schema);
            if schema.fields().is_empty() {
                return Err(SourceError::NoTable { name: shown(&name) });
            }
            // What a comparison means in a database that is unknown is unknown, too.
            let compare = |name: &String| Comparison::plain(quoted(name), Comparable::Nothing);
            let comparisons = schema.fields().iter().map(|field| compare(field.name())).collect();
            Ok(TableInfo { schema, comparisons, rows_estimate: None })
        })
        .await
    }

    async fn tables(&self) -> Result<Vec<TableName>> {
        self.with(|connection, failures| list(connection, failures)).await
    }
}

/// The tables of the current schema, or of all if the driver does not know which is current.
fn list(connection: &ManagedConnection, failures: &Failures) -> Result<Vec<TableName>> {
    let current = |option| connection.get_option_string(option).ok().filter(|name| !name.is_empty());
    let catalog = current(OptionConnection::CurrentCatalog);
    let schema = current(OptionConnection::CurrentSchema);
    let objects = connection
        .get_objects(ObjectDepth::Tables, catalog.as_deref(), schema.as_deref(), None, None, None)
        .map_err(|error| failures.statement(error))?;
    let mut tables = Vec::new();
    for batch in objects {
        let batch = batch.map_err(|error| failures.stream(error))?;
        tables_of(&batch, schema.is_some(), &mut tables).ok_or_else(|| {
            failures.malformed("its list of tables has other columns than ADBC defines".into())
        })?;
    }
    Ok(tables)
}

/// Adds the tables of a batch of `GetObjects`: schemas in lists of structures, tables in lists in them.
fn tables_of(batch: &RecordBatch, is_current: bool, tables: &mut Vec<TableName>) -> Option<()> {
    let schemas = batch.column_by_name("catalog_db_schemas")?.as_list_opt::<i32>()?;
    for catalog in (0..schemas.len()).filter(|&row| schemas.is_valid(row)) {
        let schemas = schemas.value(catalog);
        let schemas: &StructArray = schemas.as_struct_opt()?;
        let names = schemas.column_by_name("db_schema_name")?.as_string_opt::<i32>()?;
        let lists = schemas.column_by_name("db_schema_tables")?.as_list_opt::<i32>()?;
        for schema in (0..lists.len()).filter(|&row| lists.is_valid(row)) {
            let of_schema = lists.value(schema);
            let of_schema =
                of_schema.as_struct_opt()?.column_by_name("table_name")?.as_string_opt::<i32>()?;
            let schema = names.is_valid(schema).then(|| names.value(schema));
            if schema.is_some_and(|name| name.eq_ignore_ascii_case("information_schema")) {
                continue;
            }
            // Without a schema, a name means a table of the current one.
            let schema = schema.filter(|name| !is_current && !name.is_empty()).map(str::to_owned);
            let of_schema = of_schema.iter().flatten();
            tables.extend(of_schema.map(|name| TableName { schema: schema.clone(), name: name.to_owned() }));
        }
    }
    Some(())
}

fn shown(name: &TableName) -> String {
    match &name.schema {
        Some(schema) => format!("{schema}.{}", name.name),
        None => name.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_become_standard_sql() {
        let check = |columns: Option<&[&str]>, limit, expected: &str| {
            let scan = Scan {
                table: TableName { schema: Some("s".into()), name: "t\"x".into() },
                columns: columns.map(|columns| columns.iter().map(|&c| c.to_owned()).collect()),
                filter: None,
                limit,
            };
            assert_eq!(statement(&scan), expected);
        };
        check(None, Some(3), "SELECT * FROM \"s\".\"t\"\"x\" LIMIT 3");
        check(Some(&["a", "b"]), None, "SELECT \"a\", \"b\" FROM \"s\".\"t\"\"x\"");
        check(Some(&[]), None, "SELECT 1 FROM \"s\".\"t\"\"x\"");
    }
}
