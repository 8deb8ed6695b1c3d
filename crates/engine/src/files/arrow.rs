//! Arrow IPC files, with a footer, and Arrow IPC streams.

use arrow_schema::{ArrowError, DataType, Schema};

use super::arrow_messages::Reader;
use super::binary::{fit, projection, unreadable};
use super::by_name::{Batches, FilePart, Format, Wanted};
use super::columns;
use super::input::{FilePath, Input};
use super::wide_keys::with_wide_keys;
use crate::error::Result;

/// Files in Arrow's IPC format.
#[derive(Debug)]
pub(super) struct Ipc;

fn open(path: &FilePath) -> Result<Reader<Input>> {
    let opened = path.open().map_err(ArrowError::from).and_then(Reader::open);
    opened.map_err(|error| unreadable(path, "Arrow", &error))
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

    fn read(&self, part: FilePart, wanted: &Wanted, _: usize) -> Result<Batches> {
        let path = part.path.clone();
        let mut reader = open(&path)?;
        let places = wanted.places(&path, reader.schema())?;
        let (read, places) = projection(&places);
        reader.project(read);
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
            fit(&path, &batch.map_err(|e| unreadable(&path, "Arrow", &e))?, &places, &wanted)
        })))
    }
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
