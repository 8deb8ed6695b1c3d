//! Answers other than rows of a table: blobs, as rows of one binary column.

use std::sync::{Arc, LazyLock};

use arrow_array::cast::AsArray;
use arrow_array::{BinaryArray, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::{Stream, StreamExt};
use lightship_transport::net::Answer;
use lightship_wire::control::{ErrorCode, Failure};

use crate::error::{EngineError, Result};

static SCHEMA: LazyLock<SchemaRef> =
    LazyLock::new(|| Arc::new(Schema::new(vec![Field::new("reply", DataType::Binary, false)])));

/// An answer of blobs.
pub(crate) fn blobs(blobs: impl Stream<Item = Result<Vec<u8>, Failure>> + Send + 'static) -> Answer {
    let rows = blobs.map(|blob| {
        let column = BinaryArray::from_vec(vec![blob?.as_slice()]);
        RecordBatch::try_new(SCHEMA.clone(), vec![Arc::new(column)])
            .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))
    });
    Answer::new(SCHEMA.clone(), None, Box::pin(rows))
}

/// The blob in a row of an answer.
///
/// # Errors
/// When there is no such row, or it is not a blob.
pub(crate) fn first_binary(rows: &RecordBatch, row: usize) -> Result<&[u8]> {
    match rows.columns() {
        [column] if row < rows.num_rows() => column.as_binary_opt::<i32>().map(|column| column.value(row)),
        _ => None,
    }
    .ok_or_else(|| EngineError::Internal("the answer of another node has unexpected columns or rows".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_rows_has_no_blob() {
        let column = BinaryArray::from_vec(vec![b"one"]);
        let rows = RecordBatch::try_new(SCHEMA.clone(), vec![Arc::new(column)]).unwrap();
        assert_eq!(first_binary(&rows, 0).unwrap(), b"one");
        assert!(first_binary(&rows, 1).is_err());
        assert!(first_binary(&rows.slice(0, 0), 0).is_err());
    }
}
