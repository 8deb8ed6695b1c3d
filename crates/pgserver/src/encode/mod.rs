//! Values of Arrow arrays in PostgreSQL's text and binary formats. A value is sent unchanged or refused.

pub(crate) mod array;
pub(crate) mod datetime;
mod json;
pub(crate) mod number;

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::*;
use arrow_cast::cast;
use arrow_cast::display::array_value_to_string;
use arrow_json::writer::make_encoder;
use arrow_schema::{DataType, Field, FieldRef, IntervalUnit, TimeUnit};
use bytes::{BufMut, BytesMut};

use self::array::Lists;
use self::datetime::{DATES, DAY_US, EPOCH_DAYS, EPOCH_US, FIRST_TIMESTAMP};
use self::json::put_json;
use self::number::{Decimal, put_f32, put_f64};
use crate::error::{PgError, PgResult, code};
use crate::types::{PgColumn, element_of, oid};

/// How values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Binary,
}

impl Format {
    /// Its code in messages.
    pub(crate) fn code(self) -> i16 {
        i16::from(self == Self::Binary)
    }
}

/// Texts in one of Arrow's layouts.
pub(crate) enum Texts {
    Small(StringArray),
    Large(LargeStringArray),
    View(StringViewArray),
}

/// Bytes in one of Arrow's layouts.
pub(crate) enum Blobs {
    Small(BinaryArray),
    Large(LargeBinaryArray),
    View(BinaryViewArray),
    Fixed(FixedSizeBinaryArray),
}

/// A column of a batch, ready to be written value by value.
pub(crate) enum Values {
    Null,
    Bool(BooleanArray),
    Int16(Int16Array),
    Int32(Int32Array),
    Int64(Int64Array),
    Oid(UInt32Array),
    Float32(Float32Array),
    Float64(Float64Array),
    Decimal128(Decimal128Array, i8),
    Decimal256(Decimal256Array, i8),
    Text(Texts),
    Bytes(Blobs),
    Uuid(FixedSizeBinaryArray),
    /// In days, or with a divisor in parts of a day.
    Date(Int64Array, i64),
    Time(Ticks),
    Timestamp(Ticks, bool),
    Duration(Ticks),
    Interval(IntervalMonthDayNanoArray),
    List(Box<Lists>),
    Json(ArrayRef, FieldRef),
    /// As Arrow prints them.
    Shown(ArrayRef),
    /// Values of a dictionary or of runs, and which of them each row has.
    Indirect(Box<Values>, Vec<Option<usize>>),
}

/// Times as integers, in units of `multiplier` / `divisor` microseconds.
pub(crate) struct Ticks {
    values: Int64Array,
    multiplier: i64,
    divisor: i64,
}

impl Ticks {
    fn new(array: &ArrayRef, unit: TimeUnit) -> PgResult<Self> {
        let (multiplier, divisor) = match unit {
            TimeUnit::Second => (1_000_000, 1),
            TimeUnit::Millisecond => (1000, 1),
            TimeUnit::Microsecond => (1, 1),
            TimeUnit::Nanosecond => (1, 1000),
        };
        Ok(Self { values: integers(array)?, multiplier, divisor })
    }

    fn get(&self, row: usize) -> PgResult<i64> {
        let value = self.values.value(row);
        if self.divisor != 1 && value % self.divisor != 0 {
            return Err(finer());
        }
        (value / self.divisor).checked_mul(self.multiplier).ok_or_else(|| outside("time"))
    }
}

fn finer() -> PgError {
    PgError::new(
        code::DATETIME_OVERFLOW,
        "a time finer than a microsecond, which PostgreSQL's types can't hold",
    )
    .hint("truncate it in the query, as in date_trunc('microsecond', t), or cast it to text")
}

fn outside(what: &str) -> PgError {
    PgError::new(code::DATETIME_OVERFLOW, format!("a {what} outside of PostgreSQL's range"))
        .hint("exclude it in the query, or cast it to text")
}

