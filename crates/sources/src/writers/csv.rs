//! CSV.
//!
//! The library's writer is not used, because it writes NULL and an empty text alike.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use super::lines::{LineFormat, Pieces};
use super::text::{Texts, Value};
use super::{refused, unfit};
use crate::{Result, SourceError};

/// Refuses what CSV can't hold.
pub(super) fn check(schema: &SchemaRef) -> Result<()> {
    if schema.fields().is_empty() {
        let reason = "CSV can't hold rows without columns; write them as arrow or json";
        return Err(SourceError::Unsupported(reason.into()));
    }
    match schema.fields().iter().find(|field| field.data_type().is_nested()) {
        Some(field) => {
            let hint = "write it as json, parquet or arrow, or choose its fields in the query";
            Err(refused("CSV", field.name(), field.data_type(), hint))
        }
        None => Ok(()),
    }
}

pub(super) struct Csv {
    schema: SchemaRef,
}

impl Csv {
    pub(super) fn new(schema: &SchemaRef) -> Self {
        Self { schema: schema.clone() }
    }
}

impl LineFormat for Csv {
    fn header(&self) -> Vec<u8> {
        let mut header = Vec::new();
        for (i, field) in self.schema.fields().iter().enumerate() {
            if i > 0 {
                header.push(b',');
            }
            push_value(&mut header, field.name(), false);
        }
        header.push(b'\n');
        header
    }

    fn encode(&self, batch: &RecordBatch, pieces: &mut Pieces) -> Result<()> {
        let columns = batch.columns().iter().map(|column| Texts::new(column));
        let columns = columns.map(|texts| texts.map(|texts| (texts.has_none_of(SPECIAL), texts)));
        let columns: Vec<_> = columns.collect::<Result<_, _>>()?;
        let is_single = columns.len() == 1;
        let mut text = String::new();
        for row in 0..batch.num_rows() {
            let lines = pieces.buffer();
            let begin = lines.len();
            for (i, (is_plain, texts)) in columns.iter().enumerate() {
                if i > 0 {
                    lines.push(b',');
                }
                match texts.append(row, lines, &mut text) {
                    Ok(Value::Appended) => {}
                    Ok(Value::Text(text)) => push_value(lines, text, *is_plain),
                    Ok(Value::Null) if is_single => lines.extend_from_slice(b"\"\""),
                    Ok(Value::Null) => {}
                    Err(error) => {
                        lines.truncate(begin);
                        let column = self.schema.field(i).name();
                        return Err(unfit(row, column, error.to_string(), "write it as arrow or parquet"));
                    }
                }
            }
            lines.push(b'\n');
            pieces.end_line()?;
        }
        Ok(())
    }
}

/// Bytes that require quotes around a value.
const SPECIAL: &[u8; 4] = b",\"\n\r";

/// Adds a value, in quotes if it needs them: an empty one to distinguish it from
/// NULL, and `\.` because PostgreSQL takes it for the end of the data. A value that
/// `is_plain` has no special bytes.
fn push_value(line: &mut Vec<u8>, text: &str, is_plain: bool) {
    let is_special = |byte| SPECIAL.contains(&byte);
    if !text.is_empty() && text != "\\." && (is_plain || !text.bytes().any(is_special)) {
        line.extend_from_slice(text.as_bytes());
        return;
    }
    line.push(b'"');
    let mut parts = text.split('"');
    line.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        line.extend_from_slice(b"\"\"");
        line.extend_from_slice(part.as_bytes());
    }
    line.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_if_necessary() {
        let check = |text: &str, expected: &str| {
            let mut line = Vec::new();
            push_value(&mut line, text, false);
            assert_eq!(String::from_utf8_lossy(&line), expected);
        };
        check("plain text", "plain text");
        check("", "\"\"");
        check("a,b", "\"a,b\"");
        check("say \"hi\"", "\"say \"\"hi\"\"\"");
        check("two\nlines", "\"two\nlines\"");
        check("\\.", "\"\\.\"");
        check("naïve ☃", "naïve ☃");
        check("a\rb", "\"a\rb\"");
        let mut line = Vec::new();
        for text in ["", "\\.", "plain"] {
            push_value(&mut line, text, true);
        }
        assert_eq!(line, b"\"\"\"\\.\"plain");
    }
}
