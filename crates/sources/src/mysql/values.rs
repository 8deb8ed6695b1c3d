//! Converts values of the binary protocol to Arrow's integers.

use arrow_buffer::i256;

const DAY_US: i64 = 86_400_000_000;

/// `BIT(n)`: big-endian, at most eight bytes.
pub(super) fn bits(bytes: &[u8]) -> Option<u64> {
    let mut wide = [0; 8];
    wide.get_mut(8_usize.checked_sub(bytes.len())?..)?.copy_from_slice(bytes);
    Some(u64::from_be_bytes(wide))
}

/// The unscaled value of a decimal of at most 38 digits.
pub(super) fn decimal128(text: &[u8], precision: u8, scale: u8) -> Result<i128, String> {
    let mut unscaled: i128 = 0;
    let negative = digits(text, precision, scale, |digit| unscaled = unscaled * 10 + i128::from(digit))?;
    Ok(if negative { -unscaled } else { unscaled })
}

/// The unscaled value of a decimal of at most 76 digits.
pub(super) fn decimal256(text: &[u8], precision: u8, scale: u8) -> Result<i256, String> {
    let ten = i256::from_i128(10);
    let mut unscaled = i256::ZERO;
    let negative = digits(text, precision, scale, |digit| {
        unscaled = unscaled.wrapping_mul(ten).wrapping_add(i256::from_i128(i128::from(digit)));
    })?;
    Ok(if negative { unscaled.wrapping_neg() } else { unscaled })
}

/// Passes the digits of `[-]digits[.digits]` to `each`, without leading zeros and
/// with exactly `scale` decimal places. Returns whether the number is negative.
///
/// At most `precision` digits are passed, so that the caller's sum can't overflow.
fn digits(text: &[u8], precision: u8, scale: u8, mut each: impl FnMut(u8)) -> Result<bool, String> {
    let unfit = || {
        let text = String::from_utf8_lossy(text);
        format!(
            "`{text}` does not fit decimal({precision}, {scale}); use CAST(... AS CHAR) to read it as text"
        )
    };
    let (negative, unsigned) = match text {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let point = unsigned.iter().position(|&b| b == b'.').unwrap_or(unsigned.len());
    let (whole, fraction) = unsigned.split_at(point);
    let fraction = fraction.strip_prefix(b".").unwrap_or(fraction);
    if whole.is_empty() && fraction.is_empty() {
        return Err(unfit());
    }
    let scale = usize::from(scale);
    let (kept, lost) = fraction.split_at(fraction.len().min(scale));
    if lost.iter().any(|&b| b != b'0') {
        return Err(unfit());
    }
    let padding = std::iter::repeat_n(b'0', scale - kept.len());
    let mut handed = 0;
    for byte in whole.iter().copied().chain(kept.iter().copied()).chain(padding) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(unfit());
        }
        if handed > 0 || digit > 0 {
            handed += 1;
            if handed > precision {
                return Err(unfit());
            }
            each(digit);
        }
    }
    Ok(negative)
}

/// Days since 1970-01-01 in the Gregorian calendar.
///
/// The server accepts invalid dates (`0000-00-00`, `2020-00-15`). Arrow can't hold
/// them, and NULL would lose them silently, so they are errors.
pub(super) fn days(year: u16, month: u8, day: u8) -> Result<i32, String> {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let last = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => 0,
    };
    if day == 0 || day > last {
        return Err(format!(
            "`{year:04}-{month:02}-{day:02}` is not a date; use CAST(... AS CHAR) to read it as text, \
             or NULLIF(..., 0) to read a zero date as NULL"
        ));
    }
    // In years that begin in March, the leap day is the last day.
    let (year, month, day) = (i32::from(year), i32::from(month), i32::from(day));
    let shifted_year = if month > 2 { year } else { year - 1 };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let era = shifted_year.div_euclid(400);
    let year_of_era = shifted_year.rem_euclid(400);
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Ok(era * 146_097 + day_of_era - 719_468)
}

/// Year, month and day of a number of days since 1970-01-01: the inverse of [`days`].
pub(super) fn date_of_days(days: i64) -> (i64, u8, u8) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month as u8, day as u8)
}

/// Microseconds since 1970-01-01 00:00:00.
pub(super) fn timestamp_us(date: (u16, u8, u8), time: (u8, u8, u8), us: u32) -> Result<i64, String> {
    Ok(i64::from(days(date.0, date.1, date.2)?) * DAY_US + time_us(time, us))
}

