//! How long a result may stand still because its consumer takes nothing of it.

use std::time::{Duration, Instant};

/// Who looks at the clock this long after it ran out has stood still, and first takes note of what came meanwhile.
pub const OVERSLEPT: Duration = Duration::from_secs(1);

/// A clock that runs while something waits for the consumer, and begins again each time it takes something.
///
/// A consumer that answers pings and takes nothing is alive, but its query holds what queries hold: a place, memory, a
/// snapshot of a database.
#[derive(Debug, Clone)]
pub struct Stall {
    limit: Option<Duration>,
    waits_since: Option<Instant>,
}

impl Stall {
    /// Allows a consumer to take nothing for as long as `limit`; for ever without one.
    pub fn new(limit: Option<Duration>) -> Self {
        Self { limit, waits_since: None }
    }

    /// Something waits for the consumer, now or still.
    pub fn waits(&mut self, now: Instant) {
        self.waits_since.get_or_insert(now);
    }

    /// The consumer took something.
    pub fn taken(&mut self) {
        self.waits_since = None;
    }

    /// When the consumer will have taken nothing for too long, should it go on like this.
    pub fn deadline(&self) -> Option<Instant> {
        // A limit beyond the end of time is none.
        self.waits_since?.checked_add(self.limit?)
    }

    /// The limit, where the consumer has taken nothing for as long.
    pub fn is_over(&mut self, now: Instant) -> Option<Duration> {
        let (limit, deadline) = (self.limit?, self.deadline()?);
        if now.checked_duration_since(deadline)? <= OVERSLEPT {
            return Some(limit);
        }
        // What the consumer has taken meanwhile is not known yet.
        self.waits_since = (now + OVERSLEPT).checked_sub(limit);
        None
    }
}
