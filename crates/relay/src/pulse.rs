//! Whether the node at the other end of a connection is still there: one that hangs keeps its sockets open, and all that is
//! to be forwarded by it stands still.
//!
//! Each end gives a sign of life at each interval, whatever else it sends. An answer to a question would wait behind what
//! is on its way to the other end.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep_until;

/// So many intervals of silence make a peer lost.
const SILENT_INTERVALS: u32 = 3;

/// What is known of a peer's presence, and whether one's own is to be shown.
#[derive(Debug)]
pub(crate) struct Pulse {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    heard: Instant,
    next: Instant,
    is_due: bool,
    /// Nothing more is written: a peer that has read that need not say anything.
    closed: bool,
}

impl Pulse {
    pub(crate) fn new(now: Instant, interval: Duration) -> Self {
        let state = State { heard: now, next: now + interval, is_due: false, closed: false };
        Self { interval, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes came from the peer.
    pub(crate) fn heard(&self, now: Instant) {
        self.state().heard = now;
    }

    /// This end says nothing any more.
    pub(crate) fn closed(&self) {
        self.state().closed = true;
    }

    /// Whether a sign of life is to be sent now.
    pub(crate) fn take_due(&self) -> bool {
        std::mem::take(&mut self.state().is_due)
    }

    /// Does what time asks for. Answers whether the peer is lost.
    fn wake(&self, now: Instant) -> bool {
        let mut state = self.state();
        if state.closed || now < state.next {
            return false;
        }
        // Where it was us who slept, what the peer sent meanwhile has not been read yet.
        let slept = now >= state.next + self.interval;
        if !slept && now.saturating_duration_since(state.heard) >= self.interval * SILENT_INTERVALS {
            return true;
        }
        (state.next, state.is_due) = (now + self.interval, true);
        false
    }

    /// Comes back when the peer is lost. `writer` is woken when there is something to send.
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
    fn signs_of_life_are_given_and_expected() {
        let mut now = Instant::now();
        let pulse = Pulse::new(now, INTERVAL);
        for _ in 0..10 {
            now += INTERVAL;
            assert!(!pulse.wake(now));
            assert!(pulse.take_due() && !pulse.take_due());
            pulse.heard(now);
            assert!(!pulse.wake(now) && !pulse.take_due());
        }
        for _ in 0..2 {
            now += INTERVAL;
            assert!(!pulse.wake(now));
        }
        assert!(pulse.wake(now + INTERVAL));
    }

    #[test]
    fn who_slept_does_not_blame_the_peer() {
        let now = Instant::now();
        let pulse = Pulse::new(now, INTERVAL);
        assert!(!pulse.wake(now + 10 * INTERVAL));
        assert!(pulse.take_due());
        assert!(pulse.wake(now + 11 * INTERVAL));
    }

    #[test]
    fn a_peer_that_was_told_of_the_end_owes_nothing() {
        let now = Instant::now();
        let pulse = Pulse::new(now, INTERVAL);
        pulse.closed();
        for intervals in 1..10 {
            assert!(!pulse.wake(now + intervals * INTERVAL));
        }
        assert!(!pulse.take_due());
    }
}
