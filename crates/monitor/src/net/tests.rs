//! Agents and collectors over sockets.

use std::sync::Mutex;
use std::time::Duration;

use lightship_usage::{Figure, Subject};

use super::*;
use crate::agent::Agent;
use crate::collector::{Collector, CollectorEvent, CollectorOptions};
use crate::options::{AgentOptions, Watch};
use crate::time::{monotonic_ns, unix_ns};

fn agent(host: &str) -> Agent {
    let options = AgentOptions {
        watch: Watch::Processes(vec![std::process::id()]),
        interval_ns: AgentOptions::INTERVAL_NS_MIN,
        ..AgentOptions::new(host)
    };
    Agent::new(options, unix_ns())
}

#[tokio::test]
async fn samples_of_two_agents_reach_a_collector_with_bounds() {
    let socket = bind_collector("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = socket.local_addr().unwrap();
    let addresses = [address];
    let collector = Mutex::new(Collector::new(CollectorOptions::default(), "token", [1; 32]));
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    let work = async {
        tokio::select! {
            ended = run_agent(agent("a"), &addresses, "token", |_| ()) => panic!("{ended:?}"),
            ended = run_agent(agent("b"), &addresses, "token", |_| ()) => panic!("{ended:?}"),
            ended = run_agent(agent("c"), &addresses, "another", |_| ()) => panic!("{ended:?}"),
            ended = run_collector(&socket, &collector, |event| sender.send(event).unwrap()) => panic!("{ended:?}"),
        }
    };
    let enough = async {
        let (mut of_a, mut of_b) = (0, 0);
        while of_a < 5 || of_b < 5 {
            let CollectorEvent::Sample(timed) = received.recv().await.unwrap() else { continue };
            if timed.bound_ns.is_none() {
                continue;
            }
            let process =
                timed.sample.entries.iter().find(|entry| matches!(entry.subject, Subject::Process { .. }));
            assert!(process.unwrap().figures.get(Figure::CpuUserNs).is_some());
            // Both have the same clock here.
            assert!(timed.time_ns.abs_diff(timed.sample.at_ns) <= timed.bound_ns.unwrap());
            match &*timed.sample.host {
                "a" => of_a += 1,
                "b" => of_b += 1,
                other => panic!("{other} has no token"),
            }
        }
    };
    tokio::select! {
        () = work => {}
        ended = tokio::time::timeout(Duration::from_secs(60), enough) => ended.unwrap(),
    }
    let collector = collector.into_inner().unwrap();
    assert!(collector.counts().forged > 0);
    let reports = collector.hosts(monotonic_ns());
    assert_eq!(reports.len(), 2);
    for report in reports {
        assert!(report.facts.processors > 0);
        assert!(report.sources.iter().count() > 50);
        assert_eq!(report.processes[0].pid, std::process::id());
        let offset = report.offset.unwrap();
        assert!(offset.offset_ns.unsigned_abs() <= offset.bound_ns, "{offset:?}");
    }
}

#[tokio::test]
async fn an_agent_without_a_collector_goes_on_until_there_is_one() {
    let socket = bind_collector("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = socket.local_addr().unwrap();
    let addresses = [address];
    drop(socket);
    let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    let agent = run_agent(agent("a"), &addresses, "token", |event| sender.send(event).unwrap());
    let rest = async {
        let mut sampled = 0;
        while sampled < 3 {
            sampled += usize::from(matches!(events.recv().await, Some(AgentEvent::Sampled(_))));
        }
        let socket = bind_collector(address).await.unwrap();
        let collector = Mutex::new(Collector::new(CollectorOptions::default(), "token", [1; 32]));
        let accepted =
            async { while events.recv().await.unwrap() != (AgentEvent::Accepted { collector: address }) {} };
        tokio::select! {
            ended = run_collector(&socket, &collector, |_| ()) => panic!("{ended:?}"),
            () = accepted => {}
        }
    };
    tokio::select! {
        ended = agent => panic!("{ended:?}"),
        ended = tokio::time::timeout(Duration::from_secs(60), rest) => ended.unwrap(),
    }
}
