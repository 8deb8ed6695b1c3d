//! Converts between `numeric` on the wire (digits in base 10 000) and decimals in
//! Arrow (one integer and a scale).
//!
//! On the wire: `u16` digits, `i16` weight (the exponent, in base 10 000, of the
//! first digit), `u16` sign, `u16` decimal places shown, then the digits.

use std::fmt::Write;
use std::sync::LazyLock;

use arrow_buffer::i256;
use bytes::{BufMut, BytesMut};

use super::decode::Bad;

const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const INFINITY: u16 = 0xD000;
const MINUS_INFINITY: u16 = 0xF000;

const POW10: [u128; 39] = {
    let mut powers = [1; 39];
    let mut i = 1;
    while i < powers.len() {
        powers[i] = powers[i - 1] * 10;
        i += 1;
    }
    powers
};

static POW10_WIDE: LazyLock<[i256; 77]> = LazyLock::new(|| {
    let mut power = i256::ONE;
    std::array::from_fn(|exponent| {
        if exponent > 0 {
            power = power.wrapping_mul(i256::from_i128(10));
        }
        power
    })
});

/// Largest integer of a decimal of `precision` (at most 38) digits.
pub(super) const fn max128(precision: u8) -> u128 {
    POW10[precision as usize] - 1
}

/// A value in the bytes of the message, without trailing zero digits.
#[derive(Clone, Copy)]
pub(super) struct Numeric<'a> {
    digits: &'a [[u8; 2]],
    weight: i32,
    sign: u16,
    places: u16,
}

impl<'a> Numeric<'a> {
    #[inline]
    pub(super) fn parse(value: &'a [u8]) -> Result<Self, Box<Bad>> {
        let (head, digits) =
            value.split_first_chunk::<8>().ok_or_else(|| Bad::malformed("a truncated numeric"))?;
        let field = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let (mut digits, odd) = digits.as_chunks::<2>();
        if digits.len() != field(0) as usize || !odd.is_empty() {
            return Err(Bad::malformed("a numeric whose length does not match its header"));
        }
        if digits.iter().any(|digit| u16::from_be_bytes(*digit) > 9999) {
            return Err(Bad::malformed("a numeric with an invalid digit"));
        }
        while let Some(([0, 0], rest)) = digits.split_last() {
            digits = rest;
        }
        Ok(Self { digits, weight: i32::from(field(2).cast_signed()), sign: field(4), places: field(6) })
    }

    /// Whether it is infinite or not a number.
    pub(super) fn is_special(&self) -> bool {
        self.special().is_some()
    }

