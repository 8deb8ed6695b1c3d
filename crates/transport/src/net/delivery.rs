//! What became of an answer's rows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Counts what a server sends of an answer, and how it waits for the client.
#[derive(Debug, Default)]
pub struct Delivery {
    payload_bytes: AtomicU64,
    waits: Mutex<Waits>,
}

#[derive(Debug, Default)]
struct Waits {
    count: u64,
    ended: Duration,
    /// When the wait began that has not ended.
    since: Option<Instant>,
}

impl Delivery {
    /// Bytes of all messages, without the headers of their frames.
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes.load(Ordering::Relaxed)
    }

    /// How often, and for how long, rows waited until the client had taken earlier ones. Also counts a wait that has not
    /// ended.
    pub fn waits(&self) -> (u64, Duration) {
        let waits = self.locked();
        (waits.count, waits.ended + waits.since.map_or(Duration::ZERO, |since| since.elapsed()))
    }

    pub(super) fn sent(&self, payload_bytes: u32) {
        self.payload_bytes.fetch_add(payload_bytes.into(), Ordering::Relaxed);
    }

    /// Counts a wait, until the returned value is dropped.
    pub(super) fn wait(&self) -> DeliveryWait<'_> {
        let mut waits = self.locked();
        waits.count += 1;
        waits.since = Some(Instant::now());
        DeliveryWait(self)
    }

    fn locked(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wait for the client.
pub(super) struct DeliveryWait<'a>(&'a Delivery);

impl Drop for DeliveryWait<'_> {
    fn drop(&mut self) {
        let mut waits = self.0.locked();
        if let Some(since) = waits.since.take() {
            waits.ended += since.elapsed();
        }
    }
}
