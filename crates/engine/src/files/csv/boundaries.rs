//! Finds where records of a CSV file begin.
//!
//! A newline ends a record unless it is inside quotes, and whether a byte is inside quotes depends
//! on all bytes before it. So a file is scanned once from its start, as far as needed; the scan
//! jumps from quote to quote.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError};

use memchr::{memchr, memchr2};

use super::records::Dialect;
use crate::files::input::FilePath;
use crate::files::text::{CHUNK_BYTES, RECORD_BYTES_MAX};

/// Distance between remembered boundaries, in bytes; larger in files that would have more than
/// [`MARKS_MAX`] of them.
const MARK_BYTES: u64 = 1 << 20;
const MARKS_MAX: u64 = 4096;

/// Maximum number of files whose boundaries are remembered.
const FILES_MAX: usize = 1024;

/// Tracks quotes in the bytes of a file: a quote opens only at the start of a value, and two in a row
/// inside quotes stand for one.
#[derive(Debug, Clone)]
struct Scanner {
    dialect: Dialect,
    state: State,
    /// Offset in the file of the next byte.
    offset: u64,
    /// Offset of the last opening quote.
    opened: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Outside of quotes, after this byte.
    Outside(u8),
    Inside,
    /// After an escape inside quotes.
    Escaped,
    /// After a quote inside quotes: either the closing quote, or the first of two in a row.
    Closing,
}

impl Scanner {
    /// A scanner that starts at the beginning of a record.
    fn new(offset: u64, dialect: Dialect) -> Self {
        Self { dialect, state: State::Outside(b'\n'), offset, opened: 0 }
    }

    /// Scans to the first record that begins at offset `wanted` or later. Returns the number of
    /// bytes before it, or `None` if it does not begin in or right after these bytes; then all of
    /// them have been scanned.
    fn scan(&mut self, bytes: &[u8], wanted: u64) -> Option<usize> {
        let first = self.offset;
        let Dialect { delimiter, quote: quote_byte, escape } = self.dialect;
        // Without quotes, the other states do not occur.
        let inside = quote_byte.unwrap_or(b'"');
        let escape = escape.filter(|escape| *escape != inside);
        let mut at = 0;
        let found = loop {
            match self.state {
                State::Inside => match memchr2(inside, escape.unwrap_or(inside), &bytes[at..]) {
                    Some(found) => {
                        let is_quote = bytes[at + found] == inside;
                        self.state = if is_quote { State::Closing } else { State::Escaped };
                        at += found + 1;
                    }
                    None => break None,
                },
                State::Escaped if at < bytes.len() => (self.state, at) = (State::Inside, at + 1),
                State::Escaped => break None,
                State::Closing => match bytes.get(at) {
                    Some(byte) if *byte == inside => (self.state, at) = (State::Inside, at + 1),
                    Some(_) => self.state = State::Outside(inside),
                    None => break None,
                },
                State::Outside(before) => {
                    let quote =
                        quote_byte.and_then(|quote| memchr(quote, &bytes[at..])).map(|quote| at + quote);
                    let end = quote.unwrap_or(bytes.len());
                    // A newline right before the wanted offset is enough.
                    let from = wanted.saturating_sub(first + 1).min(end as u64) as usize;
                    let from = from.max(at);
                    if let Some(newline) = memchr(b'\n', &bytes[from..end]) {
                        self.state = State::Outside(b'\n');
                        break Some(from + newline + 1);
                    }
                    let before = if end > at { bytes[end - 1] } else { before };
                    let Some(quote) = quote else {
                        self.state = State::Outside(before);
                        break None;
                    };
                    self.state = if before == delimiter || matches!(before, b'\n' | b'\r') {
                        self.opened = first + quote as u64;
                        State::Inside
                    } else {
                        State::Outside(inside)
                    };
                    at = quote + 1;
                }
            }
        };
        self.offset = first + found.unwrap_or(bytes.len()) as u64;
        found
    }

    fn is_too_long(&self) -> bool {
        self.state == State::Inside && self.offset - self.opened > RECORD_BYTES_MAX
    }
}

/// Some boundaries of a file, in order; the first is where its text begins.
#[derive(Debug, Default)]
struct Marks(Vec<u64>);

