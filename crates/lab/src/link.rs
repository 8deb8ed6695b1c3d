//! Links: bandwidth, delay and loss, by name or by number.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::units;

/// The link that joins hosts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Link {
    /// The loopback of this machine's own namespace. Nothing is shaped.
    Local,
    /// A wire between namespaces.
    Wire(Shape),
}

/// The properties of a wire, the same in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Shape {
    /// Bits per second; `None` is as fast as the machine allows.
    pub bandwidth_bits_per_s: Option<u64>,
    /// Delay in one direction: half of the round trip.
    pub delay_us: u64,
    /// Share of packets lost, 0 to below 1.
    pub loss: f64,
}

/// The named links that are wires.
const NAMED: [(&str, Shape); 4] = [
    ("fast", Shape { bandwidth_bits_per_s: Some(10_000_000_000), delay_us: 0, loss: 0.0 }),
    ("lan", Shape { bandwidth_bits_per_s: Some(1_000_000_000), delay_us: 300, loss: 0.0 }),
    ("wan", Shape { bandwidth_bits_per_s: Some(100_000_000), delay_us: 25_000, loss: 0.0 }),
    ("slow", Shape { bandwidth_bits_per_s: Some(10_000_000), delay_us: 100_000, loss: 0.0 }),
];

impl Link {
    /// All named links, the fastest first.
    pub fn named() -> impl Iterator<Item = Self> {
        std::iter::once(Self::Local).chain(NAMED.map(|(_, shape)| Self::Wire(shape)))
    }

    /// The loopback, without namespaces.
    pub const fn local() -> Self {
        Self::Local
    }

    /// 10 Gbit/s, no delay.
    pub const fn fast() -> Self {
        Self::Wire(NAMED[0].1)
    }

    /// 1 Gbit/s, 0.3 ms each way.
    pub const fn lan() -> Self {
        Self::Wire(NAMED[1].1)
    }

    /// 100 Mbit/s, 25 ms each way.
    pub const fn wan() -> Self {
        Self::Wire(NAMED[2].1)
    }

    /// 10 Mbit/s, 100 ms each way.
    pub const fn slow() -> Self {
        Self::Wire(NAMED[3].1)
    }
}

impl Shape {
    /// Twice the delay.
    pub const fn round_trip(&self) -> Duration {
        Duration::from_micros(self.delay_us * 2)
    }

    /// The bandwidth alone.
    pub(crate) const fn without_delay_and_loss(self) -> Self {
        Self { delay_us: 0, loss: 0.0, ..self }
    }
}

impl FromStr for Link {
    type Err = String;

    /// Parses a name, or bandwidth, delay and loss in any order: `lan`, `100mbit,25ms,1%`.
    /// Numbers after a name override its own: `wan,1%`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "local" {
            return Ok(Self::Local);
        }
        let mut parts = text.split(',').map(str::trim).peekable();
        let first = parts.peek().copied().unwrap_or_default();
        let mut shape = Shape::default();
        if let Some((_, named)) = NAMED.iter().find(|(name, _)| *name == first) {
            shape = *named;
            parts.next();
        }
        let mut given = [false; 3];
        for part in parts {
            let place = if part.ends_with("bit") {
                shape.bandwidth_bits_per_s = Some(units::bits_per_second(part)?);
                0
            } else if part.ends_with('s') {
                shape.delay_us = units::microseconds(part)?;
                1
            } else if part.ends_with('%') {
                shape.loss = units::share(part)?;
                2
            } else {
                return Err(format!(
                    "`{part}`: expected local, fast, lan, wan, slow, or numbers such as 100mbit,25ms,1%"
                ));
            };
            if std::mem::replace(&mut given[place], true) {
                return Err(format!("`{text}`: give bandwidth, delay and loss only once"));
            }
        }
        Ok(Self::Wire(shape))
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Wire(shape) = self else { return f.write_str("local") };
        if let Some((name, _)) = NAMED.iter().find(|(_, named)| named == shape) {
            return f.write_str(name);
        }
        if let Some(bits) = shape.bandwidth_bits_per_s {
            write!(f, "{}mbit,", bits as f64 / 1e6)?;
        }
        write!(f, "{}ms", shape.delay_us as f64 / 1e3)?;
        if shape.loss > 0.0 { write!(f, ",{}%", shape.loss * 100.0) } else { Ok(()) }
    }
}

impl Serialize for Link {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_parsed_and_displayed() {
        let wire =
            |bandwidth_bits_per_s, delay_us, loss| Link::Wire(Shape { bandwidth_bits_per_s, delay_us, loss });
        for (text, link, shown) in [
            ("local", Link::Local, "local"),
            ("lan", Link::lan(), "lan"),
            ("100mbit,25ms", Link::wan(), "wan"),
            ("25ms, 100mbit", Link::wan(), "wan"),
            ("wan,1%", wire(Some(100_000_000), 25_000, 0.01), "100mbit,25ms,1%"),
            ("lan,10ms", wire(Some(1_000_000_000), 10_000, 0.0), "1000mbit,10ms"),
            ("2.5gbit", wire(Some(2_500_000_000), 0, 0.0), "2500mbit,0ms"),
            ("5ms", wire(None, 5_000, 0.0), "5ms"),
        ] {
            let read: Link = text.parse().unwrap();
            assert_eq!(read, link, "{text}");
            assert_eq!(read.to_string(), shown, "{text}");
            assert_eq!(shown.parse(), Ok(link), "{shown}");
        }
    }

    #[test]
    fn invalid_links_are_refused() {
        for text in ["", "lann", "local,1%", "100", "100mbit,10mbit", "lan,wan", "-1ms", "100%", "lan,"] {
            assert!(text.parse::<Link>().is_err(), "{text}");
        }
        assert!("lann".parse::<Link>().unwrap_err().contains("local, fast, lan, wan, slow"));
    }

    #[test]
    fn every_named_link_is_parsed_from_its_name() {
        for link in Link::named() {
            assert_eq!(link.to_string().parse(), Ok(link));
        }
    }
}
