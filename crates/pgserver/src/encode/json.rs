//! Structures and maps, as JSON.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef};
use arrow_json::writer::{EncoderOptions, make_encoder};
use arrow_schema::{DataType, FieldRef};
use bytes::{BufMut, BytesMut};

use crate::error::{PgError, PgResult, code};

pub(super) fn options() -> EncoderOptions {
    EncoderOptions::default().with_explicit_nulls(true)
}

/// Appends the value of a row.
pub(super) fn put_json(array: &ArrayRef, field: &FieldRef, row: usize, out: &mut BytesMut) -> PgResult<()> {
    if !is_finite(array, row) {
        let reason = "JSON has no value for not-a-number or infinity";
        return Err(PgError::new(code::NUMERIC_OUT_OF_RANGE, reason).hint("cast it to text in the query"));
    }
    let mut text = Vec::new();
    // One row only: the encoder of an array computes things for all of its rows.
    make_encoder(field, &array.slice(row, 1), &options())?.encode(0, &mut text);
    out.put_slice(&text);
    Ok(())
}

/// Whether all floats in a value are finite: the encoder writes `null` for others. The schema bounds the depth of the
/// recursion.
fn is_finite(array: &dyn Array, row: usize) -> bool {
    let all = |items: ArrayRef| (0..items.len()).all(|item| is_finite(&items, item));
    array.is_null(row)
        || match array.data_type() {
            DataType::Float16 => array.as_primitive::<Float16Type>().value(row).is_finite(),
            DataType::Float32 => array.as_primitive::<Float32Type>().value(row).is_finite(),
            DataType::Float64 => array.as_primitive::<Float64Type>().value(row).is_finite(),
            DataType::Struct(_) => array.as_struct().columns().iter().all(|column| is_finite(column, row)),
            DataType::List(_) => all(array.as_list::<i32>().value(row)),
            DataType::LargeList(_) => all(array.as_list::<i64>().value(row)),
            DataType::ListView(_) => all(array.as_list_view::<i32>().value(row)),
            DataType::LargeListView(_) => all(array.as_list_view::<i64>().value(row)),
            DataType::FixedSizeList(..) => all(array.as_fixed_size_list().value(row)),
            DataType::Map(..) => all(Arc::new(array.as_map().value(row))),
            _ => true,
        }
}
