//! Identities of tables: the same text for the same rows, whatever address or login they are reached by.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use arrow_array::cast::AsArray;
use futures::TryStreamExt;

use crate::postgres::quote_table;
use crate::{Dialect, ReadOptions, Result, Source, TableName};

/// Returns a text that distinguishes a table from all others, including those of other databases and servers.
///
/// - PostgreSQL: the system identifier of the cluster (a standby has its primary's), and the OIDs of database and
///   table. If the role may not read the identifier, the server's start time is used instead.
/// - MySQL and MariaDB: host, port and data directory as the server reports them, database and table.
/// - A database with an ADBC driver: `None`.
/// - SQLite: the file's size, modification time and header, and the table; `None` for a database in memory.
///
/// # Errors
/// As [`Source::query`].
pub async fn identity(source: &dyn Source, table: &TableName) -> Result<Option<String>> {
    match source.dialect() {
        Dialect::Postgres => {
            let of = |server: &str| {
                format!(
                    "select concat_ws(' ', (select {server}), \
                     (select oid from pg_catalog.pg_database where datname = current_database()), \
                     pg_catalog.to_regclass($name${}$name$)::oid)",
                    quote_table(table)
                )
            };
            let by_system = of("system_identifier from pg_catalog.pg_control_system()");
            match first_text(source, &by_system).await {
                Ok(found) => Ok(found),
                Err(error) => {
                    tracing::debug!(%error, "cannot read the system identifier");
                    first_text(source, &of("extract(epoch from pg_catalog.pg_postmaster_start_time())")).await
                }
            }
        }
        Dialect::MySql => {
            // In hexadecimal, because the meaning of a backslash depends on the session.
            let bytes = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
            let text = |text: &str| format!("convert(x'{}' using utf8mb4)", bytes(text));
            let schema = table.schema.as_ref().map_or("database()".to_owned(), |schema| text(schema));
            let sql = format!(
                "select concat_ws(' ', @@hostname, @@port, @@datadir, table_schema, table_name) \
                 from information_schema.tables where table_schema = {schema} and table_name = {}",
                text(&table.name)
            );
            first_text(source, &sql).await
        }
        Dialect::Adbc => Ok(None),
        Dialect::Sqlite => {
            let path =
                first_text(source, "select file from pragma_database_list where name = 'main'").await?;
            let Some(path) = path.filter(|path| !path.is_empty()) else { return Ok(None) };
            Ok(of_file(Path::new(&path)).ok().map(|file| format!("{file} {}", table.name)))
        }
    }
}

/// A file's size, modification time, and first bytes, in which SQLite counts its changes.
fn of_file(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut header = Vec::new();
    let file = std::fs::File::open(path)?;
    let data = file.metadata()?;
    file.take(100).read_to_end(&mut header)?;
    let header: String = header.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{} {}.{:09} {header}", data.len(), data.mtime(), data.mtime_nsec()))
}

/// The first column of the first row, if it is text.
async fn first_text(source: &dyn Source, sql: &str) -> Result<Option<String>> {
    let batches: Vec<_> = source.query(sql, &ReadOptions::default()).await?.batches.try_collect().await?;
    let batch = batches.iter().find(|batch| batch.num_rows() > 0 && batch.num_columns() > 0);
    let text = batch.and_then(|batch| batch.column(0).as_string_opt::<i32>());
    Ok(text.and_then(|text| text.iter().next()?.map(str::to_owned)))
}
