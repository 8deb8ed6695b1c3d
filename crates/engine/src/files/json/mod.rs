//! JSON lines: one object per line.

mod shape;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, DataType, Fields, Schema};
use datafusion::arrow::json::ReaderBuilder;
use datafusion::arrow::json::reader::Decoder;
use serde_json::Value;

use self::shape::Shapes;
use super::by_name::{Batches, FilePart, Format, Wanted, until_end};
use super::text::{BatchAction, CHUNK_BYTES, RECORD_BYTES_MAX, batch_rows_for, growth, line_of, text_start};
use crate::error::{EngineError, Result};

/// Bytes of each file from which its fields are inferred. A field that first appears after them is refused.
const SAMPLE_BYTES: u64 = 256 << 20;

/// Objects of the first batch, which shows how long objects are.
const FIRST_BATCH_OBJECTS: usize = 128;

/// Files of JSON lines.
#[derive(Debug)]
pub(super) struct Json;

fn failed(path: &Path, error: &io::Error) -> EngineError {
    EngineError::File(format!("{}: {error}", path.display()))
}

fn too_long() -> io::Error {
    io::Error::other(format!("an object is longer than {} MiB", RECORD_BYTES_MAX >> 20))
}

/// A range of the bytes of a file.
type Text = BufReader<io::Take<File>>;

fn text(path: &Path, range: Range<u64>) -> io::Result<Text> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(range.start))?;
    Ok(BufReader::with_capacity(CHUNK_BYTES, file.take(range.end - range.start)))
}

/// Reads a file until an allowance of bytes is used up. The caller renews the allowance.
struct Allowed {
    file: File,
    left: Rc<Cell<u64>>,
}

impl Read for Allowed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        let left = self.left.get().checked_sub(count as u64).ok_or_else(too_long)?;
        self.left.set(left);
        Ok(count)
    }
}

/// Reads a line; false at the end of the file.
fn read_line(file: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let count = file.by_ref().take(RECORD_BYTES_MAX).read_until(b'\n', line)?;
    if count as u64 == RECORD_BYTES_MAX {
        return Err(too_long());
    }
    Ok(count > 0)
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

/// Whether each object is on its own line, judged by the first one. A file that deviates later is
/// refused when it is read in parts, because its first part ends inside an object.
fn has_lines(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let start = text_start(&mut file)?;
    file.seek(SeekFrom::Start(start))?;
    let mut file = BufReader::with_capacity(CHUNK_BYTES, file);
    let mut line = Vec::new();
    while read_line(&mut file, &mut line)? {
        if !is_blank(&line) {
            return Ok(serde_json::from_slice::<serde::de::IgnoredAny>(&line).is_ok());
        }
    }
    Ok(true)
}

fn not_json(path: &Path, line: usize, reason: &str) -> EngineError {
    let message = format!("{}, line {line}: {reason}", path.display());
    EngineError::bad_file(message, "write one JSON object per line")
}

impl Format for Json {
    fn name(&self) -> &'static str {
        "json"
    }

    fn columns(&self, path: &Path) -> Result<Schema> {
        let io_failed = |e: io::Error| failed(path, &e);
        let mut shapes = Shapes::default();
        let lines = has_lines(path).map_err(io_failed)?;
        let mut file = File::open(path).map_err(io_failed)?;
        let start = text_start(&mut file).map_err(io_failed)?;
        file.seek(SeekFrom::Start(start)).map_err(io_failed)?;
        let left = Rc::new(Cell::new(RECORD_BYTES_MAX));
        let mut file = BufReader::with_capacity(CHUNK_BYTES, Allowed { file, left: left.clone() });
        if lines {
            let (mut line, mut number, mut bytes) = (Vec::new(), 0, 0);
            while bytes < SAMPLE_BYTES && read_line(&mut file, &mut line).map_err(io_failed)? {
                left.set(RECORD_BYTES_MAX);
                number += 1;
                bytes += line.len() as u64;
                if is_blank(&line) {
                    continue;
                }
                let mut parser = serde_json::Deserializer::from_slice(&line);
                let learned = shapes.add(&mut parser).and_then(|problem| parser.end().map(|()| problem));
                let problem = learned.map_err(|e| not_json(path, number, &reason(&e)))?;
                if let Some(problem) = problem {
                    return Err(not_json(path, number, &problem));
                }
            }
        } else {
            // An array of all objects would be a single value, as large as the file.
            let first = file.fill_buf().map_err(io_failed)?.iter().find(|byte| !byte.is_ascii_whitespace());
            if first == Some(&b'[') {
                return Err(not_json(path, 1, "a JSON array of objects is not supported"));
            }
            let mut objects = serde_json::Deserializer::from_reader(file).into_iter::<Value>();
            while (objects.byte_offset() as u64) < SAMPLE_BYTES
                && let Some(object) = objects.next()
            {
                let object = object.map_err(|e| match e.is_io() {
                    true => failed(path, &e.into()),
                    false => not_json(path, e.line(), &reason(&e)),
                })?;
                left.set(RECORD_BYTES_MAX);
                let learned = shapes.add(&object).map_err(|e| not_json(path, 1, &reason(&e)))?;
                if let Some(problem) = learned {
                    let line = line_of(path, objects.byte_offset() as u64).unwrap_or(1);
                    return Err(not_json(path, line as usize, &problem));
                }
            }
        }
        Ok(shapes.schema())
    }

    fn unknown(&self) -> DataType {
        DataType::Utf8
    }

    fn common(&self, a: &DataType, b: &DataType) -> Option<DataType> {
        shape::common(a, b)
    }

    fn read(&self, part: FilePart, wanted: &Wanted, batch_rows: usize) -> Result<Batches> {
        let path = part.path.clone();
        let range = own_range(&part).map_err(|e| failed(&path, &e))?;
        let bytes = text(&path, range.clone()).map_err(|e| failed(&path, &e))?;
        let batch_rows = batch_rows.max(1);
        let first = FIRST_BATCH_OBJECTS.min(batch_rows);
        let mut reading = JsonReader {
            bytes,
            offset: range.start,
            decoder: None,
            decoder_rows: first,
            batch_rows,
            wanted: wanted.clone(),
            part: FilePart { range, ..part },
        };
        Ok(until_end(move || reading.next()))
    }
}

