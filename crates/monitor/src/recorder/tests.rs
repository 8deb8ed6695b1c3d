//! Recorders with made-up samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use lightship_usage::{Entry, Figure, Figures, Known, Limit, Part, Sample, Subject, TimelineLimits};
use proptest::prelude::*;

use super::*;
use crate::collector::TimedSample;

const SECOND: u64 = 1_000_000_000;
const PROCESS: Subject = Subject::Process { pid: 7, began_ns: 1 };

fn options() -> RecorderOptions {
    RecorderOptions { unix_offset_ns: 0, ..RecorderOptions::new(Some("a".into())) }
}

/// A sample of a host each second, on a clock that is an hour ahead. Its process uses a processor from second 5 to 15,
/// for the tasks of the queries.
fn sample(recorder: &Recorder, host: &str, second: u64, queries: &[&str]) {
    let cpu = second.clamp(5, 15) - 5;
    let entry = |subject, figure, value| {
        let mut figures = Figures::default();
        figures.set(figure, value);
        Entry { subject, figures }
    };
    let mut entries = vec![
        entry(Subject::Host, Figure::CpuUserNs, cpu * SECOND),
        entry(PROCESS, Figure::CpuUserNs, cpu * SECOND),
    ];
    entries[0].figures.set(Figure::CpuSystemNs, 0);
    entries[0].figures.set(Figure::NetworkSentBytes, second * 1000);
    entries[0].figures.set(Figure::MemoryBytes, 1 << 30);
    for query in queries {
        let task = Subject::Task { query: (*query).into(), stage: 0, task: 3 };
        entries.push(entry(task, Figure::ClientWaitNs, 0));
    }
    let at_ns = (3600 + second) * SECOND;
    let sample = Sample { host: host.into(), run: 1, number: second, at_ns, entries };
    let time_ns = second * SECOND;
    let timed = TimedSample { sample, time_ns, bound_ns: Some(1000), parts_missing: 0 };
    recorder.observe(CollectorEvent::Sample(Arc::new(timed)), time_ns);
}

fn end() -> QueryEnd {
    QueryEnd { error: None, known: Known { parallelism: Some(1), ..Known::default() } }
}

/// Two hosts; `q` runs from second 5 to 15, with tasks on those of `with_tasks`.
fn ran(with_tasks: &[&str], seconds: u64) -> Recorder {
    let recorder = Recorder::new(options());
    recorder.query_began("q", "select 1", 5 * SECOND);
    for second in 0..seconds {
        for host in ["a", "b"] {
            let has_task = with_tasks.contains(&host) && (5..=15).contains(&second);
            sample(&recorder, host, second, if has_task { &["q"] } else { &[] });
        }
        if second == 15 {
            recorder.query_ended("q", 15 * SECOND, end());
        }
        recorder.tick(second * SECOND);
    }
    recorder
}

#[test]
fn a_query_is_assessed_on_the_hosts_of_its_tasks() {
    let report = ran(&["a", "b"], 20).query("q").unwrap();
    assert_eq!(report.row.state, QueryState::Assessed);
    assert_eq!(report.row.hosts, ["a", "b"]);
    assert_eq!(report.verdict.unwrap().limit, Limit::Cpu);
    assert_eq!(report.late_hosts, [""; 0]);
    assert_eq!(report.tasks.len(), 2);
    assert_eq!(report.tasks[0].first_ns, 5 * SECOND);
    let footprint = report.footprint.unwrap();
    assert!(footprint.division.fraction(Part::Cpu) > 0.95);
    let charged = &footprint.hosts[0].figures[&Figure::CpuUserNs];
    assert!(!charged.is_shared);
}

#[test]
fn a_query_without_tasks_is_taken_to_have_run_on_the_own_host() {
    let report = ran(&[], 20).query("q").unwrap();
    assert_eq!(report.row.hosts, ["a"]);
    assert_eq!(report.row.limit, Some(Limit::Cpu));
}

#[test]
fn a_query_waits_for_the_samples_after_its_end() {
    let state = |seconds| ran(&["a"], seconds).query("q").unwrap().row.state;
    assert_eq!(state(15), QueryState::Running);
    // Those of seconds 16 and 17 are awaited.
    assert_eq!(state(17), QueryState::Waiting);
    assert_eq!(state(18), QueryState::Assessed);
}

