//! The tables that a node serves.

use std::path::Path;

use lightship::{ErrorKind, table_name};
use lightship_engine::{Engine, is_known_file};
use lightship_sources::Location;
use lightship_sources::location::redact;

use super::NodeArgs;
use super::databases::Databases;
use crate::error::CliError;

impl NodeArgs {
    /// Names and locations of all tables.
    pub(super) fn tables(&self) -> Result<Vec<(String, String)>, CliError> {
        let mut tables = self.data.as_deref().map(tables_in).transpose()?.unwrap_or_default();
        for given in &self.table {
            tables.push(named("--table", given)?);
        }
        Ok(tables)
    }

    /// The tables whose URI has a password, by name. What the command line has can be seen by other users of the host.
    pub(super) fn tables_with_passwords(&self) -> Vec<&str> {
        let named = self.table.iter().filter_map(|given| given.split_once('='));
        named.filter(|(_, place)| redact(place) != *place).map(|(name, _)| name).collect()
    }

    /// Names and paths of tables that all nodes can read.
    pub(super) fn shared_tables(&self) -> Result<Vec<(String, String)>, CliError> {
        let mut tables = self.shared_data.as_deref().map(tables_in).transpose()?.unwrap_or_default();
        for given in &self.shared_table {
            tables.push(named("--shared-table", given)?);
        }
        Ok(tables)
    }
}

/// A table for each file and folder in a folder.
fn tables_in(folder: &Path) -> Result<Vec<(String, String)>, CliError> {
    let fail = |e: std::io::Error| CliError::new(ErrorKind::Source, format!("{}: {e}", folder.display()));
    if folder.is_file() {
        let (name, place) = (table_name(folder), folder.display());
        return Err(CliError::usage(format!(
            "--data and --shared-data take a folder, but {place} is a file"
        ))
        .hint(format!("use --table {name}={place}")));
    }
    let mut tables = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        // Only a file that is named itself is recognised by its contents.
        if !hidden && path.is_file() && !is_known_file(&path) {
            let message =
                format!("{}: unknown kind of file; expected .csv, .json, .parquet or .arrow", path.display());
            return Err(CliError::new(ErrorKind::Source, message).hint("move it elsewhere"));
        }
        if !hidden {
            tables.push((table_name(&path), path.display().to_string()));
        }
    }
    tables.sort();
    Ok(tables)
}

/// A table's name and location, as they were given.
fn named(flag: &str, given: &str) -> Result<(String, String), CliError> {
    let (name, place) = given.split_once('=').ok_or_else(|| {
        CliError::usage(format!("{flag} {}: expected NAME=PATH or NAME=URI", redact(given)))
    })?;
    if name.contains("://") {
        return Err(CliError::usage(format!("{flag} {}: expected NAME=URI", redact(given))));
    }
    Ok((name.to_owned(), place.to_owned()))
}

/// Adds a table to the engine.
pub(super) async fn register(
    engine: &mut Engine,
    databases: &mut Databases,
    name: &str,
    place: &str,
    in_memory: bool,
) -> Result<(), CliError> {
    let table = databases.table(place, name)?;
    match Location::parse(&table.uri)? {
        Location::Path(_) if in_memory => engine.register_in_memory(name, Path::new(place)).await?,
        Location::Path(_) => engine.register_path(name, Path::new(place)).await?,
        Location::Node { .. } | Location::NodeUnix { .. } => {
            return Err(CliError::usage(format!("--table {name}: a table of another node can't be served")));
        }
        database => {
            let source = databases.open(&table.uri, &database).await?;
            engine.register_source(name, source, table.name, table.options).await?;
        }
    }
    Ok(())
}
