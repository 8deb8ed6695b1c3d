//! Parses the server's messages, from bytes that need not be well formed.

use std::io;

use crate::SourceError;

/// A row of a control query, as text.
pub(super) type TextRow = Vec<Option<String>>;

/// One column of a result, as the server describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Described {
    pub(super) name: String,
    pub(super) oid: u32,
    pub(super) modifier: i32,
}

/// A statement, as the server describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DescribedStatement {
    /// Columns of its result.
    pub(super) columns: Vec<Described>,
    /// OIDs of the types of its parameters.
    pub(super) parameters: Vec<u32>,
}

/// Tag and length of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageHeader {
    pub(super) tag: u8,
    pub(super) body_bytes: usize,
}

impl MessageHeader {
    /// Bytes of tag and length.
    pub(super) const BYTES: usize = 5;

    /// Reads the header at the front of `buf`, if it is complete. A length below
    /// its own four bytes is read as an impossibly long message.
    #[inline]
    pub(super) fn parse(buf: &[u8]) -> Option<Self> {
        let head = buf.first_chunk::<{ Self::BYTES }>()?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        Some(Self { tag: head[0], body_bytes: length.wrapping_sub(4) as usize })
    }

    /// Bytes of the whole message.
    #[inline]
    pub(super) fn total(self) -> usize {
        Self::BYTES + self.body_bytes
    }
}

/// A message copied out of the read buffer.
pub(super) struct Frame {
    pub(super) tag: u8,
    pub(super) body: Vec<u8>,
}

impl Frame {
    /// Bytes on the wire, including the header.
    pub(super) fn total_bytes(&self) -> u64 {
        (MessageHeader::BYTES + self.body.len()) as u64
    }

    /// The values of a `DataRow` in text format.
    pub(super) fn text_row(&self) -> io::Result<TextRow> {
        let mut body = Parser(&self.body);
        let count = body.u16()?;
        (0..count)
            .map(|_| match usize::try_from(body.i32()?) {
                Err(_) => Ok(None),
                Ok(bytes) => Ok(Some(String::from_utf8_lossy(body.bytes(bytes)?).into_owned())),
            })
            .collect()
    }

    /// The types of a `ParameterDescription`.
    pub(super) fn parameters(&self) -> io::Result<Vec<u32>> {
        let mut body = Parser(&self.body);
        let count = body.u16()?;
        (0..count).map(|_| Ok(body.i32()?.cast_unsigned())).collect()
    }

    /// The columns of a `RowDescription`.
    pub(super) fn columns(&self) -> io::Result<Vec<Described>> {
        let mut body = Parser(&self.body);
        let count = body.u16()?;
        (0..count)
            .map(|_| {
                let name = body.text()?;
                body.bytes(6)?; // table and attribute
                let oid = body.i32()?.cast_unsigned();
                body.bytes(2)?; // size
                let modifier = body.i32()?;
                body.bytes(2)?; // format
                Ok(Described { name, oid, modifier })
            })
            .collect()
    }
}

/// Takes values off the front of a message.
pub(super) struct Parser<'a>(pub(super) &'a [u8]);

impl<'a> Parser<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(short)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u16(&mut self) -> io::Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> io::Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    /// Text up to a NUL. Invalid UTF-8 is replaced, because the server may send
    /// text before it knows our encoding.
    pub(super) fn text(&mut self) -> io::Result<String> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or_else(short)?;
        let text = String::from_utf8_lossy(&self.0[..end]).into_owned();
        self.0 = &self.0[end + 1..];
        Ok(text)
    }
}

fn short() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a truncated message")
}

/// An `ErrorResponse` or a notice.
#[derive(Debug, Default)]
pub(super) struct ServerError {
    pub(super) severity: String,
    pub(super) code: String,
    pub(super) message: String,
    pub(super) detail: Option<String>,
    pub(super) hint: Option<String>,
    pub(super) position: Option<u32>,
    /// Where the error occurred: for COPY the line and the column.
    pub(super) context: Option<String>,
}

impl ServerError {
    pub(super) fn parse(body: &[u8]) -> io::Result<Self> {
        let mut error = Self::default();
        let mut body = Parser(body);
        loop {
            let [field] = body.array()?;
            if field == 0 {
                return Ok(error);
            }
            let text = body.text()?;
            match field {
                b'S' if error.severity.is_empty() => error.severity = text,
                b'V' => error.severity = text, // never translated
                b'C' => error.code = text,
                b'M' => error.message = text,
                b'D' => error.detail = Some(text),
                b'H' => error.hint = Some(text),
                b'P' => error.position = text.parse().ok(),
                b'W' => error.context = Some(text),
                _ => {}
            }
        }
    }

    /// Whether the server closes the connection after this message.
    pub(super) fn ends_connection(&self) -> bool {
        matches!(&*self.severity, "FATAL" | "PANIC")
    }
}

impl From<ServerError> for SourceError {
    fn from(error: ServerError) -> Self {
        let hint = match (error.detail, error.hint) {
            (Some(detail), Some(hint)) => Some(format!("{detail} {hint}")),
            (detail, hint) => detail.or(hint),
        };
        Self::Sql { reason: error.message, position: error.position, code: Some(error.code), hint }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn errors_are_read() {
        let body = b"SFEHLER\0VERROR\0C42P01\0Mno table\0Dthe detail\0Ha hint\0P15\0\0";
        let error = SourceError::from(ServerError::parse(body).unwrap());
        let SourceError::Sql { reason, position, code, hint } = error else { panic!("{error}") };
        assert_eq!((&*reason, position, code.as_deref()), ("no table", Some(15), Some("42P01")));
        assert_eq!(hint.as_deref(), Some("the detail a hint"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ServerError::parse(&body);
            let frame = Frame { tag: 0, body };
            let _ = frame.columns();
            let _ = frame.parameters();
            let _ = frame.text_row();
            let _ = MessageHeader::parse(&frame.body);
        }
    }
}
