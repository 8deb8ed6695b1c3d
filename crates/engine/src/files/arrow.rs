//! Arrow IPC files, with a footer, and Arrow IPC streams.

use std::path::Path;

use arrow_array::{RecordBatch, RecordBatchOptions, new_null_array};
use arrow_schema::{ArrowError, DataType, Schema};
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use lightship_sources::objects::ObjectError;

use super::arrow_messages::Reader;
use super::by_name::{Batches, FilePart, Format, Wanted};
use super::bytes::Bytes;
use super::columns;
use super::input::{FilePath, Input};
use super::wide_keys::{wide, with_wide_keys};
use crate::error::{EngineError, Result};

/// Files in Arrow's IPC format.
#[derive(Debug)]
pub(super) struct Ipc;

fn open(path: &FilePath) -> Result<Reader<Input>> {
    let opened = path.open().map_err(ArrowError::from).and_then(Reader::open);
    opened.map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &ArrowError) -> EngineError {
    match error {
        ArrowError::IoError(_, error) if ObjectError::find(error).is_some() => {
            EngineError::reading(path, error)
        }
        ArrowError::IoError(_, error) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
            EngineError::File(format!("{}: {error}", path.display()))
        }
        error => {
            let message = format!("{}: incomplete or damaged Arrow file: {error}", path.display());
            EngineError::bad_file(message, "write the file again")
        }
    }
}

impl Format for Ipc {
    fn name(&self) -> &'static str {
        "arrow"
    }

    fn columns(&self, path: &FilePath) -> Result<Schema> {
        let reader = open(path)?;
        columns::unique(path, reader.schema())?;
        Ok(with_wide_keys(reader.schema()))
    }

    fn unknown(&self) -> DataType {
        DataType::Null
    }

    fn common(&self, a: &DataType, b: &DataType) -> Option<DataType> {
        lightship_sources::common_type(a, b)
    }

    fn columns_of_stream(&self, name: &Path, _: Bytes) -> Result<Schema> {
        Err(needs_a_file(name))
    }

    fn read_stream(&self, name: &Path, _: Bytes, _: &Wanted, _: usize) -> Result<Batches> {
        Err(needs_a_file(name))
    }

    fn read(&self, part: FilePart, wanted: &Wanted, _: usize) -> Result<Batches> {
        let path = part.path.clone();
        let mut reader = open(&path)?;
        let places = wanted.places(&path, reader.schema())?;
        // The reader returns columns in the order of the file: convert the positions to that order.
        let mut sorted: Vec<usize> = places.iter().flatten().copied().collect();
        sorted.sort_unstable();
        let find = |place: Option<usize>| place.and_then(|place| sorted.binary_search(&place).ok());
        let places: Vec<Option<usize>> = places.into_iter().map(find).collect();
        reader.project(sorted);
        let is_read = match reader.batch_count() {
            Some(count) => {
                reader.keep(own_batches(count, &part));
                true
            }
            // A stream can only be read from its start.
            None => part.range.start == 0 && part.range.end > 0,
        };
        let batches = reader.take(if is_read { usize::MAX } else { 0 });
        let wanted = wanted.clone();
        Ok(Box::new(batches.map(move |batch| {
            let batch = batch.map_err(|e| unreadable(&path, &e))?;
            fit(&batch, &places, &wanted).map_err(|e| {
                EngineError::bad_file(
                    format!("{}: {e}", path.display()),
                    "the file was added or changed after the table was opened; reopen the table",
                )
            })
        })))
    }
}

fn needs_a_file(name: &Path) -> EngineError {
    EngineError::Internal(format!("{}: Arrow is read from a file", name.display()))
}

/// The batches of a part. Batch `i` of `count` is taken to begin at `i / count` of the file's bytes.
fn own_batches(count: usize, part: &FilePart) -> std::ops::Range<usize> {
    let first = |offset: u64| -> usize {
        let count = count as u128;
        let first = (u128::from(offset) * count).div_ceil(u128::from(part.bytes.max(1)));
        first.min(count) as usize
    };
    first(part.range.start)..first(part.range.end)
}

/// The wanted columns, cast to the types of the table.
fn fit(batch: &RecordBatch, places: &[Option<usize>], wanted: &Wanted) -> Result<RecordBatch, ArrowError> {
    // A value that does not fit is an error, not NULL.
    let exact = CastOptions { safe: false, ..CastOptions::default() };
    let columns = wanted.schema.fields().iter().zip(places).map(|(field, place)| {
        let Some(place) = place else { return Ok(new_null_array(field.data_type(), batch.num_rows())) };
        let column = batch.column(*place);
        let found = wide(column.data_type());
        if found == *field.data_type() {
            return cast_with_options(column, &found, &exact);
        }
        // A file that was added later may have any type.
        match lightship_sources::common_type(&found, field.data_type()) {
            Some(common) if common == *field.data_type() => cast_with_options(column, &common, &exact),
            _ => Err(ArrowError::SchemaError(format!(
                "column `{}` is {found}, but {} in the table",
                field.name(),
                field.data_type()
            ))),
        }
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(wanted.schema.clone(), columns, &options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_belongs_to_one_part() {
        for (count, bytes) in [(0, 10), (1, 10), (7, 1000), (100, 7)] {
            for cuts in [vec![], vec![1], vec![3, 5], vec![0, 6]] {
                let ends = cuts.iter().copied().chain([bytes]);
                let mut start = 0;
                let mut all = Vec::new();
                for end in ends {
                    let part = FilePart { path: "x".into(), bytes, changed: 0, range: start..end };
                    all.extend(own_batches(count, &part));
                    start = end;
                }
                assert_eq!(all, (0..count).collect::<Vec<_>>(), "{cuts:?}");
            }
        }
    }
}
