//! Splits the text of a CSV file into records and values.
//!
//! A value remembers whether it was in quotes: an empty one in quotes is the empty text, and one without is NULL.
//! The rules are those of the `csv` crate, except that nothing but a delimiter or the end of the record may follow a
//! closing quote: otherwise a quote that is never closed would take in records up to the next quote of the file.

use std::io::{self, Cursor, Read as _};
use std::ops::Range;

use memchr::{memchr, memchr2};

use crate::files::bytes::Bytes;
use crate::files::text::{BATCH_BYTES, CHUNK_BYTES, RECORD_BYTES_MAX};

/// How values are separated and quoted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Dialect {
    pub(super) delimiter: u8,
    pub(super) quote: Option<u8>,
    /// Stands before a quote inside quotes, as another quote does.
    pub(super) escape: Option<u8>,
}

/// A value of a record.
#[derive(Debug, Clone, Copy, Default)]
struct Value {
    start: u32,
    end: u32,
    form: Form,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Form {
    /// Without quotes.
    #[default]
    Bare,
    /// What is between quotes, as it is.
    Quoted,
    /// What was between quotes, without the escapes: in [`Batch::unescaped`].
    Unescaped,
}

/// Why a text is not made of records.
#[derive(Debug)]
pub(super) enum Fault {
    Io(io::Error),
    /// The quote at this offset is never closed.
    Unclosed(u64),
    /// This byte follows the closing quote of a value of the record at the offset.
    AfterQuote(u64, u8),
    /// The record at the offset has another number of values.
    Width(u64, usize),
    /// The record at the offset is longer than [`RECORD_BYTES_MAX`].
    TooLong(u64),
}

/// Which values of a record are kept.
#[derive(Debug, Clone)]
pub(super) struct Columns {
    /// For each column of the file, its position among the kept ones.
    places: Vec<Option<usize>>,
    kept: usize,
}

impl Columns {
    /// `wanted` has the position in the file of each value to keep.
    pub(super) fn new(columns: usize, wanted: impl Iterator<Item = usize>) -> Self {
        let mut places = vec![None; columns];
        let mut kept = 0;
        for place in wanted {
            places[place] = Some(kept);
            kept += 1;
        }
        Self { places, kept }
    }
}

/// The values of some records.
#[derive(Debug, Default)]
struct Batch {
    values: Vec<Value>,
    /// Where each record begins in the buffer.
    starts: Vec<usize>,
    unescaped: Vec<u8>,
}

/// Reads records from a text.
pub(super) struct Records {
    bytes: Bytes,
    dialect: Dialect,
    /// Whether a byte ends a value without quotes.
    ends_value: [bool; 256],
    buffer: Vec<u8>,
    /// The part of the buffer that is not yet split into records.
    rest: Range<usize>,
    /// Offset of the buffer in the text.
    offset: u64,
    /// Newlines before the buffer, if they are counted.
    newlines: Option<u64>,
    /// Whether the buffer has the end of the text.
    is_last: bool,
    batch: Batch,
    kept: usize,
    record_bytes_max: u64,
}

enum Step {
    /// A record with this many values ends here.
    Record(usize, usize),
    /// An empty line ends here.
    Blank(usize),
    /// The record goes on after the buffer.
    Incomplete,
    End,
    Fault(Fault),
}

impl Records {
    /// Records from an offset of a text, at which one begins.
    pub(super) fn new(bytes: Bytes, offset: u64, dialect: Dialect) -> Self {
        let mut ends_value = [false; 256];
        for byte in [dialect.delimiter, b'\n', b'\r'] {
            ends_value[byte as usize] = true;
        }
        Self {
            bytes,
            dialect,
            ends_value,
            buffer: Vec::new(),
            rest: 0..0,
            offset,
            newlines: None,
            is_last: false,
            batch: Batch::default(),
            kept: 0,
            record_bytes_max: RECORD_BYTES_MAX,
        }
    }

