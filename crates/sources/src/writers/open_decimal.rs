//! Prints numbers without a declared precision.
//!
//! Such numbers have a decimal type of the maximum precision with many decimal places, so that averages and
//! quotients fit (decision 0013). Trailing zeros come from the type, not from the number.

use arrow_schema::{DECIMAL256_MAX_PRECISION, DataType};

/// Whether a type has the decimal places of numbers without a declared precision.
pub(super) fn is_open(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Decimal256(DECIMAL256_MAX_PRECISION, 1..))
}

/// A decimal without the trailing zeros of its fraction.
pub(super) fn without_zeros(text: &str) -> &str {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_zeros_of_the_fraction_are_removed() {
        for (text, expected) in [
            ("3.500", "3.5"),
            ("-0.010", "-0.01"),
            ("100.00", "100"),
            ("0.000", "0"),
            ("100", "100"),
            ("", ""),
        ] {
            assert_eq!(without_zeros(text), expected);
        }
        assert!(is_open(&DataType::Decimal256(76, 44)) && !is_open(&DataType::Decimal256(76, 0)));
        assert!(!is_open(&DataType::Decimal256(75, 44)) && !is_open(&DataType::Decimal128(38, 2)));
    }
}
