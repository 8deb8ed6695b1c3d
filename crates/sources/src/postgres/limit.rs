//! What a column's type modifier allows: `numeric(10, 2)`, `varchar(20)`, `timestamp(3)`.
//!
//! The server silently rounds, truncates or pads values to fit. Here a value that would be changed
//! is refused.

use arrow_buffer::i256;

use super::oid::{BPCHAR, INTERVAL, NUMERIC, TIME, TIMESTAMP, TIMESTAMPTZ, VARCHAR};
use crate::unfit::EncodeError;

/// Decimal places of a second that the server keeps.
const SECOND_PLACES: u32 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    None,
    Numeric {
        precision: i32,
        scale: i32,
    },
    /// `varchar(n)`; or, if padded, `char(n)`, where trailing blanks don't count.
    Chars {
        max: usize,
        padded: bool,
    },
    /// Times must be multiples of this.
    Microseconds(i64),
    Interval(Interval),
}

/// `interval day to minute`, `interval(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interval {
    /// Months, days and microseconds must be multiples of these; 0 allows none of them.
    months: i32,
    days: i32,
    us: i64,
}

impl Limit {
    /// The limit of the type with this modifier and OID (for an array, the OID of its elements).
    pub(super) fn of(oid: u32, modifier: i32) -> Self {
        if modifier < 0 {
            return Self::None;
        }
        let length = || usize::try_from(modifier.saturating_sub(4)).unwrap_or(0);
        match oid {
            NUMERIC => match super::types::declared(modifier) {
                Some((precision, scale)) => Self::Numeric { precision, scale },
                None => Self::None,
            },
            VARCHAR => Self::Chars { max: length(), padded: false },
            BPCHAR => Self::Chars { max: length(), padded: true },
            TIME | TIMESTAMP | TIMESTAMPTZ => match unit(modifier) {
                1 => Self::None,
                us => Self::Microseconds(us),
            },
            INTERVAL => Self::Interval(Interval::of(modifier)),
            _ => Self::None,
        }
    }

