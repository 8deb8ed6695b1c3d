//! Encodes Arrow columns as values of binary COPY. A value is written unchanged or refused.

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, IntervalMonthDayNanoType};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, ListArray, PrimitiveArray, StringArray,
};
use arrow_schema::{ArrowError, DataType, IntervalUnit, TimeUnit};
use bytes::{BufMut, BytesMut};

use super::decode::{EPOCH_DAYS, EPOCH_US};
use super::limit::Limit;
use super::number::NumberEncoder;
use super::types::PgType;
use crate::tables::cells::{plain, strict};
use crate::unfit::EncodeError;

/// The server's dates, in days from 2000: from 4714 BC to the year 5874897.
const DATES: std::ops::Range<i64> = -2_451_545..2_145_031_949;
/// Its timestamps, in microseconds from 2000: from 4714 BC to the year 294276.
const TIMESTAMPS: std::ops::Range<i64> = -211_813_488_000_000_000..9_223_371_331_200_000_000;
/// Its times of day in microseconds, including the end of the day.
const TIMES: std::ops::RangeInclusive<i64> = 0..=DAY_US;
const DAY_US: i64 = 86_400_000_000;

const CAST: &str = "cast it in the query";
const RANGE: &str = "exclude it, or copy it as text into a column of type text";
/// The hint for a text that has a NUL character.
pub(super) const NUL: &str = "PostgreSQL's text can't hold it: remove it in the query, as with replace(c, chr(0), ''), in \
                              MySQL replace(c, char(0), ''), in SQLite substr(c, 1, instr(c, char(0)) - 1)";
const TRUNCATE: &str = "PostgreSQL keeps microseconds; truncate it in the query, as with date_trunc()";

/// What values depend on in a column of a table.
#[derive(Debug, Clone)]
pub(super) struct ColumnType {
    pub(super) kind: PgType,
    /// The type of the elements, for an array.
    pub(super) element: u32,
    pub(super) limit: Limit,
    /// The version of the server.
    pub(super) version: u32,
}

/// One column of a batch, ready to be written value by value.
pub(super) enum Encoder {
    Null,
    Bool(BooleanArray),
    Number(NumberEncoder),
    Date(Ticks),
    Time(Ticks, Limit),
    Timestamp(Ticks, Limit),
    Interval(PrimitiveArray<IntervalMonthDayNanoType>, Limit),
    Duration(Ticks, Limit),
    Uuid(FixedSizeBinaryArray),
    Bytes(BinaryArray),
    Utf8(StringArray, Limit),
    Jsonb(StringArray),
    List { array: ListArray, items: Box<Encoder>, element: u32 },
}

/// Dates or times, as integers in units of `multiplier` / `divisor`.
pub(super) struct Ticks {
    values: PrimitiveArray<Int64Type>,
    multiplier: i64,
    divisor: i64,
}

impl Ticks {
    /// The times of `array`, in microseconds.
    fn microseconds(array: &ArrayRef) -> Result<Self, ArrowError> {
        let (multiplier, divisor) = match array.data_type() {
            DataType::Date32 => (DAY_US, 1),
            DataType::Date64 => (1000, 1),
            DataType::Time32(unit)
            | DataType::Time64(unit)
            | DataType::Timestamp(unit, _)
            | DataType::Duration(unit) => match unit {
                TimeUnit::Second => (1_000_000, 1),
                TimeUnit::Millisecond => (1000, 1),
                TimeUnit::Microsecond => (1, 1),
                TimeUnit::Nanosecond => (1, 1000),
            },
            other => return Err(no_way(other)),
        };
        Self::new(array, multiplier, divisor)
    }

    /// The dates of `array`, in days.
    fn days(array: &ArrayRef) -> Result<Self, ArrowError> {
        match array.data_type() {
            DataType::Date32 => Self::new(array, 1, 1),
            DataType::Date64 => Self::new(array, 1, 86_400_000),
            other => Err(no_way(other)),
        }
    }

