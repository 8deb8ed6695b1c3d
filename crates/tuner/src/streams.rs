//! Finds the number of connections for a result by trial.
//!
//! A connection slowed down by packet loss looks like one on a saturated link: segments are missing and
//! rows arrive slowly in both cases. Only the gain from another connection tells them apart. If many
//! segments arrive out of order, and the consumer mostly waits for rows, two connections are tried
//! instead of one. The number is doubled as long as each step raises the pace clearly.

use crate::error::{Result, within};

/// Minimum round trips of an epoch, during which a new connection reaches its pace.
const EPOCH_ROUND_TRIPS: f64 = 20.0;
/// Minimum time of an epoch.
const EPOCH_SECONDS_MIN: f64 = 0.5;
/// Minimum batches of an epoch, because they arrive unevenly under loss.
const EPOCH_BATCHES_MIN: u64 = 8;
/// If the consumer waits for rows for less than this fraction of the time, the link is not the bottleneck.
const WAITED_MIN: f64 = 0.8;
/// Minimum fraction of segments that arrive out of order. If a fraction p is lost, Reno's window has
/// 1.2 / sqrt(p) segments, and a missing segment puts a window of segments out of order. So 3% means
/// windows of at most 50 segments.
const DISORDER_MIN: f64 = 0.03;
/// The pace may rise by less without more connections.
const RISE_MIN: f64 = 1.3;
/// Minimum remaining epochs for a trial: it takes two, and should pay off for as long.
const EPOCHS_LEFT_MIN: f64 = 4.0;

/// Segments received on a connection since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segments {
    /// All segments.
    pub received: u64,
    /// Segments that arrived before one that was sent earlier.
    pub out_of_order: u64,
}

/// A batch that was consumed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConsumedBatch {
    /// The time in seconds, measured from any fixed moment.
    pub at_seconds: f64,
    /// Bytes of its rows.
    pub bytes: u64,
    /// How long the consumer waited for it.
    pub waited_seconds: f64,
    /// Bytes of rows that remain. If unknown, as many as have arrived are assumed to remain.
    pub left_bytes: Option<u64>,
}

/// Controls the number of connections of a transfer that began with one. Call [`StripeController::taken`] for
/// each batch; it returns a new number when there should be more.
#[derive(Debug, Clone)]
pub struct StripeController {
    max: u32,
    rtt_seconds: f64,
    connections: u32,
    phase: Phase,
    epoch: Option<Epoch>,
    /// Bytes of rows so far.
    bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// Is a single connection slowed down?
    Watching,
    /// More connections have joined and are speeding up. `before` is the pace before them.
    Settling { before: f64 },
    /// Has the pace risen?
    Judging { before: f64 },
    /// The number is final.
    Still,
}

/// What has arrived since the epoch began.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    began: f64,
    bytes: u64,
    batches: u64,
    waited: f64,
    segments: Option<Segments>,
}

impl StripeController {
    /// A controller for at most `max` connections.
    ///
    /// # Errors
    /// [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) for a round trip that is negative, not
    /// finite, or over a million seconds.
    pub fn new(max: u32, rtt_seconds: f64) -> Result<Self> {
        within("round trip in seconds", rtt_seconds, 0.0, 1e6)?;
        let phase = if max > 1 { Phase::Watching } else { Phase::Still };
        Ok(Self { max, rtt_seconds, connections: 1, phase, epoch: None, bytes: 0 })
    }

    /// Records a batch, and returns the new number of connections if there should be more. `segments`
    /// returns the counts of the first connection, if the system reports them; it is called once per
    /// epoch.
    pub fn taken(
        &mut self,
        batch: &ConsumedBatch,
        segments: impl FnOnce() -> Option<Segments>,
    ) -> Option<u32> {
        self.bytes = self.bytes.saturating_add(batch.bytes);
        if self.phase == Phase::Still {
            return None;
        }
        let epoch = match &mut self.epoch {
            Some(epoch) if batch.at_seconds >= epoch.began => epoch,
            epoch => {
                *epoch = Some(Epoch::new(batch.at_seconds, segments()));
                return None;
            }
        };
        epoch.bytes = epoch.bytes.saturating_add(batch.bytes);
        epoch.batches += 1;
        epoch.waited += batch.waited_seconds;
        let seconds = batch.at_seconds - epoch.began;
        let enough = (EPOCH_ROUND_TRIPS * self.rtt_seconds).max(EPOCH_SECONDS_MIN);
        if epoch.batches < EPOCH_BATCHES_MIN || seconds < enough {
            return None;
        }
        let (epoch, now) = (*epoch, segments());
        self.epoch = Some(Epoch::new(batch.at_seconds, now));
        let pace = epoch.bytes as f64 / seconds;
        let pays = batch.left_bytes.unwrap_or(self.bytes) as f64 >= pace * seconds * EPOCHS_LEFT_MIN;
        match self.phase {
            Phase::Watching => {
                let held = epoch.waited >= WAITED_MIN * seconds && epoch.disorder(now) >= DISORDER_MIN;
                (held && pays).then(|| self.grow(pace))
            }
            Phase::Settling { before } => {
                self.phase = Phase::Judging { before };
                None
            }
            Phase::Judging { before } if pace >= RISE_MIN * before && pays && self.connections < self.max => {
                Some(self.grow(pace))
            }
            _ => {
                self.phase = Phase::Still;
                None
            }
        }
    }

