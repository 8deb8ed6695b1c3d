//! Values of CSV files: infers types from texts, and parses texts as values of a type.
//!
//! A text fits a type only if nothing is lost: an integer that a double can't represent is not read
//! as a double.

use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, PrimitiveBuilder};
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Float64Type, Int64Type, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{Array, ArrayRef, StringArray};
use arrow_schema::{DataType, TimeUnit};
use chrono::{NaiveDate, Utc};
use datafusion::arrow::compute::kernels::cast_utils::string_to_datetime;

/// The type of the values seen so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) enum Guess {
    /// Only empty values.
    #[default]
    Nothing,
    Boolean,
    Integer {
        /// Whether some don't fit a double.
        wide: bool,
    },
    Float,
    Date,
    Timestamp(TimeUnit),
    Text,
}

impl Guess {
    fn of(text: &str) -> Self {
        if boolean(text).is_some() {
            Self::Boolean
        } else if integer(text).is_some() {
            Self::Integer { wide: float(text).is_none() }
        } else if float(text).is_some() && text.contains(|c: char| !c.is_ascii_digit() && c != '-') {
            // An integer of more than 64 bits is text.
            Self::Float
        } else if date(text).is_some() {
            Self::Date
        } else if let Some(unit) = unit_of(text).filter(|unit| timestamp(text, *unit).is_some()) {
            Self::Timestamp(unit)
        } else {
            Self::Text
        }
    }

    /// Takes one more value into account.
    pub(super) fn add(&mut self, text: &str) {
        if *self == Self::Text || text.is_empty() {
            return;
        }
        *self = match (*self, Self::of(text)) {
            (Self::Nothing, new) => new,
            (old, new) if old == new => old,
            (Self::Integer { .. }, Self::Integer { .. }) => Self::Integer { wide: true },
            (Self::Integer { wide: false } | Self::Float, Self::Integer { wide: false } | Self::Float) => {
                Self::Float
            }
            (Self::Date, Self::Timestamp(unit)) | (Self::Timestamp(unit), Self::Date) => {
                Self::Timestamp(unit)
            }
            (Self::Timestamp(a), Self::Timestamp(b)) => Self::Timestamp(finer(a, b)),
            _ => Self::Text,
        };
    }

    pub(super) fn data_type(self) -> DataType {
        match self {
            Self::Nothing => DataType::Null,
            Self::Boolean => DataType::Boolean,
            Self::Integer { .. } => DataType::Int64,
            Self::Float => DataType::Float64,
            Self::Date => DataType::Date32,
            Self::Timestamp(unit) => DataType::Timestamp(unit, None),
            Self::Text => DataType::Utf8,
        }
    }
}

/// The type of a column that has these types in two files. Values are checked as they are read.
pub(super) fn common(a: &DataType, b: &DataType) -> DataType {
    use DataType::{Date32, Float64, Int64, Null, Timestamp, Utf8};
    match (a, b) {
        (a, b) if a == b => a.clone(),
        (Null, other) | (other, Null) => other.clone(),
        (Int64, Float64) | (Float64, Int64) => Float64,
        (Date32, Timestamp(unit, None)) | (Timestamp(unit, None), Date32) => Timestamp(*unit, None),
        (Timestamp(a, None), Timestamp(b, None)) => Timestamp(finer(*a, *b), None),
        _ => Utf8,
    }
}

fn finer(a: TimeUnit, b: TimeUnit) -> TimeUnit {
    if per_second(a) > per_second(b) { a } else { b }
}

fn per_second(unit: TimeUnit) -> u32 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// The name of a type in errors about values that do not fit it.
pub(super) fn name(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Boolean => "true or false",
        DataType::Int64 => "a 64-bit integer",
        DataType::Float64 => "a number that fits a double",
        DataType::Date32 => "a date",
        DataType::Timestamp(TimeUnit::Second, _) => "a timestamp in whole seconds",
        DataType::Timestamp(TimeUnit::Millisecond, _) => "a timestamp in milliseconds",
        DataType::Timestamp(TimeUnit::Microsecond, _) => "a timestamp in microseconds",
        DataType::Timestamp(TimeUnit::Nanosecond, _) => "a timestamp in nanoseconds",
        _ => "text",
    }
}

