//! What a receiver knows of a part.

use std::time::{Duration, Instant};

use super::config::ReceptionConfig;

/// Where a part is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for its turn to be pulled.
    Queued,
    /// The connection is being opened.
    Opening,
    /// The connection is open.
    Receiving,
    /// Waits to be tried again at this time.
    Pausing(Instant),
    /// Waits for its turn to be asked again.
    Unasked,
    /// Was asked again; until this time, an answer is expected.
    Asked(Instant),
    /// Received to its end.
    Ended,
}

/// A part, or a hole that was asked for.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) phase: Phase,
    /// It belongs to the answer; otherwise it is a hole.
    pub(super) is_admitted: bool,
    /// Its sender has announced itself, so that the receiver can connect to it.
    pub(super) is_announced: bool,
    pub(super) rank: u64,
    /// Breaks ties of the rank: the order of announcements.
    pub(super) order: u32,
    /// Bytes that its sender announced.
    pub(super) bytes_expected: Option<u64>,
    pub(super) bytes: u64,
    pub(super) rows: u64,
    /// When the part was last requested.
    pub(super) requested_at: Instant,
    /// When the connection was requested, or something last arrived or was consumed.
    pub(super) active_at: Instant,
    /// Attempts since the last progress.
    pub(super) attempts: u32,
    /// Time of attempts and pauses since the last progress.
    pub(super) tried: Duration,
    /// The time of its entry among the timers.
    pub(super) timer: Option<Instant>,
}

impl Part {
    pub(super) fn new(now: Instant, order: u32) -> Self {
        Self {
            phase: Phase::Unasked,
            is_admitted: true,
            is_announced: false,
            rank: 0,
            order,
            bytes_expected: None,
            bytes: 0,
            rows: 0,
            requested_at: now,
            active_at: now,
            attempts: 0,
            tried: Duration::ZERO,
            timer: None,
        }
    }

    /// What orders it among others.
    pub(super) fn key(&self, id: u64) -> (u64, u32, u64) {
        (self.rank, self.order, id)
    }

    pub(super) fn is_hole(&self) -> bool {
        !self.is_admitted
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Opening | Phase::Receiving)
    }

    /// When something has to be done about it, if nothing happens.
    pub(super) fn deadline(&self, config: &ReceptionConfig) -> Option<Instant> {
        match self.phase {
            Phase::Opening | Phase::Receiving => Some(self.active_at + config.stall),
            Phase::Pausing(until) | Phase::Asked(until) => Some(until),
            Phase::Queued | Phase::Unasked | Phase::Ended => None,
        }
    }

    /// Notes that something arrived.
    pub(super) fn progress(&mut self, now: Instant) {
        (self.attempts, self.tried, self.active_at) = (0, Duration::ZERO, now);
    }
}
