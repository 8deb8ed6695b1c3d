//! Cases in which a model is easily wrong: short queries, neighbours, loopback, long links, clocks that differ.

use std::collections::BTreeMap;

use super::machine::*;
use super::scenarios::*;
use crate::*;

const S: u64 = 1_000_000_000;

pub(super) type Growth = fn(f64) -> f64;

/// A timeline of one host with counters that are functions of the time in seconds.
pub(super) fn one_host(interval: u64, until: u64, entries: &[(Subject, Figure, Growth)]) -> Timeline {
    let mut timeline = Timeline::new(TimelineLimits::default());
    timeline.set_clock("node1", ClockMap::identity()).unwrap();
    timeline.set_sources("node1", HostSources { processors: 2, ..HostSources::default() }).unwrap();
    // Samples are never at whole seconds, as queries begin and end there.
    for number in 0..until / interval {
        let at_ns = number * interval + interval / 3;
        let mut subjects: BTreeMap<&Subject, Figures> = BTreeMap::new();
        for (subject, figure, growth) in entries {
            let value = growth(at_ns as f64 / 1e9);
            if value >= 0.0 {
                subjects.entry(subject).or_default().set(*figure, (value * 1e9) as u64);
            }
        }
        let entry = |(subject, figures): (&Subject, Figures)| Entry { subject: subject.clone(), figures };
        let entries = subjects.into_iter().map(entry).collect();
        timeline.insert(Sample { host: "node1".into(), run: 1, number, at_ns, entries }).unwrap();
    }
    timeline
}

pub(super) fn span(from: u64, to: u64, workers: Vec<Worker>) -> QuerySpan {
    let hosts = vec![HostWork { host: "node1".into(), workers, divides: true }];
    QuerySpan { label: "q".into(), began_ns: from, ended_ns: to, hosts, ..QuerySpan::default() }
}

fn footprint(timeline: &Timeline, span: &QuerySpan) -> Footprint {
    let footprint = Footprint::new(timeline, &BTreeMap::new(), span).unwrap();
    check_sum(&footprint);
    show("corner", &footprint);
    footprint
}

fn new_process() -> Subject {
    Subject::Process { pid: 7, began_ns: 5 * S }
}

#[test]
fn a_short_query_between_two_samples_gets_what_its_process_used() {
    let cpu: Growth = |t| (t - 5.4).clamp(0.0, 0.3);
    let timeline = one_host(S, 12 * S, &[(process("a"), Figure::CpuUserNs, cpu)]);
    let span = span(5_400_000_000, 5_700_000_000, vec![Worker::own(process("a"))]);
    let footprint = footprint(&timeline, &span);
    assert!(footprint.division.fraction(Part::Cpu) > 0.99);
    let verdict = Verdict::new(&footprint);
    assert!(verdict.limit == Limit::Cpu && !verdict.is_certain, "its samples also allow nothing");
}

#[test]
fn a_process_that_lives_as_long_as_the_query_is_seen_to_its_end() {
    // Missing in samples before it began and after it ended.
    let cpu: Growth = |t| if (5.0..=7.9).contains(&t) { t - 5.0 } else { -1.0 };
    let timeline = one_host(
        S,
        12 * S,
        &[
            (new_process(), Figure::CpuUserNs, cpu),
            (Subject::Host, Figure::CpuUserNs, |t| (t - 5.0).clamp(0.0, 2.9)),
        ],
    );
    let footprint = footprint(&timeline, &span(5 * S, 7_900_000_000, vec![Worker::own(new_process())]));
    assert!(footprint.division.fraction(Part::Cpu) > 0.95);
    let cpu = &footprint.division.parts[0];
    assert!(cpu.low_ns < 2_500_000_000, "its last samples did not show the end: {cpu:?}");
}

#[test]
fn figures_that_a_new_task_does_not_count_are_missing() {
    let task = Subject::Task { query: "q".into(), stage: 0, task: 0 };
    // The task begins after the first samples; a value below 0 is left out of a sample.
    let cpu: Growth = |t| if t < 5.0 { -1.0 } else { t - 5.0 };
    let host: Growth = |t| t;
    let counted = [(task.clone(), Figure::CpuUserNs, cpu), (Subject::Host, Figure::CpuUserNs, host)];
    let timeline = one_host(S, 12 * S, &counted);
    let footprint = footprint(&timeline, &span(5 * S, 9 * S, vec![Worker::own(task)]));
    let figures: Vec<Figure> = footprint.hosts[0].figures.keys().copied().collect();
    assert_eq!(figures, [Figure::CpuUserNs]);
    let lock = footprint.division.parts.iter().find(|time| time.part == Part::LockWait).unwrap();
    assert_eq!(lock.high_ns, 0);
}

