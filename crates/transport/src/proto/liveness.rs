//! Whether the peer is still there.

use std::time::{Duration, Instant};

use crate::{Result, TransportError};

/// How many intervals of silence make a peer dead.
const SILENT_INTERVALS: u32 = 3;

/// Pings a peer that is quiet and gives it up when it stays silent.
#[derive(Debug, Clone)]
pub struct Liveness {
    interval: Duration,
    last_received: Instant,
    last_pinged: Instant,
}

impl Liveness {
    /// Watches from `now`; a ping goes out after each `interval` without a frame
    /// from the peer, and three such intervals are the end.
    pub fn new(now: Instant, interval: Duration) -> Self {
        Self { interval, last_received: now, last_pinged: now }
    }

    /// Watches by another interval from now on.
    pub(super) fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
    }

    /// Something came from the peer.
    pub fn received(&mut self, now: Instant) {
        self.last_received = now;
    }

    /// When [`Liveness::wake`] wants to be called.
    pub fn deadline(&self) -> Instant {
        self.last_received.max(self.last_pinged) + self.interval
    }

    /// Whether a ping is due.
    ///
    /// # Errors
    /// [`TransportError::Silent`] when the peer has been silent for too long.
    pub fn wake(&mut self, now: Instant) -> Result<bool> {
        if now >= self.deadline() + self.interval {
            // It was us who slept: what the peer sent meanwhile has not been read yet.
            self.last_pinged = now;
            return Ok(true);
        }
        let silent = now.saturating_duration_since(self.last_received);
        if silent >= self.interval * SILENT_INTERVALS {
            return Err(TransportError::Silent { after: silent });
        }
        if now < self.deadline() {
            return Ok(false);
        }
        self.last_pinged = now;
        Ok(true)
    }
}
