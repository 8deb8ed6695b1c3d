//! Values written as text: infers types from texts, and parses texts as values of a type.
//!
//! A text fits a type only if nothing is lost: an integer that a double can't represent is not read
//! as a double.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::{BooleanBuilder, PrimitiveBuilder, StringBuilder};
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use arrow_schema::{DataType, TimeUnit};
use chrono::NaiveDate;

use super::numbers::{self, Numbers, decimal, double, integer};

/// The type of the values seen so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) enum Guess {
    /// No values, or only NULL.
    #[default]
    Nothing,
    Boolean,
    Number(Numbers),
    Date,
    Timestamp {
        unit: TimeUnit,
        /// Whether they have a time zone.
        zoned: bool,
    },
    Text,
}

impl Guess {
    fn of(text: &str) -> Self {
        if let Some(number) = Numbers::of(text) {
            Self::Number(number)
        } else if boolean(text).is_some() {
            Self::Boolean
        } else if date(text).is_some() {
            Self::Date
        } else if let Some(time) = Time::of(text)
            && time.count(time.unit()).is_some()
        {
            Self::Timestamp { unit: time.unit(), zoned: time.offset_seconds.is_some() }
        } else {
            Self::Text
        }
    }

    /// Takes one more value into account.
    pub(super) fn add(&mut self, text: &str) {
        if *self == Self::Text {
            return;
        }
        *self = match (*self, Self::of(text)) {
            (Self::Nothing, new) => new,
            (old, new) if old == new => old,
            (Self::Number(a), Self::Number(b)) => Self::Number(a.and(b)),
            (Self::Date, Self::Timestamp { unit, zoned: false })
            | (Self::Timestamp { unit, zoned: false }, Self::Date) => Self::Timestamp { unit, zoned: false },
            (Self::Timestamp { unit: a, zoned }, Self::Timestamp { unit: b, zoned: other })
                if zoned == other =>
            {
                Self::Timestamp { unit: a.max(b), zoned }
            }
            _ => Self::Text,
        };
    }

    pub(super) fn data_type(self) -> DataType {
        match self {
            Self::Nothing => DataType::Null,
            Self::Boolean => DataType::Boolean,
            Self::Number(numbers) => numbers.data_type(),
            Self::Date => DataType::Date32,
            Self::Timestamp { unit, zoned } => DataType::Timestamp(unit, zoned.then(|| "UTC".into())),
            Self::Text => DataType::Utf8,
        }
    }
}

/// The type of a column that has these types in two files. Values are checked as they are read.
pub(super) fn common(a: &DataType, b: &DataType) -> DataType {
    use DataType::{Date32, Null, Timestamp, Utf8};
    match (a, b) {
        (a, b) if a == b => a.clone(),
        (Null, other) | (other, Null) => other.clone(),
        (Date32, Timestamp(unit, None)) | (Timestamp(unit, None), Date32) => Timestamp(*unit, None),
        (Timestamp(a, zone), Timestamp(b, other)) if zone == other => Timestamp(*a.max(b), zone.clone()),
        (a, b) => numbers::common(a, b).unwrap_or(Utf8),
    }
}

/// What is wrong with a text that does not fit a type.
pub(super) fn misfit(text: &str, data_type: &DataType) -> String {
    let shown: String = text.chars().take(60).collect();
    format!("`{shown}` is not {}", name(data_type))
}

/// The name of a type in errors about values that do not fit it.
fn name(data_type: &DataType) -> String {
    let unit = |unit: &TimeUnit| match unit {
        TimeUnit::Second => "in whole seconds",
        TimeUnit::Millisecond => "in milliseconds",
        TimeUnit::Microsecond => "in microseconds",
        TimeUnit::Nanosecond => "in nanoseconds",
    };
    match data_type {
        DataType::Boolean => "true or false".into(),
        DataType::Int16 => "a 16-bit integer".into(),
        DataType::Int32 => "a 32-bit integer".into(),
        DataType::Int64 => "a 64-bit integer".into(),
        DataType::Float32 => "a number".into(),
        DataType::Float64 => "a number that fits a double".into(),
        DataType::Decimal128(precision, scale) => format!("a number that fits decimal({precision},{scale})"),
        DataType::Date32 => "a date".into(),
        DataType::Timestamp(of, None) => format!("a timestamp without time zone {}", unit(of)),
        DataType::Timestamp(of, Some(_)) => format!("a timestamp with time zone {}", unit(of)),
        _ => "text".into(),
    }
}

/// A column that is built from texts.
pub(super) trait Column: Send {
    /// Appends a value; false if the text does not fit.
    fn push(&mut self, text: &str) -> bool;

    fn push_null(&mut self);

    /// The values, which the column then has no more.
    fn finish(&mut self) -> ArrayRef;
}

