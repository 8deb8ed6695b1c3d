//! Values of parameters, as SQLite has them.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::DataType;
use rusqlite::types::Value;

use crate::Result;
use crate::parameters::{check_rows, unfit};

/// The values of one row.
///
/// # Errors
/// [`crate::SourceError::Parameters`] when one can't be bound.
pub(super) fn values(row: &RecordBatch) -> Result<Vec<Value>> {
    check_rows(row)?;
    row.columns().iter().enumerate().map(|(index, column)| value(index, column)).collect()
}

fn value(index: usize, column: &ArrayRef) -> Result<Value> {
    let to = |column: &ArrayRef, data_type: &DataType| {
        cast_with_options(column, data_type, &CastOptions { safe: false, ..Default::default() })
            .map_err(|error| unfit(index, &error.to_string(), "give a value of another type".into()))
    };
    let column = &match column.data_type() {
        DataType::Dictionary(_, values) => to(column, values)?,
        DataType::RunEndEncoded(_, values) => to(column, values.data_type())?,
        _ => column.clone(),
    };
    if column.is_null(0) || column.data_type().is_null() {
        return Ok(Value::Null);
    }
    Ok(match column.data_type() {
        DataType::Boolean => Value::Integer(column.as_boolean().value(0).into()),
        from if from.is_integer() => {
            Value::Integer(to(column, &DataType::Int64)?.as_primitive::<Int64Type>().value(0))
        }
        from if from.is_floating() => {
            let value = to(column, &DataType::Float64)?.as_primitive::<Float64Type>().value(0);
            if value.is_nan() {
                return Err(unfit(index, "NaN, which SQLite takes for NULL", "give NULL or a number".into()));
            }
            Value::Real(value)
        }
        from if from.is_string() => {
            Value::Text(to(column, &DataType::Utf8)?.as_string::<i32>().value(0).to_owned())
        }
        from if from.is_binary() => {
            Value::Blob(to(column, &DataType::Binary)?.as_binary::<i32>().value(0).to_vec())
        }
        other => {
            let reason = format!("SQLite has no values of type {other}");
            return Err(unfit(index, &reason, "give it as the table stores it: as text or a number".into()));
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{BinaryArray, BooleanArray, Date32Array, Float32Array, NullArray, UInt64Array};

    use super::*;

    #[test]
    fn values_keep_their_types_or_are_refused() {
        let of = |column: ArrayRef| value(0, &column);
        assert_eq!(of(Arc::new(BooleanArray::from(vec![true]))).unwrap(), Value::Integer(1));
        assert_eq!(of(Arc::new(Float32Array::from(vec![0.5]))).unwrap(), Value::Real(0.5));
        assert_eq!(of(Arc::new(BinaryArray::from(vec![b"\0".as_slice()]))).unwrap(), Value::Blob(vec![0]));
        assert_eq!(of(Arc::new(NullArray::new(1))).unwrap(), Value::Null);
        assert!(of(Arc::new(UInt64Array::from(vec![u64::MAX]))).is_err());
        assert!(of(Arc::new(Float32Array::from(vec![f32::NAN]))).is_err());
        assert!(of(Arc::new(Date32Array::from(vec![1]))).is_err());
    }
}
