//! A JSON array of objects as objects one after the other: its brackets and the commas between objects become blanks.

use std::io::{self, Read};

use memchr::memchr2;

use crate::files::bytes::Bytes;

/// What may come next outside of objects.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Expected {
    Start,
    ObjectOrEnd,
    Object,
    CommaOrEnd,
    Nothing,
}

impl Expected {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "`[`",
            Self::ObjectOrEnd => "an object or `]`",
            Self::Object => "an object",
            Self::CommaOrEnd => "`,` or `]`",
            Self::Nothing => "the end of the file",
        }
    }
}

/// Text that is no array of objects.
#[derive(Debug, thiserror::Error)]
#[error("not an array of objects: {problem}")]
pub(super) struct NotAnArray {
    problem: String,
    /// Offset in the text.
    pub(super) offset: u64,
}

/// The text of an array, with blanks in place of what is between its objects. Offsets and lines stay the same.
pub(super) struct ArrayItems {
    bytes: Bytes,
    offset: u64,
    expected: Expected,
    /// Objects and arrays that are open.
    depth: u32,
    in_string: bool,
    after_escape: bool,
}

impl ArrayItems {
    /// `bytes` begin at an offset of the text.
    pub(super) fn new(bytes: Bytes, offset: u64) -> Self {
        let expected = Expected::Start;
        Self { bytes, offset, expected, depth: 0, in_string: false, after_escape: false }
    }

    fn refused(&self, at: usize, found: &str) -> io::Error {
        let problem = format!("found {found}, expected {}", self.expected.name());
        io::Error::other(NotAnArray { problem, offset: self.offset + at as u64 })
    }

    fn blank(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            if std::mem::take(&mut self.after_escape) {
                at += 1;
                continue;
            }
            if self.in_string {
                let Some(found) = memchr2(b'"', b'\\', &bytes[at..]) else { break };
                at += found;
                match bytes[at] {
                    b'"' => self.in_string = false,
                    _ => self.after_escape = true,
                }
                at += 1;
                continue;
            }
            let byte = bytes[at];
            if self.depth > 0 {
                match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => self.depth -= 1,
                    _ => {}
                }
                if self.depth == 0 {
                    self.expected = Expected::CommaOrEnd;
                }
            } else {
                self.expected = match (self.expected, byte) {
                    (expected, byte) if byte.is_ascii_whitespace() => expected,
                    (Expected::Start, b'[') => Expected::ObjectOrEnd,
                    (Expected::ObjectOrEnd | Expected::Object, b'{') => {
                        self.depth = 1;
                        self.expected
                    }
                    (Expected::CommaOrEnd, b',') => Expected::Object,
                    (Expected::ObjectOrEnd | Expected::CommaOrEnd, b']') => Expected::Nothing,
                    _ => {
                        return Err(self.refused(at, &format!("`{}`", char::from(byte).escape_default())));
                    }
                };
                if self.depth == 0 && !byte.is_ascii_whitespace() {
                    bytes[at] = b' ';
                }
            }
            at += 1;
        }
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

impl Read for ArrayItems {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.read(buffer)?;
        if count == 0 && !buffer.is_empty() && self.expected != Expected::Nothing {
            return Err(self.refused(0, "the end of the file"));
        }
        self.blank(&mut buffer[..count])?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn items(text: &str) -> Result<String, String> {
        let mut read = String::new();
        let mut items = ArrayItems::new(Box::new(Cursor::new(text.to_owned())), 0);
        items.read_to_string(&mut read).map(|_| read).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_between_objects_becomes_blank() {
        let text = "[\n{\"a\": [1, {\"b\": \"]\\\"}\"}]},\n{} ]\n";
        assert_eq!(items(text).unwrap(), " \n{\"a\": [1, {\"b\": \"]\\\"}\"}]} \n{}  \n");
        assert_eq!(items("[]").unwrap(), "  ");
    }

    #[test]
    fn text_that_is_no_array_of_objects_is_refused() {
        for (text, expected) in [
            ("[{\"a\": 1}, {\"a\"", "found the end of the file, expected an object"),
            ("[{}", "found the end of the file, expected `,` or `]`"),
            ("[{} {}]", "found `{`, expected `,` or `]`"),
            ("[{},]", "found `]`, expected an object"),
            ("[1]", "found `1`, expected an object or `]`"),
            ("[{}] {}", "found `{`, expected the end of the file"),
        ] {
            let error = items(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
