//! Reads the messages of Arrow IPC files and streams.
//!
//! Arrow's own readers allocate what the lengths in a file say before they read, so those of a damaged file could take
//! all memory. Here each length is compared with the bytes that are there. A message is read once, in one piece.

use std::collections::HashMap;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::vec;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, SchemaRef};
use datafusion::arrow::buffer::{Buffer, MutableBuffer};
use datafusion::arrow::ipc::convert::fb_to_schema;
use datafusion::arrow::ipc::reader::{RecordBatchDecoder, read_dictionary, read_footer_length};
use datafusion::arrow::ipc::{self, Message, MessageHeader, root_as_footer, root_as_message};

/// The first bytes of a file with a footer.
const MAGIC: &[u8; 6] = b"ARROW1";

/// Before a message, except those of versions before 0.15.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// After the footer of a file: its length, and [`MAGIC`].
const TAIL_BYTES: u64 = 10;

/// What codecs can make of a byte: zstd writes a run of 128 KiB in 4 bytes.
const EXPANSION_MAX: u64 = 1 << 16;

/// The largest buffer after decompression.
const BUFFER_BYTES_MAX: u64 = 1 << 36;

/// An open file, which yields its batches.
pub(super) struct Reader<R> {
    input: BufReader<R>,
    /// Bytes of the file.
    bytes: u64,
    schema: SchemaRef,
    /// The columns to read, in the order of the file; `None` for all.
    projection: Option<Vec<usize>>,
    dictionaries: HashMap<i64, ArrayRef>,
    place: Place,
}

