//! Avro object container files: a header with the schema, then blocks of rows with a marker after each.
//!
//! Blocks are found and checked here, and decoded by arrow-avro, whose own readers of whole files are not used (decision 0032).

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_avro::codec::Tz;
use arrow_avro::errors::AvroError;
use arrow_avro::reader::{AsyncAvroFileReader, AsyncFileReader, HeaderInfo, read_header_info};
use arrow_schema::{DataType, Schema};
use bytes::Bytes;
use futures::future::{BoxFuture, ready};
use futures::{FutureExt as _, StreamExt as _};

use super::binary::{fit, projection, unreadable};
use super::by_name::{Batches, FilePart, Format, Wanted, until_end};
use super::columns;
use super::input::{FilePath, Input};
use super::wide_keys::with_wide_keys;
use crate::error::{EngineError, Result};

/// How files begin.
pub(super) const MAGIC: &[u8] = b"Obj\x01";

/// Bytes of the marker that ends the header and each block.
const MARKER_BYTES: usize = 16;

/// Blocks are decoded together up to this many bytes.
const GROUP_BYTES: usize = 1 << 20;

/// Bytes in which the marker of a part is looked for at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Avro object container files.
#[derive(Debug)]
pub(super) struct Avro;

impl Format for Avro {
    fn name(&self) -> &'static str {
        "avro"
    }

    fn columns(&self, path: &FilePath) -> Result<Schema> {
        let (header, _) = open(path)?;
        let schema = Decoder::new(header, 1).schema(path)?;
        columns::unique(path, &schema)?;
        Ok(with_wide_keys(&schema))
    }

    fn unknown(&self) -> DataType {
        DataType::Null
    }

    fn common(&self, a: &DataType, b: &DataType) -> Option<DataType> {
        lightship_sources::common_type(a, b)
    }

    fn read(&self, part: FilePart, wanted: &Wanted, batch_rows: usize) -> Result<Batches> {
        let path = part.path.clone();
        let (header, input) = open(&path)?;
        let mut decoder = Decoder::new(header, batch_rows);
        let all = decoder.schema(&path)?;
        let places = wanted.places(&path, &all)?;
        let (mut read, places) = projection(&places);
        if read.is_empty() {
            // Rows of no columns could not be counted.
            read.extend((!all.fields().is_empty()).then_some(0));
        }
        decoder.projection = Some(read).filter(|read| read.len() < all.fields().len());
        let mut blocks = Blocks::new(input, &decoder.header, part.range, part.bytes)
            .map_err(|e| unreadable(&path, "Avro", &e))?;
        let wanted = wanted.clone();
        let mut decoded: Option<Decoded> = None;
        Ok(until_end(move || {
            loop {
                if let Some(group) = &mut decoded {
                    if let Some(batch) = group.next().map_err(|e| unreadable(&path, "Avro", &e))? {
                        return fit(&path, &batch, &places, &wanted).map(Some);
                    }
                    if group.read != group.told {
                        let message = format!(
                            "{}: incomplete or damaged Avro file: blocks before byte {} say that they have {} rows, but \
                             have {}",
                            path.display(),
                            blocks.position,
                            group.told,
                            group.read
                        );
                        return Err(EngineError::bad_file(message, "write the file again"));
                    }
                }
                let Some(group) = blocks.next().map_err(|e| unreadable(&path, "Avro", &e))? else {
                    return Ok(None);
                };
                decoded = Some(decoder.decode(group).map_err(|e| unreadable(&path, "Avro", &e))?);
            }
        }))
    }
}

/// Opens a file and reads its header.
fn open(path: &FilePath) -> Result<(HeaderInfo, BufReader<Input>)> {
    let input = path.open().map_err(|e| unreadable(path, "Avro", &e))?;
    let mut input = BufReader::with_capacity(CHUNK_BYTES, input);
    let first = input.fill_buf().map_err(|e| unreadable(path, "Avro", &e))?;
    if !first.starts_with(&MAGIC[..first.len().min(MAGIC.len())]) {
        let message = format!("{}: not an Avro file", path.display());
        return Err(EngineError::bad_file(message, "name its format, as in --input-format csv"));
    }
    let header = read_header_info(&mut input).map_err(|e| unreadable(path, "Avro", &e))?;
    Ok((header, input))
}

