//! What a receiver measures.

use std::time::Duration;

use lightship_tuner::reception::{Reception, ReceptionStrategy};

use super::{Coverage, Receiver};

/// Counts and times of a reception.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measured {
    pub(super) parts: u64,
    pub(super) bytes: u64,
    pub(super) rows: u64,
    pub(super) announcements: u64,
    pub(super) refused: u64,
    pub(super) requested: u64,
    pub(super) asked: u64,
    pub(super) lost: u64,
    /// The shortest time to open a connection, which is about a round trip.
    open_min: Option<Duration>,
    /// From an open connection to the first byte: sum and number.
    first_byte: (Duration, u32),
}

impl Measured {
    pub(super) fn opened(&mut self, took: Duration) {
        self.open_min = Some(self.open_min.map_or(took, |min| min.min(took)));
    }

    pub(super) fn first_byte(&mut self, took: Duration) {
        self.first_byte.0 = self.first_byte.0.saturating_add(took);
        self.first_byte.1 = self.first_byte.1.saturating_add(1);
    }
}

/// What a reception has done so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReceptionReport {
    /// The strategy; for pull, with the present number of connections.
    pub strategy: ReceptionStrategy,
    /// Parts received to their end.
    pub parts: u64,
    /// Bytes received.
    pub bytes: u64,
    /// Rows received.
    pub rows: u64,
    /// Announcements, with repetitions.
    pub announcements: u64,
    /// Connections refused.
    pub refused: u64,
    /// Parts that were requested on a connection, with repetitions.
    pub requested: u64,
    /// Parts and holes asked again, with repetitions.
    pub asked: u64,
    /// Connections that could not be opened, or were lost.
    pub lost: u64,
    /// The most bytes that were in flight or waiting to be consumed.
    pub used_bytes_peak: u64,
    /// Time since the query was sent.
    pub elapsed: Duration,
}

impl<C: Coverage> Receiver<C> {
    /// What the reception has done so far.
    pub fn report(&self) -> ReceptionReport {
        let Measured { parts, bytes, rows, announcements, refused, requested, asked, lost, .. } =
            self.measured;
        ReceptionReport {
            strategy: match self.strategy {
                ReceptionStrategy::Pull { .. } => ReceptionStrategy::Pull { connections: self.connections() },
                strategy => strategy,
            },
            parts,
            bytes,
            rows,
            announcements,
            refused,
            requested,
            asked,
            lost,
            used_bytes_peak: self.budget.used_peak(),
            elapsed: self.now.saturating_duration_since(self.began_at),
        }
    }

    /// The conditions with what this reception has measured, for the prediction of the next one: the number and size of
    /// parts and, if it pulled, the round trip and the time of senders for a request. The link is at least as fast
    /// as what arrived.
    pub fn conditions(&self) -> Reception {
        let mut conditions = self.config.conditions;
        let measured = &self.measured;
        if measured.parts == 0 {
            return conditions;
        }
        conditions.parts = measured.parts;
        conditions.part_bytes = measured.bytes as f64 / measured.parts as f64;
        let elapsed = self.now.saturating_duration_since(self.began_at).as_secs_f64();
        if elapsed > 0.0 {
            let rate = (measured.bytes as f64 / elapsed).min(1e15);
            conditions.link_bytes_per_second = conditions.link_bytes_per_second.max(rate);
        }
        if let Some(open_min) = measured.open_min {
            conditions.rtt_seconds = open_min.as_secs_f64().min(1e6);
            if measured.first_byte.1 > 0 {
                let mean = measured.first_byte.0.as_secs_f64() / f64::from(measured.first_byte.1);
                conditions.request_seconds = (mean - conditions.rtt_seconds).clamp(0.0, 1e6);
            }
        }
        conditions
    }
}
