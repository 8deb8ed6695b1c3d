//! Dates, times and intervals, in PostgreSQL's text format (`DateStyle` ISO, `IntervalStyle` postgres).

use bytes::{BufMut, BytesMut};

/// Days from 1970 to 2000, where PostgreSQL counts from.
pub(crate) const EPOCH_DAYS: i64 = 10_957;
/// Microseconds of a day.
pub(crate) const DAY_US: i64 = 86_400_000_000;
/// Microseconds from 1970 to 2000.
pub(crate) const EPOCH_US: i64 = EPOCH_DAYS * DAY_US;

/// PostgreSQL's dates, in days from 1970: from 4714 BC to the year 5874897.
pub(crate) const DATES: std::ops::Range<i64> = -2_451_545 + EPOCH_DAYS..2_145_031_949 + EPOCH_DAYS;
/// Its first timestamp, in microseconds from 1970: in 4714 BC. The last one is later than Arrow's.
pub(crate) const FIRST_TIMESTAMP: i64 = -211_813_488_000_000_000 + EPOCH_US;

/// Year, month and day of a count of days from 1970, in the Gregorian calendar without a year 0: the year before 1
/// is 0 here.
fn civil(days: i64) -> (i64, u32, u32) {
    // Howard Hinnant, "chrono-compatible low-level date algorithms".
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month_index + 2) / 5 + 1) as u32;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 } as u32;
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Appends at least `width` digits.
fn put_digits(value: u64, width: usize, out: &mut BytesMut) {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(value);
    (digits.len()..width).for_each(|_| out.put_u8(b'0'));
    out.put_slice(digits.as_bytes());
}

fn put_day(days: i64, out: &mut BytesMut) -> bool {
    let (year, month, day) = civil(days);
    let is_bc = year <= 0;
    put_digits(if is_bc { 1 - year } else { year }.unsigned_abs(), 4, out);
    out.put_u8(b'-');
    put_digits(month.into(), 2, out);
    out.put_u8(b'-');
    put_digits(day.into(), 2, out);
    is_bc
}

/// Appends a date, in days from 1970.
pub(crate) fn put_date(days: i64, out: &mut BytesMut) {
    if put_day(days, out) {
        out.put_slice(b" BC");
    }
}

/// Appends a time of day, in microseconds.
pub(crate) fn put_time(us: u64, out: &mut BytesMut) {
    put_digits(us / 3_600_000_000, 2, out);
    out.put_u8(b':');
    put_digits(us / 60_000_000 % 60, 2, out);
    out.put_u8(b':');
    put_seconds(us % 60_000_000, out);
}

/// Appends seconds, of which the last zeros after the point are left out.
fn put_seconds(us: u64, out: &mut BytesMut) {
    put_digits(us / 1_000_000, 2, out);
    let mut fraction = us % 1_000_000;
    if fraction > 0 {
        let mut width = 6;
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            width -= 1;
        }
        out.put_u8(b'.');
        put_digits(fraction, width, out);
    }
}

/// Appends a timestamp, in microseconds from 1970, with the offset of UTC if it has a time zone.
pub(crate) fn put_timestamp(us: i64, has_zone: bool, out: &mut BytesMut) {
    let is_bc = put_day(us.div_euclid(DAY_US), out);
    out.put_u8(b' ');
    put_time(us.rem_euclid(DAY_US).unsigned_abs(), out);
    if has_zone {
        out.put_slice(b"+00");
    }
    if is_bc {
        out.put_slice(b" BC");
    }
}

/// Appends an interval. Its parts keep their own signs.
pub(crate) fn put_interval(months: i32, days: i32, us: i64, out: &mut BytesMut) {
    let start = out.len();
    let mut is_before = false;
    for (value, unit) in [(months / 12, "year"), (months % 12, "mon"), (days, "day")] {
        if value == 0 {
            continue;
        }
        if out.len() > start {
            out.put_u8(b' ');
        }
        // A part after a negative one shows that it is positive.
        if is_before && value > 0 {
            out.put_u8(b'+');
        }
        is_before = value < 0;
        out.put_slice(itoa::Buffer::new().format(value).as_bytes());
        out.put_u8(b' ');
        out.put_slice(unit.as_bytes());
        if value != 1 {
            out.put_u8(b's');
        }
    }
    if us == 0 && out.len() > start {
        return;
    }
    if out.len() > start {
        out.put_u8(b' ');
    }
    if us < 0 {
        out.put_u8(b'-');
    } else if is_before {
        out.put_u8(b'+');
    }
    put_time(us.unsigned_abs(), out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(put: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        put(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn dates_are_written_as_postgresql_writes_them() {
        let check = |days, expected| assert_eq!(text(|out| put_date(days, out)), expected);
        check(0, "1970-01-01");
        check(EPOCH_DAYS, "2000-01-01");
        check(19_782, "2024-02-29");
        check(-719_163, "0001-12-31 BC");
        check(-719_162, "0001-01-01");
        check(DATES.start, "4714-11-24 BC");
        check(DATES.end - 1, "5874897-12-31");
    }

    #[test]
    fn timestamps_are_written_as_postgresql_writes_them() {
        let check = |us, zone, expected| assert_eq!(text(|out| put_timestamp(us, zone, out)), expected);
        check(0, false, "1970-01-01 00:00:00");
        check(-1, false, "1969-12-31 23:59:59.999999");
        check(1_500_000, true, "1970-01-01 00:00:01.5+00");
        check(FIRST_TIMESTAMP, true, "4714-11-24 00:00:00+00 BC");
        check(i64::MAX, false, "294247-01-10 04:00:54.775807");
    }

    #[test]
    fn intervals_are_written_as_postgresql_writes_them() {
        let check = |months, days, us, expected| {
            assert_eq!(text(|out| put_interval(months, days, us, out)), expected)
        };
        check(0, 0, 0, "00:00:00");
        check(14, 3, 14_706_000_000, "1 year 2 mons 3 days 04:05:06");
        check(-1, 1, 0, "-1 mons +1 day");
        check(0, -1, 3_600_000_000, "-1 days +01:00:00");
        check(0, 1, -1_500_000, "1 day -00:00:01.5");
        check(0, 0, 360_000_000_000_000, "100000:00:00");
    }
}
