//! Whether the node at the other end of a connection is still there: one that hangs keeps its sockets open, and all that is
//! to be forwarded by it stands still.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep_until;

/// So many intervals of silence make a peer lost.
const SILENT_INTERVALS: u32 = 3;

/// What is known of a peer's presence, and what is to be said about one's own.
#[derive(Debug)]
pub(crate) struct Pulse {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    heard: Instant,
    pinged: Instant,
    ping_due: bool,
    pong_due: bool,
    /// Nothing more is written: a peer that has read that need not say anything.
    closed: bool,
}

/// What is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beat {
    Ping,
    Pong,
}

impl Pulse {
    pub(crate) fn new(now: Instant, interval: Duration) -> Self {
        let state = State { heard: now, pinged: now, ping_due: false, pong_due: false, closed: false };
        Self { interval, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes came from the peer.
    pub(crate) fn heard(&self, now: Instant) {
        self.state().heard = now;
    }

    /// The peer wants to hear something.
    pub(crate) fn asked(&self) {
        self.state().pong_due = true;
    }

    /// This end says nothing any more.
    pub(crate) fn closed(&self) {
        self.state().closed = true;
    }

    /// What is to be sent next. Pings that came before their answer has left share it.
    pub(crate) fn next(&self) -> Option<Beat> {
        let mut state = self.state();
        if std::mem::take(&mut state.pong_due) {
            return Some(Beat::Pong);
        }
        std::mem::take(&mut state.ping_due).then_some(Beat::Ping)
    }

    fn deadline(&self) -> Instant {
        let state = self.state();
        state.heard.max(state.pinged) + self.interval
    }

    /// Does what time asks for. Answers for how long the peer has been silent, where that is too long.
    fn wake(&self, now: Instant) -> Option<Duration> {
        let mut state = self.state();
        let deadline = state.heard.max(state.pinged) + self.interval;
        if state.closed || now < deadline {
            return None;
        }
        let silent = now.saturating_duration_since(state.heard);
        // Where it was us who slept, what the peer sent meanwhile has not been read yet.
        if now < deadline + self.interval && silent >= self.interval * SILENT_INTERVALS {
            return Some(silent);
        }
        (state.pinged, state.ping_due) = (now, true);
        None
    }

    /// Comes back when the peer has been silent for too long. `wake_writer` is told when there is something to send.
    pub(crate) async fn lost(&self, wake_writer: &Notify) {
        loop {
            sleep_until(self.deadline().into()).await;
            if self.state().closed {
                return std::future::pending().await;
            }
            if self.wake(Instant::now()).is_some() {
                return;
            }
            wake_writer.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(3);

    #[test]
    fn a_quiet_peer_is_pinged_and_a_silent_one_is_lost() {
        let mut now = Instant::now();
        let pulse = Pulse::new(now, INTERVAL);
        for _ in 0..10 {
            now += INTERVAL;
            assert_eq!((pulse.wake(now), pulse.next(), pulse.next()), (None, Some(Beat::Ping), None));
            pulse.heard(now);
        }
        for _ in 0..2 {
            now += INTERVAL;
            assert_eq!(pulse.wake(now), None);
        }
        now += INTERVAL;
        assert_eq!(pulse.wake(now), Some(3 * INTERVAL));
    }

    #[test]
    fn who_slept_does_not_blame_the_peer() {
        let now = Instant::now();
        let pulse = Pulse::new(now, INTERVAL);
        assert_eq!(pulse.wake(now + 10 * INTERVAL), None);
        assert_eq!(pulse.next(), Some(Beat::Ping));
        assert_eq!(pulse.wake(now + 11 * INTERVAL), Some(11 * INTERVAL));
    }

    #[test]
    fn pings_share_an_answer() {
        let pulse = Pulse::new(Instant::now(), INTERVAL);
        pulse.asked();
        pulse.asked();
        assert_eq!((pulse.next(), pulse.next()), (Some(Beat::Pong), None));
    }

    #[test]
    fn a_peer_that_was_told_of_the_end_owes_nothing() {
        let now = Instant::now();
        let pulse = Pulse::new(now, INTERVAL);
        pulse.closed();
        for intervals in 1..10 {
            assert_eq!(pulse.wake(now + intervals * INTERVAL), None);
        }
        assert_eq!(pulse.next(), None);
    }
}
