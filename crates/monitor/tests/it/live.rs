//! An agent, a collector and a recorder over a real socket: the work of this process is found to be that of its query.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lightship_monitor::recorder::{QueryReport, QueryState};
use lightship_monitor::{
    Agent, AgentOptions, Collector, CollectorEvent, CollectorOptions, QueryEnd, QueryLog, Recorder,
    RecorderOptions, Watch, bind_collector, monotonic_ns, run_agent, run_collector, run_recorder, unix_ns,
};
use lightship_usage::Figure;

/// Samples before a query, and while it runs.
const SAMPLES: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_query_of_this_process_is_assessed() {
    let socket = bind_collector("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addresses = vec![socket.local_addr().unwrap()];
    let watch = Watch::Processes(vec![std::process::id()]);
    let options = AgentOptions { watch, interval_ns: 50_000_000, ..AgentOptions::new("here") };
    let agent = Agent::new(options, unix_ns());
    let collector = Mutex::new(Collector::new(CollectorOptions::default(), "token", [1; 32]));
    let recorder = Arc::new(Recorder::new(RecorderOptions::new(Some("here".into()))));
    let (sender, mut samples) = tokio::sync::mpsc::unbounded_channel();
    let on_event = |event: CollectorEvent| {
        let is_placed = matches!(&event, CollectorEvent::Sample(timed) if timed.bound_ns.is_some());
        recorder.observe(event, monotonic_ns());
        if is_placed {
            let _ = sender.send(());
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let log = QueryLog::open(folder.path()).unwrap();
    let stored = || QueryLog::open(folder.path()).unwrap().read(9).unwrap();
    let query = async {
        for _ in 0..SAMPLES {
            samples.recv().await.unwrap();
        }
        recorder.query_began("q", "select 1", monotonic_ns());
        for _ in 0..SAMPLES {
            samples.recv().await.unwrap();
            std::hint::black_box(
                (0..3_000_000_u64).fold(0, |sum, number| sum ^ number.wrapping_mul(sum | 7)),
            );
        }
        recorder.query_ended("q", monotonic_ns(), QueryEnd::default());
        while recorder.query("q").unwrap().row.state != QueryState::Assessed || stored().is_empty() {
            samples.recv().await.unwrap();
        }
    };
    let (_collectors, targets) = tokio::sync::watch::channel(addresses);
    tokio::select! {
        ended = run_agent(agent, targets, "token", |_| ()) => panic!("{ended:?}"),
        ended = run_collector(&socket, &collector, on_event) => panic!("{ended:?}"),
        ended = run_recorder(&recorder, &collector, None, Some(log)) => panic!("{ended:?}"),
        ended = tokio::time::timeout(Duration::from_secs(60), query) => ended.unwrap(),
    }
    let report = recorder.query("q").unwrap();
    assert_eq!(report.row.hosts, ["here"]);
    let again = Recorder::new(RecorderOptions::new(None));
    again.restore(stored());
    let restored = again.query("q").unwrap();
    // Numbers may differ in their last digit.
    let told = |report: &QueryReport| {
        let verdict = report.verdict.as_ref().unwrap();
        (report.row.label.clone(), verdict.limit, verdict.sentence.clone())
    };
    assert_eq!(told(&restored), told(&report));
    assert!(restored.row.began_ns.abs_diff(report.row.began_ns) < 1_000_000_000);
    let footprint = report.footprint.unwrap();
    let host = &footprint.hosts[0];
    assert!(host.figures[&Figure::CpuUserNs].amount.high > 0.0);
    assert!(host.figures[&Figure::CpuUserNs].source.is_some(), "the agent says where it comes from");
    let overview = recorder.overview(monotonic_ns());
    assert!(overview.hosts[0].facts.processors > 0);
    assert!(overview.hosts[0].clock.bound_ns.is_some());
}