    fn new(array: &ArrayRef, multiplier: i64, divisor: i64) -> Result<Self, ArrowError> {
        let mut numbers = array.clone();
        if matches!(array.data_type(), DataType::Date32 | DataType::Time32(_)) {
            numbers = strict(&numbers, &DataType::Int32)?;
        }
        let values = strict(&numbers, &DataType::Int64)?.as_primitive().clone();
        Ok(Self { values, multiplier, divisor })
    }

    #[inline]
    fn get(&self, row: usize, hint: &'static str) -> Result<i64, EncodeError> {
        let value = self.values.value(row);
        if self.divisor != 1 && value % self.divisor != 0 {
            return Err(EncodeError::new("a time more precise than the column keeps", hint));
        }
        let ticks = (value / self.divisor).checked_mul(self.multiplier);
        ticks.ok_or_else(|| EncodeError::new("a time outside the server's range", RANGE))
    }
}

/// Converts a count from 1970 to a count from 2000.
fn from_epoch(value: i64, epoch: i64, range: &std::ops::Range<i64>, what: &str) -> Result<i64, EncodeError> {
    let value = value.checked_sub(epoch).filter(|value| range.contains(value));
    // The extreme values of the types are the server's infinities.
    value.ok_or_else(|| EncodeError::new(format!("a {what} outside the server's range"), RANGE))
}

fn no_way(data_type: &DataType) -> ArrowError {
    ArrowError::CastError(format!("can't write {data_type}"))
}

impl Encoder {
    /// The encoder of `array` for a column of this type.
    ///
    /// # Errors
    /// When a value has no text, or the types don't match.
    pub(super) fn new(array: &ArrayRef, to: &ColumnType) -> Result<Self, ArrowError> {
        // Casts are defined on plain arrays, not on all pairs of encodings.
        let array = &strict(array, plain(array.data_type()))?;
        if array.data_type().is_null() {
            return Ok(Self::Null);
        }
        if let Some(numbers) = NumberEncoder::new(array, &to.kind, to.limit, to.version)? {
            return Ok(Self::Number(numbers));
        }
        Ok(match &to.kind {
            PgType::Bool => Self::Bool(array.as_boolean().clone()),
            PgType::Date => Self::Date(Ticks::days(array)?),
            PgType::Time => Self::Time(Ticks::microseconds(array)?, to.limit),
            PgType::Timestamp | PgType::TimestampTz => Self::Timestamp(Ticks::microseconds(array)?, to.limit),
            PgType::Interval if matches!(array.data_type(), DataType::Duration(_)) => {
                Self::Duration(Ticks::microseconds(array)?, to.limit)
            }
            PgType::Interval => {
                let parts = DataType::Interval(IntervalUnit::MonthDayNano);
                Self::Interval(strict(array, &parts)?.as_primitive().clone(), to.limit)
            }
            PgType::Uuid => Self::Uuid(array.as_fixed_size_binary().clone()),
            PgType::Bytes => Self::Bytes(strict(array, &DataType::Binary)?.as_binary().clone()),
            PgType::Jsonb => Self::Jsonb(strict(array, &DataType::Utf8)?.as_string().clone()),
            PgType::Utf8 | PgType::Json => {
                Self::Utf8(strict(array, &DataType::Utf8)?.as_string().clone(), to.limit)
            }
            PgType::List(kind) => {
                let (DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) =
                    array.data_type()
                else {
                    return Err(no_way(array.data_type()));
                };
                let array: ListArray = strict(array, &DataType::List(item.clone()))?.as_list().clone();
                let item = ColumnType { kind: (**kind).clone(), element: 0, ..to.clone() };
                // For a slice, only the items of its rows are encoded.
                let (first, last) = (array.offsets()[0] as usize, array.offsets()[array.len()] as usize);
                let items = Box::new(Self::new(&array.values().slice(first, last - first), &item)?);
                Self::List { array, items, element: to.element }
            }
            _ => return Err(no_way(array.data_type())),
        })
    }

