//! Adjusts the number of connections of a reception while it runs.

use crate::error::{Result, within};

/// As many times the connections that the rate needs are opened. More than one lets the rate rise where it is not yet
/// the link's, and covers parts that take longer than others.
const GAIN: f64 = 2.0;
/// The fewest connections at a time, unless the limit is lower: while one part ends and the next begins, others arrive.
const LEAST: u32 = 4;
/// For small parts the number is not less than `SMALL_BYTES` of them together, up to [`SMALL_MAX`]: fewer wake-ups.
const SMALL_MAX: u32 = 16;
/// Bytes that may arrive at once without filling the queue of a link, of which some milliseconds are usual.
const SMALL_BYTES: f64 = 512.0 * 1024.0;
/// Minimum round trips of an epoch.
const EPOCH_ROUND_TRIPS: f64 = 4.0;
/// Minimum time of an epoch in seconds, which is longer than the clock's and the scheduler's noise.
const EPOCH_SECONDS_MIN: f64 = 2e-3;
/// What is left of the highest rate after an epoch in which it was not reached.
const DECAY: f64 = 0.9;

/// Controls how many connections a receiver opens at a time: as many as are needed for the highest rate that was
/// measured, with a gain.
///
/// Parts that end at a rate of r per second, and begin to arrive t seconds after they were requested if nothing is in
/// their way, need `1 + r t` connections (Little's law). With more, the rate does not rise: parts wait for each other,
/// and if many begin at once, the queue of the link overflows; a lost end of an answer is repeated after 200 ms only
/// (incast). With fewer, the receiver waits. The rate is the highest of the last epochs and the time the shortest of
/// all, as neither is measured too high or too low by waiting: the idea of N. Cardwell, Y. Cheng, C. S. Gunn, S. H.
/// Yeganeh and V. Jacobson, "BBR: Congestion-Based Congestion Control", for parts instead of packets.
///
/// Call [`ConnectionController::first_byte`] when a part begins to arrive, and [`ConnectionController::ended`] when it
/// has ended.
#[derive(Debug, Clone)]
pub struct ConnectionController {
    max: u32,
    rtt_seconds: f64,
    connections: u32,
    first_byte_seconds: Option<f64>,
    /// Parts per second.
    rate: f64,
    bytes: f64,
    parts: u64,
    epoch: Option<Epoch>,
}

#[derive(Debug, Clone, Copy)]
struct Epoch {
    began: f64,
    parts: u32,
}

impl ConnectionController {
    /// Starts with `first` connections, and never exceeds `max`. Both are raised to 1. A round trip of 0 says that the
    /// senders are on this host.
    ///
    /// # Errors
    /// [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) for a round trip that is negative, not finite, or
    /// over a million seconds.
    pub fn new(first: u32, max: u32, rtt_seconds: f64) -> Result<Self> {
        within("round trip in seconds", rtt_seconds, 0.0, 1e6)?;
        let max = max.max(1);
        Ok(Self {
            max,
            rtt_seconds,
            connections: first.clamp(1, max),
            first_byte_seconds: None,
            rate: 0.0,
            bytes: 0.0,
            parts: 0,
            epoch: None,
        })
    }

    /// The number of connections to keep open.
    pub fn connections(&self) -> u32 {
        self.connections
    }

    /// Records that a part has begun to arrive, `seconds` after it was requested.
    pub fn first_byte(&mut self, seconds: f64) {
        if seconds >= 0.0 {
            self.first_byte_seconds =
                Some(self.first_byte_seconds.map_or(seconds, |least| least.min(seconds)));
        }
    }

    /// Records that a part of `bytes` bytes ended at `at_seconds`, measured from any fixed moment.
    pub fn ended(&mut self, at_seconds: f64, bytes: u64) {
        self.parts = self.parts.saturating_add(1);
        self.bytes += bytes as f64;
        let epoch = match &mut self.epoch {
            Some(epoch) if at_seconds >= epoch.began => epoch,
            epoch => {
                *epoch = Some(Epoch { began: at_seconds, parts: 0 });
                return;
            }
        };
        epoch.parts = epoch.parts.saturating_add(1);
        let seconds = at_seconds - epoch.began;
        let enough = (EPOCH_ROUND_TRIPS * self.rtt_seconds).max(EPOCH_SECONDS_MIN);
        if seconds < enough || epoch.parts < self.connections {
            return;
        }
        self.rate = (DECAY * self.rate).max(f64::from(epoch.parts) / seconds);
        self.epoch = Some(Epoch { began: at_seconds, parts: 0 });
        if let Some(first_byte) = self.first_byte_seconds {
            let needed = (GAIN * (1.0 + self.rate * first_byte)).ceil();
            self.connections = (needed.min(f64::from(u32::MAX)) as u32).max(self.least()).min(self.max);
        }
    }

