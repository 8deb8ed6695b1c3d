//! Parts of a result that can be read separately, also by another process: one for each source of a connection.
//!
//! A part names its source by number and by its URI without the password, so that a connection with other sources refuses
//! it. It is as good as the query that it contains: a reader needs a connection with the same sources.

use adbc_core::PartitionedResult;
use adbc_core::error::{Result, Status};
use lightship::blocking::{Connection, Reader};
use lightship::{Location, StatementInfo};
use serde_json::{Value, json};

use crate::errors::{error, from_library, not_implemented};
use crate::statement::Running;

const VERSION: u64 = 1;
/// A part is not longer than the longest query, with room for its encoding.
const PART_BYTES_MAX: usize = 64 << 20;

/// The parts of a query: one for each source, or one for all if their columns differ.
pub(crate) fn of(connection: &Connection, sql: &str) -> Result<PartitionedResult> {
    check_locations(connection.locations())?;
    let describe = |connection: &Connection| -> Result<StatementInfo> {
        connection.describe(sql).map_err(|failure| from_library(&failure))
    };
    let whole = describe(connection)?;
    if !whole.parameters.fields().is_empty() {
        return Err(crate::bound::no_partitions());
    }
    let sources: Vec<_> = (0..connection.locations().len()).map_while(|n| connection.source(n)).collect();
    let mut is_divided = sources.len() > 1;
    for source in &sources {
        is_divided = is_divided && describe(source)?.columns == whole.columns;
    }
    let numbers: Vec<Option<usize>> =
        if is_divided { (0..sources.len()).map(Some).collect() } else { vec![None] };
    let partitions = numbers.into_iter().map(|number| encode(connection.locations(), number, sql)).collect();
    Ok(PartitionedResult { partitions, schema: whole.columns.as_ref().clone(), rows_affected: -1 })
}

/// Reads a part.
pub(crate) fn read(connection: &Connection, running: &Running, part: &[u8]) -> Result<Reader> {
    let refused =
        |why: &str| error(Status::InvalidArguments, format!("the partition can't be read here: {why}"));
    if part.len() > PART_BYTES_MAX {
        return Err(refused("it is too long"));
    }
    let part: Value = serde_json::from_slice(part).map_err(|_| refused("it is not one of this driver"))?;
    if part["version"] != json!(VERSION) {
        return Err(refused("it is of another version of this driver"));
    }
    check_locations(connection.locations())?;
    let number = part["source"].as_u64().and_then(|number| usize::try_from(number).ok());
    if part["uris"] != json!(uris(connection.locations())) {
        return Err(refused("it belongs to a connection with other sources"));
    }
    let Some(sql) = part["sql"].as_str() else { return Err(refused("it has no query")) };
    match number {
        None => running.query(connection, sql),
        Some(number) => match connection.source(number) {
            Some(source) => running.query(&source, sql),
            None => Err(refused("there is no such source")),
        },
    }
}

/// Refuses a database whose URI has values that are not shown: they may be what tells it from another.
fn check_locations(locations: &[Location]) -> Result<()> {
    let is_hidden =
        |location: &&Location| matches!(location, Location::Adbc(_)) && location.to_string().contains("=***");
    match locations.iter().find(is_hidden) {
        None => Ok(()),
        Some(location) => {
            Err(not_implemented(&format!("partitions of {location}, whose options are not all shown")))
        }
    }
}

fn encode(locations: &[Location], number: Option<usize>, sql: &str) -> Vec<u8> {
    json!({"version": VERSION, "source": number, "uris": uris(locations), "sql": sql})
        .to_string()
        .into_bytes()
}

/// The sources, without passwords.
fn uris(locations: &[Location]) -> Vec<String> {
    locations.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_that_their_uris_do_not_tell_apart_are_refused() {
        let check = |uris: &[&str]| {
            let locations: Vec<_> = uris.iter().map(|uri| Location::parse(uri).unwrap()).collect();
            check_locations(&locations)
        };
        check(&["postgresql://me:hush@h/d", "adbc:sqlite?uri=a.db"]).unwrap();
        let refused = check(&["sqlite:a.db", "adbc:pg?uri=postgresql://me:hush@h/d"]).unwrap_err();
        assert_eq!(refused.status, Status::NotImplemented);
        assert!(!refused.message.contains("hush"), "{refused}");
    }
}
