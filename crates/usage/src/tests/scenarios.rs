//! Scenarios: each is limited by something that the model knows.

use super::machine::*;
use crate::*;

/// Steps of each host's single thread.
pub(super) fn story(hosts: &[(&'static str, Machine, &[Op], usize)]) -> Story {
    let ran = hosts.iter().map(|(name, machine, ops, units)| Ran {
        name,
        machine: *machine,
        threads: vec![run(machine, ops, *units, 0.0, BEFORE)],
        divides: name.starts_with("node"),
        is_client: *name == "client",
    });
    let known = Known { parallelism: Some(1), ..Known::default() };
    Story { ran: ran.collect(), known, calibrated: NODE }
}

pub(super) const COMPUTE: &[Op] = &[Op::Read(0.4e6), Op::Cpu(0.02)];
pub(super) const SCAN: &[Op] = &[Op::Read(4e6), Op::Cpu(0.001)];
pub(super) const LOOKUP: &[Op] = &[Op::Random(4.0), Op::Cpu(0.001)];
pub(super) const ANSWER: &[Op] = &[Op::Cpu(0.001), Op::Send(1e6)];
pub(super) const FETCH: &[Op] = &[Op::Cpu(20e-6), Op::Exchange(15e-6)];
pub(super) const MIXED: &[Op] = &[Op::Read(2e6), Op::Cpu(0.01)];

pub(super) fn cpu_bound() -> Story {
    story(&[("node1", NODE, COMPUTE, 400), ("node2", NODE, COMPUTE, 300)])
}

pub(super) fn slow_disk() -> Story {
    let slow = Machine { disk: 40e6, ..NODE };
    story(&[("node1", NODE, SCAN, 90), ("node2", slow, SCAN, 90), ("node3", NODE, SCAN, 90)])
}

pub(super) fn random_disk() -> Story {
    story(&[("node1", NODE, LOOKUP, 400)])
}

pub(super) fn hog() -> Story {
    let hogged = Machine { hogs: 4.0, ..NODE };
    story(&[("node1", hogged, COMPUTE, 200), ("node2", NODE, COMPUTE, 200)])
}

pub(super) fn slow_link() -> Story {
    let slow = Machine { link: 12.5e6, ..NODE };
    story(&[("node1", slow, ANSWER, 120), ("client", NODE, &[Op::Sleep(0.001)], 1)])
}

pub(super) fn slow_client() -> Story {
    let waits = Machine { reader: 10e6, ..NODE };
    story(&[("node1", waits, ANSWER, 100), ("client", NODE, &[Op::Sleep(0.001)], 1)])
}

pub(super) fn lock() -> Story {
    let ops = [[Op::Cpu(0.01); 50].as_slice(), &[Op::Lock(8.0)], &[Op::Cpu(0.01); 50]].concat();
    story(&[("node1", NODE, &ops, 1)])
}

pub(super) fn round_trips() -> Story {
    story(&[("node1", NODE, FETCH, 60_000), ("client", NODE, &[Op::Sleep(0.001)], 1)])
}

pub(super) fn asleep() -> Story {
    story(&[("node1", NODE, &[Op::Cpu(0.005), Op::Sleep(0.1)], 100)])
}

pub(super) type Case = (&'static str, fn() -> Story, Limit, Option<&'static str>);

/// What limits each, and where.
pub(super) const CASES: [Case; 9] = [
    ("CPU", cpu_bound, Limit::Cpu, Some("node1")),
    ("slow disk", slow_disk, Limit::DiskSequential, Some("node2")),
    ("random disk", random_disk, Limit::DiskRandom, Some("node1")),
    ("hog", hog, Limit::CpuContended, Some("node1")),
    ("slow link", slow_link, Limit::Network, Some("node1")),
    ("slow client", slow_client, Limit::Receiver, Some("node1")),
    ("lock", lock, Limit::Lock, Some("node1")),
    ("round trips", round_trips, Limit::RoundTrips, None),
    ("asleep", asleep, Limit::Inefficient, None),
];

#[allow(clippy::print_stdout)]
pub(super) fn show(name: &str, footprint: &Footprint) {
    let verdict = Verdict::new(footprint);
    println!("{name}: {}", verdict.sentence);
    verdict.evidence.iter().for_each(|line| println!("    {line}"));
    for time in footprint.division.parts.iter().filter(|time| time.ns > 0 || time.high_ns > 0) {
        let [ns, low, high] = [time.ns, time.low_ns, time.high_ns].map(|ns| ns as f64 / 1e9);
        println!("    {:24} {ns:7.2} s ({low:.2} to {high:.2}), {}", time.part.name(), time.basis.name());
    }
}

pub(super) fn check_sum(footprint: &Footprint) {
    let division = &footprint.division;
    assert_eq!(division.parts.iter().map(|time| time.ns).sum::<u64>(), footprint.run_ns);
    assert_eq!(division.parts.len(), Part::ALL.len());
    assert!(!division.phases.is_empty() && division.phases.len() <= PHASES_MAX);
    for time in &division.parts {
        assert!(
            time.low_ns <= time.ns && time.ns <= time.high_ns && time.high_ns <= footprint.run_ns,
            "{time:?}"
        );
    }
    let phases: f64 = division.phases.iter().flat_map(|phase| phase.seconds).sum();
    assert!((phases * 1e9 - footprint.run_ns as f64).abs() < 1e3 + 1e-6 * footprint.run_ns as f64);
    for phase in &division.phases {
        let all =
            phase.seconds.iter().chain(&phase.divided_demand_seconds).chain(&phase.fixed_demand_seconds);
        assert!(all.clone().all(|seconds| seconds.is_finite() && *seconds >= 0.0), "{phase:?}");
    }
}

fn check(sampling: Sampling) {
    for (name, story, limit, host) in CASES {
        let story = story();
        let footprint = story.footprint(sampling);
        show(name, &footprint);
        check_sum(&footprint);
        let verdict = Verdict::new(&footprint);
        assert_eq!(verdict.limit, limit, "{name}");
        if let Some(host) = host {
            assert_eq!(verdict.host.as_deref(), Some(host), "{name}");
        }
        if limit == Limit::Inefficient {
            continue;
        }
        assert!(footprint.division.explained() >= 0.9, "{name}: {}", footprint.division.explained());
        // The parts are as the limiting host's thread spent its time.
        if let Some(ran) = story.ran.iter().find(|ran| Some(ran.name) == host) {
            let run = story.run_seconds();
            for part in Part::ALL {
                let spent = ran.threads[0].spent.get(&part).copied().unwrap_or(0.0) / run;
                let found = footprint.division.fraction(part);
                assert!((spent - found).abs() < 0.1, "{name}: {part:?} is {found}, was {spent}");
            }
        }
    }
}

#[test]
fn verdicts_are_right_with_fine_samples() {
    check(FINE);
}

#[test]
fn verdicts_are_right_with_a_sample_a_second() {
    check(COARSE);
}

#[test]
fn verdicts_are_right_when_samples_are_lost_doubled_and_reordered() {
    check(Sampling { faults: 0.3, ..FINE });
    check(Sampling { faults: 0.3, interval: 0.3, ..COARSE });
}

#[test]
fn a_slow_link_that_was_calibrated_as_such_is_the_limit() {
    let story = Story { calibrated: Machine { link: 12.5e6, ..NODE }, ..slow_link() };
    let footprint = story.footprint(COARSE);
    assert_eq!(Verdict::new(&footprint).limit, Limit::Network);
    let model = footprint.model;
    assert!((model.network_duplex_ns.unwrap() / footprint.run_ns as f64 - 1.0).abs() < 0.05);
    // The source adds up both directions.
    assert!((model.network_ns.unwrap() / model.network_duplex_ns.unwrap() - 0.5).abs() < 0.01);
}

#[test]
fn a_disk_is_seen_without_counted_waits() {
    let sampling = Sampling { waits: false, ..COARSE };
    for (story, limit) in [
        (slow_disk as fn() -> Story, Limit::DiskSequential),
        (random_disk, Limit::DiskRandom),
        (hog, Limit::CpuContended),
        (cpu_bound, Limit::Cpu),
    ] {
        let footprint = story().footprint(sampling);
        show("without waits", &footprint);
        check_sum(&footprint);
        assert_eq!(Verdict::new(&footprint).limit, limit);
        assert!(footprint.division.explained() >= 0.9);
    }
}

#[test]
fn threads_that_share_the_processors_are_cpu_limited() {
    let threads = vec![run(&NODE, COMPUTE, 200, 3.0, BEFORE); 4];
    let ran = vec![Ran { name: "node1", machine: NODE, threads, divides: true, is_client: false }];
    let story = Story { ran, known: Known::default(), calibrated: NODE };
    for sampling in [FINE, COARSE] {
        let footprint = story.footprint(sampling);
        show("4 threads on 2 processors", &footprint);
        let verdict = Verdict::new(&footprint);
        assert_eq!(verdict.limit, Limit::Cpu);
        assert!(verdict.fraction > 0.85);
    }
}

#[test]
fn reads_behind_processors_are_hidden_and_the_reverse() {
    let ahead = |bytes: f64| story(&[("node1", NODE, &[Op::ReadAhead(bytes), Op::Cpu(0.02)], 300)]);
    for sampling in [FINE, COARSE, Sampling { waits: false, ..COARSE }] {
        let cpu = ahead(2e6).footprint(sampling);
        show("read ahead", &cpu);
        assert_eq!(Verdict::new(&cpu).limit, Limit::Cpu, "{sampling:?}");
        let disk = ahead(8e6).footprint(sampling);
        show("read ahead, slower disk", &disk);
        assert!(disk.division.explained() > 0.9);
        if !sampling.waits {
            assert_eq!(Verdict::new(&disk).limit, Limit::DiskSequential);
        }
    }
}

#[test]
fn a_mixture_is_called_one() {
    let footprint = story(&[("node1", NODE, MIXED, 400)]).footprint(COARSE);
    show("mixed", &footprint);
    assert!((footprint.division.fraction(Part::Cpu) - 0.5).abs() < 0.05);
    assert!((footprint.division.fraction(Part::DiskSequential) - 0.5).abs() < 0.05);
}

#[test]
fn phases_on_several_hosts_follow_each_other() {
    let mut story = story(&[("node1", NODE, SCAN, 200), ("coordinator", NODE, &[Op::Sleep(1e-3)], 1)]);
    let after = story.ran[0].threads[0].end;
    story.ran[1].threads = vec![run(&NODE, COMPUTE, 150, 0.0, after)];
    for sampling in [FINE, COARSE] {
        let footprint = story.footprint(sampling);
        show("phases", &footprint);
        check_sum(&footprint);
        assert!(footprint.division.explained() > 0.9);
        let hosts: Vec<&str> = footprint.division.phases.iter().map(|phase| phase.host.as_str()).collect();
        assert!(hosts.first() == Some(&"node1") && hosts.last() == Some(&"coordinator"), "{hosts:?}");
    }
}

#[test]
fn a_short_query_in_a_long_process_is_bounded_by_its_samples() {
    let story = cpu_bound();
    let timeline = story.timeline(COARSE);
    let mut span = story.span();
    span.ended_ns = span.began_ns + 300_000_000;
    let footprint = Footprint::new(&timeline, &story.speeds(), &span).unwrap();
    check_sum(&footprint);
    let cpu = &footprint.division.parts[0];
    assert!(cpu.low_ns < cpu.ns || cpu.high_ns > cpu.ns, "{cpu:?}");
}
