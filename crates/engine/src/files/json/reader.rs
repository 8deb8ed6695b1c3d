//! Objects as batches of typed columns.
//!
//! Numbers are decoded as text and parsed from it, because the decoder would make 1 of 1.5 in a column of integers.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array as _, ArrayRef, ListArray, RecordBatch, StructArray};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use datafusion::arrow::json::ReaderBuilder;
use datafusion::arrow::json::reader::Decoder;
use serde_json::Value;

use super::objects::Objects;
use super::{JsonRules, Origin};
use crate::error::{EngineError, Result};
use crate::files::by_name::Wanted;
use crate::files::text::BATCH_BYTES;
use crate::files::values;

/// Reads objects as batches.
pub(super) struct JsonReader {
    rules: Arc<JsonRules>,
    origin: Origin,
    objects: Objects,
    decoder: Decoder,
    /// The table's columns as the decoder returns them.
    decoded: SchemaRef,
    wanted: Wanted,
    batch_rows: usize,
    batch: Batch,
}

/// The objects of a batch, to find the one that does not fit.
#[derive(Default)]
struct Batch {
    text: Vec<u8>,
    /// For each object, its line and where it begins in the text.
    starts: Vec<(u64, usize)>,
}

impl JsonReader {
    pub(super) fn new(
        rules: Arc<JsonRules>,
        origin: Origin,
        objects: Objects,
        wanted: &Wanted,
        batch_rows: usize,
    ) -> Result<Self> {
        let fields: Fields = wanted.table.fields().iter().map(as_decoded).collect();
        let decoded = Arc::new(Schema::new(fields));
        let batch_rows = batch_rows.max(1);
        let decoder = new_decoder(&decoded, batch_rows)?;
        let (wanted, batch) = (wanted.clone(), Batch::default());
        Ok(Self { rules, origin, objects, decoder, decoded, wanted, batch_rows, batch })
    }

    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>> {
        self.batch.text.clear();
        self.batch.starts.clear();
        while self.batch.starts.len() < self.batch_rows && (self.batch.text.len() as u64) < BATCH_BYTES {
            let next = self.objects.next().map_err(|e| self.origin.failed(&e))?;
            let Some((line, object)) = next else { break };
            self.batch.starts.push((line, self.batch.text.len()));
            self.batch.text.extend_from_slice(object);
            let decoded = self.decoder.decode(object).map_err(|error| error.to_string());
            let problem = match decoded {
                Ok(count) if count == object.len() => continue,
                // The decoder is full: the line has several objects.
                Ok(_) => "more than one object in a line".to_owned(),
                Err(problem) => problem,
            };
            return Err(self.refused(&problem));
        }
        if self.batch.starts.is_empty() {
            return Ok(None);
        }
        let rows = match self.decoder.flush() {
            Ok(Some(rows)) => typed(&rows, &self.wanted.table),
            Ok(None) => return Ok(None),
            Err(error) => Err(error.to_string()),
        };
        let rows = rows.map_err(|problem| self.refused(&problem))?;
        rows.project(&self.wanted.indices).map(Some).map_err(|e| EngineError::Internal(e.to_string()))
    }

    /// The error for the first object of the batch that can't be read, or for the whole batch.
    fn refused(&self, problem: &str) -> EngineError {
        let Batch { text, starts } = &self.batch;
        let ends = starts.iter().skip(1).map(|(_, start)| *start).chain([text.len()]);
        let found = starts.iter().zip(ends).find_map(|(&(line, start), end)| {
            let problem = self.problem(&text[start..end])?;
            Some((line, problem))
        });
        let message = match (found, starts.first()) {
            (Some((line, problem)), _) => format!("{}: {problem}", self.origin.line(line)),
            (None, Some((line, _))) => format!("{} or later: {problem}", self.origin.line(*line)),
            (None, None) => format!("{}: {problem}", self.origin.path().display()),
        };
        EngineError::bad_file(message, self.rules.fields_hint())
    }

