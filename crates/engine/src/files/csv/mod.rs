//! CSV: records of values between delimiters, some of them in quotes.

mod boundaries;
mod reader;
mod records;

use std::io::{self, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};
use lightship_sources::file_options::{FileOptions, Sample};

use self::boundaries::{Boundaries, Text};
use self::reader::CsvReader;
use self::records::{Columns, Dialect, Fault, Records};
use super::by_name::{Batches, FilePart, Format, TextFormat, Wanted, until_end};
use super::bytes::{Bytes, Coding, TextFile, failed, peek_line, skip_mark};
use super::columns;
use super::input::FilePath;
use super::text::RECORD_BYTES_MAX;
use super::values::{self, Guess};
use crate::error::{EngineError, Result};

/// Records of each file from which the types of its columns are inferred, unless another number is asked for.
const SAMPLE_RECORDS: u64 = 1000;

/// Records of the sample that are read at once.
const SAMPLE_BATCH: u64 = 1000;

/// Delimiters of files whose name does not tell: the first of those that occur most often in the first line.
const DELIMITERS: [u8; 4] = [b',', b'\t', b';', b'|'];

/// Files of values between delimiters.
#[derive(Debug)]
pub(super) struct Csv {
    rules: Arc<CsvRules>,
    boundaries: Boundaries,
}

/// How records are read, and what their values mean.
#[derive(Debug)]
struct CsvRules {
    coding: Coding,
    /// `None` if each file shows it.
    delimiter: Option<u8>,
    quote: Option<u8>,
    escape: Option<u8>,
    has_header: bool,
    /// Texts without quotes that are NULL, besides the empty one.
    nulls: Vec<String>,
    types: Vec<(String, DataType)>,
    all_text: bool,
    sample: Sample,
}

/// The columns of a text.
struct Header {
    names: Vec<String>,
    /// Where the first record with values begins.
    end: u64,
}

/// A text, for messages about it.
#[derive(Debug, Clone)]
enum Origin {
    File(TextFile),
    /// A text that can be read only once.
    Stream(PathBuf),
}

impl Origin {
    fn path(&self) -> &Path {
        match self {
            Self::File(text) => &text.path,
            Self::Stream(name) => name,
        }
    }

    /// `PATH, line N`.
    fn line(&self, records: &Records, offset: u64) -> String {
        let line = match self {
            Self::File(text) => text.line_of(offset).ok(),
            Self::Stream(_) => records.line_of(offset),
        };
        let line = line.map_or(String::new(), |line| format!(", line {line}"));
        format!("{}{line}", self.path().display())
    }
}

const UTF8_HINT: &str = "convert the file to UTF-8, or give its encoding, as in --encoding latin1";

impl Csv {
    /// `delimiter` is that of the file's name.
    pub(super) fn new(options: &FileOptions, delimiter: Option<u8>) -> Result<Self> {
        let rules = CsvRules {
            coding: Coding::new(options)?,
            delimiter: options.delimiter.or(delimiter),
            quote: options.quote.unwrap_or(Some(b'"')),
            escape: options.escape,
            has_header: options.header.unwrap_or(true),
            nulls: options.nulls.clone(),
            types: options.types.clone(),
            all_text: options.all_text,
            sample: options.sample.unwrap_or(Sample::Records(SAMPLE_RECORDS)),
        };
        if rules.quote.is_some() && rules.quote == rules.delimiter {
            return Err(EngineError::Config("the delimiter and the quote are the same character".into()));
        }
        Ok(Self { rules: Arc::new(rules), boundaries: Boundaries::default() })
    }
}

impl CsvRules {
    /// The records of a text, of which some bytes precede them.
    fn records(&self, bytes: Bytes, offset: u64) -> io::Result<Records> {
        let (bytes, delimiter) = match self.delimiter {
            Some(delimiter) => (bytes, delimiter),
            None => {
                let (bytes, first) = peek_line(bytes)?;
                (bytes, delimiter_of(&first))
            }
        };
        let (quote, escape) = (self.quote.filter(|quote| *quote != delimiter), self.escape);
        Ok(Records::new(bytes, offset, Dialect { delimiter, quote, escape }))
    }