    pub(super) fn check_text(self, text: &str) -> Result<(), EncodeError> {
        let Self::Chars { max, padded } = self else { return Ok(()) };
        // A text never has more characters than bytes.
        if text.len() <= max {
            return Ok(());
        }
        let counted = if padded { text.trim_end_matches(' ') } else { text };
        match counted.chars().count() {
            count if count > max => {
                let reason = format!("a text of {count} characters where the column takes {max}");
                Err(EncodeError::new(reason, "shorten it in the query, as with left(), or widen the column"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn check_microseconds(self, us: i64) -> Result<(), EncodeError> {
        match self {
            Self::Microseconds(unit) if us % unit != 0 => Err(EncodeError::new(
                "a time with more decimal places of a second than the column keeps",
                "truncate it in the query, as with date_trunc(), or widen the column",
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn check_interval(self, months: i32, days: i32, us: i64) -> Result<(), EncodeError> {
        let Self::Interval(units) = self else { return Ok(()) };
        let is_multiple = |value: i64, unit: i64| value == 0 || unit != 0 && value % unit == 0;
        if is_multiple(months.into(), units.months.into())
            && is_multiple(days.into(), units.days.into())
            && is_multiple(us, units.us)
        {
            return Ok(());
        }
        Err(EncodeError::new(
            "an interval with parts that the column does not keep",
            "truncate it in the query, or widen the column",
        ))
    }

    /// Whether every decimal of this type fits.
    pub(super) fn holds_all(self, precision: u8, scale: i8) -> bool {
        match self {
            Self::Numeric { precision: most, scale: places } => {
                let (precision, scale) = (i32::from(precision), i32::from(scale));
                scale <= places && precision - scale <= most - places
            }
            _ => true,
        }
    }

    /// Checks `value` / 10^`scale`.
    pub(super) fn check_decimal(self, mut value: i256, mut scale: i32) -> Result<(), EncodeError> {
        let Self::Numeric { precision, scale: places } = self else { return Ok(()) };
        let ten = i256::from_i128(10);
        while scale > places {
            if value.wrapping_rem(ten) != i256::ZERO {
                return Err(EncodeError::new(
                    format!("a number with decimal places beyond those of numeric({precision}, {places})"),
                    "round it in the query, as with round(), or widen the column",
                ));
            }
            value = value.wrapping_div(ten);
            scale -= 1;
            if value == i256::ZERO {
                return Ok(());
            }
        }
        // |value| < 10^(precision - places + scale)
        let digits = precision - places + scale;
        let fits = match u32::try_from(digits) {
            Err(_) => value == i256::ZERO,
            Ok(digits) => ten.checked_pow(digits).is_none_or(|limit| value < limit && -limit < value),
        };
        if fits {
            return Ok(());
        }
        let reason = format!("a number too large for numeric({precision}, {places})");
        Err(EncodeError::new(reason, "widen the column"))
    }
}

/// Microseconds of the last decimal place that is kept.
fn unit(places: i32) -> i64 {
    let places = u32::try_from(places).unwrap_or(SECOND_PLACES).min(SECOND_PLACES);
    10i64.pow(SECOND_PLACES - places)
}

impl Interval {
    /// From a modifier: decimal places in the lower half, a mask of fields in the upper half.
    fn of(modifier: i32) -> Self {
        const FULL: i32 = 0x7fff;
        let (fields, places) = (modifier >> 16 & FULL, modifier & 0xffff);
        let has = |bit: i32| fields == FULL || fields & 1 << bit != 0;
        // Bits as in the server's datetime.h.
        let (month, year, day, hour, minute, second) = (1, 2, 3, 10, 11, 12);
        let us = if has(second) {
            unit(places)
        } else if has(minute) {
            60_000_000
        } else if has(hour) {
            3_600_000_000
        } else {
            0
        };
        // The server clears the fields below the last one, and keeps those above the first.
        let days = i32::from(us > 0 || has(day));
        let months = if days > 0 || has(month) { 1 } else { 12 * i32::from(has(year)) };
        Self { months, days, us }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_checked_by_precision_and_scale() {
        let check = |value: i128, scale, (precision, places), fits: bool| {
            let limit = Limit::Numeric { precision, scale: places };
            let found = limit.check_decimal(i256::from_i128(value), scale);
            assert_eq!(found.is_ok(), fits, "{value}e-{scale} in numeric({precision}, {places})");
        };
        check(12345, 2, (5, 2), true);
        check(100_000, 2, (5, 2), false);
        check(99_990, 3, (4, 2), true);
        check(12_345, 3, (5, 2), false);
        check(12_300, 0, (3, -2), true);
        check(12_340, 0, (3, -2), false);
        check(100_000, 0, (3, -2), false);
        check(12, 5, (2, 5), true);
        check(100, 5, (2, 5), false);
        check(-99_999, 2, (5, 2), true);
        check(0, 30, (1, 0), true);
        check(1, -400, (100, 2), false);
    }

    #[test]
    fn intervals_are_checked_by_their_fields() {
        let modifier = |fields: &[i32], places: i32| {
            let mask = fields.iter().fold(0, |mask, bit| mask | 1 << bit);
            if fields.is_empty() { 0x7fff << 16 | places } else { mask << 16 | places }
        };
        let check = |modifier, (months, days, us), fits: bool| {
            let found = Limit::of(INTERVAL, modifier).check_interval(months, days, us);
            assert_eq!(found.is_ok(), fits, "{modifier:x}: {months} {days} {us}");
        };
        check(modifier(&[], 0xffff), (1, 1, 1), true);
        check(modifier(&[], 3), (1, 1, 1000), true);
        check(modifier(&[], 3), (1, 1, 1), false);
        check(modifier(&[2], 0xffff), (12, 0, 0), true);
        check(modifier(&[2], 0xffff), (13, 0, 0), false);
        check(modifier(&[1, 2], 0xffff), (13, 0, 0), true);
        check(modifier(&[1], 0xffff), (13, 1, 0), false);
        check(modifier(&[3], 0xffff), (13, 1, 0), true);
        check(modifier(&[3, 10], 0xffff), (0, 1, 3_600_000_000), true);
        check(modifier(&[3, 10], 0xffff), (0, 1, 60_000_000), false);
    }
}
