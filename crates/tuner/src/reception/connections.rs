//! Adjusts the number of connections of a reception while it runs.

use crate::error::{Result, within};

/// The rate must rise by this factor for more connections to be worth it.
const GAIN_MIN: f64 = 1.05;
/// The fraction of connections that is added in one step; at least one is.
const STEP: u32 = 8;
/// Minimum round trips of an epoch, so that new connections carry rows for most of it.
const EPOCH_ROUND_TRIPS: f64 = 4.0;
/// Minimum time of an epoch in seconds, which is longer than the clock's and the scheduler's noise.
const EPOCH_SECONDS_MIN: f64 = 2e-3;
/// Epochs without a trial after the first one that did not help; doubled after each further one.
const REST_FIRST: u32 = 4;
/// The most epochs without a trial.
const REST_MAX: u32 = 64;
/// Fewer connections are kept if they have this fraction of the best rate: they load the link, and all others on it,
/// less.
const KEPT_MIN: f64 = 0.97;
/// The influence of an epoch on the rate that trials are compared with.
const SMOOTHING: f64 = 0.5;

/// Controls how many connections a receiver opens at a time: the number grows additively while the throughput grows,
/// and goes back when a step did not help. After signs of congestion, which come when many senders fill the queue of one
/// link at once (incast), half of them are tried, and kept unless the throughput falls. Call
/// [`ConnectionController::ended`] for each part that has been received, and [`ConnectionController::congested`] for
/// each sign.
///
/// The amount of work is the caller's: for instance bytes, with an addition for each part, so that empty parts
/// count.
#[derive(Debug, Clone)]
pub struct ConnectionController {
    max: u32,
    rtt_seconds: f64,
    connections: u32,
    /// The number before the current trial.
    before: u32,
    phase: Phase,
    /// Work per second with `before` connections.
    rate: Option<f64>,
    rest: u32,
    epoch: Option<Epoch>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// A greater number is tried out.
    Growing,
    /// A smaller number is tried out.
    Shrinking,
    /// No trial for this many epochs.
    Resting(u32),
}

#[derive(Debug, Clone, Copy)]
struct Epoch {
    began: f64,
    work: f64,
    parts: u32,
    is_congested: bool,
}

impl Epoch {
    fn new(began: f64) -> Self {
        Self { began, work: 0.0, parts: 0, is_congested: false }
    }
}

impl ConnectionController {
    /// Starts with `first` connections, and never exceeds `max`. Both are raised to 1.
    ///
    /// # Errors
    /// [`TunerError::OutOfRange`](crate::TunerError::OutOfRange) for a round trip that is negative, not finite, or
    /// over a million seconds.
    pub fn new(first: u32, max: u32, rtt_seconds: f64) -> Result<Self> {
        within("round trip in seconds", rtt_seconds, 0.0, 1e6)?;
        let max = max.max(1);
        let connections = first.clamp(1, max);
        let phase = Phase::Growing;
        let (before, rest) = (connections, REST_FIRST);
        Ok(Self { max, rtt_seconds, connections, before, phase, rate: None, rest, epoch: None })
    }

    /// The number of connections to keep open.
    pub fn connections(&self) -> u32 {
        self.connections
    }

    /// The number to begin with next time: without the one that is being tried out.
    pub fn settled(&self) -> u32 {
        match self.phase {
            Phase::Growing | Phase::Shrinking => self.before,
            Phase::Resting(_) => self.connections,
        }
    }

    /// Changes the maximum. The number is reduced at once if it exceeds it.
    pub fn set_max(&mut self, max: u32) {
        self.max = max.max(1);
        self.connections = self.connections.min(self.max);
        self.before = self.before.min(self.max);
    }

    /// Records that a part has ended at `at_seconds`, measured from any fixed moment, and `work` done since the last
    /// call. Returns the new number of connections if it changes.
    pub fn ended(&mut self, at_seconds: f64, work: f64) -> Option<u32> {
        let epoch = match &mut self.epoch {
            Some(epoch) if at_seconds >= epoch.began => epoch,
            epoch => {
                *epoch = Some(Epoch::new(at_seconds));
                return None;
            }
        };
        epoch.work += work.max(0.0);
        epoch.parts = epoch.parts.saturating_add(1);
        let seconds = at_seconds - epoch.began;
        let enough = (EPOCH_ROUND_TRIPS * self.rtt_seconds).max(EPOCH_SECONDS_MIN);
        // Two turns of each connection: the first one still ran with the number before.
        let turns = self.connections.saturating_add(self.connections.max(self.before));
        if seconds < enough || epoch.parts < turns {
            return None;
        }
        let (rate, is_congested) = (epoch.work / seconds, epoch.is_congested);
        self.epoch = Some(Epoch::new(at_seconds));
        let old = self.connections;
        self.judge(rate, is_congested);
        (self.connections != old).then_some(self.connections)
    }

    /// Records a sign of congestion: segments were lost, or a sender that had begun was silent for long.
    pub fn congested(&mut self) {
        if let Some(epoch) = &mut self.epoch {
            epoch.is_congested = true;
        }
    }

