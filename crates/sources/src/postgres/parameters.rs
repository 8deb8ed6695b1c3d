//! Values of parameters, as the messages of the extended protocol carry them.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::cast;
use arrow_schema::DataType;
use bytes::BytesMut;

use super::assign::{WriteMethod, way};
use super::encode::{ColumnType, Encoder};
use super::limit::Limit;
use super::types::PgType;
use crate::Result;
use crate::tables::cells::plain;

/// Bytes of the length before an encoded value.
const LENGTH_BYTES: usize = 4;

/// A value: its format (0 text, 1 binary) and its bytes; `None` is NULL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BoundValue {
    pub(super) format: i16,
    pub(super) bytes: Option<Vec<u8>>,
}

/// A parameter of a statement, as the server requires it.
#[derive(Debug, Clone)]
pub(super) struct Parameter {
    pub(super) kind: PgType,
    /// The type of the elements, for an array.
    pub(super) element: u32,
    /// The version of the server.
    pub(super) version: u32,
}

/// The values of one row, for these parameters.
///
/// # Errors
/// [`SourceError::Parameters`] when there are fewer or more values than parameters, or one can't be sent.
pub(super) fn encode(row: &RecordBatch, parameters: &[Parameter]) -> Result<Vec<BoundValue>> {
    crate::parameters::check_count(row, parameters.len())?;
    let values = row.columns().iter().zip(parameters).enumerate();
    values.map(|(index, (column, parameter))| value(index, column, parameter)).collect()
}

fn value(index: usize, column: &ArrayRef, parameter: &Parameter) -> Result<BoundValue> {
    let Parameter { kind, element, version } = parameter;
    let unfit = |reason: String, hint: String| crate::parameters::unfit(index, &reason, hint);
    let from = plain(column.data_type());
    if column.is_null(0) || from.is_null() {
        return Ok(BoundValue { format: 1, bytes: None });
    }
    if from.is_string() {
        // The server parses text for any type.
        let text = cast(column, &DataType::Utf8)?;
        if text.is_null(0) {
            return Ok(BoundValue { format: 0, bytes: None });
        }
        let text = text.as_string::<i32>().value(0);
        if text.contains('\0') {
            return Err(unfit("PostgreSQL's text can't hold a NUL character".into(), "remove it".into()));
        }
        return Ok(BoundValue { format: 0, bytes: Some(text.as_bytes().to_vec()) });
    }
    let hint = format!(
        "give it as text, or cast the parameter in the SQL to a type that fits, as in ${}::bigint",
        index + 1
    );
    if way(column.data_type(), kind) != Some(WriteMethod::Binary) {
        let wanted = kind.data_type();
        return Err(unfit(format!("a value of type {from} where PostgreSQL expects {wanted}"), hint));
    }
    let to = ColumnType { kind: kind.clone(), element: *element, limit: Limit::None, version: *version };
    let mut bytes = BytesMut::new();
    let encoder = Encoder::new(column, &to).map_err(|error| unfit(error.to_string(), hint.clone()))?;
    encoder.put(0, &mut bytes).map_err(|error| unfit(error.reason, error.hint.into()))?;
    let is_null = bytes.first_chunk::<LENGTH_BYTES>() == Some(&(-1i32).to_be_bytes());
    let bytes = bytes.split_off(LENGTH_BYTES).to_vec();
    Ok(BoundValue { format: 1, bytes: (!is_null).then_some(bytes) })
}
