//! What a node's streams to and from others share, of all queries: memory for rows on their way, and what is known of
//! columns.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_schema::SchemaRef;
use lightship_transport::net::Encoders;
use lightship_wire::control::Plan;

/// Batches of a stream that may be on their way or unconsumed: one travels while one is read.
const WINDOW_BATCHES: u32 = 2;
/// A message is never smaller: less memory than for two of them no stream can do with.
const MESSAGE_BYTES_MIN: u64 = 64 << 10;
/// So many kinds of rows are remembered: what is known of a column can take 200 KB.
const SCHEMAS_MAX: usize = 16;

/// What streams from other nodes may hold here.
///
/// A stream gets the more, the more is free, and always something: were it to wait for others, which may wait
/// for it, the query could lock up. So at most `limit_bytes` are held, and 128 KiB for each stream beyond.
/// Beyond `message_bytes_max`, larger messages win nothing.
#[derive(Debug)]
pub(crate) struct Exchange {
    limit_bytes: u64,
    message_bytes_max: u64,
    held_bytes: AtomicU64,
    /// By columns, those that were asked for last at the front.
    encoders: Mutex<VecDeque<(SchemaRef, Encoders)>>,
}

/// A stream's part of an [`Exchange`], returned when dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    exchange: Arc<Exchange>,
    bytes: u64,
}

impl Exchange {
    pub(crate) fn new(limit_bytes: u64, message_bytes_max: u32) -> Self {
        Self {
            limit_bytes,
            message_bytes_max: u64::from(message_bytes_max).max(1),
            held_bytes: AtomicU64::new(0),
            encoders: Mutex::default(),
        }
    }

    /// What rows of these columns are encoded with. The next stage, or query, with the same columns need not find out
    /// anew what they are like; should they be otherwise, an encoder notices.
    pub(crate) fn encoders(&self, schema: &SchemaRef) -> Encoders {
        let mut known = self.encoders.lock().unwrap_or_else(PoisonError::into_inner);
        let place = known.iter().position(|(columns, _)| columns == schema);
        let found = place.and_then(|place| known.remove(place));
        let found = found.unwrap_or_else(|| (schema.clone(), Encoders::default()));
        let encoders = found.1.clone();
        known.truncate(SCHEMAS_MAX - 1);
        known.push_front(found);
        encoders
    }

    /// Bytes that streams hold, or may come to hold.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Parts for streams that begin together, and the plan of their transfers.
    pub(crate) fn leases(self: &Arc<Self>, streams: usize) -> (Plan, Vec<Lease>) {
        let window = u64::from(WINDOW_BATCHES);
        // Half of what is free: others will come.
        let free = self.limit_bytes.saturating_sub(self.held_bytes()) / 2;
        let share = free / (streams.max(1) as u64 * window);
        let message_bytes = share.max(MESSAGE_BYTES_MIN).min(self.message_bytes_max);
        let plan = Plan {
            batch_bytes: message_bytes as u32,
            message_bytes: message_bytes as u32,
            window_batches: WINDOW_BATCHES,
            codec: None,
            ..Plan::default()
        };
        let bytes = window * message_bytes;
        let lease = || {
            self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
            Lease { exchange: self.clone(), bytes }
        };
        (plan, std::iter::repeat_with(lease).take(streams).collect())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.exchange.held_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_share_what_is_free_and_none_waits() {
        let exchange = Arc::new(Exchange::new(8 << 20, 1 << 20));
        let (plan, first) = exchange.leases(2);
        assert_eq!((plan.message_bytes, plan.window_batches), (1 << 20, 2));
        assert_eq!(exchange.held_bytes(), 4 << 20);
        let (plan, second) = exchange.leases(4);
        assert_eq!(plan.message_bytes, 256 << 10);
        assert_eq!(exchange.held_bytes(), 6 << 20);
        let (plan, many) = exchange.leases(100);
        assert_eq!(plan.message_bytes, 64 << 10);
        assert!(exchange.held_bytes() <= (8 << 20) + 100 * (128 << 10));
        drop((first, second, many));
        assert_eq!(exchange.held_bytes(), 0);
    }
}
