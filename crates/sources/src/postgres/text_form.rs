//! Texts that need not be parsed by the server: dates and times as ISO 8601 writes them, UUIDs (RFC 9562), booleans,
//! whole numbers and decimals.
//!
//! Only forms that mean the same in every version and setting of the server are parsed here. For all others, it is
//! asked.

use std::sync::Arc;

use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Int64Type, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, BooleanArray, PrimitiveArray, StringArray};
use arrow_schema::DataType;
use chrono::{Datelike, NaiveDate};

use super::limit::Limit;
use super::types::PgType;
use crate::tables::cells::strict;

/// Days from 1 January of the year 1 (which is day 1) to 1970.
const DAYS_TO_1970: i32 = 719_163;
const SECOND_US: i64 = 1_000_000;
/// Digits of the largest whole numbers and decimals that always fit in 64 and 128 bits.
const INT_DIGITS: usize = 18;
const DECIMAL_DIGITS: usize = 38;

/// The form of the texts that become values of one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextForm {
    Bool,
    Int,
    Decimal {
        digits: usize,
        scale: i8,
    },
    Date,
    /// `unit_us`: times are multiples of this.
    Timestamp {
        has_zone: bool,
        unit_us: i64,
    },
    Uuid,
}

impl TextForm {
    /// The form for a column of this type, if it has one.
    pub(super) fn of(kind: &PgType, limit: Limit) -> Option<Self> {
        let unit_us = match limit {
            Limit::Microseconds(unit) => unit,
            _ => 1,
        };
        Some(match (kind, limit) {
            (PgType::Bool, _) => Self::Bool,
            (PgType::Int16 | PgType::Int32 | PgType::Int64, _) => Self::Int,
            // Without a scale, the zeros at the end of a text are part of the value.
            (_, Limit::Numeric { precision, scale }) => {
                let digits = usize::try_from(precision).ok().filter(|digits| *digits <= DECIMAL_DIGITS)?;
                let scale = i8::try_from(scale).ok().filter(|s| (0..=precision).contains(&(*s).into()))?;
                Self::Decimal { digits, scale }
            }
            (PgType::Date, _) => Self::Date,
            (PgType::Timestamp, _) => Self::Timestamp { has_zone: false, unit_us },
            (PgType::TimestampTz, _) => Self::Timestamp { has_zone: true, unit_us },
            (PgType::Uuid, _) => Self::Uuid,
            _ => return None,
        })
    }

    /// The values of `texts`; `None` if any has another form, or might not be kept in full.
    pub(super) fn parse(self, texts: &ArrayRef) -> Option<ArrayRef> {
        let texts = strict(texts, &DataType::Utf8).ok()?;
        let texts: &StringArray = texts.as_string();
        Some(match self {
            Self::Bool => {
                let parse = |text: &[u8]| match text {
                    b"true" => Some(true),
                    b"false" => Some(false),
                    _ => None,
                };
                let values: Option<Vec<_>> = texts.iter().map(|text| optional(text, parse)).collect();
                Arc::new(BooleanArray::from(values?))
            }
            Self::Int => Arc::new(primitives::<Int64Type>(texts, int)?),
            Self::Decimal { digits, scale } => {
                let parse = |text: &[u8]| decimal(text, digits, scale.unsigned_abs().into());
                let values = primitives::<Decimal128Type>(texts, parse)?;
                Arc::new(values.with_precision_and_scale(digits as u8, scale).ok()?)
            }
            Self::Date => Arc::new(primitives::<Date32Type>(texts, date)?),
            Self::Timestamp { has_zone, unit_us } => {
                let parse = |text: &[u8]| timestamp(text, has_zone).filter(|us| us % unit_us == 0);
                Arc::new(primitives::<TimestampMicrosecondType>(texts, parse)?)
            }
            Self::Uuid => {
                let mut values = FixedSizeBinaryBuilder::with_capacity(texts.len(), 16);
                for text in texts {
                    match text {
                        Some(text) => values.append_value(uuid(text.as_bytes())?).ok()?,
                        None => values.append_null(),
                    }
                }
                Arc::new(values.finish())
            }
        })
    }
}

/// NULL for NULL; `None` if the text can't be parsed.
fn optional<T>(text: Option<&str>, parse: impl Fn(&[u8]) -> Option<T>) -> Option<Option<T>> {
    match text {
        Some(text) => parse(text.as_bytes()).map(Some),
        None => Some(None),
    }
}

