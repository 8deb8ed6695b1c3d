//! Limits how long a result may wait for its consumer.

use std::time::{Duration, Instant};

/// If a deadline is noticed this much too late, the process stood still. It then first reads what arrived
/// meanwhile.
pub const OVERSLEPT: Duration = Duration::from_secs(1);

/// A timer that runs while something waits for the consumer. It restarts each time the consumer takes something.
///
/// A consumer that answers pings and takes nothing is alive, but its query holds resources: a slot, memory,
/// a snapshot of a database.
#[derive(Debug, Clone)]
pub struct Stall {
    limit: Option<Duration>,
    waits_since: Option<Instant>,
}

impl Stall {
    /// Allows a consumer to take nothing for `limit`; without a limit, for ever.
    pub fn new(limit: Option<Duration>) -> Self {
        Self { limit, waits_since: None }
    }

    /// Notes that something waits for the consumer.
    pub fn waits(&mut self, now: Instant) {
        self.waits_since.get_or_insert(now);
    }

    /// Notes that the consumer took something.
    pub fn taken(&mut self) {
        self.waits_since = None;
    }

    /// When the timer expires; `None` if it does not run.
    pub fn deadline(&self) -> Option<Instant> {
        // A limit that `Instant` can't represent is no limit.
        self.waits_since?.checked_add(self.limit?)
    }

    /// The limit, if the consumer has taken nothing for that long.
    pub fn is_over(&mut self, now: Instant) -> Option<Duration> {
        let (limit, deadline) = (self.limit?, self.deadline()?);
        if now.checked_duration_since(deadline)? <= OVERSLEPT {
            return Some(limit);
        }
        // This process stood still: what the consumer took meanwhile is not known yet.
        self.waits_since = (now + OVERSLEPT).checked_sub(limit);
        None
    }
}