    fn special(&self) -> Option<&'static str> {
        match self.sign {
            NAN => Some("NaN"),
            INFINITY => Some("Infinity"),
            MINUS_INFINITY => Some("-Infinity"),
            _ => None,
        }
    }

    /// The value times 10^`scale`, if that is a whole number of at most `max`.
    #[inline]
    pub(super) fn to_i128(self, scale: i8, max: u128) -> Option<i128> {
        let Some((last, head)) = self.digits.split_last() else {
            return (self.sign == 0 || self.sign == NEGATIVE).then_some(0);
        };
        if self.sign & !NEGATIVE != 0 {
            return None;
        }
        // The last digit stands for last * 10^exponent of the result.
        let exponent = 4 * (self.weight - head.len() as i32) + i32::from(scale);
        let last = u64::from(u16::from_be_bytes(*last));
        let magnitude = if head.len() < 4 && (-3..=0).contains(&exponent) {
            // Up to 16 digits: prices, quantities, rates.
            let head = head.iter().fold(0, |sum, digit| sum * 10_000 + u64::from(u16::from_be_bytes(*digit)));
            u128::from(match exponent {
                0 => head * 10_000 + last,
                -1 if last % 10 == 0 => head * 1_000 + last / 10,
                -2 if last % 100 == 0 => head * 100 + last / 100,
                -3 if last % 1_000 == 0 => head * 10 + last / 1_000,
                _ => return None,
            })
        } else {
            let head = head.iter().try_fold(0u128, |sum, digit| {
                sum.checked_mul(10_000)?.checked_add(u128::from(u16::from_be_bytes(*digit)))
            })?;
            let last = u128::from(last);
            if exponent >= 0 {
                let whole = head.checked_mul(10_000)?.checked_add(last)?;
                whole.checked_mul(*POW10.get(exponent as usize)?)?
            } else {
                let shift = *POW10.get(exponent.unsigned_abs() as usize)?;
                if exponent < -3 || last % shift != 0 {
                    return None;
                }
                head.checked_mul(10_000 / shift)?.checked_add(last / shift)?
            }
        };
        if magnitude > max {
            return None;
        }
        let magnitude = magnitude.cast_signed();
        Some(if self.sign == NEGATIVE { -magnitude } else { magnitude })
    }

    /// The value times 10^`scale`, if that is a whole number of at most `precision` digits.
    pub(super) fn to_i256(self, precision: u8, scale: i8) -> Option<i256> {
        if self.sign & !NEGATIVE != 0 {
            return None;
        }
        let Some((last, head)) = self.digits.split_last() else { return Some(i256::ZERO) };
        let mut exponent = 4 * (self.weight - head.len() as i32) + i32::from(scale);
        let base = i256::from_i128(10_000);
        let mut magnitude = head.iter().try_fold(i256::ZERO, |sum, digit| {
            sum.checked_mul(base)?.checked_add(i256::from_i128(i128::from(u16::from_be_bytes(*digit))))
        })?;
        let mut last = i128::from(u16::from_be_bytes(*last));
        let mut unit = 10_000;
        while exponent < 0 {
            if last % 10 != 0 || unit == 1 {
                return None;
            }
            (last, unit, exponent) = (last / 10, unit / 10, exponent + 1);
        }
        magnitude = magnitude.checked_mul(i256::from_i128(unit))?.checked_add(i256::from_i128(last))?;
        magnitude = magnitude.checked_mul(*POW10_WIDE.get(usize::try_from(exponent).ok()?)?)?;
        if magnitude >= *POW10_WIDE.get(usize::from(precision))? {
            return None;
        }
        Some(if self.sign == NEGATIVE { -magnitude } else { magnitude })
    }

    /// As the server prints it.
    pub(super) fn to_text(self) -> String {
        if let Some(special) = self.special() {
            return special.to_owned();
        }
        let digit = |exponent: i32| {
            let at = usize::try_from(self.weight - exponent).ok();
            at.and_then(|at| self.digits.get(at)).map_or(0, |digit| u16::from_be_bytes(*digit))
        };
        let mut text = String::new();
        if self.sign == NEGATIVE {
            text.push('-');
        }
        // Writing to a string can't fail.
        let _ = write!(text, "{}", digit(self.weight.max(0)));
        for exponent in (0..self.weight.max(0)).rev() {
            let _ = write!(text, "{:04}", digit(exponent));
        }
        if self.places > 0 {
            text.push('.');
            let end = text.len() + usize::from(self.places);
            let mut exponent = -1;
            while text.len() < end {
                let _ = write!(text, "{:04}", digit(exponent));
                exponent -= 1;
            }
            text.truncate(end);
        }
        text
    }

    /// The nearest double.
    pub(super) fn to_f64(self) -> f64 {
        match self.special() {
            Some("NaN") => f64::NAN,
            Some("Infinity") => f64::INFINITY,
            Some(_) => f64::NEG_INFINITY,
            // The standard library's parser rounds correctly.
            None => self.to_text().parse().unwrap_or(f64::NAN),
        }
    }
}

/// Appends not-a-number or an infinity, without a length.
pub(super) fn put_special(value: f64, out: &mut BytesMut) {
    out.put_u16(0);
    out.put_u16(0);
    out.put_u16(match value {
        f64::INFINITY => INFINITY,
        f64::NEG_INFINITY => MINUS_INFINITY,
        _ => NAN,
    });
    out.put_u16(0);
}

/// Appends `value` / 10^`scale`, without a length. The scale is that of a decimal or of a double:
/// a few hundred at most.
pub(super) fn put_i128(value: i128, scale: impl Into<i32>, out: &mut BytesMut) {
    let scale = scale.into();
    let mut rest = value.unsigned_abs();
    let lowest = lowest_digits(scale);
    let mut digits = [0u16; 11];
    let mut count = 0;
    if lowest > 0 {
        let unit = POW10[lowest as usize];
        digits[0] = (rest % unit) as u16 * 10u16.pow(4 - lowest);
        (rest, count) = (rest / unit, 1);
    }
    while rest > 0 {
        digits[count] = (rest % 10_000) as u16;
        (rest, count) = (rest / 10_000, count + 1);
    }
    put_digits(&digits[..count], value < 0, scale, out);
}

