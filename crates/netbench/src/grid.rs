//! The grid of a sweep: numbers of connections and message sizes.

use crate::error::GridError;

/// More values are not worth measuring, or a typing error.
const VALUES_MAX: usize = 64;

/// The maximum number of connections of a cell.
pub const CONNECTIONS_MAX: u32 = 16_384;

/// Default numbers of connections: 2 to 2048, doubling.
pub const CONNECTIONS: &str = "2..2048";
/// Default message sizes: 256 bytes to 1 MiB, doubling.
pub const MESSAGE_BYTES: &str = "256..1MiB";

/// Parses `2,4,8`, `2..2048` (doubling) or a mix of both; `value` parses a single value. Returns the
/// values sorted and without duplicates.
///
/// # Errors
/// [`GridError`] if `text` is not such a list, a value is not between 1 and `most`, or there are more
/// than 64 values.
pub fn parse_values(
    text: &str,
    most: u32,
    value: impl Fn(&str) -> Result<u64, String>,
) -> Result<Vec<u32>, GridError> {
    let one = |text: &str| {
        let number = value(text.trim()).map_err(|why| GridError::Value { text: text.trim().into(), why })?;
        let fits = u32::try_from(number).ok().filter(|number| (1..=most).contains(number));
        fits.ok_or_else(|| GridError::Outside { text: text.trim().into(), most })
    };
    let mut values = Vec::new();
    for item in text.split(',').filter(|item| !item.trim().is_empty()) {
        match item.split_once("..") {
            None => values.push(one(item)?),
            Some((from, to)) => {
                let (from, to) = (one(from)?, one(to)?);
                if from > to {
                    return Err(GridError::Backwards { text: item.trim().into() });
                }
                let doubled = std::iter::successors(Some(from), |value| value.checked_mul(2));
                values.extend(doubled.take_while(|value| *value <= to));
            }
        }
        if values.len() > VALUES_MAX {
            return Err(GridError::TooMany { most: VALUES_MAX });
        }
    }
    values.sort_unstable();
    values.dedup();
    if values.is_empty() { Err(GridError::Empty) } else { Ok(values) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(text: &str) -> Result<u64, String> {
        text.parse().map_err(|_| "no number".to_owned())
    }

    fn check(text: &str, expected: &[u32]) {
        assert_eq!(parse_values(text, 1 << 20, number).expect(text), expected, "{text}");
    }

    #[test]
    fn lists_and_ranges_are_parsed() {
        check("2,4,8", &[2, 4, 8]);
        check("2..16", &[2, 4, 8, 16]);
        check("3..20", &[3, 6, 12]);
        check(" 16, 1..4 ,2,", &[1, 2, 4, 16]);
        check("5..5", &[5]);
        assert_eq!(parse_values(CONNECTIONS, CONNECTIONS_MAX, number).expect("values").len(), 11);
    }

    #[test]
    fn invalid_lists_are_errors() {
        let error = |text: &str| parse_values(text, 100, number).expect_err(text);
        assert!(matches!(error("x"), GridError::Value { .. }));
        assert!(matches!(error("1..x"), GridError::Value { .. }));
        assert!(matches!(error("8..2"), GridError::Backwards { .. }));
        assert!(matches!(error("0"), GridError::Outside { .. }));
        assert!(matches!(error("101"), GridError::Outside { .. }));
        assert!(matches!(error("99999999999"), GridError::Outside { .. }));
        assert!(matches!(error(" , "), GridError::Empty));
        let many = (1..=65).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        assert!(matches!(error(&many), GridError::TooMany { most: 64 }));
    }

    proptest! {
        #[test]
        fn any_text_gives_sorted_values_or_an_error(text in "[0-9,. x]{0,40}") {
            if let Ok(values) = parse_values(&text, 1000, number) {
                prop_assert!(values.is_sorted_by(|a, b| a < b));
                prop_assert!(values.iter().all(|value| (1..=1000).contains(value)));
            }
        }
    }
}