#[test]
fn queries_of_one_session_after_each_other_share_the_sample_between() {
    // One computes, the next waits for a lock.
    let timeline = one_host(
        S,
        14 * S,
        &[
            (process("a"), Figure::CpuUserNs, |t| (t - 2.0).clamp(0.0, 4.0)),
            (task(), Figure::LockWaitNs, |t| (t - 6.0).clamp(0.0, 4.0)),
        ],
    );
    let workers = || vec![Worker::own(process("a")), Worker::own(task())];
    let first = footprint(&timeline, &span(2 * S, 6 * S, workers()));
    assert!(first.division.fraction(Part::Cpu) > 0.9);
    let second = footprint(&timeline, &span(6 * S, 10 * S, workers()));
    assert!(second.division.fraction(Part::LockWait) > 0.9);
    assert_eq!(Verdict::new(&second).limit, Limit::Lock);
}

#[test]
fn a_query_that_waits_for_room_among_others_is_queued() {
    // It waits for 6 of 8 seconds, while others use the processors, and then computes.
    let cpu: Growth = |t| (t - 8.0).clamp(0.0, 2.0);
    let entries = [(task(), Figure::CpuNs, cpu), (Subject::Host, Figure::CpuUserNs, |t| t)];
    let timeline = one_host(S / 2, 12 * S, &entries);
    let mut span = span(2 * S, 10 * S, vec![Worker::own(task())]);
    span.known.queued_ns = vec![(0, S), (S, 6 * S)];
    let footprint = footprint(&timeline, &span);
    assert!((footprint.division.fraction(Part::QueueWait) - 0.75).abs() < 0.02, "{:?}", footprint.division);
    assert!((footprint.division.fraction(Part::Cpu) - 0.25).abs() < 0.02, "{:?}", footprint.division);
    let verdict = Verdict::new(&footprint);
    assert_eq!((verdict.limit, verdict.is_certain), (Limit::Queue, true));
    assert_eq!(verdict.evidence[0], "It waited 2 times for room, 5.0 s at the longest.");
}

#[test]
fn queries_at_the_same_time_are_told_apart_by_their_processes() {
    // Four processes of another query on the same two processors.
    let own: Growth = |t| (t - 2.0).clamp(0.0, 10.0) * 0.4;
    let timeline = one_host(
        S / 10,
        14 * S,
        &[
            (process("a"), Figure::CpuUserNs, own),
            (process("a"), Figure::RunQueueWaitNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.6),
            (process("bb"), Figure::CpuUserNs, |t| (t - 2.0).clamp(0.0, 10.0) * 1.6),
            (process("bb"), Figure::RunQueueWaitNs, |t| (t - 2.0).clamp(0.0, 10.0) * 2.4),
            (Subject::Host, Figure::CpuUserNs, |t| (t - 2.0).clamp(0.0, 10.0) * 2.0),
            (Subject::Host, Figure::CpuSystemNs, |_| 0.0),
        ],
    );
    let first = footprint(&timeline, &span(2 * S, 12 * S, vec![Worker::own(process("a"))]));
    assert_eq!(Verdict::new(&first).limit, Limit::CpuContended);
    assert!((first.division.fraction(Part::RunQueueWait) - 0.6).abs() < 0.05);
    // The larger one waits mostly for itself.
    let second = footprint(&timeline, &span(2 * S, 12 * S, vec![Worker::own(process("bb"))]));
    assert!(second.division.fraction(Part::Cpu) > second.division.fraction(Part::RunQueueWait));
    assert!(!first.division.parts[0].is_shared);
}