    /// Whether the row is NULL.
    pub(super) fn is_null(&self, row: usize) -> bool {
        match self {
            Self::Null => true,
            Self::Bool(array) => array.is_null(row),
            Self::Number(numbers) => numbers.is_null(row),
            Self::Date(ticks)
            | Self::Time(ticks, _)
            | Self::Timestamp(ticks, _)
            | Self::Duration(ticks, _) => ticks.values.is_null(row),
            Self::Interval(array, _) => array.is_null(row),
            Self::Uuid(array) => array.is_null(row),
            Self::Bytes(array) => array.is_null(row),
            Self::Utf8(array, _) | Self::Jsonb(array) => array.is_null(row),
            Self::List { array, .. } => array.is_null(row),
        }
    }

    /// Appends length and value of one row.
    ///
    /// # Errors
    /// When the column can't hold the value.
    #[inline]
    pub(super) fn put(&self, row: usize, out: &mut BytesMut) -> Result<(), EncodeError> {
        if self.is_null(row) {
            out.put_i32(-1);
            return Ok(());
        }
        let at = out.len();
        out.put_i32(0);
        self.put_value(row, out)?;
        let length = i32::try_from(out.len() - at - 4).map_err(|_| {
            EncodeError::new(
                "a value of more than 2 GiB",
                "PostgreSQL accepts up to 1 GiB; split it in the query",
            )
        })?;
        out[at..at + 4].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    /// Appends a value that is not NULL.
    #[inline]
    fn put_value(&self, row: usize, out: &mut BytesMut) -> Result<(), EncodeError> {
        match self {
            Self::Null => {}
            Self::Bool(array) => out.put_u8(array.value(row).into()),
            Self::Number(numbers) => numbers.put(row, out)?,
            Self::Date(ticks) => {
                let days = from_epoch(ticks.get(row, CAST)?, EPOCH_DAYS.into(), &DATES, "date")?;
                // The range fits 32 bits.
                out.put_i32(days as i32);
            }
            Self::Time(ticks, limit) => {
                let us = ticks.get(row, TRUNCATE)?;
                if !TIMES.contains(&us) {
                    return Err(EncodeError::new("a time of day outside the server's range", RANGE));
                }
                limit.check_microseconds(us)?;
                out.put_i64(us);
            }
            Self::Timestamp(ticks, limit) => {
                let us = from_epoch(ticks.get(row, TRUNCATE)?, EPOCH_US, &TIMESTAMPS, "timestamp")?;
                limit.check_microseconds(us)?;
                out.put_i64(us);
            }
            Self::Interval(array, limit) => {
                let value = array.value(row);
                if value.nanoseconds % 1000 != 0 {
                    return Err(EncodeError::new("an interval more precise than a microsecond", TRUNCATE));
                }
                put_interval(value.months, value.days, value.nanoseconds / 1000, *limit, out)?;
            }
            Self::Duration(ticks, limit) => put_interval(0, 0, ticks.get(row, TRUNCATE)?, *limit, out)?,
            Self::Uuid(array) => out.put_slice(array.value(row)),
            Self::Bytes(array) => out.put_slice(array.value(row)),
            Self::Utf8(array, limit) => {
                let text = array.value(row);
                limit.check_text(text)?;
                put_text(text, out)?;
            }
            Self::Jsonb(array) => {
                // The version of the format.
                out.put_u8(1);
                put_text(array.value(row), out)?;
            }
            Self::List { array, items, element } => {
                let offsets = array.value_offsets();
                let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
                out.put_i32(i32::from(start < end));
                out.put_i32(1);
                out.put_u32(*element);
                if start < end {
                    out.put_i32((end - start) as i32);
                    out.put_i32(1);
                }
                let first = offsets[0] as usize;
                (start - first..end - first).try_for_each(|item| items.put(item, out))?;
            }
        }
        Ok(())
    }
}

fn put_interval(
    months: i32,
    days: i32,
    us: i64,
    limit: Limit,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    limit.check_interval(months, days, us)?;
    out.put_i64(us);
    out.put_i32(days);
    out.put_i32(months);
    Ok(())
}

fn put_text(text: &str, out: &mut BytesMut) -> Result<(), EncodeError> {
    if text.as_bytes().contains(&0) {
        return Err(EncodeError::new("a text with a NUL character", NUL));
    }
    out.put_slice(text.as_bytes());
    Ok(())
}
