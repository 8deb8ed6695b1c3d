//! How many connections a result comes over, found by trial.
//!
//! A connection that is held down by loss looks like one whose link is full: segments are missing with both, and
//! both are slow. What tells them apart is what another connection gains. So where many segments come out of
//! order, and rows are what is waited for, two connections are tried in place of one, and twice as many
//! for as long as the pace rises clearly with each step. Where it does not, they stay as they are.

use crate::error::{Result, within};

/// An epoch takes so many round trips, in which a new connection finds its pace,
const EPOCH_ROUND_TRIPS: f64 = 20.0;
/// so long at least,
const EPOCH_SECONDS_MIN: f64 = 0.5;
/// and has so many batches: with loss they are not even.
const EPOCH_BATCHES_MIN: u64 = 8;
/// Rows are waited for this part of the time, or it is not the link that is slow.
const WAITED_MIN: f64 = 0.8;
/// This part of the segments came out of order. Reno's window has 1.2 / sqrt(p) segments where a part p is lost, and a
/// segment that is missing puts as many out of order as a window has: 3% are windows of 50 segments at most.
const DISORDER_MIN: f64 = 0.03;
/// The pace has risen by less: it might have done so by itself.
const RISE_MIN: f64 = 1.3;
/// A trial takes two epochs, and is to be of use for as long.
const EPOCHS_LEFT_MIN: f64 = 4.0;

/// Segments of a connection that have come since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segments {
    /// All of them.
    pub received: u64,
    /// Those that came before one that was sent earlier.
    pub out_of_order: u64,
}

/// A batch that was taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Taken {
    /// When, in seconds since any moment.
    pub at_seconds: f64,
    /// Bytes of its rows.
    pub bytes: u64,
    /// How long it was waited for.
    pub waited_seconds: f64,
    /// Bytes of rows that are still to come, where that is known; else it is thought to be as much as has come.
    pub left_bytes: Option<u64>,
}

/// Follows a transfer that began with one connection. It is told of each batch, and says when there should be more.
#[derive(Debug, Clone)]
pub struct Streams {
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
    /// Is one connection held down?
    Watching,
    /// Others have joined, and are finding their pace. It was this before.
    Settling { before: f64 },
    /// Has it risen?
    Judging { before: f64 },
    /// Nothing changes any more.
    Still,
}

/// What came in since some moment.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    began: f64,
    bytes: u64,
    batches: u64,
    waited: f64,
    segments: Option<Segments>,
}

impl Streams {
    /// At most so many connections.
    ///
    /// # Errors
    /// [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) for a round trip that is negative, not finite,
    /// or over a million seconds.
    pub fn new(max: u32, rtt_seconds: f64) -> Result<Self> {
        within("round trip in seconds", rtt_seconds, 0.0, 1e6)?;
        let phase = if max > 1 { Phase::Watching } else { Phase::Still };
        Ok(Self { max, rtt_seconds, connections: 1, phase, epoch: None, bytes: 0 })
    }

    /// Answers how many connections there should be from now on, if more than there are. `segments` are those of the
    /// first connection so far, where the system tells; it is asked once an epoch.
    pub fn taken(&mut self, batch: &Taken, segments: impl FnOnce() -> Option<Segments>) -> Option<u32> {
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

    /// The sizes have changed: what came before says nothing of what comes now.
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

    /// The part of its segments that came out of order; none where the system does not tell.
    fn disorder(&self, now: Option<Segments>) -> f64 {
        let Some((before, now)) = self.segments.zip(now) else { return 0.0 };
        let received = now.received.saturating_sub(before.received).max(1);
        now.out_of_order.saturating_sub(before.out_of_order) as f64 / received as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link over which a connection carries so many bytes a second, and all together no more than it.
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
        /// The numbers of connections that it comes to, over so many batches of 100 KB.
        fn run(&self, batches: u64) -> Vec<u32> {
            let mut streams = Streams::new(4, 0.05).expect("a round trip");
            let (mut connections, mut at, mut found) = (1, 0.0, Vec::new());
            for batch in 0..batches {
                let took = 100e3 / (self.each * f64::from(connections)).min(self.link);
                at += took;
                let taken = Taken {
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
    fn connections_that_are_held_down_become_more_while_that_pays() {
        assert_eq!(LOSSY.run(1000), [2, 4]);
        // With two the link is full: the step to four is tried, and nothing comes of it.
        assert_eq!(Simulated { link: 800e3, ..LOSSY }.run(1000), [2, 4]);
        // With one it is.
        assert_eq!(Simulated { link: 400e3, ..LOSSY }.run(1000), [2]);
        assert_eq!(Simulated { link: 480e3, ..LOSSY }.run(1000), [2]);
    }

    #[test]
    fn nothing_is_tried_without_a_reason() {
        assert_eq!(Simulated { disorder: 0.005, ..LOSSY }.run(1000), [0; 0]);
        assert_eq!(Simulated { waited: 0.5, ..LOSSY }.run(1000), [0; 0]);
        assert_eq!(Simulated { left_bytes: Some(1 << 20), ..LOSSY }.run(1000), [0; 0]);
        assert!(Streams::new(1, 0.05).is_ok_and(|streams| streams.phase == Phase::Still));
        assert!(Streams::new(4, f64::NAN).is_err());
    }

    #[test]
    fn what_is_left_is_thought_to_be_what_has_come() {
        assert_eq!(Simulated { left_bytes: None, ..LOSSY }.run(1000), [2, 4]);
    }

    #[test]
    fn a_pace_under_other_sizes_is_no_measure() {
        let mut streams = Streams::new(4, 0.0).expect("a round trip");
        let mut at = 0.0;
        for _ in 0..100 {
            at += 0.2;
            let taken = Taken { at_seconds: at, bytes: 1000, waited_seconds: 0.2, left_bytes: None };
            let segments = Segments { received: (at * 1e3) as u64, out_of_order: (at * 1e2) as u64 };
            assert_eq!(streams.taken(&taken, || Some(segments)), None);
            streams.resized();
        }
        // A system that does not tell is not taken for one that loses much.
        for _ in 0..100 {
            at += 0.2;
            let taken = Taken { at_seconds: at, bytes: 1000, waited_seconds: 0.2, left_bytes: None };
            assert_eq!(streams.taken(&taken, || None), None);
        }
    }
}
