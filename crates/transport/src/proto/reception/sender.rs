//! A sender's side, before and between its connections.

use std::time::{Duration, Instant};

use fastrand::Rng;
use lightship_tuner::reception::ReceptionStrategy;

use super::Refusal;
use super::config::{DURATION_MAX, doubled};
use crate::{Result, TransportError};

/// Times of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderConfig {
    /// The first announcement is delayed by a random time up to this, so that those of many senders don't arrive
    /// together. The receiver chooses it: twice the time that it takes for all announcements.
    pub announce_spread: Duration,
    /// The pause before the announcement is repeated. It doubles until the receiver acknowledges one.
    pub announce_first: Duration,
    /// The longest pause before the announcement is repeated. After an acknowledgement, it is repeated after half of
    /// the patience, in case the receiver has lost what it knew, and no more often than each 64 times the spread: then
    /// the announcements of all senders that wait take less than a hundredth of the receiver's time.
    pub announce_max: Duration,
    /// Refused senders pause for a random time up to this, which doubles ([`ReceptionStrategy::BackOff`]).
    pub pause_first: Duration,
    /// The longest pause of a refused sender.
    pub pause_max: Duration,
    /// A sender gives up when it was neither connected nor heard for so long, or 128 times the spread if that is
    /// longer. With an acknowledgement, the time begins again.
    pub patience: Duration,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            announce_spread: Duration::ZERO,
            announce_first: Duration::from_millis(50),
            announce_max: Duration::from_secs(5),
            pause_first: Duration::from_millis(10),
            pause_max: Duration::from_secs(2),
            patience: Duration::from_secs(60),
        }
    }
}

impl SenderConfig {
    fn patience(&self) -> Duration {
        self.patience.max(self.announce_spread.saturating_mul(128).min(DURATION_MAX))
    }

    /// Checks the times.
    ///
    /// # Errors
    /// [`TransportError::Config`] if one is zero, except for the spread, or over a year.
    pub fn check(&self) -> Result<()> {
        let times = [self.announce_first, self.announce_max, self.pause_first, self.pause_max, self.patience];
        let is_long = self.announce_spread > DURATION_MAX || times.iter().any(|time| *time > DURATION_MAX);
        if times.contains(&Duration::ZERO) || is_long {
            return Err(TransportError::Config(
                "the times of a sender must be above 0 and at most a year".into(),
            ));
        }
        Ok(())
    }
}

/// What happened to a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderEvent {
    /// The receiver has acknowledged an announcement.
    Acknowledged,
    /// The receiver has requested the part, on its own connection or on the sender's.
    Requested,
    /// The receiver has refused the connection.
    Refused(Refusal),
    /// The connection could not be opened.
    Unreachable,
    /// The connection was lost after the request.
    Lost,
    /// The receiver has asked for the part again.
    Asked,
    /// The part has been sent to its end.
    Ended,
    /// The receiver does not want the part, or no longer.
    Stopped,
    /// The time of [`Sender::deadline`] has come.
    Tick,
}

/// What the driver of a sender has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderAction {
    /// Send an announcement.
    Announce,
    /// Connect to the receiver.
    Connect,
    /// Free what the part needs: the sender is over.
    End(SenderOutcome),
}

/// How a sender ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderOutcome {
    /// All was sent.
    Sent,
    /// The receiver did not want it.
    Unwanted,
    /// It was refused, or not heard for too long.
    GaveUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Announces itself again at this time.
    Announcing(Instant),
    /// Waits for the outcome of a connection.
    Connecting,
    /// Connects again at this time.
    Pausing(Instant),
    /// The part was requested.
    Sending,
    /// Waits to be asked again.
    Idle,
    Over,
}

/// A sender of one part. See the [module](super) for how to drive it.
///
/// It is over when [`SenderAction::End`] was returned; if it is asked again after it gave up, it begins again.
#[derive(Debug)]
pub struct Sender {
    config: SenderConfig,
    strategy: ReceptionStrategy,
    phase: Phase,
    /// Announcements or connections since the last progress.
    attempts: u32,
    /// It gives up at this time, unless it is sending.
    gives_up_at: Instant,
    action: Option<SenderAction>,
    is_sent: bool,
}

impl Sender {
    /// A sender that received the query at `now`.
    ///
    /// # Errors
    /// [`TransportError::Config`] for invalid times.
    pub fn new(
        config: SenderConfig,
        strategy: ReceptionStrategy,
        now: Instant,
        rng: &mut Rng,
    ) -> Result<Self> {
        config.check()?;
        let mut sender = Self {
            config,
            strategy,
            phase: Phase::Idle,
            attempts: 0,
            gives_up_at: now + config.patience(),
            action: None,
            is_sent: false,
        };
        sender.begin(now, random(config.announce_spread, rng), rng);
        Ok(sender)
    }