/// Parses texts as values of a type. The error is the row of the first text that does not fit.
pub(super) fn parse(texts: &StringArray, data_type: &DataType) -> Result<ArrayRef, usize> {
    Ok(match data_type {
        DataType::Boolean => {
            let mut values = BooleanBuilder::with_capacity(texts.len());
            for (row, text) in texts.iter().enumerate() {
                values.append_option(text.map(|text| boolean(text).ok_or(row)).transpose()?);
            }
            Arc::new(values.finish())
        }
        DataType::Int64 => primitive::<Int64Type>(texts, integer)?,
        DataType::Float64 => primitive::<Float64Type>(texts, float)?,
        DataType::Date32 => primitive::<Date32Type>(texts, date)?,
        DataType::Timestamp(unit, None) => {
            let parse = |text: &str| timestamp(text, *unit);
            match unit {
                TimeUnit::Second => primitive::<TimestampSecondType>(texts, parse)?,
                TimeUnit::Millisecond => primitive::<TimestampMillisecondType>(texts, parse)?,
                TimeUnit::Microsecond => primitive::<TimestampMicrosecondType>(texts, parse)?,
                TimeUnit::Nanosecond => primitive::<TimestampNanosecondType>(texts, parse)?,
            }
        }
        // Only text is left: no other types are inferred.
        _ => Arc::new(texts.clone()),
    })
}

fn primitive<T: ArrowPrimitiveType>(
    texts: &StringArray,
    parse: impl Fn(&str) -> Option<T::Native>,
) -> Result<ArrayRef, usize> {
    let mut values = PrimitiveBuilder::<T>::with_capacity(texts.len());
    for (row, text) in texts.iter().enumerate() {
        values.append_option(text.map(|text| parse(text).ok_or(row)).transpose()?);
    }
    Ok(Arc::new(values.finish()))
}

fn boolean(text: &str) -> Option<bool> {
    if text.eq_ignore_ascii_case("true") {
        Some(true)
    } else if text.eq_ignore_ascii_case("false") {
        Some(false)
    } else {
        None
    }
}

fn integer(text: &str) -> Option<i64> {
    // A leading plus may mean a telephone number, which is text.
    if text.starts_with('+') { None } else { text.parse().ok() }
}

fn float(text: &str) -> Option<f64> {
    match text {
        "NaN" | "nan" => return Some(f64::NAN),
        "inf" => return Some(f64::INFINITY),
        "-inf" => return Some(f64::NEG_INFINITY),
        _ => {}
    }
    let of_number = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E');
    if text.starts_with('+') || !text.bytes().all(of_number) {
        return None;
    }
    let value: f64 = text.parse().ok().filter(|value: &f64| value.is_finite())?;
    // An integer of up to 15 digits is exact.
    let whole = text.len() > 15 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    if whole && text.parse::<i128>().ok()? != value as i128 {
        return None;
    }
    Some(value)
}

/// Parses YYYY-MM-DD as days since 1970.
fn date(text: &str) -> Option<i32> {
    let bytes = text.as_bytes();
    if bytes.len() != 10 || !is_date(bytes) {
        return None;
    }
    let date =
        NaiveDate::from_ymd_opt(text[..4].parse().ok()?, text[5..7].parse().ok()?, text[8..].parse().ok()?)?;
    i32::try_from(date.signed_duration_since(NaiveDate::default()).num_days()).ok()
}

fn is_date(bytes: &[u8]) -> bool {
    bytes.iter().take(10).enumerate().all(|(place, byte)| match place {
        4 | 7 => *byte == b'-',
        _ => byte.is_ascii_digit(),
    })
}

