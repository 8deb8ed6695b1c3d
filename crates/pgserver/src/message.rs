//! Messages of the protocol, version 3.0.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::encode::Format;
use crate::error::{PgError, PgResult};
use crate::types::PgColumn;

/// Reads the fields of a message, none of which reaches beyond it.
pub(crate) struct Fields {
    body: Bytes,
}

fn truncated() -> PgError {
    PgError::protocol("insufficient data left in message")
}

impl Fields {
    pub(crate) fn new(body: Bytes) -> Self {
        Self { body }
    }

    pub(crate) fn byte(&mut self) -> PgResult<u8> {
        self.body.try_get_u8().map_err(|_| truncated())
    }

    pub(crate) fn i16(&mut self) -> PgResult<i16> {
        self.body.try_get_i16().map_err(|_| truncated())
    }

    pub(crate) fn i32(&mut self) -> PgResult<i32> {
        self.body.try_get_i32().map_err(|_| truncated())
    }

    /// A count of fields, each of which has at least `bytes`.
    pub(crate) fn count(&mut self, bytes: usize) -> PgResult<usize> {
        let count = usize::from(self.i16()? as u16);
        if count * bytes > self.body.len() { Err(truncated()) } else { Ok(count) }
    }

    pub(crate) fn bytes(&mut self, length: usize) -> PgResult<Bytes> {
        if length > self.body.len() { Err(truncated()) } else { Ok(self.body.split_to(length)) }
    }

    /// A value with its length before it; -1 is NULL.
    pub(crate) fn value(&mut self) -> PgResult<Option<Bytes>> {
        match self.i32()? {
            -1 => Ok(None),
            length => Ok(Some(self.bytes(usize::try_from(length).map_err(|_| truncated())?)?)),
        }
    }

    /// A string that ends with NUL.
    pub(crate) fn string(&mut self) -> PgResult<String> {
        let length =
            memchr::memchr(0, &self.body).ok_or_else(|| PgError::protocol("invalid string in message"))?;
        let bytes = self.body.split_to(length);
        self.body.advance(1);
        String::from_utf8(bytes.into()).map_err(|_| {
            PgError::new(
                crate::error::code::CHARACTER_NOT_IN_REPERTOIRE,
                "invalid byte sequence for encoding \"UTF8\"",
            )
        })
    }

    pub(crate) fn format(&mut self) -> PgResult<Format> {
        match self.i16()? {
            0 => Ok(Format::Text),
            1 => Ok(Format::Binary),
            other => Err(PgError::protocol(format!("unsupported format code: {other}"))),
        }
    }

    /// Format codes: none, one for all, or one for each.
    pub(crate) fn formats(&mut self) -> PgResult<Vec<Format>> {
        let count = self.count(2)?;
        (0..count).map(|_| self.format()).collect()
    }

    pub(crate) fn rest(self) -> Bytes {
        self.body
    }

    pub(crate) fn end(&self) -> PgResult<()> {
        if self.body.is_empty() { Ok(()) } else { Err(PgError::protocol("invalid message format")) }
    }
}

