//! Splits a text into the objects that follow each other in it.

use std::io::{self, Read as _};
use std::ops::Range;

use memchr::{memchr, memchr_iter, memchr2};

use crate::files::bytes::Bytes;
use crate::files::text::{CHUNK_BYTES, RECORD_BYTES_MAX};

/// An object that has more bytes than [`RECORD_BYTES_MAX`].
pub(super) fn too_long() -> io::Error {
    io::Error::other(format!("an object is longer than {} MiB", RECORD_BYTES_MAX >> 20))
}

/// Objects one after the other, with blanks between them. What begins as something else is returned up to the end of
/// its line.
pub(super) struct Objects {
    bytes: Bytes,
    /// Whether each line is returned as an object.
    by_line: bool,
    buffer: Vec<u8>,
    /// The part of the buffer that is not yet returned.
    rest: Range<usize>,
    /// The line of the rest, from 1.
    line: u64,
    is_last: bool,
}

fn newlines(bytes: &[u8]) -> u64 {
    memchr_iter(b'\n', bytes).count() as u64
}

impl Objects {
    pub(super) fn new(bytes: Bytes, by_line: bool) -> Self {
        Self { bytes, by_line, buffer: Vec::new(), rest: 0..0, line: 1, is_last: false }
    }

    /// The line and the text of the next object, which may be incomplete at the end of the text.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, &[u8])>> {
        loop {
            let rest = &self.buffer[self.rest.clone()];
            let blank = rest.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(rest.len());
            self.line += newlines(&rest[..blank]);
            self.rest.start += blank;
            if !self.rest.is_empty() {
                break;
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
        let is_object = !self.by_line && self.buffer[self.rest.start] == b'{';
        let length = if is_object { self.object()? } else { self.until_newline()? };
        let object = self.rest.start..self.rest.start + length;
        self.rest.start = object.end;
        let (line, object) = (self.line, &self.buffer[object]);
        // A line contains no newline.
        if is_object {
            self.line += newlines(object);
        }
        Ok(Some((line, object)))
    }

    /// Bytes up to the end of the line.
    fn until_newline(&mut self) -> io::Result<usize> {
        let mut length = 0;
        loop {
            let rest = &self.buffer[self.rest.clone()];
            match memchr(b'\n', &rest[length..]) {
                Some(found) => return Ok(length + found),
                None => length = rest.len(),
            }
            if !self.fill()? {
                return Ok(length);
            }
        }
    }

    /// Bytes of the object that begins here.
    fn object(&mut self) -> io::Result<usize> {
        let (mut length, mut depth, mut in_string, mut after_escape) = (0, 0_u32, false, false);
        loop {
            let rest = &self.buffer[self.rest.clone()];
            while length < rest.len() {
                if std::mem::take(&mut after_escape) {
                    length += 1;
                    continue;
                }
                if in_string {
                    let found = memchr2(b'"', b'\\', &rest[length..]);
                    let Some(found) = found else {
                        length = rest.len();
                        break;
                    };
                    length += found + 1;
                    match rest[length - 1] {
                        b'"' => in_string = false,
                        _ => after_escape = true,
                    }
                    continue;
                }
                match rest[length] {
                    b'"' => in_string = true,
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                length += 1;
                if depth == 0 && !in_string {
                    return Ok(length);
                }
            }
            if !self.fill()? {
                return Ok(length);
            }
        }
    }

    /// Reads more; false at the end of the text.
    fn fill(&mut self) -> io::Result<bool> {
        if self.is_last {
            return Ok(false);
        }
        if self.rest.len() as u64 > RECORD_BYTES_MAX {
            return Err(too_long());
        }
        self.buffer.copy_within(self.rest.clone(), 0);
        self.rest = 0..self.rest.len();
        let end = self.rest.end;
        self.buffer.resize(end + CHUNK_BYTES.max(end / 4), 0);
        loop {
            match self.bytes.read(&mut self.buffer[end..]) {
                Ok(count) => {
                    self.rest.end = end + count;
                    self.is_last = count == 0;
                    return Ok(count > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read};

    use super::*;

    struct Slow(Cursor<&'static str>, usize);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(buffer.len());
            self.0.read(&mut buffer[..count])
        }
    }

    #[test]
    fn objects_are_found_however_the_text_arrives() {
        let text = " {\"a\":\"}\\\\\"}\n{\"b\": {\"c\": [{}]},\n \"d\": \"\\\"{\"}{} x y\n{\"e\"";
        let expected = [
            (1, "{\"a\":\"}\\\\\"}"),
            (2, "{\"b\": {\"c\": [{}]},\n \"d\": \"\\\"{\"}"),
            (3, "{}"),
            (3, "x y"),
            (4, "{\"e\""),
        ];
        for piece in 1..10 {
            let mut objects = Objects::new(Box::new(Slow(Cursor::new(text), piece)), false);
            for expected in expected {
                let (line, found) = objects.next().unwrap().unwrap();
                assert_eq!((line, std::str::from_utf8(found).unwrap()), expected, "{piece}");
            }
            assert!(objects.next().unwrap().is_none());
        }
    }
}