    /// The next thing to do. `None` until the next event.
    pub fn next_action(&mut self) -> Option<SenderAction> {
        self.action.take()
    }

    /// Whether it has ended or given up.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// When to call [`Sender::handle`] with [`SenderEvent::Tick`] if nothing else happens. `None` while it sends and
    /// after the end.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Announcing(at) | Phase::Pausing(at) => Some(at.min(self.gives_up_at)),
            Phase::Connecting | Phase::Idle => Some(self.gives_up_at),
            Phase::Sending | Phase::Over => None,
        }
    }

    /// Records an event.
    pub fn handle(&mut self, event: SenderEvent, now: Instant, rng: &mut Rng) {
        match (event, self.phase) {
            (SenderEvent::Asked, Phase::Sending) => {}
            (SenderEvent::Asked, Phase::Over) if self.is_sent => {}
            (SenderEvent::Asked, _) => {
                self.gives_up_at = now + self.config.patience();
                self.attempts = 0;
                self.begin(now, Duration::ZERO, rng);
            }
            (_, Phase::Over) => {}
            (SenderEvent::Acknowledged, Phase::Announcing(_)) => {
                self.gives_up_at = now + self.config.patience();
                self.phase = Phase::Announcing(now + self.config.patience() / 2);
            }
            (SenderEvent::Requested, _) => {
                (self.phase, self.attempts) = (Phase::Sending, 0);
                self.action = None;
            }
            (SenderEvent::Ended, _) => {
                self.is_sent = true;
                self.end(SenderOutcome::Sent);
            }
            (SenderEvent::Stopped | SenderEvent::Refused(Refusal::Unwanted | Refusal::Stopped), _) => {
                self.end(SenderOutcome::Unwanted);
            }
            (SenderEvent::Refused(_) | SenderEvent::Unreachable, Phase::Connecting) => self.refused(now, rng),
            (SenderEvent::Lost, Phase::Sending) => {
                self.gives_up_at = now + self.config.patience();
                match self.strategy {
                    ReceptionStrategy::Push => self.phase = Phase::Idle,
                    ReceptionStrategy::BackOff => self.refused(now, rng),
                    ReceptionStrategy::Pull { .. } => {
                        self.begin(now, self.config.announce_first, rng);
                    }
                }
            }
            (SenderEvent::Tick, _) => self.tick(now, rng),
            _ => {}
        }
    }

    /// Connects, or announces itself after a delay.
    fn begin(&mut self, now: Instant, delay: Duration, rng: &mut Rng) {
        self.action = None;
        match self.strategy {
            ReceptionStrategy::Push | ReceptionStrategy::BackOff => {
                self.phase = Phase::Connecting;
                self.action = Some(SenderAction::Connect);
            }
            ReceptionStrategy::Pull { .. } => {
                self.phase = Phase::Announcing(now + delay);
                self.tick(now, rng);
            }
        }
    }

    fn refused(&mut self, now: Instant, rng: &mut Rng) {
        if self.strategy == ReceptionStrategy::Push {
            self.end(SenderOutcome::GaveUp);
            return;
        }
        self.attempts += 1;
        let longest = doubled(self.config.pause_first, self.attempts, self.config.pause_max);
        self.phase = Phase::Pausing(now + random(longest, rng));
    }

    fn tick(&mut self, now: Instant, rng: &mut Rng) {
        if self.phase != Phase::Sending && now >= self.gives_up_at {
            self.end(SenderOutcome::GaveUp);
            return;
        }
        match self.phase {
            Phase::Announcing(at) if at <= now => {
                self.attempts = self.attempts.saturating_add(1);
                let pause = doubled(self.config.announce_first, self.attempts, self.config.announce_max);
                // Those that were lost together are not repeated together.
                self.phase = Phase::Announcing(now + pause / 2 + random(pause / 2, rng));
                self.action = Some(SenderAction::Announce);
            }
            Phase::Pausing(at) if at <= now => {
                self.phase = Phase::Connecting;
                self.action = Some(SenderAction::Connect);
            }
            _ => {}
        }
    }

    fn end(&mut self, outcome: SenderOutcome) {
        self.phase = Phase::Over;
        self.action = Some(SenderAction::End(outcome));
    }
}

/// A random time of at most `longest`.
fn random(longest: Duration, rng: &mut Rng) -> Duration {
    let ns = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(rng.u64(0..=ns))
}