/// A span of time in microseconds. `TIME` goes from -838:59:59 to 838:59:59.
pub(super) fn duration_us(negative: bool, days: u32, time: (u8, u8, u8), us: u32) -> i64 {
    let span = i64::from(days) * DAY_US + time_us(time, us);
    if negative { -span } else { span }
}

fn time_us((hours, minutes, seconds): (u8, u8, u8), us: u32) -> i64 {
    ((i64::from(hours) * 60 + i64::from(minutes)) * 60 + i64::from(seconds)) * 1_000_000 + i64::from(us)
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Decimal128Type;
    use arrow_array::types::DecimalType;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dates_are_days_and_days_are_dates() {
        for number in (-719_528..2_932_896).step_by(97) {
            let (year, month, day) = date_of_days(number);
            assert_eq!(days(year as u16, month, day), Ok(number as i32), "{year}-{month}-{day}");
        }
    }

    #[test]
    fn bits_of_every_width() {
        assert_eq!(bits(&[]), Some(0));
        assert_eq!(bits(&[1]), Some(1));
        assert_eq!(bits(&[1, 2]), Some(258));
        assert_eq!(bits(&[255; 8]), Some(u64::MAX));
        assert_eq!(bits(&[0; 9]), None);
    }

    #[test]
    fn decimals() {
        let check = |text: &str, precision, scale, expected: Option<i128>| {
            assert_eq!(decimal128(text.as_bytes(), precision, scale).ok(), expected, "{text}");
            let wide = decimal256(text.as_bytes(), precision, scale).ok();
            assert_eq!(wide, expected.map(i256::from_i128), "{text}");
        };
        check("0", 1, 0, Some(0));
        check("-0.00", 3, 2, Some(0));
        check("1.5", 5, 2, Some(150));
        check("-.5", 5, 2, Some(-50));
        check("12345.67", 7, 2, Some(1_234_567));
        check("12345.67", 6, 2, None);
        check("1.500", 5, 1, Some(15));
        check("1.55", 5, 1, None);
        check("000123", 3, 0, Some(123));
        for text in ["", "-", ".", "1e5", "1.2.3", "--1", "+1", "\u{661}"] {
            check(text, 10, 2, None);
        }
        let nines = "9".repeat(76);
        assert_eq!(decimal256(nines.as_bytes(), 76, 0).ok(), i256::from_string(&nines));
    }

    #[test]
    fn invalid_dates_are_refused() {
        for (y, m, d) in [(0, 0, 0), (2020, 0, 15), (2020, 1, 0), (2021, 2, 29), (1900, 2, 29), (2020, 13, 1)]
        {
            assert!(days(y, m, d).is_err(), "{y}-{m}-{d}");
        }
        for (y, m, d) in [(0, 1, 1), (2020, 2, 29), (2000, 2, 29), (9999, 12, 31)] {
            assert!(days(y, m, d).is_ok(), "{y}-{m}-{d}");
        }
    }

    #[test]
    fn consecutive_dates_are_consecutive_days() {
        let mut expected = days(0, 1, 1).unwrap();
        for year in 0..=9999 {
            for month in 1..=12 {
                for day in 1..=31 {
                    if let Ok(days) = days(year, month, day) {
                        assert_eq!(days, expected, "{year}-{month}-{day}");
                        expected += 1;
                    }
                }
            }
        }
        assert_eq!(days(1970, 1, 1), Ok(0));
        assert_eq!(days(2000, 3, 1), Ok(11017));
    }

    #[test]
    fn durations_and_timestamps_are_in_microseconds() {
        assert_eq!(duration_us(false, 34, (22, 59, 59), 0), (838 * 3600 + 59 * 60 + 59) * 1_000_000);
        assert_eq!(duration_us(true, 0, (0, 0, 1), 5), -1_000_005);
        assert_eq!(timestamp_us((1969, 12, 31), (23, 59, 59), 999_999), Ok(-1));
    }

    proptest! {
        #[test]
        fn decimals_read_back(unscaled in any::<i128>(), scale in 0_u8..=30) {
            let unscaled = unscaled % 10_i128.pow(37);
            let text = Decimal128Type::format_decimal(unscaled, 38, scale.cast_signed());
            prop_assert_eq!(decimal128(text.as_bytes(), 38, scale), Ok(unscaled));
            prop_assert_eq!(decimal256(text.as_bytes(), 65, scale), Ok(i256::from_i128(unscaled)));
        }

        #[test]
        fn no_text_panics(text in proptest::collection::vec(any::<u8>(), 0..100), precision in 1_u8..=38, scale in 0_u8..=38) {
            let _ = decimal128(&text, precision, scale.min(precision));
            let _ = decimal256(&text, precision, scale.min(precision));
        }
    }
}
