//! The databases behind a node's tables: one source per URI, one limit of connections per server.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lightship::open_database;
use lightship_sources::limit::ConnectionLimits;
use lightship_sources::{Location, ReadOptions, Source, TableName};

use crate::commands::values::ValueArgs;
use crate::error::CliError;

/// The databases that a node's tables are read from.
pub(super) struct Databases {
    limits: ConnectionLimits,
    values: ValueArgs,
    opened: HashMap<String, Arc<dyn Source>>,
}

/// A table, and how to read it.
pub(super) struct ResultTable {
    /// The URI of the database, without the parameters that concern only the table.
    pub(super) uri: String,
    pub(super) name: TableName,
    pub(super) options: ReadOptions,
}

impl Databases {
    /// `connections` is the limit for each server; `values` applies where the URI of a table does not override it.
    pub(super) fn new(connections: NonZeroUsize, values: ValueArgs) -> Self {
        Self { limits: ConnectionLimits::new(connections), values, opened: HashMap::new() }
    }

    /// Takes `table=`, `numeric=` and `infinite=` out of a URI. Without `table=`, the table in the
    /// database is called `name`.
    pub(super) fn table(&self, place: &str, name: &str) -> Result<ResultTable, CliError> {
        let mut values = self.values;
        let Some((base, query)) = place.split_once('?') else {
            let options = values.table_options();
            return Ok(ResultTable { uri: place.to_owned(), name: TableName::parse(name), options });
        };
        let mut table = None;
        let mut rest = Vec::new();
        for pair in query.split('&') {
            match pair.strip_prefix("table=") {
                Some(value) => table = Some(value),
                None if values.take(pair).map_err(|e| CliError::usage(format!("{pair}: {e}")))? => {}
                None => rest.push(pair),
            }
        }
        Ok(ResultTable {
            uri: if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) },
            name: TableName::parse(table.unwrap_or(name)),
            options: values.table_options(),
        })
    }

    /// Opens the database at `location`, which is that of `uri`, unless it is open already.
    pub(super) async fn open(&mut self, uri: &str, location: &Location) -> Result<Arc<dyn Source>, CliError> {
        if let Some(source) = self.opened.get(uri) {
            return Ok(source.clone());
        }
        let source: Arc<dyn Source> = open_database(location, &self.limits).await?.into();
        self.opened.insert(uri.to_owned(), source.clone());
        Ok(source)
    }
}

#[cfg(test)]
mod tests {
    use lightship::NumericRule;

    use super::*;

    #[test]
    fn parameters_of_the_table_are_taken_out_of_the_uri() {
        let databases = Databases::new(NonZeroUsize::MIN, ValueArgs::default());
        let check = |place: &str, uri: &str, name: &str, numeric| {
            let table = databases.table(place, "t").unwrap_or_else(|e| panic!("{}", e.error));
            let found = table.name.schema.map(|schema| schema + ".").unwrap_or_default() + &table.name.name;
            assert_eq!((&*table.uri, &*found, table.options.numeric), (uri, name, numeric), "{place}");
        };
        check("postgresql://h/d", "postgresql://h/d", "t", NumericRule::TABLE);
        check("postgresql://h/d?table=s.x", "postgresql://h/d", "s.x", NumericRule::TABLE);
        check(
            "postgresql://h/d?sslmode=require&numeric=double&table=x&port=1",
            "postgresql://h/d?sslmode=require&port=1",
            "x",
            NumericRule::Double,
        );
        assert!(databases.table("postgresql://h/d?infinite=maybe", "t").is_err());
    }
}
