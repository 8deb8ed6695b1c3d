//! Clocks under virtual time, and clocks that lie.

use std::collections::BTreeMap;

use super::*;

const MS: i64 = 1_000_000;
const SECOND: i64 = 1000 * MS;
const HOUR: i64 = 3600 * SECOND;

/// A clock in virtual time: its rate wanders within a limit, and it may be set.
struct Clock {
    at_ns: i64,
    time_ns: i64,
    rate_ppb: i64,
    rate_ppb_max: i64,
}

impl Clock {
    fn advance(&mut self, to_ns: i64, random: &mut fastrand::Rng) -> i64 {
        let passed = to_ns - self.at_ns;
        assert!(passed >= 0);
        self.time_ns += passed + (i128::from(passed) * i128::from(self.rate_ppb) / 1_000_000_000) as i64;
        self.at_ns = to_ns;
        if random.u8(..) < 10 {
            self.rate_ppb = random.i64(-self.rate_ppb_max..=self.rate_ppb_max);
        }
        self.time_ns
    }
}

/// What arrives.
enum Arrival {
    /// A datagram of the agent, with an exchange that it reports.
    AtCollector { sent_ns: u64, number: u64, reports: Option<(u64, u64)> },
    /// An answer to datagram `number`.
    AtAgent { number: u64 },
    /// The agent takes a sample.
    Tick,
    /// The agent's clock is set.
    Step(i64),
}

struct Simulation {
    random: fastrand::Rng,
    agent: Clock,
    collector: Clock,
    events: BTreeMap<(i64, u64), Arrival>,
    scheduled: u64,
    /// Least delay there and back, the mean of what is added, and the lost part in percent.
    delays_ns: [i64; 2],
    jitter_ns: i64,
    loss_percent: u8,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let clock = |random: &mut fastrand::Rng| Clock {
            at_ns: 0,
            time_ns: random.i64(SECOND..1_000_000 * SECOND),
            rate_ppb: random.i64(-99_000..=99_000),
            rate_ppb_max: 99_000,
        };
        let (agent, collector) = (clock(&mut random), clock(&mut random));
        let delays_ns = [0; 2].map(|_| random.i64(20_000..100 * MS));
        let jitter_ns = random.i64(1000..50 * MS);
        let loss_percent = random.u8(0..60);
        Self {
            random,
            agent,
            collector,
            events: BTreeMap::new(),
            scheduled: 0,
            delays_ns,
            jitter_ns,
            loss_percent,
        }
    }

    fn schedule(&mut self, at_ns: i64, arrival: Arrival) {
        self.scheduled += 1;
        self.events.insert((at_ns, self.scheduled), arrival);
    }

    /// Sends, unless the datagram is lost. Some come twice, and some much later.
    fn send(&mut self, now_ns: i64, direction: usize, arrival: impl Fn() -> Arrival) {
        for _ in 0..1 + usize::from(self.random.u8(0..100) < 5) {
            if self.random.u8(0..100) < self.loss_percent {
                continue;
            }
            let exponential = -(self.random.f64().max(1e-9).ln()) * self.jitter_ns as f64;
            let late = if self.random.u8(0..100) < 3 { 3 * SECOND } else { 0 };
            self.schedule(now_ns + self.delays_ns[direction] + exponential as i64 + late, arrival());
        }
    }

    /// Runs for a time, and calls `check` after each datagram that the collector receives with the true offset.
    fn run(
        &mut self,
        clock: &mut HostClock,
        until_ns: i64,
        mut check: impl FnMut(&HostClock, u64, i64, Option<ClockEvent>),
    ) {
        self.schedule(0, Arrival::Tick);
        let (mut number, mut reports) = (0_u64, None);
        let mut answered: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
        let mut seen = std::collections::HashSet::new();
        while let Some(((now_ns, _), arrival)) = self.events.pop_first() {
            if now_ns > until_ns {
                break;
            }
            let agent_ns = self.agent.advance(now_ns, &mut self.random);
            let collector_ns = self.collector.advance(now_ns, &mut self.random);
            match arrival {
                Arrival::Tick => {
                    number += 1;
                    let sent_ns = agent_ns as u64;
                    let of = number;
                    self.send(now_ns, 0, || Arrival::AtCollector { sent_ns, number: of, reports });
                    self.schedule(now_ns + SECOND, Arrival::Tick);
                }
                Arrival::Step(by_ns) => self.agent.time_ns += by_ns,
                Arrival::AtAgent { number } => {
                    if reports.is_none_or(|(before, _)| number > before) {
                        reports = Some((number, agent_ns as u64));
                    }
                }
                Arrival::AtCollector { sent_ns, number, reports } => {
                    let at_ns = collector_ns as u64;
                    // Datagrams that come twice are dropped before they get here.
                    if !seen.insert(number) {
                        continue;
                    }
                    clock.observe(sent_ns, at_ns);
                    answered.insert(number, (sent_ns, at_ns, at_ns));
                    self.send(now_ns, 1, || Arrival::AtAgent { number });
                    let exchange = reports.and_then(|(number, returned_ns)| {
                        let (sent_ns, received_ns, answered_ns) = answered.remove(&number)?;
                        Some(Exchange { sent_ns, received_ns, answered_ns, returned_ns })
                    });
                    let event = exchange.map(|exchange| clock.add(&exchange));
                    check(clock, at_ns, agent_ns - collector_ns, event);
                }
            }
        }
    }
}

