//! What holds for any samples.

use proptest::prelude::*;

use super::machine::*;
use super::scenarios::*;
use crate::*;

const S: u64 = 1_000_000_000;

fn subjects() -> Vec<Subject> {
    let process = |pid| Subject::Process { pid, began_ns: 3 * S };
    vec![Subject::Host, Subject::Disk("sda".into()), process(1), process(2), peer("x"), task()]
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..20 * S,
        1 => any::<u64>(),
        1 => prop_oneof![Just(0), Just(u64::MAX), Just(u64::MAX - 1)],
    ]
}

fn arbitrary_sample() -> impl Strategy<Value = Sample> {
    let entry = (0..6usize, prop::collection::vec((0..Figure::ALL.len(), value()), 0..12));
    let entries = prop::collection::vec(entry, 0..6);
    let number = prop_oneof![5 => 0..40u64, 1 => any::<u64>()];
    (0..2usize, 0..3u64, number, value(), any::<bool>(), entries).prop_map(
        |(host, run, number, at, is_even, entries)| {
            let entries = entries.into_iter().map(|(subject, values)| {
                let mut figures = Figures::default();
                values.into_iter().for_each(|(figure, value)| figures.set(Figure::ALL[figure], value));
                Entry { subject: subjects()[subject].clone(), figures }
            });
            let at_ns = if is_even { number.saturating_mul(S / 2) } else { at };
            Sample { host: ["node1", "node2"][host].into(), run, number, at_ns, entries: entries.collect() }
        },
    )
}

fn arbitrary_speeds() -> impl Strategy<Value = HostSpeeds> {
    let rate = || prop::option::of(1.0..1e12f64);
    (0..64u32, rate(), rate(), rate(), prop::option::of(1e-9..10.0f64), prop::option::of(1e-9..10.0f64))
        .prop_map(|(processors, read, write, link, access, round_trip)| HostSpeeds {
            processors,
            disk_read_bytes_per_second: read,
            disk_write_bytes_per_second: write,
            disk_access_seconds: access,
            link: LinkSpeeds {
                received_bytes_per_second: link,
                sent_bytes_per_second: link,
                round_trip_seconds: round_trip,
            },
            ..HostSpeeds::default()
        })
}

fn arbitrary_change() -> impl Strategy<Value = Change> {
    let factor = || prop_oneof![Just(1.0), 0.001..1000.0f64];
    let nodes = prop::option::of((1..100u32, 1..100u32, 0.0..=1.0f64));
    (factor(), factor(), factor(), factor(), factor(), nodes).prop_map(|(a, b, c, d, e, nodes)| Change {
        cpu: a,
        disk_sequential: b,
        disk_random: c,
        network: d,
        round_trip: e,
        nodes: nodes.map(|(from, to, divided)| NodesChange { from, to, divided }),
    })
}

fn arbitrary_clock() -> impl Strategy<Value = ClockMap> {
    let bound = prop_oneof![4 => 0..S, 1 => any::<u64>()];
    (value(), value(), bound, -400_000_000..400_000_000i64, 0..1_000_000u64).prop_map(
        |(host_ns, line_ns, bound_ns, drift_ppb, drift_bound_ppb)| {
            // Most clocks are near the time line.
            let is_near = drift_ppb % 2 == 0;
            let line_ns = if is_near { host_ns } else { line_ns };
            let drift_ppb = if is_near { 0 } else { drift_ppb };
            ClockMap { host_ns, line_ns, bound_ns, drift_ppb, drift_bound_ppb }
        },
    )
}

fn works() -> Vec<HostWork> {
    let shares = [Share::Own, Share::Shared { with: vec!["other".into()] }];
    let workers = subjects().into_iter().enumerate();
    let workers =
        workers.map(|(index, subject)| Worker { subject, share: shares[usize::from(index == 3)].clone() });
    let workers: Vec<Worker> = workers.collect();
    let host =
        |(name, divides): (&str, bool)| HostWork { host: name.into(), workers: workers.clone(), divides };
    [("node1", true), ("node2", false)].map(host).into()
}

