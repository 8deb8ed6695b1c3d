//! Catalogs, schemas and tables, from the service's `information_schema`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::cast;
use arrow_flight::error::FlightError;
use arrow_flight::sql::metadata::{GetCatalogsBuilder, GetDbSchemasBuilder, GetTablesBuilder};
use arrow_flight::sql::{CommandGetDbSchemas, CommandGetTables};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::TryStreamExt;
use lightship_transport::net::Service;
use lightship_wire::control::{ErrorCode, Failure, Plan, Query};
use lightship_wire::rows_bytes;

use crate::plain::plain_schema;

/// The tables of the service, those of `information_schema` included.
const TABLES_SQL: &str =
    "select table_catalog, table_schema, table_name, table_type from information_schema.tables";
/// The most bytes of the names of all tables, and of the columns of those that are asked for.
const CATALOG_BYTES_MAX: u64 = 64 << 20;
/// Column metadata begins with this.
const METADATA_PREFIX: &str = "ARROW:FLIGHT:SQL:";

/// The types of tables that there can be.
pub(crate) const TABLE_TYPES: [&str; 2] = ["TABLE", "VIEW"];

/// A table of the service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Table {
    catalog: String,
    schema: String,
    name: String,
    kind: String,
}

/// The catalogs.
///
/// # Errors
/// If the service can't list its tables.
pub(crate) async fn catalogs(service: &dyn Service) -> Result<RecordBatch, Failure> {
    let mut builder = GetCatalogsBuilder::new();
    let catalogs: BTreeSet<_> = tables(service).await?.into_iter().map(|table| table.catalog).collect();
    catalogs.into_iter().for_each(|catalog| builder.append(catalog));
    builder.build().map_err(build_failure)
}

/// The schemas that match.
///
/// # Errors
/// If the service can't list its tables.
pub(crate) async fn schemas(
    service: &dyn Service,
    command: &CommandGetDbSchemas,
) -> Result<RecordBatch, Failure> {
    let mut builder = GetDbSchemasBuilder::new(None::<String>, None::<String>);
    let schemas: BTreeSet<_> =
        tables(service).await?.into_iter().map(|table| (table.catalog, table.schema)).collect();
    for (catalog, schema) in schemas {
        if is(command.catalog.as_deref(), &catalog)
            && matches(command.db_schema_filter_pattern.as_deref(), &schema)
        {
            builder.append(catalog, schema);
        }
    }
    builder.build().map_err(build_failure)
}

/// An empty answer to a request for tables, for its columns.
pub(crate) fn no_tables(command: &CommandGetTables) -> GetTablesBuilder {
    GetTablesBuilder::new(
        None::<String>,
        None::<String>,
        None::<String>,
        Vec::<String>::new(),
        command.include_schema,
    )
}

/// The tables that match.
///
/// # Errors
/// If the service can't list its tables. A table whose columns can't be found out is listed without columns.
pub(crate) async fn matching_tables(
    service: &dyn Service,
    command: &CommandGetTables,
) -> Result<RecordBatch, Failure> {
    let mut builder = no_tables(command);
    let mut bytes = 0_u64;
    for table in tables(service).await? {
        if !is_wanted(&table, command) {
            continue;
        }
        let schema = match command.include_schema {
            true => columns(service, &table).await?,
            false => Arc::new(Schema::empty()),
        };
        bytes = bytes.saturating_add(schema.fields().size() as u64);
        check_bytes(bytes)?;
        builder
            .append(table.catalog, table.schema, table.name, table.kind, &schema)
            .map_err(build_failure)?;
    }
    builder.build().map_err(build_failure)
}

fn is_wanted(table: &Table, command: &CommandGetTables) -> bool {
    is(command.catalog.as_deref(), &table.catalog)
        && matches(command.db_schema_filter_pattern.as_deref(), &table.schema)
        && matches(command.table_name_filter_pattern.as_deref(), &table.name)
        && (command.table_types.is_empty() || command.table_types.contains(&table.kind))
}

