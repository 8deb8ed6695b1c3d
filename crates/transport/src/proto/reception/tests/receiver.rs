//! The receiver's state machine, event by event.

use std::time::{Duration, Instant};

use crate::Result;
use crate::proto::reception::{
    Action, Admission, Announcement, Coverage, Event, Receiver, ReceptionConfig, ReceptionError,
    ReceptionMode, Refusal, Sources, Start,
};
use lightship_tuner::reception::{Reception, ReceptionStrategy};

struct Test<C> {
    receiver: Receiver<C>,
    now: Instant,
}

fn config(mode: ReceptionMode) -> ReceptionConfig {
    ReceptionConfig {
        mode,
        budget_bytes: 1000,
        grant_bytes_min: 100,
        stall: Duration::from_secs(3),
        patience: Duration::from_secs(10),
        ..ReceptionConfig::default()
    }
}

fn pull(connections: u32) -> ReceptionConfig {
    config(ReceptionMode::Pull { connections })
}

impl<C: Coverage> Test<C> {
    fn new(config: ReceptionConfig, coverage: C) -> Result<Self> {
        let now = Instant::now();
        Ok(Self { receiver: Receiver::new(config, coverage, now)?, now })
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        self.receiver.handle(event, self.now);
        std::iter::from_fn(|| self.receiver.next_action()).collect()
    }

    /// Waits for the next deadline.
    fn wait(&mut self) -> Vec<Action> {
        let deadline = self.receiver.deadline().expect("a deadline");
        assert!(deadline > self.now || self.receiver.is_over(), "a deadline in the past");
        self.now = deadline;
        self.handle(Event::Tick)
    }

    fn announce(&mut self, part: u64) -> Vec<Action> {
        self.announce_ranked(part, 0)
    }

    fn announce_ranked(&mut self, part: u64, rank: u64) -> Vec<Action> {
        self.handle(Event::Announced(Announcement { part, bytes: None, rows: None, rank }))
    }

    /// Receives a part of one message to its end. Returns the actions other than grants.
    fn receive(&mut self, part: u64) -> Vec<Action> {
        let mut actions = self.handle(Event::Received { part, bytes: 100, rows: 10 });
        actions.extend(self.handle(Event::Consumed { part, bytes: 100 }));
        actions.extend(self.handle(Event::Ended { part }));
        actions.retain(|action| !matches!(action, Action::Grant { .. }));
        actions
    }
}

