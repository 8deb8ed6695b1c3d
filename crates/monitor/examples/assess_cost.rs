//! What the assessment of queries costs: the time of an assessment, and for how long a report waits meanwhile.
//!
//! `cargo run --release -p lightship-monitor --example assess_cost`
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lightship_monitor::{CollectorEvent, QueryEnd, Recorder, RecorderOptions, TimedSample};
use lightship_usage::{Entry, Figure, Figures, Sample, Subject};

const SECOND: u64 = 1_000_000_000;
/// Figures that agents count of a process.
const FIGURES: [Figure; 14] = [
    Figure::CpuUserNs,
    Figure::CpuSystemNs,
    Figure::RunQueueWaitNs,
    Figure::DiskWaitNs,
    Figure::DiskReadBytes,
    Figure::DiskWrittenBytes,
    Figure::NetworkReceivedBytes,
    Figure::NetworkSentBytes,
    Figure::SocketBusyNs,
    Figure::SocketReceiverLimitedNs,
    Figure::SocketSendBufferLimitedNs,
    Figure::VoluntarySwitches,
    Figure::DiskReads,
    Figure::MemoryBytes,
];

fn main() {
    println!("case                              queries   CPU ms each   longest wait of a report, ms");
    for (hosts, processes) in [(1, 1), (4, 10), (16, 50)] {
        let recorder = Arc::new(Recorder::new(RecorderOptions::new(Some("0".into()))));
        let id = |number: u64| format!("query-{number}");
        for number in 0..16 {
            recorder.query_began(&id(number), "select 1", 10 * SECOND + number);
        }
        for second in 0..=110 {
            let tasks: Vec<String> =
                if (10..=100).contains(&second) { (0..16).map(id).collect() } else { Vec::new() };
            (0..hosts).for_each(|host| sample(&recorder, host, second, processes, &tasks));
            if second == 100 {
                for number in 0..16 {
                    recorder.query_ended(&id(number), 100 * SECOND + number, QueryEnd::default());
                }
            }
            // Takes what has arrived.
            drop(recorder.queries(0));
        }
        measure(&format!("90 s on {hosts} hosts x {processes} processes"), &recorder, 111);
    }
    let recorder = Arc::new(Recorder::new(RecorderOptions::new(Some("0".into()))));
    for second in 0..60 {
        let ids: Vec<String> = (0..1000).map(|number| format!("{second}-{number}")).collect();
        for (number, id) in (0..).zip(&ids) {
            let at_ns = second * SECOND + number * 1_000_000;
            recorder.query_began(id, "select 1", at_ns);
            recorder.query_ended(id, at_ns + 1_000_000 + number, QueryEnd::default());
        }
        sample(&recorder, 0, second + 1, 1, &ids);
        recorder.tick((second + 1) * SECOND);
    }
    sample(&recorder, 0, 62, 1, &[]);
    sample(&recorder, 0, 63, 1, &[]);
    measure("60,000 short queries with tasks", &recorder, 63);
}

/// Assesses what can be in one tick.
fn measure(case: &str, recorder: &Arc<Recorder>, second: u64) {
    let before = recorder.overview(0).queries.assessed;
    let ends = Arc::new(AtomicBool::new(false));
    let reader = {
        let (recorder, ends) = (recorder.clone(), ends.clone());
        std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !ends.load(Ordering::Relaxed) {
                let began = Instant::now();
                let _ = recorder.queries(1);
                longest = longest.max(began.elapsed());
                std::thread::sleep(Duration::from_millis(1));
            }
            longest
        })
    };
    let began = Instant::now();
    recorder.tick(second * SECOND);
    let took = began.elapsed();
    ends.store(true, Ordering::Relaxed);
    let longest = reader.join().unwrap_or_default();
    let count = recorder.overview(0).queries.assessed - before;
    let each = took.as_secs_f64() * 1e3 / count.max(1) as f64;
    println!("{case:<34} {count:>6} {each:>13.2} {:>14.1}", longest.as_secs_f64() * 1e3);
}

fn sample(recorder: &Recorder, host: u64, second: u64, processes: u32, tasks: &[String]) {
    let figures = |factor: u64| {
        let mut figures = Figures::default();
        let value = |figure: Figure| second * (factor + figure as u64) * 1_000_000;
        figures.extend(FIGURES.map(|figure| (figure, value(figure))));
        figures
    };
    let mut entries = vec![Entry { subject: Subject::Host, figures: figures(500) }];
    entries.push(Entry { subject: Subject::Disk("sda".into()), figures: figures(300) });
    entries.extend((0..processes).map(|pid| Entry {
        subject: Subject::Process { pid, began_ns: 1 },
        figures: figures(u64::from(pid)),
    }));
    entries.extend(tasks.iter().map(|query| {
        let mut figures = Figures::default();
        figures.set(Figure::CpuNs, second * 1_000_000);
        Entry { subject: Subject::Task { query: query.clone(), stage: 0, task: 0 }, figures }
    }));
    let time_ns = second * SECOND;
    let sample = Sample { host: host.to_string(), run: 1, number: second, at_ns: time_ns, entries };
    let timed = TimedSample { sample, time_ns, bound_ns: Some(1000), parts_missing: 0 };
    recorder.observe(CollectorEvent::Sample(Arc::new(timed)), time_ns);
}
