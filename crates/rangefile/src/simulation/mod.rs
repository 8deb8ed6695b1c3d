//! Checks of the whole: every order of events of a split, power loss, and random histories of a cluster whose
//! network, disks and nodes fail. Everything random comes from a seed, which is printed when a check fails.

mod cases;
mod cluster;
pub(crate) mod disk;
mod disks;
mod files;
mod full;
mod groups;
mod histories;
mod images;
mod network;
mod power;
mod protocol;
mod silent;
mod together;

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use prost::Message;

use crate::definition::{Capacity, Definition};
use crate::request::{Request, RequestKind, WriteMode};

/// A runtime of one thread whose time passes only while nothing else happens.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("text", DataType::Utf8, false),
    ]))
}

fn definition(capacity: u64) -> Definition {
    Definition::new("t", &schema(), &["id".into()], Capacity::Records(capacity)).expect("a definition")
}

fn rows(ids: &[i64], text: &str) -> RecordBatch {
    let texts = StringArray::from(vec![text; ids.len()]);
    let ids = Int64Array::from(ids.to_vec());
    RecordBatch::try_new(schema(), vec![Arc::new(ids), Arc::new(texts)]).expect("rows")
}

/// The keys and the texts of rows. Deletions have no text.
fn pairs(rows: &RecordBatch) -> Vec<(i64, String)> {
    let (ids, texts) = (rows.column(0).as_primitive::<Int64Type>(), rows.column(1).as_string::<i32>());
    (0..rows.num_rows())
        .map(|row| (ids.value(row), if texts.is_null(row) { "" } else { texts.value(row) }.to_owned()))
        .collect()
}

/// The write in a request, if it is one.
fn write_in(body: &[u8], definition: &Definition) -> Option<(WriteMode, Vec<(i64, String)>)> {
    let Some(RequestKind::Write(write)) = Request::decode(body).expect("a request").kind else { return None };
    let mode = WriteMode::try_from(write.mode).expect("a mode");
    let schema = if mode == WriteMode::Delete { definition.loose() } else { &definition.schema };
    let rows = arrow_buffer::Buffer::from_vec(write.rows);
    Some((mode, pairs(&lightship_wire::decode(schema, rows, 1 << 30).expect("rows"))))
}
