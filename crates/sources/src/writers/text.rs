//! Values of a column as text: the library's, and those of the commonest types faster.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
};
use arrow_array::{Array, GenericStringArray, StringViewArray};
use arrow_buffer::NullBuffer;
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{ArrowError, DataType, TimeUnit};

use super::open_decimal::{is_open, without_zeros};

const DAY_US: i64 = 86_400_000_000;

/// The values of one column of a batch.
pub(super) struct Texts<'a> {
    values: Values<'a>,
    /// Of any type.
    formatter: ArrayFormatter<'a>,
    nulls: Option<NullBuffer>,
    is_open: bool,
}

enum Values<'a> {
    Text(&'a GenericStringArray<i32>),
    LargeText(&'a GenericStringArray<i64>),
    TextViews(&'a StringViewArray),
    Int16(&'a [i16]),
    Int32(&'a [i32]),
    Int64(&'a [i64]),
    /// Not of a negative scale.
    Decimal(&'a [i128], usize),
    Days(&'a [i32]),
    /// `Z` behind those in UTC.
    Microseconds(&'a [i64], &'static str),
    Other,
}

/// A value, as far as quotes are concerned.
pub(super) enum Value<'a> {
    Null,
    /// Digits and signs.
    Number(&'a str),
    Text(&'a str),
}

impl<'a> Texts<'a> {
    pub(super) fn new(column: &'a dyn Array) -> Result<Self, ArrowError> {
        const OPTIONS: &FormatOptions<'static> = &FormatOptions::new();
        let values = match column.data_type() {
            DataType::Utf8 => Values::Text(column.as_string()),
            DataType::LargeUtf8 => Values::LargeText(column.as_string()),
            DataType::Utf8View => Values::TextViews(column.as_string_view()),
            DataType::Int16 => Values::Int16(column.as_primitive::<Int16Type>().values()),
            DataType::Int32 => Values::Int32(column.as_primitive::<Int32Type>().values()),
            DataType::Int64 => Values::Int64(column.as_primitive::<Int64Type>().values()),
            DataType::Decimal128(_, scale @ 0..) => {
                Values::Decimal(column.as_primitive::<Decimal128Type>().values(), *scale as usize)
            }
            DataType::Date32 => Values::Days(column.as_primitive::<Date32Type>().values()),
            DataType::Timestamp(TimeUnit::Microsecond, zone)
                if zone.as_deref().is_none_or(|z| z == "UTC") =>
            {
                let suffix = if zone.is_some() { "Z" } else { "" };
                Values::Microseconds(column.as_primitive::<TimestampMicrosecondType>().values(), suffix)
            }
            _ => Values::Other,
        };
        Ok(Self {
            values,
            formatter: ArrayFormatter::try_new(column, OPTIONS)?,
            nulls: column.logical_nulls(),
            is_open: is_open(column.data_type()),
        })
    }

    /// The value of a row; `text` is where it is put, if it has to be.
    ///
    /// # Errors
    /// When there is no text for it, such as for a time after all calendars.
    #[inline]
    pub(super) fn value<'t>(&'t self, row: usize, text: &'t mut String) -> Result<Value<'t>, ArrowError> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return Ok(Value::Null);
        }
        text.clear();
        let mut digits = itoa::Buffer::new();
        match self.values {
            Values::Text(texts) => return Ok(Value::Text(texts.value(row))),
            Values::LargeText(texts) => return Ok(Value::Text(texts.value(row))),
            Values::TextViews(texts) => return Ok(Value::Text(texts.value(row))),
            Values::Int16(numbers) => text.push_str(digits.format(numbers[row])),
            Values::Int32(numbers) => text.push_str(digits.format(numbers[row])),
            Values::Int64(numbers) => text.push_str(digits.format(numbers[row])),
            Values::Decimal(numbers, scale) => push_decimal(text, numbers[row], scale),
            Values::Days(days) if push_day(text, days[row].into()).is_some() => {}
            Values::Microseconds(times, suffix) if push_time(text, times[row]).is_some() => {
                text.push_str(suffix);
            }
            _ => {
                text.clear();
                self.formatter.value(row).write(text)?;
                return Ok(Value::Text(if self.is_open { without_zeros(text) } else { text }));
            }
        }
        Ok(Value::Number(text))
    }
}

fn push_decimal(text: &mut String, number: i128, scale: usize) {
    let mut buffer = itoa::Buffer::new();
    let digits = match i64::try_from(number) {
        // Most are, and these are faster.
        Ok(small) => buffer.format(small),
        Err(_) => buffer.format(number),
    };
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", digits),
    };
    text.push_str(sign);
    match digits.len().checked_sub(scale) {
        _ if scale == 0 => text.push_str(digits),
        Some(whole @ 1..) => {
            text.push_str(&digits[..whole]);
            text.push('.');
            text.push_str(&digits[whole..]);
        }
        _ => {
            text.push_str("0.");
            (digits.len()..scale).for_each(|_| text.push('0'));
            text.push_str(digits);
        }
    }
}

/// `number` with zeros before it.
fn push_padded(text: &mut String, number: u32, width: usize) {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(number);
    (digits.len()..width).for_each(|_| text.push('0'));
    text.push_str(digits);
}

/// Days from 1970 as a date, if it is one of a year of four digits.
fn push_day(text: &mut String, days: i64) -> Option<()> {
    // Years from March on, in eras of 400 of them: how its days fall is the same in each.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + 400 * era + i64::from(month <= 2);
    let year = u32::try_from(year).ok().filter(|year| *year <= 9999)?;
    push_padded(text, year, 4);
    text.push('-');
    push_padded(text, month as u32, 2);
    text.push('-');
    push_padded(text, day as u32, 2);
    Some(())
}

/// Microseconds from 1970 as date and time, if it is of a year of four digits.
fn push_time(text: &mut String, us: i64) -> Option<()> {
    push_day(text, us.div_euclid(DAY_US))?;
    let us = us.rem_euclid(DAY_US);
    let (seconds, fraction) = ((us / 1_000_000) as u32, (us % 1_000_000) as u32);
    for (before, number) in [('T', seconds / 3600), (':', seconds / 60 % 60), (':', seconds % 60)] {
        text.push(before);
        push_padded(text, number, 2);
    }
    match fraction {
        0 => {}
        _ if fraction.is_multiple_of(1000) => {
            text.push('.');
            push_padded(text, fraction / 1000, 3);
        }
        _ => {
            text.push('.');
            push_padded(text, fraction, 6);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{
        ArrayRef, Date32Array, Decimal128Array, Int16Array, Int32Array, Int64Array, TimestampMicrosecondArray,
    };
    use proptest::prelude::*;

    use super::*;

    /// What the library says of the same values.
    fn check(column: &ArrayRef) {
        let options = FormatOptions::new();
        let (ours, theirs) =
            (Texts::new(column).unwrap(), ArrayFormatter::try_new(column, &options).unwrap());
        let mut text = String::new();
        for row in 0..column.len() {
            let expected = theirs.value(row).try_to_string().ok();
            let ours = match ours.value(row, &mut text) {
                Ok(Value::Number(shown) | Value::Text(shown)) => Some(shown.to_owned()),
                Ok(Value::Null) => Some(String::new()),
                Err(_) => None,
            };
            assert_eq!(ours, expected, "row {row} of {column:?}");
        }
    }

    proptest! {
        #[test]
        fn values_are_shown_as_the_library_shows_them(
            numbers in proptest::collection::vec(any::<i64>(), 1..20),
            scale in 0_i8..=38,
            shift in 0_u32..64,
        ) {
            let numbers: Vec<i64> = numbers.iter().map(|number| number >> shift).collect();
            let wide: Vec<i128> = numbers.iter().map(|&n| i128::from(n) * i128::from(n) % 10_i128.pow(38)).collect();
            let all: [ArrayRef; 9] = [
                Arc::new(Int16Array::from_iter_values(numbers.iter().map(|&n| n as i16))),
                Arc::new(Int32Array::from_iter_values(numbers.iter().map(|&n| n as i32))),
                Arc::new(Int64Array::from(numbers.clone())),
                Arc::new(Date32Array::from_iter_values(numbers.iter().map(|&n| n as i32))),
                Arc::new(Date32Array::from_iter_values(numbers.iter().map(|&n| (n % 5_000_000) as i32))),
                Arc::new(TimestampMicrosecondArray::from(numbers.clone())),
                Arc::new(TimestampMicrosecondArray::from(numbers.clone()).with_timezone("UTC")),
                Arc::new(Decimal128Array::from(wide).with_precision_and_scale(38, scale).unwrap()),
                Arc::new(Decimal128Array::from_iter_values(numbers.iter().map(|&n| n.into()))
                    .with_precision_and_scale(38, scale).unwrap()),
            ];
            all.iter().for_each(check);
        }
    }

    #[test]
    fn the_first_and_last_days_that_are_shown_fast() {
        let days =
            [-719_529, -719_528, -719_527, -1, 0, 59, 11_016, 2_932_896, 2_932_897, i32::MIN, i32::MAX];
        check(&(Arc::new(Date32Array::from(days.to_vec())) as ArrayRef));
        let around = |&day: &i32| [-1, 0, 1, 1000].map(|us| i64::from(day) * DAY_US + us);
        let times: Vec<i64> = days[..9].iter().flat_map(around).chain([i64::MIN, i64::MAX]).collect();
        check(&(Arc::new(TimestampMicrosecondArray::from(times)) as ArrayRef));
    }
}