    /// The records of a file, from the first on, and its columns.
    fn begin(&self, text: &TextFile) -> Result<(Records, Header)> {
        let records = text.from(text.start).and_then(|bytes| self.records(bytes, text.start));
        let mut records = records.map_err(|e| failed(&text.path, &e))?;
        let header = self.header(&mut records, &Origin::File(text.clone()))?;
        Ok((records, header))
    }

    /// The records of a stream, from the first on, and its columns.
    fn begin_stream(&self, bytes: Bytes, origin: &Origin) -> Result<(Records, Header)> {
        let decoded = self.coding.decode(bytes, origin.path()).and_then(|(bytes, _)| skip_mark(bytes));
        let records = decoded.and_then(|(bytes, start)| self.records(bytes, start));
        let mut records = records.map_err(|e| failed(origin.path(), &e))?.counting_lines();
        let header = self.header(&mut records, origin)?;
        Ok((records, header))
    }

    /// Whether an unquoted text is NULL.
    fn is_null(&self, text: &str) -> bool {
        text.is_empty() || self.nulls.iter().any(|null| null == text)
    }

    /// The names of the columns, from the first record. Without a header, that is read again as values.
    fn header(&self, records: &mut Records, origin: &Origin) -> Result<Header> {
        let start = records.offset();
        if records.next_batch(None, 1).map_err(|fault| self.refused(fault, records, origin, None))? == 0 {
            return Ok(Header { names: Vec::new(), end: start });
        }
        if !self.has_header {
            let names = (1..=records.width()).map(|number| format!("column_{number}")).collect();
            records.unread();
            return Ok(Header { names, end: start });
        }
        let values = records.values().map_err(|offset| {
            let message = format!("{}: the header is not UTF-8", origin.line(records, offset));
            EngineError::bad_file(message, UTF8_HINT)
        });
        let names = values?.row(0).map(|(name, _)| name.to_owned()).collect();
        Ok(Header { names, end: records.offset() })
    }

    /// Infers the types of columns from the records that follow.
    fn infer(&self, header: &Header, records: &mut Records, origin: &Origin) -> Result<Schema> {
        let width = header.names.len();
        let mut guesses = vec![(Guess::default(), false); width];
        let all = Columns::new(width, 0..width);
        let mut left = match self.sample {
            _ if self.all_text => 0,
            Sample::Records(count) => count,
            Sample::All => u64::MAX,
        };
        while left > 0 && width > 0 {
            let count = records.next_batch(Some(&all), left.min(SAMPLE_BATCH) as usize);
            let count = count.map_err(|fault| self.refused(fault, records, origin, Some(&header.names)))?;
            if count == 0 {
                break;
            }
            left -= count as u64;
            // The scan will refuse text that is not UTF-8.
            let Ok(values) = records.values() else { break };
            for (place, (guess, has_empty)) in guesses.iter_mut().enumerate() {
                for (text, is_quoted) in values.column(place) {
                    match text {
                        "" => *has_empty |= is_quoted,
                        text if !is_quoted && self.is_null(text) => {}
                        text => guess.add(text),
                    }
                }
            }
        }
        let fields = header.names.iter().zip(guesses).map(|(name, (guess, has_empty))| {
            let given = columns::given_type(&self.types, name);
            let inferred = match guess.data_type() {
                _ if self.all_text => DataType::Utf8,
                DataType::Null if has_empty => DataType::Utf8,
                inferred => inferred,
            };
            Field::new(name, given.unwrap_or(inferred), true)
        });
        let schema = Schema::new(fields.collect::<Vec<_>>());
        columns::unique(origin.path(), &schema)?;
        Ok(schema)
    }

    /// The error for records that are none.
    fn refused(
        &self,
        fault: Fault,
        records: &Records,
        origin: &Origin,
        names: Option<&[String]>,
    ) -> EngineError {
        let bad = |offset: u64, problem: &str, hint: &str| {
            EngineError::bad_file(format!("{}: {problem}", origin.line(records, offset)), hint)
        };
        match fault {
            Fault::Io(error) => failed(origin.path(), &error),
            Fault::Unclosed(offset) => bad(
                offset,
                "the quote that begins a value here is never closed",
                "close it; to put a quote into a value, quote the value and double the quote; for a file without \
                 quotes, use --quote none",
            ),
            Fault::AfterQuote(offset, byte) => bad(
                offset,
                &format!("`{}` follows the closing quote of a value", char::from(byte).escape_default()),
                "an earlier quote may lack its end; to put a quote into a value, quote the value and double the \
                 quote; for a file without quotes, use --quote none",
            ),
            Fault::Width(offset, values) => {
                let expected = names.map_or(0, <[String]>::len);
                let of = if self.has_header { "header" } else { "first record" };
                bad(
                    offset,
                    &format!("the record has {values} values, but the {of} has {expected}"),
                    "give each record one value per column; put values that contain the delimiter in quotes",
                )
            }
            Fault::TooLong(offset) => {
                let problem = format!("a record is longer than {} MiB", RECORD_BYTES_MAX >> 20);
                bad(offset, &problem, "check that each record ends with a newline")
            }
        }
    }