fn primitives<T: ArrowPrimitiveType>(
    texts: &StringArray,
    parse: impl Fn(&[u8]) -> Option<T::Native>,
) -> Option<PrimitiveArray<T>> {
    let mut values = Vec::with_capacity(texts.len());
    for text in texts {
        values.push(optional(text, &parse)?.unwrap_or_default());
    }
    Some(PrimitiveArray::new(values.into(), texts.nulls().cloned()))
}

/// Digits alone, at most 38.
fn digits(text: &[u8]) -> Option<i128> {
    if text.is_empty() || text.len() > DECIMAL_DIGITS {
        return None;
    }
    text.iter().try_fold(0, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then(|| value * 10 + i128::from(digit))
    })
}

/// A number of as many digits as `text` has bytes, below `end`.
fn part(text: &[u8], end: i64) -> Option<i64> {
    digits(text)?.try_into().ok().filter(|value| *value < end)
}

/// The sign, and what follows it.
fn signed(text: &[u8]) -> (bool, &[u8]) {
    text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest))
}

fn int(text: &[u8]) -> Option<i64> {
    let (is_negative, text) = signed(text);
    let value = digits(text).filter(|_| text.len() <= INT_DIGITS)? as i64;
    Some(if is_negative { -value } else { value })
}

/// `-12.5`, in units of the last of `scale` decimal places.
fn decimal(text: &[u8], digits_max: usize, scale: usize) -> Option<i128> {
    let (is_negative, text) = signed(text);
    let at = memchr::memchr(b'.', text).unwrap_or(text.len());
    let (whole, places) = (&text[..at], text.get(at + 1..).unwrap_or_default());
    if places.len() > scale || whole.len() > digits_max - scale || at + 1 == text.len() {
        return None;
    }
    let places_value = if places.is_empty() { 0 } else { digits(places)? };
    let missing = 10_i128.pow((scale - places.len()) as u32);
    let value = digits(whole)? * 10_i128.pow(scale as u32) + places_value * missing;
    Some(if is_negative { -value } else { value })
}

/// `2024-02-29`, in days from 1970.
fn date(text: &[u8]) -> Option<i32> {
    let [year @ .., b'-', m1, m2, b'-', d1, d2] = text else { return None };
    if year.len() != 4 {
        return None;
    }
    // Other years are written with BC or with more digits.
    let year = part(year, 10_000).filter(|year| *year > 0)?;
    let date =
        NaiveDate::from_ymd_opt(year as i32, part(&[*m1, *m2], 13)? as u32, part(&[*d1, *d2], 32)? as u32)?;
    Some(date.num_days_from_ce() - DAYS_TO_1970)
}

/// `2024-02-29 10:20:30.5`, also with a `T`, and if it may have a zone, with `Z` or `+02:00` after it; in
/// microseconds from 1970.
fn timestamp(text: &[u8], has_zone: bool) -> Option<i64> {
    let (day, rest) = text.split_at_checked(10)?;
    let [b' ' | b'T', h1, h2, b':', m1, m2, b':', s1, s2, rest @ ..] = rest else { return None };
    let minutes = part(&[*h1, *h2], 24)? * 60 + part(&[*m1, *m2], 60)?;
    let seconds = i64::from(date(day)?) * 86_400 + minutes * 60 + part(&[*s1, *s2], 60)?;
    let (fraction_us, zone) = match rest.strip_prefix(b".") {
        Some(rest) => {
            let length = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
            let (places, zone) = rest.split_at(length);
            let missing = 6_usize.checked_sub(length)?;
            (part(places, SECOND_US)? * 10_i64.pow(missing as u32), zone)
        }
        None => (0, rest),
    };
    let offset_seconds = match zone {
        [] => 0,
        _ if !has_zone => return None,
        b"Z" => 0,
        [sign @ (b'+' | b'-'), h1, h2, minutes @ ..] => {
            let minutes = match minutes {
                [] => 0,
                [b':', m1, m2] => part(&[*m1, *m2], 60)?,
                _ => return None,
            };
            // The server's limit is below 16 hours.
            let seconds = (part(&[*h1, *h2], 15)? * 60 + minutes) * 60;
            if *sign == b'-' { -seconds } else { seconds }
        }
        _ => return None,
    };
    Some((seconds - offset_seconds) * SECOND_US + fraction_us)
}

