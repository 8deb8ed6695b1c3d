//! Bad input: what agents, networks and clocks do at their worst.

use super::machine::*;
use super::scenarios::*;
use crate::*;

const S: u64 = 1_000_000_000;

fn sample(run: u64, number: u64, at_ns: u64, cpu: u64) -> Sample {
    let mut figures = Figures::default();
    figures.set(Figure::CpuUserNs, cpu);
    let entries = vec![Entry { subject: Subject::Host, figures }];
    Sample { host: "node1".into(), run, number, at_ns, entries }
}

fn timeline(samples: impl IntoIterator<Item = Sample>) -> Timeline {
    let mut timeline = Timeline::new(TimelineLimits::default());
    timeline.set_clock("node1", ClockMap::identity()).unwrap();
    timeline.set_sources("node1", HostSources { processors: 2, ..HostSources::default() }).unwrap();
    for sample in samples {
        timeline.insert(sample).unwrap();
    }
    timeline
}

fn cpu(timeline: &Timeline, from: u64, to: u64) -> Option<f64> {
    timeline.used("node1", &Subject::Host, from, to).get(Figure::CpuUserNs).map(|amount| amount.value)
}

#[test]
fn samples_may_come_in_any_order_and_twice() {
    let order = [4, 0, 3, 3, 1, 4, 0];
    let timeline = timeline(order.map(|number| sample(1, number, number * S, number * S)));
    assert_eq!(cpu(&timeline, 0, 4 * S), Some(4e9));
    let counts = timeline.counts("node1").unwrap();
    assert_eq!((counts.kept, counts.duplicates), (4, 3));
    assert_eq!(timeline.used("node1", &Subject::Host, 0, 4 * S).lost, 1);
}

#[test]
fn counters_go_on_when_an_agent_restarts() {
    let before = (0..5).map(|number| sample(1, number, number * S, number * S));
    let after = (0..5).map(|number| sample(2, number, (7 + number) * S, (7 + number) * S));
    let timeline = timeline(before.chain(after));
    assert_eq!(cpu(&timeline, 0, 11 * S), Some(11e9));
    // A sample of the old run that comes late is no step back.
    let mut late = timeline.clone();
    assert_eq!(late.insert(sample(1, 5, 5 * S, 5 * S)).unwrap(), Insertion::Kept);
    assert_eq!(cpu(&late, 0, 11 * S), Some(11e9));
}

#[test]
fn counters_that_begin_again_lose_only_what_was_not_seen() {
    let before = (0..5).map(|number| sample(1, number, number * S, 100 * S + number * S));
    let after = (0..5).map(|number| sample(2, number, (5 + number) * S, number * S));
    let timeline = timeline(before.chain(after));
    assert_eq!(cpu(&timeline, 0, 9 * S), Some(8e9));
    let used = timeline.used("node1", &Subject::Host, 0, 9 * S);
    assert!(used.get(Figure::CpuUserNs).unwrap().high >= 9e9 && used.covered_ns == 8 * S);
}

#[test]
fn a_counter_that_begins_again_does_not_change_the_pace_of_others() {
    let with_disk = |number: u64| {
        let mut sample = sample(1, number, number * S, number * S);
        let since = if number < 5 { 100 + number } else { number - 5 };
        sample.entries[0].figures.set(Figure::DiskReadBytes, since * 1000);
        sample
    };
    let used = timeline((0..10).map(with_disk)).used("node1", &Subject::Host, 0, 9 * S);
    assert_eq!(used.covered_ns, 8 * S);
    assert_eq!(used.per_second(Figure::CpuUserNs), Some(1e9));
    assert_eq!(used.per_second(Figure::DiskReadBytes), Some(1000.0));
    assert_eq!(used.per_second(Figure::DiskWrites), None);
}

#[test]
fn a_clock_that_steps_by_an_hour_is_followed() {
    for step in [3600 * S as i64, -3600 * S as i64] {
        let at = |number: u64| {
            let now = 7200 * S + number * S;
            if number < 10 { now } else { now.saturating_add_signed(step) }
        };
        let timeline = timeline((0..20).map(|number| sample(1, number, at(number), number * S)));
        let (from, to) = (at(12), at(18));
        assert_eq!(cpu(&timeline, from, to), Some(6e9), "{step}");
        if step > 0 {
            assert_eq!(cpu(&timeline, at(0), at(9)), Some(9e9));
        }
        assert!(timeline.counts("node1").unwrap().kept >= 10);
    }
}