#[test]
fn round_trips_over_loopback_need_no_calibration() {
    let timeline = one_host(
        S,
        14 * S,
        &[
            (process("a"), Figure::CpuUserNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.2),
            (process("a"), Figure::VoluntarySwitches, |t| (t - 2.0).clamp(0.0, 10.0) * 1e4 / 1e9),
            (peer("a"), Figure::LoopbackReceivedBytes, |t| (t - 2.0).clamp(0.0, 10.0) * 6e5 / 1e9),
            (peer("a"), Figure::LoopbackSentBytes, |t| (t - 2.0).clamp(0.0, 10.0) * 1e6 / 1e9),
            (task(), Figure::ClientWaitNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.8),
        ],
    );
    let workers = [process("a"), peer("a"), task()].map(Worker::own).to_vec();
    let footprint = footprint(&timeline, &span(2 * S, 12 * S, workers));
    assert_eq!(Verdict::new(&footprint).limit, Limit::RoundTrips);
    assert!(footprint.division.fraction(Part::Network) < 0.01, "loopback is no network");
}

#[test]
fn a_client_that_thinks_after_each_row_is_slow_and_no_round_trip() {
    let think = [Op::Cpu(20e-6), Op::Exchange(0.0), Op::Sleep(5e-3)];
    let mut story = story(&[("node1", NODE, &think, 1500)]);
    // The server sees a wait for its client, whatever the client does.
    let run = story.run_seconds();
    let wait: Growth = |t| (t - BEFORE).max(0.0) * 0.995;
    assert!(run > 7.0 && run < 8.5);
    let timeline = one_host(
        S / 10,
        14 * S,
        &[
            (process("a"), Figure::CpuUserNs, |t| (t - BEFORE).max(0.0) * 0.004),
            (process("a"), Figure::VoluntarySwitches, |t| (t - BEFORE).max(0.0) * 195.0 / 1e9),
            (peer("a"), Figure::NetworkReceivedBytes, |t| (t - BEFORE).max(0.0) * 195.0 * 80.0 / 1e9),
            (peer("a"), Figure::NetworkSentBytes, |t| (t - BEFORE).max(0.0) * 195.0 * 120.0 / 1e9),
            (task(), Figure::ClientWaitNs, wait),
        ],
    );
    story.ran.truncate(1);
    let workers = [process("a"), peer("a"), task()].map(Worker::own).to_vec();
    let footprint = Footprint::new(&timeline, &story.speeds(), &span(3 * S, 11 * S, workers)).unwrap();
    check_sum(&footprint);
    show("thinks", &footprint);
    assert_eq!(Verdict::new(&footprint).limit, Limit::Receiver);
}

#[test]
fn large_messages_one_after_the_other_over_a_long_link_are_latency() {
    // 100 kB for each of 200 fetches, 50 ms each, over 1 Gbit/s.
    let timeline = one_host(
        S,
        16 * S,
        &[
            (process("a"), Figure::CpuUserNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.05),
            (peer("a"), Figure::NetworkSentBytes, |t| (t - 2.0).clamp(0.0, 10.0) * 2e6 / 1e9),
            (peer("a"), Figure::SocketBusyNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.9),
        ],
    );
    let link = LinkSpeeds {
        received_bytes_per_second: Some(1.25e8),
        sent_bytes_per_second: Some(1.25e8),
        round_trip_seconds: Some(0.045),
    };
    let speeds = BTreeMap::from([("node1".to_owned(), HostSpeeds { link, ..HostSpeeds::default() })]);
    let mut span = span(2 * S, 12 * S, [process("a"), peer("a")].map(Worker::own).to_vec());
    span.known = Known { round_trips: Some(200), result_bytes: Some(20_000_000), ..Known::default() };
    let footprint = Footprint::new(&timeline, &speeds, &span).unwrap();
    check_sum(&footprint);
    show("long link", &footprint);
    assert_eq!(Verdict::new(&footprint).limit, Limit::RoundTrips);
    let nearer = Change { round_trip: 10.0, ..Change::default() };
    let prediction = what_if(&footprint, &nearer, &History::default()).unwrap();
    assert!((1.0..3.0).contains(&prediction.seconds), "{prediction:?}");
}

#[test]
fn a_client_whose_processor_is_the_limit_is_named() {
    let waits = Machine { reader: 10e6, ..NODE };
    let mut story = story(&[("node1", waits, ANSWER, 100), ("client", NODE, &[Op::Cpu(0.01)], 1000)]);
    story.known = Known::default();
    for sampling in [FINE, COARSE] {
        let footprint = story.footprint(sampling);
        show("client", &footprint);
        let verdict = Verdict::new(&footprint);
        assert_eq!((verdict.limit, verdict.host.as_deref()), (Limit::Cpu, Some("client")));
    }
}

