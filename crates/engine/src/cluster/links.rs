//! What is known of the links between nodes.
//!
//! Each node measures what it receives from each other node, and announces it in its description. A link is
//! measured when its nodes meet, and again when the measurement is old and the node has nothing else to do.
//! Rows that arrive faster than what was measured raise the rate at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use lightship_wire::Codec;
use lightship_wire::control::Plan;

use super::Cluster;
use super::cost::rates::ProcessorRates;
use super::peer::Peer;
use super::request::{LinkEntry, Probe, RequestKind};
use crate::error::Result;

/// How often it is checked whether a link is to be measured.
const PERIOD: Duration = Duration::from_secs(1);
/// A measurement is repeated after this long.
const AGE_MAX: Duration = Duration::from_secs(30);
/// A failed measurement is repeated after this long.
const PAUSE: Duration = Duration::from_secs(5);
/// Small messages that are sent together to measure the cost of one more.
const SMALL_MESSAGES: u32 = 32;
const SMALL_BYTES: u32 = 64;
/// Bytes of the large messages, one after the other until one takes long enough.
const LARGE_BYTES: [u32; 3] = [64 << 10, 1 << 20, 4 << 20];
/// Enough to tell the rate from the cost of a message.
const LONG_ENOUGH: Duration = Duration::from_millis(20);
/// Rows of fewer bytes say nothing of the link.
const ARRIVED_BYTES_MIN: u64 = 1 << 20;
/// A link that carries 1 MiB in this time is not what a query waits for.
const SHORT_ENOUGH: Duration = Duration::from_millis(2);
/// The most that a probe may request.
pub(super) const PROBE_BYTES_MAX: u32 = 4 << 20;
pub(super) const PROBE_MESSAGES_MAX: u32 = 1024;

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
struct Known {
    cost: Option<LinkCost>,
    /// When it was last measured, or that was tried.
    at: Instant,
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
pub(crate) struct Links(Mutex<BTreeMap<String, Known>>);

impl Links {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What other nodes are told: two digits are enough, so that small changes are not worth a message.
    pub(crate) fn entries(&self) -> Vec<LinkEntry> {
        let known = self.lock();
        let entry = |(from, known): (&String, &Known)| {
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

    /// Rows have arrived from a node. The link carries at least what they show; it may carry more, because the
    /// rows may have had to be computed first.
    pub(crate) fn arrived(&self, from: &str, bytes: u64, took: Duration) {
        if bytes < ARRIVED_BYTES_MIN || took < LONG_ENOUGH {
            return;
        }
        let bytes_per_second = bytes as f64 / took.as_secs_f64();
        let mut known = self.lock();
        if let Some(cost) = known.get_mut(from).and_then(|known| known.cost.as_mut()) {
            cost.bytes_per_second = cost.bytes_per_second.max(bytes_per_second);
        }
    }

    /// The nodes whose links are to be measured, and those that are gone are forgotten.
    fn due<'a>(&self, peers: &'a [Arc<Peer>], now: Instant) -> Vec<&'a Arc<Peer>> {
        let mut known = self.lock();
        known.retain(|name, _| peers.iter().any(|peer| peer.name == *name));
        let is_due = |peer: &&Arc<Peer>| {
            known.get(&peer.name).is_none_or(|known| {
                let age = if known.cost.is_some() { AGE_MAX } else { PAUSE };
                now.saturating_duration_since(known.at) >= age
            })
        };
        peers.iter().filter(is_due).collect()
    }

    fn set(&self, from: &str, cost: Option<LinkCost>) {
        let mut all = self.lock();
        let before = all.get(from).and_then(|known| known.cost);
        // A link that failed now may carry rows again in a moment.
        all.insert(from.to_owned(), Known { cost: cost.or(before), at: Instant::now() });
    }
}

/// Measures links until this node stops.
pub(super) async fn follow(cluster: Weak<Cluster>) {
    if let Some(cluster) = cluster.upgrade() {
        let measuring = ProcessorRates::of_this_machine(&cluster.threads).await;
        match measuring {
            Ok(rates) => cluster.members.announce_processor(rates.into()),
            Err(error) => tracing::warn!(%error, "the processor could not be measured"),
        }
    }
    let mut pause = tokio::time::interval(PERIOD);
    pause.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        pause.tick().await;
        let Some(cluster) = cluster.upgrade() else { return };
        let peers = cluster.members.met();
        let due = cluster.links.due(&peers, Instant::now());
        for peer in &due {
            // Rows of queries would make the link look slow, and have it themselves.
            if cluster.queries.parts() > 0 && cluster.links.lock().contains_key(&peer.name) {
                continue;
            }
            let measured = measure(peer).await;
            if let Err(error) = &measured {
                tracing::debug!(node = peer.name, %error, "the link could not be measured");
            }
            cluster.links.set(&peer.name, measured.ok());
        }
        if !due.is_empty() {
            cluster.members.announce_links(cluster.links.entries());
        }
    }
}

/// Measures the link from a node.
async fn measure(peer: &Arc<Peer>) -> Result<LinkCost> {
    // The connection may have to be opened first.
    probe(peer, 1, SMALL_BYTES).await?;
    let (first, small) =
        (probe(peer, 1, SMALL_BYTES).await?, probe(peer, SMALL_MESSAGES, SMALL_BYTES).await?);
    let message = small.saturating_sub(first) / (SMALL_MESSAGES - 1);
    let (mut bytes_per_second, mut before) = (f64::INFINITY, (SMALL_BYTES, first));
    for bytes in LARGE_BYTES {
        let took = probe(peer, 1, bytes).await?;
        let more = took.saturating_sub(before.1);
        if !more.is_zero() {
            bytes_per_second = f64::from(bytes - before.0) / more.as_secs_f64();
        }
        before = (bytes, took);
        if took >= LONG_ENOUGH || (bytes >= 1 << 20 && took <= SHORT_ENOUGH) {
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

/// The time from a request of messages to the last of them.
async fn probe(peer: &Arc<Peer>, messages: u32, bytes: u32) -> Result<Duration> {
    let plan = Plan {
        codec: Some(Codec::None),
        // A message for each row, and all at once.
        message_bytes: bytes,
        batch_bytes: bytes,
        window_batches: messages,
        ..Plan::default()
    };
    let began = Instant::now();
    let mut reply = peer.request(RequestKind::Probe(Probe { messages, bytes }), plan, None).await?;
    while reply.next().await?.is_some() {}
    Ok(began.elapsed())
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

    #[test]
    fn rows_that_arrive_faster_raise_the_rate() {
        let links = Links::default();
        let second = Duration::from_secs(1);
        links.arrived("a:1", 10 << 20, second);
        assert!(links.entries().is_empty());
        let cost = LinkCost { bytes_per_second: 1e6, first_message_seconds: 1e-4, message_seconds: 1e-6 };
        links.set("a:1", Some(cost));
        links.arrived("a:1", 2_340_000, second);
        links.arrived("a:1", 1_500_000, second);
        // A few bytes show nothing.
        links.arrived("a:1", 30_000, second / 1000);
        assert_eq!(links.entries()[0].bytes_per_second, 2_300_000);
        // What was known is kept when a measurement fails.
        links.set("a:1", None);
        assert_eq!(links.entries().len(), 1);
    }
}
