//! CSV.
//!
//! The library's writer is not used, because it writes NULL and an empty text alike.

use arrow_array::RecordBatch;
use arrow_schema::{DataType, SchemaRef};

use super::lines::{LineFormat, Pieces};
use super::text::{Texts, Value};
use super::text_options::Dialect;
use super::type_mapping::find;
use super::{check_fields, reason, refused, unfit};
use crate::{Result, SourceError};

/// Refuses what CSV can't hold.
pub(super) fn check(schema: &SchemaRef) -> Result<()> {
    if schema.fields().is_empty() {
        let reason = "CSV can't hold rows without columns; write them as arrow or json";
        return Err(SourceError::Unsupported(reason.into()));
    }
    for field in schema.fields() {
        if let Some(wrong) = find(field.data_type(), &|t| matches!(t, DataType::Union(..))) {
            let hint = "write it as arrow, or choose one of its fields in the query";
            return Err(refused("CSV", field.name(), wrong, hint));
        }
    }
    // Structures are JSON.
    check_fields("CSV", schema)
}

pub(super) struct Csv {
    schema: SchemaRef,
    dialect: Dialect,
}

impl Csv {
    pub(super) fn new(schema: &SchemaRef, dialect: Dialect) -> Self {
        Self { schema: schema.clone(), dialect }
    }
}

impl LineFormat for Csv {
    fn header(&self) -> Vec<u8> {
        let mut header = Vec::new();
        if !self.dialect.header {
            return header;
        }
        for (i, field) in self.schema.fields().iter().enumerate() {
            if i > 0 {
                header.push(self.dialect.delimiter);
            }
            self.dialect.push(&mut header, field.name(), false);
        }
        header.push(b'\n');
        header
    }

    fn encode(&self, batch: &RecordBatch, pieces: &mut Pieces) -> Result<()> {
        let dialect = &self.dialect;
        let special = dialect.special();
        let columns = batch.columns().iter().zip(self.schema.fields());
        let columns = columns.map(|(column, field)| Texts::new(field, column));
        let columns = columns.map(|texts| texts.map(|texts| (texts.has_none_of(&special), texts)));
        let columns: Vec<_> = columns.collect::<Result<_, _>>()?;
        let mut text = String::new();
        for row in 0..batch.num_rows() {
            let lines = pieces.buffer();
            let begin = lines.len();
            for (i, (is_plain, texts)) in columns.iter().enumerate() {
                if i > 0 {
                    lines.push(dialect.delimiter);
                }
                let at = lines.len();
                match texts.append(row, lines, &mut text) {
                    // A number may look like NULL.
                    Ok(Value::Appended)
                        if !dialect.null.is_empty() && lines[at..] == *dialect.null.as_bytes() =>
                    {
                        lines.insert(at, dialect.quote);
                        lines.push(dialect.quote);
                    }
                    Ok(Value::Appended) => {}
                    Ok(Value::Text(text)) => dialect.push(lines, text, *is_plain),
                    Ok(Value::Null) => lines.extend_from_slice(dialect.null.as_bytes()),
                    Err(error) => {
                        lines.truncate(begin);
                        let column = self.schema.field(i).name();
                        return Err(unfit(row, column, reason(error), "write it as arrow or parquet"));
                    }
                }
            }
            lines.push(b'\n');
            pieces.end_line()?;
        }
        Ok(())
    }
}

impl Dialect {
    /// Bytes that require quotes around a value.
    fn special(&self) -> [u8; 4] {
        [self.delimiter, self.quote, b'\n', b'\r']
    }

    /// Adds a value, in quotes if it needs them: an empty one and the text for NULL to distinguish it from NULL, and
    /// `\.` because PostgreSQL takes it for the end of the data. A value that `is_plain` has no special bytes.
    fn push(&self, line: &mut Vec<u8>, text: &str, is_plain: bool) {
        let special = self.special();
        let is_special = |byte| special.contains(&byte);
        let is_taken = text.is_empty() || text == "\\." || text == self.null;
        if !is_taken && (is_plain || !text.bytes().any(is_special)) {
            line.extend_from_slice(text.as_bytes());
            return;
        }
        line.push(self.quote);
        for (at, part) in text.split(char::from(self.quote)).enumerate() {
            if at > 0 {
                line.extend_from_slice(&[self.quote, self.quote]);
            }
            line.extend_from_slice(part.as_bytes());
        }
        line.push(self.quote);
    }
}

#[cfg(test)]
mod tests {
    use super::super::TextOptions;

    #[test]
    fn values_are_quoted_if_necessary() {
        let check_with = |options: TextOptions, text: &str, expected: &str| {
            let mut line = Vec::new();
            options.for_file(None).unwrap().push(&mut line, text, false);
            assert_eq!(String::from_utf8_lossy(&line), expected);
        };
        let check = |text: &str, expected: &str| check_with(TextOptions::default(), text, expected);
        check("plain text", "plain text");
        check("", "\"\"");
        check("a,b", "\"a,b\"");
        check("say \"hi\"", "\"say \"\"hi\"\"\"");
        check("two\nlines", "\"two\nlines\"");
        check("\\.", "\"\\.\"");
        check("naïve ☃", "naïve ☃");
        check("a\rb", "\"a\rb\"");
        let other = || TextOptions {
            delimiter: Some(b';'),
            quote: b'\'',
            null: "NA".into(),
            ..TextOptions::default()
        };
        check_with(other(), "a,\"b\"", "a,\"b\"");
        check_with(other(), "a;b", "'a;b'");
        check_with(other(), "it's", "'it''s'");
        check_with(other(), "NA", "'NA'");
        check_with(other(), "", "''");
        let (dialect, mut line) = (TextOptions::default().for_file(None).unwrap(), Vec::new());
        for text in ["", "\\.", "plain"] {
            dialect.push(&mut line, text, true);
        }
        assert_eq!(line, b"\"\"\"\\.\"plain");
    }
}
