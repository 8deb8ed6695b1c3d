//! Chooses the program or queueing discipline that shapes a link, and its arguments.

use std::fmt;

use serde::Serialize;

use crate::error::LabError;
use crate::link::{Link, Shape};

/// The mechanism that shapes a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shaper {
    /// Nothing: the loopback.
    None,
    /// The kernel's token bucket: bandwidth only, cheap.
    Tbf,
    /// The kernel's network emulator.
    Netem,
    /// A program between two namespaces that adds delay and loss if the kernel has no netem.
    Rattan,
}

/// Measured on two cores. Above this, rattan limits the speed instead of the link.
const RATTAN_BITS_PER_S_MAX: u64 = 800_000_000;
/// A delay below this may be left out if nothing can emulate it.
const DELAY_US_OPTIONAL: u64 = 1_000;

/// The largest frame of Ethernet, without its checksum.
const FRAME_BYTES: u64 = 1_514;
const QUEUE_FRAMES_MIN: u64 = 100;
/// The minimum queue length in time, for links with a shorter round trip: switches of a
/// local network hold a few milliseconds.
const QUEUE_US_MIN: u64 = 5_000;
/// The burst of a token bucket in time; short enough not to be noticed.
const BURST_US: u64 = 1_000;

impl Shaper {
    /// Chooses the shaper for `link` on a machine with or without netem.
    ///
    /// # Errors
    /// [`LabError::TooFast`] if netem is missing and the link is too fast for rattan.
    pub(crate) fn choose(link: &Link, netem: bool) -> Result<Self, LabError> {
        let Link::Wire(shape) = link else { return Ok(Self::None) };
        let Shape { bandwidth_bits_per_s, delay_us, loss } = *shape;
        if delay_us == 0 && loss == 0.0 {
            return Ok(Self::Tbf);
        }
        if netem {
            return Ok(Self::Netem);
        }
        if bandwidth_bits_per_s.is_some_and(|bits| bits <= RATTAN_BITS_PER_S_MAX) {
            return Ok(Self::Rattan);
        }
        if delay_us < DELAY_US_OPTIONAL && loss == 0.0 {
            return Ok(Self::Tbf);
        }
        let max = Link::Wire(Shape { bandwidth_bits_per_s: Some(RATTAN_BITS_PER_S_MAX), ..*shape });
        Err(LabError::TooFast { link: link.to_string(), bandwidth_max: max.to_string() })
    }

    /// A message about the part of the link that this shaper leaves out, if any.
    pub(crate) fn leaves_out(self, link: &Link) -> Option<String> {
        match (self, link) {
            (Self::Tbf, Link::Wire(shape)) if shape.delay_us > 0 => Some(format!(
                "without its delay of {} ms: the kernel has no netem, and nothing else keeps up",
                shape.delay_us as f64 / 1e3
            )),
            _ => None,
        }
    }
}

impl fmt::Display for Shaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Tbf => "tbf",
            Self::Netem => "netem",
            Self::Rattan => "rattan",
        })
    }
}

impl Shape {
    /// The capacity of the queue before the link: the bytes of a round trip, so that one
    /// stream can fill the link, but at least the queue of a switch.
    fn queue_bytes(&self) -> Option<u64> {
        let round_trip_us = (self.delay_us * 2).max(QUEUE_US_MIN);
        let bytes = bytes_in(self.bandwidth_bits_per_s?, round_trip_us);
        Some(bytes.max(QUEUE_FRAMES_MIN * FRAME_BYTES))
    }

    /// Arguments of `tc qdisc add dev … root` for `shaper`; `None` if no qdisc is needed.
    pub(crate) fn qdisc(&self, shaper: Shaper) -> Option<String> {
        match shaper {
            Shaper::Tbf => self.bucket(0),
            Shaper::Netem => {
                // The limit counts packets in flight as well as queued ones.
                let queued = self.queue_bytes().unwrap_or_default() / FRAME_BYTES;
                let flying = self
                    .bandwidth_bits_per_s
                    .map_or(100_000, |bits| bytes_in(bits, self.delay_us) / FRAME_BYTES);
                let mut words = format!("netem limit {}", queued + flying);
                if self.delay_us > 0 {
                    words += &format!(" delay {}us", self.delay_us);
                }
                if self.loss > 0.0 {
                    words += &format!(" loss {}%", self.loss * 100.0);
                }
                if let Some(bits) = self.bandwidth_bits_per_s {
                    words += &format!(" rate {bits}bit");
                }
                Some(words)
            }
            Shaper::None | Shaper::Rattan => None,
        }
    }