#[test]
fn a_host_that_became_silent_is_not_awaited_forever_and_named() {
    let recorder = ran(&["a"], 15);
    recorder.query_ended("q", 15 * SECOND, end());
    recorder.tick(19 * SECOND);
    assert_eq!(recorder.query("q").unwrap().row.state, QueryState::Waiting);
    recorder.tick(20 * SECOND);
    let report = recorder.query("q").unwrap();
    assert_eq!(report.row.state, QueryState::Assessed);
    assert_eq!(report.late_hosts, ["a"]);
    assert_eq!(recorder.overview(20 * SECOND).queries.assessed_late, 1);
}

#[test]
fn queries_at_the_same_time_share_their_processes() {
    let recorder = Recorder::new(options());
    for id in ["q", "r", "later"] {
        let began = if id == "later" { 16 } else { 5 };
        recorder.query_began(id, id, began * SECOND);
    }
    for second in 0..20 {
        let tasks: &[&str] = if (5..=15).contains(&second) { &["q", "r", "elsewhere"] } else { &["later"] };
        sample(&recorder, "a", second, tasks);
    }
    recorder.query_ended("q", 15 * SECOND, end());
    recorder.query_ended("r", 15 * SECOND, end());
    recorder.tick(20 * SECOND);
    let footprint = recorder.query("q").unwrap().footprint.unwrap();
    let charged = &footprint.hosts[0].figures[&Figure::CpuUserNs];
    assert!(charged.is_shared);
    // A third: `elsewhere` is known by its tasks alone, and `later` did not run yet.
    assert!((charged.amount.value / 1e9 - 10.0 / 3.0).abs() < 0.1, "{charged:?}");
}

#[test]
fn a_thousand_short_queries_a_second_take_bounded_memory_and_work() {
    let recorder = Recorder::new(RecorderOptions { queries_max: 100, waiting_max: 20, ..options() });
    for second in 0..10 {
        sample(&recorder, "a", second, &[]);
        for number in 0..1000 {
            let id = format!("{second}-{number}");
            let at_ns = second * SECOND + number * 1_000_000;
            recorder.query_began(&id, "select 1", at_ns);
            // The longest ones are assessed.
            recorder.query_ended(&id, at_ns + 1000 + number, end());
        }
        recorder.tick(second * SECOND);
    }
    let overview = recorder.overview(10 * SECOND);
    let counts = &overview.queries;
    assert_eq!((counts.began, counts.ended), (10_000, 10_000));
    assert_eq!(overview.recorder.queries_kept, 100);
    assert!(overview.recorder.queries_waiting <= 20);
    assert!(counts.assessed > 50 && counts.assessed <= 160, "{}", counts.assessed);
    assert_eq!(counts.assessed + counts.not_assessed + overview.recorder.queries_waiting as u64, 10_000);
    assert!(counts.not_assessed_seconds > 0.0);
    assert_eq!(counts.forgotten, 9_900);
    // Those that were not assessed are dropped first, and of those that wait, the longest are assessed.
    let rows = recorder.queries(100);
    assert!(rows.iter().filter(|row| row.state == QueryState::Assessed).count() > 50);
    assert!(rows.iter().any(|row| row.id == "5-999"));
}

/// A second with a thousand short queries, each with a task in the sample that follows.
fn storm(recorder: &Recorder, second: u64) {
    let ids: Vec<String> = (0..1000).map(|number| format!("{second}-{number}")).collect();
    for (number, id) in (0..).zip(&ids) {
        let at_ns = second * SECOND + number * 1_000_000;
        recorder.query_began(id, "select 1", at_ns);
        recorder.query_ended(id, at_ns + 1000 + number, end());
    }
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    sample(recorder, "a", second + 1, &ids);
}

