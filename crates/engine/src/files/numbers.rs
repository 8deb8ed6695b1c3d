//! Numbers written as text: which type holds them without loss, and what they are in it.

use arrow_schema::DataType;

/// The most digits of a decimal.
const DIGITS_MAX: usize = 38;

/// Texts of at most this many digits are always written again by the double that they are read as.
const DOUBLE_DIGITS: usize = 15;

/// What the numbers of a column have in common.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Numbers {
    /// Digits before and after the decimal point, at most.
    whole: usize,
    fraction: usize,
    /// Some have a decimal point or an exponent, or are not finite.
    has_fraction: bool,
    /// Some are no integers of 64 bits.
    beyond_bigint: bool,
    /// Some are changed by a double.
    beyond_double: bool,
    /// Some have an exponent, or are not finite.
    beyond_decimal: bool,
}

impl Numbers {
    /// One number; `None` if the text is none, or begins with a plus or a zero that a number would lose.
    pub(super) fn of(text: &str) -> Option<Self> {
        match Short::of(text) {
            Some(short) => short.numbers(),
            None => Self::of_any(text),
        }
    }

    fn of_any(text: &str) -> Option<Self> {
        let parts = match Parts::of(text) {
            Some(parts) => parts,
            // Not-a-number or an infinity.
            None => {
                double(text)?;
                return Some(Self {
                    has_fraction: true,
                    beyond_bigint: true,
                    beyond_decimal: true,
                    ..Self::default()
                });
            }
        };
        if parts.whole.len() > 1 && parts.whole.starts_with('0') {
            return None;
        }
        let is_integer = parts.fraction.is_none() && parts.exponent.is_none();
        Some(Self {
            whole: parts.whole.len(),
            fraction: parts.fraction.map_or(0, str::len),
            has_fraction: !is_integer,
            beyond_bigint: !is_integer || any_integer(text).is_none(),
            beyond_double: any_double(text).is_none(),
            beyond_decimal: parts.exponent.is_some(),
        })
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self {
            whole: self.whole.max(other.whole),
            fraction: self.fraction.max(other.fraction),
            has_fraction: self.has_fraction || other.has_fraction,
            beyond_bigint: self.beyond_bigint || other.beyond_bigint,
            beyond_double: self.beyond_double || other.beyond_double,
            beyond_decimal: self.beyond_decimal || other.beyond_decimal,
        }
    }

    /// The type that holds all of them as they are.
    pub(super) fn data_type(self) -> DataType {
        if !self.beyond_bigint {
            DataType::Int64
        } else if self.has_fraction && !self.beyond_double {
            DataType::Float64
        } else if !self.beyond_decimal && self.whole + self.fraction <= DIGITS_MAX {
            DataType::Decimal128(DIGITS_MAX as u8, self.fraction as i8)
        } else {
            DataType::Utf8
        }
    }
}

/// The type of a column that has these types of numbers in two files.
pub(super) fn common(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{Decimal128, Float64, Int64};
    match (a, b) {
        (Int64, Float64) | (Float64, Int64) => Some(Float64),
        // A 64-bit integer has up to 19 digits.
        (Int64, Decimal128(38, scale)) | (Decimal128(38, scale), Int64) if *scale <= 19 => {
            Some(Decimal128(38, *scale))
        }
        (Decimal128(38, a), Decimal128(38, b)) => Some(Decimal128(38, *a.max(b))),
        _ => None,
    }
}

/// The powers of ten that a decimal may have.
const POWERS: [i128; DIGITS_MAX + 1] = {
    let mut powers = [1; DIGITS_MAX + 1];
    let mut exponent = 1;
    while exponent <= DIGITS_MAX {
        powers[exponent] = 10 * powers[exponent - 1];
        exponent += 1;
    }
    powers
};

/// The powers of ten that a [`Short`] number may need, which are doubles without rounding.
const DOUBLE_POWERS: [f64; DOUBLE_DIGITS + 1] = {
    let mut powers = [1.0; DOUBLE_DIGITS + 1];
    let mut exponent = 1;
    while exponent <= DOUBLE_DIGITS {
        powers[exponent] = 10.0 * powers[exponent - 1];
        exponent += 1;
    }
    powers
};

/// A number of at most [`DOUBLE_DIGITS`] digits without an exponent, as most are. Each type reads it from its digits.
#[derive(Debug, Clone, Copy)]
struct Short {
    is_negative: bool,
    /// All digits.
    digits: u64,
    /// How many of them are before the point, and after it if there is one.
    whole: usize,
    fraction: Option<usize>,
    /// More than one digit is before the point, and the first is 0.
    has_leading_zero: bool,
}