/// The numbers that an array of dates or times consists of.
fn integers(array: &ArrayRef) -> PgResult<Int64Array> {
    let numbers = match array.data_type() {
        DataType::Date32 | DataType::Time32(_) => cast(&cast(array, &DataType::Int32)?, &DataType::Int64)?,
        _ => cast(array, &DataType::Int64)?,
    };
    Ok(numbers.as_primitive().clone())
}

impl Texts {
    fn get(&self, row: usize) -> &str {
        match self {
            Self::Small(array) => array.value(row),
            Self::Large(array) => array.value(row),
            Self::View(array) => array.value(row),
        }
    }

    fn is_null(&self, row: usize) -> bool {
        match self {
            Self::Small(array) => array.is_null(row),
            Self::Large(array) => array.is_null(row),
            Self::View(array) => array.is_null(row),
        }
    }
}

impl Blobs {
    fn get(&self, row: usize) -> &[u8] {
        match self {
            Self::Small(array) => array.value(row),
            Self::Large(array) => array.value(row),
            Self::View(array) => array.value(row),
            Self::Fixed(array) => array.value(row),
        }
    }

    fn is_null(&self, row: usize) -> bool {
        match self {
            Self::Small(array) => array.is_null(row),
            Self::Large(array) => array.is_null(row),
            Self::View(array) => array.is_null(row),
            Self::Fixed(array) => array.is_null(row),
        }
    }
}

impl Values {
    /// The values of an array, to be written as the type of `column`, which [`PgColumn::of`] has chosen for `field`.
    pub(crate) fn new(array: &ArrayRef, field: &Field, column: &PgColumn) -> PgResult<Self> {
        Ok(match array.data_type() {
            DataType::Null => Self::Null,
            DataType::Boolean => Self::Bool(array.as_boolean().clone()),
            DataType::Int8 | DataType::UInt8 => {
                Self::Int16(cast(array, &DataType::Int16)?.as_primitive().clone())
            }
            DataType::Int16 => Self::Int16(array.as_primitive().clone()),
            DataType::UInt16 => Self::Int32(cast(array, &DataType::Int32)?.as_primitive().clone()),
            DataType::Int32 => Self::Int32(array.as_primitive().clone()),
            DataType::UInt32 if column.oid != oid::INT8 => Self::Oid(array.as_primitive().clone()),
            DataType::UInt32 => Self::Int64(cast(array, &DataType::Int64)?.as_primitive().clone()),
            DataType::Int64 => Self::Int64(array.as_primitive().clone()),
            DataType::UInt64 => {
                let decimals = cast(array, &DataType::Decimal128(20, 0))?;
                Self::Decimal128(decimals.as_primitive().clone(), 0)
            }
            DataType::Float16 => Self::Float32(cast(array, &DataType::Float32)?.as_primitive().clone()),
            DataType::Float32 => Self::Float32(array.as_primitive().clone()),
            DataType::Float64 => Self::Float64(array.as_primitive().clone()),
            DataType::Decimal32(_, scale) => {
                let values: Decimal128Array = array.as_primitive::<Decimal32Type>().unary(i128::from);
                Self::Decimal128(values, *scale)
            }
            DataType::Decimal64(_, scale) => {
                let values: Decimal128Array = array.as_primitive::<Decimal64Type>().unary(i128::from);
                Self::Decimal128(values, *scale)
            }
            DataType::Decimal128(_, scale) => Self::Decimal128(array.as_primitive().clone(), *scale),
            DataType::Decimal256(_, scale) => Self::Decimal256(array.as_primitive().clone(), *scale),
            DataType::Utf8 => Self::Text(Texts::Small(array.as_string().clone())),
            DataType::LargeUtf8 => Self::Text(Texts::Large(array.as_string().clone())),
            DataType::Utf8View => Self::Text(Texts::View(array.as_string_view().clone())),
            DataType::Binary => Self::Bytes(Blobs::Small(array.as_binary().clone())),
            DataType::LargeBinary => Self::Bytes(Blobs::Large(array.as_binary().clone())),
            DataType::BinaryView => Self::Bytes(Blobs::View(array.as_binary_view().clone())),
            DataType::FixedSizeBinary(16) if column.oid == oid::UUID => {
                Self::Uuid(array.as_fixed_size_binary().clone())
            }
            DataType::FixedSizeBinary(_) => Self::Bytes(Blobs::Fixed(array.as_fixed_size_binary().clone())),
            DataType::Date32 => Self::Date(integers(array)?, 1),
            DataType::Date64 => Self::Date(integers(array)?, 86_400_000),
            DataType::Time32(unit) | DataType::Time64(unit) => Self::Time(Ticks::new(array, *unit)?),
            DataType::Timestamp(unit, zone) => Self::Timestamp(Ticks::new(array, *unit)?, zone.is_some()),
            DataType::Duration(unit) => Self::Duration(Ticks::new(array, *unit)?),
            DataType::Interval(_) => Self::Interval(intervals(array)),
            DataType::Dictionary(_, value) => {
                let field = Field::new(field.name(), value.as_ref().clone(), true)
                    .with_metadata(field.metadata().clone());
                let dictionary = array.as_any_dictionary();
                let values = Self::new(dictionary.values(), &field, column)?;
                let keys = if dictionary.values().is_empty() {
                    vec![None; array.len()]
                } else {
                    let keys = dictionary.normalized_keys();
                    keys.into_iter()
                        .enumerate()
                        .map(|(row, key)| array.is_valid(row).then_some(key))
                        .collect()
                };
                Self::Indirect(Box::new(values), keys)
            }
            DataType::RunEndEncoded(ends, values_field) => {
                let (values, keys) = match ends.data_type() {
                    DataType::Int16 => runs::<Int16Type>(array),
                    DataType::Int32 => runs::<Int32Type>(array),
                    _ => runs::<Int64Type>(array),
                };
                Self::Indirect(Box::new(Self::new(&values, values_field, column)?), keys)
            }
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::FixedSizeList(item, _)
            | DataType::ListView(item)
            | DataType::LargeListView(item)
                if element_of(column.oid).is_some() =>
            {
                let element = element_of(column.oid).unwrap_or(oid::TEXT);
                Self::List(Box::new(Lists::new(array, item, element, column.oid == oid::INT2VECTOR)?))
            }
            other if other.is_nested() && column.oid == oid::JSON => {
                // What JSON has no encoder for, such as a union in a struct, is refused before the first row.
                let field: FieldRef = Arc::new(Field::new(field.name(), other.clone(), true));
                make_encoder(&field, array, &json::options()).map_err(|error| {
                    PgError::unsupported(format!("{other} can't be written as JSON: {error}"))
                        .hint("select its parts instead")
                })?;
                Self::Json(array.clone(), field)
            }
            _ => Self::Shown(array.clone()),
        })
    }

