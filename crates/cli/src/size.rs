//! Sizes as people write and read them.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// Bytes, as `64MiB`, `1.5GB` or `4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

const UNITS: [(&str, u64); 12] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("B", 1),
];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let ends_with = |unit: &str| {
            text.len() > unit.len()
                && text.is_char_boundary(text.len() - unit.len())
                && text[text.len() - unit.len()..].eq_ignore_ascii_case(unit)
        };
        let (digits, factor) = match UNITS.iter().find(|(unit, _)| ends_with(unit)) {
            Some((unit, factor)) => (&text[..text.len() - unit.len()], *factor),
            None => (text, 1),
        };
        let number: f64 =
            digits.trim().parse().map_err(|_| format!("`{text}` is not a size, as 64MiB is"))?;
        let bytes = number * factor as f64;
        if bytes.is_finite() && (0.0..=u64::MAX as f64).contains(&bytes) {
            Ok(Self(bytes as u64))
        } else {
            Err(format!("`{text}` is not a size, as 64MiB is"))
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STEPS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
        let mut value = self.0 as f64;
        let mut step = 0;
        while value >= 999.5 && step + 1 < STEPS.len() {
            value /= 1000.0;
            step += 1;
        }
        let decimals = if step == 0 || value >= 99.95 { 0 } else { 1 };
        write!(f, "{value:.decimals$} {}", STEPS[step])
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Bytes(u64),
            Text(String),
        }
        match Given::deserialize(deserializer)? {
            Given::Bytes(bytes) => Ok(Self(bytes)),
            Given::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// A number with its thousands apart.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes, shown) in [
            ("64MiB", 64 << 20, "67.1 MB"),
            ("1.5 GB", 1_500_000_000, "1.5 GB"),
            ("4096", 4096, "4.1 KB"),
            ("0", 0, "0 B"),
            ("1g", 1 << 30, "1.1 GB"),
            ("999999B", 999_999, "1.0 MB"),
            ("12b", 12, "12 B"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, shown), "{text}");
        }
        for text in ["", "MiB", "x", "-1", "1e99TB", "nan", "12é"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert_eq!(grouped(6_001_215), "6,001,215");
        assert_eq!(grouped(12), "12");
    }
}
