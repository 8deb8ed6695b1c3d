//! Agents and collectors over sockets.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lightship_usage::{Entry, Figure, FigureSource, Figures, Subject, SubjectKind};
use tokio::sync::watch;

use super::*;
use crate::agent::Agent;
use crate::collector::{Collector, CollectorEvent, CollectorOptions};
use crate::history::{HistoryOptions, HistoryWriter, history_files, read_history};
use crate::options::{AgentOptions, Watch};
use crate::time::{monotonic_ns, unix_ns};

fn agent(host: &str) -> Agent {
    let options = AgentOptions {
        watch: Watch::this_process(),
        interval_ns: AgentOptions::INTERVAL_NS_MIN,
        ..AgentOptions::new(host)
    };
    Agent::new(options, unix_ns())
}

/// Collectors that do not change.
fn fixed(address: SocketAddr) -> watch::Receiver<Vec<SocketAddr>> {
    watch::channel(vec![address]).1
}

#[tokio::test]
async fn samples_of_two_agents_reach_a_collector_with_bounds() {
    let socket = bind_collector("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = socket.local_addr().unwrap();
    let collector = Mutex::new(Collector::new(CollectorOptions::default(), "token", [1; 32]));
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    let work = async {
        tokio::select! {
            ended = run_agent(agent("a"), fixed(address), "token", |_| ()) => panic!("{ended:?}"),
            ended = run_agent(agent("b"), fixed(address), "token", |_| ()) => panic!("{ended:?}"),
            ended = run_agent(agent("c"), fixed(address), "another", |_| ()) => panic!("{ended:?}"),
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
    drop(socket);
    let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    let agent = agent("a");
    let counter = agent.counter();
    let agent = run_agent(agent, fixed(address), "token", |event| sender.send(event).unwrap());
    let rest = async {
        let mut sampled = 0;
        while sampled < 3 {
            sampled += usize::from(matches!(events.recv().await, Some(AgentEvent::Sampled(_))));
        }
        // The system has reported that the datagrams were refused.
        let counts = counter.get();
        assert!(counts.socket_errors + counts.send_errors > 0, "{counts:?}");
        assert_eq!((counts.answers, counts.collectors), (0, 1));
        assert!(counts.samples >= 2 && counts.sampling_ns > 0, "{counts:?}");
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

/// What a host sends if it does not take UDP: "protocol unreachable" (RFC 792), for a datagram from `from` to `to`.
fn protocol_unreachable(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { panic!("IPv4 only") };
    let mut message = vec![3, 2, 0, 0, 0, 0, 0, 0];
    // The beginning of the datagram: a header of IPv4 and one of UDP.
    message.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    message.extend(from.ip().octets());
    message.extend(to.ip().octets());
    message.extend(from.port().to_be_bytes());
    message.extend(to.port().to_be_bytes());
    message.extend([0, 8, 0, 0]);
    let sum: u32 =
        message.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    let checksum = !((folded >> 16) + (folded & 0xffff)) as u16;
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_error_of_the_network_does_not_end_a_collector() {
    use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
    let raw = match socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)) {
        Ok(raw) => raw,
        Err(error) => return eprintln!("skipped: a raw socket needs CAP_NET_RAW: {error}"),
    };
    let receiver = bind_collector("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let own = receiver.local_addr().unwrap();
    let sender = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let peer = sender.local_addr().unwrap();
    // The system reports such errors to sockets that are connected.
    receiver.connect(peer).await.unwrap();
    let collector = Mutex::new(Collector::new(CollectorOptions::default(), "token", [1; 32]));
    let report = protocol_unreachable(own, peer);
    let to = std::net::SocketAddr::new(own.ip(), 0);
    assert_eq!(sendto(&raw, &report, SendFlags::empty(), &to).unwrap(), report.len());
    let after = async {
        let refused = || {
            let counts = collector.lock().unwrap().counts();
            counts.malformed + counts.forged
        };
        while refused() == 0 {
            sender.send_to(b"not a sample", own).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        ended = run_collector(&receiver, &collector, |_| ()) => panic!("{ended:?}"),
        ended = tokio::time::timeout(Duration::from_secs(60), after) => ended.unwrap(),
    }
}

/// Runs an agent and a collector until `enough` has seen what it waits for in the collector's events.
async fn collect(
    agent: Agent,
    collectors: watch::Receiver<Vec<SocketAddr>>,
    socket: &tokio::net::UdpSocket,
    collector: &Mutex<Collector>,
    enough: impl AsyncFnOnce(&mut tokio::sync::mpsc::UnboundedReceiver<CollectorEvent>),
) {
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    let work = async {
        tokio::select! {
            ended = run_agent(agent, collectors, "token", |_| ()) => panic!("{ended:?}"),
            ended = run_collector(socket, collector, |event| sender.send(event).unwrap()) => panic!("{ended:?}"),
            ended = tokio::time::timeout(Duration::from_secs(60), enough(&mut received)) => ended.unwrap(),
        }
    };
    Box::pin(work).await;
}

#[tokio::test]
async fn tasks_of_a_program_reach_the_collector_and_its_history() {
    let socket = bind_collector("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let collector = Mutex::new(Collector::new(CollectorOptions::default(), "token", [1; 32]));
    let mut figures = Figures::default();
    figures.extend([(Figure::CpuUserNs, 7), (Figure::LockWaitNs, u64::MAX)]);
    let subject = Subject::Task { query: "select 'é'".into(), stage: 2, task: 3 };
    let task = Entry { subject, figures };
    let entries = vec![task.clone()];
    let agent = agent("a").with_entries(Arc::new(move |_| entries.clone()));
    let folder = tempfile::tempdir().unwrap();
    let history = HistoryWriter::open(HistoryOptions::new(folder.path())).unwrap();
    let mut numbers = Vec::new();
    let address = socket.local_addr().unwrap();
    collect(agent, fixed(address), &socket, &collector, async |received| {
        while numbers.len() < 3 {
            let CollectorEvent::Sample(timed) = received.recv().await.unwrap() else { continue };
            assert!(timed.sample.entries.contains(&task));
            numbers.push(timed.sample.number);
            history.add(&timed);
        }
        // The description that says where the figures come from follows a sample.
        while collector.lock().unwrap().hosts(0)[0]
            .sources
            .get(SubjectKind::Task, Figure::LockWaitNs)
            .is_none()
        {
            received.recv().await.unwrap();
        }
    })
    .await;
    let report = collector.into_inner().unwrap().hosts(0).remove(0);
    let source = report.sources.get(SubjectKind::Task, Figure::CpuUserNs);
    assert!(matches!(source, Some(FigureSource::Available { .. })), "{source:?}");
    history.close().unwrap();
    let mut read = Vec::new();
    for (path, _) in history_files(folder.path()).unwrap() {
        read_history(&path, |timed| read.push(timed.sample)).unwrap();
    }
    assert!(read.iter().all(|sample| sample.entries.contains(&task)));
    assert_eq!(read.into_iter().map(|sample| sample.number).collect::<Vec<_>>(), numbers);
}

#[tokio::test]
async fn collectors_are_added_removed_and_added_again_while_an_agent_runs() {
    let socket = bind_collector("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = socket.local_addr().unwrap();
    let collector = Mutex::new(Collector::new(CollectorOptions::default(), "token", [1; 32]));
    let (change, collectors) = watch::channel(Vec::new());
    let agent = agent("a");
    let counter = agent.counter();
    let (sampled, mut samples) = tokio::sync::mpsc::unbounded_channel();
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    let wait = async {
        for _ in 0..3 {
            samples.recv().await.unwrap();
        }
        let counts = counter.get();
        assert_eq!((counts.collectors, counts.datagrams), (0, 0));
        let mut last = None;
        for round in 1..=2 {
            change.send(vec![address]).unwrap();
            let mut more = 0;
            while more < 3 {
                if let CollectorEvent::Sample(timed) = received.recv().await.unwrap() {
                    assert!(last < Some(timed.sample.number), "{last:?}");
                    last = Some(timed.sample.number);
                    more += 1;
                }
            }
            let report = collector.lock().unwrap().hosts(0).remove(0);
            assert!(report.facts.processors > 0, "round {round} began without a description");
            assert_eq!(report.counts.doubled, 0);
            // While it is removed, nothing is sent.
            change.send(Vec::new()).unwrap();
            while counter.get().collectors > 0 {
                samples.recv().await.unwrap();
            }
            let before = counter.get().datagrams;
            while samples.try_recv().is_ok() {}
            for _ in 0..3 {
                samples.recv().await.unwrap();
            }
            assert_eq!(counter.get().datagrams, before);
        }
    };
    tokio::select! {
        ended = run_agent(agent, collectors, "token", |event| {
            // The receiver is dropped last.
            let _ = sampled.send(event);
        }) => panic!("{ended:?}"),
        ended = run_collector(&socket, &collector, |event| sender.send(event).unwrap()) => panic!("{ended:?}"),
        ended = tokio::time::timeout(Duration::from_secs(60), wait) => ended.unwrap(),
    }
}

#[tokio::test]
async fn an_unreachable_collector_is_counted_and_does_not_stop_the_others() {
    let socket = bind_collector("127.0.0.1:0".parse().unwrap()).await.unwrap();
    // A socket can't be connected to a broadcast address.
    let broadcast = "255.255.255.255:9".parse().unwrap();
    let collectors = watch::channel(vec![broadcast, socket.local_addr().unwrap()]).1;
    let collector = Mutex::new(Collector::new(CollectorOptions::default(), "token", [1; 32]));
    let agent = agent("a");
    let counter = agent.counter();
    collect(agent, collectors, &socket, &collector, async |received| {
        while !matches!(received.recv().await.unwrap(), CollectorEvent::Sample(_)) {}
    })
    .await;
    let counts = counter.get();
    assert_eq!(counts.collectors, 1);
    assert!(counts.socket_errors > 0 && counts.answers > 0, "{counts:?}");
}
