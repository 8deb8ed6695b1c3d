//! Numbers in PostgreSQL's text and binary formats.

use arrow_buffer::i256;
use bytes::{BufMut, BytesMut};

/// Appends a float in its shortest text that reads back the same. `exponent_max` is the number of digits from which on
/// it has an exponent: 15 of a `double precision`, 6 of a `real`.
fn put_float(scientific: &str, exponent_max: i32, out: &mut BytesMut) {
    let (sign, scientific) = match scientific.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", scientific),
    };
    out.put_slice(sign.as_bytes());
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (first, rest) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if !(-4..exponent_max).contains(&exponent) {
        out.put_slice(mantissa.as_bytes());
        let sign = if exponent < 0 { '-' } else { '+' };
        out.put_slice(format!("e{sign}{:02}", exponent.unsigned_abs()).as_bytes());
        return;
    }
    if exponent < 0 {
        out.put_slice(b"0.");
        (1..-exponent).for_each(|_| out.put_u8(b'0'));
        out.put_slice(first.as_bytes());
        out.put_slice(rest.as_bytes());
        return;
    }
    let whole = exponent as usize;
    out.put_slice(first.as_bytes());
    if rest.len() <= whole {
        out.put_slice(rest.as_bytes());
        (rest.len()..whole).for_each(|_| out.put_u8(b'0'));
    } else {
        out.put_slice(&rest.as_bytes()[..whole]);
        out.put_u8(b'.');
        out.put_slice(&rest.as_bytes()[whole..]);
    }
}

fn put_special(is_nan: bool, is_negative: bool, out: &mut BytesMut) {
    out.put_slice(if is_nan {
        b"NaN"
    } else if is_negative {
        b"-Infinity"
    } else {
        b"Infinity"
    });
}

/// Appends a `double precision` as text.
pub(crate) fn put_f64(value: f64, out: &mut BytesMut) {
    if value.is_finite() {
        put_float(&format!("{value:e}"), 15, out);
    } else {
        put_special(value.is_nan(), value < 0.0, out);
    }
}

/// Appends a `real` as text.
pub(crate) fn put_f32(value: f32, out: &mut BytesMut) {
    if value.is_finite() {
        put_float(&format!("{value:e}"), 6, out);
    } else {
        put_special(value.is_nan(), value < 0.0, out);
    }
}

/// A decimal number: its digits without a sign, and how many of them are after the point.
pub(crate) struct Decimal<'a> {
    pub(crate) is_negative: bool,
    pub(crate) digits: &'a str,
    pub(crate) scale: i8,
}

/// The most groups of four digits: 77 digits, with up to 128 zeros on either side.
const GROUPS_MAX: usize = 96;