impl Short {
    fn of(text: &str) -> Option<Self> {
        let (is_negative, rest) = match text.as_bytes() {
            [b'-', rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        if rest.len() > DOUBLE_DIGITS + 1 {
            return None;
        }
        let (mut digits, mut point) = (0, None);
        for (at, byte) in rest.iter().enumerate() {
            match byte {
                b'0'..=b'9' => digits = 10 * digits + u64::from(byte - b'0'),
                b'.' if point.is_none() => point = Some(at),
                _ => return None,
            }
        }
        let whole = point.unwrap_or(rest.len());
        let fraction = point.map(|at| rest.len() - at - 1);
        let count = whole + fraction.unwrap_or(0);
        let has_leading_zero = whole > 1 && rest[0] == b'0';
        let is_short = (1..=DOUBLE_DIGITS).contains(&count);
        is_short.then_some(Self { is_negative, digits, whole, fraction, has_leading_zero })
    }

    fn numbers(self) -> Option<Numbers> {
        let has_fraction = self.fraction.is_some();
        (!self.has_leading_zero).then_some(Numbers {
            whole: self.whole,
            fraction: self.fraction.unwrap_or(0),
            has_fraction,
            beyond_bigint: has_fraction,
            beyond_double: false,
            beyond_decimal: false,
        })
    }

    fn integer(self) -> Option<i64> {
        let value = self.digits as i64;
        self.fraction.is_none().then_some(if self.is_negative { -value } else { value })
    }

    /// The nearest double: both numbers are doubles without rounding, and their quotient is rounded once.
    fn double(self) -> f64 {
        let value = self.digits as f64 / DOUBLE_POWERS[self.fraction.unwrap_or(0)];
        if self.is_negative { -value } else { value }
    }

    fn decimal(self, precision: u8, scale: usize) -> Option<i128> {
        let zeros = scale.checked_sub(self.fraction.unwrap_or(0));
        let value = match zeros {
            Some(zeros) => i128::from(self.digits).checked_mul(*POWERS.get(zeros)?)?,
            // Digits beyond the scale must be 0.
            None => {
                let beyond = POWERS[self.fraction.unwrap_or(0) - scale];
                let digits = i128::from(self.digits);
                (digits % beyond == 0).then_some(digits / beyond)?
            }
        };
        let is_within = value < *POWERS.get(usize::from(precision))?;
        is_within.then_some(if self.is_negative { -value } else { value })
    }
}

/// A number in decimal notation: `-WHOLE.FRACTIONeEXPONENT`, with a digit before or after the point.
struct Parts<'a> {
    is_negative: bool,
    whole: &'a str,
    fraction: Option<&'a str>,
    exponent: Option<i32>,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let (is_negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match rest.find(['e', 'E']) {
            Some(at) => {
                let digits = &rest[at + 1..];
                let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
                if unsigned.is_empty() || !is_digits(unsigned) {
                    return None;
                }
                // An exponent beyond this is beyond all types.
                (&rest[..at], Some(digits.parse().unwrap_or(i32::MAX / 2)))
            }
            None => (rest, None),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (mantissa, None),
        };
        let digits = whole.len() + fraction.map_or(0, str::len);
        let valid = digits > 0 && is_digits(whole) && fraction.is_none_or(is_digits);
        valid.then_some(Self { is_negative, whole, fraction, exponent })
    }

    /// The digits without zeros at either end, and the power of ten of the first.
    fn significant(&self) -> (String, i64) {
        let all = [self.whole, self.fraction.unwrap_or("")].concat();
        let digits = all.trim_start_matches('0');
        let zeros = (all.len() - digits.len()) as i64;
        let first = self.whole.len() as i64 - zeros + i64::from(self.exponent.unwrap_or(0));
        (digits.trim_end_matches('0').to_owned(), first)
    }
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// An integer of 64 bits.
pub(super) fn integer(text: &str) -> Option<i64> {
    match Short::of(text) {
        Some(short) => short.integer(),
        None => any_integer(text),
    }
}

fn any_integer(text: &str) -> Option<i64> {
    // A leading plus may mean a telephone number, which is text.
    if text.starts_with('+') { None } else { text.parse().ok() }
}

/// A double, unless it would change the number: an integer must be exact, and another number must be the double
/// written with as many digits.
pub(super) fn double(text: &str) -> Option<f64> {
    match Short::of(text) {
        Some(short) => Some(short.double()),
        None => any_double(text),
    }
}

fn any_double(text: &str) -> Option<f64> {
    match text {
        "NaN" | "nan" => return Some(f64::NAN),
        "inf" | "Infinity" => return Some(f64::INFINITY),
        "-inf" | "-Infinity" => return Some(f64::NEG_INFINITY),
        _ => {}
    }
    let of_number = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E');
    if text.starts_with('+') || !text.bytes().all(of_number) {
        return None;
    }
    let value: f64 = text.parse().ok().filter(|value: &f64| value.is_finite())?;
    let is_zero = || value == 0.0 && !text.bytes().any(|byte| matches!(byte, b'1'..=b'9'));
    let is_sure = text.len() <= DOUBLE_DIGITS && (value.abs() >= f64::MIN_POSITIVE || is_zero());
    (is_sure || holds(value, text)?).then_some(value)
}

/// Whether a double is the number that the text writes.
fn holds(value: f64, text: &str) -> Option<bool> {
    /// More digits than any double has.
    const DIGITS_EVER: usize = 800;
    let parts = Parts::of(text)?;
    let (digits, first) = parts.significant();
    if digits.is_empty() || value == 0.0 {
        return Some(digits.is_empty() && value == 0.0);
    }
    if parts.fraction.is_none() && parts.exponent.is_none() && parts.whole.len() > DOUBLE_DIGITS {
        return Some(format!("{:.0}", value.abs()) == parts.whole);
    }
    if digits.len() > DIGITS_EVER {
        return Some(false);
    }
    let is_written = |written: String| Some(Parts::of(&written)?.significant() == (digits.clone(), first));
    // If the double lies halfway between two such numbers, either may be its shortest form.
    Some(is_written(format!("{value:.*e}", digits.len() - 1))? || is_written(format!("{value:e}"))?)
}

/// A decimal of at most `precision` digits, `scale` of them after the point, if it is exact.
pub(super) fn decimal(text: &str, precision: u8, scale: i8) -> Option<i128> {
    let scale = usize::try_from(scale).ok()?;
    match Short::of(text) {
        Some(short) => short.decimal(precision, scale),
        None => any_decimal(text, precision, scale),
    }
}

fn any_decimal(text: &str, precision: u8, scale: usize) -> Option<i128> {
    let parts = Parts::of(text).filter(|parts| parts.exponent.is_none())?;
    let fraction = parts.fraction.unwrap_or("");
    let (kept, rest) = fraction.split_at(scale.min(fraction.len()));
    if rest.bytes().any(|digit| digit != b'0') {
        return None;
    }
    let mut value: i128 = 0;
    let zeros = std::iter::repeat_n(b'0', scale - kept.len());
    for digit in parts.whole.bytes().chain(kept.bytes()).chain(zeros) {
        value = value.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
    }
    let limit = 10_i128.checked_pow(u32::from(precision))?;
    (value < limit).then_some(if parts.is_negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_double_holds_what_it_writes_with_as_many_digits() {
        for text in [
            "0.1",
            "-0",
            "0.30000000000000004",
            "1e-7",
            ".5",
            "5.",
            "1e300",
            "4.9e-324",
            "9007199254740992",
            "0.10000000000000001",
            "3.1415926535897931",
            "1.50000000000000000000",
            "1e23",
            // Its double ends in .25, halfway between this and .2.
            "718502241104632.3",
            "718502241104632.2",
            "-Infinity",
            "nan",
            // All digits of a double.
            "0.1000000000000000055511151231257827021181583404541015625",
            "100000000000000000000",
        ] {
            assert!(double(text).is_some(), "{text}");
        }
        for text in [
            "9007199254740993",
            "12345678901234567.5",
            "0.1234567890123456789",
            "1e400",
            "1e-400",
            "+1",
            "1_0",
            "",
            "-",
            ".",
            "1e",
            "infinity",
            "100000000000000000000000",
            "0.10000000000000000000001",
            "1.23456789e-320",
        ] {
            assert!(double(text).is_none(), "{text}");
        }
    }

    #[test]
    fn decimals_are_exact_or_refused() {
        for (text, precision, scale, expected) in [
            ("1.5", 20, 4, Some(15_000)),
            ("-0.0001", 20, 4, Some(-1)),
            ("1.50000", 3, 1, Some(15)),
            ("1.55", 3, 1, None),
            ("100", 2, 0, None),
            ("99", 2, 0, Some(99)),
            ("1e2", 10, 0, None),
            ("x", 10, 0, None),
            ("123456789012345678901234567890123456789", 38, 0, None),
        ] {
            assert_eq!(decimal(text, precision, scale), expected, "{text}");
        }
        let most = "9".repeat(38);
        assert_eq!(decimal(&most, 38, 0), most.parse().ok());
    }

    proptest! {
        /// The short way gives what the long way gives.
        #[test]
        fn short_numbers_are_read_as_any_others(
            text in "-?[0-9]{0,17}|-?[0-9]{0,9}\\.[0-9]{0,9}|-?0{0,5}\\.?0{0,10}[0-9]?|[-0-9.e]{0,5}",
            precision in 1_u8..=38,
            scale in 0_usize..=38,
        ) {
            prop_assert_eq!(Numbers::of(&text), Numbers::of_any(&text));
            prop_assert_eq!(integer(&text), any_integer(&text));
            prop_assert_eq!(double(&text).map(f64::to_bits), any_double(&text).map(f64::to_bits));
            prop_assert_eq!(decimal(&text, precision, scale as i8), any_decimal(&text, precision, scale));
        }

        #[test]
        fn doubles_survive_however_they_are_written(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            for text in [format!("{value:?}"), format!("{value:e}"), format!("{value:.16e}")] {
                let read = double(&text);
                prop_assert_eq!(read.map(f64::to_bits), Some(bits), "{}", text);
            }
        }
    }
}
