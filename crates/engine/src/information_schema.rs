//! `information_schema`: DataFusion's tables, and the keys of range files.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use async_trait::async_trait;
use datafusion::catalog::information_schema::{INFORMATION_SCHEMA, InformationSchemaProvider};
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemTable, SchemaProvider, TableFunction, TableProvider,
};
use datafusion::error::Result;
use datafusion::execution::SessionState;
use lightship_rangefile::RangeError;

use crate::error::EngineError;
use crate::range::RangeFiles;

/// The tables beside those of DataFusion.
const TABLE_CONSTRAINTS: &str = "table_constraints";
const KEY_COLUMN_USAGE: &str = "key_column_usage";

/// The catalog and schema of range files.
const PLACE: (&str, &str) = ("datafusion", "public");

/// The schema `information_schema`.
#[derive(Debug)]
struct InformationSchema {
    /// The list holds this schema.
    catalogs: Weak<dyn CatalogProviderList>,
    table_functions: HashMap<String, Arc<TableFunction>>,
    range_files: Option<Arc<RangeFiles>>,
}

/// Adds the schema to a catalog of a session, in which DataFusion's own schema of this name is turned off.
pub(crate) fn register(
    state: &SessionState,
    catalog: &dyn CatalogProvider,
    range_files: Option<Arc<RangeFiles>>,
) -> Result<()> {
    let schema = InformationSchema {
        catalogs: Arc::downgrade(state.catalog_list()),
        table_functions: state.table_functions().clone(),
        range_files,
    };
    catalog.register_schema(INFORMATION_SCHEMA, Arc::new(schema))?;
    Ok(())
}

impl InformationSchema {
    fn of_datafusion(&self) -> Option<InformationSchemaProvider> {
        let catalogs = self.catalogs.upgrade()?;
        Some(InformationSchemaProvider::new(catalogs).with_table_functions(self.table_functions.clone()))
    }

    /// The names of range files and the columns of their keys, in order.
    async fn keys(&self) -> Result<Vec<(String, Vec<String>)>> {
        let Some(files) = &self.range_files else { return Ok(Vec::new()) };
        let mut keys = Vec::new();
        for name in files.names() {
            match files.file(&name).await {
                Ok(file) => keys.push((name, file.definition().key.clone())),
                // It was dropped in the meantime.
                Err(RangeError::NoFile(_)) => {}
                Err(error) => return Err(EngineError::from(error).into()),
            }
        }
        keys.sort();
        Ok(keys)
    }
}

/// The name of a file's key, as PostgreSQL would name it.
fn key_name(file: &str) -> String {
    format!("{file}_pkey")
}

fn texts<'a>(values: impl Iterator<Item = &'a str>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

/// A row for each key.
fn table_constraints(keys: &[(String, Vec<String>)]) -> Result<RecordBatch> {
    let names: Vec<String> = keys.iter().map(|(file, _)| key_name(file)).collect();
    let same = |text: &'static str| texts(keys.iter().map(move |_| text));
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("constraint_catalog", same(PLACE.0), false),
        ("constraint_schema", same(PLACE.1), false),
        ("constraint_name", texts(names.iter().map(String::as_str)), false),
        ("table_catalog", same(PLACE.0), false),
        ("table_schema", same(PLACE.1), false),
        ("table_name", texts(keys.iter().map(|(file, _)| file.as_str())), false),
        ("constraint_type", same("PRIMARY KEY"), false),
        ("is_deferrable", same("NO"), false),
        ("initially_deferred", same("NO"), false),
        ("enforced", same("YES"), false),
    ])?)
}

/// A row for each column of a key.
fn key_column_usage(keys: &[(String, Vec<String>)]) -> Result<RecordBatch> {
    let rows: Vec<(&str, String, &str, i64)> = keys
        .iter()
        .flat_map(|(file, columns)| {
            (1..).zip(columns).map(move |(at, column)| (file.as_str(), key_name(file), column.as_str(), at))
        })
        .collect();
    let same = |text: &'static str| texts(rows.iter().map(move |_| text));
    let positions: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.3)));
    let none: ArrayRef = Arc::new(Int64Array::new_null(rows.len()));
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("constraint_catalog", same(PLACE.0), false),
        ("constraint_schema", same(PLACE.1), false),
        ("constraint_name", texts(rows.iter().map(|row| row.1.as_str())), false),
        ("table_catalog", same(PLACE.0), false),
        ("table_schema", same(PLACE.1), false),
        ("table_name", texts(rows.iter().map(|row| row.0)), false),
        ("column_name", texts(rows.iter().map(|row| row.2)), false),
        ("ordinal_position", positions, false),
        ("position_in_unique_constraint", none, true),
    ])?)
}

#[async_trait]
impl SchemaProvider for InformationSchema {
    fn table_names(&self) -> Vec<String> {
        let mut names = self.of_datafusion().map(|schema| schema.table_names()).unwrap_or_default();
        names.extend([TABLE_CONSTRAINTS.to_owned(), KEY_COLUMN_USAGE.to_owned()]);
        names
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let rows = match name {
            TABLE_CONSTRAINTS => table_constraints(&self.keys().await?)?,
            KEY_COLUMN_USAGE => key_column_usage(&self.keys().await?)?,
            _ => {
                return match self.of_datafusion() {
                    Some(schema) => schema.table(name).await,
                    None => Ok(None),
                };
            }
        };
        Ok(Some(Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows]])?)))
    }

    fn table_exist(&self, name: &str) -> bool {
        [TABLE_CONSTRAINTS, KEY_COLUMN_USAGE].contains(&name)
            || self.of_datafusion().is_some_and(|schema| schema.table_exist(name))
    }
}