#[test]
fn short_queries_with_tasks_are_assessed_on_their_hosts_and_cost_no_more_with_time() {
    let recorder = Recorder::new(RecorderOptions { queries_max: 100, waiting_max: 20, ..options() });
    sample(&recorder, "a", 0, &[]);
    for second in 0..60 {
        storm(&recorder, second);
        recorder.tick((second + 1) * SECOND);
    }
    let overview = recorder.overview(61 * SECOND);
    assert!(overview.recorder.sample_bytes > 10 << 20, "60,000 tasks are kept");
    assert!(overview.queries.assessed > 500, "{}", overview.queries.assessed);
    // What a tick looks at is of its queries' time.
    sample(&recorder, "a", 62, &[]);
    sample(&recorder, "a", 63, &[]);
    let tick = recorder.state().begin_tick(63 * SECOND).unwrap();
    assert!(tick.queries() <= 3000, "{}", tick.queries());
    recorder.tick(63 * SECOND);
    let rows = recorder.queries(100);
    let assessed = rows.iter().filter(|row| row.state == QueryState::Assessed).collect::<Vec<_>>();
    assert!(assessed.len() > 50 && assessed.iter().all(|row| row.hosts == ["a"]));
}

#[test]
fn reports_are_made_and_queries_forgotten_while_a_query_is_assessed() {
    for is_forgotten in [false, true] {
        let recorder = Recorder::new(options());
        recorder.query_began("q", "select 1", 5 * SECOND);
        (0..20).for_each(|second| sample(&recorder, "a", second, &["q"]));
        recorder.query_ended("q", 15 * SECOND, end());
        let tick = recorder.state().begin_tick(20 * SECOND).unwrap();
        let assignment = recorder.state().next_assignment(&tick).unwrap();
        assert!(recorder.state().next_assignment(&tick).is_none());
        assert_eq!(recorder.query("q").unwrap().row.state, QueryState::Waiting);
        assert_eq!(recorder.overview(20 * SECOND).recorder.queries_waiting, 1);
        if is_forgotten {
            // Another query has its id.
            recorder.query_began("q", "select 2", 20 * SECOND);
            assert_eq!(recorder.overview(20 * SECOND).queries.not_assessed, 1);
        }
        let assessed = assignment.assess();
        recorder.state().finish(assignment, assessed);
        let overview = recorder.overview(20 * SECOND);
        assert_eq!(overview.recorder.queries_waiting, 0);
        assert_eq!(overview.queries.assessed, u64::from(!is_forgotten));
        let state = if is_forgotten { QueryState::Running } else { QueryState::Assessed };
        assert_eq!(recorder.query("q").unwrap().row.state, state);
    }
}

#[test]
fn queries_that_run_are_kept_when_others_are_dropped() {
    let recorder = Recorder::new(RecorderOptions { queries_max: 10, ..options() });
    recorder.query_began("long", "long", 0);
    for number in 0..50 {
        recorder.query_began(&number.to_string(), "short", number);
        recorder.query_ended(&number.to_string(), number + 1, end());
    }
    assert_eq!(recorder.query("long").unwrap().row.state, QueryState::Running);
    assert!(recorder.query("49").is_some() && recorder.query("3").is_none());
    recorder.query_ended("never began", 1, end());
    recorder.query_ended("49", 99, end());
    assert_eq!(recorder.overview(100).queries.unknown_ends, 2);
}

#[test]
fn long_labels_are_cut_and_old_ones_make_room() {
    let limits = RecorderOptions { text_bytes_max: 101, texts_bytes_max: 2000, ..options() };
    let recorder = Recorder::new(limits);
    for number in 0..100 {
        recorder.query_began(&number.to_string(), &"é".repeat(5000), number);
    }
    let rows = recorder.queries(1000);
    assert!(rows.len() < 20 && rows.iter().all(|row| row.label.len() <= 101 && row.label.ends_with('…')));
    recorder.query_began(&"x".repeat(10_000), "", 1000);
    assert!(recorder.query(&"x".repeat(10_000)).is_none());
}

#[test]
fn footprints_are_dropped_before_verdicts() {
    let recorder = Recorder::new(RecorderOptions { footprints_bytes_max: 0, ..options() });
    recorder.query_began("q", "select 1", 5 * SECOND);
    (0..20).for_each(|second| sample(&recorder, "a", second, &["q"]));
    recorder.query_ended("q", 15 * SECOND, end());
    recorder.tick(20 * SECOND);
    let report = recorder.query("q").unwrap();
    assert!(report.is_footprint_dropped && report.footprint.is_none());
    assert_eq!(report.verdict.unwrap().limit, Limit::Cpu);
    assert!(!report.row.parts.is_empty());
    assert_eq!(recorder.overview(0).queries.footprints_dropped, 1);
}