/// Appends a message: its type, its length, and what `body` writes.
pub(crate) fn put(out: &mut BytesMut, kind: u8, body: impl FnOnce(&mut BytesMut)) {
    out.put_u8(kind);
    let at = out.len();
    out.put_i32(0);
    body(out);
    let length = (out.len() - at) as u32;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

fn put_string(out: &mut BytesMut, text: &str) {
    // A NUL would end it early.
    out.extend(text.bytes().filter(|&b| b != 0));
    out.put_u8(0);
}

pub(crate) fn put_authentication(out: &mut BytesMut, code: i32, data: &[u8]) {
    put(out, b'R', |out| {
        out.put_i32(code);
        out.put_slice(data);
    });
}

pub(crate) fn put_parameter_status(out: &mut BytesMut, name: &str, value: &str) {
    put(out, b'S', |out| {
        put_string(out, name);
        put_string(out, value);
    });
}

pub(crate) fn put_key(out: &mut BytesMut, process: u32, secret: u32) {
    put(out, b'K', |out| {
        out.put_u32(process);
        out.put_u32(secret);
    });
}

/// The newest minor version of the protocol, and the options that are not known.
pub(crate) fn put_negotiation(out: &mut BytesMut, unknown: &[String]) {
    put(out, b'v', |out| {
        out.put_i32(0);
        out.put_i32(unknown.len() as i32);
        unknown.iter().for_each(|option| put_string(out, option));
    });
}

/// `status` is `I`, `T` or `E`.
pub(crate) fn put_ready(out: &mut BytesMut, status: u8) {
    put(out, b'Z', |out| out.put_u8(status));
}

pub(crate) fn put_complete(out: &mut BytesMut, tag: &str) {
    put(out, b'C', |out| put_string(out, tag));
}

/// A message without a body.
pub(crate) fn put_empty(out: &mut BytesMut, kind: u8) {
    put(out, kind, |_| {});
}

pub(crate) fn put_row_description(out: &mut BytesMut, columns: &[PgColumn], formats: &[Format]) {
    put(out, b'T', |out| {
        out.put_i16(columns.len() as i16);
        for (column, format) in columns.iter().zip(formats) {
            put_string(out, &column.name);
            // No table, no column of it.
            out.put_i32(0);
            out.put_i16(0);
            out.put_u32(column.oid);
            out.put_i16(column.length());
            out.put_i32(column.modifier);
            out.put_i16(format.code());
        }
    });
}

pub(crate) fn put_parameter_description(out: &mut BytesMut, types: &[u32]) {
    put(out, b't', |out| {
        out.put_i16(types.len() as i16);
        types.iter().for_each(|&oid| out.put_u32(oid));
    });
}

pub(crate) fn put_copy_out(out: &mut BytesMut, columns: usize, format: Format) {
    put(out, b'H', |out| {
        out.put_u8(format.code() as u8);
        out.put_i16(columns as i16);
        (0..columns).for_each(|_| out.put_i16(format.code()));
    });
}

pub(crate) fn put_error(out: &mut BytesMut, error: &PgError) {
    let severity = if error.is_fatal { "FATAL" } else { "ERROR" };
    put(out, b'E', |out| put_report(out, severity, error));
}

pub(crate) fn put_warning(out: &mut BytesMut, message: &str) {
    put(out, b'N', |out| put_report(out, "WARNING", &PgError::new("01000", message)));
}

fn put_report(out: &mut BytesMut, severity: &str, error: &PgError) {
    let position = error.position.map(|position| position.to_string());
    let fields = [
        (b'S', Some(severity)),
        (b'V', Some(severity)),
        (b'C', Some(error.code)),
        (b'M', Some(error.message.as_str())),
        (b'H', error.hint.as_deref()),
        (b'P', position.as_deref()),
    ];
    for (kind, text) in fields {
        if let Some(text) = text {
            out.put_u8(kind);
            put_string(out, text);
        }
    }
    out.put_u8(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_never_reach_beyond_their_message() {
        let fields = |bytes: &'static [u8]| Fields::new(Bytes::from_static(bytes));
        assert!(fields(b"abc").string().is_err());
        assert_eq!(fields(b"abc\0d").string().unwrap(), "abc");
        assert!(fields(b"\xff\0").string().is_err());
        assert!(fields(&[0x7f, 0xff, 0xff, 0xff, 1]).value().is_err());
        assert!(fields(&[0x80, 0, 0, 0]).value().is_err());
        assert_eq!(fields(&[255, 255, 255, 255]).value().unwrap(), None);
        assert!(fields(&[255, 255]).count(4).is_err());
        assert!(fields(&[0, 1, 0, 2]).formats().is_err());
    }
}
