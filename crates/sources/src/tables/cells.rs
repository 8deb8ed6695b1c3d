//! Values of Arrow columns, one by one, for databases that take rows.

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, PrimitiveArray, RecordBatch, StringArray};
use arrow_buffer::i256;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field, TimeUnit};

use crate::decimal::Decimal;
use crate::{Result, SourceError};

/// One value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cell<'a> {
    Null,
    Bool(bool),
    Whole(i128),
    Real(f32),
    Double(f64),
    Decimal(Decimal),
    /// Days from 1970.
    Date(i64),
    /// A time of day in nanoseconds.
    Time(i64),
    /// Nanoseconds from 1970, in UTC or without a zone.
    Timestamp {
        ns: i128,
        has_zone: bool,
    },
    /// Nanoseconds.
    Duration(i128),
    Text(&'a str),
    Bytes(&'a [u8]),
}

/// A column of a batch, in the narrowest of these types that holds all values of its Arrow type.
pub(crate) enum Cells {
    Null,
    Bool(BooleanArray),
    Whole(PrimitiveArray<Int64Type>),
    Unsigned(PrimitiveArray<UInt64Type>),
    Real(PrimitiveArray<Float32Type>),
    Double(PrimitiveArray<Float64Type>),
    Decimal128(PrimitiveArray<Decimal128Type>, i8),
    Decimal256(PrimitiveArray<Decimal256Type>, i8),
    /// Days, times, timestamps or durations, as integers.
    Ticks(PrimitiveArray<Int64Type>, Ticks),
    Text(StringArray),
    Bytes(BinaryArray),
}

/// What the integers of a column of times count.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ticks {
    Days,
    /// Milliseconds of whole days.
    DayMilliseconds,
    Time(i64),
    Timestamp(i64, bool),
    Duration(i64),
}

/// Nanoseconds of a unit.
fn nanoseconds(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1000,
        TimeUnit::Nanosecond => 1,
    }
}

/// The type of the values, for a dictionary or runs.
pub(crate) fn plain(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => plain(values),
        DataType::RunEndEncoded(_, values) => plain(values.data_type()),
        other => other,
    }
}

/// A cast that fails if any value has no equal of the other type.
pub(crate) fn strict(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == to {
        return Ok(array.clone());
    }
    cast_with_options(array, to, &CastOptions { safe: false, ..Default::default() })
}

/// Whether values of this type are cells: not lists, structures, maps and unions.
pub(crate) fn has_cells(data_type: &DataType) -> bool {
    !plain(data_type).is_nested()
}

impl Cells {
    /// The values of `array`. Intervals become text.
    ///
    /// # Errors
    /// For a nested type, and for a value that can't be cast.
    pub(crate) fn new(array: &ArrayRef) -> Result<Self, ArrowError> {
        let array = &strict(array, plain(array.data_type()))?;
        let ticks = |ticks| -> Result<Self, ArrowError> {
            let mut numbers = array.clone();
            if matches!(array.data_type(), DataType::Date32 | DataType::Time32(_)) {
                numbers = strict(&numbers, &DataType::Int32)?;
            }
            Ok(Self::Ticks(strict(&numbers, &DataType::Int64)?.as_primitive().clone(), ticks))
        };
        Ok(match array.data_type() {
            DataType::Null => Self::Null,
            DataType::Boolean => Self::Bool(array.as_boolean().clone()),
            DataType::UInt64 => Self::Unsigned(array.as_primitive().clone()),
            t if t.is_integer() => Self::Whole(strict(array, &DataType::Int64)?.as_primitive().clone()),
            DataType::Float16 | DataType::Float32 => {
                Self::Real(strict(array, &DataType::Float32)?.as_primitive().clone())
            }
            DataType::Float64 => Self::Double(array.as_primitive().clone()),
            DataType::Decimal32(p, s) | DataType::Decimal64(p, s) => {
                Self::Decimal128(strict(array, &DataType::Decimal128(*p, *s))?.as_primitive().clone(), *s)
            }
            DataType::Decimal128(_, s) => Self::Decimal128(array.as_primitive().clone(), *s),
            DataType::Decimal256(_, s) => Self::Decimal256(array.as_primitive().clone(), *s),
            DataType::Date32 => ticks(Ticks::Days)?,
            DataType::Date64 => ticks(Ticks::DayMilliseconds)?,
            DataType::Time32(unit) | DataType::Time64(unit) => ticks(Ticks::Time(nanoseconds(*unit)))?,
            DataType::Timestamp(unit, zone) => ticks(Ticks::Timestamp(nanoseconds(*unit), zone.is_some()))?,
            DataType::Duration(unit) => ticks(Ticks::Duration(nanoseconds(*unit)))?,
            t if t.is_binary() => Self::Bytes(strict(array, &DataType::Binary)?.as_binary().clone()),
            t if t.is_nested() => return Err(ArrowError::CastError(format!("can't write {t}"))),
            _ => Self::Text(strict(array, &DataType::Utf8)?.as_string().clone()),
        })
    }

