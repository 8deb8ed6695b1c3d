//! CSV.
//!
//! Written here and not by the library, which writes NULL and an empty text alike.

use std::io::Write;

use arrow_array::{Array, RecordBatch};
use arrow_buffer::NullBuffer;
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::SchemaRef;

use super::open_decimal::{self, without_zeros};
use super::output::Output;
use super::{BatchWriter, refused, unfit};
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
    output: Output,
    schema: SchemaRef,
    /// The text of one value.
    text: String,
    /// The lines of one batch that are not yet written.
    lines: Vec<u8>,
}

/// Lines are handed on in pieces of about this size.
const LINES_BYTES: usize = 64 << 10;

impl Csv {
    pub(super) fn new(mut output: Output, schema: &SchemaRef) -> Result<Self> {
        let mut header = Vec::new();
        for (i, field) in schema.fields().iter().enumerate() {
            if i > 0 {
                header.push(b',');
            }
            push_value(&mut header, field.name());
        }
        header.push(b'\n');
        write_all(&mut output, &header)?;
        Ok(Self { output, schema: schema.clone(), text: String::new(), lines: Vec::new() })
    }
}

impl BatchWriter for Csv {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let options = FormatOptions::new();
        let columns: Vec<(ArrayFormatter<'_>, Option<NullBuffer>)> = batch
            .columns()
            .iter()
            .map(|column| Ok((ArrayFormatter::try_new(column, &options)?, column.logical_nulls())))
            .collect::<Result<_>>()?;
        let is_single = columns.len() == 1;
        for row in 0..batch.num_rows() {
            for (i, (values, nulls)) in columns.iter().enumerate() {
                if i > 0 {
                    self.lines.push(b',');
                }
                if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                    if is_single {
                        self.lines.extend_from_slice(b"\"\"");
                    }
                    continue;
                }
                self.text.clear();
                values.value(row).write(&mut self.text).map_err(|error| {
                    unfit(row, self.schema.field(i).name(), error.to_string(), "write it as arrow or parquet")
                })?;
                let is_open = open_decimal::is_open(self.schema.field(i).data_type());
                push_value(&mut self.lines, if is_open { without_zeros(&self.text) } else { &self.text });
            }
            self.lines.push(b'\n');
            if self.lines.len() >= LINES_BYTES {
                write_all(&mut self.output, &self.lines)?;
                self.lines.clear();
            }
        }
        write_all(&mut self.output, &self.lines)?;
        self.lines.clear();
        Ok(())
    }

    fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    fn finish(self: Box<Self>) -> Result<Output> {
        Ok(self.output)
    }
}

fn write_all(output: &mut Output, bytes: &[u8]) -> Result<()> {
    output.write_all(bytes).map_err(|source| output.failures().error(source))
}

/// Adds a value, in quotes where it needs them: an empty one to be told from
/// NULL, and `\.` because PostgreSQL takes it for the end of the data.
fn push_value(line: &mut Vec<u8>, text: &str) {
    let special = |b: u8| matches!(b, b',' | b'"' | b'\n' | b'\r');
    if !text.is_empty() && text != "\\." && !text.bytes().any(special) {
        line.extend_from_slice(text.as_bytes());
        return;
    }
    line.push(b'"');
    for byte in text.bytes() {
        if byte == b'"' {
            line.push(b'"');
        }
        line.push(byte);
    }
    line.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_where_they_must() {
        let check = |text: &str, expected: &str| {
            let mut line = Vec::new();
            push_value(&mut line, text);
            assert_eq!(String::from_utf8_lossy(&line), expected);
        };
        check("plain text", "plain text");
        check("", "\"\"");
        check("a,b", "\"a,b\"");
        check("say \"hi\"", "\"say \"\"hi\"\"\"");
        check("two\nlines", "\"two\nlines\"");
        check("\\.", "\"\\.\"");
        check("naïve ☃", "naïve ☃");
    }
}