impl Marks {
    /// The first record that begins at this offset or later; the end of the file if there is none.
    fn record_start(
        &mut self,
        file: &mut (impl Read + Seek),
        text: &Text,
        offset: u64,
        distance: u64,
    ) -> io::Result<u64> {
        let bytes = text.version.1;
        if offset == 0 || offset >= bytes {
            return Ok(offset.min(bytes));
        }
        if self.0.is_empty() {
            self.0.push(text.start);
        }
        let known = self.0.partition_point(|mark| *mark <= offset).max(1) - 1;
        let mut at = self.0[known];
        if at >= offset {
            return Ok(at);
        }
        file.seek(SeekFrom::Start(at))?;
        let mut scanner = Scanner::new(at, text.dialect);
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let count = file.read(&mut chunk)?;
            if count == 0 || scanner.is_too_long() {
                // The previous part reads the rest, and fails at the unclosed quote.
                return Ok(bytes);
            }
            let mut rest = &chunk[..count];
            loop {
                let last = self.0.last().copied().unwrap_or(at);
                // Adds new marks beyond the last one.
                let stop = if last <= at { offset.min(last + distance) } else { offset };
                let Some(found) = scanner.scan(rest, stop) else { break };
                at = scanner.offset;
                rest = &rest[found..];
                if at >= last + distance {
                    self.0.push(at);
                }
                if at >= offset {
                    return Ok(at);
                }
            }
        }
    }
}

/// A version of a file: path, size in bytes, and time of its last change in nanoseconds.
pub(super) type Version = (FilePath, u64, i64);

/// A text whose boundaries are looked for.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) version: Version,
    /// Where the first record begins.
    pub(super) start: u64,
    pub(super) dialect: Dialect,
}

/// The boundaries of the files of a table.
#[derive(Debug, Default)]
pub(super) struct Boundaries(Mutex<HashMap<Version, Arc<Mutex<Marks>>>>);

impl Boundaries {
    /// The first record that begins at this offset of the file or later; the end of the file if
    /// there is none. The result depends on neither the reader nor the order of calls, so adjacent
    /// parts of a file have each record once.
    pub(super) fn record_start(&self, text: &Text, offset: u64) -> io::Result<u64> {
        let version = &text.version;
        let marks = {
            let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if files.len() >= FILES_MAX && !files.contains_key(version) {
                files.clear();
            }
            files.entry(version.clone()).or_default().clone()
        };
        let mut marks = marks.lock().unwrap_or_else(PoisonError::into_inner);
        let distance = MARK_BYTES.max(version.1 / MARKS_MAX);
        marks.record_start(&mut version.0.open()?, text, offset, distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;

    /// Where records begin according to the `csv` crate.
    fn expected(text: &[u8]) -> Vec<u64> {
        let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text);
        let mut starts = vec![0];
        let mut record = csv::ByteRecord::new();
        while reader.read_byte_record(&mut record).unwrap() {
            starts.push(reader.position().byte());
        }
        starts.pop();
        starts
    }

    proptest! {
        /// Every offset gives the start of a record as the `csv` crate reads it, regardless of earlier calls.
        #[test]
        fn boundaries_match_the_csv_crate(
            parts in proptest::collection::vec(
                proptest::sample::select(vec!["a", ",", "\n", "\"", "\"\"", "\r\n", "\",\"", "\"\n", "é"]), 0..60),
            offsets in proptest::collection::vec(0_u64..150, 1..8),
            distance in 1_u64..20,
        ) {
            let text = parts.concat();
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            let bytes = text.len() as u64;
            let mut marks = Marks::default();
            let dialect = Dialect { delimiter: b',', quote: Some(b'"'), escape: None };
            let of = Text { version: (FilePath::from(""), bytes, 0), start: 0, dialect };
            for offset in offsets {
                let found = marks.record_start(&mut file, &of, offset, distance).unwrap();
                prop_assert!(found >= offset.min(bytes));
                // Reading both parts gives the records of the whole.
                let whole = expected(text.as_bytes()).len();
                let (head, tail) = text.as_bytes().split_at(found as usize);
                prop_assert_eq!(expected(head).len() + expected(tail).len(), whole, "at {} of {:?}", found, text);
                // No later than at the first newline that the csv crate takes for the end of a record.
                let next = expected(text.as_bytes()).into_iter()
                    .map(|start| start + u64::from(text.as_bytes().get(start as usize) == Some(&b'\n')))
                    .find(|start| *start >= offset && *start > 0 && text.as_bytes()[*start as usize - 1] == b'\n');
                if let Some(next) = next.filter(|_| offset > 0) {
                    prop_assert!(found <= next, "{} instead of {} of {:?}", found, next, text);
                }
            }
        }
    }
}
