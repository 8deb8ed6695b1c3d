//! Values as text that databases read: dates, times and numbers.

use std::fmt::Write;

use super::cells::Cell;
use crate::decimal::Decimal;
use crate::unfit::EncodeError;

/// The years that have four digits.
const YEARS: std::ops::RangeInclusive<i64> = 0..=9999;
const DAY_NS: i128 = 86_400_000_000_000;
const RANGE: &str = "exclude it, or cast it to text in the query";

/// Year, month and day of a count of days from 1970, in the proleptic Gregorian calendar (H. Hinnant,
/// "chrono-compatible low-level date algorithms").
pub(crate) fn civil(days: i64) -> Option<(i64, u8, u8)> {
    let z = days.checked_add(719_468)?;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let mp = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    // Both are below 32.
    Some((year, month as u8, day as u8))
}

/// A count of days as a date with a year of four digits.
pub(crate) fn four_digit_date(days: i64) -> Result<(u16, u8, u8), EncodeError> {
    match civil(days) {
        Some((year, month, day)) if YEARS.contains(&year) => Ok((year as u16, month, day)),
        _ => Err(EncodeError::new("a date outside the years 0 to 9999", RANGE)),
    }
}

/// Days, and nanoseconds of the day.
pub(crate) fn day_and_time(ns: i128) -> Result<(i64, i64), EncodeError> {
    let day = i64::try_from(ns.div_euclid(DAY_NS));
    let day = day.map_err(|_| EncodeError::new("a time outside the years 0 to 9999", RANGE))?;
    // Nanoseconds of a day fit 64 bits.
    Ok((day, ns.rem_euclid(DAY_NS) as i64))
}

/// Appends `HH:MM:SS`, with as many groups of three decimal places as needed.
fn push_time(text: &mut String, ns: i64) {
    let (seconds, part) = (ns / 1_000_000_000, ns % 1_000_000_000);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    // Writing to a string can't fail.
    let _ = write!(text, "{hours:02}:{minutes:02}:{:02}", seconds % 60);
    push_fraction(text, part);
}

fn push_fraction(text: &mut String, ns: i64) {
    let _ = match ns {
        0 => Ok(()),
        _ if ns % 1_000_000 == 0 => write!(text, ".{:03}", ns / 1_000_000),
        _ if ns % 1000 == 0 => write!(text, ".{:06}", ns / 1000),
        _ => write!(text, ".{ns:09}"),
    };
}

/// A decimal with all places of its scale.
pub(crate) fn decimal(decimal: Decimal) -> String {
    let Decimal { value, scale } = decimal;
    let places = usize::try_from(scale).unwrap_or(0);
    let digits = value.wrapping_abs().to_string();
    let sign = if value.is_negative() { "-" } else { "" };
    if places == 0 {
        let zeros = usize::try_from(-scale).unwrap_or(0);
        let zeros = if digits == "0" { 0 } else { zeros };
        return format!("{sign}{digits}{}", "0".repeat(zeros));
    }
    let digits = format!("{digits:0>width$}", width = places + 1);
    let (whole, part) = digits.split_at(digits.len() - places);
    format!("{sign}{whole}.{part}")
}

/// A value as text; `None` for NULL and for bytes. Times with a zone are in UTC, and end in `Z`.
///
/// # Errors
/// For dates and times outside the years 0 to 9999.
pub(crate) fn cell(cell: Cell<'_>) -> Result<Option<String>, EncodeError> {
    Ok(Some(match cell {
        Cell::Null | Cell::Bytes(_) => return Ok(None),
        Cell::Bool(value) => value.to_string(),
        Cell::Whole(value) => value.to_string(),
        Cell::Real(value) => format!("{value:?}"),
        Cell::Double(value) => format!("{value:?}"),
        Cell::Decimal(value) => decimal(value),
        Cell::Date(days) => date(days)?,
        Cell::Time(ns) => {
            if !(0..=DAY_NS as i64).contains(&ns) {
                return Err(EncodeError::new("a time of day of more than 24 hours", RANGE));
            }
            let mut text = String::new();
            push_time(&mut text, ns);
            text
        }
        Cell::Timestamp { ns, has_zone } => {
            let (day, time) = day_and_time(ns)?;
            let mut text = date(day)?;
            text.push(' ');
            push_time(&mut text, time);
            if has_zone {
                text.push('Z');
            }
            text
        }
        Cell::Duration(ns) => {
            let (seconds, part) = (ns.unsigned_abs() / 1_000_000_000, ns.unsigned_abs() % 1_000_000_000);
            let mut text = format!("{}PT{seconds}", if ns < 0 { "-" } else { "" });
            push_fraction(&mut text, part as i64);
            text.push('S');
            text
        }
        Cell::Text(text) => text.to_owned(),
    }))
}

fn date(days: i64) -> Result<String, EncodeError> {
    let (year, month, day) = four_digit_date(days)?;
    Ok(format!("{year:04}-{month:02}-{day:02}"))
}

#[cfg(test)]
mod tests {
    use arrow_buffer::i256;

    use super::*;

    #[test]
    fn values_are_printed() {
        let check = |value: Cell<'_>, expected: &str| {
            assert_eq!(cell(value).unwrap().unwrap(), expected, "{value:?}");
        };
        check(Cell::Date(0), "1970-01-01");
        check(Cell::Date(19_782), "2024-02-29");
        check(Cell::Date(-719_528), "0000-01-01");
        check(Cell::Date(2_932_896), "9999-12-31");
        check(Cell::Time(86_399_999_999_000), "23:59:59.999999");
        check(Cell::Timestamp { ns: -1, has_zone: true }, "1969-12-31 23:59:59.999999999Z");
        check(Cell::Timestamp { ns: 1_500_000_000, has_zone: false }, "1970-01-01 00:00:01.500");
        check(Cell::Duration(-1_500_000_000), "-PT1.500S");
        check(Cell::Double(0.1), "0.1");
        check(Cell::Real(1e30), "1e30");
        let number = |value: i128, scale| Cell::Decimal(Decimal { value: i256::from_i128(value), scale });
        check(number(1250, 2), "12.50");
        check(number(-5, 2), "-0.05");
        check(number(12, -3), "12000");
        check(number(0, -3), "0");
        for days in [-719_529, 2_932_897, i64::MAX] {
            cell(Cell::Date(days)).unwrap_err();
        }
    }

    #[test]
    fn consecutive_days_are_consecutive_dates() {
        let mut before = civil(-1_000_000).unwrap();
        for days in -999_999..1_000_000 {
            let date = civil(days).unwrap();
            let follows = match (before, date) {
                ((y, m, d), (year, month, day)) if y == year && m == month => day == d + 1,
                ((y, m, d), (year, month, 1)) if y == year => d >= 28 && month == m + 1,
                ((y, 12, 31), (year, 1, 1)) => year == y + 1,
                _ => false,
            };
            assert!(follows, "{before:?} {date:?}");
            before = date;
        }
        assert_eq!(civil(0), Some((1970, 1, 1)));
    }
}
