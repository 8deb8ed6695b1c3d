//! Dictionaries with keys that have room for the values of all batches.

use arrow_schema::{DataType, Fields, Schema};

/// Columns whose dictionaries have keys of 32 bits: each batch of a file may bring a dictionary of its own, and an
/// operator that gathers rows of several makes one of all their values, for which 8 or 16 bits may be too few.
pub(super) fn with_wide_keys(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| match field.data_type() {
        DataType::Dictionary(keys, values) if keys.primitive_width().is_some_and(|bytes| bytes < 4) => {
            let wide = DataType::Dictionary(Box::new(DataType::Int32), values.clone());
            std::sync::Arc::new(field.as_ref().clone().with_data_type(wide))
        }
        _ => field.clone(),
    });
    Schema::new_with_metadata(fields.collect::<Fields>(), schema.metadata().clone())
}