    fn judge(&mut self, rate: f64, is_congested: bool) {
        let Some(before) = self.rate else {
            self.rate = Some(rate);
            self.step(is_congested);
            return;
        };
        match self.phase {
            Phase::Growing if rate >= GAIN_MIN * before => {
                (self.rate, self.rest) = (Some(rate), REST_FIRST);
                self.step(is_congested);
            }
            Phase::Shrinking if rate >= KEPT_MIN * before => {
                (self.rate, self.before) = (Some(before.max(rate)), self.connections);
                if is_congested { self.shrink() } else { self.rest() }
            }
            Phase::Growing | Phase::Shrinking => {
                self.connections = self.before;
                self.rest();
            }
            Phase::Resting(left) => {
                self.rate = Some(before + SMOOTHING * (rate - before));
                match left.checked_sub(1) {
                    Some(left) => self.phase = Phase::Resting(left),
                    None => self.step(is_congested),
                }
            }
        }
    }

    fn rest(&mut self) {
        self.phase = Phase::Resting(self.rest);
        self.rest = (self.rest * 2).min(REST_MAX);
    }

    /// Tries another number.
    fn step(&mut self, is_congested: bool) {
        if is_congested {
            self.shrink();
        } else {
            self.grow();
        }
    }

    fn shrink(&mut self) {
        self.before = self.connections;
        self.connections = (self.connections / 2).max(1);
        if self.connections < self.before { self.phase = Phase::Shrinking } else { self.rest() }
    }

    fn grow(&mut self) {
        self.before = self.connections;
        let step = (self.connections / STEP).max(1);
        self.connections = self.connections.saturating_add(step).min(self.max);
        if self.connections > self.before { self.phase = Phase::Growing } else { self.rest() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives parts of 1000 bytes while `saturated` connections saturate the link; more of them cost `loss` each.
    fn run(first: u32, max: u32, saturated: f64, loss: f64, parts: u32) -> Vec<u32> {
        let mut controller = ConnectionController::new(first, max, 1e-3).expect("a round trip");
        let (mut at, mut tried) = (0.0, Vec::new());
        for _ in 0..parts {
            let k = f64::from(controller.connections());
            at += 1e-2 / (k.min(saturated) - loss * (k - saturated).max(0.0)).max(0.1);
            tried.extend(controller.ended(at, 1000.0));
            assert!(controller.connections() <= max);
        }
        tried
    }

    #[test]
    fn connections_grow_while_the_throughput_does() {
        let tried = run(1, 64, 10.0, 0.0, 2000);
        assert!(tried.starts_with(&[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 10]), "{tried:?}");
        assert!(tried.iter().all(|&k| k <= 11), "{tried:?}");
    }

    #[test]
    fn it_goes_back_when_more_connections_do_not_help() {
        let tried = run(10, 64, 10.0, 0.5, 5000);
        assert!(
            tried.len() >= 4 && tried.chunks(2).all(|pair| pair == [11, 10] || pair == [11]),
            "{tried:?}"
        );
        // Trials become rare.
        assert!(tried.len() <= 16, "{tried:?}");
    }

    /// Receives parts of 1000 bytes. Above `saturated` connections, segments are lost; each part then takes
    /// `penalty` times as long.
    fn run_congested(first: u32, saturated: u32, penalty: f64, parts: u32) -> (u32, f64) {
        let mut controller = ConnectionController::new(first, 64, 1e-3).expect("a round trip");
        let mut at = 0.0;
        for _ in 0..parts {
            let k = controller.connections();
            let is_congested = k > saturated;
            at += 1e-2 / f64::from(k.min(saturated)) * if is_congested { penalty } else { 1.0 };
            if is_congested {
                controller.congested();
            }
            controller.ended(at, 1000.0);
        }
        (controller.connections(), at)
    }

    #[test]
    fn congestion_halves_the_connections_unless_they_are_needed() {
        // 140 parts: enough to find a number that does not lose.
        let (connections, seconds) = run_congested(16, 4, 3.0, 140);
        assert!((2..=5).contains(&connections), "{connections}");
        let (_, fixed) = run_congested(4, 4, 3.0, 140);
        assert!(seconds < 2.0 * fixed, "{seconds} {fixed}");
        // Losses that come anyway: fewer connections would be slower.
        let mut controller = ConnectionController::new(16, 16, 1e-3).expect("a round trip");
        let (mut at, mut tried) = (0.0, Vec::new());
        for _ in 0..4000 {
            at += 1e-2 / f64::from(controller.connections());
            controller.congested();
            tried.extend(controller.ended(at, 1000.0));
        }
        assert!(tried.chunks(2).all(|pair| pair == [8, 16] || pair == [8]), "{tried:?}");
        assert!(tried.len() <= 16, "{tried:?}");
    }

    #[test]
    fn one_connection_is_the_least() {
        assert_eq!(run_congested(1, 0, 1.0, 1000).0, 1);
    }

    #[test]
    fn the_maximum_is_kept() {
        assert_eq!(run(1, 1, 10.0, 0.0, 1000), [0; 0]);
        assert!(run(4, 6, 10.0, 0.0, 1000).iter().all(|&k| k <= 6));
        let mut controller = ConnectionController::new(8, 8, 0.0).expect("a round trip");
        controller.set_max(3);
        assert_eq!(controller.connections(), 3);
        assert!(ConnectionController::new(1, 1, f64::NAN).is_err());
    }
}