    /// The same records, of a text that can't be read again: its lines are counted.
    pub(super) fn counting_lines(self) -> Self {
        Self { newlines: Some(0), ..self }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Offset in the text of the next record.
    pub(super) fn offset(&self) -> u64 {
        self.offset + self.rest.start as u64
    }

    /// The line of an offset within the current batch or after it, from 1, if lines are counted.
    pub(super) fn line_of(&self, offset: u64) -> Option<u64> {
        let end = usize::try_from(offset.checked_sub(self.offset)?).ok()?.min(self.rest.end);
        Some(self.newlines? + memchr::memchr_iter(b'\n', &self.buffer[..end]).count() as u64 + 1)
    }

    /// Goes on to the next batch of up to `rows_max` records, and fewer if they are long. Returns their number, which
    /// is 0 at the end of the text. Without `columns`, all values of one record of any width are kept.
    pub(super) fn next_batch(&mut self, columns: Option<&Columns>, rows_max: usize) -> Result<usize, Fault> {
        self.discard();
        self.batch.values.clear();
        self.batch.starts.clear();
        self.batch.unescaped.clear();
        self.kept = columns.map_or(0, |columns| columns.kept);
        loop {
            match self.step(columns) {
                Step::Record(end, values) => {
                    if let Some(columns) = columns
                        && values != columns.places.len()
                    {
                        return Err(Fault::Width(self.offset(), values));
                    }
                    if columns.is_none() {
                        self.kept = values;
                    }
                    self.batch.starts.push(self.rest.start);
                    self.rest.start = end;
                    if self.batch.starts.len() >= rows_max || end as u64 > BATCH_BYTES {
                        break;
                    }
                }
                Step::Blank(end) => self.rest.start = end,
                Step::Incomplete => {
                    // A batch of what is there is better than a larger buffer.
                    let is_large = self.rest.start as u64 > BATCH_BYTES / 4;
                    if is_large && !self.batch.starts.is_empty() {
                        break;
                    }
                    self.fill()?;
                }
                Step::End => break,
                Step::Fault(fault) => return Err(fault),
            }
        }
        Ok(self.batch.starts.len())
    }

    /// Goes back to the first record of the batch, which will be read again.
    pub(super) fn unread(&mut self) {
        if let Some(start) = self.batch.starts.first() {
            self.rest.start = *start;
        }
    }

    /// The number of values of the batch's records.
    pub(super) fn width(&self) -> usize {
        self.kept
    }

    /// Drops what has been split into records.
    fn discard(&mut self) {
        let end = self.rest.start;
        if let Some(newlines) = &mut self.newlines {
            *newlines += memchr::memchr_iter(b'\n', &self.buffer[..end]).count() as u64;
        }
        self.buffer.copy_within(self.rest.clone(), 0);
        self.offset += end as u64;
        self.rest = 0..self.rest.end - end;
    }

    /// Reads more. Of a long record as much as there is already, because its values are found from its start each time.
    fn fill(&mut self) -> Result<(), Fault> {
        let record = self.rest.len();
        if record as u64 > self.record_bytes_max {
            return Err(match self.unclosed() {
                Some(quote) => Fault::Unclosed(quote),
                None => Fault::TooLong(self.offset()),
            });
        }
        let wanted = record.max(CHUNK_BYTES);
        if self.buffer.len() < self.rest.end + wanted {
            self.buffer.resize(self.rest.end + wanted, 0);
        }
        let mut end = self.rest.end;
        // A pipe gives little at a time. Only a long record waits for more of it.
        loop {
            match self.bytes.read(&mut self.buffer[end..]) {
                Ok(0) => {
                    self.is_last = true;
                    break;
                }
                Ok(count) => {
                    end += count;
                    if end - self.rest.end >= record / 2 {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Io(error)),
            }
        }
        self.rest.end = end;
        Ok(())
    }

    /// Where the quote begins that the rest of the buffer is inside of.
    fn unclosed(&mut self) -> Option<u64> {
        let was_last = std::mem::replace(&mut self.is_last, true);
        let step = self.step(None);
        self.is_last = was_last;
        match step {
            Step::Fault(Fault::Unclosed(quote)) => Some(quote),
            _ => None,
        }
    }

    /// Finds the values of one record.
    fn step(&mut self, columns: Option<&Columns>) -> Step {
        let bytes = &self.buffer[..self.rest.end];
        let start = self.rest.start;
        let first_value = self.batch.values.len();
        let first_unescaped = self.batch.unescaped.len();
        let mut at = start;
        let mut column = 0;
        let Some(&first) = bytes.get(at) else {
            return if self.is_last { Step::End } else { Step::Incomplete };
        };
        if matches!(first, b'\n' | b'\r') {
            let Some(end) = self.line_end(at) else { return Step::Incomplete };
            // In a file of one column, an empty line is a record with an empty value.
            if columns.is_none_or(|columns| columns.places.len() != 1) {
                return Step::Blank(end);
            }
            self.batch.values.resize(first_value + self.kept, Value::default());
            return Step::Record(end, 1);
        }
        if let Some(columns) = columns {
            self.batch.values.resize(first_value + columns.kept, Value::default());
        }
        let step = loop {
            let value = if self.dialect.quote.is_some_and(|quote| bytes.get(at) == Some(&quote)) {
                match quoted(bytes, at, self.dialect, self.is_last, &mut self.batch.unescaped) {
                    Quoted::Value(value, after) => {
                        at = after;
                        value
                    }
                    Quoted::Incomplete => break Step::Incomplete,
                    Quoted::Unclosed => break Step::Fault(Fault::Unclosed(self.offset + at as u64)),
                }
            } else {
                let start = at;
                while at < bytes.len() && !self.ends_value[bytes[at] as usize] {
                    at += 1;
                }
                Value { start: start as u32, end: at as u32, form: Form::Bare }
            };
            match columns {
                None => self.batch.values.push(value),
                Some(columns) => {
                    if let Some(Some(place)) = columns.places.get(column) {
                        self.batch.values[first_value + place] = value;
                    }
                }
            }
            column += 1;
            match bytes.get(at) {
                None if self.is_last => break Step::Record(at, column),
                None => break Step::Incomplete,
                Some(&byte) if byte == self.dialect.delimiter => at += 1,
                Some(b'\n' | b'\r') => match self.line_end(at) {
                    Some(end) => break Step::Record(end, column),
                    None => break Step::Incomplete,
                },
                // Only after a closing quote.
                Some(&byte) => break Step::Fault(Fault::AfterQuote(self.offset + start as u64, byte)),
            }
        };
        if matches!(step, Step::Incomplete | Step::Fault(_)) {
            self.batch.values.truncate(first_value);
            self.batch.unescaped.truncate(first_unescaped);
        }
        step
    }

    /// The end of a line break; `None` if it may go on after the buffer.
    fn line_end(&self, at: usize) -> Option<usize> {
        let bytes = &self.buffer[..self.rest.end];
        match (bytes[at], bytes.get(at + 1)) {
            (b'\r', Some(b'\n')) => Some(at + 2),
            (b'\r', None) if !self.is_last => None,
            _ => Some(at + 1),
        }
    }

    /// The batch's text, if it is UTF-8; otherwise the offset of the first byte that is not.
    fn text(&self) -> Result<(&str, &str), u64> {
        let bytes = &self.buffer[..self.rest.start];
        let text = std::str::from_utf8(bytes).map_err(|error| self.offset + error.valid_up_to() as u64)?;
        // The escapes that are left out are single bytes of ASCII.
        let unescaped = std::str::from_utf8(&self.batch.unescaped).map_err(|_| self.offset)?;
        Ok((text, unescaped))
    }

    /// The values of the batch.
    ///
    /// # Errors
    /// The offset of a byte that is not UTF-8.
    pub(super) fn values(&self) -> Result<Values<'_>, u64> {
        let (text, unescaped) = self.text()?;
        Ok(Values { text, unescaped, batch: &self.batch, kept: self.kept })
    }

    /// The row of the batch that has this offset.
    pub(super) fn row_of(&self, offset: u64) -> usize {
        let at = offset.saturating_sub(self.offset) as usize;
        self.batch.starts.partition_point(|start| *start <= at).saturating_sub(1)
    }

    /// Offset in the text of a row of the batch.
    pub(super) fn row_offset(&self, row: usize) -> u64 {
        self.offset + self.batch.starts.get(row).copied().unwrap_or(self.rest.start) as u64
    }

    /// The position in a row of the batch of the first value that is not UTF-8.
    pub(super) fn not_utf8(&self, row: usize) -> Option<usize> {
        let start = *self.batch.starts.get(row)?;
        let end = self.batch.starts.get(row + 1).copied().unwrap_or(self.rest.start);
        let bytes = Cursor::new(self.buffer[start..end].to_vec());
        let mut record = Self::new(Box::new(bytes), 0, self.dialect);
        record.next_batch(None, 1).ok()?;
        let is_utf8 = |value: &Value| {
            let bytes = if value.form == Form::Unescaped { &record.batch.unescaped } else { &record.buffer };
            std::str::from_utf8(&bytes[value.start as usize..value.end as usize]).is_ok()
        };
        record.batch.values.iter().position(|value| !is_utf8(value))
    }
}

/// The values of a batch of records.
pub(super) struct Values<'a> {
    text: &'a str,
    unescaped: &'a str,
    batch: &'a Batch,
    kept: usize,
}

impl<'a> Values<'a> {
    /// The values of a row, and whether each was in quotes.
    pub(super) fn row(&self, row: usize) -> impl Iterator<Item = (&'a str, bool)> {
        let values = &self.batch.values[row * self.kept..(row + 1) * self.kept];
        let (text, unescaped) = (self.text, self.unescaped);
        values.iter().map(move |value| of(value, text, unescaped))
    }

