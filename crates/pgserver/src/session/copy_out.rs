//! Sends a result as the data of a COPY, in text, CSV or binary format.

use bytes::{BufMut, BytesMut};

use super::{Session, interruptible};
use crate::encode::{Format, Values};
use crate::error::{Interruption, PgError, PgResult, code};
use crate::message;
use crate::rows::RowStream;
use crate::sql::copy::{CopyFormat, CopyOut, ForceQuote};

/// The signature of the binary format, its flags, and the length of its extension.
const BINARY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
const BINARY_END: i16 = -1;

/// Writes values as a copy wants them.
struct Writer<'a> {
    copy: &'a CopyOut,
    /// For each column, whether all its values are in quotes.
    is_quoted: Vec<bool>,
}

impl Session {
    /// Sends a result as a copy, with all that goes before and after it.
    pub(super) async fn copy_out(
        &mut self,
        copy: &CopyOut,
        stream: &mut RowStream,
    ) -> Result<(), Interruption> {
        let writer = Writer::new(copy, stream)?;
        let columns = stream.columns.clone();
        let is_binary = copy.format == CopyFormat::Binary;
        let format = if is_binary { Format::Binary } else { Format::Text };
        message::put_copy_out(&mut self.link.out, columns.len(), format);
        if copy.has_header {
            message::put(&mut self.link.out, b'd', |out| {
                for (index, column) in columns.iter().enumerate() {
                    writer.separate(index, out);
                    writer.put_text(column.name.as_bytes(), false, out);
                }
                out.put_u8(b'\n');
            });
        }
        let mut rows: u64 = 0;
        loop {
            if !stream.has_row()
                && !interruptible(&mut self.link, &self.key, self.deadline, stream.advance()).await?
            {
                break;
            }
            let begin = |out: &mut BytesMut| {
                if is_binary {
                    // As PostgreSQL does: the header comes with the first row.
                    if rows == 0 {
                        out.put_slice(BINARY_HEADER);
                    }
                    out.put_i16(columns.len() as i16);
                }
            };
            let end = |out: &mut BytesMut| {
                if !is_binary {
                    out.put_u8(b'\n');
                }
            };
            let put = |index: usize, values: &Values, row: usize, out: &mut BytesMut| {
                writer.put(index, values, row, out)
            };
            stream.put_copy_data(&mut self.link.out, begin, put, end)?;
            rows += 1;
            self.pause().await?;
        }
        if is_binary {
            message::put(&mut self.link.out, b'd', |out| {
                if rows == 0 {
                    out.put_slice(BINARY_HEADER);
                }
                out.put_i16(BINARY_END);
            });
        }
        message::put_empty(&mut self.link.out, b'c');
        message::put_complete(&mut self.link.out, &format!("COPY {rows}"));
        Ok(())
    }
}

impl<'a> Writer<'a> {
    fn new(copy: &'a CopyOut, stream: &RowStream) -> PgResult<Self> {
        let is_quoted = match &copy.force_quote {
            ForceQuote::All => vec![true; stream.columns.len()],
            ForceQuote::Columns(names) => {
                if let Some(unknown) =
                    names.iter().find(|name| stream.columns.iter().all(|column| column.name != **name))
                {
                    return Err(PgError::new(
                        code::UNDEFINED_COLUMN,
                        format!("column \"{unknown}\" does not exist"),
                    ));
                }
                stream.columns.iter().map(|column| names.contains(&column.name)).collect()
            }
        };
        Ok(Self { copy, is_quoted })
    }

    /// Appends what stands before a column.
    fn separate(&self, index: usize, out: &mut BytesMut) {
        if index > 0 {
            out.put_u8(self.copy.delimiter);
        }
    }

    fn put(&self, index: usize, values: &Values, row: usize, out: &mut BytesMut) -> PgResult<()> {
        if self.copy.format == CopyFormat::Binary {
            return values.put_sized(row, Format::Binary, out);
        }
        self.separate(index, out);
        if values.is_null(row) {
            out.put_slice(self.copy.null.as_bytes());
            return Ok(());
        }
        let start = out.len();
        values.put(row, Format::Text, out)?;
        if self.is_quoted[index] || self.needs_change(&out[start..]) {
            let text = out.split_off(start);
            self.put_text(&text, self.is_quoted[index], out);
        }
        Ok(())
    }

    /// Whether a text can't stand as it is.
    fn needs_change(&self, text: &[u8]) -> bool {
        let copy = self.copy;
        match copy.format {
            CopyFormat::Csv => {
                text == copy.null.as_bytes()
                    || (self.is_quoted.len() == 1 && text == b"\\.")
                    || text
                        .iter()
                        .any(|&b| b == copy.delimiter || b == copy.quote || b == b'\n' || b == b'\r')
            }
            _ => text.iter().any(|&b| b == copy.delimiter || b == b'\\' || escape(b).is_some()),
        }
    }

    /// Appends a text with quotes or escapes where they are needed.
    fn put_text(&self, text: &[u8], is_quoted: bool, out: &mut BytesMut) {
        let copy = self.copy;
        if copy.format == CopyFormat::Csv {
            if !is_quoted && !self.needs_change(text) {
                out.put_slice(text);
                return;
            }
            out.put_u8(copy.quote);
            for &byte in text {
                if byte == copy.quote || byte == copy.escape {
                    out.put_u8(copy.escape);
                }
                out.put_u8(byte);
            }
            out.put_u8(copy.quote);
            return;
        }
        for &byte in text {
            match escape(byte) {
                Some(letter) => out.put_slice(&[b'\\', letter]),
                None if byte == copy.delimiter || byte == b'\\' => out.put_slice(&[b'\\', byte]),
                None => out.put_u8(byte),
            }
        }
    }
}

/// The letter that stands for a control character after a backslash.
fn escape(byte: u8) -> Option<u8> {
    match byte {
        0x08 => Some(b'b'),
        0x0c => Some(b'f'),
        b'\n' => Some(b'n'),
        b'\r' => Some(b'r'),
        b'\t' => Some(b't'),
        0x0b => Some(b'v'),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::copy::parse;

    fn check(options: &str, text: &str, expected: &str) {
        let copy = parse(&format!("copy t to stdout {options}")).unwrap();
        let writer = Writer { copy: &copy, is_quoted: vec![copy.force_quote == ForceQuote::All; 2] };
        let mut out = BytesMut::new();
        writer.put_text(text.as_bytes(), writer.is_quoted[0], &mut out);
        assert_eq!(std::str::from_utf8(&out).unwrap(), expected);
    }

    #[test]
    fn texts_are_escaped_as_postgresql_escapes_them() {
        check("", "a\tb\nc\\d\u{8}\u{b}\u{c}\r", "a\\tb\\nc\\\\d\\b\\v\\f\\r");
        check("", "\\.", "\\\\.");
        check("(delimiter '|')", "a|b\t", "a\\|b\\t");
        check("csv", "plain", "plain");
        check("csv", "a,b", "\"a,b\"");
        check("csv", "say \"x\"", "\"say \"\"x\"\"\"");
        check("csv", "", "\"\"");
        check("csv", "two\nlines", "\"two\nlines\"");
        check("(format csv, null 'x')", "x", "\"x\"");
        check("(format csv, null 'x')", "", "");
        check("(format csv, escape '\\')", "a\"b\\c,", "\"a\\\"b\\\\c,\"");
        check("(format csv, force_quote *)", "a", "\"a\"");
        check("(format csv, delimiter ';')", "a,b", "a,b");
    }
}
