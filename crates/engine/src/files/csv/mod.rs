//! CSV: a header, and records whose values may hold newlines in quotes.

mod boundaries;
mod values;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Take};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{RecordBatch, RecordBatchOptions, new_null_array};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use csv::ByteRecord;
use datafusion::arrow::csv::ReaderBuilder;
use datafusion::arrow::csv::reader::Decoder;

use self::boundaries::{Boundaries, Checked, Unclosed};
use self::values::Guess;
use super::by_name::{Batches, FilePart, Format, Wanted, until_end};
use super::columns;
use super::text::{BatchAction, CHUNK_BYTES, RECORD_BYTES_MAX, batch_rows_for, growth, line_of, text_start};
use crate::error::{EngineError, Result};

/// Records of each file from which the types of its columns are inferred.
const SAMPLE_RECORDS: usize = 1000;

/// Records of the first batch, which shows how long records are.
const FIRST_BATCH_RECORDS: usize = 128;

/// Files of comma-separated values.
#[derive(Debug, Default)]
pub(super) struct Csv {
    boundaries: Boundaries,
}

/// The first record of a file.
struct CsvHeader {
    names: Vec<String>,
    /// Where the second record begins, in bytes.
    end: u64,
}

/// Records from an offset on.
fn records(path: &Path, offset: u64) -> io::Result<csv::Reader<Checked<File>>> {
    let mut file = File::open(path)?;
    let offset = if offset == 0 { text_start(&mut file)? } else { offset };
    file.seek(SeekFrom::Start(offset))?;
    let mut reader = csv::ReaderBuilder::new();
    reader.has_headers(false).flexible(true).buffer_capacity(CHUNK_BYTES);
    Ok(reader.from_reader(Checked::new(file, offset)))
}

/// The text of whole records.
type Text = BufReader<Checked<Take<File>>>;

fn text(path: &Path, range: Range<u64>) -> io::Result<Text> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(range.start))?;
    let checked = Checked::new(file.take(range.end - range.start), range.start);
    Ok(BufReader::with_capacity(CHUNK_BYTES, checked))
}

/// The error of a failed read.
fn failed(path: &Path, error: &io::Error) -> EngineError {
    let Some(Unclosed(offset)) = error.get_ref().and_then(|error| error.downcast_ref()) else {
        return EngineError::File(format!("{}: {error}", path.display()));
    };
    let line = line_of(path, *offset).map_or(String::new(), |line| format!(", line {line}"));
    let message = format!("{}{line}: the quote that begins a value here is never closed", path.display());
    EngineError::bad_file(
        message,
        "close it; to put a quote into a value, quote the value and double the quote",
    )
}

fn csv_failed(path: &Path, error: csv::Error) -> EngineError {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => failed(path, &error),
        other => EngineError::File(format!("{}: {other:?}", path.display())),
    }
}

fn header(path: &Path) -> Result<CsvHeader> {
    let start = File::open(path).and_then(|mut file| text_start(&mut file)).map_err(|e| failed(path, &e))?;
    let mut reader = records(path, 0).map_err(|e| failed(path, &e))?;
    let mut record = ByteRecord::new();
    reader.read_byte_record(&mut record).map_err(|e| csv_failed(path, e))?;
    let end = start + reader.position().byte();
    let names = record.iter().map(|name| String::from_utf8(name.to_vec()));
    let names = names.collect::<Result<_, _>>().map_err(|_| {
        let message = format!("{}, line 1: the header is not UTF-8", path.display());
        EngineError::bad_file(message, UTF8_HINT)
    })?;
    Ok(CsvHeader { names, end })
}

const UTF8_HINT: &str = "convert the file to UTF-8";

