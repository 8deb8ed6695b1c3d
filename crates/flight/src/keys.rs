//! Keys of tables, from the service's `information_schema`.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int32Array, RecordBatch, StringArray};
use arrow_cast::cast;
use arrow_flight::sql::CommandGetPrimaryKeys;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::TryStreamExt;
use lightship_transport::net::Service;
use lightship_wire::control::{ErrorCode, Failure, Reason};
use lightship_wire::rows_bytes;

use crate::catalog::check_bytes;
use crate::front::query_of;

/// The columns of the primary keys of a table, one row each.
const KEYS_SQL: &str = "select table_catalog, table_schema, table_name, column_name, constraint_name, \
    ordinal_position from information_schema.key_column_usage";

/// The primary key of the table that is asked for: a row for each column.
///
/// # Errors
/// If the service can't list its keys.
pub(crate) async fn primary_keys(
    service: &dyn Service,
    command: &CommandGetPrimaryKeys,
) -> Result<RecordBatch, Failure> {
    let internal = |error: arrow_schema::ArrowError| Failure::new(ErrorCode::Internal, error.to_string());
    let mut rows = match service.query(&query_of(KEYS_SQL)).await {
        Ok(answer) => answer.rows,
        // A service without keys.
        Err(failure) if failure.reason == Some(Reason::UndefinedTable) => {
            return Ok(RecordBatch::new_empty(primary_key_columns()));
        }
        Err(failure) => return Err(failure),
    };
    let (mut found, mut bytes) = (Vec::new(), 0_u64);
    while let Some(batch) = rows.try_next().await? {
        bytes = bytes.saturating_add(rows_bytes(&batch));
        check_bytes(bytes)?;
        let texts = (0..5).map(|column| cast(batch.column(column), &DataType::Utf8));
        let texts: Vec<ArrayRef> = texts.collect::<Result<_, _>>().map_err(internal)?;
        let positions = cast(batch.column(5), &DataType::Int64).map_err(internal)?;
        for row in 0..batch.num_rows() {
            let names: [String; 5] =
                std::array::from_fn(|column| texts[column].as_string::<i32>().value(row).to_owned());
            let [catalog, schema, table, ..] = &names;
            let is = |wanted: &Option<String>, name: &String| wanted.as_ref().is_none_or(|w| w == name);
            if is(&command.catalog, catalog) && is(&command.db_schema, schema) && command.table == *table {
                found.push((names, positions.as_primitive::<Int64Type>().value(row) as i32));
            }
        }
    }
    found.sort_unstable_by(|(a, at), (b, bt)| (&a[..3], at).cmp(&(&b[..3], bt)));
    let text = |column: usize| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(found.iter().map(|(names, _)| &names[column])))
    };
    let mut columns: Vec<ArrayRef> = (0..5).map(text).collect();
    columns.push(Arc::new(Int32Array::from_iter_values(found.iter().map(|(_, position)| *position))));
    RecordBatch::try_new(primary_key_columns(), columns).map_err(internal)
}

/// The columns of the primary keys of a table.
pub(crate) fn primary_key_columns() -> SchemaRef {
    let text = |name, nullable| Field::new(name, DataType::Utf8, nullable);
    Arc::new(Schema::new(vec![
        text("catalog_name", true),
        text("db_schema_name", true),
        text("table_name", false),
        text("column_name", false),
        text("key_name", true),
        Field::new("key_sequence", DataType::Int32, false),
    ]))
}

/// The columns of imported and exported keys.
pub(crate) fn foreign_key_columns() -> SchemaRef {
    let text = |name, nullable| Field::new(name, DataType::Utf8, nullable);
    Arc::new(Schema::new(vec![
        text("pk_catalog_name", true),
        text("pk_db_schema_name", true),
        text("pk_table_name", false),
        text("pk_column_name", false),
        text("fk_catalog_name", true),
        text("fk_db_schema_name", true),
        text("fk_table_name", false),
        text("fk_column_name", false),
        Field::new("key_sequence", DataType::Int32, false),
        text("fk_key_name", true),
        text("pk_key_name", true),
        Field::new("update_rule", DataType::UInt8, false),
        Field::new("delete_rule", DataType::UInt8, false),
    ]))
}
