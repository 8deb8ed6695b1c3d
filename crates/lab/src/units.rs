//! Parses quantities with units: `100mbit`, `25ms`, `1%`, `1GiB`.

/// Bits per second: `56kbit`, `100mbit`, `2.5gbit`.
///
/// # Errors
/// A message with an example of the format.
pub fn bits_per_second(text: &str) -> Result<u64, String> {
    let bits = quantity(text, &[("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)], "a bandwidth such as 100mbit")?;
    if bits < 1e3 {
        return Err(format!("`{text}`: the bandwidth must be at least 1kbit"));
    }
    Ok(bits as u64)
}

/// Microseconds: `300us`, `0.3ms`, `1s`.
///
/// # Errors
/// A message with an example of the format.
pub fn microseconds(text: &str) -> Result<u64, String> {
    let us = quantity(text, &[("us", 1.0), ("ms", 1e3), ("s", 1e6)], "a delay such as 25ms")?;
    if us > 60e6 {
        return Err(format!("`{text}`: the delay must be at most 60s"));
    }
    Ok(us.round() as u64)
}

/// A share, 0 to below 1, written as `1%`.
///
/// # Errors
/// A message with an example of the format.
pub fn share(text: &str) -> Result<f64, String> {
    let share = quantity(text, &[("%", 0.01)], "a loss such as 1%")?;
    if share >= 1.0 {
        return Err(format!("`{text}`: the loss must be below 100%"));
    }
    Ok(share)
}

/// Bytes: `64MiB`, `1.5GB`, `4096`.
///
/// # Errors
/// A message with an example of the format.
pub fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 8] = [
        ("kib", 1024.0),
        ("mib", 1_048_576.0),
        ("gib", 1_073_741_824.0),
        ("kb", 1e3),
        ("mb", 1e6),
        ("gb", 1e9),
        ("b", 1.0),
        ("", 1.0),
    ];
    Ok(quantity(text, &UNITS, "a size such as 64MiB")? as u64)
}

/// Parses a number followed by one of `units`, and multiplies it by the unit's factor.
fn quantity(text: &str, units: &[(&str, f64)], what: &str) -> Result<f64, String> {
    let lower = text.trim().to_ascii_lowercase();
    units
        .iter()
        .find_map(|(unit, factor)| {
            let number: f64 = lower.strip_suffix(unit)?.trim_end().parse().ok()?;
            let value = number * factor;
            (value.is_finite() && (0.0..1e18).contains(&value)).then_some(value)
        })
        .ok_or_else(|| format!("`{text}` is not {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_parsed() {
        assert_eq!(bits_per_second("2.5Gbit"), Ok(2_500_000_000));
        assert_eq!(bits_per_second("56 kbit"), Ok(56_000));
        assert_eq!(microseconds("0.3ms"), Ok(300));
        assert_eq!(microseconds("300us"), Ok(300));
        assert_eq!(microseconds("1s"), Ok(1_000_000));
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(bytes("1GiB"), Ok(1 << 30));
        assert_eq!(bytes("50MB"), Ok(50_000_000));
        assert_eq!(bytes("4096"), Ok(4096));
    }

    #[test]
    fn invalid_quantities_are_refused_with_an_example() {
        for text in ["", "mbit", "-1mbit", "1e99gbit", "nanmbit", "0mbit", "100", "25ms", "é"] {
            assert!(bits_per_second(text).is_err(), "{text}");
        }
        for text in ["", "25", "-1ms", "1h", "61s"] {
            assert!(microseconds(text).is_err(), "{text}");
        }
        assert!(share("100%").is_err());
        assert!(bytes("GiB").unwrap_err().contains("64MiB"));
    }
}