/// Whole blocks.
struct Group {
    /// The marker before the first block, and the blocks.
    bytes: Bytes,
    /// How many rows they say that they have.
    rows: u64,
}

/// The blocks of a part of a file.
struct Blocks {
    input: BufReader<Input>,
    marker: [u8; MARKER_BYTES],
    /// Where the next block begins.
    position: u64,
    /// The blocks are read whose preceding marker begins before this.
    end: u64,
    file_bytes: u64,
}

impl Blocks {
    /// The blocks of a file whose preceding marker begins in a range of it.
    fn new(
        input: BufReader<Input>,
        header: &HeaderInfo,
        range: Range<u64>,
        file_bytes: u64,
    ) -> io::Result<Self> {
        let first = header.header_len();
        let mut blocks = Self { input, marker: header.sync(), position: first, end: range.end, file_bytes };
        if range.start + MARKER_BYTES as u64 > first {
            blocks.position = blocks.after_marker(range.start)?;
        }
        blocks.input.seek(SeekFrom::Start(blocks.position))?;
        Ok(blocks)
    }

    /// The end of the first marker at or after an offset; the size of the file if there is none.
    fn after_marker(&mut self, offset: u64) -> io::Result<u64> {
        self.input.seek(SeekFrom::Start(offset))?;
        let finder = memchr::memmem::Finder::new(&self.marker).into_owned();
        let (mut bytes, mut start) = (Vec::new(), offset);
        loop {
            let count = self.input.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut bytes)?;
            if let Some(at) = finder.find(&bytes) {
                return Ok(start + (at + MARKER_BYTES) as u64);
            }
            if count == 0 {
                return Ok(self.file_bytes);
            }
            // The marker may have begun.
            let read = bytes.len().saturating_sub(MARKER_BYTES - 1);
            bytes.drain(..read);
            start += read as u64;
        }
    }

    /// The next blocks.
    fn next(&mut self) -> io::Result<Option<Group>> {
        let mut bytes = self.marker.to_vec();
        let mut rows = 0_u64;
        while bytes.len() < GROUP_BYTES
            && self.position < self.end.saturating_add(MARKER_BYTES as u64)
            && !self.input.fill_buf()?.is_empty()
        {
            let begin = bytes.len();
            let count = self.number(&mut bytes)?;
            let length = self.number(&mut bytes)?;
            let left = self.file_bytes.saturating_sub(self.position + (bytes.len() - begin) as u64);
            // Nothing is allocated for more bytes than the file has.
            if length.saturating_add(MARKER_BYTES as u64) > left {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let rest = length + MARKER_BYTES as u64;
            if self.input.by_ref().take(rest).read_to_end(&mut bytes)? as u64 != rest {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.position += (bytes.len() - begin) as u64;
            if !bytes.ends_with(&self.marker) {
                let reason =
                    format!("the block before byte {} does not end with the file's marker", self.position);
                return Err(io::Error::new(ErrorKind::InvalidData, reason));
            }
            rows = rows.saturating_add(count);
        }
        let is_empty = bytes.len() == MARKER_BYTES;
        Ok((!is_empty).then(|| Group { bytes: bytes.into(), rows }))
    }

    /// Reads a number, which is also added to `bytes`.
    fn number(&mut self, bytes: &mut Vec<u8>) -> io::Result<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.input.read_exact(&mut byte)?;
            bytes.push(byte[0]);
            number |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                // Negative numbers are odd.
                return match number % 2 {
                    0 => Ok(number / 2),
                    _ => Err(io::Error::new(ErrorKind::InvalidData, "a block of negative size")),
                };
            }
        }
        Err(io::Error::new(ErrorKind::InvalidData, "a number of more than 64 bits"))
    }
}

/// The rows of a group, decoded as they are asked for: there may be many more bytes of them than of the group.
struct Decoded {
    reader: AsyncAvroFileReader<InMemory>,
    /// How many rows the blocks say that they have.
    told: u64,
    /// How many have been decoded.
    read: u64,
}