    /// The values of a kept column, and whether each was in quotes.
    pub(super) fn column(&self, place: usize) -> impl ExactSizeIterator<Item = (&'a str, bool)> {
        let (text, unescaped) = (self.text, self.unescaped);
        let values = self.batch.values.get(place..).unwrap_or_default();
        values.iter().step_by(self.kept.max(1)).map(move |value| of(value, text, unescaped))
    }
}

fn of<'a>(value: &Value, text: &'a str, unescaped: &'a str) -> (&'a str, bool) {
    let range = value.start as usize..value.end as usize;
    match value.form {
        Form::Bare => (&text[range], false),
        Form::Quoted => (&text[range], true),
        Form::Unescaped => (&unescaped[range], true),
    }
}

enum Quoted {
    /// The value, and where what follows its closing quote begins.
    Value(Value, usize),
    Incomplete,
    Unclosed,
}

/// Finds the value whose opening quote is at `start`.
fn quoted(bytes: &[u8], start: usize, dialect: Dialect, is_last: bool, unescaped: &mut Vec<u8>) -> Quoted {
    let quote = bytes[start];
    let escape = dialect.escape.filter(|escape| *escape != quote);
    let open = if is_last { Quoted::Unclosed } else { Quoted::Incomplete };
    let first_unescaped = unescaped.len();
    let mut is_escaped = false;
    // Where the part begins that has no escape yet.
    let mut part = start + 1;
    let mut from = part;
    loop {
        let rest = &bytes[from..];
        let found = match escape {
            None => memchr(quote, rest),
            Some(escape) => memchr2(quote, escape, rest),
        };
        let Some(at) = found.map(|found| from + found) else { return open };
        let is_quote = bytes[at] == quote;
        match bytes.get(at + 1) {
            None if !is_last => return Quoted::Incomplete,
            None if !is_quote => return Quoted::Unclosed,
            // The next byte is part of the value.
            Some(next) if !is_quote || *next == quote => {
                unescaped.extend_from_slice(&bytes[part..at]);
                is_escaped = true;
                part = at + 1;
                from = at + 2;
            }
            _ if is_escaped => {
                unescaped.extend_from_slice(&bytes[part..at]);
                let (start, end) = (first_unescaped as u32, unescaped.len() as u32);
                return Quoted::Value(Value { start, end, form: Form::Unescaped }, at + 1);
            }
            _ => {
                let value = Value { start: part as u32, end: at as u32, form: Form::Quoted };
                return Quoted::Value(value, at + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;

    const COMMA: Dialect = Dialect { delimiter: b',', quote: Some(b'"'), escape: None };

    /// Gives a few bytes at a time.
    struct Slow(Cursor<Vec<u8>>, usize);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(buffer.len());
            self.0.read(&mut buffer[..count])
        }
    }

    fn all(text: &[u8], piece: usize, dialect: Dialect) -> Result<Vec<Vec<(String, bool)>>, Fault> {
        let mut records = Records::new(Box::new(Slow(Cursor::new(text.to_vec()), piece)), 0, dialect);
        let mut rows = Vec::new();
        while records.next_batch(None, 1)? > 0 {
            let values = records.values().unwrap();
            rows.push(values.row(0).map(|(text, quoted)| (text.to_owned(), quoted)).collect());
        }
        Ok(rows)
    }

    proptest! {
        /// What Rust's `csv` crate reads, except what it takes for a value after a closing quote.
        #[test]
        fn records_are_those_of_the_csv_crate(
            parts in proptest::collection::vec(proptest::sample::select(
                vec!["a", ",", "\n", "\"", "\"\"", "\r\n", "\r", "\",\"", "\"\n", "é", "\n\"", ",\""]), 0..60),
            piece in 1_usize..9,
        ) {
            let text = parts.concat();
            let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
            let expected: Vec<Vec<String>> = reader.records()
                .map(|record| record.unwrap().iter().map(str::to_owned).collect()).collect();
            match all(text.as_bytes(), piece, COMMA) {
                Ok(found) => {
                    let found: Vec<Vec<String>> =
                        found.into_iter().map(|row| row.into_iter().map(|(text, _)| text).collect()).collect();
                    prop_assert_eq!(found, expected, "{:?}", text);
                }
                Err(Fault::Unclosed(at) | Fault::AfterQuote(at, _)) => prop_assert!(at < text.len() as u64),
                Err(fault) => prop_assert!(false, "{:?}", fault),
            }
        }
    }

    #[test]
    fn quotes_are_remembered() {
        let found = all(b"a,\"\",,\"b\"\"c\"\n\n\"d\"", 2, COMMA).unwrap();
        let value = |text: &str, quoted| (text.to_owned(), quoted);
        let first = vec![value("a", false), value("", true), value("", false), value("b\"c", true)];
        assert_eq!(found, [first, vec![value("d", true)]]);
    }

    #[test]
    fn dialects_have_other_delimiters_quotes_and_escapes() {
        let dialect = Dialect { delimiter: b';', quote: Some(b'\''), escape: Some(b'\\') };
        let found = all(b"a,b;'c;d';'e\\'f\\\\';'g''h'\n", 3, dialect).unwrap();
        let texts: Vec<_> = found[0].iter().map(|(text, _)| text.as_str()).collect();
        assert_eq!(texts, ["a,b", "c;d", "e'f\\", "g'h"]);
        let none = Dialect { quote: None, ..COMMA };
        let found = all(b"\"a,b\n", 3, none).unwrap();
        assert_eq!(found[0], [("\"a".to_owned(), false), ("b".to_owned(), false)]);
    }

    #[test]
    fn an_unclosed_quote_is_an_error_at_its_place() {
        assert!(matches!(all(b"a,b\n1,\"x\n2,y\n", 4, COMMA), Err(Fault::Unclosed(6))));
        // It meets the next quote of the file.
        assert!(matches!(all(b"a,b\n1,\"x\n2,\"y\"\n", 4, COMMA), Err(Fault::AfterQuote(4, b'y'))));
    }

    #[test]
    fn an_endless_record_is_refused() {
        for (start, is_quoted) in [("\"", true), ("", false)] {
            let endless = Cursor::new(start).chain(io::repeat(b'x'));
            let mut records = Records::new(Box::new(endless), 0, COMMA);
            records.record_bytes_max = 1 << 20;
            let fault = records.next_batch(None, 1).unwrap_err();
            assert!(
                matches!((&fault, is_quoted), (Fault::Unclosed(0), true) | (Fault::TooLong(0), false)),
                "{fault:?}"
            );
        }
    }

    #[test]
    fn an_empty_line_is_a_record_in_a_file_of_one_column() {
        let mut records = Records::new(Box::new(Cursor::new("1\n\n\"\"\n")), 0, COMMA);
        let columns = Columns::new(1, std::iter::once(0));
        assert_eq!(records.next_batch(Some(&columns), 10).unwrap(), 3);
        let values: Vec<_> = records.values().unwrap().column(0).collect();
        assert_eq!(values, [("1", false), ("", false), ("", true)]);
    }
}