/// The parser's error, without the position at the end of its text.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    format!("not a JSON object: {}", text.strip_suffix(&place).unwrap_or(&text))
}

/// The bytes of the lines that begin in the part. If objects span lines, the first part has the whole file.
fn own_range(part: &FilePart) -> io::Result<Range<u64>> {
    let mut file = File::open(&part.path)?;
    let text = text_start(&mut file)?;
    if part.range == (0..part.bytes) {
        return Ok(text..part.bytes.max(text));
    }
    if !has_lines(&part.path)? {
        let is_first = part.range.start == 0 && part.range.end > 0;
        return Ok(if is_first { text..part.bytes.max(text) } else { 0..0 });
    }
    let mut line_start = |offset: u64| -> io::Result<u64> {
        if offset <= text || offset >= part.bytes {
            return Ok(offset.clamp(text.min(part.bytes), part.bytes));
        }
        // From one byte earlier: a line may begin exactly at the offset.
        file.seek(SeekFrom::Start(offset - 1))?;
        let mut at = offset - 1;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match file.read(&mut chunk)? {
                0 => return Ok(part.bytes),
                count => match memchr::memchr(b'\n', &chunk[..count]) {
                    Some(newline) => return Ok((at + newline as u64 + 1).min(part.bytes)),
                    None => at += count as u64,
                },
            }
        }
    };
    Ok(line_start(part.range.start)?..line_start(part.range.end)?)
}

/// Reads the objects of a part.
struct JsonReader {
    bytes: Text,
    offset: u64,
    decoder: Option<Decoder>,
    /// Objects per batch of the decoder.
    decoder_rows: usize,
    batch_rows: usize,
    wanted: Wanted,
    part: FilePart,
}

