//! Detects a peer that is gone.

use std::time::{Duration, Instant};

use crate::{Result, TransportError};

/// A peer that is silent for this many intervals is given up.
const SILENT_INTERVALS: u32 = 3;

/// Pings a quiet peer, and gives it up if it stays silent.
#[derive(Debug, Clone)]
pub struct Liveness {
    interval: Duration,
    last_received: Instant,
    last_pinged: Instant,
}

impl Liveness {
    /// Starts at `now`. A ping is due after each `interval` without data from the peer; after three
    /// such intervals the peer is given up.
    pub fn new(now: Instant, interval: Duration) -> Self {
        Self { interval, last_received: now, last_pinged: now }
    }

    /// Changes the interval.
    pub(super) fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
    }

    /// Notes that data arrived from the peer.
    pub fn received(&mut self, now: Instant) {
        self.last_received = now;
    }

    /// The next time at which to call [`Liveness::wake`].
    pub fn deadline(&self) -> Instant {
        self.last_received.max(self.last_pinged) + self.interval
    }

    /// Whether a ping is due.
    ///
    /// # Errors
    /// [`TransportError::Silent`] if the peer has been silent for too long.
    pub fn wake(&mut self, now: Instant) -> Result<bool> {
        if now >= self.deadline() + self.interval {
            // This process stood still: what the peer sent meanwhile has not been read yet.
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