/// Which message is read next.
enum Place {
    /// Of a file with a footer, which has the offsets of all messages.
    Footer { dictionaries: vec::IntoIter<u64>, batches: vec::IntoIter<u64> },
    /// Of a stream: the offset of the next message, or of its end.
    Stream(u64),
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the schema, and the footer if there is one.
    pub(super) fn open(mut input: R) -> Result<Self, ArrowError> {
        let bytes = input.seek(SeekFrom::End(0))?;
        input.rewind()?;
        let mut start = Vec::new();
        input.by_ref().take(MAGIC.len() as u64).read_to_end(&mut start)?;
        let mut reader = Self {
            input: BufReader::new(input),
            bytes,
            schema: SchemaRef::new(arrow_schema::Schema::empty()),
            projection: None,
            dictionaries: HashMap::new(),
            place: Place::Stream(0),
        };
        if start == MAGIC {
            reader.read_footer()?
        } else {
            reader.read_schema()?
        }
        Ok(reader)
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The number of batches, where a footer tells it.
    pub(super) fn batch_count(&self) -> Option<usize> {
        match &self.place {
            Place::Footer { batches, .. } => Some(batches.len()),
            Place::Stream(_) => None,
        }
    }

    /// Limits a file with a footer to some of its batches.
    pub(super) fn keep(&mut self, kept: Range<usize>) {
        if let Place::Footer { dictionaries, batches } = &mut self.place {
            let kept = batches.as_slice()[kept].to_vec();
            *batches = kept.into_iter();
            if batches.len() == 0 {
                *dictionaries = Vec::new().into_iter();
            }
        }
    }

    /// Limits it to columns, whose positions are in ascending order.
    pub(super) fn project(&mut self, columns: Vec<usize>) {
        self.projection = Some(columns);
    }

    fn read_footer(&mut self) -> Result<(), ArrowError> {
        let mut tail = [0; TAIL_BYTES as usize];
        self.seek_to(self.bytes.checked_sub(TAIL_BYTES).ok_or_else(|| beyond("the footer"))?)?;
        self.input.read_exact(&mut tail)?;
        let length = read_footer_length(tail)?;
        let start =
            (self.bytes - TAIL_BYTES).checked_sub(length as u64).ok_or_else(|| beyond("the footer"))?;
        let mut footer = vec![0; length];
        self.seek_to(start)?;
        self.input.read_exact(&mut footer)?;
        let footer = root_as_footer(&footer).map_err(|error| ArrowError::IpcError(error.to_string()))?;
        self.schema = schema_of(footer.schema())?;
        let offset = |block: &ipc::Block| u64::try_from(block.offset()).map_err(|_| beyond("a batch"));
        let dictionaries: Vec<u64> =
            footer.dictionaries().into_iter().flatten().map(offset).collect::<Result<_, _>>()?;
        let batches: Vec<u64> =
            footer.recordBatches().into_iter().flatten().map(offset).collect::<Result<_, _>>()?;
        let (dictionaries, batches) = (dictionaries.into_iter(), batches.into_iter());
        self.place = Place::Footer { dictionaries, batches };
        Ok(())
    }

    fn read_schema(&mut self) -> Result<(), ArrowError> {
        let Some((metadata, _)) = self.read_message(0)? else {
            return Err(ArrowError::IpcError("it is empty, without a schema".into()));
        };
        self.schema = schema_of(parse(&metadata)?.header_as_schema())?;
        Ok(())
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        loop {
            let offset = match &mut self.place {
                Place::Footer { dictionaries, batches } => dictionaries.next().or_else(|| batches.next()),
                Place::Stream(offset) => Some(*offset),
            };
            let Some(offset) = offset else { return Ok(None) };
            let Some((metadata, body)) = self.read_message(offset)? else {
                return match self.place {
                    Place::Footer { .. } => Err(beyond("a message")),
                    Place::Stream(_) => Ok(None),
                };
            };
            let message = parse(&metadata)?;
            if let Some(batch) = message.header_as_record_batch() {
                let version = message.version();
                let decoder = RecordBatchDecoder::try_new(
                    &body,
                    batch,
                    self.schema.clone(),
                    &self.dictionaries,
                    &version,
                )?;
                return decoder.with_projection(self.projection.as_deref()).read_record_batch().map(Some);
            }
            if let Some(batch) = message.header_as_dictionary_batch() {
                read_dictionary(&body, batch, &self.schema, &mut self.dictionaries, &message.version())?;
            } else if message.header_type() != MessageHeader::NONE {
                return Err(ArrowError::IpcError(format!(
                    "a message is a {:?}, not a batch",
                    message.header_type()
                )));
            }
        }
    }

    /// Reads the message at an offset: its metadata and its body. `None` at the end of a stream.
    fn read_message(&mut self, offset: u64) -> Result<Option<(Vec<u8>, Buffer)>, ArrowError> {
        let mut rest = self.bytes.checked_sub(offset).ok_or_else(|| beyond("a message"))?;
        if rest == 0 {
            return Ok(None);
        }
        self.seek_to(offset)?;
        let mut number = [0; 4];
        self.input.read_exact(&mut number)?;
        rest = rest.saturating_sub(4);
        if number == CONTINUATION {
            self.input.read_exact(&mut number)?;
            rest = rest.saturating_sub(4);
        }
        let length = u64::from(u32::from_le_bytes(number));
        if length == 0 {
            if let Place::Stream(end) = &mut self.place {
                *end = self.bytes;
            }
            return Ok(None);
        }
        rest = rest.checked_sub(length).ok_or_else(|| beyond("a message"))?;
        let mut metadata = vec![0; usize::try_from(length).map_err(|_| beyond("a message"))?];
        self.input.read_exact(&mut metadata)?;
        let length = u64::try_from(parse(&metadata)?.bodyLength()).ok();
        let length =
            length.filter(|length| *length <= rest).ok_or_else(|| beyond("the body of a message"))?;
        let mut body =
            MutableBuffer::from_len_zeroed(usize::try_from(length).map_err(|_| beyond("a message"))?);
        self.input.read_exact(&mut body)?;
        check_buffers(&parse(&metadata)?, &body)?;
        if let Place::Stream(next) = &mut self.place {
            *next = self.bytes - (rest - length);
        }
        Ok(Some((metadata, body.into())))
    }

    fn seek_to(&mut self, offset: u64) -> Result<(), ArrowError> {
        // What is buffered stays, which a stream reads on from.
        if self.input.stream_position()? != offset {
            self.input.seek(SeekFrom::Start(offset))?;
        }
        Ok(())
    }
}

impl<R: Read + Seek> Iterator for Reader<R> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_batch();
        if next.is_err() {
            // Where the next message begins is not known.
            self.place =
                Place::Footer { dictionaries: Vec::new().into_iter(), batches: Vec::new().into_iter() };
        }
        next.transpose()
    }
}