    /// The number that is never too much, with parts of this size.
    fn least(&self) -> u32 {
        // On one host there is no queue of a link.
        if self.rtt_seconds <= 0.0 {
            return SMALL_MAX;
        }
        let part = (self.bytes / self.parts.max(1) as f64).max(1.0);
        ((SMALL_BYTES / part) as u32).clamp(LEAST, SMALL_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link that carries `rate` parts per second, whose senders answer after `first_byte` seconds.
    struct Link {
        rate: f64,
        first_byte: f64,
        part_bytes: u64,
    }

    impl Link {
        /// The numbers of connections after each of so many parts.
        fn run(&self, first: u32, max: u32, parts: usize) -> Vec<u32> {
            let mut controller = ConnectionController::new(first, max, 1e-3).expect("a round trip");
            let mut at = 0.0;
            (0..parts)
                .map(|part| {
                    let k = f64::from(controller.connections());
                    // A part alone takes the time to its first byte, and its time on the link.
                    let alone = self.first_byte + 1.0 / self.rate;
                    // The first one waits for no other.
                    let waiting = (k.min(part as f64) / self.rate - alone).max(0.0);
                    at += 1.0 / self.rate.min(k / alone);
                    controller.first_byte(self.first_byte + waiting);
                    controller.ended(at, self.part_bytes);
                    assert!(controller.connections() <= max.max(1));
                    controller.connections()
                })
                .collect()
        }
    }

    #[test]
    fn distant_senders_get_as_many_connections_as_the_link_needs() {
        // 22 parts are on the way at once.
        let wan = Link { rate: 220.0, first_byte: 0.1, part_bytes: 55_000 };
        let tried = wan.run(4, 64, 1000);
        assert!(tried.is_sorted_by(|a, b| a <= b || a - b <= 8), "{tried:?}");
        assert!((23..=48).contains(tried.last().expect("parts")), "{tried:?}");
        // Within a few round trips: the number doubles.
        assert!(tried[100] >= 16, "{tried:?}");
    }

    #[test]
    fn near_senders_get_few_connections() {
        let lan = Link { rate: 2200.0, first_byte: 0.5e-3, part_bytes: 55_000 };
        let found = *lan.run(64, 64, 1000).last().expect("parts");
        assert!((4..=9).contains(&found), "{found}");
        let found = *lan.run(4, 64, 1000).last().expect("parts");
        assert!((4..=9).contains(&found), "{found}");
        let large = Link { rate: 240.0, first_byte: 1e-3, part_bytes: 500_000 };
        assert_eq!(large.run(4, 64, 1000).last(), Some(&4));
        let small = Link { rate: 20_000.0, first_byte: 0.1e-3, part_bytes: 5_000 };
        assert_eq!(small.run(4, 64, 1000).last(), Some(&16));
    }

    #[test]
    fn senders_on_this_host_fill_no_queue() {
        let mut controller = ConnectionController::new(34, 64, 0.0).expect("a round trip");
        for part in 0..1000 {
            controller.first_byte(0.2e-3);
            controller.ended(f64::from(part) * 0.2e-3, 500_000);
        }
        assert_eq!(controller.connections(), 16);
    }

    #[test]
    fn the_maximum_is_kept() {
        let wan = Link { rate: 220.0, first_byte: 0.1, part_bytes: 0 };
        assert_eq!(wan.run(1, 1, 1000).last(), Some(&1));
        assert_eq!(wan.run(4, 6, 1000).last(), Some(&6));
        assert_eq!(wan.run(0, 0, 10), [1; 10]);
        assert!(ConnectionController::new(1, 1, f64::NAN).is_err());
    }

    #[test]
    fn clocks_and_times_that_make_no_sense_are_survived() {
        let mut controller = ConnectionController::new(4, 64, 0.0).expect("a round trip");
        for at in [5.0, 1.0, f64::NAN, 2.0, 1e300, -1.0, f64::INFINITY, 3.0] {
            controller.first_byte(at);
            controller.ended(at, u64::MAX);
            assert!((1..=64).contains(&controller.connections()));
        }
    }
}