#[test]
fn clocks_that_differ_within_their_bounds_change_no_verdict() {
    for (name, story, limit, _) in CASES {
        let story = story();
        let mut timeline = Timeline::new(TimelineLimits::default());
        for (index, ran) in story.ran.iter().enumerate() {
            // Wrong by 20 ms each way.
            let (host_ns, line_ns) = if index % 2 == 0 { (20_000_000, 0) } else { (0, 20_000_000) };
            let clock = ClockMap { host_ns, line_ns, bound_ns: 20_000_000, ..ClockMap::default() };
            timeline.set_clock(ran.name, clock).unwrap();
            for sample in samples(ran, &story.ran, FINE, 0) {
                timeline.insert(sample).unwrap();
            }
        }
        let footprint = Footprint::new(&timeline, &story.speeds(), &story.span()).unwrap();
        check_sum(&footprint);
        assert_eq!(Verdict::new(&footprint).limit, limit, "{name}");
        assert!(footprint.division.step_ns >= 80_000_000);
    }
}

#[test]
fn asynchronous_reads_are_seen_by_the_disk() {
    let disk = || Subject::Disk("sda".into());
    let timeline = one_host(
        S,
        14 * S,
        &[
            (process("a"), Figure::CpuUserNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.3),
            (process("a"), Figure::DiskWaitNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.01),
            (process("a"), Figure::DiskReadBytes, |t| (t - 2.0).clamp(0.0, 10.0) * 0.1),
            (disk(), Figure::DiskReadBytes, |t| (t - 2.0).clamp(0.0, 10.0) * 0.1),
            (disk(), Figure::DiskBusyNs, |t| (t - 2.0).clamp(0.0, 10.0)),
        ],
    );
    let footprint = footprint(&timeline, &span(2 * S, 12 * S, vec![Worker::own(process("a"))]));
    assert_eq!(Verdict::new(&footprint).limit, Limit::DiskSequential);
    assert!(footprint.division.explained() > 0.95);
}

#[test]
fn a_throttled_disk_is_seen_by_pressure_where_waits_are_not_counted() {
    let timeline = one_host(
        S,
        14 * S,
        &[
            (process("a"), Figure::CpuUserNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.1),
            (process("a"), Figure::DiskWaitNs, |_| 0.0),
            (process("a"), Figure::DiskReadBytes, |t| (t - 2.0).clamp(0.0, 10.0) * 0.01),
            (Subject::Disk("sda".into()), Figure::DiskReadBytes, |t| (t - 2.0).clamp(0.0, 10.0) * 0.01),
            (Subject::Disk("sda".into()), Figure::DiskBusyNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.02),
            (Subject::Host, Figure::PressureIoSomeNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.9),
        ],
    );
    let footprint = footprint(&timeline, &span(2 * S, 12 * S, vec![Worker::own(process("a"))]));
    assert_eq!(Verdict::new(&footprint).limit, Limit::DiskSequential);
    assert!(footprint.division.explained() > 0.9);
    assert!(footprint.division.parts[Part::DiskSequential as usize].is_shared);
}

#[test]
fn the_disks_of_others_are_no_reason_for_a_query_without_disk() {
    let timeline = one_host(
        S,
        14 * S,
        &[
            (process("a"), Figure::CpuUserNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.1),
            (process("a"), Figure::DiskWaitNs, |_| 0.0),
            (process("a"), Figure::DiskReadBytes, |_| 0.0),
            (Subject::Disk("sda".into()), Figure::DiskReadBytes, |t| t * 0.1),
            (Subject::Disk("sda".into()), Figure::DiskBusyNs, |t| t),
            (Subject::Host, Figure::PressureIoSomeNs, |t| t * 0.9),
        ],
    );
    let footprint = footprint(&timeline, &span(2 * S, 12 * S, vec![Worker::own(process("a"))]));
    assert_eq!(Verdict::new(&footprint).limit, Limit::Inefficient);
}

