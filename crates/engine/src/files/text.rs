//! Shared code of the text formats.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

/// Bytes read at once.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// Maximum length of a record. Without it, a record that never ends would take the rest of the file
/// into memory.
pub(super) const RECORD_BYTES_MAX: u64 = 256 << 20;

/// A batch has about this much text, if its records are like those of the previous batch.
const BATCH_BYTES: u64 = 16 << 20;

/// A batch with more text is read again with fewer records, unless it has only one.
const BATCH_BYTES_MAX: u64 = 64 << 20;

/// The bytes that may precede the text of a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Where the text of a file begins: after its byte order mark.
pub(super) fn text_start(file: &mut File) -> io::Result<u64> {
    let mut first = Vec::new();
    file.rewind()?;
    file.take(BYTE_ORDER_MARK.len() as u64).read_to_end(&mut first)?;
    Ok(if first == BYTE_ORDER_MARK { first.len() as u64 } else { 0 })
}

/// The line number, from 1, of a byte of a file.
pub(super) fn line_of(path: &Path, offset: u64) -> io::Result<u64> {
    let mut before = File::open(path)?.take(offset);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut line = 1;
    loop {
        match before.read(&mut chunk)? {
            0 => return Ok(line),
            count => line += memchr::memchr_iter(b'\n', &chunk[..count]).count() as u64,
        }
    }
}

/// What to do with a batch that is not full yet.
pub(super) enum BatchAction {
    /// Read more bytes for it.
    GoesOn,
    /// Read it again, with this many rows.
    Fewer(usize),
    /// Fail: its only record is longer than [`RECORD_BYTES_MAX`].
    TooLong,
}

/// Decides about a batch that is not full, by the bytes read for it and its complete records so far.
pub(super) fn growth(bytes: u64, complete: usize) -> BatchAction {
    match complete {
        0 if bytes > RECORD_BYTES_MAX => BatchAction::TooLong,
        1.. if bytes > BATCH_BYTES_MAX => BatchAction::Fewer(complete),
        _ => BatchAction::GoesOn,
    }
}

/// Rows of the next batch, given the bytes and rows of the previous one.
pub(super) fn batch_rows_for(bytes: u64, rows: usize, rows_max: usize) -> usize {
    let row_bytes = (bytes / rows.max(1) as u64).max(1);
    ((BATCH_BYTES / row_bytes) as usize).clamp(1, rows_max)
}
