//! Messages that go back and forth, one after the other, so that their latency counts and not their bytes.
//!
//! If the caller has counted them, that number is used. Otherwise they are taken from small messages in both
//! directions: each exchange makes a thread sleep at least once, and is at least one segment each way.

use crate::figure::Figure;
use crate::gather::Readings;
use crate::query::Known;

/// Bytes in both directions for an exchange, up to which it counts as small: two segments.
const EXCHANGE_BYTES_MAX: f64 = 3000.0;
/// Exchanges whose bytes take less than this part of a round trip are limited by it, too.
const EXCHANGE_PART_MAX: f64 = 0.5;
/// Fewer exchanges count, too, if their calibrated round trips take this part of the time.
const ROUND_TRIPS_PART_MIN: f64 = 0.2;
/// Exchanges per second from which they can be what limits a query.
const EXCHANGES_PER_SECOND_MIN: f64 = 50.0;

/// Exchanges in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Exchanges {
    /// How many.
    pub(crate) count: f64,
    /// Time of a round trip by calibration, in seconds.
    pub(crate) round_trip_seconds: Option<f64>,
}

impl Exchanges {
    /// Whether they can be what limits a step.
    fn are_many(&self, length_ns: u64) -> bool {
        let length = length_ns as f64 / 1e9;
        let round_trips = self.count * self.round_trip_seconds.unwrap_or(0.0);
        self.count >= EXCHANGES_PER_SECOND_MIN * length || round_trips >= ROUND_TRIPS_PART_MIN * length
    }

    /// Whether messages of `bytes` in total take little time compared with their round trips, on a link of this rate.
    fn are_short(&self, bytes: f64, rate: Option<f64>) -> bool {
        let in_flight = self.round_trip_seconds.zip(rate).map_or(0.0, |(seconds, rate)| seconds * rate);
        bytes <= (EXCHANGE_PART_MAX * in_flight).max(EXCHANGE_BYTES_MAX) * self.count
    }
}

/// The exchanges of a step of a query that ran for `run_ns`, as seen from one host; `None` if none count.
pub(crate) fn exchanges(
    readings: &Readings,
    known: &Known,
    run_ns: u64,
    from: u64,
    to: u64,
) -> Option<Exchanges> {
    let own = |figure| readings.own(figure, from, to);
    let sum = |figures| readings.own_sum(figures, from, to);
    let length_ns = to.saturating_sub(from);
    let received = sum([Figure::NetworkReceivedBytes, Figure::LoopbackReceivedBytes]);
    let sent = sum([Figure::NetworkSentBytes, Figure::LoopbackSentBytes]);
    let bytes = received.unwrap_or(0.0) + sent.unwrap_or(0.0);
    let loopback = sum([Figure::LoopbackReceivedBytes, Figure::LoopbackSentBytes]).unwrap_or(0.0);
    let link = &readings.speeds.link;
    let round_trip_seconds = link.round_trip_seconds.filter(|_| loopback <= bytes / 2.0);
    if let Some(counted) = known.round_trips {
        let part = length_ns as f64 / run_ns.max(1) as f64;
        let exchanges = Exchanges { count: counted as f64 * part, round_trip_seconds };
        // Of their bytes, those of the result are known.
        let bytes = known.result_bytes.unwrap_or(0) as f64 * part;
        let is_latency =
            exchanges.are_many(length_ns) && exchanges.are_short(bytes, link.sent_bytes_per_second);
        return is_latency.then_some(exchanges);
    }
    let segments = own(Figure::SocketSegmentsReceived).zip(own(Figure::SocketSegmentsSent));
    let segments = segments.map(|(received, sent)| received.min(sent));
    // Waits for disks and locks are sleeps, too: the lesser of both is nearest.
    let count = match (segments, own(Figure::VoluntarySwitches)) {
        (Some(segments), Some(switches)) => segments.min(switches),
        (segments, switches) => segments.or(switches)?,
    };
    let exchanges = Exchanges { count, round_trip_seconds };
    // An exchange has at least a byte each way.
    let is_small = count <= received?.min(sent?) && exchanges.are_short(bytes, None);
    (is_small && exchanges.are_many(length_ns)).then_some(exchanges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_are_many_or_far_and_short() {
        let second = 1_000_000_000;
        let near = |count| Exchanges { count, round_trip_seconds: Some(1e-4) };
        let far = |count| Exchanges { count, round_trip_seconds: Some(0.05) };
        assert!(near(5000.0).are_many(second) && !near(10.0).are_many(second));
        assert!(far(10.0).are_many(second) && !far(1.0).are_many(second));
        // 100 kB in each of ten round trips of 50 ms over 1 Gbit/s; the same over 1 Mbit/s.
        assert!(far(10.0).are_short(1e6, Some(1.25e8)));
        assert!(!far(10.0).are_short(1e6, Some(1.25e5)) && !far(10.0).are_short(1e6, None));
    }
}
