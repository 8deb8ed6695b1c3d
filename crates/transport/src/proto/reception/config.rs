//! Limits and times of a reception.

use std::time::Duration;

use lightship_tuner::reception::Reception;

use crate::{Result, TransportError};

/// How the strategy is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReceptionMode {
    /// Every sender connects at once; refused ones give up, and are asked again.
    Push,
    /// Every sender connects at once; refused ones try again after a pause.
    BackOff,
    /// Senders announce themselves, and the receiver opens a fixed number of connections at a time.
    Pull {
        /// Connections at a time, at least 1.
        connections: u32,
    },
    /// Pull, with a number of connections that follows the measured throughput. It begins with what is enough under
    /// [`ReceptionConfig::conditions`].
    #[default]
    Auto,
}

/// When a receiver begins to pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// With the first announcement. The first rows come earliest.
    #[default]
    AsAnnounced,
    /// When the announcements cover the query, as in the paper: the size of the answer is known before it is
    /// received. Costs the time until the last announcement.
    WhenCovered,
}

/// Limits and times of a receiver.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceptionConfig {
    /// How the strategy is chosen.
    pub mode: ReceptionMode,
    /// When it begins to pull.
    pub start: Start,
    /// The consumer takes the parts in the order of their ranks, and waits for the first one. Parts are then only
    /// pulled, when the announcements cover the query; a connection and [`ReceptionConfig::grant_bytes_min`] are
    /// set aside for the first part that hasn't ended, beyond [`ReceptionConfig::connections_max`].
    pub in_order: bool,
    /// With how many connections [`ReceptionMode::Auto`] begins to pull: what an earlier reception ended with. Without it,
    /// as many as the model says.
    pub connections_first: Option<u32>,
    /// The maximum number of connections at a time. Each costs a socket, and buffers of the system.
    pub connections_max: u32,
    /// Bytes that all senders together may have in flight or waiting to be consumed. Less of it slows down fast or
    /// distant links; it is the reception's memory.
    pub budget_bytes: u64,
    /// The least that each connection is granted: at least the longest message of a sender. At most
    /// `budget_bytes / grant_bytes_min` connections are open at a time. Rows that are longer than a message need
    /// memory that the caller sets aside, as in a single transfer.
    pub grant_bytes_min: u64,
    /// The maximum number of parts and holes, at about 200 bytes each.
    pub parts_max: usize,
    /// The maximum number of parts and holes that are asked again at a time. Their announcements arrive together: more
    /// than fit the receiver's socket buffer are lost.
    pub asks_max: usize,
    /// Holes are asked again when there was no news for so long.
    pub quiet: Duration,
    /// A connection is closed when nothing arrives for so long, although the consumer has taken all.
    pub stall: Duration,
    /// The pause before a lost part is tried again. It doubles each time without progress.
    pub retry_first: Duration,
    /// The longest pause before a lost part, or a hole, is tried again.
    pub retry_max: Duration,
    /// How long a part is tried without progress before the reception fails. Time in which it waits for its turn
    /// doesn't count. At least [`ReceptionConfig::stall`].
    pub patience: Duration,
    /// What is known of the link, the receiver and the answer, for [`ReceptionMode::Auto`].
    pub conditions: Reception,
}

impl Default for ReceptionConfig {
    fn default() -> Self {
        Self {
            mode: ReceptionMode::Auto,
            start: Start::default(),
            in_order: false,
            connections_first: None,
            connections_max: 64,
            budget_bytes: 64 << 20,
            grant_bytes_min: 256 << 10,
            parts_max: 1 << 20,
            asks_max: 128,
            quiet: Duration::from_millis(200),
            stall: Duration::from_secs(10),
            retry_first: Duration::from_millis(5),
            retry_max: Duration::from_secs(1),
            patience: Duration::from_secs(30),
            conditions: Reception { parts: 0, ..Reception::default() },
        }
    }
}

impl ReceptionConfig {
    /// Checks the limits against each other.
    ///
    /// # Errors
    /// [`TransportError::Config`] says which limit is invalid.
    pub fn check(&self) -> Result<()> {
        let invalid = |message: String| Err(TransportError::Config(message));
        let pushes = matches!(self.mode, ReceptionMode::Push | ReceptionMode::BackOff);
        if self.mode == (ReceptionMode::Pull { connections: 0 }) || self.connections_max == 0 {
            return invalid("a reception needs at least one connection".into());
        }
        if self.in_order && pushes {
            return invalid("parts can be received in order only if they are pulled".into());
        }
        let least = self.grant_bytes_min.saturating_mul(if self.in_order { 2 } else { 1 });
        if self.grant_bytes_min == 0 || self.budget_bytes < least {
            return invalid(format!("the budget is {} bytes, expected at least {least}", self.budget_bytes));
        }
        if self.parts_max == 0 || self.asks_max == 0 {
            return invalid("the number of parts, and of those asked at a time, must be above 0".into());
        }
        let times = [self.quiet, self.stall, self.retry_first, self.retry_max, self.patience];
        if times.contains(&Duration::ZERO) || times.iter().any(|time| *time > DURATION_MAX) {
            return invalid(format!("the times of a reception must be above 0 and at most {DURATION_MAX:?}"));
        }
        if self.patience < self.stall {
            return invalid("a part must be tried for longer than a connection may be silent".into());
        }
        self.conditions.check().map_err(|error| TransportError::Config(error.to_string()))
    }
}

/// The longest time of a setting.
pub(super) const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The pause before attempt number `attempts`, from 1: it doubles each time, up to `max`.
pub(super) fn doubled(first: Duration, attempts: u32, max: Duration) -> Duration {
    first.saturating_mul(1 << attempts.saturating_sub(1).min(30)).min(max).max(Duration::from_nanos(1))
}