/// Appends `value` / 10^`scale`, without a length.
pub(super) fn put_i256(value: i256, scale: impl Into<i32>, out: &mut BytesMut) {
    let scale = scale.into();
    // The smallest i256 can't be negated, but no decimal has its 77 digits.
    let mut rest = if value.is_negative() { value.wrapping_neg() } else { value };
    let lowest = lowest_digits(scale);
    let mut digits = Vec::with_capacity(21);
    let mut take = |unit: u32| {
        let unit = i256::from_i128(i128::from(unit));
        let digit = rest.wrapping_rem(unit).as_i128() as u16;
        rest = rest.wrapping_div(unit);
        (digit, rest <= i256::ZERO)
    };
    let mut done = value == i256::ZERO;
    if lowest > 0 && !done {
        let (digit, end) = take(10u32.pow(lowest));
        digits.push(digit * 10u16.pow(4 - lowest));
        done = end;
    }
    while !done {
        let (digit, end) = take(10_000);
        digits.push(digit);
        done = end;
    }
    put_digits(&digits, value.is_negative(), scale, out);
}

/// As [`put_i256`], without zeros at the end of the decimal places: those of a number without a declared precision come
/// from its Arrow type.
pub(super) fn put_trimmed(value: i256, scale: i8, out: &mut BytesMut) {
    let at = out.len();
    put_i256(value, scale, out);
    let field = |at: usize| out.get(at..at + 2).map_or(0, |bytes| i16::from_be_bytes([bytes[0], bytes[1]]));
    let (count, weight) = (field(at), field(at + 2));
    let last = field(out.len() - 2);
    // Each digit in base 10 000 after the point has four places.
    let places = 4 * (i32::from(count) - i32::from(weight) - 1);
    let zeros = (1..4).take_while(|zeros| count > 0 && last % 10i16.pow(*zeros) == 0).count();
    let places = if count == 0 { 0 } else { (places - zeros as i32).max(0) };
    out[at + 6..at + 8].copy_from_slice(&(places as u16).to_be_bytes());
}

/// How many decimal digits of the integer are in its lowest digit in base
/// 10 000; 0 if they fill it.
fn lowest_digits(scale: i32) -> u32 {
    scale.rem_euclid(4).unsigned_abs()
}