impl JsonReader {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let first = self.offset;
        let mut decoder = match self.decoder.take() {
            Some(decoder) => decoder,
            None => self.new_decoder(self.decoder_rows)?,
        };
        loop {
            let chunk = self.bytes.fill_buf().map_err(|e| failed(&self.part.path, &e))?;
            let ends = chunk.is_empty();
            let given = chunk.len();
            let count = decoder.decode(chunk).map_err(|e| self.unfit(first, &e))?;
            self.bytes.consume(count);
            self.offset += count as u64;
            let complete = decoder.len() - usize::from(decoder.has_partial_record());
            // A full batch may end exactly where the chunk ends.
            if ends || count < given || complete == self.decoder_rows {
                break;
            }
            match growth(self.offset - first, complete) {
                BatchAction::GoesOn => {}
                BatchAction::Fewer(rows) => {
                    let range = first..self.part.range.end;
                    self.bytes = text(&self.part.path, range).map_err(|e| failed(&self.part.path, &e))?;
                    self.offset = first;
                    self.decoder_rows = rows;
                    decoder = self.new_decoder(rows)?;
                }
                BatchAction::TooLong => return Err(failed(&self.part.path, &too_long())),
            }
        }
        let Some(rows) = decoder.flush().map_err(|e| self.unfit(first, &e))? else { return Ok(None) };
        let batch_rows = batch_rows_for(self.offset - first, rows.num_rows(), self.batch_rows);
        if batch_rows == self.decoder_rows {
            self.decoder = Some(decoder);
        }
        self.decoder_rows = batch_rows;
        rows.project(&self.wanted.indices).map(Some).map_err(|e| EngineError::Internal(e.to_string()))
    }

    /// Decodes all columns of the table, and refuses any other field.
    fn new_decoder(&self, rows: usize) -> Result<Decoder> {
        let builder = ReaderBuilder::new(self.wanted.table.clone()).with_batch_size(rows);
        let decoder = builder.with_strict_mode(true).with_coerce_primitive(true).build_decoder();
        decoder.map_err(|e| EngineError::Internal(e.to_string()))
    }

    /// The error for the object at or after offset `first` that the decoder has refused.
    fn unfit(&self, first: u64, error: &ArrowError) -> EngineError {
        let path = &self.part.path;
        let found = || -> Option<(u64, String)> {
            let mut file = File::open(path).ok()?;
            file.seek(SeekFrom::Start(first)).ok()?;
            let mut file = BufReader::new(file.take(self.part.range.end.checked_sub(first)?));
            let mut bytes = Vec::new();
            let mut line = line_of(path, first).ok()?;
            let mut decoder = self.new_decoder(1).ok()?;
            while read_line(&mut file, &mut bytes).ok()? {
                let decoded = decoder.decode(&bytes).and_then(|_| decoder.flush());
                if let Err(error) = decoded {
                    let value: Option<Value> = serde_json::from_slice(&bytes).ok();
                    let field = value.and_then(|value| unknown_field(&value, self.wanted.table.fields()));
                    let problem = match field {
                        Some(field) => format!("the table has no field `{field}`"),
                        None => error.to_string(),
                    };
                    return Some((line, problem));
                }
                line += 1;
            }
            None
        };
        let found = found().filter(|_| has_lines(path).unwrap_or(false));
        let message = match found {
            Some((line, problem)) => format!("{}, line {line}: {problem}", path.display()),
            None => format!("{}: {error}", path.display()),
        };
        let hint = format!(
            "fields are inferred from the first {} MiB of each file when the table is opened; reopen the table, \
             or move such an object there",
            SAMPLE_BYTES >> 20
        );
        EngineError::bad_file(message, hint)
    }
}

/// The path of a field of the value that is not among these.
fn unknown_field(value: &Value, fields: &Fields) -> Option<String> {
    value.as_object()?.iter().find_map(|(name, value)| match fields.find(name) {
        None => Some(name.clone()),
        Some((_, field)) => unknown_inside(value, field.data_type()).map(|inner| format!("{name}.{inner}")),
    })
}

fn unknown_inside(value: &Value, data_type: &DataType) -> Option<String> {
    match data_type {
        DataType::Struct(fields) => unknown_field(value, fields),
        DataType::List(item) => {
            value.as_array()?.iter().find_map(|item_value| unknown_inside(item_value, item.data_type()))
        }
        _ => None,
    }
}