#[test]
fn a_slow_link_is_named_without_any_calibration() {
    let mut story = slow_link();
    story.known = Known::default();
    for sampling in [FINE, COARSE] {
        let footprint = Footprint::new(&story.timeline(sampling), &BTreeMap::new(), &story.span()).unwrap();
        check_sum(&footprint);
        assert_eq!(Verdict::new(&footprint).limit, Limit::Network);
        assert!(footprint.hosts[0].model.network_ns.is_none(), "unavailable, not 0");
    }
}

#[test]
fn a_wrong_number_of_processors_hides_nothing() {
    let mut timeline = one_host(
        S,
        14 * S,
        &[
            (process("a"), Figure::CpuUserNs, |t| (t - 2.0).clamp(0.0, 10.0) * 48.0),
            (Subject::Host, Figure::CpuIdleNs, |t| t * 64.0),
        ],
    );
    timeline.set_sources("node1", HostSources { processors: 1, ..HostSources::default() }).unwrap();
    let footprint = footprint(&timeline, &span(2 * S, 12 * S, vec![Worker::own(process("a"))]));
    assert_eq!(Verdict::new(&footprint).limit, Limit::Cpu);
    assert!((footprint.hosts[0].cpu_ns().unwrap() / 480e9 - 1.0).abs() < 0.01);
}

#[test]
fn memory_and_the_hypervisor_are_named_when_a_host_waits_for_them() {
    let timeline = one_host(
        S,
        14 * S,
        &[
            (process("a"), Figure::CpuUserNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.2),
            (process("a"), Figure::DiskWaitNs, |_| 0.0),
            (Subject::Host, Figure::PressureMemorySomeNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.7),
        ],
    );
    let footprint1 = footprint(&timeline, &span(2 * S, 12 * S, vec![Worker::own(process("a"))]));
    assert_eq!(Verdict::new(&footprint1).limit, Limit::Memory);
    let timeline = one_host(
        S,
        14 * S,
        &[
            (process("a"), Figure::CpuUserNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.6),
            (Subject::Host, Figure::CpuUserNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.6),
            (Subject::Host, Figure::CpuSystemNs, |_| 0.0),
            (Subject::Host, Figure::CpuStolenNs, |t| (t - 2.0).clamp(0.0, 10.0) * 0.4),
        ],
    );
    let footprint2 = footprint(&timeline, &span(2 * S, 12 * S, vec![Worker::own(process("a"))]));
    assert_eq!(Verdict::new(&footprint2).limit, Limit::CpuContended);
}

#[test]
fn processor_time_is_taken_from_tasks_or_from_the_process_never_from_both() {
    let task = Subject::Task { query: "q".into(), stage: 1, task: 0 };
    let half: Growth = |t| (t - 5.0).clamp(0.0, 4.0) / 2.0;
    let all: Growth = |t| (t - 5.0).clamp(0.0, 4.0);
    let timeline = one_host(
        S / 10,
        12 * S,
        &[
            (task.clone(), Figure::CpuNs, half),
            (process("a"), Figure::CpuUserNs, all),
            (process("a"), Figure::CpuSystemNs, all),
        ],
    );
    let cpu_seconds = |workers| {
        let footprint = footprint(&timeline, &span(5 * S, 9 * S, workers));
        footprint.hosts[0].cpu_ns().unwrap() / 1e9
    };
    let of_others = Worker::shared(process("a"), vec!["r".into()]);
    assert!((cpu_seconds(vec![Worker::own(task.clone()), of_others.clone()]) - 2.0).abs() < 0.1);
    assert!((cpu_seconds(vec![of_others]) - 4.0).abs() < 0.1, "half of what the process used");
    assert!((cpu_seconds(vec![Worker::own(task), Worker::own(process("a"))]) - 8.0).abs() < 0.1);
}

#[test]
fn a_clock_that_was_known_badly_before_a_query_does_not_coarsen_it() {
    let mut timeline = Timeline::new(TimelineLimits::default());
    for number in 0..60 {
        // As with an agent that is new: its first exchanges are slow.
        let bound_ns = if number < 3 { 20 * S } else { 100_000 };
        timeline.set_clock("node1", ClockMap { bound_ns, ..ClockMap::identity() }).unwrap();
        let mut figures = Figures::default();
        figures.set(Figure::CpuUserNs, number * S);
        let entries = vec![Entry { subject: process("a"), figures }];
        timeline.insert(Sample { host: "node1".into(), run: 1, number, at_ns: number * S, entries }).unwrap();
    }
    let cpu = |from: u64| {
        let footprint =
            footprint(&timeline, &span(from * S, (from + 20) * S, vec![Worker::own(process("a"))]));
        (footprint.division.step_ns, footprint.hosts[0].figures[&Figure::CpuUserNs].amount)
    };
    let (step_ns, amount) = cpu(20);
    assert_eq!(step_ns, S);
    assert!(amount.high - amount.low < 5e9, "a sample more or less at both ends: {amount:?}");
    assert_eq!(cpu(1).0, 20 * S, "its own samples may be wrong");
}

