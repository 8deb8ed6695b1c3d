//! Agents on hosts of the lab, and the collector that their samples go to.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lab::Host;
use lightship_monitor::{
    Collector, CollectorEvent, CollectorOptions, TimedSample, monotonic_ns, run_collector,
};
use lightship_usage::{
    Figure, Footprint, HostSpeeds, HostWork, Known, QuerySpan, Subject, Timeline, TimelineLimits, Verdict,
    Worker,
};
use tokio::runtime::Builder;

use super::outcome::Explained;
use super::site::{command_outside, name};
use crate::process::Process;
use crate::{Result, places};

/// The time between two samples.
pub(super) const INTERVAL: Duration = Duration::from_millis(50);
/// Samples after the end of a query that are awaited, as nodes do.
const AFTER_END: usize = 2;
/// Waits of all tasks that the kernel knows.
const PRESSURES: [Figure; 4] = [
    Figure::PressureCpuSomeNs,
    Figure::PressureIoSomeNs,
    Figure::PressureIoFullNs,
    Figure::PressureMemorySomeNs,
];
/// How long samples are awaited.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of a host up to a moment.
#[derive(Debug, Clone)]
pub(super) struct Traffic {
    pub(super) host: String,
    pub(super) at_ns: u64,
    pub(super) received: f64,
    pub(super) sent: f64,
}

#[derive(Default)]
struct Collected {
    timeline: Option<Timeline>,
    traffic: Vec<Traffic>,
}