#[test]
fn the_true_offset_is_always_within_the_bound() {
    let first: u64 = std::env::var("LIGHTSHIP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in first..first + 200 {
        let mut simulation = Simulation::new(seed);
        let mut clock = HostClock::new(ClockOptions::default());
        let (mut known, mut before) = (0, None);
        simulation.run(&mut clock, 600 * SECOND, |clock, at_ns, truth_ns, event| {
            assert!(!matches!(
                event,
                Some(ClockEvent::Impossible | ClockEvent::Stepped { .. } | ClockEvent::Doubtful)
            ));
            let Some(offset) = clock.offset(at_ns) else { return };
            let error_ns = offset.offset_ns.abs_diff(truth_ns);
            assert!(error_ns <= offset.bound_ns, "LIGHTSHIP_SEED={seed}: off by {error_ns} ns of {offset:?}");
            // What the offset was at the datagram before, as it is seen now.
            if let Some((at_ns, truth_ns)) = before.replace((at_ns, truth_ns)) {
                let offset = clock.offset(at_ns).unwrap();
                assert!(
                    offset.offset_ns.abs_diff(truth_ns) <= offset.bound_ns,
                    "LIGHTSHIP_SEED={seed}: {offset:?}"
                );
            }
            let moment = clock.to_collector((at_ns as i64 + truth_ns) as u64).unwrap();
            assert!(
                moment.time_ns.abs_diff(at_ns) <= moment.bound_ns + 10,
                "LIGHTSHIP_SEED={seed}: {moment:?}"
            );
            known += 1;
        });
        assert!(known > 50, "LIGHTSHIP_SEED={seed}: known {known} times");
        assert_eq!((clock.steps(), clock.lies()), (0, 0), "LIGHTSHIP_SEED={seed}");
        assert!(clock.exchanges.len() <= clock.options.exchanges_max);
    }
}

#[test]
fn steps_of_a_clock_are_noticed_and_no_wrong_time_is_given_after_the_next_exchange() {
    for seed in 0..100 {
        let mut simulation = Simulation::new(seed);
        simulation.loss_percent = simulation.loss_percent.min(40);
        let by_ns = if seed % 2 == 0 { HOUR } else { -HOUR / 100 };
        simulation.agent.time_ns += 2 * HOUR;
        simulation.schedule(200 * SECOND, Arrival::Step(by_ns));
        let mut clock = HostClock::new(ClockOptions::default());
        let (mut stepped, mut noticed, mut late) = (None, false, 0);
        let mut first: Option<i64> = None;
        simulation.run(&mut clock, 400 * SECOND, |clock, at_ns, truth_ns, event| {
            if let Some(ClockEvent::Stepped { by_ns }) = event {
                assert_eq!(stepped.replace(by_ns), None, "seed {seed}");
            }
            let is_set = truth_ns.abs_diff(*first.get_or_insert(truth_ns)) > SECOND as u64;
            noticed |= is_set && clock.offset(at_ns).is_none();
            if is_set && !noticed {
                // Nothing that was sent after the step has come yet.
                late += 1;
            } else if let Some(offset) = clock.offset(at_ns) {
                assert!(
                    offset.offset_ns.abs_diff(truth_ns) <= offset.bound_ns,
                    "seed {seed}: {offset:?}, {truth_ns}"
                );
            }
        });
        assert!(late <= 4, "seed {seed}: {late} datagrams that were sent before the step");
        assert!(stepped.unwrap().abs_diff(by_ns) < 5 * SECOND as u64, "seed {seed}: {stepped:?}");
        assert_eq!(clock.steps(), 1);
        assert!(clock.offset(simulation.collector.time_ns as u64).is_some(), "seed {seed}");
    }
}

