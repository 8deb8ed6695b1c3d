//! Values of parameters, as the binary protocol carries them.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, TimeUnit};
use mysql_async::{Params, Value};

use super::values::date_of_days;
use crate::parameters::{check_count, unfit};
use crate::{Result, SourceError};

const DAY_US: i64 = 86_400_000_000;
/// 838:59:59, the longest time.
const TIME_US_MAX: u64 = 3_020_399_000_000;

/// The values of one row, for a statement with this number of parameters.
///
/// # Errors
/// [`SourceError::Parameters`] when there are fewer or more values than parameters, or one can't be sent.
pub(super) fn values(row: &RecordBatch, parameters: usize) -> Result<Params> {
    check_count(row, parameters)?;
    if parameters == 0 {
        return Ok(Params::Empty);
    }
    let values = row.columns().iter().enumerate().map(|(index, column)| value(index, column));
    Ok(Params::Positional(values.collect::<Result<_>>()?))
}

fn value(index: usize, column: &ArrayRef) -> Result<Value> {
    let column = &plain(index, column)?;
    if column.is_null(0) || column.data_type().is_null() {
        return Ok(Value::NULL);
    }
    let to = |data_type: DataType| strict(column, &data_type).map_err(|error| refused(index, &error));
    let (from, time) = (column.data_type(), DataType::Time64(TimeUnit::Microsecond));
    Ok(match from {
        DataType::Boolean => Value::Int(column.as_boolean().value(0).into()),
        DataType::UInt64 => Value::UInt(column.as_primitive::<UInt64Type>().value(0)),
        from if from.is_integer() => Value::Int(to(DataType::Int64)?.as_primitive::<Int64Type>().value(0)),
        DataType::Float16 | DataType::Float32 => {
            let value = to(DataType::Float32)?.as_primitive::<Float32Type>().value(0);
            check_finite(index, value.into())?;
            Value::Float(value)
        }
        DataType::Float64 => {
            let value = column.as_primitive::<Float64Type>().value(0);
            check_finite(index, value)?;
            Value::Double(value)
        }
        from if from.is_string() => {
            Value::Bytes(to(DataType::Utf8)?.as_string::<i32>().value(0).as_bytes().to_vec())
        }
        from if from.is_binary() => Value::Bytes(to(DataType::Binary)?.as_binary::<i32>().value(0).to_vec()),
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => {
            let us = microseconds(index, column, &DataType::Timestamp(TimeUnit::Microsecond, zone(from)))?;
            let (days, us) = (us.div_euclid(DAY_US), us.rem_euclid(DAY_US));
            let (year, month, day) = date_of_days(days);
            let Some(year) = u16::try_from(year).ok().filter(|year| *year <= 9999) else {
                return Err(unfit(index, "a date after 9999 or before 0", "give another date".into()));
            };
            let (hour, minute, second, us) = clock(us);
            Value::Date(year, month, day, hour, minute, second, us)
        }
        DataType::Time32(_) | DataType::Time64(_) => {
            let (hour, minute, second, us) = clock(microseconds(index, column, &time)?);
            Value::Time(false, 0, hour, minute, second, us)
        }
        DataType::Duration(_) => {
            let span = microseconds(index, column, &DataType::Duration(TimeUnit::Microsecond))?;
            if span.unsigned_abs() > TIME_US_MAX {
                return Err(unfit(index, "a time beyond 838:59:59", "give a shorter time".into()));
            }
            let (days, us) = (span.unsigned_abs() / DAY_US as u64, span.unsigned_abs() % DAY_US as u64);
            let days = u32::try_from(days).unwrap_or(u32::MAX);
            let (hour, minute, second, us) = clock(us as i64);
            Value::Time(span < 0, days, hour, minute, second, us)
        }
        other => {
            let reason = format!("MySQL's protocol has no parameters of type {other}");
            return Err(unfit(
                index,
                &reason,
                "give it as text, and cast it in the SQL: CAST(? AS ...)".into(),
            ));
        }
    })
}

fn check_finite(index: usize, value: f64) -> Result<()> {
    if value.is_finite() {
        return Ok(());
    }
    Err(unfit(index, "NaN or infinity, which MySQL does not have", "give NULL or a number".into()))
}