    /// What to do about a value that does not fit the inferred type.
    fn type_hint(&self, column: &str) -> String {
        let given = self.types.iter().any(|(known, _)| known == column);
        match self.sample {
            _ if given => "give the column another type".to_owned(),
            Sample::Records(count) => format!(
                "types are inferred from the first {count} records of each file; give the type, as in --types \
                 {column}=text, or infer it from all records with --sample all"
            ),
            Sample::All => format!("give the type of the column, as in --types {column}=text"),
        }
    }
}

/// The delimiter that a text shows by its first line.
fn delimiter_of(text: &[u8]) -> u8 {
    let line = text.split(|byte| *byte == b'\n').find(|line| !line.is_empty()).unwrap_or_default();
    let mut best = (DELIMITERS[0], 0);
    for delimiter in DELIMITERS {
        let mut is_inside = false;
        let count = line.iter().filter(|byte| {
            is_inside ^= **byte == b'"';
            !is_inside && **byte == delimiter
        });
        let count = count.count();
        if count > best.1 {
            best = (delimiter, count);
        }
    }
    best.0
}

impl Format for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn finds_parts(&self) -> bool {
        false
    }

    fn columns(&self, path: &FilePath) -> Result<Schema> {
        let text = TextFile::open(path, self.rules.coding)?;
        let (mut records, header) = self.rules.begin(&text)?;
        self.rules.infer(&header, &mut records, &Origin::File(text))
    }

    fn unknown(&self) -> DataType {
        DataType::Utf8
    }

    fn common(&self, a: &DataType, b: &DataType) -> Option<DataType> {
        Some(values::common(a, b))
    }

    fn read(&self, part: FilePart, wanted: &Wanted, batch_rows: usize) -> Result<Batches> {
        let path = &part.path;
        let text = TextFile::open(path, self.rules.coding)?;
        let Range { start, end } = part.range;
        if !text.is_plain && start > 0 {
            // The first part has all records.
            return Ok(Box::new(std::iter::empty()));
        }
        let (mut records, header) = self.rules.begin(&text)?;
        if text.is_plain {
            let io_failed = |e: io::Error| failed(path, &e);
            let dialect = records.dialect();
            let version = (path.clone(), part.bytes, part.changed);
            let known = Text { version, start: text.start, dialect };
            let record_start = |offset: u64| {
                // The start and the end of the file need no scan.
                if offset == 0 || offset >= part.bytes {
                    return Ok(offset.min(part.bytes));
                }
                self.boundaries.record_start(&known, offset).map_err(io_failed)
            };
            let start = record_start(start)?.max(header.end);
            let end = record_start(end)?.max(start);
            let bytes = text.from(start).map_err(io_failed)?.take(end - start);
            records = Records::new(Box::new(bytes), start, dialect);
        }
        let origin = Origin::File(text);
        let mut reader = CsvReader::new(&self.rules, origin, records, header, wanted, batch_rows)?;
        Ok(until_end(move || reader.next()))
    }
}

impl TextFormat for Csv {
    fn columns_of_stream(&self, name: &Path, bytes: Bytes) -> Result<Schema> {
        let origin = Origin::Stream(name.to_owned());
        let (mut records, header) = self.rules.begin_stream(bytes, &origin)?;
        self.rules.infer(&header, &mut records, &origin)
    }

    fn read_stream(&self, name: &Path, bytes: Bytes, wanted: &Wanted, batch_rows: usize) -> Result<Batches> {
        let origin = Origin::Stream(name.to_owned());
        let (records, header) = self.rules.begin_stream(bytes, &origin)?;
        let mut reader = CsvReader::new(&self.rules, origin, records, header, wanted, batch_rows)?;
        Ok(until_end(move || reader.next()))
    }
}