fn exchange(sent: i64, received: i64, answered: i64, returned: i64) -> Exchange {
    let at = |ms: i64| (ms * MS) as u64;
    Exchange {
        sent_ns: at(sent),
        received_ns: at(received),
        answered_ns: at(answered),
        returned_ns: at(returned),
    }
}

#[test]
fn impossible_exchanges_are_refused() {
    let mut clock = HostClock::new(ClockOptions::default());
    for impossible in [
        exchange(1000, 500, 500, 999),
        exchange(1000, 500, 510, 1005),
        exchange(1000, 500, 499, 1010),
        Exchange { sent_ns: u64::MAX, received_ns: 1, answered_ns: 2, returned_ns: u64::MAX },
    ] {
        assert_eq!(clock.add(&impossible), ClockEvent::Impossible, "{impossible:?}");
    }
    assert_eq!(clock.offset(1), None);
    assert_eq!(clock.lies(), 4);
    assert_eq!(clock.add(&exchange(1000, 505, 505, 1010)), ClockEvent::Agrees);
    let offset = clock.offset(505 * MS as u64).unwrap();
    assert!(offset.offset_ns.abs_diff(500 * MS) < 10_000 && offset.bound_ns < 5_100_000, "{offset:?}");
}

#[test]
fn a_single_lie_makes_the_clock_doubtful_until_the_next_exchange() {
    let mut clock = HostClock::new(ClockOptions::default());
    clock.add(&exchange(1000, 505, 505, 1010));
    assert_eq!(clock.add(&exchange(9_000_000, 1505, 1505, 9_000_010)), ClockEvent::Doubtful);
    assert_eq!(clock.offset(1), None);
    assert_eq!(clock.add(&exchange(3000, 2505, 2505, 3010)), ClockEvent::Agrees);
    assert!(clock.offset(1).is_some());
    assert_eq!((clock.lies(), clock.steps()), (1, 0));
}

#[test]
fn a_clock_that_is_set_again_and_again_is_not_believed() {
    let mut clock = HostClock::new(ClockOptions::default());
    for number in 0..20 {
        // Two exchanges with each offset, which is enough to believe it.
        let (at, offset) = (505 + number * 1000, 500 + number / 2 * 100_000);
        clock.add(&exchange(at + offset - 5, at, at, at + offset + 5));
    }
    assert!(clock.is_unreliable());
    assert_eq!(clock.offset(1), None);
    for number in 20..1000 {
        let (at, offset) = (505 + number * 1000, 500 + 9 * 100_000);
        clock.add(&exchange(at + offset - 5, at, at, at + offset + 5));
    }
    assert!(!clock.is_unreliable());
    assert!(clock.offset(999 * SECOND as u64).is_some());
}

#[test]
fn a_datagram_from_the_future_makes_the_clock_doubtful() {
    let mut clock = HostClock::new(ClockOptions::default());
    assert!(!clock.observe(5, 1), "nothing is known yet");
    clock.add(&exchange(1000, 505, 505, 1010));
    assert!(!clock.observe(1600 * MS as u64, 1105 * MS as u64));
    assert!(clock.observe(1700 * MS as u64, 1106 * MS as u64));
    assert_eq!(clock.offset(1), None);
    clock.add(&exchange(3000, 2505, 2505, 3010));
    assert!(clock.offset(1).is_some());
    assert!(clock.observe(3000 * MS as u64, 20_000 * MS as u64), "17 s on its way");
}

#[test]
fn the_drift_is_found() {
    let mut clock = HostClock::new(ClockOptions::default());
    for second in 0..120_u64 {
        let at = second * SECOND as u64 + 1;
        let agent = at + 7 * SECOND as u64 + second * 50_000;
        // Delays of 100 us and 300 us, and every third answer much later.
        let late = if second % 3 == 0 { 20 * MS as u64 } else { 0 };
        let exchange = Exchange {
            sent_ns: agent - 100_000,
            received_ns: at,
            answered_ns: at,
            returned_ns: agent + 300_000 + late,
        };
        assert_eq!(clock.add(&exchange), ClockEvent::Agrees);
    }
    let drift = clock.drift_ppm().unwrap();
    assert!((drift - 50.0).abs() < 5.0, "{drift}");
    assert_eq!(clock.round_trip_ns(), Some(400_000));
    assert!(clock.offset(120 * SECOND as u64).unwrap().bound_ns < 1_000_000);
}
