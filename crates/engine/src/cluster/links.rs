//! What is known of the links between nodes.
//!
//! Each node measures what it receives from each other node, and announces it in its description. A link is
//! measured when its nodes meet, and again when the measurement is old, less often while queries run. Rows that
//! arrive faster than what was measured raise the rate at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use lightship_wire::Codec;
use lightship_wire::control::{ErrorCode, Plan};

use super::Cluster;
use super::cost::rates::ProcessorRates;
use super::peer::Peer;
use super::request::{LinkEntry, Probe, RequestKind};
use crate::error::{EngineError, Result};

/// How often it is checked whether a link is to be measured.
const PERIOD: Duration = Duration::from_millis(250);
/// A measurement is repeated after this long, or up to twice as long.
const AGE_MAX: Duration = Duration::from_secs(30);
/// The same while queries run.
const AGE_MAX_BUSY: Duration = Duration::from_secs(300);
/// Until a first measurement succeeds, it is tried again after this long.
const PAUSE: Duration = Duration::from_secs(5);
/// The same if the other node takes part in another measurement.
const PAUSE_BUSY: Duration = Duration::from_millis(250);
/// A measurement has ended if no probe came for this long.
const MEASUREMENT_ENDS: Duration = Duration::from_millis(500);
/// A node that takes longer to answer all probes is left out.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(20);
/// A link that does not carry a large message, in all its tries, in this time is as slow as that.
const LARGE_TIMEOUT: Duration = Duration::from_secs(6);
/// Smaller changes of a rate, or of the time of a first message, are not news to other nodes, which would be sent a
/// description for each.
const NEWS: f64 = 0.2;
/// Nor is a smaller change of the time of a first message.
const NEWS_SECONDS: f64 = 1e-3;
/// Small messages that are sent together to measure the cost of one more.
const SMALL_MESSAGES: u32 = 32;
const SMALL_BYTES: u32 = 64;
/// Bytes of the larger messages, one after the other until one takes long enough.
const LARGE_BYTES: [u32; 3] = [64 << 10, 1 << 20, 4 << 20];
/// A probe is repeated until it took about as long as another one, at most this often, and the fastest counts: a busy
/// processor makes an answer late, and never early.
const TRIES_MAX: usize = 6;
/// The most bytes of one probe in all its tries, which are two at least.
const TRIES_BYTES_MAX: u32 = 4 << 20;
/// Times that differ by less than this part are about the same.
const SAME: f64 = 0.1;
/// A probe that takes this much longer than a small message is not repeated: what a processor adds to it does not matter.
const LONG: Duration = Duration::from_millis(500);
/// It is also repeated until it takes this many round trips longer: on a new connection, TCP sends only a few packets in the
/// first round trip, and twice as many in each that follows.
const LONG_ROUND_TRIPS: u32 = 8;
/// Enough to tell the rate from the cost of a message; of a probe, what it takes longer than a small message.
const LONG_ENOUGH: Duration = Duration::from_millis(20);
/// Rows that arrive at less than this part of what was measured cast doubt on it.
const DOUBTFUL: f64 = 0.5;
/// A doubtful measurement is repeated once it is this old, and no query runs. After each repetition that confirms it, the
/// next doubt waits twice as long: the rows were late for another reason.
const AGE_DOUBTFUL: Duration = Duration::from_secs(5);
/// Rows of fewer bytes say nothing of the link.
const ARRIVED_BYTES_MIN: u64 = 1 << 20;
/// A link that carries 1 MiB in this time is not what a query waits for.
const SHORT_ENOUGH: Duration = Duration::from_millis(2);
/// The most bytes that a probe may request, in all its messages.
pub(super) const PROBE_BYTES_MAX: u64 = 4 << 20;

/// What was measured of a link, in the direction in which rows go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LinkCost {
    /// Bytes a second.
    pub(crate) bytes_per_second: f64,
    /// Seconds from a request to its first message.
    pub(crate) first_message_seconds: f64,
    /// Seconds of each further small message.
    pub(crate) message_seconds: f64,
}

#[derive(Debug, Clone, Copy)]
struct Measurement {
    cost: Option<LinkCost>,
    /// When it was last measured, or that was tried.
    at: Instant,
    /// When it is measured again.
    after: Duration,
    /// The same if rows cast doubt on it.
    after_doubt: Duration,
    /// Whether they did.
    is_doubtful: bool,
}