/// The values of a dictionary or of runs.
fn plain(index: usize, column: &ArrayRef) -> Result<ArrayRef> {
    let data_type = match column.data_type() {
        DataType::Dictionary(_, values) => values.as_ref().clone(),
        DataType::RunEndEncoded(_, values) => values.data_type().clone(),
        _ => return Ok(column.clone()),
    };
    strict(column, &data_type).map_err(|error| refused(index, &error))
}

fn strict(column: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    cast_with_options(column, to, &CastOptions { safe: false, ..Default::default() })
}

fn refused(index: usize, error: &ArrowError) -> SourceError {
    unfit(index, &error.to_string(), "give a value of another type".into())
}

fn zone(from: &DataType) -> Option<std::sync::Arc<str>> {
    match from {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    }
}

/// The value in microseconds, which is what `in_us` counts.
fn microseconds(index: usize, column: &ArrayRef, in_us: &DataType) -> Result<i64> {
    let cast = |column: &ArrayRef, to| strict(column, to).map_err(|error| refused(index, &error));
    let converted = cast(column, in_us)?;
    if !cast(&converted, column.data_type())?.to_data().eq(&column.to_data()) {
        return Err(unfit(index, "a time more precise than a microsecond", "truncate it".into()));
    }
    Ok(cast(&converted, &DataType::Int64)?.as_primitive::<Int64Type>().value(0))
}

/// Hours, minutes, seconds and microseconds of a time of day.
fn clock(us: i64) -> (u8, u8, u8, u32) {
    let seconds = us / 1_000_000;
    ((seconds / 3600) as u8, (seconds / 60 % 60) as u8, (seconds % 60) as u8, (us % 1_000_000) as u32)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{
        Date32Array, Decimal128Array, DictionaryArray, DurationSecondArray, Float32Array, Float64Array,
        Int8Array, NullArray, StringArray, Time64NanosecondArray, TimestampMicrosecondArray,
        TimestampNanosecondArray, UInt64Array, types::Int32Type,
    };

    use super::*;

    fn of(column: impl Array + 'static) -> Result<Value> {
        value(0, &(Arc::new(column) as ArrayRef))
    }

    #[test]
    fn values_keep_their_types() {
        let check = |found: Result<Value>, expected| assert_eq!(found.unwrap(), expected);
        check(of(Int8Array::from(vec![-1])), Value::Int(-1));
        check(of(UInt64Array::from(vec![u64::MAX])), Value::UInt(u64::MAX));
        check(of(NullArray::new(1)), Value::NULL);
        check(of(StringArray::from(vec![None::<&str>])), Value::NULL);
        let words: DictionaryArray<Int32Type> = ["a", "b"].into_iter().collect();
        check(of(words.slice(1, 1)), Value::Bytes(b"b".to_vec()));
        check(of(Date32Array::from(vec![-1])), Value::Date(1969, 12, 31, 0, 0, 0, 0));
        check(
            of(TimestampMicrosecondArray::from(vec![1_709_210_096_000_001]).with_timezone("UTC")),
            Value::Date(2024, 2, 29, 12, 34, 56, 1),
        );
        check(of(Time64NanosecondArray::from(vec![1_001_000])), Value::Time(false, 0, 0, 0, 0, 1001));
        check(of(DurationSecondArray::from(vec![-90_061])), Value::Time(true, 1, 1, 1, 1, 0));
        check(of(DurationSecondArray::from(vec![3_020_399])), Value::Time(false, 34, 22, 59, 59, 0));
    }

    #[test]
    fn values_that_would_change_are_refused() {
        for (found, expected) in [
            (of(TimestampNanosecondArray::from(vec![1])), "more precise"),
            (of(Date32Array::from(vec![3_000_000])), "a date after 9999"),
            (of(DurationSecondArray::from(vec![-3_020_400])), "beyond 838:59:59"),
            (of(Float64Array::from(vec![f64::INFINITY])), "infinity"),
            (of(Float32Array::from(vec![f32::NAN])), "NaN"),
            (of(Decimal128Array::from(vec![1])), "no parameters of type Decimal128"),
        ] {
            let error = found.unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        let two: ArrayRef = Arc::new(Int8Array::from(vec![1, 2]));
        let rows = RecordBatch::try_from_iter([("a", two)]).unwrap();
        assert!(values(&rows, 1).is_err() && values(&rows.slice(0, 1), 2).is_err());
        assert!(values(&rows.slice(0, 1), 1).is_ok());
    }
}