impl Decimal<'_> {
    /// Passes a number on as its digits.
    pub(crate) fn with_i128<T>(value: i128, scale: i8, then: impl FnOnce(Decimal<'_>) -> T) -> T {
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(value.unsigned_abs());
        then(Decimal { is_negative: value < 0, digits, scale })
    }

    /// Passes a number on as its digits.
    pub(crate) fn with_i256<T>(value: i256, scale: i8, then: impl FnOnce(Decimal<'_>) -> T) -> T {
        let text = value.to_string();
        let digits = text.trim_start_matches('-');
        then(Decimal { is_negative: text.starts_with('-'), digits, scale })
    }

    /// Appends it as text, with as many places as its scale says.
    pub(crate) fn put_text(&self, out: &mut BytesMut) {
        if self.is_negative {
            out.put_u8(b'-');
        }
        let digits = self.digits.as_bytes();
        let scale = usize::try_from(self.scale).unwrap_or(0);
        if scale == 0 {
            out.put_slice(digits);
            if self.digits != "0" {
                out.put_bytes(b'0', usize::from(self.scale.unsigned_abs()));
            }
            return;
        }
        let whole = digits.len().saturating_sub(scale);
        if whole == 0 {
            out.put_u8(b'0');
        }
        out.put_slice(&digits[..whole]);
        out.put_u8(b'.');
        out.put_bytes(b'0', scale.saturating_sub(digits.len()));
        out.put_slice(&digits[whole..]);
    }

    /// The digit of a power of ten.
    fn digit(&self, power: i32) -> i16 {
        let from_end = usize::try_from(power + i32::from(self.scale)).ok();
        let index = from_end.and_then(|from_end| self.digits.len().checked_sub(from_end + 1));
        index.map_or(0, |index| i16::from(self.digits.as_bytes()[index] - b'0'))
    }

    /// Appends it in the binary format of `numeric`: groups of four digits.
    pub(crate) fn put_binary(&self, out: &mut BytesMut) {
        let whole = self.digits.len() as i32 - i32::from(self.scale);
        let first_weight = (whole.max(1) + 3) / 4 - 1;
        let last_weight = -((i32::from(self.scale).max(0) + 3) / 4);
        let mut groups = [0i16; GROUPS_MAX];
        let mut count = 0;
        for weight in (last_weight..=first_weight).rev() {
            groups[count] = (0..4).rev().fold(0, |value, power| value * 10 + self.digit(weight * 4 + power));
            count += 1;
        }
        let groups = &groups[..count];
        let first = groups.iter().position(|&group| group != 0);
        let last = groups.iter().rposition(|&group| group != 0);
        let (weight, groups) = match (first, last) {
            (Some(first), Some(last)) => (first_weight as i16 - first as i16, &groups[first..=last]),
            _ => (0, &groups[..0]),
        };
        out.put_i16(groups.len() as i16);
        out.put_i16(weight);
        out.put_i16(if self.is_negative && !groups.is_empty() { 0x4000 } else { 0 });
        out.put_i16(self.scale.max(0).into());
        groups.iter().for_each(|&group| out.put_i16(group));
    }
}

/// The text of a `numeric` in binary format. `None` if it is malformed, or has more than 1000 digits.
pub(crate) fn numeric_text(bytes: &[u8]) -> Option<String> {
    let word = |at: usize| Some(i16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let (count, weight, sign, scale) = (word(0)?, word(2)?, word(4)?, word(6)?);
    match sign as u16 {
        0 | 0x4000 => {}
        0xC000 => return Some("NaN".into()),
        0xD000 => return Some("Infinity".into()),
        0xF000 => return Some("-Infinity".into()),
        _ => return None,
    }
    let (count, scale) = (usize::try_from(count).ok()?, usize::try_from(scale).ok()?);
    if bytes.len() != 8 + count * 2 || count > 250 || scale > 1000 || !(-250..250).contains(&weight) {
        return None;
    }
    let digit = |index: i32| -> Option<i16> {
        match usize::try_from(index) {
            Ok(index) if index < count => word(8 + index * 2).filter(|digit| (0..10_000).contains(digit)),
            _ => Some(0),
        }
    };
    let mut text = String::new();
    let weight = i32::from(weight);
    if weight < 0 {
        text.push('0');
    }
    for index in 0..=weight {
        let digit = digit(index)?;
        text.push_str(&if index == 0 { digit.to_string() } else { format!("{digit:04}") });
    }
    if scale > 0 {
        let mut fraction = String::new();
        for index in 0..scale.div_ceil(4) as i32 {
            fraction.push_str(&format!("{:04}", digit(weight + 1 + index)?));
        }
        fraction.truncate(scale);
        text.push('.');
        text.push_str(&fraction);
    }
    Some(if sign as u16 == 0x4000 { format!("-{text}") } else { text })
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
    fn floats_are_written_as_postgresql_writes_them() {
        let check = |value: f64, expected: &str| assert_eq!(text(|out| put_f64(value, out)), expected);
        check(0.0, "0");
        check(-0.0, "-0");
        check(1.5, "1.5");
        check(100.0, "100");
        check(123_456.75, "123456.75");
        check(1e15, "1e+15");
        check(123_456_789_012_345.0, "123456789012345");
        check(0.0001, "0.0001");
        check(0.00001, "1e-05");
        check(-1.25e-7, "-1.25e-07");
        check(f64::NAN, "NaN");
        check(f64::NEG_INFINITY, "-Infinity");
        assert_eq!(text(|out| put_f32(1e6, out)), "1e+06");
        assert_eq!(text(|out| put_f32(123_456.0, out)), "123456");
    }

    #[test]
    fn decimals_survive_the_binary_format() {
        let check = |value: i128, scale: i8, expected: &str| {
            let (mut binary, mut wide) = (BytesMut::new(), BytesMut::new());
            assert_eq!(
                text(|out| Decimal::with_i128(value, scale, |decimal| decimal.put_text(out))),
                expected
            );
            Decimal::with_i128(value, scale, |decimal| decimal.put_binary(&mut binary));
            Decimal::with_i256(i256::from_i128(value), scale, |decimal| decimal.put_binary(&mut wide));
            assert_eq!(numeric_text(&binary).unwrap(), expected);
            assert_eq!(wide, binary);
        };
        for scale in [i8::MIN, i8::MAX] {
            let mut out = BytesMut::new();
            Decimal::with_i256(i256::MIN, scale, |decimal| decimal.put_binary(&mut out));
            assert!(out.len() > 40);
        }
        check(0, 0, "0");
        check(0, 2, "0.00");
        check(-5, 3, "-0.005");
        check(123_456_789, 2, "1234567.89");
        check(10_000, 0, "10000");
        check(-1, -4, "-10000");
        check(i128::MAX, 10, "17014118346046923173168730371.5884105727");
        check(100_000_000, 8, "1.00000000");
    }

    #[test]
    fn malformed_numerics_are_refused() {
        for bytes in [
            &[][..],
            &[0, 1, 0, 0, 0, 0, 0, 0],
            &[0x7f, 0xff, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0x7f, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(numeric_text(bytes), None);
        }
    }
}