/// What is done with a column of a type that is known when the program runs.
trait Use {
    type Output;

    fn of<C: Column + 'static>(self, column: C) -> Self::Output;
}

/// Parses texts as values of a type. The error is the row of the first text that does not fit.
pub(super) fn parse<'a>(
    texts: impl ExactSizeIterator<Item = Option<&'a str>>,
    data_type: &DataType,
) -> Result<ArrayRef, usize> {
    struct Fill<I>(I);

    impl<'a, I: Iterator<Item = Option<&'a str>>> Use for Fill<I> {
        type Output = Result<ArrayRef, usize>;

        fn of<C: Column>(self, mut column: C) -> Self::Output {
            for (row, text) in self.0.enumerate() {
                match text {
                    Some(text) if !column.push(text) => return Err(row),
                    Some(_) => {}
                    None => column.push_null(),
                }
            }
            Ok(column.finish())
        }
    }

    let rows = texts.len();
    with_column(data_type, rows, Fill(texts))
}

/// A column with room for this many values.
pub(super) fn column(data_type: &DataType, rows: usize) -> Box<dyn Column> {
    struct Keep;

    impl Use for Keep {
        type Output = Box<dyn Column>;

        fn of<C: Column + 'static>(self, column: C) -> Self::Output {
            Box::new(column)
        }
    }

    with_column(data_type, rows, Keep)
}

fn with_column<U: Use>(data_type: &DataType, rows: usize, then: U) -> U::Output {
    match data_type {
        DataType::Boolean => then.of(Booleans(BooleanBuilder::with_capacity(rows))),
        DataType::Int16 => {
            then.of(primitive::<Int16Type, _>(rows, data_type, |s| integer(s)?.try_into().ok()))
        }
        DataType::Int32 => {
            then.of(primitive::<Int32Type, _>(rows, data_type, |s| integer(s)?.try_into().ok()))
        }
        DataType::Int64 => then.of(primitive::<Int64Type, _>(rows, data_type, integer)),
        // The type was asked for, which is of less precision than most texts.
        DataType::Float32 => {
            then.of(primitive::<Float32Type, _>(rows, data_type, |s| Some(double(s)? as f32)))
        }
        DataType::Float64 => then.of(primitive::<Float64Type, _>(rows, data_type, double)),
        &DataType::Decimal128(precision, scale) => {
            then.of(primitive::<Decimal128Type, _>(rows, data_type, move |s| decimal(s, precision, scale)))
        }
        DataType::Date32 => then.of(primitive::<Date32Type, _>(rows, data_type, date)),
        DataType::Timestamp(unit, zone) => {
            let (unit, zoned) = (*unit, zone.is_some());
            let parse = move |text: &str| timestamp(text, unit, zoned);
            match unit {
                TimeUnit::Second => then.of(primitive::<TimestampSecondType, _>(rows, data_type, parse)),
                TimeUnit::Millisecond => {
                    then.of(primitive::<TimestampMillisecondType, _>(rows, data_type, parse))
                }
                TimeUnit::Microsecond => {
                    then.of(primitive::<TimestampMicrosecondType, _>(rows, data_type, parse))
                }
                TimeUnit::Nanosecond => {
                    then.of(primitive::<TimestampNanosecondType, _>(rows, data_type, parse))
                }
            }
        }
        // Only text is left: no other types are inferred, and none can be asked for.
        _ => then.of(Texts(StringBuilder::with_capacity(rows, 8 * rows))),
    }
}

struct Booleans(BooleanBuilder);

impl Column for Booleans {
    fn push(&mut self, text: &str) -> bool {
        let value = boolean(text);
        self.0.append_option(value);
        value.is_some()
    }

    fn push_null(&mut self) {
        self.0.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(self.0.finish())
    }
}

struct Primitive<T: ArrowPrimitiveType, F> {
    values: PrimitiveBuilder<T>,
    parse: F,
}

fn primitive<T: ArrowPrimitiveType, F: Fn(&str) -> Option<T::Native>>(
    rows: usize,
    data_type: &DataType,
    parse: F,
) -> Primitive<T, F> {
    let values = PrimitiveBuilder::with_capacity(rows).with_data_type(data_type.clone());
    Primitive { values, parse }
}

impl<T: ArrowPrimitiveType, F: Fn(&str) -> Option<T::Native> + Send> Column for Primitive<T, F> {
    fn push(&mut self, text: &str) -> bool {
        let value = (self.parse)(text);
        self.values.append_option(value);
        value.is_some()
    }

    fn push_null(&mut self) {
        self.values.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(self.values.finish())
    }
}

struct Texts(StringBuilder);

impl Column for Texts {
    fn push(&mut self, text: &str) -> bool {
        self.0.append_value(text);
        true
    }

