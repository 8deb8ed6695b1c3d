//! Sizes, times and rates as people write and read them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

/// Bytes, as `64MiB`, `1.5GB` or `4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

/// A mean number of bytes, which need not be whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MeanSize(pub(crate) f64);

/// Seconds, as `10ms`, `1.5s` or `250us`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Seconds(pub(crate) f64);

/// A timeout, as `15min`; `never` for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) Option<Duration>);

/// Bytes a second, as `500MB/s` or `10Gbit/s`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rate(pub(crate) f64);

// If one unit is a suffix of another, the longer one comes first.
const SIZES: [(&str, f64); 12] = [
    ("KiB", (1u64 << 10) as f64),
    ("MiB", (1u64 << 20) as f64),
    ("GiB", (1u64 << 30) as f64),
    ("TiB", (1u64 << 40) as f64),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("K", (1u64 << 10) as f64),
    ("M", (1u64 << 20) as f64),
    ("G", (1u64 << 30) as f64),
    ("B", 1.0),
];
const TIMES: [(&str, f64); 7] =
    [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("min", 60.0), ("h", 3600.0), ("s", 1.0)];
const BITS: [(&str, f64); 4] = [("Kbit", 125.0), ("Mbit", 125e3), ("Gbit", 125e6), ("bit", 0.125)];

/// A number that is finite and not negative, followed by one of the units.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let (digits, factor) = units.iter().find_map(|(unit, factor)| {
        let start = text.len().checked_sub(unit.len()).filter(|&start| start > 0)?;
        let end = text.get(start..)?;
        end.eq_ignore_ascii_case(unit).then(|| (&text[..start], *factor))
    })?;
    Some(number(digits)? * factor).filter(|value| value.is_finite())
}

/// A number that is finite and not negative.
pub(crate) fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let MeanSize(bytes) = text.parse()?;
        if bytes <= u64::MAX as f64 { Ok(Self(bytes as u64)) } else { Err(no_size(text)) }
    }
}

impl FromStr for MeanSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        with_unit(text, &SIZES).or_else(|| number(text)).map(Self).ok_or_else(|| no_size(text))
    }
}

fn no_size(text: &str) -> String {
    format!("`{}` is not a size (example: 64MiB)", text.trim())
}

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = with_unit(text, &TIMES);
        seconds.map(Self).ok_or_else(|| format!("`{}` is not a time (example: 10ms)", text.trim()))
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("never") {
            return Ok(Self(None));
        }
        if text == "0" {
            return Ok(Self(Some(Duration::ZERO)));
        }
        let Seconds(seconds) = text.parse()?;
        let limit = Duration::try_from_secs_f64(seconds);
        limit.map(|limit| Self(Some(limit))).map_err(|e| format!("`{text}`: {e}"))
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Mb/s usually means megabits, but would be read as megabytes.
        let amount = text.trim().strip_suffix("/s").filter(|amount| !amount.ends_with('b'));
        let rate = amount.and_then(|text| with_unit(text, &BITS).or_else(|| with_unit(text, &SIZES)));
        rate.map(Self).ok_or_else(|| format!("`{}` is not a rate (examples: 500MB/s, 10Gbit/s)", text.trim()))
    }
}

impl fmt::Display for Seconds {
    /// Three digits, in the unit that fits the value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            0.0 => (0.0, "s"),
            s if s >= 0.1 => (s, "s"),
            s if s >= 1e-3 => (s * 1e3, "ms"),
            s => (s * 1e6, "us"),
        };
        write!(f, "{} {unit}", three_digits(value))
    }
}

/// A number with three digits, or with all digits before the point if they are more.
pub(crate) fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
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

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Zero(u64),
            Text(String),
        }
        let text = match Given::deserialize(deserializer)? {
            Given::Zero(number) => number.to_string(),
            Given::Text(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A number with commas between thousands.
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
    fn sizes_are_parsed_and_printed() {
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
        for text in ["", "MiB", "x", "-1", "1e99TB", "nan", "inf", "12é", "12 apples", "1MBB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert_eq!("27.5".parse(), Ok(MeanSize(27.5)));
        assert_eq!(grouped(6_001_215), "6,001,215");
        assert_eq!(grouped(12), "12");
    }

    #[test]
    fn times_and_rates_are_parsed_and_printed() {
        for (text, seconds, shown) in [
            ("1s", 1.0, "1.00 s"),
            ("10ms", 0.01, "10.0 ms"),
            ("250 us", 250e-6, "250 us"),
            ("250ns", 250e-9, "0.250 us"),
            ("1.5min", 90.0, "90.0 s"),
            ("1353.4s", 1353.4, "1353 s"),
            ("0s", 0.0, "0 s"),
        ] {
            let time: Seconds = text.parse().unwrap();
            assert!((time.0 - seconds).abs() <= 1e-12 * seconds, "{text}: {time:?}");
            assert_eq!(time.to_string(), shown, "{text}");
        }
        for text in ["", "10", "s", "-1s", "nans", "10mss", "10 hours", "infs"] {
            assert!(text.parse::<Seconds>().is_err(), "{text}");
        }
        for (text, limit) in [
            ("15min", Some(Duration::from_secs(900))),
            ("2h", Some(Duration::from_secs(7200))),
            ("0", Some(Duration::ZERO)),
            ("0s", Some(Duration::ZERO)),
            ("Never", None),
        ] {
            assert_eq!(text.parse(), Ok(Limit(limit)), "{text}");
        }
        for text in ["", "15", "-1s", "1e300s", "later"] {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
        for (text, rate) in
            [("500MB/s", 500e6), ("10Gbit/s", 1.25e9), ("100KiB/s", 102_400.0), ("8bit/s", 1.0)]
        {
            assert_eq!(text.parse(), Ok(Rate(rate)), "{text}");
        }
        for text in ["", "500", "500MB", "MB/s", "500MB/m", "-1MB/s", "500Mb/s"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }
}
