//! Datagrams that are lost, doubled, reordered and forged.

use std::collections::BTreeMap;

use lightship_usage::{Entry, Figure, Figures, Subject};

use super::*;
use crate::datagram::{Description, SealableBody};
use crate::facts::HostFacts;
use crate::sender::{Reaction, Sender};

const SECOND: u64 = 1_000_000_000;
const TOKEN: &str = "token";

fn from(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn collector(options: CollectorOptions) -> Collector {
    Collector::new(options, TOKEN, [7; 32])
}

/// An agent whose clock is ahead by an offset.
struct TestAgent {
    host: String,
    sender: Sender,
    number: u64,
    offset_ns: u64,
    entries: usize,
}

impl TestAgent {
    fn new(host: &str, run: u64) -> Self {
        let sender = Sender::new(Keys::of(TOKEN), run);
        Self { host: host.into(), sender, number: 0, offset_ns: 1000 * SECOND, entries: 1 }
    }

    fn sample(&mut self, now_ns: u64) -> Vec<Vec<u8>> {
        let mut figures = Figures::default();
        figures.set(Figure::CpuUserNs, now_ns);
        let entry = |pid| Entry { subject: Subject::Process { pid, began_ns: 1 }, figures: figures.clone() };
        let sample = Sample {
            host: self.host.clone(),
            run: 0,
            number: self.number,
            at_ns: now_ns + self.offset_ns,
            entries: (0..self.entries as u32).map(entry).collect(),
        };
        self.number += 1;
        let (bodies, _) = SealableBody::of_sample(&sample);
        let at_ns = now_ns + self.offset_ns;
        bodies.iter().enumerate().map(|(part, body)| self.sender.datagram(body, part == 0, at_ns)).collect()
    }

    /// A sample that arrives with its answer at once.
    fn send(&mut self, collector: &mut Collector, now_ns: u64, events: &mut Vec<CollectorEvent>) -> Reaction {
        let mut reaction = Reaction::Nothing;
        for datagram in self.sample(now_ns) {
            let answer = collector.handle(&datagram, from(1), now_ns + 100, events);
            if let Some(answer) = answer {
                assert!(answer.len() <= datagram.len());
                reaction = self.sender.receive(&answer, now_ns + self.offset_ns + 200).unwrap();
            }
        }
        reaction
    }
}

fn samples(events: &[CollectorEvent]) -> Vec<Arc<TimedSample>> {
    let sample = |event: &_| match event {
        CollectorEvent::Sample(sample) => Some(sample.clone()),
        _ => None,
    };
    events.iter().filter_map(sample).collect()
}

#[test]
fn a_host_joins_and_its_samples_come_on_the_collectors_time_line() {
    let (mut collector, mut agent, mut events) =
        (collector(CollectorOptions::default()), TestAgent::new("a", 5), vec![]);
    assert_eq!(agent.send(&mut collector, SECOND, &mut events), Reaction::Accepted);
    assert_eq!(events, [], "nothing is believed before the agent has shown that it receives answers");
    agent.send(&mut collector, 2 * SECOND, &mut events);
    agent.send(&mut collector, 3 * SECOND, &mut events);
    assert_eq!(events[0], CollectorEvent::Joined { host: "a".into(), run: 5 });
    let last = samples(&events).pop().unwrap();
    assert!(last.time_ns.abs_diff(3 * SECOND) <= last.bound_ns.unwrap(), "{last:?}");
    // The last exchange was a second ago.
    assert!(last.bound_ns.unwrap() < 210_000);
    let [report] = &collector.hosts(3 * SECOND)[..] else { panic!() };
    assert_eq!(report.offset.unwrap().offset_ns.abs_diff(1000 * SECOND as i64) / 10_000, 0);
    assert_eq!(report.counts, HostCounts { received: 2, samples: 2, ..HostCounts::default() });
    assert_eq!(collector.counts().unconfirmed, 1);
    assert!(collector.time_of("a", 1003 * SECOND).unwrap().time_ns.abs_diff(3 * SECOND) < 10_000);
}

#[test]
fn losses_doubles_and_reorders_are_counted() {
    let (mut collector, mut agent, mut events) =
        (collector(CollectorOptions::default()), TestAgent::new("a", 5), vec![]);
    agent.send(&mut collector, SECOND, &mut events);
    let datagrams: Vec<_> = (2..102).flat_map(|second| agent.sample(second * SECOND)).collect();
    let mut random = fastrand::Rng::with_seed(1);
    let mut arrivals: Vec<(f64, &Vec<u8>)> = Vec::new();
    let (mut lost, mut doubled) = (0, 0);
    for (index, datagram) in datagrams.iter().enumerate() {
        // The first and the last one come, so that what is between them is known.
        let ends = index == 0 || index == 99;
        if !ends && random.u8(0..100) < 30 {
            lost += 1;
            continue;
        }
        arrivals.push((index as f64 + if ends { 0.0 } else { random.f64() * 3.0 - 1.5 }, datagram));
        if random.u8(0..100) < 20 {
            doubled += 1;
            arrivals.push((index as f64 + 5.0, datagram));
        }
    }
    arrivals.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    for (at, datagram) in arrivals {
        collector.handle(datagram, from(1), (at.max(0.0) * SECOND as f64) as u64 + 3 * SECOND, &mut events);
    }
    let counts = collector.hosts(0)[0].counts;
    assert_eq!((counts.lost, counts.doubled, counts.received), (lost, doubled, 100 - lost));
    assert!(counts.reordered > 0);
    assert_eq!(samples(&events).len() as u64, 100 - lost);
}

#[test]
fn forged_and_malformed_datagrams_change_nothing() {
    let (mut collector, mut events) = (collector(CollectorOptions::default()), vec![]);
    let mut agent = TestAgent::new("a", 5);
    agent.sender = Sender::new(Keys::of("another token"), 5);
    for datagram in agent.sample(SECOND) {
        assert_eq!(collector.handle(&datagram, from(1), SECOND, &mut events), None);
    }
    assert_eq!(collector.handle(b"GET / HTTP/1.1", from(1), SECOND, &mut events), None);
    let counts = collector.counts();
    assert_eq!((counts.forged, counts.malformed, collector.hosts(0).len()), (1, 1, 0));
}

#[test]
fn datagrams_that_are_repeated_by_somebody_else_are_not_believed() {
    let (mut collector, mut agent, mut events) =
        (collector(CollectorOptions::default()), TestAgent::new("a", 5), vec![]);
    let mut kept = agent.sample(SECOND);
    agent.send(&mut collector, SECOND, &mut events);
    kept.extend(agent.sample(2 * SECOND));
    agent.send(&mut collector, 3 * SECOND, &mut events);
    // The agent starts again, and another one repeats the run before; also from another address.
    let mut again = TestAgent::new("a", 6);
    again.send(&mut collector, 4 * SECOND, &mut events);
    again.send(&mut collector, 5 * SECOND, &mut events);
    assert!(events.contains(&CollectorEvent::Restarted { host: "a".into(), run: 6 }));
    events.clear();
    kept.extend(again.sample(6 * SECOND));
    for (port, datagram) in kept.iter().flat_map(|datagram| [(2, datagram), (3, datagram)]) {
        collector.handle(datagram, from(port), 6 * SECOND, &mut events);
    }
    assert_eq!(events, []);
    assert_eq!(collector.hosts(0)[0].run, 6);
}

#[test]
fn an_agent_that_restarts_with_a_clock_that_was_set_back_gets_a_greater_run() {
    let (mut collector, mut agent, mut events) =
        (collector(CollectorOptions::default()), TestAgent::new("a", 500), vec![]);
    agent.send(&mut collector, SECOND, &mut events);
    agent.send(&mut collector, 2 * SECOND, &mut events);
    let mut again = TestAgent::new("a", 400);
    assert_eq!(again.send(&mut collector, 3 * SECOND, &mut events), Reaction::RunRaised);
    assert_eq!(again.send(&mut collector, 4 * SECOND, &mut events), Reaction::Accepted);
    again.send(&mut collector, 5 * SECOND, &mut events);
    assert!(events.contains(&CollectorEvent::Restarted { host: "a".into(), run: 501 }));
    assert_eq!(samples(&events).last().unwrap().sample.run, 501);
}

#[test]
fn a_collector_that_restarts_accepts_running_agents() {
    let mut agent = TestAgent::new("a", 5);
    let mut events = vec![];
    let mut first = collector(CollectorOptions::default());
    agent.send(&mut first, SECOND, &mut events);
    agent.send(&mut first, 2 * SECOND, &mut events);
    let mut second = Collector::new(CollectorOptions::default(), TOKEN, [8; 32]);
    events.clear();
    assert_eq!(agent.send(&mut second, 3 * SECOND, &mut events), Reaction::Accepted);
    agent.send(&mut second, 4 * SECOND, &mut events);
    assert_eq!(samples(&events).len(), 1);
}

#[test]
fn hosts_leave_come_back_and_make_room_for_others() {
    let options = CollectorOptions { hosts_max: 2, ..CollectorOptions::default() };
    let (mut collector, mut events) = (collector(options), vec![]);
    let mut agents: Vec<_> = ["a", "b", "c"].map(|host| TestAgent::new(host, 5)).into();
    for second in 1..3 {
        for agent in &mut agents[..2] {
            agent.send(&mut collector, second * SECOND, &mut events);
        }
    }
    agents[2].send(&mut collector, 3 * SECOND, &mut events);
    agents[2].send(&mut collector, 4 * SECOND, &mut events);
    assert!(events.contains(&CollectorEvent::Refused { host: "c".into() }));
    events.clear();
    agents[1].send(&mut collector, 14 * SECOND, &mut events);
    collector.tick(15 * SECOND, &mut events);
    collector.tick(15 * SECOND, &mut events);
    let left = CollectorEvent::Left { host: "a".into() };
    assert_eq!(events.iter().filter(|event| **event == left).count(), 1);
    agents[0].send(&mut collector, 16 * SECOND, &mut events);
    assert!(events.contains(&CollectorEvent::Joined { host: "a".into(), run: 5 }));
    collector.tick(40 * SECOND, &mut events);
    agents[2].send(&mut collector, 41 * SECOND, &mut events);
    let names: Vec<_> = collector.hosts(0).into_iter().map(|report| report.host).collect();
    assert_eq!(names, ["a", "c"]);
    // One that was forgotten must not come back with what it has sent before.
    assert_eq!(agents[1].send(&mut collector, 42 * SECOND, &mut events), Reaction::RunRaised);
}

#[test]
fn memory_is_bounded_and_large_samples_come_in_parts() {
    let options = CollectorOptions { bytes_max: 200_000, ..CollectorOptions::default() };
    let (mut collector, mut agent, mut events) = (collector(options), TestAgent::new("a", 5), vec![]);
    agent.entries = 300;
    for second in 1..20 {
        agent.send(&mut collector, second * SECOND, &mut events);
        assert!(collector.bytes() <= 200_000);
    }
    assert!(
        samples(&events).iter().all(|sample| sample.sample.entries.len() == 300 && sample.parts_missing == 0)
    );
    // Parts of samples that never become complete.
    for second in 20..200 {
        let datagrams = agent.sample(second * SECOND);
        for datagram in &datagrams[1..] {
            collector.handle(datagram, from(1), second * SECOND, &mut events);
            assert!(collector.bytes() <= 200_000);
        }
    }
    collector.tick(300 * SECOND, &mut events);
    assert!(collector.hosts(0)[0].counts.parts_missing > 100);
}

#[test]
fn a_clock_that_is_set_is_reported() {
    let (mut collector, mut agent, mut events) =
        (collector(CollectorOptions::default()), TestAgent::new("a", 5), vec![]);
    for second in 1..20 {
        if second == 10 {
            agent.offset_ns += 3600 * SECOND;
        }
        agent.send(&mut collector, second * SECOND, &mut events);
    }
    assert!(events.contains(&CollectorEvent::ClockDoubtful { host: "a".into() }));
    let stepped = events.iter().find_map(|event| match event {
        CollectorEvent::ClockStepped { by_ns, unreliable: false, .. } => Some(*by_ns),
        _ => None,
    });
    assert!(stepped.unwrap().abs_diff(3600 * SECOND as i64) < 2 * SECOND);
    for (index, sample) in samples(&events).iter().enumerate() {
        let Some(bound_ns) = sample.bound_ns else { continue };
        let taken_ns = sample.sample.entries[0].figures.get(Figure::CpuUserNs).unwrap();
        assert!(sample.time_ns.abs_diff(taken_ns) <= bound_ns, "{index}: {sample:?}");
    }
}

#[test]
fn a_description_is_remembered() {
    let (mut collector, mut agent, mut events) =
        (collector(CollectorOptions::default()), TestAgent::new("a", 5), vec![]);
    agent.send(&mut collector, SECOND, &mut events);
    let facts = HostFacts { processors: 8, ..HostFacts::default() };
    let description = Description { host: "a".into(), interval_ns: SECOND, facts, ..Description::default() };
    for body in SealableBody::of_description(&description) {
        let datagram = agent.sender.datagram(&body, false, 1001 * SECOND);
        collector.handle(&datagram, from(1), SECOND, &mut events);
    }
    let report = collector.hosts(0).remove(0);
    assert_eq!((report.facts.processors, report.interval_ns), (8, SECOND));
}

/// Agents and a collector over a network that loses, doubles, delays and reorders, in virtual time.
#[test]
fn with_a_third_of_all_datagrams_lost_times_stay_within_their_bounds() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut collector, mut agent, mut events) =
            (collector(CollectorOptions::default()), TestAgent::new("a", 5), vec![]);
        agent.entries = random.usize(1..200);
        let mut arrivals: BTreeMap<(u64, u32), Option<Vec<u8>>> = BTreeMap::new();
        let mut count = 0;
        let mut answers: BTreeMap<(u64, u32), Vec<u8>> = BTreeMap::new();
        let delay = |random: &mut fastrand::Rng| random.u64(50_000..1_500_000_000 / 10);
        (1..120).for_each(|second| drop(arrivals.insert((second * SECOND, 0), None)));
        while let Some(((now_ns, _), arrival)) = arrivals.pop_first() {
            while let Some(entry) = answers.first_entry().filter(|entry| entry.key().0 <= now_ns) {
                let ((at_ns, _), answer) = entry.remove_entry();
                agent.sender.receive(&answer, at_ns + agent.offset_ns).unwrap();
            }
            let Some(datagram) = arrival else {
                for datagram in agent.sample(now_ns) {
                    for _ in 0..1 + usize::from(random.u8(0..100) < 5) {
                        if random.u8(0..100) >= 33 {
                            count += 1;
                            arrivals.insert((now_ns + delay(&mut random), count), Some(datagram.clone()));
                        }
                    }
                }
                continue;
            };
            if let Some(answer) = collector.handle(&datagram, from(1), now_ns, &mut events)
                && random.u8(0..100) >= 33
            {
                count += 1;
                answers.insert((now_ns + delay(&mut random), count), answer);
            }
        }
        let timed = samples(&events);
        assert!(timed.len() > 60, "seed {seed}: {}", timed.len());
        let known = timed.iter().filter_map(|sample| Some((sample, sample.bound_ns?)));
        assert!(known.clone().count() > 40, "seed {seed}");
        for (sample, bound_ns) in known {
            let taken_ns = sample.sample.at_ns - agent.offset_ns;
            assert!(sample.time_ns.abs_diff(taken_ns) <= bound_ns, "seed {seed}: {sample:?}");
        }
    }
}

proptest::proptest! {
    #[test]
    fn an_agent_that_lies_about_everything_changes_only_its_own_host(sent: Vec<crate::fuzzing::Sent>) {
        crate::fuzzing::datagrams(sent);
    }
}