impl From<&LinkEntry> for LinkCost {
    fn from(entry: &LinkEntry) -> Self {
        Self {
            bytes_per_second: (entry.bytes_per_second as f64).max(1.0),
            first_message_seconds: entry.first_message_ns as f64 / 1e9,
            message_seconds: entry.message_ns as f64 / 1e9,
        }
    }
}

/// What a node has measured of the links to it, by the node that sends.
#[derive(Debug, Default)]
pub(crate) struct Links {
    measured: Mutex<BTreeMap<String, Measurement>>,
    /// The measurement of another node that this one takes part in, and when its last probe came.
    admitted: Mutex<Option<(u64, Instant)>>,
}

impl Links {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Measurement>> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this node takes part in a measurement of another node: two at a time would share its link.
    pub(super) fn admits(&self, measurement: u64, now: Instant) -> bool {
        let mut admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_other = admitted.is_some_and(|(other, at)| {
            other != measurement && now.saturating_duration_since(at) < MEASUREMENT_ENDS
        });
        if !is_other {
            *admitted = Some((measurement, now));
        }
        !is_other
    }

    /// The entries of this node's description.
    fn entries(&self) -> Vec<LinkEntry> {
        let known = self.lock();
        let entry = |(from, known): (&String, &Measurement)| {
            let cost = known.cost?;
            Some(LinkEntry {
                from: from.clone(),
                bytes_per_second: two_digits(cost.bytes_per_second) as u64,
                first_message_ns: two_digits(cost.first_message_seconds * 1e9) as u64,
                message_ns: two_digits(cost.message_seconds * 1e9) as u64,
            })
        };
        known.iter().filter_map(entry).collect()
    }

    /// Rows have arrived from a node, `took` after they were requested. The link carries at least what they show;
    /// it may carry more, because the rows may have had to be computed first.
    pub(crate) fn arrived(&self, from: &str, bytes: u64, took: Duration) {
        if bytes < ARRIVED_BYTES_MIN || took < LONG_ENOUGH {
            return;
        }
        let bytes_per_second = bytes as f64 / took.as_secs_f64();
        let mut known = self.lock();
        let Some(known) = known.get_mut(from) else { return };
        let Some(cost) = known.cost.as_mut() else { return };
        if bytes_per_second * (1.0 - NEWS) > cost.bytes_per_second {
            cost.bytes_per_second = bytes_per_second;
        } else if bytes_per_second < cost.bytes_per_second * DOUBTFUL {
            // The link may be slower than it was, or the rows were late: a measurement tells.
            known.after = known.after.min(known.after_doubt);
            known.is_doubtful = true;
        }
    }

    /// The nodes whose links are to be measured. Those that are gone are forgotten. While queries run, they would
    /// make a link look slow, and a measurement would delay them.
    fn due(&self, peers: &[Arc<Peer>], is_busy: bool, now: Instant) -> Vec<Arc<Peer>> {
        let mut known = self.lock();
        known.retain(|name, _| peers.iter().any(|peer| peer.name == *name));
        let is_due = |peer: &&Arc<Peer>| {
            known.get(&peer.name).is_none_or(|known| {
                let after = if is_busy && known.cost.is_some() { AGE_MAX_BUSY } else { known.after };
                now.saturating_duration_since(known.at) >= after
            })
        };
        peers.iter().filter(is_due).cloned().collect()
    }

    /// Stores a measurement, or that it failed, and when it is to be repeated. Returns whether the link has changed.
    fn set(&self, from: &str, cost: Option<LinkCost>, after: Duration) -> bool {
        let mut all = self.lock();
        let known = all.get(from).copied();
        let before = known.and_then(|known| known.cost);
        let is_other = |now: f64, before: f64| !(1.0 - NEWS..=1.0 / (1.0 - NEWS)).contains(&(now / before));
        let both = before.zip(cost);
        let is_other_rate = both
            .map_or(cost.is_some(), |(before, now)| is_other(now.bytes_per_second, before.bytes_per_second));
        let is_other_first = both.is_some_and(|(before, now)| {
            let (first, first_before) = (now.first_message_seconds, before.first_message_seconds);
            (first - first_before).abs() > NEWS_SECONDS && is_other(first, first_before)
        });
        let is_news = is_other_rate || is_other_first;
        // What is not told is not stored, so that small changes add up. A link that failed now may carry rows again
        // in a moment.
        let cost = if is_news { cost } else { before };
        // Nodes that start together do not measure together for ever.
        let after = after.mul_f64(1.0 + fastrand::f64());
        let after_doubt = match known {
            Some(known) if known.is_doubtful && !is_other_rate => (2 * known.after_doubt).min(AGE_MAX),
            Some(known) if !is_other_rate => known.after_doubt,
            _ => AGE_DOUBTFUL,
        };
        let at = Instant::now();
        all.insert(from.to_owned(), Measurement { cost, at, after, after_doubt, is_doubtful: false });
        is_news
    }
}

