//! The types of a database that Arrow does not tell apart, such as `varchar(20)` or an enumeration, in the metadata of
//! fields. A new table in a database of the same kind gets them.
//!
//! Metadata can come from a file or a node, so a destination must check it before it becomes part of a statement.

use std::sync::Arc;

use arrow_schema::{Field, Schema};

/// The type of a column of PostgreSQL, as `format_type` prints it.
pub(crate) const POSTGRES: &str = "lightship.postgresql.type";
/// The type of a column of MySQL and MariaDB, as `information_schema` has it.
pub(crate) const MYSQL: &str = "lightship.mysql.type";

/// The schema whose fields have these types in their metadata, under `key`.
pub(crate) fn with_types(schema: &Schema, key: &str, types: Vec<Option<String>>) -> Schema {
    let fields = schema.fields().iter().zip(types).map(|(field, native)| {
        let Some(native) = native else { return Arc::clone(field) };
        let mut metadata = field.metadata().clone();
        metadata.insert(key.to_owned(), native);
        Arc::new(Field::clone(field).with_metadata(metadata))
    });
    Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone())
}
