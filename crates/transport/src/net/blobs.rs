//! Answers other than rows of a table: messages, as rows of one binary column.

use std::sync::{Arc, LazyLock};

use arrow_array::cast::AsArray;
use arrow_array::{BinaryArray, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::{Stream, StreamExt};
use lightship_wire::control::{ErrorCode, Failure};

use super::Answer;

static SCHEMA: LazyLock<SchemaRef> =
    LazyLock::new(|| Arc::new(Schema::new(vec![Field::new("reply", DataType::Binary, false)])));

/// An answer of messages.
pub fn blobs(blobs: impl Stream<Item = Result<Vec<u8>, Failure>> + Send + 'static) -> Answer {
    let rows = blobs.map(|blob| {
        let column = BinaryArray::from_vec(vec![blob?.as_slice()]);
        RecordBatch::try_new(SCHEMA.clone(), vec![Arc::new(column)])
            .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))
    });
    Answer::new(SCHEMA.clone(), None, Box::pin(rows))
}

/// The message in a row of an answer; `None` if there is no such row, or it is not a message.
pub fn blob(rows: &RecordBatch, row: usize) -> Option<&[u8]> {
    match rows.columns() {
        [column] if row < rows.num_rows() => column.as_binary_opt::<i32>().map(|column| column.value(row)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_rows_has_no_blob() {
        let column = BinaryArray::from_vec(vec![b"one"]);
        let rows = RecordBatch::try_new(SCHEMA.clone(), vec![Arc::new(column)]).unwrap();
        assert_eq!(blob(&rows, 0).unwrap(), b"one");
        assert!(blob(&rows, 1).is_none());
        assert!(blob(&rows.slice(0, 0), 0).is_none());
    }
}