/// All tables, in the order of their names.
async fn tables(service: &dyn Service) -> Result<Vec<Table>, Failure> {
    let query = Query { sql: TABLES_SQL.into(), plan: Plan::default() };
    let mut rows = service.query(&query).await?.rows;
    let (mut tables, mut bytes) = (Vec::new(), 0_u64);
    while let Some(batch) = rows.try_next().await? {
        bytes = bytes.saturating_add(rows_bytes(&batch));
        check_bytes(bytes)?;
        let columns: Vec<ArrayRef> = batch
            .columns()
            .iter()
            .map(|column| cast(column, &DataType::Utf8))
            .collect::<Result<_, _>>()
            .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
        let [catalogs, schemas, names, kinds] = columns.as_slice() else {
            return Err(Failure::new(ErrorCode::Internal, "information_schema.tables has other columns"));
        };
        let text = |column: &ArrayRef, row| {
            let texts = column.as_string::<i32>();
            if texts.is_null(row) { String::new() } else { texts.value(row).to_owned() }
        };
        tables.extend((0..batch.num_rows()).map(|row| Table {
            catalog: text(catalogs, row),
            schema: text(schemas, row),
            name: text(names, row),
            kind: kind(&text(kinds, row)),
        }));
    }
    tables.sort_unstable();
    Ok(tables)
}

/// The type of a table as clients know it.
fn kind(table_type: &str) -> String {
    match table_type {
        "VIEW" => "VIEW".into(),
        _ => "TABLE".into(),
    }
}

pub(crate) fn check_bytes(bytes: u64) -> Result<(), Failure> {
    if bytes <= CATALOG_BYTES_MAX {
        return Ok(());
    }
    let message = format!("the list of tables has more than {CATALOG_BYTES_MAX} bytes");
    Err(Failure::new(ErrorCode::Limit, message).hint("ask for fewer tables at once"))
}

/// The columns of a table, with what clients want to know of them.
async fn columns(service: &dyn Service, table: &Table) -> Result<SchemaRef, Failure> {
    let names = [&table.catalog, &table.schema, &table.name].map(|name| quoted(name));
    let sql = format!("select * from {} limit 0", names.join("."));
    match service.prepare(&sql).await {
        Ok(prepared) => Ok(described(&plain_schema(&prepared.columns), table)),
        // A table that can't be read, for example because its source is gone, does not hide the others.
        Err(failure)
            if matches!(
                failure.code,
                ErrorCode::Sql | ErrorCode::Source | ErrorCode::Forbidden | ErrorCode::Data
            ) =>
        {
            tracing::warn!(table = table.name, %failure, "the columns of a table can't be found out");
            Ok(Arc::new(Schema::empty()))
        }
        Err(failure) => Err(failure),
    }
}

/// A name in SQL.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn described(schema: &Schema, table: &Table) -> SchemaRef {
    let field = |field: &Arc<Field>| {
        let mut known = HashMap::from([
            ("CATALOG_NAME", table.catalog.clone()),
            ("DB_SCHEMA_NAME", table.schema.clone()),
            // Both names are in use: the specification and older clients differ.
            ("SCHEMA_NAME", table.schema.clone()),
            ("TABLE_NAME", table.name.clone()),
            ("TYPE_NAME", type_name(field.data_type())),
            ("IS_AUTO_INCREMENT", "0".into()),
            ("IS_CASE_SENSITIVE", if is_text(field.data_type()) { "1" } else { "0" }.into()),
            ("IS_SEARCHABLE", "1".into()),
        ]);
        if let DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) =
            field.data_type()
        {
            known.insert("PRECISION", precision.to_string());
            known.insert("SCALE", scale.to_string());
        }
        let known = known.into_iter().map(|(key, value)| (format!("{METADATA_PREFIX}{key}"), value));
        let metadata = field.metadata().clone().into_iter().chain(known).collect();
        field.as_ref().clone().with_metadata(metadata)
    };
    let fields: Vec<_> = schema.fields().iter().map(field).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8)
}

