//! JSON lines.

use std::collections::HashSet;

use arrow_array::RecordBatch;
use arrow_json::WriterBuilder;
use arrow_json::writer::{LineDelimited, Writer};
use arrow_schema::{DECIMAL256_MAX_PRECISION, DataType, Fields, SchemaRef};

use super::output::Output;
use super::stand_in::{StandIn, decoded, find};
use super::{BatchWriter, refused};
use crate::{Result, SourceError};

/// Refuses what has no JSON and decides what stands in for the rest.
pub(super) fn check(schema: &SchemaRef) -> Result<StandIn> {
    check_names(schema.fields(), "the result")?;
    for field in schema.fields() {
        let hint = "write it as arrow, or choose one of its fields in the query";
        if let Some(wrong) = find(field.data_type(), &|t| matches!(t, DataType::Union(..))) {
            return Err(refused("JSON", field.name(), wrong, hint));
        }
        let has_repeated_name = |t: &DataType| match t {
            DataType::Struct(fields) => check_names(fields, "").is_err(),
            _ => false,
        };
        if let Some(DataType::Struct(fields)) = find(field.data_type(), &has_repeated_name) {
            check_names(fields, &format!("column `{}`", field.name()))?;
        }
    }
    Ok(StandIn::new(schema, &|t| match t {
        // The encoder takes a null in a dictionary for a value.
        DataType::Dictionary(..) | DataType::RunEndEncoded(..) => decoded(t),
        // The encoder writes a zero of these as `00`.
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale)
            if *scale < 0 =>
        {
            let digits = precision.saturating_add(scale.unsigned_abs());
            Some(if digits <= DECIMAL256_MAX_PRECISION {
                DataType::Decimal256(digits, 0)
            } else {
                DataType::Utf8
            })
        }
        // The encoder writes an error's text where a time can't be shown; a cast fails.
        t if t.is_temporal() => Some(DataType::Utf8),
        DataType::Map(entries, ordered) => {
            let DataType::Struct(fields) = entries.data_type() else { return None };
            let [key, value] = fields.as_ref() else { return None };
            if matches!(key.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) {
                return None;
            }
            let key = key.as_ref().clone().with_data_type(DataType::Utf8);
            let fields = Fields::from(vec![key.into(), value.clone()]);
            let entries = entries.as_ref().clone().with_data_type(DataType::Struct(fields));
            Some(DataType::Map(entries.into(), *ordered))
        }
        _ => None,
    }))
}

fn check_names(fields: &Fields, place: &str) -> Result<()> {
    let mut seen = HashSet::new();
    match fields.iter().find(|field| !seen.insert(field.name())) {
        Some(field) => Err(SourceError::Unsupported(format!(
            "JSON can't hold two fields of one name, and {place} has two named `{}`; rename one with AS",
            field.name()
        ))),
        None => Ok(()),
    }
}

pub(super) struct Json {
    writer: Writer<Output, LineDelimited>,
    stand_in: StandIn,
}

impl Json {
    pub(super) fn new(output: Output, stand_in: StandIn) -> Self {
        Self { writer: WriterBuilder::new().with_explicit_nulls(true).build(output), stand_in }
    }
}

impl BatchWriter for Json {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        Ok(self.writer.write(&self.stand_in.apply(batch)?)?)
    }

    fn output(&mut self) -> &mut Output {
        self.writer.get_mut()
    }

    fn finish(mut self: Box<Self>) -> Result<Output> {
        self.writer.finish()?;
        Ok(self.writer.into_inner())
    }
}
