//! The records of a part of a file as batches of typed columns.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow_schema::{DataType, Field, Schema};

use super::records::{Columns, Records};
use super::{CsvRules, Header, Origin, UTF8_HINT};
use crate::error::{EngineError, Result};
use crate::files::by_name::Wanted;
use crate::files::values;

/// Reads records as batches.
pub(super) struct CsvReader {
    rules: Arc<CsvRules>,
    origin: Origin,
    /// The names of the file's columns.
    names: Vec<String>,
    records: Records,
    columns: Columns,
    /// For each wanted column, whether the file has it.
    has: Vec<bool>,
    wanted: Wanted,
    batch_rows: usize,
}

impl CsvReader {
    pub(super) fn new(
        rules: &Arc<CsvRules>,
        origin: Origin,
        records: Records,
        header: Header,
        wanted: &Wanted,
        batch_rows: usize,
    ) -> Result<Self> {
        let fields: Vec<Field> =
            header.names.iter().map(|name| Field::new(name, DataType::Utf8, true)).collect();
        let places = wanted.places(origin.path(), &Schema::new(fields))?;
        let columns = Columns::new(header.names.len(), places.iter().flatten().copied());
        Ok(Self {
            rules: rules.clone(),
            origin,
            names: header.names,
            records,
            columns,
            has: places.iter().map(Option::is_some).collect(),
            wanted: wanted.clone(),
            batch_rows: batch_rows.max(1),
        })
    }

    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>> {
        let rules = &*self.rules;
        if self.names.is_empty() {
            return Ok(None);
        }
        let rows = self.records.next_batch(Some(&self.columns), self.batch_rows);
        let rows =
            rows.map_err(|fault| rules.refused(fault, &self.records, &self.origin, Some(&self.names)))?;
        if rows == 0 {
            return Ok(None);
        }
        let texts = self.records.values().map_err(|offset| self.not_utf8(offset))?;
        let mut place = 0;
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.has.len());
        for (field, has) in self.wanted.schema.fields().iter().zip(&self.has) {
            if !has {
                columns.push(new_null_array(field.data_type(), rows));
                continue;
            }
            let is_text = *field.data_type() == DataType::Utf8;
            // In columns of text, an empty value in quotes is the empty text.
            let values = texts.column(place).map(|(text, is_quoted)| match is_quoted {
                true => (is_text || !text.is_empty()).then_some(text),
                false => (!rules.is_null(text)).then_some(text),
            });
            let column = values::parse(values, field.data_type()).map_err(|row| {
                let text = texts.column(place).nth(row).map_or("", |(text, _)| text);
                self.unfit(row, field, text)
            })?;
            columns.push(column);
            place += 1;
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(self.wanted.schema.clone(), columns, &options);
        batch.map(Some).map_err(|e| EngineError::Internal(e.to_string()))
    }

    fn line(&self, row: usize) -> String {
        self.origin.line(&self.records, self.records.row_offset(row))
    }

    fn unfit(&self, row: usize, field: &Field, text: &str) -> EngineError {
        let (name, misfit) = (field.name(), values::misfit(text, field.data_type()));
        let message = format!("{}: column `{name}`: {misfit}", self.line(row));
        EngineError::bad_file(message, self.rules.type_hint(name))
    }

    /// The error for text that is not UTF-8 at this offset.
    fn not_utf8(&self, offset: u64) -> EngineError {
        let row = self.records.row_of(offset);
        let name = self.records.not_utf8(row).and_then(|column| self.names.get(column));
        let name = name.map_or(String::new(), |name| format!(": column `{name}`"));
        EngineError::bad_file(format!("{}{name}: the value is not UTF-8", self.line(row)), UTF8_HINT)
    }
}