impl Decoded {
    fn next(&mut self) -> Result<Option<RecordBatch>, AvroError> {
        // It never waits.
        let batch = self.reader.next().now_or_never().flatten().transpose()?;
        self.read += batch.as_ref().map_or(0, |batch| batch.num_rows() as u64);
        Ok(batch)
    }
}

/// Decodes blocks.
struct Decoder {
    header: HeaderInfo,
    /// The positions of the columns to read, if not all are.
    projection: Option<Vec<usize>>,
    batch_rows: usize,
}

impl Decoder {
    fn new(header: HeaderInfo, batch_rows: usize) -> Self {
        Self { header, projection: None, batch_rows: batch_rows.max(1) }
    }

    fn reader(&self, bytes: Bytes) -> Result<AsyncAvroFileReader<InMemory>, AvroError> {
        // As if they were all of the file's blocks.
        let start = self.header.header_len().saturating_sub(MARKER_BYTES as u64);
        let end = start + bytes.len() as u64;
        let reader = AsyncAvroFileReader::builder(InMemory { bytes, start }, end, self.batch_rows)
            .with_range(start..end)
            .with_tz(Tz::Utc);
        let reader = match &self.projection {
            Some(projection) => reader.with_projection(projection.clone()),
            None => reader,
        };
        reader.build_with_header(self.header.clone())
    }

    fn schema(&self, path: &Path) -> Result<Schema> {
        let reader = self.reader(Bytes::new()).map_err(|e| {
            let message = format!("{}: the Avro schema can't be read: {e}", path.display());
            EngineError::bad_file(message, "write the file with another schema")
        });
        Ok(reader?.schema().as_ref().clone())
    }

    fn decode(&self, group: Group) -> Result<Decoded, AvroError> {
        Ok(Decoded { reader: self.reader(group.bytes)?, told: group.rows, read: 0 })
    }
}

/// Bytes of a file from an offset on.
struct InMemory {
    bytes: Bytes,
    start: u64,
}

impl AsyncFileReader for InMemory {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, AvroError>> {
        let place = |offset: u64| (offset.saturating_sub(self.start) as usize).min(self.bytes.len());
        ready(Ok(self.bytes.slice(place(range.start)..place(range.end)))).boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array, StringArray};
    use arrow_avro::compression::CompressionCodec;
    use arrow_avro::writer::WriterBuilder;
    use arrow_avro::writer::format::AvroOcfFormat;
    use proptest::prelude::*;

    use super::*;

    /// A file that has a block for each of these numbers of rows. Column `n` numbers the rows from 0.
    fn file(blocks: &[usize], codec: Option<CompressionCodec>) -> Vec<u8> {
        let mut next = 0;
        let batches: Vec<RecordBatch> = blocks.iter().map(|rows| batch(&mut next, *rows)).collect();
        let schema = batch(&mut 0, 0).schema();
        let writer = WriterBuilder::new(schema.as_ref().clone()).with_compression(codec);
        let mut writer = writer.build::<_, AvroOcfFormat>(Vec::new()).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        writer.finish().unwrap();
        writer.into_inner()
    }