    /// Starts a new epoch, because the sizes have changed and earlier measurements no longer apply.
    pub fn resized(&mut self) {
        self.epoch = None;
    }

    fn grow(&mut self, pace: f64) -> u32 {
        self.phase = Phase::Settling { before: pace };
        self.connections = self.connections.saturating_mul(2).min(self.max);
        self.connections
    }
}

impl Epoch {
    fn new(began: f64, segments: Option<Segments>) -> Self {
        Self { began, bytes: 0, batches: 0, waited: 0.0, segments }
    }

    /// The fraction of segments that arrived out of order; zero if the system does not report it.
    fn disorder(&self, now: Option<Segments>) -> f64 {
        let Some((before, now)) = self.segments.zip(now) else { return 0.0 };
        let received = now.received.saturating_sub(before.received).max(1);
        now.out_of_order.saturating_sub(before.out_of_order) as f64 / received as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link on which each connection carries `each` bytes per second, and all together at most `link`.
    struct Simulated {
        each: f64,
        link: f64,
        disorder: f64,
        waited: f64,
        left_bytes: Option<u64>,
    }

    const LOSSY: Simulated =
        Simulated { each: 400e3, link: 12e6, disorder: 0.1, waited: 1.0, left_bytes: Some(1 << 40) };

    impl Simulated {
        /// The numbers of connections that are tried during this many batches of 100 KB.
        fn run(&self, batches: u64) -> Vec<u32> {
            let mut streams = StripeController::new(4, 0.05).expect("a round trip");
            let (mut connections, mut at, mut found) = (1, 0.0, Vec::new());
            for batch in 0..batches {
                let took = 100e3 / (self.each * f64::from(connections)).min(self.link);
                at += took;
                let taken = ConsumedBatch {
                    at_seconds: at,
                    bytes: 100_000,
                    waited_seconds: took * self.waited,
                    left_bytes: self.left_bytes,
                };
                let received = batch * 70;
                let out_of_order = (received as f64 * self.disorder) as u64;
                if let Some(wanted) = streams.taken(&taken, || Some(Segments { received, out_of_order })) {
                    assert!(wanted > connections);
                    connections = wanted;
                    found.push(wanted);
                }
            }
            found
        }
    }

    #[test]
    fn connections_are_doubled_while_each_step_pays_off() {
        assert_eq!(LOSSY.run(1000), [2, 4]);
        // Two connections saturate the link. The step to four is tried without success.
        assert_eq!(Simulated { link: 800e3, ..LOSSY }.run(1000), [2, 4]);
        // One connection saturates the link, or nearly.
        assert_eq!(Simulated { link: 400e3, ..LOSSY }.run(1000), [2]);
        assert_eq!(Simulated { link: 480e3, ..LOSSY }.run(1000), [2]);
    }

    #[test]
    fn more_connections_are_tried_only_for_a_reason() {
        assert_eq!(Simulated { disorder: 0.005, ..LOSSY }.run(1000), [0; 0]);
        assert_eq!(Simulated { waited: 0.5, ..LOSSY }.run(1000), [0; 0]);
        assert_eq!(Simulated { left_bytes: Some(1 << 20), ..LOSSY }.run(1000), [0; 0]);
        assert!(StripeController::new(1, 0.05).is_ok_and(|streams| streams.phase == Phase::Still));
        assert!(StripeController::new(4, f64::NAN).is_err());
    }

    #[test]
    fn an_unknown_rest_is_assumed_to_equal_what_has_arrived() {
        assert_eq!(Simulated { left_bytes: None, ..LOSSY }.run(1000), [2, 4]);
    }

    #[test]
    fn a_pace_under_other_sizes_is_ignored() {
        let mut streams = StripeController::new(4, 0.0).expect("a round trip");
        let mut at = 0.0;
        for _ in 0..100 {
            at += 0.2;
            let taken = ConsumedBatch { at_seconds: at, bytes: 1000, waited_seconds: 0.2, left_bytes: None };
            let segments = Segments { received: (at * 1e3) as u64, out_of_order: (at * 1e2) as u64 };
            assert_eq!(streams.taken(&taken, || Some(segments)), None);
            streams.resized();
        }
        // A system that does not report segments is not treated as lossy.
        for _ in 0..100 {
            at += 0.2;
            let taken = ConsumedBatch { at_seconds: at, bytes: 1000, waited_seconds: 0.2, left_bytes: None };
            assert_eq!(streams.taken(&taken, || None), None);
        }
    }
}