/// Measures links until this node stops.
pub(super) async fn follow(cluster: Weak<Cluster>) {
    let Some(threads) = cluster.upgrade().map(|cluster| cluster.threads.clone()) else { return };
    let rates = ProcessorRates::of_this_machine(&threads).await;
    drop(threads);
    match (rates, cluster.upgrade()) {
        (Ok(rates), Some(cluster)) => cluster.members.announce_processor(rates.into()),
        (Err(error), _) => tracing::warn!(%error, "the processor could not be measured"),
        (_, None) => return,
    }
    let mut pause = tokio::time::interval(PERIOD);
    pause.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        pause.tick().await;
        let Some(strong) = cluster.upgrade() else { return };
        let mut due = strong.links.due(&strong.members.met(), strong.queries.parts() > 0, Instant::now());
        drop(strong);
        // So that nodes that start together do not all ask the same one first.
        fastrand::shuffle(&mut due);
        for peer in due {
            let measured =
                tokio::time::timeout(MEASURE_TIMEOUT, measure(&FromPeer(&peer, fastrand::u64(..)))).await;
            let (cost, after) = match measured {
                Ok(Ok(cost)) => (Some(cost), AGE_MAX),
                Ok(Err(error)) => {
                    let is_busy =
                        matches!(&error, EngineError::Remote(failure) if failure.code == ErrorCode::Limit);
                    tracing::debug!(node = peer.name, %error, "the link was not measured");
                    (None, if is_busy { PAUSE_BUSY } else { PAUSE })
                }
                Err(_) => {
                    tracing::debug!(node = peer.name, "the node did not answer a probe");
                    (None, PAUSE)
                }
            };
            let Some(strong) = cluster.upgrade() else { return };
            strong.links.set(&peer.name, cost, after);
        }
        // Rows of queries may have changed them too.
        let Some(strong) = cluster.upgrade() else { return };
        strong.members.announce_links(strong.links.entries());
    }
}

/// A link that can be tried.
trait Prober: Sync {
    /// Requests this number of messages of this size, and returns the time until the last one has arrived.
    fn probe(&self, messages: u32, bytes: u32) -> impl Future<Output = Result<Duration>> + Send;
}

/// The link from a node, with the number of a measurement.
struct FromPeer<'a>(&'a Arc<Peer>, u64);

impl Prober for FromPeer<'_> {
    async fn probe(&self, messages: u32, bytes: u32) -> Result<Duration> {
        let Self(peer, measurement) = *self;
        let plan = Plan {
            codec: Some(Codec::None),
            // A message for each row, and all at once.
            message_bytes: bytes,
            batch_bytes: bytes,
            window_batches: messages,
            ..Plan::default()
        };
        let probe = Probe { messages, bytes, measurement };
        let began = Instant::now();
        let mut reply = peer.request(RequestKind::Probe(probe), plan, None).await?;
        while reply.next().await?.is_some() {}
        Ok(began.elapsed())
    }
}