/// The name of a type in SQL, as `XdbcTypeInfo` has it; that of Arrow for types that SQL does not have.
pub(crate) fn type_name(data_type: &DataType) -> String {
    let name = match data_type {
        DataType::Boolean => "BOOLEAN",
        DataType::Int8 => "TINYINT",
        DataType::Int16 => "SMALLINT",
        DataType::Int32 => "INTEGER",
        DataType::Int64 => "BIGINT",
        DataType::UInt8 => "TINYINT UNSIGNED",
        DataType::UInt16 => "SMALLINT UNSIGNED",
        DataType::UInt32 => "INTEGER UNSIGNED",
        DataType::UInt64 => "BIGINT UNSIGNED",
        DataType::Float32 => "REAL",
        DataType::Float64 => "DOUBLE",
        DataType::Decimal128(..) | DataType::Decimal256(..) => "DECIMAL",
        DataType::Utf8 | DataType::LargeUtf8 => "VARCHAR",
        DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => "BYTEA",
        DataType::Date32 | DataType::Date64 => "DATE",
        DataType::Time32(_) | DataType::Time64(_) => "TIME",
        DataType::Timestamp(_, None) => "TIMESTAMP",
        DataType::Timestamp(_, Some(_)) => "TIMESTAMP WITH TIME ZONE",
        DataType::Interval(_) => "INTERVAL",
        other => return other.to_string(),
    };
    name.to_owned()
}

/// Whether a name is the one that is asked for, if any.
fn is(wanted: Option<&str>, name: &str) -> bool {
    wanted.is_none_or(|wanted| wanted == name)
}

/// Whether a name matches a pattern, if there is one: `%` stands for any characters, `_` for one. A backslash before
/// one of these, or before a backslash, takes its meaning away.
fn matches(pattern: Option<&str>, name: &str) -> bool {
    let Some(pattern) = pattern else { return true };
    let mut parts = Vec::new();
    let mut characters = pattern.chars().peekable();
    while let Some(character) = characters.next() {
        parts.push(match character {
            '%' => Part::Any,
            '_' => Part::One,
            '\\' => match characters.next_if(|next| matches!(next, '%' | '_' | '\\')) {
                Some(next) => Part::Exactly(next),
                None => Part::Exactly('\\'),
            },
            other => Part::Exactly(other),
        });
    }
    let name: Vec<char> = name.chars().collect();
    // The last `%`, and the place in the name up to which it stands. Going back to it suffices, so that the time is
    // bounded by the product of both lengths.
    let (mut at, mut part, mut back) = (0, 0, None);
    while at < name.len() {
        match parts.get(part) {
            Some(Part::Any) => {
                back = Some((part, at));
                part += 1;
            }
            Some(Part::One) => (at, part) = (at + 1, part + 1),
            Some(Part::Exactly(wanted)) if *wanted == name[at] => (at, part) = (at + 1, part + 1),
            _ => match back {
                Some((any, upto)) => {
                    back = Some((any, upto + 1));
                    (at, part) = (upto + 1, any + 1);
                }
                None => return false,
            },
        }
    }
    parts[part..].iter().all(|part| matches!(part, Part::Any))
}

/// A part of a pattern.
enum Part {
    Any,
    One,
    Exactly(char),
}

fn build_failure(error: FlightError) -> Failure {
    Failure::new(ErrorCode::Internal, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_wildcards() {
        for (pattern, name, expected) in [
            ("%", "", true),
            ("%", "orders", true),
            ("orders", "orders", true),
            ("orders", "order", false),
            ("order", "orders", false),
            ("o%s", "orders", true),
            ("o%x", "orders", false),
            ("_rders", "orders", true),
            ("_", "", false),
            ("__", "ä1", true),
            ("%e%e%", "fee", true),
            ("%e%e%e%", "fee", false),
            ("line\\_item", "line_item", true),
            ("line\\_item", "lineXitem", false),
            ("line_item", "lineXitem", true),
            ("100\\%", "100%", true),
            ("a\\b", "a\\b", true),
            ("a\\\\b", "a\\b", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(Some(pattern), name), expected, "{pattern} {name}");
        }
        assert!(matches(None, "anything"));
        // It ends in time.
        assert!(!matches(Some(&"%a".repeat(200)), &"b".repeat(20_000)));
    }

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted("a"), "\"a\"");
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
