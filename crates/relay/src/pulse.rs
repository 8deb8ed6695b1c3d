//! Detects a node that hangs: its sockets stay open, and everything that it should forward stands still.
//!
//! Each end of a connection sends a heartbeat at each interval, in addition to its other frames. A ping
//! that needs an answer would have to wait behind the frames on their way to the other end.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep_until;

/// A connection is broken after this many intervals of silence.
const SILENT_INTERVALS: u32 = 3;

/// When the peer was last heard, and whether this end has to send a heartbeat.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    heard: Instant,
    next: Instant,
    is_due: bool,
    /// This end writes nothing more. The peer knows that and need not send heartbeats.
    closed: bool,
}

impl Heartbeat {
    pub(crate) fn new(now: Instant, interval: Duration) -> Self {
        let state = State { heard: now, next: now + interval, is_due: false, closed: false };
        Self { interval, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes have arrived from the peer.
    pub(crate) fn heard(&self, now: Instant) {
        self.state().heard = now;
    }

    /// This end writes nothing more.
    pub(crate) fn closed(&self) {
        self.state().closed = true;
    }

    /// Whether a heartbeat is to be sent now; resets the answer.
    pub(crate) fn take_due(&self) -> bool {
        std::mem::take(&mut self.state().is_due)
    }

    /// Handles a timeout. Returns whether the peer was silent for too long.
    fn wake(&self, now: Instant) -> bool {
        let mut state = self.state();
        if state.closed || now < state.next {
            return false;
        }
        // If this process was suspended, it has not yet read what the peer sent in the meantime.
        let slept = now >= state.next + self.interval;
        if !slept && now.saturating_duration_since(state.heard) >= self.interval * SILENT_INTERVALS {
            return true;
        }
        (state.next, state.is_due) = (now + self.interval, true);
        false
    }

    /// Waits until the peer was silent for too long. Notifies `writer` when a heartbeat is to be sent.
    pub(crate) async fn lost(&self, writer: &Notify) {
        loop {
            let next = self.state().next;
            sleep_until(next.into()).await;
            if self.state().closed {
                return std::future::pending().await;
            }
            if self.wake(Instant::now()) {
                return;
            }
            writer.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(3);

    #[test]
    fn heartbeats_are_sent_and_expected() {
        let mut now = Instant::now();
        let heartbeat = Heartbeat::new(now, INTERVAL);
        for _ in 0..10 {
            now += INTERVAL;
            assert!(!heartbeat.wake(now));
            assert!(heartbeat.take_due() && !heartbeat.take_due());
            heartbeat.heard(now);
            assert!(!heartbeat.wake(now) && !heartbeat.take_due());
        }
        for _ in 0..2 {
            now += INTERVAL;
            assert!(!heartbeat.wake(now));
        }
        assert!(heartbeat.wake(now + INTERVAL));
    }

    #[test]
    fn a_suspended_process_does_not_count_its_peer_as_lost() {
        let now = Instant::now();
        let heartbeat = Heartbeat::new(now, INTERVAL);
        assert!(!heartbeat.wake(now + 10 * INTERVAL));
        assert!(heartbeat.take_due());
        assert!(heartbeat.wake(now + 11 * INTERVAL));
    }

    #[test]
    fn after_the_close_no_heartbeats_are_expected() {
        let now = Instant::now();
        let heartbeat = Heartbeat::new(now, INTERVAL);
        heartbeat.closed();
        for intervals in 1..10 {
            assert!(!heartbeat.wake(now + intervals * INTERVAL));
        }
        assert!(!heartbeat.take_due());
    }
}