    fn batch(next: &mut i64, rows: usize) -> RecordBatch {
        let numbers: Vec<i64> = (*next..).take(rows).collect();
        *next += rows as i64;
        let texts: Vec<String> = numbers.iter().map(|number| "x".repeat(*number as usize % 50)).collect();
        let columns: [(&str, ArrayRef); 2] =
            [("t", Arc::new(StringArray::from(texts))), ("n", Arc::new(Int64Array::from(numbers)))];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    /// The numbers in a part of a file.
    fn read(bytes: &[u8], range: Range<u64>) -> Result<Vec<i64>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, bytes).unwrap();
        let path: FilePath = file.path().to_owned().into();
        let table = Arc::new(Avro.columns(&path)?);
        let Some((place, _)) = table.column_with_name("n") else { return Ok(Vec::new()) };
        let schema = Arc::new(table.project(&[place]).unwrap());
        let wanted = Wanted { table, schema, indices: vec![place] };
        let part = FilePart { path, bytes: bytes.len() as u64, changed: 0, range };
        let mut found = Vec::new();
        for batch in Avro.read(part, &wanted, 100)? {
            let batch = batch?;
            let column = batch.column(0).as_primitive_opt::<Int64Type>();
            found.extend(column.into_iter().flat_map(|column| column.values().to_vec()));
        }
        Ok(found)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// However a file is divided, each row is in one part.
        #[test]
        fn every_block_is_in_one_part(
            blocks in proptest::collection::vec(1_usize..3000, 0..9),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..5),
            is_packed in any::<bool>(),
        ) {
            let bytes = file(&blocks, is_packed.then_some(CompressionCodec::Deflate));
            let size = bytes.len() as u64;
            let mut ends: Vec<u64> = cuts.iter().map(|cut| cut.index(bytes.len()) as u64).collect();
            ends.extend([size]);
            ends.sort_unstable();
            let (mut start, mut found) = (0, Vec::new());
            for end in ends {
                found.extend(read(&bytes, start..end).unwrap());
                start = end;
            }
            let rows = blocks.iter().sum::<usize>() as i64;
            prop_assert_eq!(found, (0..rows).collect::<Vec<_>>());
        }

        /// Whatever the bytes are, reading ends, in rows or an error.
        #[test]
        fn damaged_files_are_read_to_an_end(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            is_packed in any::<bool>(),
        ) {
            let mut bytes = file(&[40, 1, 7], is_packed.then_some(CompressionCodec::Snappy));
            let size = bytes.len() as u64;
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let ended = std::panic::catch_unwind(|| read(&bytes, 0..size));
            prop_assert!(ended.is_err() || ended.is_ok_and(|read| read.map_or(true, |read| read.len() <= 48)));
        }
    }

    #[test]
    fn rows_that_take_no_bytes_are_read_one_batch_after_the_other() {
        let schema = br#"{"type":"record","name":"R","fields":[{"name":"n","type":"null"}]}"#;
        let marker = [7; MARKER_BYTES];
        let mut bytes = MAGIC.to_vec();
        // One pair of metadata, and no more.
        bytes.extend([2, 22]);
        bytes.extend(b"avro.schema");
        bytes.extend([(2 * schema.len() % 128) as u8 | 0x80, (2 * schema.len() / 128) as u8]);
        bytes.extend(schema);
        bytes.push(0);
        bytes.extend(marker);
        // A block of 2^34 rows in 0 bytes.
        bytes.extend([0x80, 0x80, 0x80, 0x80, 0x80, 1, 0]);
        bytes.extend(marker);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, &bytes).unwrap();
        let path: FilePath = file.path().to_owned().into();
        let table = Arc::new(Avro.columns(&path).unwrap());
        let wanted = Wanted { schema: table.clone(), table, indices: vec![0] };
        let part = FilePart { path, bytes: bytes.len() as u64, changed: 0, range: 0..bytes.len() as u64 };
        let first: Vec<usize> =
            Avro.read(part, &wanted, 100).unwrap().take(3).map(|batch| batch.unwrap().num_rows()).collect();
        assert_eq!(first, [100; 3]);
    }

    #[test]
    fn a_file_that_ends_within_a_block_is_an_error() {
        let whole = file(&[40, 1, 7], None);
        let ends: Vec<u64> = {
            let mut input = io::Cursor::new(&whole);
            let header = read_header_info(&mut input).unwrap();
            let marker = header.sync();
            let found = memchr::memmem::find_iter(&whole, &marker).map(|at| (at + MARKER_BYTES) as u64);
            found.collect()
        };
        assert_eq!(ends.len(), 4);
        for length in 0..whole.len() {
            let read = read(&whole[..length], 0..length as u64);
            match ends.iter().position(|end| *end == length as u64) {
                // As if it had been written so.
                Some(blocks) => assert_eq!(read.unwrap().len(), [0, 40, 41, 48][blocks]),
                None => assert!(matches!(read, Err(EngineError::BadFile { .. })), "{length}: {read:?}"),
            }
        }
    }
}