fn pulls(actions: &[Action]) -> Vec<(u64, u64)> {
    let of = |action: &Action| match *action {
        Action::Pull { part, from_row, .. } => Some((part, from_row)),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

#[test]
fn parts_are_pulled_a_few_at_a_time() -> Result<()> {
    let mut test = Test::new(pull(2), Sources::new(3))?;
    let first = Action::Pull { part: 1, from_row: 0, grant_bytes: 500 };
    assert_eq!(test.announce(1), [Action::Acknowledge { part: 1 }, first]);
    assert_eq!(test.announce(1), [Action::Acknowledge { part: 1 }]);
    assert_eq!(pulls(&test.announce(0)), [(0, 0)]);
    assert_eq!(test.announce(2), [Action::Acknowledge { part: 2 }]);
    assert_eq!(test.announce(7), [Action::Stop { part: 7 }]);
    assert_eq!(test.handle(Event::Opened { part: 1 }), []);
    assert_eq!(pulls(&test.receive(1)), [(2, 0)]);
    assert_eq!(test.announce(1), [Action::Stop { part: 1 }]);
    assert_eq!(test.receive(0), []);
    assert_eq!(test.receive(2), [Action::Done]);
    assert_eq!(test.announce(2), [Action::Stop { part: 2 }]);
    assert_eq!((test.receiver.report().parts, test.receiver.report().rows), (3, 30));
    assert_eq!(test.receiver.deadline(), None);
    Ok(())
}

#[test]
fn it_can_wait_until_the_query_is_covered() -> Result<()> {
    let config = ReceptionConfig { start: Start::WhenCovered, ..pull(8) };
    let mut test = Test::new(config, Sources::new(2))?;
    assert_eq!(test.announce(1), [Action::Acknowledge { part: 1 }]);
    assert_eq!(pulls(&test.announce(0)), [(1, 0), (0, 0)]);
    Ok(())
}

#[test]
fn a_lost_part_goes_on_after_its_last_row() -> Result<()> {
    let mut test = Test::new(pull(1), Sources::new(1))?;
    test.announce(0);
    test.handle(Event::Received { part: 0, bytes: 70, rows: 7 });
    assert_eq!(test.handle(Event::Lost { part: 0 }), []);
    // 70 bytes wait to be consumed.
    assert_eq!(test.wait(), [Action::Pull { part: 0, from_row: 7, grant_bytes: 930 }]);
    assert_eq!(test.handle(Event::Ended { part: 0 }), [Action::Done]);
    assert_eq!(test.receiver.rows(0), 7);
    Ok(())
}

#[test]
fn a_part_that_can_not_be_received_is_named() -> Result<()> {
    let mut test = Test::new(pull(4), Sources::new(3))?;
    test.announce(0);
    test.announce(2);
    test.receive(0);
    let (began, mut asked) = (test.now, 0);
    // Part 1 was never announced, and the sender of part 2 can't be reached.
    let error = loop {
        let actions = test.wait();
        asked += actions.iter().filter(|action| matches!(action, Action::Ask { part: 1, .. })).count();
        if let Some(Action::Failed(error)) = actions.last() {
            break error.clone();
        }
        for (part, _) in pulls(&actions) {
            assert_eq!(part, 2);
            test.handle(Event::Lost { part });
        }
    };
    let ReceptionError::Missing { parts, more: false } = &error else { panic!("{error}") };
    assert!(parts.contains(&1), "{error}");
    assert!(asked > 5, "{asked}");
    let took = test.now - began;
    assert!((Duration::from_secs(5)..Duration::from_secs(30)).contains(&took), "{took:?}");
    assert_eq!(test.handle(Event::Tick), []);
    assert!(error.to_string().starts_with("part"), "{error}");
    Ok(())
}

#[test]
fn a_silent_connection_is_closed_unless_the_consumer_waits() -> Result<()> {
    let mut test = Test::new(pull(1), Sources::new(1))?;
    test.announce(0);
    test.handle(Event::Received { part: 0, bytes: 70, rows: 7 });
    for _ in 0..5 {
        assert_eq!(test.wait(), []);
    }
    test.handle(Event::Consumed { part: 0, bytes: 70 });
    assert_eq!(test.wait(), [Action::Close { part: 0 }]);
    assert_eq!(pulls(&test.wait()), [(0, 7)]);
    // Late events of the closed connection change nothing that is counted twice.
    test.handle(Event::Lost { part: 0 });
    assert_eq!(test.handle(Event::Lost { part: 0 }), []);
    Ok(())
}

#[test]
fn pushing_senders_are_refused_and_the_holes_asked_at_the_end() -> Result<()> {
    let config = ReceptionConfig { connections_max: 2, ..config(ReceptionMode::Push) };
    let mut test = Test::new(config, Sources::new(4))?;
    assert_eq!(test.receiver.strategy(), ReceptionStrategy::Push);
    for part in 0..2 {
        let accepted = Action::Accept { part, connection: 10 + part, from_row: 0, grant_bytes: 500 };
        assert_eq!(test.handle(Event::Connected { part, connection: 10 + part }), [accepted]);
    }
    let refused = |part, reason| [Action::Refuse { part, connection: 1, reason }];
    let connected = |part| Event::Connected { part, connection: 1 };
    assert_eq!(test.handle(connected(2)), refused(2, Refusal::Full));
    assert_eq!(test.handle(connected(0)), refused(0, Refusal::Busy));
    assert_eq!(test.receive(0), []);
    assert_eq!(test.handle(connected(0)), refused(0, Refusal::Unwanted));
    // One place is free: one hole is asked after the quiet time, the other when there is room.
    assert_eq!(test.wait(), [Action::Ask { part: 2, from_row: 0 }]);
    assert_eq!(test.receive(1), [Action::Ask { part: 3, from_row: 0 }]);
    assert!(matches!(test.handle(connected(3))[..], [Action::Accept { part: 3, .. }]));
    assert!(matches!(test.handle(connected(2))[..], [Action::Accept { part: 2, .. }]));
    assert_eq!(test.receive(3), []);
    assert_eq!(test.receive(2), [Action::Done]);
    assert_eq!(test.handle(connected(2)), refused(2, Refusal::Stopped));
    Ok(())
}

#[test]
fn a_sender_that_exceeds_its_grant_ends_the_reception() -> Result<()> {
    let mut test = Test::new(pull(1), Sources::new(1))?;
    test.announce(0);
    let error = ReceptionError::Overrun { part: 0, bytes: 1001, granted_bytes: 1000 };
    assert_eq!(test.handle(Event::Received { part: 0, bytes: 1001, rows: 1 }), [Action::Failed(error)]);
    Ok(())
}

#[test]
fn in_order_the_first_part_is_always_pulled() -> Result<()> {
    let config = ReceptionConfig { in_order: true, connections_max: 2, ..pull(2) };
    let mut test = Test::new(config, Sources::new(4))?;
    for part in [3, 1, 0] {
        assert_eq!(pulls(&test.announce_ranked(part, part)), []);
    }
    assert_eq!(pulls(&test.announce_ranked(2, 2)), [(0, 0), (1, 0)]);
    // The first one is lost, and another takes its place; the first one has one of its own.
    assert_eq!(pulls(&test.handle(Event::Lost { part: 0 })), [(2, 0)]);
    assert_eq!(pulls(&test.wait()), [(0, 0)]);
    assert_eq!(pulls(&test.receive(0)), []);
    assert_eq!(pulls(&test.receive(1)), [(3, 0)]);
    assert_eq!(test.receive(2), []);
    assert_eq!(test.receive(3), [Action::Done]);
    Ok(())
}

/// Parts are intervals `low * 1000 + high`; holes have such numbers too.
struct Intervals {
    missing: Vec<(u64, u64)>,
}

impl Coverage for Intervals {
    fn admit(&mut self, part: u64) -> Admission {
        let (low, high) = (part / 1000, part % 1000);
        let Some(at) = self.missing.iter().position(|&(from, to)| from <= low && high <= to) else {
            return Admission::Redundant;
        };
        let (from, to) = self.missing.swap_remove(at);
        self.missing.extend([(from, low), (high, to)].into_iter().filter(|(low, high)| low < high));
        self.missing.sort_unstable();
        Admission::Admitted
    }

    fn withdraw(&mut self, part: u64) {
        self.missing.push((part / 1000, part % 1000));
    }

    fn is_covered(&self) -> bool {
        self.missing.is_empty()
    }

    fn holes(&mut self, max: usize) -> Vec<u64> {
        self.missing.iter().take(max).map(|(low, high)| low * 1000 + high).collect()
    }
}

#[test]
fn a_part_that_has_moved_is_filled_by_others() -> Result<()> {
    let mut test = Test::new(pull(4), Intervals { missing: vec![(0, 100)] })?;
    assert_eq!(pulls(&test.announce(50)), [(50, 0)]);
    assert_eq!(pulls(&test.announce(50_100)), [(50_100, 0)]);
    assert_eq!(test.announce(40_060), [Action::Stop { part: 40_060 }]);
    // The bucket has split: its interval is asked for, and two answer.
    let asked = test.handle(Event::Withdrawn { part: 50 });
    assert_eq!(asked, [Action::Ask { part: 50, from_row: 0 }]);
    assert_eq!(pulls(&test.announce(25)), [(25, 0)]);
    assert_eq!(pulls(&test.announce(25_050)), [(25_050, 0)]);
    for part in [50_100, 25] {
        assert_eq!(test.receive(part), []);
    }
    assert_eq!(test.receive(25_050), [Action::Done]);
    Ok(())
}

/// Nobody is known to be asked.
struct Nobody;

impl Coverage for Nobody {
    fn admit(&mut self, _part: u64) -> Admission {
        Admission::Redundant
    }

    fn withdraw(&mut self, _part: u64) {}

    fn is_covered(&self) -> bool {
        false
    }

    fn holes(&mut self, _max: usize) -> Vec<u64> {
        Vec::new()
    }
}

#[test]
fn it_ends_if_nobody_is_there() -> Result<()> {
    let mut test = Test::new(pull(4), Nobody)?;
    assert_eq!(test.wait(), []);
    let missing = ReceptionError::Missing { parts: Vec::new(), more: true };
    assert_eq!(test.wait(), [Action::Failed(missing)]);
    // An answer without parts is complete at once.
    let mut empty = Test::new(pull(4), Sources::new(0))?;
    assert_eq!(empty.handle(Event::Tick), [Action::Done]);
    Ok(())
}

#[test]
fn a_stopped_reception_turns_senders_away() -> Result<()> {
    let mut test = Test::new(pull(1), Sources::new(2))?;
    test.announce(0);
    assert_eq!(test.handle(Event::Stop), [Action::Failed(ReceptionError::Stopped)]);
    assert_eq!(test.announce(1), [Action::Stop { part: 1 }]);
    assert_eq!(test.handle(Event::Ended { part: 0 }), []);
    Ok(())
}

#[test]
fn parts_are_limited_in_number() -> Result<()> {
    let config = ReceptionConfig { parts_max: 2, ..pull(1) };
    let mut test = Test::new(config, Sources::new(3))?;
    test.announce(0);
    test.announce(1);
    assert_eq!(test.announce(2), [Action::Failed(ReceptionError::TooManyParts { parts_max: 2 })]);
    Ok(())
}

#[test]
fn auto_pulls() -> Result<()> {
    let strategy = |parts| {
        let conditions = Reception { parts, ..Reception::default() };
        let config = ReceptionConfig { conditions, ..ReceptionConfig::default() };
        Receiver::new(config, Sources::new(parts), Instant::now()).map(|receiver| receiver.strategy())
    };
    for parts in [0, 1, 3, 100_000] {
        assert!(matches!(strategy(parts)?, ReceptionStrategy::Pull { connections: 2.. }), "{parts} parts");
    }
    Ok(())
}

#[test]
fn invalid_limits_are_errors() {
    let times = ReceptionConfig { quiet: Duration::ZERO, ..ReceptionConfig::default() };
    let budget = ReceptionConfig { in_order: true, budget_bytes: 199, ..pull(1) };
    let in_order = ReceptionConfig { in_order: true, ..config(ReceptionMode::Push) };
    for config in [times, budget, in_order, pull(0), ReceptionConfig { parts_max: 0, ..pull(1) }] {
        assert!(Receiver::new(config.clone(), Sources::new(1), Instant::now()).is_err(), "{config:?}");
    }
}
