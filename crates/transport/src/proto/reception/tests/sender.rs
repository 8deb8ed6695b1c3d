//! The sender's state machine.

use std::time::{Duration, Instant};

use fastrand::Rng;
use lightship_tuner::reception::ReceptionStrategy;

use crate::Result;
use crate::proto::reception::{Refusal, Sender, SenderAction, SenderConfig, SenderEvent, SenderOutcome};

struct Test {
    sender: Sender,
    now: Instant,
    rng: Rng,
}

impl Test {
    fn new(strategy: ReceptionStrategy) -> Result<Self> {
        let (now, mut rng) = (Instant::now(), Rng::with_seed(7));
        let config = SenderConfig { announce_spread: Duration::from_millis(10), ..SenderConfig::default() };
        Ok(Self { sender: Sender::new(config, strategy, now, &mut rng)?, now, rng })
    }

    fn handle(&mut self, event: SenderEvent) -> Option<SenderAction> {
        self.sender.handle(event, self.now, &mut self.rng);
        let action = self.sender.next_action();
        assert_eq!(self.sender.next_action(), None);
        action
    }

    /// Waits for the deadline. Returns how long that takes, and what is to be done then.
    fn wait(&mut self) -> (Duration, Option<SenderAction>) {
        let Some(deadline) = self.sender.deadline() else { return (Duration::ZERO, None) };
        let waited = deadline.saturating_duration_since(self.now);
        self.now += waited;
        (waited, self.handle(SenderEvent::Tick))
    }
}

#[test]
fn refused_senders_pause_longer_each_time() -> Result<()> {
    let mut test = Test::new(ReceptionStrategy::BackOff)?;
    assert_eq!(test.sender.next_action(), Some(SenderAction::Connect));
    let config = SenderConfig::default();
    for attempt in 0..12 {
        let event =
            if attempt % 2 == 0 { SenderEvent::Refused(Refusal::Full) } else { SenderEvent::Unreachable };
        assert_eq!(test.handle(event), None);
        let (waited, action) = test.wait();
        assert!(
            waited <= (config.pause_first * (1 << attempt)).min(config.pause_max),
            "{attempt}: {waited:?}"
        );
        assert_eq!(action, Some(SenderAction::Connect));
    }
    assert_eq!(test.handle(SenderEvent::Requested), None);
    assert_eq!(test.sender.deadline(), None);
    assert_eq!(test.handle(SenderEvent::Ended), Some(SenderAction::End(SenderOutcome::Sent)));
    assert_eq!(test.handle(SenderEvent::Asked), None);
    Ok(())
}

#[test]
fn a_pushing_sender_gives_up_and_can_be_asked_again() -> Result<()> {
    let mut test = Test::new(ReceptionStrategy::Push)?;
    assert_eq!(test.sender.next_action(), Some(SenderAction::Connect));
    let gave_up = Some(SenderAction::End(SenderOutcome::GaveUp));
    assert_eq!(test.handle(SenderEvent::Refused(Refusal::Full)), gave_up);
    assert!(test.sender.is_over());
    assert_eq!(test.handle(SenderEvent::Asked), Some(SenderAction::Connect));
    assert_eq!(test.handle(SenderEvent::Requested), None);
    // Half-way, the connection is lost: the receiver asks again, or the sender gives up.
    assert_eq!(test.handle(SenderEvent::Lost), None);
    assert_eq!(test.wait(), (SenderConfig::default().patience, gave_up));
    Ok(())
}

#[test]
fn announcements_are_repeated_until_one_is_acknowledged() -> Result<()> {
    let mut test = Test::new(ReceptionStrategy::Pull { connections: 1 })?;
    let config = SenderConfig::default();
    let (waited, action) = test.wait();
    assert!(waited <= Duration::from_millis(10));
    assert_eq!(action, Some(SenderAction::Announce));
    for attempt in 0..4 {
        let (waited, action) = test.wait();
        let pause = config.announce_first * (1 << attempt);
        assert!(waited >= pause / 2 && waited <= pause, "{attempt}: {waited:?}");
        assert_eq!(action, Some(SenderAction::Announce));
    }
    assert_eq!(test.handle(SenderEvent::Acknowledged), None);
    assert_eq!(test.wait(), (config.patience / 2, Some(SenderAction::Announce)));
    // The receiver that stops says so, or is not heard any more.
    let mut other = Test::new(ReceptionStrategy::Pull { connections: 1 })?;
    assert_eq!(other.handle(SenderEvent::Stopped), Some(SenderAction::End(SenderOutcome::Unwanted)));
    for _ in 0..100 {
        test.wait();
    }
    assert!(test.sender.is_over());
    Ok(())
}

#[test]
fn invalid_times_are_errors() {
    let strategy = ReceptionStrategy::Push;
    let config = SenderConfig { patience: Duration::ZERO, ..SenderConfig::default() };
    assert!(Sender::new(config, strategy, Instant::now(), &mut Rng::with_seed(1)).is_err());
    let config = SenderConfig { announce_spread: Duration::MAX, ..SenderConfig::default() };
    assert!(Sender::new(config, strategy, Instant::now(), &mut Rng::with_seed(1)).is_err());
}