#[test]
fn a_limit_of_its_own_control_group_is_not_blamed_on_others() {
    // A tenth of a processor; another process uses a whole one.
    let cpu: Growth = |t| 0.1 * t;
    let waited: Growth = |t| 0.9 * t;
    let quota: Growth = |t| 0.88 * t;
    let others: Growth = |t| 1.1 * t;
    let counted = |with_quota: bool| {
        let mut entries = vec![
            (process("a"), Figure::CpuUserNs, cpu),
            (process("a"), Figure::RunQueueWaitNs, waited),
            (Subject::Host, Figure::CpuUserNs, others),
            (Subject::Host, Figure::CpuSystemNs, (|_| 0.0) as Growth),
        ];
        entries.extend(with_quota.then_some((process("a"), Figure::QuotaWaitNs, quota)));
        footprint(&one_host(S, 20 * S, &entries), &span(5 * S, 15 * S, vec![Worker::own(process("a"))]))
    };
    let verdict = Verdict::new(&counted(true));
    assert_eq!(verdict.limit, Limit::Cpu, "{}", verdict.sentence);
    let held = "Of that, the limit of its control group held them back for 8.8 s.";
    assert!(verdict.evidence.iter().any(|evidence| evidence == held), "{:?}", verdict.evidence);
    // A processor of twice the speed, or twice the quota, halves the time either way.
    let change = Change { cpu: 2.0, ..Change::default() };
    let seconds = what_if(&counted(true), &change, &History::default()).unwrap().seconds;
    assert!((seconds - 5.0).abs() < 0.1, "{seconds}");
    // What is not known to be a limit may be others.
    assert_eq!(Verdict::new(&counted(false)).limit, Limit::CpuContended);
}

#[test]
fn long_waits_for_a_disk_that_are_counted_at_their_ends_are_explained() {
    // Half a second each: in samples of 100 ms, the counter stands still four times of five.
    let waited: Growth = |t| (t * 2.0).floor() / 2.0 * 0.98;
    let bytes: Growth = |t| (t * 2.0).floor() / 2.0 * 5e-3;
    let cpu: Growth = |t| 0.02 * t;
    let entries = [
        (process("a"), Figure::CpuUserNs, cpu),
        (process("a"), Figure::DiskWaitNs, waited),
        (process("a"), Figure::DiskReadBytes, bytes),
    ];
    let timeline = one_host(S / 10, 20 * S, &entries);
    let footprint = footprint(&timeline, &span(5 * S, 15 * S, vec![Worker::own(process("a"))]));
    assert!(footprint.division.explained() > 0.95, "{:?}", footprint.division.parts);
    assert_eq!(Verdict::new(&footprint).limit, Limit::DiskSequential);
}

#[test]
fn a_process_that_hardly_reads_does_not_wait_for_the_disk_that_others_keep_busy() {
    let pressure: Growth = |t| 0.9 * t;
    let theirs: Growth = |t| 0.1 * t;
    // A ten-thousandth of the bytes, and no wait.
    let own: Growth = |t| 1e-5 * t;
    let none: Growth = |_| 0.0;
    let entries = [
        (process("a"), Figure::CpuUserNs, none),
        (process("a"), Figure::DiskWaitNs, none),
        (process("a"), Figure::DiskReadBytes, own),
        (Subject::Host, Figure::PressureIoSomeNs, pressure),
        (Subject::Host, Figure::DiskReadBytes, theirs),
    ];
    let timeline = one_host(S / 10, 20 * S, &entries);
    let footprint = footprint(&timeline, &span(5 * S, 15 * S, vec![Worker::own(process("a"))]));
    assert!(footprint.division.explained() < 0.1, "{:?}", footprint.division.parts);
}