    pub(crate) fn is_null(&self, row: usize) -> bool {
        match self {
            Self::Null => true,
            Self::Bool(array) => array.is_null(row),
            Self::Int16(array) => array.is_null(row),
            Self::Int32(array) => array.is_null(row),
            Self::Int64(array) | Self::Date(array, _) => array.is_null(row),
            Self::Oid(array) => array.is_null(row),
            Self::Float32(array) => array.is_null(row),
            Self::Float64(array) => array.is_null(row),
            Self::Decimal128(array, _) => array.is_null(row),
            Self::Decimal256(array, _) => array.is_null(row),
            Self::Text(texts) => texts.is_null(row),
            Self::Bytes(blobs) => blobs.is_null(row),
            Self::Uuid(array) => array.is_null(row),
            Self::Time(ticks) | Self::Timestamp(ticks, _) | Self::Duration(ticks) => {
                ticks.values.is_null(row)
            }
            Self::Interval(array) => array.is_null(row),
            Self::List(lists) => lists.is_null(row),
            Self::Json(array, ..) => array.is_null(row),
            Self::Shown(array) => {
                array.is_null(row) || array.logical_nulls().is_some_and(|nulls| nulls.is_null(row))
            }
            Self::Indirect(values, keys) => keys[row].is_none_or(|key| values.is_null(key)),
        }
    }

    /// Appends the value of a row, which is not NULL.
    pub(crate) fn put(&self, row: usize, format: Format, out: &mut BytesMut) -> PgResult<()> {
        match format {
            Format::Text => self.put_text(row, out),
            Format::Binary => self.put_binary(row, out),
        }
    }