    fn push_null(&mut self) {
        self.0.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(self.0.finish())
    }
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

/// Parses YYYY-MM-DD as days since 1970.
fn date(text: &str) -> Option<i32> {
    if text.len() == 10 { days(text.as_bytes()) } else { None }
}

fn days(bytes: &[u8]) -> Option<i32> {
    if bytes.get(4) != Some(&b'-') || bytes.get(7) != Some(&b'-') {
        return None;
    }
    let (year, month, day) = (number(&bytes[..4])?, number(&bytes[5..7])?, number(bytes.get(8..10)?)?);
    let date = NaiveDate::from_ymd_opt(year as i32, month, day)?;
    i32::try_from(date.signed_duration_since(NaiveDate::default()).num_days()).ok()
}

/// The number that a few digits write.
fn number(digits: &[u8]) -> Option<u32> {
    digits
        .iter()
        .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + u32::from(digit - b'0')))
}

/// A date and a time of day.
struct Time {
    /// Since 1970, not yet corrected by the offset.
    seconds: i64,
    nanoseconds: u32,
    /// Digits of the fraction of a second.
    digits: usize,
    /// Offset of the time zone from UTC.
    offset_seconds: Option<i64>,
}

impl Time {
    /// Parses `YYYY-MM-DD HH:MM:SS[.FRACTION][Z|±HH[[:]MM]]`, with a blank or `T` before the time.
    fn of(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() < 19
            || !matches!(bytes[10], b'T' | b't' | b' ')
            || bytes[13] != b':'
            || bytes[16] != b':'
        {
            return None;
        }
        let days = i64::from(days(&bytes[..10])?);
        let (hour, minute, second) =
            (number(&bytes[11..13])?, number(&bytes[14..16])?, number(&bytes[17..19])?);
        if hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let mut rest = &bytes[19..];
        let (mut nanoseconds, mut digits) = (0, 0);
        if let [b'.', fraction @ ..] = rest {
            digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if !(1..=9).contains(&digits) {
                return None;
            }
            nanoseconds = number(&fraction[..digits])? * 10_u32.pow(9 - digits as u32);
            rest = &fraction[digits..];
        }
        let seconds = days * 86_400 + i64::from(hour * 3600 + minute * 60 + second);
        Some(Self { seconds, nanoseconds, digits, offset_seconds: offset(rest)? })
    }

    /// The coarsest unit that has all digits.
    fn unit(&self) -> TimeUnit {
        match self.digits {
            0 => TimeUnit::Second,
            1..=3 => TimeUnit::Millisecond,
            4..=6 => TimeUnit::Microsecond,
            _ => TimeUnit::Nanosecond,
        }
    }

    /// The time in units since 1970, in UTC, if it is a whole number of them.
    fn count(&self, unit: TimeUnit) -> Option<i64> {
        let per_second = per_second(unit);
        let unit_nanoseconds = 1_000_000_000 / per_second;
        if !self.nanoseconds.is_multiple_of(unit_nanoseconds) {
            return None;
        }
        let seconds = self.seconds - self.offset_seconds.unwrap_or(0);
        let whole = i128::from(seconds) * i128::from(per_second);
        i64::try_from(whole + i128::from(self.nanoseconds / unit_nanoseconds)).ok()
    }
}

