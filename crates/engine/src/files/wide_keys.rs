//! Widens dictionary keys so that they have room for the values of all batches.
//!
//! Each batch of a file may have its own dictionary. An operator that combines rows of several
//! batches merges their dictionaries, and keys of 8 or 16 bits may be too small for the result.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};

/// The type with dictionary keys of at least 32 bits, also inside lists and structs. Maps, unions,
/// runs and list views are unchanged.
pub(super) fn wide(data_type: &DataType) -> DataType {
    match data_type {
        DataType::List(item) => DataType::List(wide_field(item)),
        DataType::LargeList(item) => DataType::LargeList(wide_field(item)),
        DataType::FixedSizeList(item, count) => DataType::FixedSizeList(wide_field(item), *count),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(wide_field).collect()),
        other => wide_itself(other).unwrap_or_else(|| other.clone()),
    }
}

fn wide_field(field: &FieldRef) -> FieldRef {
    Arc::new(field.as_ref().clone().with_data_type(wide(field.data_type())))
}

fn wide_itself(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Dictionary(keys, values) if keys.primitive_width().is_some_and(|bytes| bytes < 4) => {
            Some(DataType::Dictionary(Box::new(DataType::Int32), values.clone()))
        }
        _ => None,
    }
}

fn with_types(schema: &Schema, of: impl Fn(&Field) -> Option<DataType>) -> Schema {
    let fields = schema.fields().iter().map(|field| match of(field) {
        Some(data_type) => Arc::new(field.as_ref().clone().with_data_type(data_type)),
        None => field.clone(),
    });
    Schema::new_with_metadata(fields.collect::<Fields>(), schema.metadata().clone())
}

/// The columns with wide keys, also inside lists and structs.
pub(super) fn with_wide_keys(schema: &Schema) -> Schema {
    with_types(schema, |field| Some(wide(field.data_type())))
}

/// The columns with wide keys only where the column itself is a dictionary: DataFusion's Parquet
/// reader casts no others.
pub(super) fn with_wide_keys_of_columns(schema: &Schema) -> Schema {
    with_types(schema, |field| wide_itself(field.data_type()))
}