/// Measures a link.
async fn measure(link: &impl Prober) -> Result<LinkCost> {
    // The connection may have to be opened first.
    link.probe(1, SMALL_BYTES).await?;
    let first = fastest(link, (1, SMALL_BYTES), LONG, None).await?;
    let long = first + LONG.max(LONG_ROUND_TRIPS * first);
    let small = fastest(link, (SMALL_MESSAGES, SMALL_BYTES), long, None).await?;
    let message = small.saturating_sub(first) / (SMALL_MESSAGES - 1);
    let (mut bytes_per_second, mut before) = (f64::INFINITY, (SMALL_BYTES, first));
    for bytes in LARGE_BYTES {
        // At the rate of the last message, if that was large: a small one may be a burst that the link lets pass.
        let sending = before.1.saturating_sub(first).mul_f64(f64::from(bytes) / f64::from(before.0));
        let expected = Some(first + sending).filter(|_| before.0 >= LARGE_BYTES[1]);
        let large = tokio::time::timeout(LARGE_TIMEOUT, fastest(link, (1, bytes), long, expected)).await;
        let Ok(took) = large else {
            // Unless a smaller one has told the rate, it is at most this.
            bytes_per_second = bytes_per_second.min(f64::from(bytes) / LARGE_TIMEOUT.as_secs_f64());
            break;
        };
        let took = took?;
        let more = took.saturating_sub(before.1);
        if !more.is_zero() {
            bytes_per_second = f64::from(bytes - before.0) / more.as_secs_f64();
        }
        before = (bytes, took);
        // Without the round trip, which is the same for a small message.
        let sending = took.saturating_sub(first);
        if sending >= LONG_ENOUGH || (bytes >= LARGE_BYTES[1] && sending <= SHORT_ENOUGH) {
            break;
        }
    }
    if !bytes_per_second.is_finite() {
        bytes_per_second = f64::from(before.0) / before.1.as_secs_f64().max(1e-9);
    }
    Ok(LinkCost {
        bytes_per_second,
        first_message_seconds: first.as_secs_f64(),
        message_seconds: message.as_secs_f64(),
    })
}

/// The shortest time of a probe, which is repeated unless it took about as long as `expected` or less, or `long` or more.
async fn fastest(
    link: &impl Prober,
    (messages, bytes): (u32, u32),
    long: Duration,
    expected: Option<Duration>,
) -> Result<Duration> {
    let tries = ((TRIES_BYTES_MAX / bytes) as usize).clamp(2, TRIES_MAX);
    let is_same = |took: Duration, other: Duration| took <= other.mul_f64(1.0 + SAME);
    let mut fastest = link.probe(messages, bytes).await?;
    for _ in 1..tries {
        if fastest >= long || expected.is_some_and(|expected| is_same(fastest, expected)) {
            break;
        }
        let took = link.probe(messages, bytes).await?;
        let is_enough = is_same(took.max(fastest), took.min(fastest));
        fastest = fastest.min(took);
        if is_enough {
            break;
        }
    }
    Ok(fastest)
}

