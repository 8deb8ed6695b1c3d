//! The result of a measurement.

use std::fmt;

use serde::Serialize;

use crate::link::Link;
use crate::shaper::Shaper;

/// A value for each direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EachWay {
    /// From the first host to the second.
    pub a_to_b: f64,
    /// From the second host to the first.
    pub b_to_a: f64,
}

/// Round trips of one small TCP segment, on an idle link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RoundTrip {
    /// The shortest, which shows the link.
    pub min: f64,
    /// The median, which includes the delays of the machine.
    pub median: f64,
}

/// The result of [`verify`]. Displayed as two lines without a trailing newline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// The requested link.
    pub link: Link,
    /// The shaper of the link.
    pub shaper: Shaper,
    /// Payload of one TCP connection after slow start, in 1e6 bits per second.
    pub mbit_per_s: EachWay,
    /// Round trips in milliseconds.
    pub rtt_ms: RoundTrip,
    /// Share of 1000 datagrams that did not arrive.
    pub loss: EachWay,
    /// The kernel's congestion control. With loss, TCP's speed depends more on it than on the
    /// link (`cubic` at 1 % is an order of magnitude slower than `bbr`).
    pub congestion_control: String,
    /// A message about the part of the link that is left out, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { link, shaper, mbit_per_s, rtt_ms, loss, congestion_control, left_out } = self;
        write!(f, "{link} ({shaper}")?;
        if let Some(left_out) = left_out {
            write!(f, ", {left_out}")?;
        }
        write!(
            f,
            "):\n  {:.1} / {:.1} Mbit/s ({congestion_control}), round trip {:.3} ms (median {:.3}), lost {:.2} / {:.2} %",
            mbit_per_s.a_to_b,
            mbit_per_s.b_to_a,
            rtt_ms.min,
            rtt_ms.median,
            loss.a_to_b * 100.0,
            loss.b_to_a * 100.0
        )
    }
}