/// The offset of a time zone in seconds, from `Z` or `±HH[[:]MM]`, perhaps after a blank; `Some(None)` if there is none.
fn offset(text: &[u8]) -> Option<Option<i64>> {
    let zone = text.strip_prefix(b" ").unwrap_or(text);
    let (sign, hours, minutes) = match zone {
        [] if text.is_empty() => return Some(None),
        b"Z" | b"z" => return Some(Some(0)),
        [sign, hours @ ..] if hours.len() == 2 => (sign, hours, &b"00"[..]),
        [sign, rest @ ..] if rest.len() == 4 => (sign, &rest[..2], &rest[2..]),
        [sign, rest @ ..] if rest.len() == 5 && rest[2] == b':' => (sign, &rest[..2], &rest[3..]),
        _ => return None,
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let seconds = i64::from(hours * 3600 + minutes * 60);
    match sign {
        b'+' if hours < 24 && minutes < 60 => Some(Some(seconds)),
        b'-' if hours < 24 && minutes < 60 => Some(Some(-seconds)),
        _ => None,
    }
}

fn per_second(unit: TimeUnit) -> u32 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// A timestamp with or without a time zone; a date is midnight of one without.
fn timestamp(text: &str, unit: TimeUnit, zoned: bool) -> Option<i64> {
    if text.len() == 10 && !zoned {
        return i64::from(date(text)?).checked_mul(86_400)?.checked_mul(i64::from(per_second(unit)));
    }
    Time::of(text).filter(|time| time.offset_seconds.is_some() == zoned)?.count(unit)
}

#[cfg(test)]
mod tests {
    use arrow_array::Array as _;
    use arrow_array::cast::AsArray;

    use super::*;

    fn guess(texts: &[&str]) -> DataType {
        let mut guess = Guess::default();
        texts.iter().for_each(|text| guess.add(text));
        guess.data_type()
    }

    #[test]
    fn a_column_has_a_type_that_holds_all_its_values() {
        use DataType::{Boolean, Date32, Decimal128, Float64, Int64, Null, Timestamp, Utf8};
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        let utc = |unit| Timestamp(unit, Some("UTC".into()));
        let cases: &[(&[&str], DataType)] = &[
            (&[], Null),
            (&["true", "FALSE"], Boolean),
            (&["1", "-9223372036854775808", "0", "-0"], Int64),
            (&["1", "9223372036854775808"], Decimal128(38, 0)),
            (&["9007199254740993", "123456789012345678901234567890"], Decimal128(38, 0)),
            (&["1", "100000000000000000000000000000000000000"], Utf8),
            (&["1", "2.5"], Float64),
            (&["9007199254740993", "2.5"], Decimal128(38, 1)),
            (&["9007199254740992", "2.5"], Float64),
            (&["2.5", "9007199254740993"], Decimal128(38, 1)),
            (&["0.1", "12345678901234567.891"], Decimal128(38, 3)),
            (&["1e-7", "12345678901234567.891"], Utf8),
            (&["0.1", "0.30000000000000004"], Float64),
            (&["1e400"], Utf8),
            (&["NaN", "-inf", ".5", "5.", "1e-7", "Infinity"], Float64),
            (&["01234", "5"], Utf8),
            (&["5", "-01"], Utf8),
            (&["00.5"], Utf8),
            (&["0.5", "0"], Float64),
            (&["+49301234"], Utf8),
            (&["1", "true"], Utf8),
            (&["2024-02-29"], Date32),
            (&["2023-02-29"], Utf8),
            (&["2024-02-29", "2024-02-29 12:00:00"], Timestamp(Second, None)),
            (&["2024-02-29T12:00:00", "2024-02-29T12:00:00.5"], Timestamp(Millisecond, None)),
            (&["2024-02-29 12:00:00.123456Z"], utc(Microsecond)),
            (&["2024-02-29 12:00:00+02", "2024-02-29 12:00:00.5-0330"], utc(Millisecond)),
            (&["2024-02-29 12:00:00+02", "2024-02-29 12:00:00"], Utf8),
            (&["2024-02-29 12:00:00+02", "2024-02-29"], Utf8),
            (&["2024-02-29 12:00:00.123456789"], Timestamp(Nanosecond, None)),
            (&["2324-02-29 12:00:00.123456789"], Utf8),
            (&["2024-02-29 25:00:00"], Utf8),
            (&["2024-02-29 12:00:00 Europe/Berlin"], Utf8),
            (&["10:00:00"], Utf8),
            (&["infinity"], Utf8),
            (&["é2024-02-29 12:00:00"], Utf8),
        ];
        for (texts, expected) in cases {
            assert_eq!(&guess(texts), expected, "{texts:?}");
            // All values are read as the type.
            let parsed = parse(texts.iter().map(|text| Some(*text)), expected);
            assert_eq!(parsed.map(|values| values.len()), Ok(texts.len()), "{texts:?}");
        }
    }

    #[test]
    fn timestamps_with_a_zone_are_instants() {
        let utc = DataType::Timestamp(TimeUnit::Second, Some("UTC".into()));
        let texts = ["2024-01-01T10:00:00Z", "2024-01-01 12:00:00+02:00", "2024-01-01 06:30:00 -0330"];
        let values = parse(texts.iter().map(|text| Some(*text)), &utc).unwrap();
        assert_eq!(values.as_primitive::<TimestampSecondType>().values(), &[1_704_103_200; 3]);
        assert_eq!(values.data_type(), &utc);
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused_by_row() {
        let cases = [
            (DataType::Int64, "1.5"),
            (DataType::Int64, "x"),
            (DataType::Int16, "32768"),
            (DataType::Boolean, "1"),
            (DataType::Float64, "9007199254740993"),
            (DataType::Decimal128(5, 2), "1.234"),
            (DataType::Date32, "2024-02-29 12:00:00"),
            (DataType::Timestamp(TimeUnit::Second, None), "2024-02-29 12:00:00.5"),
            (DataType::Timestamp(TimeUnit::Second, None), "2024-02-29 12:00:00Z"),
            (DataType::Timestamp(TimeUnit::Second, Some("UTC".into())), "2024-02-29 12:00:00"),
        ];
        for (data_type, text) in cases {
            assert_eq!(
                parse([None, Some(text)].into_iter(), &data_type).unwrap_err(),
                1,
                "{text} as {data_type}"
            );
        }
    }
}