    /// Why an object can't be read, if it can't.
    fn problem(&self, object: &[u8]) -> Option<String> {
        let mut decoder = new_decoder(&self.decoded, 1).ok()?;
        let decoded = decoder.decode(object).and_then(|_| decoder.flush()).map_err(|error| error.to_string());
        let problem = match decoded {
            Ok(Some(rows)) => typed(&rows, &self.wanted.table).err()?,
            Ok(None) => return None,
            Err(problem) => problem,
        };
        let value: Option<Value> = serde_json::from_slice(object).ok();
        let field = value.and_then(|value| unknown_field(&value, self.wanted.table.fields()));
        Some(field.map_or(problem, |field| format!("the table has no field `{field}`")))
    }
}

/// Decodes all columns of the table, and refuses any other field.
fn new_decoder(decoded: &SchemaRef, rows: usize) -> Result<Decoder> {
    // A line may have a second object: the decoder must take it, to be refused.
    let builder = ReaderBuilder::new(decoded.clone()).with_batch_size(rows + 1);
    let decoder = builder.with_strict_mode(true).with_coerce_primitive(true).build_decoder();
    decoder.map_err(|e| EngineError::Internal(e.to_string()))
}

/// The column as it is decoded: with text where values are parsed from text.
fn as_decoded(field: &FieldRef) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::Boolean | DataType::Utf8 | DataType::Null => return field.clone(),
        DataType::List(item) => DataType::List(as_decoded(item)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(as_decoded).collect()),
        _ => DataType::Utf8,
    };
    Arc::new(Field::clone(field).with_data_type(data_type))
}

/// The rows with the types of the table.
fn typed(rows: &RecordBatch, table: &SchemaRef) -> std::result::Result<RecordBatch, String> {
    let columns = table.fields().iter().zip(rows.columns()).map(|(field, column)| {
        convert(column, field.data_type()).map_err(|problem| format!("field `{}`: {problem}", field.name()))
    });
    let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
    RecordBatch::try_new(table.clone(), columns).map_err(|error| error.to_string())
}

fn convert(column: &ArrayRef, data_type: &DataType) -> std::result::Result<ArrayRef, String> {
    if column.data_type() == data_type {
        return Ok(column.clone());
    }
    Ok(match data_type {
        DataType::List(item) => {
            let list = column.as_list::<i32>();
            let items = convert(list.values(), item.data_type())?;
            let list = ListArray::try_new(item.clone(), list.offsets().clone(), items, list.nulls().cloned());
            Arc::new(list.map_err(|error| error.to_string())?)
        }
        DataType::Struct(fields) => {
            let object = column.as_struct();
            let columns = fields.iter().zip(object.columns()).map(|(field, column)| {
                convert(column, field.data_type())
                    .map_err(|problem| format!("field `{}`: {problem}", field.name()))
            });
            let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
            let object = StructArray::try_new(fields.clone(), columns, object.nulls().cloned());
            Arc::new(object.map_err(|error| error.to_string())?)
        }
        _ => {
            let texts = column.as_string::<i32>();
            values::parse(texts.iter(), data_type)
                .map_err(|row| values::misfit(texts.value(row), data_type))?
        }
    })
}

/// The path of a field of the value that is not among these.
fn unknown_field(value: &Value, fields: &Fields) -> Option<String> {
    value.as_object()?.iter().find_map(|(name, value)| match fields.find(name) {
        None => Some(name.clone()),
        Some((_, field)) => unknown_inside(value, field.data_type()).map(|inner| format!("{name}.{inner}")),
    })
}

fn unknown_inside(value: &Value, data_type: &DataType) -> Option<String> {
    match data_type {
        DataType::Struct(fields) => unknown_field(value, fields),
        DataType::List(item) => {
            value.as_array()?.iter().find_map(|item_value| unknown_inside(item_value, item.data_type()))
        }
        _ => None,
    }
}
