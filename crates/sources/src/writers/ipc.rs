//! Arrow IPC, as a file and as a stream.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::ByteViewType;
use arrow_array::{
    Array, ArrayRef, GenericByteViewArray, RecordBatch, RecordBatchOptions, make_array, new_empty_array,
};
use arrow_data::transform::MutableArrayData;
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::{ArrowError, DataType, SchemaRef};

use super::BatchWriter;
use super::output::Output;
use super::type_mapping::{TypeMapping, decoded, find};
use crate::Result;

/// Decides which types a file replaces: it allows one dictionary per column, and
/// each batch of a result may have its own.
pub(super) fn check_file(schema: &SchemaRef) -> TypeMapping {
    TypeMapping::new(schema, &|field| match field.data_type() {
        dictionary @ DataType::Dictionary(..) => decoded(dictionary),
        _ => None,
    })
}

pub(super) struct File {
    writer: FileWriter<Output>,
    type_mapping: TypeMapping,
}

impl File {
    pub(super) fn new(output: Output, type_mapping: TypeMapping) -> Result<Self> {
        Ok(Self { writer: FileWriter::try_new(output, type_mapping.schema())?, type_mapping })
    }
}

impl BatchWriter for File {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        Ok(self.writer.write(&tidied(&self.type_mapping.apply(batch)?)?)?)
    }

    fn output(&mut self) -> &mut Output {
        self.writer.get_mut()
    }

    fn finish(self: Box<Self>) -> Result<Output> {
        Ok(self.writer.into_inner()?)
    }
}

pub(super) struct Stream {
    writer: StreamWriter<Output>,
}

impl Stream {
    pub(super) fn new(mut output: Output, schema: &SchemaRef) -> Result<Self> {
        // A stream begins with its columns, which an existing one has.
        let continues = output.continues();
        output.mute(continues);
        let mut writer = StreamWriter::try_new(output, schema)?;
        writer.get_mut().mute(false);
        Ok(Self { writer })
    }
}

impl BatchWriter for Stream {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        Ok(self.writer.write(&tidied(batch)?)?)
    }

    fn output(&mut self) -> &mut Output {
        self.writer.get_mut()
    }

    fn finish(self: Box<Self>) -> Result<Output> {
        Ok(self.writer.into_inner()?)
    }
}

/// The batch, with columns replaced that the library would write incorrectly or wastefully.
fn tidied(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().map(tidied_column).collect::<Result<_, _>>()?;
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(batch.schema(), columns, &rows)
}

fn tidied_column(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match column.data_type() {
        other if column.is_empty() => Ok(new_empty_array(other)),
        DataType::Utf8View => Ok(trimmed(column, column.as_string_view())),
        DataType::BinaryView => Ok(trimmed(column, column.as_binary_view())),
        // The library writes a slice of a union, as a list's offsets may select,
        // from the union's beginning, and invalid run ends for an empty slice of
        // runs. A copy is not a slice.
        other
            if find(other, &|t| matches!(t, DataType::Union(..) | DataType::RunEndEncoded(..))).is_some() =>
        {
            let data = column.to_data();
            let mut copy = MutableArrayData::new(vec![&data], false, data.len());
            copy.try_extend(0, 0, data.len())?;
            Ok(make_array(copy.freeze()))
        }
        _ => Ok(Arc::clone(column)),
    }
}

/// Views without the text of rows that were removed: the library writes every
/// buffer completely, in every batch that shares it.
fn trimmed<T: ByteViewType>(column: &ArrayRef, views: &GenericByteViewArray<T>) -> ArrayRef {
    let held: usize = views.data_buffers().iter().map(|buffer| buffer.len()).sum();
    match held > 2 * views.total_buffer_bytes_used() {
        true => Arc::new(views.gc()),
        false => Arc::clone(column),
    }
}