    /// Appends the length and the value of a row, as messages with rows and binary COPY have them.
    pub(crate) fn put_sized(&self, row: usize, format: Format, out: &mut BytesMut) -> PgResult<()> {
        if self.is_null(row) {
            out.put_i32(-1);
            return Ok(());
        }
        let at = out.len();
        out.put_i32(0);
        self.put(row, format, out)?;
        let length = i32::try_from(out.len() - at - 4)
            .map_err(|_| PgError::new(code::PROGRAM_LIMIT, "a value of more than 2 GiB"))?;
        out[at..at + 4].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    fn put_text(&self, row: usize, out: &mut BytesMut) -> PgResult<()> {
        let mut digits = itoa::Buffer::new();
        match self {
            Self::Null => {}
            Self::Bool(array) => out.put_u8(if array.value(row) { b't' } else { b'f' }),
            Self::Int16(array) => out.put_slice(digits.format(array.value(row)).as_bytes()),
            Self::Int32(array) => out.put_slice(digits.format(array.value(row)).as_bytes()),
            Self::Int64(array) => out.put_slice(digits.format(array.value(row)).as_bytes()),
            Self::Oid(array) => out.put_slice(digits.format(array.value(row)).as_bytes()),
            Self::Float32(array) => put_f32(array.value(row), out),
            Self::Float64(array) => put_f64(array.value(row), out),
            Self::Decimal128(array, scale) => {
                Decimal::with_i128(array.value(row), *scale, |decimal| decimal.put_text(out))
            }
            Self::Decimal256(array, scale) => {
                Decimal::with_i256(array.value(row), *scale, |decimal| decimal.put_text(out))
            }
            Self::Text(texts) => put_str(texts.get(row), out)?,
            Self::Bytes(blobs) => {
                out.put_slice(b"\\x");
                put_hex(blobs.get(row), out);
            }
            Self::Uuid(array) => {
                let bytes = array.value(row);
                for (index, part) in
                    [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]].iter().enumerate()
                {
                    if index > 0 {
                        out.put_u8(b'-');
                    }
                    put_hex(part, out);
                }
            }
            Self::Date(array, divisor) => datetime::put_date(date(array.value(row), *divisor)?, out),
            Self::Time(ticks) => datetime::put_time(time(ticks.get(row)?)?.unsigned_abs(), out),
            Self::Timestamp(ticks, has_zone) => {
                datetime::put_timestamp(timestamp(ticks.get(row)?)?, *has_zone, out)
            }
            Self::Duration(ticks) => datetime::put_interval(0, 0, ticks.get(row)?, out),
            Self::Interval(array) => {
                let value = array.value(row);
                datetime::put_interval(value.months, value.days, microseconds(value)?, out);
            }
            Self::List(lists) => lists.put_text(row, out)?,
            Self::Json(array, field) => put_json(array, field, row, out)?,
            Self::Shown(array) => put_str(&array_value_to_string(array, row)?, out)?,
            Self::Indirect(values, keys) => {
                if let Some(key) = keys[row] {
                    values.put_text(key, out)?;
                }
            }
        }
        Ok(())
    }