    /// The columns of a batch, before which `rows_before` rows were written.
    ///
    /// # Errors
    /// [`SourceError::Unfit`] for a value that can't be cast, [`SourceError::Value`] for a column of another type
    /// than in `fields`.
    pub(crate) fn of_batch<'f>(
        batch: &RecordBatch,
        fields: impl ExactSizeIterator<Item = &'f Field>,
        rows_before: u64,
    ) -> Result<Vec<Self>> {
        if batch.num_columns() != fields.len() {
            let reason = format!("a batch of {} columns; expected {}", batch.num_columns(), fields.len());
            return Err(SourceError::Unsupported(reason));
        }
        let columns = batch.columns().iter().zip(fields).map(|(array, field)| {
            if array.data_type() != field.data_type() {
                let reason = format!("type {}; expected {}", array.data_type(), field.data_type());
                return Err(SourceError::Value { column: field.name().clone(), reason });
            }
            Self::new(array).map_err(|error| {
                // A cast's error does not name the row: it is the first one that can't be cast alone.
                let is_unfit = |row: &usize| Self::new(&array.slice(*row, 1)).is_err();
                let row = (0..array.len()).find(is_unfit).unwrap_or(0);
                SourceError::Unfit {
                    row: rows_before + row as u64 + 1,
                    column: field.name().clone(),
                    reason: error.to_string(),
                    hint: Some("cast it in the query".into()),
                }
            })
        });
        columns.collect()
    }

    /// The value of a row.
    #[inline]
    pub(crate) fn get(&self, row: usize) -> Cell<'_> {
        match self {
            Self::Null => Cell::Null,
            Self::Bool(array) if array.is_valid(row) => Cell::Bool(array.value(row)),
            Self::Whole(array) if array.is_valid(row) => Cell::Whole(array.value(row).into()),
            Self::Unsigned(array) if array.is_valid(row) => Cell::Whole(array.value(row).into()),
            Self::Real(array) if array.is_valid(row) => Cell::Real(array.value(row)),
            Self::Double(array) if array.is_valid(row) => Cell::Double(array.value(row)),
            Self::Decimal128(array, scale) if array.is_valid(row) => {
                Cell::Decimal(Decimal { value: i256::from_i128(array.value(row)), scale: i32::from(*scale) })
            }
            Self::Decimal256(array, scale) if array.is_valid(row) => {
                Cell::Decimal(Decimal { value: array.value(row), scale: i32::from(*scale) })
            }
            Self::Ticks(array, ticks) if array.is_valid(row) => ticks.cell(array.value(row)),
            Self::Text(array) if array.is_valid(row) => Cell::Text(array.value(row)),
            Self::Bytes(array) if array.is_valid(row) => Cell::Bytes(array.value(row)),
            _ => Cell::Null,
        }
    }
}

impl Ticks {
    fn cell(self, value: i64) -> Cell<'static> {
        match self {
            Self::Days => Cell::Date(value),
            Self::DayMilliseconds if value % 86_400_000 == 0 => Cell::Date(value / 86_400_000),
            Self::DayMilliseconds => Cell::Timestamp { ns: i128::from(value) * 1_000_000, has_zone: false },
            // A time of day in nanoseconds fits; one that doesn't is out of every column's range.
            Self::Time(unit) => Cell::Time(value.saturating_mul(unit)),
            Self::Timestamp(unit, has_zone) => {
                Cell::Timestamp { ns: i128::from(value) * i128::from(unit), has_zone }
            }
            Self::Duration(unit) => Cell::Duration(i128::from(value) * i128::from(unit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use lightship_testkit::arrays;

    use super::*;

    #[test]
    fn cells_of_every_type_are_null_where_the_array_is() {
        let mut seen = 0;
        for seed in 0..20 {
            for array in arrays::every_type(40, seed).columns() {
                if !has_cells(array.data_type()) {
                    assert!(Cells::new(array).is_err(), "{}", array.data_type());
                    continue;
                }
                seen += 1;
                let cells = Cells::new(array).unwrap();
                let nulls = array.logical_nulls();
                for row in 0..array.len() {
                    let is_null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
                    assert_eq!(matches!(cells.get(row), Cell::Null), is_null, "{}", array.data_type());
                }
            }
        }
        assert!(seen > 100, "{seen}");
    }
}