impl Format for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn columns(&self, path: &Path) -> Result<Schema> {
        let header = header(path)?;
        let mut guesses = vec![Guess::default(); header.names.len()];
        let mut reader = records(path, header.end).map_err(|e| failed(path, &e))?;
        let mut record = ByteRecord::new();
        for _ in 0..SAMPLE_RECORDS {
            if !reader.read_byte_record(&mut record).map_err(|e| csv_failed(path, e))? {
                break;
            }
            for (guess, value) in guesses.iter_mut().zip(&record) {
                // The scan will refuse text that is not UTF-8.
                guess.add(std::str::from_utf8(value).unwrap_or("?"));
            }
        }
        let fields =
            header.names.iter().zip(guesses).map(|(name, guess)| Field::new(name, guess.data_type(), true));
        let schema = Schema::new(fields.collect::<Vec<_>>());
        columns::unique(path, &schema)?;
        Ok(schema)
    }

    fn unknown(&self) -> DataType {
        DataType::Utf8
    }

    fn common(&self, a: &DataType, b: &DataType) -> Option<DataType> {
        Some(values::common(a, b))
    }

    fn read(&self, part: FilePart, wanted: &Wanted, batch_rows: usize) -> Result<Batches> {
        let path = &part.path;
        let header = header(path)?;
        let fields: Vec<Field> =
            header.names.iter().map(|name| Field::new(name, DataType::Utf8, true)).collect();
        let schema = Schema::new(fields);
        let places = wanted.places(path, &schema)?;
        if header.names.is_empty() {
            return Ok(Box::new(std::iter::empty()));
        }
        let Range { start, end } = part.range;
        let record_start = |offset: u64| {
            // The start and the end of the file need no scan.
            if offset == 0 || offset >= part.bytes {
                return Ok(offset.min(part.bytes));
            }
            let version = (path.clone(), part.bytes, part.changed);
            self.boundaries.record_start(&version, offset).map_err(|e| failed(path, &e))
        };
        let start = record_start(start)?.max(header.end);
        let end = record_start(end)?.max(start);
        let bytes = text(path, start..end).map_err(|e| failed(path, &e))?;
        let first = FIRST_BATCH_RECORDS.min(batch_rows.max(1));
        let mut reading = CsvReader {
            bytes,
            offset: start,
            decoder: None,
            decoder_rows: first,
            batch_rows: batch_rows.max(1),
            schema: Arc::new(schema),
            places,
            wanted: wanted.clone(),
            part: FilePart { range: start..end, ..part },
        };
        Ok(until_end(move || reading.next()))
    }
}

/// Reads the records of a part.
struct CsvReader {
    bytes: Text,
    /// Where the next record begins in the file.
    offset: u64,
    decoder: Option<Decoder>,
    /// Records per batch of the decoder.
    decoder_rows: usize,
    batch_rows: usize,
    /// The file's columns, as text.
    schema: Arc<Schema>,
    /// The position of each wanted column in the file.
    places: Vec<Option<usize>>,
    wanted: Wanted,
    part: FilePart,
}