/// `00112233-4455-6677-8899-aabbccddeeff`
fn uuid(text: &[u8]) -> Option<[u8; 16]> {
    if text.len() != 36 || [8, 13, 18, 23].iter().any(|at| text[*at] != b'-') {
        return None;
    }
    let mut nibbles = text.iter().filter(|byte| **byte != b'-').map(|byte| char::from(*byte).to_digit(16));
    let mut value = [0; 16];
    for byte in &mut value {
        *byte = (nibbles.next()?? * 16 + nibbles.next()??) as u8;
    }
    nibbles.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `form` makes of `text`, as Arrow prints it; `None` if the server has to parse it.
    fn parsed(form: TextForm, text: &str) -> Option<String> {
        let array: ArrayRef = Arc::new(StringArray::from(vec![None, Some(text)]));
        let values = form.parse(&array)?;
        assert!(values.is_null(0) && values.is_valid(1), "{text}");
        Some(arrow_cast::display::array_value_to_string(&values, 1).unwrap())
    }

    #[test]
    fn texts_of_the_usual_forms_are_parsed_here() {
        let stamp = TextForm::Timestamp { has_zone: false, unit_us: 1 };
        let zoned = TextForm::Timestamp { has_zone: true, unit_us: 1 };
        let price = TextForm::Decimal { digits: 6, scale: 2 };
        for (form, text, expected) in [
            (TextForm::Bool, "true", "true"),
            (TextForm::Bool, "false", "false"),
            (TextForm::Int, "-42", "-42"),
            (TextForm::Int, "007", "7"),
            (price, "1234.5", "1234.50"),
            (price, "-0.05", "-0.05"),
            (price, "12", "12.00"),
            (TextForm::Date, "1970-01-01", "1970-01-01"),
            (TextForm::Date, "0001-01-01", "0001-01-01"),
            (TextForm::Date, "2024-02-29", "2024-02-29"),
            (stamp, "2024-02-29 23:59:59", "2024-02-29T23:59:59"),
            (stamp, "1969-12-31T23:59:59.999999", "1969-12-31T23:59:59.999999"),
            (zoned, "2024-01-01T00:00:00.5Z", "2024-01-01T00:00:00.500"),
            (zoned, "2024-01-01 00:00:00+02", "2023-12-31T22:00:00"),
            (zoned, "2024-01-01 00:00:00-05:30", "2024-01-01T05:30:00"),
            (TextForm::Uuid, "00112233-4455-6677-8899-AABBccddeeff", "00112233445566778899aabbccddeeff"),
        ] {
            assert_eq!(parsed(form, text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_are_left_to_the_server() {
        let stamp = TextForm::Timestamp { has_zone: false, unit_us: 1 };
        let zoned = TextForm::Timestamp { has_zone: true, unit_us: 1 };
        let seconds = TextForm::Timestamp { has_zone: false, unit_us: SECOND_US };
        let price = TextForm::Decimal { digits: 6, scale: 2 };
        for (form, texts) in [
            (TextForm::Bool, &["t", "TRUE", "1", ""][..]),
            (TextForm::Int, &["", "-", "+1", " 1", "1.0", "1_000", "0x1f", "1234567890123456789"]),
            (price, &["", ".", ".5", "1.", "1.234", "12345", "1e2", "--1", "1.2.3", "NaN", "+1"]),
            (
                TextForm::Date,
                &[
                    "",
                    "2023-02-29",
                    "2024-2-1",
                    "20240201",
                    "0000-01-01",
                    "12024-01-01",
                    "2024-01-01 BC",
                    "today",
                ],
            ),
            (TextForm::Date, &["2024-01-01 10:00:00", "01-02-2024", "-024-01-01", "２024-01-1"]),
            (
                stamp,
                &[
                    "2024-01-01",
                    "2024-01-01 10:00",
                    "2024-01-01 24:00:00",
                    "2024-01-01 10:00:60",
                    "2024-01-01 10:00:00.",
                    "2024-01-01 10:00:00.1234567",
                    "2024-01-01 10:00:00Z",
                    "2024-01-01 10:00:00+02",
                    "2024-01-01t10:00:00",
                    "2024-01-01 10:00:00 ",
                ],
            ),
            (
                zoned,
                &["2024-01-01 10:00:00 UTC", "2024-01-01 10:00:00+2", "2024-01-01 10:00:00+15", "infinity"],
            ),
            (seconds, &["2024-01-01 10:00:00.5"]),
            (
                TextForm::Uuid,
                &[
                    "00112233445566778899aabbccddeeff",
                    "{00112233-4455-6677-8899-aabbccddeeff}",
                    "00112233-4455-6677-8899-aabbccddeefg",
                    "0011223-34455-6677-8899-aabbccddeeff",
                    "00112233-4455-6677-8899-aabbccdd-eff",
                ],
            ),
        ] {
            for text in texts {
                assert_eq!(parsed(form, text), None, "{form:?}: {text:?}");
            }
        }
    }
}