fn check_prediction(prediction: &Prediction) {
    let Prediction { seconds, low_seconds, high_seconds, parts, .. } = prediction;
    assert!(low_seconds.is_finite() && high_seconds.is_finite(), "{prediction:?}");
    assert!(*low_seconds >= 0.0 && low_seconds <= seconds && seconds <= high_seconds, "{prediction:?}");
    let sum: f64 = parts.iter().map(|part| part.1).sum();
    assert!((sum - seconds).abs() <= 1e-9 * seconds.max(1.0), "{prediction:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parts_add_up_for_any_samples(
        samples in prop::collection::vec(arbitrary_sample(), 0..80),
        clocks in prop::collection::vec(arbitrary_clock(), 2),
        speeds in arbitrary_speeds(),
        processors in 0..64u32,
        resolution in prop_oneof![Just(0), Just(10_000_000), any::<u64>()],
        began_ns in value(),
        run_ns in prop_oneof![3 => 1..30 * S, 1 => 1..1000u64],
        round_trips in prop::option::of(any::<u64>()),
        parallelism in prop::option::of(any::<u32>()),
        change in arbitrary_change(),
    ) {
        let mut timeline = Timeline::new(TimelineLimits { hosts_max: 2, bytes_max: 40_000 });
        for (host, clock) in ["node1", "node2"].into_iter().zip(&clocks) {
            timeline.set_clock(host, *clock).unwrap();
            let mut sources = HostSources { processors, ..HostSources::default() };
            let source = FigureSource::Available { from: String::new().into(), resolution };
            sources.set(SubjectKind::Process, Figure::CpuUserNs, source);
            timeline.set_sources(host, sources).unwrap();
        }
        for sample in samples {
            timeline.insert(sample).unwrap();
            prop_assert!(timeline.bytes() <= 40_000);
        }
        let span = QuerySpan {
            label: "q".into(),
            began_ns: began_ns.min(u64::MAX - run_ns),
            ended_ns: began_ns.min(u64::MAX - run_ns) + run_ns,
            hosts: works(),
            known: Known { round_trips, parallelism, ..Known::default() },
        };
        for host in ["node1", "node2"] {
            for subject in subjects() {
                let used = timeline.used(host, &subject, span.began_ns, span.ended_ns);
                prop_assert!(used.covered_ns <= run_ns);
                for amount in used.amounts.values() {
                    let Amount { value, low, high } = *amount;
                    prop_assert!(0.0 <= low && low <= value && value <= high && high.is_finite(), "{amount:?}");
                }
            }
        }
        let speeds = ["node1", "node2"].map(|host| (host.to_owned(), speeds)).into();
        let footprint = Footprint::new(&timeline, &speeds, &span).unwrap();
        check_sum(&footprint);
        prop_assert_eq!(&Footprint::new(&timeline.excerpt(&span), &speeds, &span).unwrap(), &footprint);
        let verdict = Verdict::new(&footprint);
        prop_assert!((0.0..=1.0 + 1e-9).contains(&verdict.fraction));
        let text = format!("{verdict:?}");
        prop_assert!(!text.contains("NaN") && !text.contains("inf "), "{}", text);
        check_prediction(&what_if(&footprint, &change, &History::default()).unwrap());
        let json = serde_json::to_string(&footprint).unwrap();
        let back: Footprint = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(back.division.parts, footprint.division.parts);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn faster_is_never_longer(case in 0..CASES.len(), change in arbitrary_change(), more in 1.0..50.0f64, which in 0..5) {
        let footprint = CASES[case].1().footprint(COARSE);
        let mut faster = change;
        let factor = match which {
            0 => &mut faster.cpu,
            1 => &mut faster.disk_sequential,
            2 => &mut faster.disk_random,
            3 => &mut faster.network,
            _ => &mut faster.round_trip,
        };
        *factor = (*factor * more).min(1000.0);
        let before = what_if(&footprint, &change, &History::default()).unwrap();
        let after = what_if(&footprint, &faster, &History::default()).unwrap();
        check_prediction(&before);
        check_prediction(&after);
        prop_assert!(after.seconds <= before.seconds + 1e-9);
        let is_slower = |change: &Change| change.kind() == ChangeKind::Same;
        if !is_slower(&change) && !is_slower(&faster) {
            prop_assert!(after.low_seconds <= before.low_seconds + 1e-9);
        }
    }

    #[test]
    fn an_excerpt_has_all_that_a_footprint_needs(
        faults in 0.0..0.4f64, case in 0..CASES.len(), from in 0.0..1.0f64, to in 0.0..1.0f64,
    ) {
        let story = CASES[case].1();
        let timeline = story.timeline(Sampling { faults, ..COARSE });
        let whole = story.span();
        let at = |part: f64| whole.began_ns + (whole.run_ns() as f64 * part) as u64;
        let span =
            QuerySpan { began_ns: at(from.min(to)), ended_ns: at(from.max(to)) + 1, ..whole.clone() };
        let footprint = |timeline: &Timeline| Footprint::new(timeline, &story.speeds(), &span).unwrap();
        let excerpt = timeline.excerpt(&span);
        prop_assert_eq!(footprint(&excerpt), footprint(&timeline));
        prop_assert!(excerpt.excerpt(&span).hosts().eq(excerpt.hosts()));
    }

    #[test]
    fn loss_changes_no_sum(faults in 0.0..0.4f64, case in 0..CASES.len()) {
        // What lies well within the samples is the same, however many are lost between.
        let story = CASES[case].1();
        let whole = story.timeline(COARSE);
        let lossy = story.timeline(Sampling { faults, ..COARSE });
        let name = story.ran[0].name;
        let (Some(all), Some(some)) = (whole.span(name), lossy.span(name)) else { return Ok(()) };
        let (from, to) = (all.0.max(some.0), all.1.min(some.1));
        let cpu = |timeline: &Timeline| {
            let used = timeline.used(name, &process(name), from, to);
            used.get(Figure::CpuUserNs).map(|amount| amount.value)
        };
        prop_assert_eq!(cpu(&whole), cpu(&lossy));
    }
}

/// A peer that an agent first saw long after the query, in a run that began after it: the sample before its first
/// one says that it used nothing in the query's time.
#[test]
fn an_excerpt_knows_what_is_new_long_after_the_query() {
    let mut timeline = Timeline::new(TimelineLimits::default());
    timeline.set_clock("node2", ClockMap::default()).unwrap();
    let empty = |run, number, at_ns| Sample { host: "node2".into(), run, number, at_ns, entries: Vec::new() };
    for number in 0..20 {
        timeline.insert(empty(0, number, number * S)).unwrap();
    }
    timeline.insert(empty(1, 0, 20 * S)).unwrap();
    let mut seen = empty(1, 1, 21 * S);
    let mut figures = Figures::default();
    figures.set(Figure::NetworkReceivedBytes, 5);
    seen.entries.push(Entry { subject: peer("x"), figures });
    timeline.insert(seen).unwrap();
    let hosts = works();
    let span = QuerySpan { label: "q".into(), began_ns: 0, ended_ns: S, hosts, known: Known::default() };
    let footprint = |timeline: &Timeline| Footprint::new(timeline, &Default::default(), &span).unwrap();
    assert_eq!(footprint(&timeline.excerpt(&span)), footprint(&timeline));
}
