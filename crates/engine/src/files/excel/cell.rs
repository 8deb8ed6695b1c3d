//! Values of cells as texts, from which the types of columns follow as for CSV.

use calamine::{CellErrorType, Data, DataRef, ExcelDateTime};

use crate::files::values::Guess;

/// The first number of a day that is no day any more: 10000-01-01.
const DAYS_END: f64 = 2_958_466.0;

const DAY_MILLISECONDS: f64 = 86_400_000.0;

/// From here on, a double may stand for several integers.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// The value of a cell that is not empty.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Value {
    pub(super) text: String,
    /// Whether it is text in the workbook, whatever it looks like.
    pub(super) is_text: bool,
}

impl Value {
    /// `None` for cells without a value: empty ones, empty texts, and `#N/A`.
    pub(super) fn of(cell: &DataRef<'_>) -> Option<Self> {
        let written = |text: String| Some(Self { text, is_text: false });
        let value = match cell {
            DataRef::Empty | DataRef::Error(CellErrorType::NA) => None,
            DataRef::Int(number) => written(number.to_string()),
            DataRef::Float(number) => written(number_text(*number)),
            DataRef::Bool(is_true) => written(is_true.to_string()),
            DataRef::DateTime(time) => written(time_text(*time)),
            DataRef::DateTimeIso(text) => written(text.clone()),
            DataRef::DurationIso(text) => written(duration_of_iso(text).unwrap_or_else(|| text.clone())),
            DataRef::Error(error) => Some(Self { text: error.to_string(), is_text: true }),
            DataRef::String(text) => Some(Self { text: text.clone(), is_text: true }),
            DataRef::SharedString(text) => Some(Self { text: (*text).to_owned(), is_text: true }),
        };
        value.filter(|value| !value.text.is_empty())
    }

    /// As [`Value::of`], of a cell that is not borrowed from its workbook.
    pub(super) fn of_owned(cell: &Data) -> Option<Self> {
        Self::of(&match cell {
            Data::Int(number) => DataRef::Int(*number),
            Data::Float(number) => DataRef::Float(*number),
            Data::String(text) => DataRef::SharedString(text),
            Data::Bool(is_true) => DataRef::Bool(*is_true),
            Data::DateTime(time) => DataRef::DateTime(*time),
            Data::DateTimeIso(text) => DataRef::DateTimeIso(text.clone()),
            Data::DurationIso(text) => DataRef::DurationIso(text.clone()),
            Data::Error(error) => DataRef::Error(error.clone()),
            Data::Empty => DataRef::Empty,
        })
    }

    /// Takes it into account for the type of its column.
    pub(super) fn guess(&self, guess: &mut Guess) {
        if self.is_text {
            *guess = Guess::Text;
        } else {
            guess.add(&self.text);
        }
    }
}

fn number_text(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < EXACT_MAX {
        (number as i64).to_string()
    } else {
        format!("{number:?}")
    }
}

/// A date, a timestamp, a time of day or a duration; a number if it is no day of the calendar.
fn time_text(time: ExcelDateTime) -> String {
    let days = time.as_f64();
    if time.is_duration() {
        return clock(days * DAY_MILLISECONDS, 1);
    }
    if !(0.0..DAYS_END).contains(&days) {
        return number_text(days);
    }
    if days < 1.0 {
        // The last moment of a day is not rounded to the next.
        return clock((days * DAY_MILLISECONDS).min(DAY_MILLISECONDS - 1.0), 2);
    }
    let (year, month, day, hour, minute, second, millisecond) = time.to_ymd_hms_milli();
    let date = format!("{year:04}-{month:02}-{day:02}");
    match (hour, minute, second, millisecond) {
        (0, 0, 0, 0) => date,
        (_, _, _, 0) => format!("{date} {hour:02}:{minute:02}:{second:02}"),
        _ => format!("{date} {hour:02}:{minute:02}:{second:02}.{millisecond:03}"),
    }
}

/// Hours of at least so many digits, minutes and seconds, with a fraction if there is one.
fn clock(milliseconds: f64, hour_digits: usize) -> String {
    let milliseconds = milliseconds.round();
    let (sign, milliseconds) = if milliseconds < 0.0 { ("-", -milliseconds) } else { ("", milliseconds) };
    let milliseconds = milliseconds as u64;
    let seconds = milliseconds / 1000;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match milliseconds % 1000 {
        0 => format!("{sign}{hour:0hour_digits$}:{minute:02}:{second:02}"),
        fraction => format!("{sign}{hour:0hour_digits$}:{minute:02}:{second:02}.{fraction:03}"),
    }
}

/// The text of `PT12H30M05S`, as OpenDocument writes times of day, as Excel's would be.
fn duration_of_iso(text: &str) -> Option<String> {
    let (hour, rest) = text.strip_prefix("PT")?.split_once('H')?;
    let (minute, rest) = rest.split_once('M')?;
    let second = rest.strip_suffix('S')?;
    let is_number =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let fits = [hour, minute, second].into_iter().all(is_number);
    fits.then(|| format!("{hour:0>2}:{minute:0>2}:{second:0>2}"))
}

#[cfg(test)]
mod tests {
    use calamine::ExcelDateTimeType::{DateTime, TimeDelta};

    use super::*;

    #[test]
    fn cells_have_texts() {
        let time = |days, of| DataRef::DateTime(ExcelDateTime::new(days, of, false));
        let cases = [
            (DataRef::Float(12.0), Some("12")),
            (DataRef::Float(-0.5), Some("-0.5")),
            (DataRef::Float(1e300), Some("1e300")),
            (DataRef::Bool(true), Some("true")),
            (DataRef::SharedString("01"), Some("01")),
            (DataRef::SharedString(""), None),
            (DataRef::Empty, None),
            (DataRef::Error(CellErrorType::NA), None),
            (DataRef::Error(CellErrorType::Div0), Some("#DIV/0!")),
            (time(45_943.0, DateTime), Some("2025-10-13")),
            (time(45_943.5, DateTime), Some("2025-10-13 12:00:00")),
            (time(45_943.541, DateTime), Some("2025-10-13 12:59:02.400")),
            (time(0.25, DateTime), Some("06:00:00")),
            (time(0.75, DateTime), Some("18:00:00")),
            (time(0.999_999_999_99, DateTime), Some("23:59:59.999")),
            (time(3e6, DateTime), Some("3000000")),
            (time(1.5, TimeDelta), Some("36:00:00")),
            (time(0.05, TimeDelta), Some("1:12:00")),
            (time(-0.5, TimeDelta), Some("-12:00:00")),
            (DataRef::DateTimeIso("2024-02-29T10:00:00".into()), Some("2024-02-29T10:00:00")),
            (DataRef::DurationIso("PT9H05M00S".into()), Some("09:05:00")),
            (DataRef::DurationIso("P1D".into()), Some("P1D")),
        ];
        for (cell, expected) in cases {
            let found = Value::of(&cell);
            assert_eq!(found.as_ref().map(|value| value.text.as_str()), expected, "{cell:?}");
        }
    }
}
