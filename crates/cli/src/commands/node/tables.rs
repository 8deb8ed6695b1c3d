//! The tables that a node serves.

use std::path::Path;

use lightship::{ErrorKind, files, table_name};
use lightship_engine::{Engine, FileAccess, FileLocation, is_known_file};
use lightship_sources::Location;
use lightship_sources::SourceError;
use lightship_sources::location::redact;
use lightship_sources::objects::{ObjectLocation, Store};

use super::NodeArgs;
use super::databases::Databases;
use crate::error::CliError;

impl NodeArgs {
    /// Names and locations of all tables.
    pub(super) async fn tables(&self) -> Result<Vec<(String, String)>, CliError> {
        let mut tables = tables_of(self.data.as_deref()).await?;
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
    pub(super) async fn shared_tables(&self) -> Result<Vec<(String, String)>, CliError> {
        let mut tables = tables_of(self.shared_data.as_deref()).await?;
        for given in &self.shared_table {
            tables.push(named("--shared-table", given)?);
        }
        Ok(tables)
    }
}

/// A table for each file and folder in a folder, or below a prefix of an object store.
async fn tables_of(folder: Option<&Path>) -> Result<Vec<(String, String)>, CliError> {
    let Some(folder) = folder else { return Ok(Vec::new()) };
    match Location::parse(&folder.to_string_lossy())? {
        Location::Object(prefix) => tables_below(&prefix).await,
        Location::Path(folder) => tables_in(&folder),
        other => Err(CliError::usage(format!("--data and --shared-data take a folder, but {other} is none"))),
    }
}

/// A table for each object and folder right below a prefix.
async fn tables_below(prefix: &ObjectLocation) -> Result<Vec<(String, String)>, CliError> {
    let store = Store::of(prefix).map_err(SourceError::from)?;
    let found = store.tables_below(&prefix.key()).await.map_err(SourceError::from)?;
    if found.is_empty() {
        let message = format!("{prefix}: there are no objects whose names begin with it and `/`");
        return Err(CliError::new(ErrorKind::Source, message));
    }
    let named = |(key, is_folder): (_, bool)| {
        let place = format!("{}{}", prefix.with_key(&key), if is_folder { "/" } else { "" });
        Ok((files(&Location::parse(&place)?)?.0, place))
    };
    found.into_iter().map(named).collect()
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
    let access = if in_memory { FileAccess::InMemory } else { FileAccess::Own };
    match Location::parse(&table.uri)? {
        Location::Path(_) => engine.register_files(name, Path::new(place).into(), access).await?,
        Location::Object(object) => {
            engine.register_files(name, FileLocation::Objects(object), access).await?;
        }
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

/// Adds a table in files that all nodes read.
pub(super) async fn register_shared(engine: &mut Engine, name: &str, place: &str) -> Result<(), CliError> {
    let files = match Location::parse(place)? {
        Location::Object(object) => FileLocation::Objects(object),
        _ => Path::new(place).into(),
    };
    Ok(engine.register_files(name, files, FileAccess::Shared).await?)
}