#[test]
fn what_arrives_while_nobody_records_is_bounded_and_counted() {
    let recorder = Recorder::new(options());
    for number in 0..2 * INBOX_ITEMS_MAX as u64 {
        recorder.query_began("q", "", number);
    }
    assert_eq!(recorder.overview(0).recorder.arrivals_dropped, INBOX_ITEMS_MAX as u64);
    assert_eq!(recorder.overview(0).queries.began, INBOX_ITEMS_MAX as u64);
}

#[test]
fn a_query_ends_although_there_is_no_room_for_other_arrivals() {
    let recorder = Recorder::new(RecorderOptions { queries_max: 2 * INBOX_ITEMS_MAX, ..options() });
    recorder.query_began("long", "select 1", 0);
    for number in 0..2 * INBOX_ITEMS_MAX as u64 {
        recorder.query_began(&number.to_string(), "", number);
    }
    let error = Some("é".repeat(100_000));
    recorder.query_ended("long", 5, QueryEnd { error, ..end() });
    let row = recorder.query("long").unwrap().row;
    assert_eq!((row.state, row.ended_ns), (QueryState::Waiting, Some(5)));
    assert!(row.error.unwrap().len() <= RESERVED_ERROR_BYTES_MAX);
}

#[test]
fn long_texts_take_no_more_room_than_what_is_kept_of_them() {
    let recorder = Recorder::new(options());
    let text = "x".repeat(INBOX_BYTES_MAX);
    for id in ["a", "b", "c"] {
        recorder.query_began(id, &text, 0);
        recorder.query_ended(id, 1, QueryEnd { error: Some(text.clone()), ..end() });
    }
    let overview = recorder.overview(2);
    assert_eq!((overview.recorder.arrivals_dropped, overview.queries.ended), (0, 3));
}

#[test]
fn samples_without_a_known_clock_and_of_too_many_hosts_are_counted() {
    let samples = TimelineLimits { hosts_max: 1, ..TimelineLimits::default() };
    let recorder = Recorder::new(RecorderOptions { samples, ..options() });
    sample(&recorder, "a", 1, &[]);
    sample(&recorder, "b", 1, &[]);
    let timed = TimedSample {
        sample: Sample { host: "a".into(), run: 1, number: 2, at_ns: 5, entries: Vec::new() },
        time_ns: 2 * SECOND,
        bound_ns: None,
        parts_missing: 0,
    };
    recorder.observe(CollectorEvent::Sample(Arc::new(timed)), 2 * SECOND);
    let overview = recorder.overview(2 * SECOND);
    assert_eq!(overview.recorder.samples_refused, 1);
    assert_eq!(overview.hosts.len(), 1);
    assert_eq!(overview.hosts[0].datagrams.without_clock, 1);
    assert_eq!(overview.hosts[0].samples.unwrap().kept, 1);
}

#[test]
fn the_use_of_hosts_now_and_over_time_is_in_units() {
    let recorder = ran(&["a"], 14);
    let overview = recorder.overview(13 * SECOND);
    let host = &overview.hosts[0];
    assert_eq!(host.state, HostState::Live);
    assert!((host.cpu_used.unwrap() - 1.0).abs() < 1e-6);
    assert!((host.network_sent_bytes_per_second.unwrap() - 1000.0).abs() < 1e-6);
    assert_eq!((host.memory_used_bytes, host.disk_busy), (Some(1 << 30), None));
    // Long after the last sample, its use is not known.
    let late = recorder.overview(60 * SECOND);
    assert_eq!((late.hosts[0].state, late.hosts[0].cpu_used), (HostState::Late, None));
    let series = recorder.series("a", FigureGroup::Cpu, (0, 20 * SECOND), 100).unwrap();
    let user = series.lines.iter().find(|line| line.name == "user").unwrap();
    for (at, value) in series.at_ns.iter().zip(&user.values) {
        let expected = if *at > 5 * SECOND { 1.0 } else { 0.0 };
        assert!((value.unwrap() - expected).abs() < 1e-6, "{at} {value:?}");
    }
    assert!(recorder.series("nobody", FigureGroup::Cpu, (0, SECOND), 100).is_none());
}