#[test]
fn single_absurd_samples_do_no_harm() {
    let good = |number: u64| sample(1, number, (100 + number) * S, number * S);
    let absurd = [
        sample(1, 10, u64::MAX, 10 * S),
        sample(1, 10, 0, 10 * S),
        sample(1, u64::MAX, 110 * S, 10 * S),
        sample(u64::MAX, u64::MAX, u64::MAX, u64::MAX),
        sample(0, 0, 110 * S, 10 * S),
        sample(1, 10, 110 * S, u64::MAX),
        sample(1, 10, 110 * S, 0),
    ];
    for odd in absurd {
        let samples = (0..10).map(good).chain([odd.clone()]).chain((11..30).map(good));
        let timeline = timeline(samples);
        assert_eq!(cpu(&timeline, 100 * S, 109 * S), Some(9e9), "{odd:?}");
        assert_eq!(cpu(&timeline, 114 * S, 129 * S), Some(15e9), "{odd:?}");
    }
}

#[test]
fn memory_is_bounded_whatever_comes() {
    let limits = TimelineLimits { hosts_max: 2, bytes_max: 200_000 };
    let mut timeline = Timeline::new(limits);
    timeline.set_clock("a", ClockMap::identity()).unwrap();
    timeline.set_clock("b", ClockMap::identity()).unwrap();
    assert_eq!(timeline.set_clock("c", ClockMap::identity()), Err(UsageError::TooManyHosts { max: 2 }));
    assert!(timeline.set_clock(&"x".repeat(1000), ClockMap::identity()).is_err());
    let mut figures = Figures::default();
    Figure::ALL.into_iter().for_each(|figure| figures.set(figure, 1));
    for number in 0..5000u64 {
        // Each sample has another subject with a long name.
        let subject = Subject::Task { query: format!("{number:0300}"), stage: 0, task: 0 };
        let entries = vec![Entry { subject, figures: figures.clone() }];
        let sample = Sample { host: "a".into(), run: 1, number, at_ns: number * S, entries };
        timeline.insert(sample).unwrap();
        assert!(timeline.bytes() <= 100_000);
    }
    assert!(timeline.subjects("a").count() < 300);
    assert_eq!(timeline.span("a").unwrap().1, 4999 * S);
    let old = Sample { host: "a".into(), run: 1, number: 0, at_ns: 0, entries: Vec::new() };
    assert_eq!(timeline.insert(old).unwrap(), Insertion::TooOld);
    let entries = (0..1000)
        .map(|number| Entry { subject: Subject::Disk(number.to_string()), figures: figures.clone() });
    let large = Sample { host: "b".into(), run: 1, number: 0, at_ns: 0, entries: entries.collect() };
    assert!(matches!(timeline.insert(large), Err(UsageError::SampleTooLarge { .. })));
    let unknown = Sample { host: "d".into(), run: 1, number: 0, at_ns: 0, entries: Vec::new() };
    assert_eq!(timeline.insert(unknown), Err(UsageError::NoClock { host: "d".into() }));
}

#[test]
fn what_is_kept_is_counted_exactly() {
    let mut timeline = Timeline::new(TimelineLimits { hosts_max: 1, bytes_max: 50_000 });
    timeline.set_clock("node1", ClockMap::identity()).unwrap();
    let mut draw = Draw(5);
    for number in 0..3000u64 {
        let at = if draw.next() < 0.05 { (draw.next() * 1e12) as u64 } else { number * S };
        let _ = timeline.insert(sample((draw.next() * 2.0) as u64, number, at, number)).unwrap();
    }
    // Everything is dropped at the next sample of a later time: nothing is left over in the count.
    for number in 10_000..20_000u64 {
        let _ = timeline.insert(sample(9, number, number * S, number)).unwrap();
    }
    let one = Timeline::new(TimelineLimits::default());
    assert_eq!(one.bytes(), 0);
    let kept = timeline.used("node1", &Subject::Host, 0, u64::MAX).samples as usize;
    let per_sample = timeline.bytes() / kept.max(1);
    assert!((80..130).contains(&per_sample), "{per_sample} bytes each of {kept}");
}

