//! Values of nested columns as JSON, one text each, as [`super::Format::Json`] writes them.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_json::writer::make_encoder;
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::json::{self, check, is_finite};
use super::type_mapping::TypeMapping;
use super::unfit;
use crate::Result;

/// Encodes the values of a column.
pub(crate) struct JsonValues {
    schema: SchemaRef,
    type_mapping: TypeMapping,
}

impl JsonValues {
    /// The encoder for a column.
    ///
    /// # Errors
    /// For a type that JSON does not have.
    pub(crate) fn new(field: &Field) -> Result<Self> {
        let schema = Arc::new(Schema::new(vec![field.clone()]));
        Ok(Self { type_mapping: check(&schema)?, schema })
    }

    /// The values of `array` as JSON. An error names the row, from 1 in the array.
    pub(crate) fn texts(&self, array: &ArrayRef) -> Result<ArrayRef> {
        let batch = RecordBatch::try_new(self.schema.clone(), vec![array.clone()])?;
        let batch = self.type_mapping.apply(&batch)?;
        let (schema, array) = (batch.schema(), batch.column(0));
        let fail = |row: usize, reason: &str, hint: &str| unfit(row, schema.field(0).name(), reason, hint);
        let options = json::options();
        let mut encoder = make_encoder(&schema.fields()[0], array, &options)?;
        let nulls = array.logical_nulls();
        let mut texts = StringBuilder::with_capacity(array.len(), 16 * array.len());
        let (mut bytes, mut total) = (Vec::new(), 0);
        for row in 0..array.len() {
            if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                texts.append_null();
                continue;
            }
            if !is_finite(array, row) {
                let hint = "replace it in the query, as by NULL or a text";
                return Err(fail(row, json::NOT_FINITE, hint));
            }
            if repeats_key(array, row) {
                return Err(fail(row, "a map with the same key twice", "keep one of them in the query"));
            }
            bytes.clear();
            encoder.encode(row, &mut bytes);
            total += bytes.len();
            let text = std::str::from_utf8(&bytes).ok().filter(|_| i32::try_from(total).is_ok());
            let too_long =
                || fail(row, "values of more than 2 GiB as JSON", "use smaller batches (--batch-rows)");
            texts.append_value(text.ok_or_else(too_long)?);
        }
        Ok(Arc::new(texts.finish()))
    }
}

/// Whether a map in a value has a key twice. The schema bounds the depth of the recursion.
fn repeats_key(array: &dyn Array, row: usize) -> bool {
    let any = |items: ArrayRef| (0..items.len()).any(|item| repeats_key(&items, item));
    array.is_valid(row)
        && match array.data_type() {
            DataType::Struct(_) => array.as_struct().columns().iter().any(|column| repeats_key(column, row)),
            DataType::List(_) => any(array.as_list::<i32>().value(row)),
            DataType::LargeList(_) => any(array.as_list::<i64>().value(row)),
            DataType::ListView(_) => any(array.as_list_view::<i32>().value(row)),
            DataType::LargeListView(_) => any(array.as_list_view::<i64>().value(row)),
            DataType::FixedSizeList(..) => any(array.as_fixed_size_list().value(row)),
            DataType::Map(..) => {
                let entries = array.as_map().value(row);
                let mut seen = HashSet::new();
                let keys = entries.column(0);
                let is_repeated = match keys.data_type() {
                    DataType::Utf8 => keys.as_string::<i32>().iter().any(|key| !seen.insert(key)),
                    DataType::LargeUtf8 => keys.as_string::<i64>().iter().any(|key| !seen.insert(key)),
                    DataType::Utf8View => keys.as_string_view().iter().any(|key| !seen.insert(key)),
                    _ => false,
                };
                is_repeated || any(entries.column(1).clone())
            }
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use arrow_array::builder::{Int32Builder, ListBuilder, MapBuilder};
    use arrow_array::{Float64Array, StructArray};

    use super::*;

    fn texts(array: &ArrayRef) -> Result<Vec<Option<String>>> {
        let field = Field::new("a", array.data_type().clone(), true);
        let texts = JsonValues::new(&field)?.texts(array)?;
        Ok(texts.as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect())
    }

    #[test]
    fn nested_values_become_json() {
        let mut lists = ListBuilder::new(ListBuilder::new(Int32Builder::new()));
        lists.values().append_value([Some(1), None]);
        lists.values().append_null();
        lists.append(true);
        lists.append_null();
        lists.append(true);
        let lists: ArrayRef = Arc::new(lists.finish());
        let expected = [Some("[[1,null],null]"), None, Some("[]")];
        assert_eq!(texts(&lists).unwrap(), expected.map(|text| text.map(str::to_owned)));
        assert_eq!(texts(&lists.slice(1, 2)).unwrap().len(), 2);
    }

    #[test]
    fn values_that_json_would_change_are_refused() {
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.5, f64::NAN]));
        let field = Arc::new(Field::new("x", DataType::Float64, true));
        let structs: ArrayRef = Arc::new(StructArray::from(vec![(field, floats)]));
        let error = texts(&structs).unwrap_err().to_string();
        assert!(error.contains("row 2, column `a`") && error.contains("not-a-number"), "{error}");
        let mut map = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
        for key in ["a", "b", "a"] {
            map.keys().append_value(key);
            map.values().append_value(1);
        }
        map.append(true).unwrap();
        let error = texts(&(Arc::new(map.finish()) as ArrayRef)).unwrap_err().to_string();
        assert!(error.contains("the same key twice"), "{error}");
    }
}