/// Collects samples on the host of the coordinator.
pub(super) struct Watcher {
    collector: Arc<Mutex<Collector>>,
    collected: Arc<Mutex<Collected>>,
    address: SocketAddr,
    agents: Vec<Process>,
    hosts: Vec<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watcher {
    /// Listens on a host.
    pub(super) fn start(host: &Host) -> Result<Self> {
        let ip = host.address();
        let socket = host.run(move || {
            let socket = std::net::UdpSocket::bind((ip, 0))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        })?;
        let address = socket.local_addr()?;
        let secret = std::array::from_fn(|_| fastrand::u8(..));
        let collector = Arc::new(Mutex::new(Collector::new(CollectorOptions::default(), "", secret)));
        let timeline = Timeline::new(TimelineLimits::default());
        let collected = Arc::new(Mutex::new(Collected { timeline: Some(timeline), traffic: Vec::new() }));
        let (theirs, target) = (collector.clone(), collected.clone());
        std::thread::spawn(move || {
            let run = async {
                let socket = tokio::net::UdpSocket::from_std(socket)?;
                run_collector(&socket, &theirs, |event| {
                    if let CollectorEvent::Sample(sample) = event {
                        lock(&target).add(&sample);
                    }
                })
                .await
            };
            let runtime = Builder::new_current_thread().enable_all().build();
            // It ends with this program, or with an error.
            let Err(error) = runtime.and_then(|runtime| runtime.block_on(run));
            eprintln!("samples are no longer collected: {error}");
        });
        Ok(Self { collector, collected, address, agents: Vec::new(), hosts: Vec::new() })
    }

    /// Starts an agent on a host that sends here, with more arguments: which processes it counts.
    pub(super) fn watch(&mut self, host: &Host, host_name: &str, which: &[&str]) -> Result<()> {
        let lightship = places::lightship()?.display().to_string();
        let (interval, to) = (format!("{}ms", INTERVAL.as_millis()), self.address.to_string());
        let own = ["agent", &to, "--host", host_name, "--interval", &interval, "--insecure"];
        let words: Vec<&str> = [&[lightship.as_str()], &own[..], which].concat();
        self.agents.push(command_outside(host, &words)?);
        self.hosts.push(host_name.to_owned());
        Ok(())
    }

    /// Waits until each agent has sent samples.
    pub(super) fn ready(&self) -> Result<()> {
        self.wait(monotonic_ns())
    }

    /// Waits until samples after a moment have come from each host.
    fn wait(&self, after_ns: u64) -> Result<()> {
        let began = Instant::now();
        loop {
            let late = {
                let collected = lock(&self.collected);
                let timeline = collected.timeline.as_ref().ok_or("no time line")?;
                let is_late = |host: &&String| {
                    let last = timeline.last_samples(host, AFTER_END);
                    last.len() < AFTER_END || last.last().is_none_or(|at_ns| *at_ns <= after_ns)
                };
                self.hosts.iter().find(is_late).cloned()
            };
            let Some(late) = late else { return Ok(()) };
            if began.elapsed() > PATIENCE {
                return Err(format!("no samples came from {late}").into());
            }
            std::thread::sleep(INTERVAL / 4);
        }
    }

    /// Explains a query by the processes that were sampled while it ran: those of the hosts `node...` divide its work.
    pub(super) fn explain(
        &self,
        label: &str,
        (began_ns, ended_ns): (u64, u64),
        hosts: &[String],
        speeds: HostSpeeds,
    ) -> Result<Explained> {
        self.wait(ended_ns)?;
        let reports = lock(&self.collector).hosts(monotonic_ns());
        let mut collected = lock(&self.collected);
        let timeline = collected.timeline.as_mut().ok_or("no time line")?;
        for report in reports {
            timeline.set_sources(&report.host, report.sources)?;
        }
        let work = |host: &String| {
            let subjects = timeline.subjects_within(host, began_ns, ended_ns).into_iter();
            let subjects =
                subjects.filter(|subject| matches!(subject, Subject::Process { .. } | Subject::Peer { .. }));
            HostWork {
                host: host.clone(),
                workers: subjects.cloned().map(Worker::own).collect(),
                divides: host.starts_with("node"),
            }
        };
        let hosts: Vec<HostWork> = hosts.iter().map(work).collect();
        let span = QuerySpan { label: label.to_owned(), began_ns, ended_ns, hosts, known: Known::default() };
        let speeds = self.hosts.iter().map(|host| (host.clone(), speeds)).collect();
        let footprint = Footprint::new(timeline, &speeds, &span)?;
        let verdict = Verdict::new(&footprint);
        Ok(Explained { footprint, verdict })
    }

    /// Bytes of hosts in a span.
    pub(super) fn traffic(&self, (from_ns, to_ns): (u64, u64)) -> Vec<Traffic> {
        let collected = lock(&self.collected);
        let margin_ns = 2 * INTERVAL.as_nanos() as u64;
        let (from_ns, to_ns) = (from_ns.saturating_sub(margin_ns), to_ns + margin_ns);
        let within = collected.traffic.iter().filter(|at| (from_ns..=to_ns).contains(&at.at_ns));
        within.cloned().collect()
    }

    /// The widest bound of the clocks of the hosts in microseconds, and the datagrams that were lost.
    pub(super) fn quality(&self) -> (f64, u64) {
        let reports = lock(&self.collector).hosts(monotonic_ns());
        let bounds = reports.iter().filter_map(|report| report.offset.as_ref());
        let bound = bounds.map(|offset| offset.bound_ns as f64 / 1e3).fold(0.0, f64::max);
        (bound, reports.iter().map(|report| report.counts.lost).sum())
    }
}

impl Collected {
    fn add(&mut self, timed: &TimedSample) {
        let (Some(timeline), Some(clock)) = (&mut self.timeline, timed.clock()) else { return };
        let host = &timed.sample.host;
        // A sample that can't be placed is missing, as one that was lost.
        let mut sample = timed.sample.clone();
        let hosts = sample.entries.iter_mut().filter(|entry| entry.subject == Subject::Host);
        // The hosts of the lab share one kernel: each would have the pressure of all.
        hosts.for_each(|entry| PRESSURES.iter().for_each(|figure| entry.figures.set(*figure, None)));
        if timeline.set_clock(host, clock).is_err() || timeline.insert(sample).is_err() {
            return;
        }
        if let Some(entry) = timed.sample.entries.iter().find(|entry| entry.subject == Subject::Host) {
            let of = |figure| entry.figures.get(figure).unwrap_or(0) as f64;
            self.traffic.push(Traffic {
                host: host.clone(),
                at_ns: timed.time_ns,
                received: of(Figure::NetworkReceivedBytes),
                sent: of(Figure::NetworkSentBytes),
            });
        }
    }
}

/// The name of an agent's host: `node1` and so on, or `coordinator`.
pub(super) fn node_names(count: usize) -> Vec<String> {
    (1..=count).map(name).collect()
}
