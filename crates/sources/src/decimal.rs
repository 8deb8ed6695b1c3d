//! Decimal numbers of any scale, and floats as the digits they are printed with.

use arrow_buffer::i256;

/// The largest scale of a number that is parsed, and the largest exponent.
const SCALE_MAX: i32 = 5000;

/// `value` / 10^`scale`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decimal {
    pub(crate) value: i256,
    pub(crate) scale: i32,
}

/// A binary floating-point type.
pub(crate) trait Float: Copy + std::str::FromStr + std::fmt::LowerExp {
    fn is_finite(self) -> bool;
    /// The value, if it is a whole number of up to 127 bits.
    fn to_whole(self) -> Option<i128>;
}

macro_rules! float {
    ($float:ty) => {
        impl Float for $float {
            fn is_finite(self) -> bool {
                self.is_finite()
            }

            fn to_whole(self) -> Option<i128> {
                let whole = self as i128;
                // The cast saturates at both ends.
                (whole != i128::MAX && whole != i128::MIN && whole as $float == self).then_some(whole)
            }
        }
    };
}
float!(f32);
float!(f64);

impl Decimal {
    /// The fewest digits that distinguish a float from its neighbours; `None` if it is not finite.
    pub(crate) fn shown(float: impl Float) -> Option<Self> {
        if !float.is_finite() {
            return None;
        }
        let text = format!("{float:e}");
        let (digits, exponent) = text.split_once('e')?;
        let places = digits.split_once('.').map_or(0, |(_, places)| places.len());
        let value: i128 = digits.replace('.', "").parse().ok()?;
        Some(Self {
            value: i256::from_i128(value),
            scale: i32::try_from(places).ok()? - exponent.parse::<i32>().ok()?,
        })
    }

    /// Removes trailing zeros.
    pub(crate) fn normal(mut self) -> Self {
        let ten = i256::from_i128(10);
        if self.value == i256::ZERO {
            self.scale = 0;
        }
        while self.value != i256::ZERO && self.value.wrapping_rem(ten) == i256::ZERO {
            (self.value, self.scale) = (self.value.wrapping_div(ten), self.scale - 1);
        }
        self
    }

    /// The value times 10^`scale`, if it is a whole number of up to 127 bits.
    pub(crate) fn rescaled(self, scale: i32) -> Option<i128> {
        let normal = self.normal();
        let zeros = u32::try_from(scale - normal.scale).ok();
        if normal.value == i256::ZERO {
            return Some(0);
        }
        normal.value.to_i128()?.checked_mul(10i128.checked_pow(zeros?)?)
    }

    /// The value times 10^`scale`, if it is a whole number of at most `precision` digits.
    pub(crate) fn with_precision(self, precision: u32, scale: i32) -> Option<i256> {
        let normal = self.normal();
        if normal.value == i256::ZERO {
            return Some(i256::ZERO);
        }
        let ten = i256::from_i128(10);
        let zeros = u32::try_from(scale - normal.scale).ok()?;
        let value = normal.value.checked_mul(ten.checked_pow(zeros)?)?;
        let limit = ten.checked_pow(precision);
        limit.is_none_or(|limit| value < limit && -limit < value).then_some(value)
    }