/// `digits` are ordered from the lowest, which stands for 10 000^floor(-scale / 4).
fn put_digits(digits: &[u16], negative: bool, scale: i32, out: &mut BytesMut) {
    let zeros = digits.iter().take_while(|digit| **digit == 0).count();
    let count = digits.len() - digits.iter().rev().take_while(|digit| **digit == 0).count().min(digits.len());
    let kept = digits.get(zeros..count).unwrap_or_default();
    let weight = if kept.is_empty() { 0 } else { (-scale).div_euclid(4) + count as i32 - 1 };
    out.put_u16(kept.len() as u16);
    out.put_i16(weight as i16);
    out.put_u16(if negative && !kept.is_empty() { NEGATIVE } else { 0 });
    out.put_u16(scale.max(0) as u16);
    for digit in kept.iter().rev() {
        out.put_u16(*digit);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wire(digits: &[u16], weight: i16, sign: u16, places: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in [digits.len() as u16, weight.cast_unsigned(), sign, places].iter().chain(digits) {
            bytes.extend(field.to_be_bytes());
        }
        bytes
    }

    #[test]
    fn zeros_at_the_end_are_left_out() {
        let smallest = format!("0.{:0>44}", 1);
        for text in [
            "0",
            "1.5",
            "-12345678901234567890.123456789",
            "100",
            "10.01",
            "20000.0001",
            "0.00012",
            &smallest,
        ] {
            for scale in [44, 45, 46, 47] {
                let (whole, part) = text.split_once('.').unwrap_or((text, ""));
                let zeros = "0".repeat(scale - part.len());
                let value = format!("{whole}{part}{zeros}").parse().unwrap();
                let mut out = BytesMut::new();
                put_trimmed(value, scale as i8, &mut out);
                assert_eq!(Numeric::parse(&out).unwrap().to_text(), text);
            }
        }
    }

    #[test]
    fn known_values_are_read() {
        let check = |wire: Vec<u8>, scale, expected: Option<i128>, text: &str| {
            let numeric = Numeric::parse(&wire).unwrap();
            assert_eq!(numeric.to_i128(scale, max128(38)), expected, "{text}");
            assert_eq!(numeric.to_i256(38, scale), expected.map(i256::from_i128), "{text}");
            assert_eq!(numeric.to_text(), text);
        };
        check(wire(&[], 0, 0, 0), 2, Some(0), "0");
        check(wire(&[], 0, 0, 2), 2, Some(0), "0.00");
        check(wire(&[1234, 5600], 0, 0, 2), 2, Some(123_456), "1234.56");
        check(wire(&[1234, 5670], 0, NEGATIVE, 3), 2, None, "-1234.567");
        check(wire(&[1234, 5670], 0, NEGATIVE, 3), 3, Some(-1_234_567), "-1234.567");
        check(wire(&[7], 2, 0, 0), 0, Some(700_000_000), "700000000");
        check(wire(&[500], -1, 0, 2), 10, Some(500_000_000), "0.05");
        check(wire(&[1], -2, 0, 8), 8, Some(1), "0.00000001");
        check(wire(&[1], -2, 0, 8), 7, None, "0.00000001");
        check(
            wire(&[1], 9, 0, 0),
            2,
            Some(10i128.pow(38)).filter(|_| false),
            &format!("1{}", "0".repeat(36)),
        );
        check(wire(&[], 0, NAN, 0), 2, None, "NaN");
        check(wire(&[1, 0, 0], 0, 0, 0), 0, Some(1), "1");
    }

    #[test]
    fn doubles_are_rounded_to_the_nearest() {
        let double = |wire: Vec<u8>| Numeric::parse(&wire).unwrap().to_f64();
        assert_eq!(double(wire(&[1000], -1, 0, 1)), 0.1);
        assert_eq!(double(wire(&[], 0, MINUS_INFINITY, 0)), f64::NEG_INFINITY);
        assert!(double(wire(&[], 0, NAN, 0)).is_nan());
    }

    proptest! {
        #[test]
        fn written_values_read_back(value in -(10i128.pow(38) - 1)..10i128.pow(38), scale in -20i8..=38) {
            let (mut narrow, mut wide) = (BytesMut::new(), BytesMut::new());
            put_i128(value, scale, &mut narrow);
            put_i256(i256::from_i128(value), scale, &mut wide);
            prop_assert_eq!(&narrow, &wide);
            let numeric = Numeric::parse(&narrow).unwrap();
            prop_assert_eq!(numeric.to_i128(scale, max128(38)), Some(value));
            prop_assert_eq!(numeric.to_i256(76, scale), Some(i256::from_i128(value)));
        }

        #[test]
        fn short_and_long_paths_agree(value in -9_999_999_999_999i128..10_000_000_000_000, scale in 0i8..=6) {
            let mut bytes = BytesMut::new();
            put_i128(value, scale, &mut bytes);
            let numeric = Numeric::parse(&bytes).unwrap();
            prop_assert_eq!(numeric.to_i128(scale, max128(38)), Some(value));
            prop_assert_eq!(numeric.to_i128(scale + 9, max128(38)), Some(value * 1_000_000_000));
            let places = scale.unsigned_abs() as usize;
            let digits = format!("{:0width$}", value.unsigned_abs(), width = places + 1);
            let (whole, part) = digits.split_at(digits.len() - places);
            let sign = if value < 0 { "-" } else { "" };
            let expected = if places > 0 { format!("{sign}{whole}.{part}") } else { format!("{sign}{whole}") };
            prop_assert_eq!(numeric.to_text(), expected);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40), scale in any::<i8>()) {
            if let Ok(numeric) = Numeric::parse(&bytes) {
                let _ = numeric.to_i128(scale, max128(38));
                let _ = numeric.to_i256(76, scale);
                let _ = numeric.to_text();
            }
        }
    }
}
