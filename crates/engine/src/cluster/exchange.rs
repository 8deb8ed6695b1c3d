//! What all streams of a node to and from other nodes share, over all queries: memory for rows in flight,
//! and what the encoders have learned about columns.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_schema::SchemaRef;
use lightship_transport::net::Encoders;
use lightship_wire::control::Plan;

use super::edge_plans::EdgePlan;

/// Batches of a stream that may be in flight or unconsumed: one travels while the other is read.
pub(crate) const WINDOW_BATCHES: u32 = 2;
/// The smallest message size. A stream needs memory for two.
const MESSAGE_BYTES_MIN: u64 = 64 << 10;
/// Schemas whose encoders are kept. The state of one column can take 200 KB.
const SCHEMAS_MAX: usize = 16;

/// The memory of streams from other nodes.
///
/// A stream gets more memory when more is free, and it always gets some: if it waited for other streams,
/// which may wait for it, the query could deadlock. At most `limit_bytes` are held, plus 128 KiB for each
/// stream beyond. Messages larger than `message_bytes_max` bring no gain.
#[derive(Debug)]
pub(crate) struct Exchange {
    limit_bytes: u64,
    message_bytes_max: u64,
    held_bytes: Mutex<u64>,
    /// By schema, the most recently used first.
    encoders: Mutex<VecDeque<(SchemaRef, Encoders)>>,
}

/// A stream's share of an [`Exchange`], returned when dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    exchange: Arc<Exchange>,
    bytes: u64,
    /// Bytes that a message has room for, by the plan of its edge.
    pub(crate) message_bytes: u32,
}

impl Exchange {
    pub(crate) fn new(limit_bytes: u64, message_bytes_max: u32) -> Self {
        Self {
            limit_bytes,
            message_bytes_max: u64::from(message_bytes_max).max(1),
            held_bytes: Mutex::default(),
            encoders: Mutex::default(),
        }
    }

    /// The encoders of rows with this schema. The next stage or query with the same schema reuses what they
    /// have learned; an encoder notices when its rows differ.
    pub(crate) fn encoders(&self, schema: &SchemaRef) -> Encoders {
        let mut known = self.encoders.lock().unwrap_or_else(PoisonError::into_inner);
        let index = known.iter().position(|(columns, _)| columns == schema);
        let found = index.and_then(|index| known.remove(index));
        let found = found.unwrap_or_else(|| (schema.clone(), Encoders::default()));
        let encoders = found.1.clone();
        known.truncate(SCHEMAS_MAX - 1);
        known.push_front(found);
        encoders
    }

    /// Bytes that are reserved for streams.
    pub(crate) fn held_bytes(&self) -> u64 {
        *self.held()
    }

    fn held(&self) -> MutexGuard<'_, u64> {
        self.held_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the largest message.
    pub(crate) fn message_bytes_max(&self) -> u64 {
        self.message_bytes_max
    }

    /// Memory for streams, in all.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Leases for streams that start together, and the plan of their transfers: as the edge was planned, if there is
    /// enough memory.
    pub(crate) fn leases(self: &Arc<Self>, streams: usize, edge: Option<EdgePlan>) -> (Plan, Vec<Lease>) {
        let wanted = edge.map_or(self.message_bytes_max, |edge| u64::from(edge.message_bytes));
        let wanted = wanted.min(self.message_bytes_max);
        // A lease is never smaller than the smallest message.
        let most = wanted.max(MESSAGE_BYTES_MIN.min(self.message_bytes_max));
        // Until the leases are counted: others that start at the same time would take the same memory.
        let mut held = self.held();
        // Only half of the free memory, because other streams will follow.
        let free = self.limit_bytes.saturating_sub(*held) / 2 / streams.max(1) as u64;
        // A smaller window before smaller messages, down to the usual one.
        let window = edge.map_or(WINDOW_BATCHES, |edge| edge.window_batches);
        let fitting = u32::try_from(free / most).unwrap_or(u32::MAX);
        let window_batches = window.min(fitting.max(WINDOW_BATCHES));
        let window = u64::from(window_batches);
        let message_bytes = (free / window).max(MESSAGE_BYTES_MIN).min(most);
        let plan = Plan {
            batch_bytes: message_bytes as u32,
            message_bytes: message_bytes as u32,
            window_batches,
            codec: None,
            ..Plan::default()
        };
        let bytes = window * message_bytes;
        *held += bytes * streams as u64;
        drop(held);
        let message_bytes = wanted.min(message_bytes) as u32;
        let lease = || Lease { exchange: self.clone(), bytes, message_bytes };
        (plan, std::iter::repeat_with(lease).take(streams).collect())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.exchange.held() -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_share_the_free_memory_and_none_waits() {
        let exchange = Arc::new(Exchange::new(8 << 20, 1 << 20));
        let (plan, first) = exchange.leases(2, None);
        assert_eq!((plan.message_bytes, plan.window_batches), (1 << 20, 2));
        assert_eq!(exchange.held_bytes(), 4 << 20);
        let (plan, second) = exchange.leases(4, None);
        assert_eq!(plan.message_bytes, 256 << 10);
        assert_eq!(exchange.held_bytes(), 6 << 20);
        let (plan, many) = exchange.leases(100, None);
        assert_eq!(plan.message_bytes, 64 << 10);
        assert!(exchange.held_bytes() <= (8 << 20) + 100 * (128 << 10));
        drop((first, second, many));
        assert_eq!(exchange.held_bytes(), 0);
    }

    #[test]
    fn streams_that_start_at_the_same_time_do_not_get_the_same_memory() {
        const LIMIT: u64 = 8 << 20;
        for _ in 0..100 {
            let exchange = Arc::new(Exchange::new(LIMIT, 1 << 20));
            let start = std::sync::Barrier::new(8);
            let leases = || {
                start.wait();
                exchange.leases(2, None).1
            };
            let all: Vec<Vec<Lease>> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(leases)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let most = LIMIT + 16 * 2 * MESSAGE_BYTES_MIN;
            assert!(exchange.held_bytes() <= most, "{} bytes", exchange.held_bytes());
            drop(all);
            assert_eq!(exchange.held_bytes(), 0);
        }
    }

    #[test]
    fn an_edge_gets_the_sizes_that_were_planned_if_they_fit() {
        let exchange = Arc::new(Exchange::new(64 << 20, 1 << 20));
        let sizes = |message_bytes, window_batches, streams| {
            let edge = EdgePlan { message_bytes, window_batches };
            let (plan, _leases) = exchange.leases(streams, Some(edge));
            (plan.message_bytes, plan.window_batches)
        };
        assert_eq!(sizes(128 << 10, 2, 4), (128 << 10, 2));
        assert_eq!(sizes(1 << 20, 8, 4), (1 << 20, 8));
        assert_eq!(sizes(1 << 20, 64, 4), (1 << 20, 8));
        assert_eq!(sizes(1 << 20, 64, 32), (512 << 10, 2));
        assert_eq!(sizes(0, 1, 4), (64 << 10, 1));
        assert_eq!(sizes(u32::MAX, 1, 4), (1 << 20, 1));
        assert_eq!(exchange.held_bytes(), 0);
    }
}