impl CsvReader {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let path = self.part.path.clone();
        let first = self.offset;
        let mut decoder = self.decoder.take().unwrap_or_else(|| self.new_decoder());
        loop {
            let chunk = self.bytes.fill_buf().map_err(|e| failed(&path, &e))?;
            let ends = chunk.is_empty();
            let count = decoder.decode(chunk).map_err(|e| self.misshapen(first, &e))?;
            self.bytes.consume(count);
            self.offset += count as u64;
            if ends || decoder.capacity() == 0 {
                break;
            }
            match growth(self.offset - first, self.decoder_rows - decoder.capacity()) {
                BatchAction::GoesOn => {}
                BatchAction::Fewer(rows) => {
                    self.bytes = text(&path, first..self.part.range.end).map_err(|e| failed(&path, &e))?;
                    self.offset = first;
                    self.decoder_rows = rows;
                    decoder = self.new_decoder();
                }
                BatchAction::TooLong => return Err(self.too_long(first)),
            }
        }
        let Some(texts) = decoder.flush().map_err(|e| self.misshapen(first, &e))? else { return Ok(None) };
        let rows = batch_rows_for(self.offset - first, texts.num_rows(), self.batch_rows);
        if rows == self.decoder_rows {
            self.decoder = Some(decoder);
        }
        self.decoder_rows = rows;
        self.batch(&texts, first).map(Some)
    }

    fn new_decoder(&self) -> Decoder {
        let places = self.places.iter().flatten().copied().collect();
        let builder = ReaderBuilder::new(self.schema.clone()).with_header(false);
        let mut decoder = builder.with_projection(places).with_batch_size(self.decoder_rows).build_decoder();
        // A decoder strips a byte order mark from its first input. An empty line is neither a
        // record nor an error.
        let _ = decoder.decode(b"\n");
        decoder
    }

    fn batch(&self, texts: &RecordBatch, first: u64) -> Result<RecordBatch> {
        let mut columns = Vec::with_capacity(self.places.len());
        let mut read = texts.columns().iter();
        for (field, place) in self.wanted.schema.fields().iter().zip(&self.places) {
            let texts_of = place.and_then(|_| read.next());
            columns.push(match texts_of {
                None => new_null_array(field.data_type(), texts.num_rows()),
                Some(column) => {
                    values::parse(column.as_string::<i32>(), field.data_type()).map_err(|row| {
                        let text = column.as_string::<i32>().value(row);
                        self.unfit(first, row, field, text)
                    })?
                }
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(texts.num_rows()));
        let batch = RecordBatch::try_new_with_options(self.wanted.schema.clone(), columns, &options);
        batch.map_err(|e| EngineError::Internal(e.to_string()))
    }

    /// A value that is not of its column's type.
    fn unfit(&self, first: u64, row: usize, field: &Field, text: &str) -> EngineError {
        let text: String = text.chars().take(60).collect();
        let message = format!(
            "{}{}: column `{}`: `{text}` is not {}",
            self.part.path.display(),
            self.line(first, row),
            field.name(),
            values::name(field.data_type())
        );
        let hint = format!(
            "types are inferred from the first {SAMPLE_RECORDS} records of each file; move this record there"
        );
        EngineError::bad_file(message, hint)
    }

    /// A record that is longer than [`RECORD_BYTES_MAX`].
    fn too_long(&self, first: u64) -> EngineError {
        let (path, max) = (self.part.path.display(), RECORD_BYTES_MAX >> 20);
        let message = format!("{path}{}: a record is longer than {max} MiB", self.line(first, 0));
        EngineError::bad_file(message, "check that each record ends with a newline")
    }

    /// The line of a record, for a message. The batch of the record begins at offset `first`.
    fn line(&self, first: u64, row: usize) -> String {
        let place = || -> Option<u64> {
            let mut reader = records(&self.part.path, first).ok()?;
            let mut record = ByteRecord::new();
            for _ in 0..=row {
                reader.read_byte_record(&mut record).ok()?;
            }
            let line = line_of(&self.part.path, first).ok()?;
            Some(line + record.position()?.line() - 1)
        };
        place().map_or(String::new(), |line| format!(", line {line}"))
    }

    /// The error for the record at or after offset `first` that the decoder has refused.
    fn misshapen(&self, first: u64, error: &ArrowError) -> EngineError {
        let path = &self.part.path;
        let fields = self.schema.fields().len();
        let found = || -> Option<(u64, String, &str)> {
            let mut reader = records(path, first).ok()?;
            let mut record = ByteRecord::new();
            while reader.position().byte() < self.part.range.end - first {
                reader.read_byte_record(&mut record).ok()?;
                let problem = if record.len() != fields {
                    let is = format!("the record has {} values, but the header has {fields}", record.len());
                    Some((
                        is,
                        "give each record one value per column; put values that contain a comma in quotes",
                    ))
                } else {
                    let unreadable = record.iter().position(|value| std::str::from_utf8(value).is_err());
                    let name = unreadable.map(|place| self.schema.field(place).name());
                    name.map(|name| (format!("column `{name}`: the value is not UTF-8"), UTF8_HINT))
                };
                if let Some((problem, hint)) = problem {
                    let line = line_of(path, first).ok()? + record.position()?.line() - 1;
                    return Some((line, problem, hint));
                }
            }
            None
        };
        match found() {
            Some((line, problem, hint)) => {
                EngineError::bad_file(format!("{}, line {line}: {problem}", path.display()), hint)
            }
            None => EngineError::File(format!("{}: {error}", path.display())),
        }
    }
}