fn beyond(what: &str) -> ArrowError {
    ArrowError::IpcError(format!("{what} is beyond the end of the file"))
}

fn parse(metadata: &[u8]) -> Result<Message<'_>, ArrowError> {
    root_as_message(metadata).map_err(|error| ArrowError::IpcError(error.to_string()))
}

fn schema_of(schema: Option<ipc::Schema<'_>>) -> Result<SchemaRef, ArrowError> {
    let schema = schema.ok_or_else(|| ArrowError::IpcError("it has no schema".into()))?;
    if !schema.endianness().equals_to_target_endianness() {
        return Err(ArrowError::IpcError("its bytes are in the order of another kind of processor".into()));
    }
    Ok(fb_to_schema(schema).into())
}

/// Checks that the buffers of a batch are in its body, and the lengths of compressed ones.
fn check_buffers(message: &Message<'_>, body: &[u8]) -> Result<(), ArrowError> {
    let batch = message.header_as_record_batch().or_else(|| message.header_as_dictionary_batch()?.data());
    let Some(batch) = batch else { return Ok(()) };
    for buffer in batch.buffers().into_iter().flatten() {
        let range = usize::try_from(buffer.offset()).ok().zip(usize::try_from(buffer.length()).ok());
        let range = range.and_then(|(offset, length)| Some(offset..offset.checked_add(length)?));
        let packed = range.and_then(|range| body.get(range)).ok_or_else(|| beyond("a buffer"))?;
        let (Some(_), Some(unpacked)) = (batch.compression(), packed.first_chunk()) else { continue };
        // -1 stands for a buffer that is not compressed.
        let unpacked = i64::from_le_bytes(*unpacked);
        let limit = (packed.len() as u64).saturating_mul(EXPANSION_MAX).min(BUFFER_BYTES_MAX);
        if unpacked != -1 && u64::try_from(unpacked).map_or(true, |unpacked| unpacked > limit) {
            return Err(ArrowError::IpcError("the length of a compressed buffer is not possible".into()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::sync::Arc;

    use arrow_array::types::Int32Type;
    use arrow_array::{DictionaryArray, Int64Array, StringArray, StringViewArray};
    use datafusion::arrow::ipc::CompressionType;
    use datafusion::arrow::ipc::reader::{FileReader, StreamReader};
    use datafusion::arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};

    use super::*;

    /// Three batches of different sizes, one of them empty.
    fn batches() -> Vec<RecordBatch> {
        let batch = |range: Range<i64>| {
            let texts = || range.clone().map(|n| (n % 7 != 0).then(|| format!("a text, the {n}th")));
            let repeated = texts().map(|text| text.map(|text| text.len().to_string()));
            let repeated: Vec<Option<String>> = repeated.collect();
            let repeated: DictionaryArray<Int32Type> = repeated.iter().map(Option::as_deref).collect();
            RecordBatch::try_from_iter_with_nullable([
                ("n", Arc::new(Int64Array::from_iter_values(range.clone())) as ArrayRef, false),
                ("text", Arc::new(texts().collect::<StringArray>()), true),
                ("repeated", Arc::new(repeated), true),
                ("view", Arc::new(texts().collect::<StringViewArray>()), true),
            ])
            .unwrap()
        };
        vec![batch(0..1000), batch(0..0), batch(1000..1100)]
    }

    fn written(batches: &[RecordBatch], compression: Option<CompressionType>, with_footer: bool) -> Vec<u8> {
        let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
        let (mut bytes, schema) = (Vec::new(), batches[0].schema());
        if with_footer {
            let mut writer = FileWriter::try_new_with_options(&mut bytes, &schema, options).unwrap();
            // A file has one dictionary for all batches.
            writer.write(&batches[0]).unwrap();
            writer.finish().unwrap();
        } else {
            let mut writer = StreamWriter::try_new_with_options(&mut bytes, &schema, options).unwrap();
            batches.iter().for_each(|batch| writer.write(batch).unwrap());
            writer.finish().unwrap();
        }
        bytes
    }

    fn read(bytes: &[u8], columns: Option<Vec<usize>>) -> Result<Vec<RecordBatch>, ArrowError> {
        let mut reader = Reader::open(Cursor::new(bytes))?;
        if let Some(columns) = columns {
            reader.project(columns);
        }
        reader.collect()
    }

    const CODECS: [Option<CompressionType>; 3] =
        [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)];

    #[test]
    fn files_and_streams_are_read_as_by_arrow_itself() {
        for codec in CODECS {
            for columns in [None, Some(vec![]), Some(vec![2]), Some(vec![0, 1, 3])] {
                let bytes = written(&batches(), codec, false);
                let expected = StreamReader::try_new(&bytes[..], columns.clone()).unwrap();
                let expected = expected.collect::<Result<Vec<_>, _>>().unwrap();
                assert_eq!(expected.len(), 3);
                assert_eq!(read(&bytes, columns.clone()).unwrap(), expected);

                let bytes = written(&batches(), codec, true);
                let expected = FileReader::try_new(Cursor::new(&bytes), columns.clone()).unwrap();
                let expected = expected.collect::<Result<Vec<_>, _>>().unwrap();
                assert_eq!(read(&bytes, columns).unwrap(), expected);
            }
        }
    }

    #[test]
    fn batches_of_a_file_can_be_read_alone() {
        let plain: Vec<RecordBatch> = batches().iter().map(|batch| batch.project(&[0, 1]).unwrap()).collect();
        let mut bytes = Vec::new();
        let mut writer = FileWriter::try_new(&mut bytes, &plain[0].schema()).unwrap();
        plain.iter().for_each(|batch| writer.write(batch).unwrap());
        writer.finish().unwrap();
        for kept in [0..0, 0..1, 1..3, 2..3, 0..3] {
            let mut reader = Reader::open(Cursor::new(&bytes)).unwrap();
            assert_eq!(reader.batch_count(), Some(3));
            reader.keep(kept.clone());
            let found: Vec<RecordBatch> = reader.collect::<Result<_, _>>().unwrap();
            assert_eq!(found, plain[kept]);
        }
    }

    #[test]
    fn a_file_that_was_cut_off_is_an_error() {
        for with_footer in [true, false] {
            let bytes = written(&batches(), None, with_footer);
            // A stream may end without its mark of 8 bytes.
            let is_whole = |end: usize| !with_footer && end == bytes.len() - 8;
            let mut ends = 0;
            for end in (1..bytes.len()).rev().step_by(61).chain(bytes.len() - 70..bytes.len()) {
                let outcome = read(&bytes[..end], None);
                // One that ends between two messages can't be told from a shorter one.
                let fewer = outcome.as_ref().is_ok_and(|found| !with_footer && found.len() < 3);
                ends += usize::from(fewer);
                assert!(outcome.is_err() || is_whole(end) || fewer, "{end} of {} bytes", bytes.len());
            }
            assert!(ends < 5, "{ends}");
        }
    }

    /// Numbers in a file that say too much are refused before anything of their size is allocated.
    #[test]
    fn lengths_beyond_the_file_are_errors() {
        let batches = batches();
        for codec in CODECS {
            for with_footer in [true, false] {
                let bytes = written(&batches, codec, with_footer);
                for at in (8..bytes.len() - 8).step_by(4) {
                    let mut damaged = bytes.clone();
                    damaged[at..at + 4].copy_from_slice(&0x7fff_fff0_u32.to_le_bytes());
                    // Arrow panics on some values that it does not expect; the engine catches that.
                    let outcome = std::panic::catch_unwind(|| read(&damaged, None).map(|found| found.len()));
                    if let Ok(Err(error)) = outcome {
                        assert!(!error.to_string().is_empty());
                    }
                }
            }
        }
        let mut stream = written(&batches, None, false);
        stream[4..8].copy_from_slice(&0x7fff_fff0_u32.to_le_bytes());
        let error = read(&stream, None).unwrap_err().to_string();
        assert!(error.contains("a message is beyond the end of the file"), "{error}");
    }
}
