//! Prints the values of a column, fast for the most common types.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
};
use arrow_array::{Array, GenericStringArray, OffsetSizeTrait, StringViewArray};
use arrow_buffer::NullBuffer;
use arrow_schema::{ArrowError, DataType, Field, TimeUnit};

use super::readable::Printer;
use crate::tables::text::civil;

const DAY_US: i64 = 86_400_000_000;

/// The values of one column of a batch.
pub(super) struct Texts<'a> {
    values: Values<'a>,
    /// For any type.
    printer: Printer<'a>,
    nulls: Option<NullBuffer>,
}

enum Values<'a> {
    Text(&'a GenericStringArray<i32>),
    LargeText(&'a GenericStringArray<i64>),
    TextViews(&'a StringViewArray),
    Int16(&'a [i16]),
    Int32(&'a [i32]),
    Int64(&'a [i64]),
    /// With a scale that is not negative.
    Decimal(&'a [i128], usize),
    Days(&'a [i32]),
    /// With a `Z` at the end if in UTC.
    Microseconds(&'a [i64], bool),
    Other,
}

/// The outcome of appending a value.
pub(super) enum Value<'a> {
    Null,
    /// It has been appended: a number, a date or a time, which never need quotes.
    Appended,
    /// The caller appends it, in quotes if it needs them.
    Text(&'a str),
}

impl<'a> Texts<'a> {
    pub(super) fn new(field: &Field, column: &'a dyn Array) -> Result<Self, ArrowError> {
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
                let times = column.as_primitive::<TimestampMicrosecondType>().values();
                Values::Microseconds(times, zone.is_some())
            }
            _ => Values::Other,
        };
        Ok(Self { values, printer: Printer::new(field, column)?, nulls: column.logical_nulls() })
    }

    /// Whether the texts of the column are known to have none of these bytes.
    pub(super) fn has_none_of(&self, bytes: &[u8; 4]) -> bool {
        match self.values {
            Values::Text(texts) => none_of(bytes, text_bytes(texts)),
            Values::LargeText(texts) => none_of(bytes, text_bytes(texts)),
            _ => false,
        }
    }

    /// Appends the value of a row to a line, unless it is NULL or a text. `text` is the buffer for a text that
    /// must be formatted.
    ///
    /// # Errors
    /// When the value can't be printed, such as a time beyond the calendar.
    #[inline]
    pub(super) fn append<'t>(
        &'t self,
        row: usize,
        line: &mut Vec<u8>,
        text: &'t mut String,
    ) -> Result<Value<'t>, ArrowError> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return Ok(Value::Null);
        }
        let mut digits = itoa::Buffer::new();
        match self.values {
            Values::Text(texts) => return Ok(Value::Text(texts.value(row))),
            Values::LargeText(texts) => return Ok(Value::Text(texts.value(row))),
            Values::TextViews(texts) => return Ok(Value::Text(texts.value(row))),
            Values::Int16(numbers) => line.extend_from_slice(digits.format(numbers[row]).as_bytes()),
            Values::Int32(numbers) => line.extend_from_slice(digits.format(numbers[row]).as_bytes()),
            Values::Int64(numbers) => line.extend_from_slice(digits.format(numbers[row]).as_bytes()),
            Values::Decimal(numbers, scale) => append_decimal(line, numbers[row], scale),
            Values::Days(days) => match date(days[row].into()) {
                Some(date) => line.extend_from_slice(&date),
                None => return self.other(row, text),
            },
            Values::Microseconds(times, is_utc) => match date(times[row].div_euclid(DAY_US)) {
                Some(date) => {
                    line.extend_from_slice(&date);
                    append_time(line, times[row].rem_euclid(DAY_US));
                    if is_utc {
                        line.push(b'Z');
                    }
                }
                None => return self.other(row, text),
            },
            Values::Other => return self.other(row, text),
        }
        Ok(Value::Appended)
    }

    fn other<'t>(&'t self, row: usize, text: &'t mut String) -> Result<Value<'t>, ArrowError> {
        text.clear();
        self.printer.print(row, text)?;
        Ok(Value::Text(text))
    }
}

/// The bytes of all values of the array.
fn text_bytes<O: OffsetSizeTrait>(texts: &GenericStringArray<O>) -> &[u8] {
    let offsets = texts.value_offsets();
    match (offsets.first(), offsets.last()) {
        (Some(first), Some(last)) => &texts.value_data()[first.as_usize()..last.as_usize()],
        _ => &[],
    }
}

/// Checks each block to its end, so that the compiler can compare many bytes at once.
fn none_of([a, b, c, d]: &[u8; 4], text: &[u8]) -> bool {
    let is_one = |byte: &u8| (byte == a) | (byte == b) | (byte == c) | (byte == d);
    text.chunks(4096).all(|block| !block.iter().fold(false, |found, byte| found | is_one(byte)))
}

/// The two digits of each number below 100.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

const DIGITS_MAX: usize = 19;
const POWERS: [u64; DIGITS_MAX + 1] = {
    let mut powers = [1; DIGITS_MAX + 1];
    let mut at = 1;
    while at <= DIGITS_MAX {
        powers[at] = 10 * powers[at - 1];
        at += 1;
    }
    powers
};

fn append_decimal(line: &mut Vec<u8>, number: i128, scale: usize) {
    match u64::try_from(number.unsigned_abs()) {
        // Most decimals are like this.
        Ok(small) if (1..=DIGITS_MAX).contains(&scale) => {
            append_short_decimal(line, number < 0, small, scale);
        }
        _ => append_long_decimal(line, number, scale),
    }
}

/// Writes the digits from the last to the first, into a buffer of fixed size.
fn append_short_decimal(line: &mut Vec<u8>, is_negative: bool, number: u64, scale: usize) {
    // A sign, 20 digits, the point.
    let mut text = [0_u8; 24];
    let mut at = text.len();
    let (mut whole, mut fraction) = (number / POWERS[scale], number % POWERS[scale]);
    for _ in 0..scale / 2 {
        at -= 2;
        text[at..at + 2].copy_from_slice(&PAIRS[(fraction % 100) as usize]);
        fraction /= 100;
    }
    if scale % 2 == 1 {
        at -= 1;
        text[at] = b'0' + fraction as u8;
    }
    at -= 1;
    text[at] = b'.';
    while whole >= 10 {
        at -= 2;
        text[at..at + 2].copy_from_slice(&PAIRS[(whole % 100) as usize]);
        whole /= 100;
    }
    // An odd number of digits, or none: a zero before the point.
    if whole > 0 || text[at] == b'.' {
        at -= 1;
        text[at] = b'0' + whole as u8;
    }
    if is_negative {
        at -= 1;
        text[at] = b'-';
    }
    line.extend_from_slice(&text[at..]);
}

fn append_long_decimal(line: &mut Vec<u8>, number: i128, scale: usize) {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(number.unsigned_abs()).as_bytes();
    if number < 0 {
        line.push(b'-');
    }
    match digits.len().checked_sub(scale) {
        _ if scale == 0 => line.extend_from_slice(digits),
        Some(whole @ 1..) => {
            line.extend_from_slice(&digits[..whole]);
            line.push(b'.');
            line.extend_from_slice(&digits[whole..]);
        }
        _ => {
            line.extend_from_slice(b"0.");
            line.resize(line.len() + scale - digits.len(), b'0');
            line.extend_from_slice(digits);
        }
    }
}

/// Days from 1970 as a date, if its year is one from 1 to 9999.
fn date(days: i64) -> Option<[u8; 10]> {
    let (year, month, day) = civil(days)?;
    let year = usize::try_from(year).ok().filter(|year| (1..=9999).contains(year))?;
    let ([a, b], [c, d]) = (PAIRS[year / 100], PAIRS[year % 100]);
    let ([e, f], [g, h]) = (PAIRS[usize::from(month)], PAIRS[usize::from(day)]);
    Some([a, b, c, d, b'-', e, f, b'-', g, h])
}

/// Microseconds of a day as `T`, hours, minutes, seconds, and the fraction if there is one.
fn append_time(line: &mut Vec<u8>, us: i64) {
    let (seconds, fraction) = ((us / 1_000_000) as usize, (us % 1_000_000) as usize);
    let ([a, b], [c, d]) = (PAIRS[seconds / 3600], PAIRS[seconds / 60 % 60]);
    let [e, f] = PAIRS[seconds % 60];
    line.extend_from_slice(&[b'T', a, b, b':', c, d, b':', e, f]);
    if fraction == 0 {
        return;
    }
    let ([a, b], [c, d]) = (PAIRS[fraction / 10_000], PAIRS[fraction / 100 % 100]);
    let [e, f] = PAIRS[fraction % 100];
    let digits = [b'.', a, b, c, d, e, f];
    let shown = if fraction.is_multiple_of(1000) { 4 } else { digits.len() };
    line.extend_from_slice(&digits[..shown]);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{
        ArrayRef, Date32Array, Decimal128Array, Int16Array, Int32Array, Int64Array, TimestampMicrosecondArray,
    };
    use proptest::prelude::*;

    use super::*;

    /// Compares with the output of the slow path for the same values, which is the library's, except for years that
    /// don't have four digits.
    fn check(column: &ArrayRef) {
        let field = Field::new("v", column.data_type().clone(), true);
        let (ours, theirs) = (Texts::new(&field, column).unwrap(), Printer::new(&field, column).unwrap());
        let (mut line, mut text) = (Vec::new(), String::new());
        for row in 0..column.len() {
            let mut expected = String::new();
            let expected = theirs.print(row, &mut expected).ok().map(|()| expected);
            line.clear();
            let ours = match ours.append(row, &mut line, &mut text) {
                Ok(Value::Appended) => Some(String::from_utf8_lossy(&line).into_owned()),
                Ok(Value::Text(shown)) => Some(shown.to_owned()),
                Ok(Value::Null) => Some(String::new()),
                Err(_) => None,
            };
            assert_eq!(ours, expected, "row {row} of {column:?}");
        }
    }

    proptest! {
        #[test]
        fn values_are_printed_as_the_library_prints_them(
            numbers in proptest::collection::vec(any::<i64>(), 1..20),
            scale in 0_i8..=38,
            shift in 0_u32..64,
        ) {
            let numbers: Vec<i64> = numbers.iter().map(|number| number >> shift).collect();
            let wide = |n: i64| i128::from(n) * i128::from(n.unsigned_abs()) % 10_i128.pow(38);
            let wide: Vec<i128> = numbers.iter().map(|&n| wide(n)).collect();
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

    proptest! {
        #[test]
        fn special_bytes_are_found_at_any_position(
            plain in "[a-z]{0,9000}", special in prop::option::of("[,;\"\n]"), at in any::<prop::sample::Index>(),
        ) {
            let mut text = plain.clone().into_bytes();
            let at = at.index(plain.len() + 1);
            text.splice(at..at, special.iter().flat_map(|special| special.bytes()));
            prop_assert_eq!(none_of(b",;\"\n", &text), special.is_none());
        }
    }

    #[test]
    fn days_at_the_limits_of_the_fast_path_are_printed_correctly() {
        let days =
            [-719_529, -719_528, -719_527, -1, 0, 59, 11_016, 2_932_896, 2_932_897, i32::MIN, i32::MAX];
        check(&(Arc::new(Date32Array::from(days.to_vec())) as ArrayRef));
        let around = |&day: &i32| [-1, 0, 1, 1000].map(|us| i64::from(day) * DAY_US + us);
        let times: Vec<i64> = days[..9].iter().flat_map(around).chain([i64::MIN, i64::MAX]).collect();
        check(&(Arc::new(TimestampMicrosecondArray::from(times)) as ArrayRef));
    }
}