/// Rounded to two significant digits.
fn two_digits(value: f64) -> f64 {
    if !value.is_finite() || value <= 0.0 {
        return 0.0;
    }
    let unit = 10_f64.powf(value.log10().floor() - 1.0);
    (value / unit).round() * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_digits_are_kept() {
        for (value, kept) in [(123_456.0, 120_000.0), (0.0987, 0.099), (9.96, 10.0), (0.0, 0.0)] {
            assert!((two_digits(value) - kept).abs() < kept * 1e-9 + 1e-12, "{value}");
        }
        assert_eq!(two_digits(f64::INFINITY), 0.0);
    }

    /// A link in simulated time, whose round trips vary by up to a millisecond, with a connection that has not sent yet.
    struct Simulated {
        bytes_per_second: f64,
        round_trip: Duration,
        /// What the connection sends in a round trip, and the variation.
        state: Mutex<(f64, fastrand::Rng)>,
    }

    impl Prober for Simulated {
        async fn probe(&self, messages: u32, bytes: u32) -> Result<Duration> {
            let round_trip = self.round_trip.as_secs_f64();
            let took = {
                let (window_bytes, random) = &mut *self.state.lock().unwrap();
                let (mut bytes, mut round_trips) = (f64::from(messages * bytes), 1.0);
                while bytes > *window_bytes && *window_bytes < self.bytes_per_second * round_trip {
                    bytes -= *window_bytes;
                    *window_bytes *= 2.0;
                    round_trips += 1.0;
                }
                let late = random.f64() * 1e-3;
                Duration::from_secs_f64(round_trips * round_trip + bytes / self.bytes_per_second + late)
            };
            tokio::time::sleep(took).await;
            Ok(took)
        }
    }

    async fn simulated(bytes_per_second: f64, round_trip: Duration, seed: u64) -> LinkCost {
        // Ten packets at first.
        let state = Mutex::new((14_600.0, fastrand::Rng::with_seed(seed)));
        measure(&Simulated { bytes_per_second, round_trip, state }).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn rates_of_links_with_any_delay_are_measured() {
        for seed in 0..100 {
            for mbit in [1.0, 10.0, 100.0, 1000.0] {
                for round_trip_ms in [0, 1, 25, 100, 300] {
                    let bytes_per_second = mbit * 1e6 / 8.0;
                    let round_trip = Duration::from_millis(round_trip_ms);
                    if bytes_per_second * round_trip.as_secs_f64() > f64::from(PROBE_BYTES_MAX as u32) {
                        // The largest probe is not as much as such a link carries in a round trip.
                        continue;
                    }
                    let cost = simulated(bytes_per_second, round_trip, seed).await;
                    let found = cost.bytes_per_second / bytes_per_second;
                    let of = format!("seed {seed}, {mbit} Mbit/s, {round_trip_ms} ms: {cost:?}");
                    assert!((0.8..1.25).contains(&found), "{of}");
                    let first = cost.first_message_seconds - round_trip.as_secs_f64();
                    assert!((0.0..2e-3).contains(&first), "{of}");
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_that_carries_hardly_anything_is_known_to_be_slow() {
        let cost = simulated(3e3, Duration::from_millis(50), 1).await;
        assert!(cost.bytes_per_second < 20e3, "{cost:?}");
    }

    #[test]
    fn rows_that_arrive_faster_raise_the_rate() {
        let links = Links::default();
        let second = Duration::from_secs(1);
        links.arrived("a:1", 10 << 20, second);
        assert!(links.entries().is_empty());
        let cost = LinkCost { bytes_per_second: 1e6, first_message_seconds: 1e-4, message_seconds: 1e-6 };
        assert!(links.set("a:1", Some(cost), AGE_MAX));
        links.arrived("a:1", 2_340_000, second);
        links.arrived("a:1", 1_500_000, second);
        // A few bytes show nothing.
        links.arrived("a:1", 30_000, second / 1000);
        assert_eq!(links.entries()[0].bytes_per_second, 2_300_000);
        // What was known is kept when a measurement fails.
        assert!(!links.set("a:1", None, PAUSE));
        assert_eq!(links.entries().len(), 1);
        // Small changes are not told, large ones are.
        let changed =
            |bytes_per_second| links.set("a:1", Some(LinkCost { bytes_per_second, ..cost }), AGE_MAX);
        assert!(!changed(2.1e6) && !changed(2.7e6) && changed(1.1e6) && changed(1.5e6));
        // The same of the time of a first message: it may have been measured while the node was busy.
        let first = |first_message_seconds| {
            let cost = LinkCost { bytes_per_second: 1.5e6, first_message_seconds, ..cost };
            links.set("a:1", Some(cost), AGE_MAX)
        };
        assert!(!first(9e-4) && first(0.2) && !first(0.21) && first(1e-4));
        assert_eq!(links.entries()[0].first_message_ns, 100_000);
    }

    #[test]
    fn rows_that_arrive_at_less_than_half_the_rate_have_the_link_measured_soon() {
        let links = Links::default();
        let cost = LinkCost { bytes_per_second: 1e6, first_message_seconds: 1e-4, message_seconds: 1e-6 };
        links.set("a:1", Some(cost), AGE_MAX);
        let after = || links.lock()["a:1"].after;
        links.arrived("a:1", 1_200_000, Duration::from_secs(2));
        assert!(after() >= AGE_MAX);
        let late = || links.arrived("a:1", 1_200_000, Duration::from_secs(3));
        late();
        assert_eq!(after(), AGE_DOUBTFUL);
        // The rate is what was measured, not what came.
        assert_eq!(links.entries()[0].bytes_per_second, 1_000_000);
        // Rows that are late for another reason do not have it measured all the time.
        for waits in [2 * AGE_DOUBTFUL, 4 * AGE_DOUBTFUL, AGE_MAX, AGE_MAX] {
            links.set("a:1", Some(cost), AGE_MAX);
            late();
            assert_eq!(after().min(AGE_MAX), waits);
        }
        links.set("a:1", Some(LinkCost { bytes_per_second: 5e5, ..cost }), AGE_MAX);
        links.arrived("a:1", 1_200_000, Duration::from_secs(6));
        assert_eq!(after(), AGE_DOUBTFUL);
    }

    #[test]
    fn a_node_takes_part_in_one_measurement_at_a_time() {
        let (links, now) = (Links::default(), Instant::now());
        assert!(links.admits(1, now));
        assert!(!links.admits(2, now + MEASUREMENT_ENDS / 2));
        assert!(links.admits(1, now + MEASUREMENT_ENDS));
        assert!(links.admits(2, now + MEASUREMENT_ENDS * 3));
    }
}
