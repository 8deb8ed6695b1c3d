//! The seeds of random tests, which variables of the environment may change.

use std::ops::RangeInclusive;

/// The seeds of a test: as many as its `variable` says, else `count`, from 1 or from `LIGHTSHIP_SEED`; only that of
/// `LIGHTSHIP_SEED` if nothing says how many.
///
/// # Panics
/// If a variable is not a number.
#[must_use]
pub fn seeds(variable: &str, count: u64) -> RangeInclusive<u64> {
    let number = |name: &str| {
        let value = std::env::var(name).ok()?;
        Some(value.parse().unwrap_or_else(|_| panic!("{name}={value}: expected a number")))
    };
    match (number("LIGHTSHIP_SEED"), number(variable)) {
        (Some(seed), count) => seed..=seed + count.unwrap_or(1) - 1,
        (None, given) => 1..=given.unwrap_or(count),
    }
}