/// The unit that fits all digits of a timestamp, if the text looks like one.
fn unit_of(text: &str) -> Option<TimeUnit> {
    let bytes = text.as_bytes();
    if bytes.len() < 19 || !is_date(bytes) || !matches!(bytes[10], b'T' | b' ') {
        return None;
    }
    let digits = match bytes.get(19) {
        Some(b'.') => bytes[20..].iter().take_while(|byte| byte.is_ascii_digit()).count(),
        _ => 0,
    };
    match digits {
        0 => Some(TimeUnit::Second),
        1..=3 => Some(TimeUnit::Millisecond),
        4..=6 => Some(TimeUnit::Microsecond),
        7..=9 => Some(TimeUnit::Nanosecond),
        _ => None,
    }
}

fn timestamp(text: &str, unit: TimeUnit) -> Option<i64> {
    let per_second = per_second(unit);
    if text.len() == 10 {
        return i64::from(date(text)?).checked_mul(86_400)?.checked_mul(i64::from(per_second));
    }
    unit_of(text)?;
    let time = string_to_datetime(&Utc, text).ok()?;
    let nanoseconds = time.timestamp_subsec_nanos();
    let unit_nanoseconds = 1_000_000_000 / per_second;
    // A leap second has more than a second's nanoseconds.
    if nanoseconds >= 1_000_000_000 || nanoseconds % unit_nanoseconds != 0 {
        return None;
    }
    let whole = time.timestamp().checked_mul(i64::from(per_second))?;
    whole.checked_add(i64::from(nanoseconds / unit_nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(texts: &[&str]) -> DataType {
        let mut guess = Guess::default();
        texts.iter().for_each(|text| guess.add(text));
        guess.data_type()
    }

    #[test]
    fn a_column_has_a_type_that_holds_all_its_values() {
        use DataType::{Boolean, Date32, Float64, Int64, Null, Timestamp, Utf8};
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        let cases: &[(&[&str], DataType)] = &[
            (&[], Null),
            (&["", ""], Null),
            (&["true", "", "FALSE"], Boolean),
            (&["1", "-9223372036854775808"], Int64),
            (&["1", "9223372036854775808"], Utf8),
            (&["1", "2.5"], Float64),
            (&["9007199254740993", "2.5"], Utf8),
            (&["9007199254740992", "2.5"], Float64),
            (&["2.5", "9007199254740993"], Utf8),
            (&["1e400"], Utf8),
            (&["NaN", "-inf", ".5", "5.", "1e-7"], Float64),
            (&["+49301234"], Utf8),
            (&["1", "true"], Utf8),
            (&["2024-02-29"], Date32),
            (&["2023-02-29"], Utf8),
            (&["2024-02-29", "2024-02-29 12:00:00"], Timestamp(Second, None)),
            (&["2024-02-29T12:00:00", "2024-02-29T12:00:00.5"], Timestamp(Millisecond, None)),
            (&["2024-02-29 12:00:00.123456Z"], Timestamp(Microsecond, None)),
            (&["2024-02-29 12:00:00.123456789"], Timestamp(Nanosecond, None)),
            (&["2324-02-29 12:00:00.123456789"], Utf8),
            (&["2024-02-29 25:00:00"], Utf8),
            (&["infinity"], Utf8),
        ];
        for (texts, expected) in cases {
            assert_eq!(&guess(texts), expected, "{texts:?}");
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused_by_row() {
        let cases = [
            (DataType::Int64, "1.5"),
            (DataType::Int64, "x"),
            (DataType::Boolean, "1"),
            (DataType::Float64, "9007199254740993"),
            (DataType::Date32, "2024-02-29 12:00:00"),
            (DataType::Timestamp(TimeUnit::Second, None), "2024-02-29 12:00:00.5"),
        ];
        for (data_type, text) in cases {
            let texts = StringArray::from(vec![None, Some(text)]);
            assert_eq!(parse(&texts, &data_type).unwrap_err(), 1, "{text} as {data_type}");
        }
    }
}