    /// The number that a text of digits, a decimal point and an exponent stands for.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (digits, exponent) = match text.split_once(['e', 'E']) {
            Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, places) = digits.split_once('.').unwrap_or((digits, ""));
        let unsigned = whole.strip_prefix(['-', '+']).unwrap_or(whole);
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if unsigned.len() + places.len() == 0 || !is_digits(unsigned) || !is_digits(places) {
            return None;
        }
        let value = i256::from_string(&format!("{}{places}", whole.strip_prefix('+').unwrap_or(whole)))?;
        let scale = i32::try_from(places.len()).ok()?.checked_sub(exponent)?;
        // No type has a number beyond, and printing one takes as many digits.
        (-SCALE_MAX..=SCALE_MAX).contains(&scale).then_some(Self { value, scale })
    }

    /// For a whole number, the float of exactly this value; otherwise the float printed with the same digits.
    pub(crate) fn to_float<F: Float>(self) -> Option<F> {
        let float: F = self.to_string().parse().ok()?;
        let same = match self.rescaled(0) {
            Some(whole) => float.to_whole() == Some(whole),
            None => {
                let (a, b) = (self.normal(), Self::shown(float)?.normal());
                // Whole numbers of more than 127 bits are refused.
                a.scale > 0 && a.value == b.value && a.scale == b.scale
            }
        };
        same.then_some(float)
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { value, scale } = self.normal();
        let digits = value.wrapping_abs().to_string();
        let sign = if value.is_negative() { "-" } else { "" };
        let places = usize::try_from(scale).unwrap_or(0);
        if scale <= 0 {
            let zeros = usize::try_from(-scale).unwrap_or(0);
            return write!(f, "{sign}{digits}{}", "0".repeat(zeros));
        }
        let digits = format!("{digits:0>width$}", width = places + 1);
        let (whole, part) = digits.split_at(digits.len() - places);
        write!(f, "{sign}{whole}.{part}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decimal(value: i128, scale: i32) -> Decimal {
        Decimal { value: i256::from_i128(value), scale }
    }

    #[test]
    fn floats_take_numbers_that_they_equal_or_print() {
        let check = |value: i128, scale: i32, double: Option<f64>, real: Option<f32>| {
            let number = decimal(value, scale);
            assert_eq!(number.to_float::<f64>(), double, "{number}");
            assert_eq!(number.to_float::<f32>(), real, "{number}");
        };
        check(1234, 2, Some(12.34), Some(12.34));
        check(1, 1, Some(0.1), Some(0.1));
        check(-123_456_789, 4, Some(-12_345.678_9), None);
        check(12_345_678_901_234_567_891, 4, None, None);
        check(0, 5, Some(0.0), Some(0.0));
        check(1 << 53, 0, Some(9_007_199_254_740_992.0), Some(9_007_199_254_740_992.0));
        check((1 << 53) + 1, 0, None, None);
        check(1_152_921_504_606_847_000, 0, None, None);
        check(1 << 60, 0, Some(1_152_921_504_606_846_976.0), Some(1_152_921_504_606_846_976.0));
        check(1, -40, None, None);
        check(i128::MAX, 0, None, None);
        check(1, 400, None, None);
    }

    #[test]
    fn money_takes_whole_cents() {
        assert_eq!(decimal(12_340, 3).rescaled(2), Some(1234));
        assert_eq!(decimal(12_345, 3).rescaled(2), None);
        assert_eq!(decimal(12, 0).rescaled(2), Some(1200));
        assert_eq!(decimal(0, 38).rescaled(2), Some(0));
        assert_eq!(decimal(1, -38).rescaled(2), None);
    }

    #[test]
    fn decimals_are_parsed_and_fit_a_precision() {
        let check = |text: &str, expected: Option<(i128, i32)>| {
            let found = Decimal::parse(text).map(|found| (found.value.to_i128().unwrap(), found.scale));
            assert_eq!(found, expected, "{text}");
        };
        check("12.50", Some((1250, 2)));
        check("-.5", Some((-5, 1)));
        check("+7.", Some((7, 0)));
        check("1e3", Some((1, -3)));
        check("1.5E-3", Some((15, 4)));
        for text in ["", ".", "-", "1-2", "0x1", "1e", "1e2.5", "inf", "--1", " 1", "1e5001", "1e-2147483647"]
        {
            check(text, None);
        }
        let fits = |value: i128, scale: i32, precision: u32, places: i32| {
            decimal(value, scale).with_precision(precision, places).and_then(|value| value.to_i128())
        };
        assert_eq!(fits(1250, 2, 3, 1), Some(125));
        assert_eq!(fits(1255, 2, 4, 1), None);
        assert_eq!(fits(1000, 0, 3, 0), None);
        assert_eq!(fits(-999, 0, 3, 0), Some(-999));
        assert_eq!(fits(0, 9, 1, 0), Some(0));
    }

    proptest! {
        #[test]
        fn a_float_parses_back_from_its_digits(bits in any::<u64>()) {
            let (double, real) = (f64::from_bits(bits), f32::from_bits(bits as u32));
            if let Some(shown) = Decimal::shown(double) {
                prop_assert_eq!(shown.to_string().parse::<f64>().unwrap(), double);
            }
            if let Some(shown) = Decimal::shown(real) {
                prop_assert_eq!(shown.to_string().parse::<f32>().unwrap(), real);
            }
        }

        #[test]
        fn numbers_written_as_floats_read_back(value in any::<i64>(), scale in -5i32..25) {
            let number = decimal(value.into(), scale);
            if let Some(float) = number.to_float::<f64>() {
                let (a, b) = (number.normal(), Decimal::shown(float).unwrap().normal());
                let whole = float.to_whole();
                prop_assert!(a.value == b.value && a.scale == b.scale || whole == number.rescaled(0));
            }
        }
    }
}
