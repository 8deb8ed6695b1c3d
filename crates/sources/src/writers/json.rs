//! JSON lines.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_json::WriterBuilder;
use arrow_json::writer::{Encoder, EncoderFactory, EncoderOptions, LineDelimited, NullableEncoder, Writer};
use arrow_schema::{ArrowError, DECIMAL256_MAX_PRECISION, DataType, Field, FieldRef, Fields, SchemaRef};

use super::lines::{LineFormat, Pieces};
use super::open_decimal::{is_open, without_zeros};
use super::readable::has_own_form;
use super::type_mapping::{TypeMapping, decoded, find};
use super::{check_fields, refused, unfit};
use crate::Result;

/// Refuses types that JSON can't hold, and decides which types replace others.
pub(super) fn check(schema: &SchemaRef) -> Result<TypeMapping> {
    for field in schema.fields() {
        let hint = "write it as arrow, or choose one of its fields in the query";
        if let Some(wrong) = find(field.data_type(), &|t| matches!(t, DataType::Union(..))) {
            return Err(refused("JSON", field.name(), wrong, hint));
        }
    }
    check_fields("JSON", schema)?;
    Ok(TypeMapping::new(schema, &rule))
}

/// The type that replaces one that the encoder does not write as we want it.
pub(super) fn rule(field: &Field) -> Option<DataType> {
    match field.data_type() {
        // The encoder writes a null in a dictionary as a value.
        t @ (DataType::Dictionary(..) | DataType::RunEndEncoded(..)) => decoded(t),
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
        // The encoder writes an error's text for a time that can't be printed.
        t if has_own_form(t) => Some(DataType::Utf8),
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
    }
}

/// Why a value is refused.
pub(super) const NOT_FINITE: &str = "JSON has no value for not-a-number or infinity";

/// How values are encoded.
pub(super) fn options() -> EncoderOptions {
    EncoderOptions::default().with_explicit_nulls(true).with_encoder_factory(Arc::new(OpenDecimals))
}

/// Encodes numbers without a declared precision, which have many zeros at their end by their type.
#[derive(Debug)]
struct OpenDecimals;

impl EncoderFactory for OpenDecimals {
    fn make_default_encoder<'a>(
        &self,
        _: &'a FieldRef,
        array: &'a dyn Array,
        _: &'a EncoderOptions,
    ) -> std::result::Result<Option<NullableEncoder<'a>>, ArrowError> {
        const OPTIONS: &FormatOptions<'static> = &FormatOptions::new();
        if !is_open(array.data_type()) {
            return Ok(None);
        }
        let encoder = WithoutZeros { numbers: ArrayFormatter::try_new(array, OPTIONS)?, text: String::new() };
        Ok(Some(NullableEncoder::new(Box::new(encoder), array.nulls().cloned())))
    }
}

struct WithoutZeros<'a> {
    numbers: ArrayFormatter<'a>,
    text: String,
}

impl Encoder for WithoutZeros<'_> {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        self.text.clear();
        // A text takes all that is written to it.
        let _ = write!(self.text, "{}", self.numbers.value(row));
        out.extend_from_slice(without_zeros(&self.text).as_bytes());
    }
}

pub(super) struct Json {
    type_mapping: TypeMapping,
    /// Columns with floats. The encoder writes `null` for values that JSON does not have.
    floats: Vec<usize>,
}

impl Json {
    pub(super) fn new(type_mapping: TypeMapping) -> Self {
        let fields = type_mapping.schema().fields().iter().enumerate();
        let has_floats = |t: &DataType| find(t, &|t| t.is_floating()).is_some();
        let floats = fields.filter(|(_, field)| has_floats(field.data_type())).map(|(at, _)| at).collect();
        Self { type_mapping, floats }
    }
}

/// Whether all floats in a value are finite. The schema bounds the depth of the recursion.
pub(super) fn is_finite(array: &dyn Array, row: usize) -> bool {
    let all = |items: ArrayRef| (0..items.len()).all(|item| is_finite(&items, item));
    array.is_null(row)
        || match array.data_type() {
            DataType::Float16 => array.as_primitive::<Float16Type>().value(row).is_finite(),
            DataType::Float32 => array.as_primitive::<Float32Type>().value(row).is_finite(),
            DataType::Float64 => array.as_primitive::<Float64Type>().value(row).is_finite(),
            DataType::Struct(_) => array.as_struct().columns().iter().all(|column| is_finite(column, row)),
            DataType::List(_) => all(array.as_list::<i32>().value(row)),
            DataType::LargeList(_) => all(array.as_list::<i64>().value(row)),
            DataType::ListView(_) => all(array.as_list_view::<i32>().value(row)),
            DataType::LargeListView(_) => all(array.as_list_view::<i64>().value(row)),
            DataType::FixedSizeList(..) => all(array.as_fixed_size_list().value(row)),
            DataType::Map(..) => all(Arc::new(array.as_map().value(row))),
            _ => true,
        }
}

impl LineFormat for Json {
    fn header(&self) -> Vec<u8> {
        Vec::new()
    }

    fn encode(&self, batch: &RecordBatch, lines: &mut Pieces) -> Result<()> {
        let batch = self.type_mapping.apply(batch)?;
        for (column, &at) in self.floats.iter().map(|at| (batch.column(*at), at)) {
            if let Some(row) = (0..batch.num_rows()).find(|&row| !is_finite(column, row)) {
                let hint = "write it as csv, parquet or arrow, or cast it to text in the query";
                let name = batch.schema_ref().field(at).name().clone();
                return Err(unfit(row, &name, NOT_FINITE, hint));
            }
        }
        let mut writer: Writer<_, LineDelimited> = WriterBuilder::new()
            .with_explicit_nulls(true)
            .with_encoder_factory(Arc::new(OpenDecimals))
            .build(lines);
        writer.write(&batch)?;
        Ok(writer.finish()?)
    }
}