#[test]
fn traces_have_slices_for_queries_and_tasks_and_counters() {
    let bytes = ran(&["a"], 20).trace(0, 20 * SECOND).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let find = |ph: &str, name: &str| events.iter().find(|event| event["ph"] == ph && event["name"] == name);
    let query = find("X", "select 1").unwrap();
    assert_eq!((query["ts"].as_f64(), query["dur"].as_f64()), (Some(5e6), Some(10e6)));
    assert!(query["args"]["verdict"].as_str().unwrap().starts_with("Limited by the processors of a"));
    assert!(find("X", "stage 0 task 3: select 1").is_some());
    assert!(find("X", "CPU").is_some(), "phases");
    assert!(find("C", "cpu (processors)").unwrap()["args"]["user"].is_number());
    let names: Vec<_> =
        events.iter().filter(|event| event["ph"] == "M").map(|event| &event["args"]["name"]).collect();
    assert_eq!(names, ["queries", "a", "b"]);
}

#[test]
fn metrics_have_names_with_units_and_escaped_labels() {
    let recorder = ran(&["a"], 20);
    sample(&recorder, "c\"\n\\", 19, &[]);
    let text = recorder.metrics(20 * SECOND).unwrap();
    for line in [
        "# TYPE lightship_host_cpu_seconds counter",
        "lightship_host_cpu_seconds_total{host=\"a\",mode=\"user\"} 10.0",
        "lightship_host_network_bytes_total{host=\"a\",direction=\"sent\"} 19000.0",
        "lightship_host_memory_used_bytes{host=\"a\"} 1073741824.0",
        "lightship_queries_limited_total{limit=\"cpu\"} 1.0",
        "lightship_queries_total{event=\"ended\"} 1.0",
        "lightship_host_up{host=\"c\\\"\\n\\\\\"} 1.0",
        "# EOF",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    assert!(!text.contains("disk_bytes_total{"), "a figure that can't be had is missing");
}

#[test]
fn queries_are_restored_with_their_footprints_at_other_times_of_the_clock() {
    let before = ran(&["a", "b"], 20);
    before.query_began("failed", "select 2", 16 * SECOND);
    before.query_ended("failed", 17 * SECOND, QueryEnd { error: Some("no table".into()), ..end() });
    before.tick(60 * SECOND);
    let (stored, last) = before.assessed_after(0);
    assert_eq!((stored.len(), last), (2, 2));
    assert_eq!(stored[0].footprint.as_ref().unwrap().division.phases[0].began_ns, 0);
    // The clock began an hour later, or earlier.
    for offset in [3600, -3600_i64] {
        let unix_offset_ns = offset * SECOND as i64;
        let after = Recorder::new(RecorderOptions { unix_offset_ns, ..options() });
        after.restore(stored.clone());
        after.restore(stored.clone());
        let (old, new) = (before.query("q").unwrap(), after.query("q").unwrap());
        let shift = |ns: i64| ns - unix_offset_ns;
        assert_eq!(new.row.began_ns, shift(old.row.began_ns));
        assert_eq!(new.row.ended_ns, old.row.ended_ns.map(shift));
        assert_eq!(
            (&new.row.hosts, &new.row.parts, &new.verdict),
            (&old.row.hosts, &old.row.parts, &old.verdict)
        );
        let phase = &new.footprint.as_ref().unwrap().division.phases[0];
        assert_eq!(phase.began_ns, u64::try_from(new.row.began_ns).unwrap_or(0));
        assert_eq!(after.query("failed").unwrap().row.error.as_deref(), Some("no table"));
        let overview = after.overview(0);
        assert_eq!((overview.queries.restored, overview.queries.assessed), (2, 0));
        assert_eq!(overview.recorder.queries_kept, 2);
        assert_eq!(after.assessed_after(0), (Vec::new(), 0), "they are stored already");
        after.trace(0, 10_000 * SECOND).unwrap();
    }
}

#[test]
fn restored_queries_are_bounded_and_make_room_first() {
    let stored = ran(&["a"], 20).assessed_after(0).0.remove(0);
    let recorder = Recorder::new(RecorderOptions { queries_max: 3, footprints_bytes_max: 0, ..options() });
    let of = |id: u32| StoredQuery { id: id.to_string(), label: "é".repeat(9000), ..stored.clone() };
    recorder.restore((0..9).map(of).collect());
    let ids = |recorder: &Recorder| recorder.queries(9).into_iter().map(|row| row.id).collect::<Vec<_>>();
    assert_eq!(ids(&recorder), ["8", "7", "6"]);
    let report = recorder.query("8").unwrap();
    assert!(report.is_footprint_dropped && report.row.label.len() <= 4096);
    recorder.query_began("q", "select 1", 0);
    assert_eq!(ids(&recorder), ["q", "8", "7"]);
}

#[test]
fn runs_of_a_text_are_compared_by_number_of_hosts() {
    let recorder = Recorder::new(options());
    for (hosts, seconds) in [(&["a", "b"][..], 20), (&["a"], 20)] {
        let stored = ran(hosts, seconds).assessed_after(0).0.remove(0);
        let of = |run: u64| StoredQuery {
            id: format!("{}-{run}", hosts.len()),
            run_ns: stored.run_ns + run * SECOND,
            ..stored.clone()
        };
        recorder.restore((0..3).map(of).collect());
    }
    let other = ran(&["a"], 20).assessed_after(0).0.remove(0);
    recorder.restore(vec![StoredQuery { id: "x".into(), label: "another".into(), ..other }]);
    let [scaling] = recorder.scaling().try_into().unwrap();
    assert_eq!(scaling.label, "select 1");
    let sizes: Vec<_> = scaling.sizes.iter().map(|size| (size.hosts, size.runs, size.seconds)).collect();
    assert_eq!(sizes, [(1, 3, 11.0), (2, 3, 11.0)]);
    assert_eq!(scaling.sizes[0].range_seconds, (10.0, 12.0));
    assert_eq!(scaling.sizes[0].parts[0].0, Part::Cpu);
}

#[test]
fn a_history_that_fails_is_in_the_overview_and_in_metrics() {
    let recorder = ran(&["a"], 5);
    assert_eq!(recorder.overview(0).history, None);
    assert!(!recorder.metrics(0).unwrap().contains("history"));
    let status = HistoryStatus { error: Some("no space left on device".into()), lost: 7 };
    recorder.set_history(status.clone());
    assert_eq!(recorder.overview(0).history, Some(status));
    let text = recorder.metrics(0).unwrap();
    for line in ["lightship_history_failing 1.0", "lightship_history_samples_lost_total 7.0"] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}

proptest! {
    /// Any order of events leaves counts that add up, and reports that can be made.
    #[test]
    fn counts_add_up_whatever_happens(
        steps in proptest::collection::vec((0..5_u8, 0..12_u64, 0..40_u64), 0..200),
        queries_max in 1..8_usize, waiting_max in 1..4_usize,
    ) {
        let recorder = Recorder::new(RecorderOptions { queries_max, waiting_max, ..options() });
        for (kind, id, second) in steps {
            let name = id.to_string();
            match kind {
                0 => recorder.query_began(&name, &name, second * SECOND),
                1 => recorder.query_ended(&name, second * SECOND, end()),
                2 => sample(&recorder, if id % 2 == 0 { "a" } else { "b" }, second, &[&name]),
                3 => recorder.tick(second * SECOND),
                _ => recorder.update(Vec::new(), CollectorCounts::default()),
            }
        }
        let overview = recorder.overview(40 * SECOND);
        let (counts, held) = (&overview.queries, &overview.recorder);
        prop_assert!(held.queries_kept <= queries_max && held.queries_waiting <= waiting_max);
        prop_assert_eq!(counts.began, counts.forgotten + held.queries_kept as u64);
        prop_assert_eq!(counts.ended, counts.assessed + counts.not_assessed + held.queries_waiting as u64);
        let by_limit: u64 = counts.by_limit.values().sum();
        prop_assert_eq!(by_limit, counts.assessed);
        let states: BTreeMap<QueryState, usize> = recorder.queries(100).iter().fold(BTreeMap::new(), |mut states, row| {
            *states.entry(row.state).or_default() += 1;
            states
        });
        prop_assert_eq!(states.values().sum::<usize>(), held.queries_kept);
        for row in recorder.queries(100) {
            let report = recorder.query(&row.id).unwrap();
            serde_json::to_vec(&report).unwrap();
        }
        serde_json::to_vec(&overview).unwrap();
        recorder.trace(0, 40 * SECOND).unwrap();
        recorder.metrics(40 * SECOND).unwrap();
    }
}
