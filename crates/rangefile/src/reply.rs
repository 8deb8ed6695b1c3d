//! Answers other than rows: messages, as rows of one binary column.

use std::sync::{Arc, LazyLock};

use arrow_array::cast::AsArray;
use arrow_array::{BinaryArray, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::stream;
use lightship_transport::net::Answer;
use lightship_wire::control::{ErrorCode, Failure};

static SCHEMA: LazyLock<SchemaRef> =
    LazyLock::new(|| Arc::new(Schema::new(vec![Field::new("reply", DataType::Binary, false)])));

/// An answer of messages.
pub(crate) fn blobs(blobs: Vec<Vec<u8>>) -> Answer {
    let rows = blobs.into_iter().map(|blob| {
        let column = BinaryArray::from_vec(vec![blob.as_slice()]);
        RecordBatch::try_new(SCHEMA.clone(), vec![Arc::new(column)])
            .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))
    });
    let rows: Vec<_> = rows.collect();
    Answer::new(SCHEMA.clone(), None, Box::pin(stream::iter(rows)))
}

/// The message in a row of an answer; `None` if there is no such row, or it is not a message.
pub(crate) fn blob(rows: &RecordBatch, row: usize) -> Option<&[u8]> {
    match rows.columns() {
        [column] if row < rows.num_rows() => column.as_binary_opt::<i32>().map(|column| column.value(row)),
        _ => None,
    }
}