    fn put_binary(&self, row: usize, out: &mut BytesMut) -> PgResult<()> {
        match self {
            Self::Bool(array) => out.put_u8(array.value(row).into()),
            Self::Int16(array) => out.put_i16(array.value(row)),
            Self::Int32(array) => out.put_i32(array.value(row)),
            Self::Int64(array) => out.put_i64(array.value(row)),
            Self::Oid(array) => out.put_u32(array.value(row)),
            Self::Float32(array) => out.put_f32(array.value(row)),
            Self::Float64(array) => out.put_f64(array.value(row)),
            Self::Decimal128(array, scale) => {
                Decimal::with_i128(array.value(row), *scale, |decimal| decimal.put_binary(out))
            }
            Self::Decimal256(array, scale) => {
                Decimal::with_i256(array.value(row), *scale, |decimal| decimal.put_binary(out))
            }
            Self::Bytes(blobs) => out.put_slice(blobs.get(row)),
            Self::Uuid(array) => out.put_slice(array.value(row)),
            // The range fits 32 bits.
            Self::Date(array, divisor) => {
                out.put_i32((date(array.value(row), *divisor)? - EPOCH_DAYS) as i32)
            }
            Self::Time(ticks) => out.put_i64(time(ticks.get(row)?)?),
            Self::Timestamp(ticks, _) => out.put_i64(timestamp(ticks.get(row)?)? - EPOCH_US),
            Self::Duration(ticks) => put_interval(0, 0, ticks.get(row)?, out),
            Self::Interval(array) => {
                let value = array.value(row);
                put_interval(value.months, value.days, microseconds(value)?, out);
            }
            Self::List(lists) => lists.put_binary(row, out)?,
            Self::Indirect(values, keys) => {
                if let Some(key) = keys[row] {
                    values.put_binary(key, out)?;
                }
            }
            // The binary format of these types is their text.
            Self::Null | Self::Text(_) | Self::Json(..) | Self::Shown(_) => self.put_text(row, out)?,
        }
        Ok(())
    }
}

/// The values of an array of runs, and which of them each row has.
fn runs<R: RunEndIndexType>(array: &ArrayRef) -> (ArrayRef, Vec<Option<usize>>) {
    let runs = array.as_run::<R>();
    let keys = (0..runs.len()).map(|row| Some(runs.get_physical_index(row))).collect();
    (runs.values().clone(), keys)
}

/// Intervals of all units, with months, days and nanoseconds.
fn intervals(array: &ArrayRef) -> IntervalMonthDayNanoArray {
    match array.data_type() {
        DataType::Interval(IntervalUnit::YearMonth) => array
            .as_primitive::<IntervalYearMonthType>()
            .unary(|months| IntervalMonthDayNano::new(months, 0, 0)),
        DataType::Interval(IntervalUnit::DayTime) => {
            array.as_primitive::<IntervalDayTimeType>().unary(|value| {
                IntervalMonthDayNano::new(0, value.days, i64::from(value.milliseconds) * 1_000_000)
            })
        }
        _ => array.as_primitive::<IntervalMonthDayNanoType>().clone(),
    }
}

fn microseconds(value: IntervalMonthDayNano) -> PgResult<i64> {
    if value.nanoseconds % 1000 == 0 { Ok(value.nanoseconds / 1000) } else { Err(finer()) }
}

fn date(value: i64, divisor: i64) -> PgResult<i64> {
    if value % divisor != 0 {
        return Err(
            PgError::new(code::DATETIME_OVERFLOW, "a date with a time of day").hint("cast it to a timestamp")
        );
    }
    let days = value / divisor;
    DATES.contains(&days).then_some(days).ok_or_else(|| outside("date"))
}

fn time(us: i64) -> PgResult<i64> {
    (0..=DAY_US).contains(&us).then_some(us).ok_or_else(|| outside("time of day"))
}

fn timestamp(us: i64) -> PgResult<i64> {
    (us >= FIRST_TIMESTAMP).then_some(us).ok_or_else(|| outside("timestamp"))
}

fn put_interval(months: i32, days: i32, us: i64, out: &mut BytesMut) {
    out.put_i64(us);
    out.put_i32(days);
    out.put_i32(months);
}

/// Appends a text. Clients would take a NUL for its end.
fn put_str(text: &str, out: &mut BytesMut) -> PgResult<()> {
    if memchr::memchr(0, text.as_bytes()).is_some() {
        let error = PgError::new(code::CHARACTER_NOT_IN_REPERTOIRE, "a text with a NUL character");
        return Err(
            error.hint("PostgreSQL's text can't hold it; replace it in the query, or cast it to bytes")
        );
    }
    out.put_slice(text.as_bytes());
    Ok(())
}

fn put_hex(bytes: &[u8], out: &mut BytesMut) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(bytes.len() * 2);
    for byte in bytes {
        out.put_u8(DIGITS[usize::from(byte >> 4)]);
        out.put_u8(DIGITS[usize::from(byte & 15)]);
    }
}

#[cfg(test)]
mod tests;
