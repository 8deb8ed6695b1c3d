//! Parses the options of a link, its limits and the rules.

use std::str::FromStr;

use lightship_tuner::{Plane, Rates, Rules};

use crate::size::{Rate, Seconds, Size, number};

/// Three coefficients of a plane.
pub(super) fn plane(text: &str) -> Result<Plane, String> {
    let found: Vec<&str> = text.split(',').map(str::trim).collect();
    let [a, b, c] = found[..] else {
        return Err(format!(
            "{} given, expected three: seconds per byte of the batch, seconds per byte of the message, seconds",
            count(found.len(), "number", "numbers"),
        ));
    };
    let coefficient = |text: &str| {
        number(text).ok_or_else(|| {
            format!("`{text}` is not a number of seconds; expected a finite number of at least 0")
        })
    };
    Ok(Plane::new(coefficient(a)?, coefficient(b)?, coefficient(c)?))
}

fn count(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A range from the smallest to the largest value, both included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Between {
    pub(super) min: u64,
    pub(super) max: u64,
}

/// Parsed like a window.
impl FromStr for Between {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        windows(text)
    }
}

/// `512..32767`, `1KiB..1MiB`, or one size.
pub(super) fn sizes(text: &str) -> Result<Between, String> {
    between(text, |text| text.parse::<Size>().map(|size| size.0))
}

/// `1..64` or one number.
pub(super) fn windows(text: &str) -> Result<Between, String> {
    between(text, |text| {
        text.trim().parse().map_err(|_| format!("`{text}` is not a number of batches (example: 8)"))
    })
}

fn between(text: &str, one: impl Fn(&str) -> Result<u64, String>) -> Result<Between, String> {
    let (min, max) = match text.split_once("..") {
        Some((min, max)) => (one(min)?, one(max)?),
        None => (one(text)?, one(text)?),
    };
    if min == 0 {
        return Err("must be at least 1".into());
    }
    if min > max {
        return Err(format!("`{text}` is the wrong way round: the smaller value comes first"));
    }
    Ok(Between { min, max })
}

/// `gain=1s`, `price=100KB/s`, or both.
pub(super) fn rules(text: &str) -> Result<Rules, String> {
    let mut rules = Rules::default();
    for (key, value) in pairs(text)? {
        let before = match key {
            "gain" => rules.gain_seconds.replace(value.parse::<Seconds>()?.0),
            "price" => rules.price_bytes_per_second.replace(value.parse::<Rate>()?.0),
            other => return Err(format!("unknown rule `{other}`; expected gain=TIME or price=RATE")),
        };
        if before.is_some() {
            return Err(format!("`{key}` is given twice"));
        }
    }
    Ok(rules)
}

/// `decode=500MB/s,consume=1GB/s`.
pub(super) fn rates(text: &str) -> Result<Rates, String> {
    let mut rates = Rates::default();
    for (key, value) in pairs(text)? {
        let stage = match key {
            "produce" => &mut rates.produce,
            "encode" => &mut rates.encode,
            "send" => &mut rates.send,
            "decode" => &mut rates.decode,
            "consume" => &mut rates.consume,
            other => {
                return Err(format!(
                    "unknown stage `{other}`; expected produce, encode, send, decode or consume"
                ));
            }
        };
        let Rate(rate) = value.parse()?;
        if rate < 1.0 {
            return Err(format!("`{value}`: must be at least 1B/s"));
        }
        if stage.replace(rate).is_some() {
            return Err(format!("`{key}` is given twice"));
        }
    }
    Ok(rates)
}

fn pairs(text: &str) -> Result<Vec<(&str, &str)>, String> {
    let parts = text.split(',').map(|part| match part.split_once('=') {
        Some((key, value)) => Ok((key.trim(), value.trim())),
        None => Err(format!("`{part}` is not NAME=VALUE")),
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_formed_options_are_parsed() {
        assert_eq!(plane("2.02e-11, 1.17e-8,4.5e-4"), Ok(Plane::new(2.02e-11, 1.17e-8, 4.5e-4)));
        assert_eq!(sizes("512..32767"), Ok(Between { min: 512, max: 32_767 }));
        assert_eq!(sizes("1KiB..1MiB"), Ok(Between { min: 1024, max: 1 << 20 }));
        assert_eq!(sizes("8KiB"), Ok(Between { min: 8192, max: 8192 }));
        assert_eq!(windows("1..64"), Ok(Between { min: 1, max: 64 }));
        let both = Rules { gain_seconds: Some(1.0), price_bytes_per_second: Some(1e5) };
        assert_eq!(rules("gain=1s, price=100KB/s"), Ok(both));
        let some = Rates { decode: Some(5e8), consume: Some(1e9), ..Rates::default() };
        assert_eq!(rates("decode=500MB/s,consume=1GB/s"), Ok(some));
    }

    #[test]
    fn malformed_options_are_refused() {
        for text in ["", "1,2", "1,2,3,4", "1,2,x", "1,2,nan", "1,inf,2", "-1,2,3"] {
            assert!(plane(text).is_err(), "{text}");
        }
        for text in ["", "..", "1..", "..2", "2..1", "0..2", "0", "1..2..3", "-1..2", "1...2"] {
            assert!(sizes(text).is_err() && windows(text).is_err(), "{text}");
        }
        for text in ["", "gain", "gain=", "gain=1", "gian=1s", "gain=1s,gain=2s", "price=100KB", "gain=1s,"] {
            assert!(rules(text).is_err(), "{text}");
        }
        for text in ["", "decode", "decode=1", "decoding=1MB/s", "decode=0MB/s", "send=1B/s,send=2B/s"] {
            assert!(rates(text).is_err(), "{text}");
        }
    }
}