    /// A token bucket that holds at least `burst_bytes_min`.
    pub(crate) fn bucket(&self, burst_bytes_min: u64) -> Option<String> {
        let bits = self.bandwidth_bits_per_s?;
        let burst = self.burst_bytes()?.max(burst_bytes_min);
        let limit = self.queue_bytes()?.max(burst_bytes_min);
        Some(format!("tbf rate {bits}bit burst {burst}b limit {limit}b"))
    }

    /// The size of a token bucket. The bucket splits larger frames of the kernel when they are enqueued.
    pub(crate) fn burst_bytes(&self) -> Option<u64> {
        Some(bytes_in(self.bandwidth_bits_per_s?, BURST_US).max(2 * FRAME_BYTES))
    }

    /// Arguments of `rattan link` for one direction, `uplink` or `downlink`.
    pub(crate) fn rattan(&self, direction: &str) -> Vec<String> {
        let mut words = Vec::new();
        let mut option = |name: &str, value: String| words.extend([format!("--{direction}-{name}"), value]);
        if let (Some(bits), Some(queue)) = (self.bandwidth_bits_per_s, self.queue_bytes()) {
            option("bandwidth", format!("{bits}bps"));
            option("queue", "droptail".into());
            option("queue-args", format!(r#"{{"byte_limit":{queue}}}"#));
        }
        if self.delay_us > 0 {
            option("delay", format!("{}us", self.delay_us));
        }
        if self.loss > 0.0 {
            option("loss", self.loss.to_string());
        }
        words
    }
}

const fn bytes_in(bits_per_s: u64, us: u64) -> u64 {
    (bits_per_s as u128 * us as u128 / 8_000_000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(link: &str) -> Shape {
        match link.parse() {
            Ok(Link::Wire(shape)) => shape,
            other => panic!("{link}: {other:?}"),
        }
    }

    #[test]
    fn the_cheapest_capable_shaper_is_chosen() {
        for (link, with_netem, without) in [
            ("local", Shaper::None, Shaper::None),
            ("fast", Shaper::Tbf, Shaper::Tbf),
            ("lan", Shaper::Netem, Shaper::Tbf),
            ("wan", Shaper::Netem, Shaper::Rattan),
            ("slow", Shaper::Netem, Shaper::Rattan),
            ("100mbit,1%", Shaper::Netem, Shaper::Rattan),
        ] {
            let link: Link = link.parse().unwrap();
            assert_eq!(Shaper::choose(&link, true).unwrap(), with_netem, "{link}");
            assert_eq!(Shaper::choose(&link, false).unwrap(), without, "{link}");
        }
        for link in ["1gbit,25ms", "lan,1%", "5ms"] {
            let error = Shaper::choose(&link.parse().unwrap(), false).unwrap_err();
            assert!(matches!(error, LabError::TooFast { .. }), "{error}");
        }
    }

    #[test]
    fn an_omitted_delay_is_reported() {
        assert!(Shaper::Tbf.leaves_out(&Link::lan()).unwrap().contains("0.3 ms"));
        assert_eq!(Shaper::Tbf.leaves_out(&Link::fast()), None);
        assert_eq!(Shaper::Rattan.leaves_out(&Link::wan()), None);
    }

    #[test]
    fn token_bucket_arguments_have_rate_burst_and_queue() {
        for (link, words) in [
            ("lan", "tbf rate 1000000000bit burst 125000b limit 625000b"),
            ("fast", "tbf rate 10000000000bit burst 1250000b limit 6250000b"),
            ("1mbit", "tbf rate 1000000bit burst 3028b limit 151400b"),
        ] {
            assert_eq!(shape(link).qdisc(Shaper::Tbf).as_deref(), Some(words), "{link}");
        }
        assert_eq!(shape("0ms").qdisc(Shaper::Tbf), None);
    }

    #[test]
    fn the_netem_limit_includes_packets_in_flight() {
        for (link, words) in [
            ("wan", "netem limit 618 delay 25000us rate 100000000bit"),
            ("wan,1%", "netem limit 618 delay 25000us loss 1% rate 100000000bit"),
            ("10mbit,2%", "netem limit 100 loss 2% rate 10000000bit"),
        ] {
            assert_eq!(shape(link).qdisc(Shaper::Netem).as_deref(), Some(words), "{link}");
        }
    }

    #[test]
    fn rattan_arguments_are_given_for_each_direction() {
        assert_eq!(
            shape("wan,1%").rattan("uplink").join(" "),
            "--uplink-bandwidth 100000000bps --uplink-queue droptail \
             --uplink-queue-args {\"byte_limit\":625000} --uplink-delay 25000us --uplink-loss 0.01"
        );
        assert_eq!(shape("5ms").rattan("downlink"), ["--downlink-delay", "5000us"]);
    }
}