#[test]
fn a_host_that_joins_in_the_middle_is_not_idle_before() {
    let story = slow_disk();
    let mut timeline = Timeline::new(TimelineLimits::default());
    for ran in &story.ran {
        timeline.set_clock(ran.name, ClockMap::identity()).unwrap();
        let all = samples(ran, &story.ran, COARSE, 0);
        let joined = if ran.name == "node2" { 6 * S } else { 0 };
        for sample in all.into_iter().filter(|sample| sample.at_ns >= joined) {
            timeline.insert(sample).unwrap();
        }
    }
    let footprint = Footprint::new(&timeline, &story.speeds(), &story.span()).unwrap();
    check_sum(&footprint);
    show("joined", &footprint);
    let verdict = Verdict::new(&footprint);
    assert_eq!((verdict.limit, verdict.host.as_deref()), (Limit::DiskSequential, Some("node2")));
    let node2 = &footprint.hosts[1];
    assert!(node2.covered_ns < footprint.run_ns);
    assert!(footprint.division.parts[Part::Unexplained as usize].ns > S, "what was not seen is unexplained");
}

#[test]
fn without_samples_the_time_is_unexplained_and_the_verdict_unknown() {
    let story = cpu_bound();
    let empty = Timeline::new(TimelineLimits::default());
    let mut span = story.span();
    for hosts in [span.hosts.clone(), Vec::new()] {
        span.hosts = hosts;
        let footprint = Footprint::new(&empty, &story.speeds(), &span).unwrap();
        check_sum(&footprint);
        assert_eq!(footprint.division.explained(), 0.0);
        let verdict = Verdict::new(&footprint);
        assert_eq!(verdict.limit, Limit::Unknown);
        let json = serde_json::to_string(&(&footprint, &verdict)).unwrap();
        assert!(!json.contains("null,null,null,null,null"), "no NaN: {json}");
        let faster = Change { cpu: 2.0, ..Change::default() };
        let prediction = what_if(&footprint, &faster, &History::default()).unwrap();
        assert!((prediction.seconds - prediction.measured_seconds).abs() < 1e-6);
        assert!(prediction.low_seconds <= 0.51 * prediction.seconds, "the unexplained may scale");
    }
}

#[test]
fn footprints_survive_json() {
    let footprint = slow_disk().footprint(COARSE);
    let json = serde_json::to_string(&footprint).unwrap();
    let back: Footprint = serde_json::from_str(&json).unwrap();
    assert_eq!(Verdict::new(&back), Verdict::new(&footprint));
    assert!(json.len() < 100_000, "{} bytes", json.len());
}

#[test]
fn a_process_that_several_queries_share_is_divided_and_labelled() {
    let story = cpu_bound();
    let timeline = story.timeline(COARSE);
    let mut span = story.span();
    for work in &mut span.hosts {
        for worker in &mut work.workers {
            worker.share = Share::Shared { with: vec!["other".into()] };
        }
    }
    let footprint = Footprint::new(&timeline, &story.speeds(), &span).unwrap();
    check_sum(&footprint);
    let cpu = &footprint.division.parts[0];
    assert!(cpu.is_shared && cpu.low_ns == 0 && cpu.high_ns > cpu.ns + S, "{cpu:?}");
    let own = story.footprint(COARSE);
    let half = footprint.hosts[0].cpu_ns().unwrap() / own.hosts[0].cpu_ns().unwrap();
    assert!((half - 0.5).abs() < 0.01);
    assert!(Verdict::new(&footprint).evidence.iter().any(|line| line.contains("shared")));
}

#[test]
fn figures_that_cannot_be_had_are_missing_and_said_to_be() {
    let story = random_disk();
    let mut timeline = story.timeline(Sampling { waits: false, ..COARSE });
    let mut sources = HostSources { processors: 2, ..HostSources::default() };
    let reason = FigureSource::Unavailable { reason: "schedstats are off".into() };
    sources.set(SubjectKind::Process, Figure::RunQueueWaitNs, reason);
    timeline.set_sources("node1", sources).unwrap();
    let footprint = Footprint::new(&timeline, &story.speeds(), &story.span()).unwrap();
    let host = &footprint.hosts[0];
    assert_eq!(host.value(Figure::RunQueueWaitNs), None);
    assert_eq!(host.unavailable.get(&Figure::RunQueueWaitNs).map(String::as_str), Some("schedstats are off"));
}
