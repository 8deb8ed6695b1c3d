//! Modelled hosts that run modelled queries: what their agents would count, sent through the real datagrams, collector
//! and recorder. For the example and for tests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use lightship_monitor::datagram::{Description, Keys, ProcessName, SealableBody};
use lightship_monitor::{
    Collector, CollectorOptions, HostFacts, QueryEnd, Reaction, Recorder, RecorderOptions, Sender,
};
use lightship_usage::{Entry, Figure, Figures, HostSpeeds, Known, LinkSpeeds, Sample, Subject};

const SECOND: u64 = 1_000_000_000;
/// The step of the model.
const STEP: u64 = SECOND / 20;
const PROCESSORS: f64 = 4.0;
const LINK: f64 = 1.25e8;
const DISK: f64 = 200e6;
const MEMORY: u64 = 16 << 30;
const TOKEN: &str = "modelled";
const PROCESS: Subject = Subject::Process { pid: 1000, began_ns: 1 };
/// The time after which the same queries run again, in seconds.
const CYCLE: f64 = 260.0;

/// What a task does in a second.
#[derive(Clone, Copy, Default)]
struct Load {
    user: f64,
    system: f64,
    run_queue: f64,
    read: f64,
    reads: f64,
    disk_wait: f64,
    received: f64,
    sent: f64,
    socket_busy: f64,
    receiver_limited: f64,
    switches: f64,
    segments: f64,
}

/// What limits a modelled query.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Compute,
    Scan,
    Lookup,
    Chatty,
    Idle,
    Export,
    Contended,
    Shuffle,
}

/// The load of a task of a query at a fraction of its run.
fn load(kind: Kind, done: f64) -> Load {
    let scan =
        Load { user: 0.12, system: 0.06, read: DISK * 0.8, reads: 610.0, disk_wait: 0.8, ..Load::default() };
    match kind {
        Kind::Compute if done < 0.12 => scan,
        Kind::Compute => {
            Load { user: 0.88, system: 0.04, read: 14e6, reads: 110.0, disk_wait: 0.07, ..Load::default() }
        }
        Kind::Scan if done < 0.9 => scan,
        Kind::Scan => Load { user: 0.9, system: 0.05, ..Load::default() },
        Kind::Lookup => {
            Load { user: 0.05, system: 0.04, read: 1.4e6, reads: 172.0, disk_wait: 0.88, ..Load::default() }
        }
        Kind::Chatty => Load {
            user: 0.10,
            system: 0.16,
            received: 0.2e6,
            sent: 0.4e6,
            socket_busy: 0.5,
            switches: 2400.0,
            segments: 2400.0,
            ..Load::default()
        },
        Kind::Idle => {
            Load { user: 0.08, system: 0.03, read: 2e6, reads: 16.0, disk_wait: 0.03, ..Load::default() }
        }
        Kind::Export => Load {
            user: 0.14,
            system: 0.05,
            sent: 22e6,
            received: 0.1e6,
            socket_busy: 0.98,
            receiver_limited: 0.78,
            segments: 900.0,
            ..Load::default()
        },
        Kind::Contended => Load { user: 0.42, system: 0.03, run_queue: 0.52, ..Load::default() },
        Kind::Shuffle if done < 0.25 => scan,
        Kind::Shuffle => Load {
            user: 0.2,
            system: 0.15,
            sent: LINK * 0.9,
            received: LINK * 0.9,
            socket_busy: 0.95,
            segments: 80_000.0,
            ..Load::default()
        },
    }
}

/// A run in the schedule: when it begins, its label, kind, seconds, hosts and error.
type Planned = (f64, &'static str, Kind, f64, &'static [usize], Option<&'static str>);

const Q1: &str = "select l_returnflag, l_linestatus, sum(l_quantity), avg(l_discount), count(*) from lineitem \
    where l_shipdate <= date '1998-09-02' group by 1, 2 order by 1, 2";
const Q4: &str = "select o_orderpriority, count(*) from orders where exists (select * from lineitem \
    where l_orderkey = o_orderkey and l_commitdate < l_receiptdate) group by 1";
const Q3: &str = "select l_orderkey, sum(l_extendedprice * (1 - l_discount)) revenue from customer, orders, lineitem \
    where c_mktsegment = 'BUILDING' group by 1 order by revenue desc limit 10";
const Q8: &str = "select o_year, sum(case when nation = 'BRAZIL' then volume else 0 end) / sum(volume) from all_nations \
    group by o_year";
const EXPORT: &str = "select * from lineitem where l_shipmode = 'AIR' -- <b>export</b> & \"archive\"";
const Q6: &str =
    "select sum(l_extendedprice * l_discount) from lineitem where l_discount between 0.05 and 0.07";
const JOIN: &str = "select * from orders o join lineitem l on o.o_orderkey = l.l_orderkey";
const POINT: &str = "select * from customer where c_custkey in (select c_custkey from vip_customers)";

const ALL: &[usize] = &[0, 1, 2, 3];
const SCHEDULE: &[Planned] = &[
    (3.0, Q1, Kind::Compute, 26.0, &[1], None),
    (31.0, Q1, Kind::Compute, 13.4, &[1, 2], None),
    (46.5, Q1, Kind::Compute, 7.1, ALL, None),
    (56.0, Q4, Kind::Scan, 20.0, &[2], None),
    (78.0, Q4, Kind::Scan, 10.3, &[1, 2], None),
    (90.0, Q4, Kind::Scan, 5.6, ALL, None),
    (98.0, Q3, Kind::Chatty, 15.5, &[0], None),
    (115.0, Q3, Kind::Chatty, 14.2, &[0, 1], None),
    (131.0, Q3, Kind::Chatty, 13.8, ALL, None),
    (146.0, Q8, Kind::Idle, 12.0, ALL, None),
    (160.0, EXPORT, Kind::Export, 14.0, &[0], None),
    (176.0, Q6, Kind::Contended, 13.0, &[2], None),
    (191.0, JOIN, Kind::Shuffle, 12.0, ALL, None),
    (205.0, POINT, Kind::Lookup, 9.0, &[3], None),
    (
        216.0,
        JOIN,
        Kind::Shuffle,
        3.2,
        ALL,
        Some("out of memory: the hash table needs 3.1 GiB, the limit is 2 GiB"),
    ),
    (221.02, "select 1", Kind::Compute, 0.004, &[], None),
    (223.21, "select count(*) from region", Kind::Compute, 0.011, &[], None),
    (225.0, Q1, Kind::Compute, 26.0, &[1], None),
    (228.0, Q6, Kind::Scan, 15.0, &[1], None),
];

struct Host {
    name: String,
    offset_ns: u64,
    sender: Sender,
    number: u64,
    of_host: BTreeMap<Figure, f64>,
    of_disk: BTreeMap<Figure, f64>,
    of_process: BTreeMap<Figure, f64>,
    tasks: BTreeMap<(String, u32), BTreeMap<Figure, f64>>,
    next_ns: u64,
}

struct Run {
    id: String,
    planned: &'static Planned,
    began_ns: u64,
    ended_ns: u64,
}

/// Hosts, their queries, and the collector of their samples, on the clock of the collector.
pub(crate) struct World {
    collector: Mutex<Collector>,
    pub(crate) recorder: Arc<Recorder>,
    hosts: Vec<Host>,
    runs: Vec<Run>,
    began_ns: u64,
    now_ns: u64,
    planned: usize,
    random: fastrand::Rng,
}

/// The name of a host.
fn name(index: usize) -> String {
    format!("node{}", index + 1)
}

impl World {
    /// Four hosts at `now_ns` of the collector's clock, which have run nothing yet.
    pub(crate) fn new(now_ns: u64) -> Self {
        let options = RecorderOptions::new(Some(name(0)));
        let host = |index: usize| Host {
            name: name(index),
            offset_ns: 3600 * SECOND * (index as u64 + 1),
            sender: Sender::new(Keys::of(TOKEN), 5),
            number: 0,
            of_host: BTreeMap::new(),
            of_disk: BTreeMap::new(),
            of_process: BTreeMap::new(),
            tasks: BTreeMap::new(),
            next_ns: now_ns + index as u64 * SECOND / 7,
        };
        Self {
            collector: Mutex::new(Collector::new(CollectorOptions::default(), TOKEN, [3; 32])),
            recorder: Arc::new(Recorder::new(options)),
            hosts: (0..4).map(host).collect(),
            runs: Vec::new(),
            began_ns: now_ns,
            now_ns,
            planned: 0,
            random: fastrand::Rng::with_seed(7),
        }
    }

    /// Lets time go on until `to_ns`.
    pub(crate) fn advance(&mut self, to_ns: u64) {
        while self.now_ns + STEP <= to_ns {
            self.now_ns += STEP;
            self.plan();
            for index in 0..self.hosts.len() {
                self.work(index);
                if self.hosts[index].next_ns <= self.now_ns {
                    self.hosts[index].next_ns += SECOND;
                    self.sample(index);
                }
            }
            if (self.now_ns / STEP).is_multiple_of(10) {
                let mut events = Vec::new();
                let (reports, counts) = {
                    let mut collector = self.collector.lock().unwrap();
                    collector.tick(self.now_ns, &mut events);
                    (collector.hosts(self.now_ns), collector.counts())
                };
                events.into_iter().for_each(|event| self.recorder.observe(event, self.now_ns));
                self.recorder.update(reports, counts);
                self.recorder.tick(self.now_ns);
            }
        }
    }

    /// Begins and ends queries.
    fn plan(&mut self) {
        loop {
            let (cycle, index) = (self.planned / SCHEDULE.len(), self.planned % SCHEDULE.len());
            let planned = &SCHEDULE[index];
            let at_seconds = cycle as f64 * CYCLE + planned.0;
            let began_ns = self.began_ns + (at_seconds * 1e9) as u64;
            if began_ns > self.now_ns {
                break;
            }
            let id = format!("{:04}-{index:02}", cycle + 1);
            self.recorder.query_began(&id, planned.1, began_ns);
            let ended_ns = began_ns + (planned.3 * 1e9) as u64;
            if planned.4.is_empty() {
                // Too short for a step of the model, and for a task in any sample.
                let host = &mut self.hosts[0];
                for figures in [&mut host.of_process, &mut host.of_host] {
                    *figures.entry(Figure::CpuUserNs).or_default() += planned.3 * 0.8e9;
                }
            }
            self.runs.push(Run { id, planned, began_ns, ended_ns });
            self.planned += 1;
        }
        let now_ns = self.now_ns;
        let (ended, running): (Vec<Run>, _) = self.runs.drain(..).partition(|run| run.ended_ns <= now_ns);
        self.runs = running;
        for run in ended {
            let known = Known { parallelism: Some(1), ..Known::default() };
            let end = QueryEnd { error: run.planned.5.map(str::to_owned), known };
            self.recorder.query_ended(&run.id, run.ended_ns, end);
        }
    }

    /// What a host does in a step.
    fn work(&mut self, index: usize) {
        let jitter = 0.96 + 0.08 * self.random.f64();
        let host = &mut self.hosts[index];
        let step = STEP as f64 / 1e9;
        let add = |figures: &mut BTreeMap<Figure, f64>, figure, amount: f64| {
            *figures.entry(figure).or_default() += amount.max(0.0);
        };
        let mut used = 0.0;
        let mut disk_used: f64 = 0.0;
        for run in self.runs.iter().filter(|run| run.planned.4.contains(&index)) {
            let done = (self.now_ns - run.began_ns) as f64 / (run.ended_ns - run.began_ns) as f64;
            let mut work = load(run.planned.2, done);
            if run.planned.2 == Kind::Chatty {
                // The hosts work in turn.
                let hosts = run.planned.4.len() as f64;
                (work.user, work.system) = (work.user / hosts, work.system / hosts);
            }
            used += work.user + work.system;
            let room = (1.0 - disk_used).max(0.0);
            disk_used += work.disk_wait.min(room);
            let counted = [
                (Figure::CpuUserNs, work.user * jitter * 1e9),
                (Figure::CpuSystemNs, work.system * jitter * 1e9),
                (Figure::RunQueueWaitNs, work.run_queue * 1e9),
                (Figure::DiskReadBytes, work.read * jitter),
                (Figure::DiskWrittenBytes, 0.0),
                (Figure::DiskWaitNs, work.disk_wait * 1e9),
                (Figure::NetworkReceivedBytes, work.received * jitter),
                (Figure::NetworkSentBytes, work.sent * jitter),
                (Figure::SocketBusyNs, work.socket_busy * 1e9),
                (Figure::SocketReceiverLimitedNs, work.receiver_limited * 1e9),
                (Figure::SocketSendBufferLimitedNs, 0.0),
                (Figure::VoluntarySwitches, work.switches),
                (Figure::SocketSegmentsReceived, work.segments),
                (Figure::SocketSegmentsSent, work.segments),
            ];
            for (figure, rate) in counted {
                add(&mut host.of_process, figure, rate * step);
            }
            let task = host.tasks.entry((run.id.clone(), index as u32)).or_default();
            for (figure, rate) in counted.into_iter().take(2) {
                add(task, figure, rate * step);
            }
            for figure in [Figure::DiskReadBytes, Figure::NetworkReceivedBytes, Figure::NetworkSentBytes] {
                let rate =
                    counted.iter().find(|(counted, _)| *counted == figure).map_or(0.0, |found| found.1);
                add(&mut host.of_host, figure, rate * step);
            }
            add(&mut host.of_host, Figure::RunQueueWaitNs, work.run_queue * step * 1e9);
            add(&mut host.of_disk, Figure::DiskReadBytes, work.read * jitter * step);
            add(&mut host.of_disk, Figure::DiskReads, work.reads * step);
        }
        let is_hogged =
            self.runs.iter().any(|run| run.planned.2 == Kind::Contended && run.planned.4.contains(&index));
        let hog = if is_hogged { PROCESSORS - used } else { 0.03 * jitter };
        let seconds = step * 1e9;
        add(&mut host.of_host, Figure::CpuUserNs, (used * 0.85 + hog) * jitter.min(1.0) * seconds);
        add(&mut host.of_host, Figure::CpuSystemNs, (used * 0.15 + 0.01) * jitter.min(1.0) * seconds);
        add(&mut host.of_host, Figure::CpuIdleNs, (PROCESSORS - used - hog) * seconds);
        add(&mut host.of_host, Figure::CpuStolenNs, 0.0);
        add(&mut host.of_host, Figure::DiskWrittenBytes, 0.3e6 * jitter * step);
        add(&mut host.of_host, Figure::NetworkReceivedBytes, 2e3 * step);
        add(&mut host.of_host, Figure::NetworkSentBytes, 2e3 * step);
        // A proxy on the same host.
        add(&mut host.of_host, Figure::LoopbackReceivedBytes, (4e6 * used + 1e3) * jitter * step);
        add(&mut host.of_host, Figure::LoopbackSentBytes, (4e6 * used + 1e3) * jitter * step);
        add(&mut host.of_host, Figure::PressureCpuSomeNs, if is_hogged { 0.5 * seconds } else { 0.0 });
        add(&mut host.of_host, Figure::PressureIoSomeNs, disk_used * 0.9 * seconds);
        add(&mut host.of_host, Figure::PressureMemorySomeNs, 0.0);
        add(&mut host.of_disk, Figure::DiskBusyNs, disk_used.min(1.0) * seconds);
        add(&mut host.of_disk, Figure::DiskWrittenBytes, 0.3e6 * jitter * step);
    }

    /// Takes a sample of a host, and sends it. Few datagrams are lost; of the last host, all for a while.
    fn sample(&mut self, index: usize) {
        let since = (self.now_ns - self.began_ns) / SECOND % 400;
        let is_silent = index == 3 && (330..350).contains(&since);
        let is_lost = is_silent || (index == 3 && self.random.u8(..) < 4);
        let now_ns = self.now_ns;
        let running: Vec<&str> = self.runs.iter().map(|run| run.id.as_str()).collect();
        let host = &mut self.hosts[index];
        let rounded = |figures: &BTreeMap<Figure, f64>| {
            let mut rounded = Figures::default();
            figures.iter().for_each(|(figure, value)| rounded.set(*figure, *value as u64));
            rounded
        };
        let mut of_host = rounded(&host.of_host);
        let used = (2 << 30) + (running.len() as u64) * (700 << 20);
        of_host.set(Figure::MemoryBytes, used);
        of_host.set(Figure::MemoryAvailableBytes, MEMORY - used);
        let mut entries = vec![
            Entry { subject: Subject::Host, figures: of_host },
            Entry { subject: Subject::Disk("nvme0n1".into()), figures: rounded(&host.of_disk) },
            Entry { subject: PROCESS, figures: rounded(&host.of_process) },
        ];
        for ((query, task), figures) in &host.tasks {
            let subject = Subject::Task { query: query.clone(), stage: u32::from(*task > 0), task: *task };
            entries.push(Entry { subject, figures: rounded(figures) });
        }
        host.tasks.retain(|(query, _), _| running.contains(&query.as_str()));
        let at_ns = now_ns + host.offset_ns;
        let sample = Sample { host: host.name.clone(), run: 5, number: host.number, at_ns, entries };
        host.number += 1;
        let (bodies, _) = SealableBody::of_sample(&sample);
        let mut datagrams: Vec<Vec<u8>> = bodies
            .iter()
            .enumerate()
            .map(|(part, body)| host.sender.datagram(body, part == 0, at_ns))
            .collect();
        if is_lost {
            return;
        }
        if host.number % 30 == 3 {
            for body in SealableBody::of_description(&description(&host.name)) {
                datagrams.push(host.sender.datagram(&body, false, at_ns));
            }
        }
        let delay_ns = 30_000 + self.random.u64(0..90_000) * (1 + index as u64);
        let from = SocketAddr::from(([10, 0, 0, 11 + index as u8], 40_000));
        let mut events = Vec::new();
        for datagram in datagrams {
            let answer =
                self.collector.lock().unwrap().handle(&datagram, from, now_ns + delay_ns, &mut events);
            if let Some(answer) = answer {
                let reaction = host.sender.receive(&answer, at_ns + 2 * delay_ns).unwrap();
                assert!(matches!(reaction, Reaction::Nothing | Reaction::Accepted));
            }
        }
        events.into_iter().for_each(|event| self.recorder.observe(event, now_ns + delay_ns));
    }
}

fn description(host: &str) -> Description {
    let link = LinkSpeeds {
        received_bytes_per_second: Some(LINK),
        sent_bytes_per_second: Some(LINK),
        round_trip_seconds: Some(3e-4),
    };
    let process = ProcessName { pid: 1000, began_ns: 1, parent: 1, name: "lightship".into() };
    Description {
        host: host.to_owned(),
        interval_ns: SECOND,
        facts: HostFacts {
            processors: PROCESSORS as u32,
            memory_bytes: Some(MEMORY),
            kernel: "6.1.0 (modelled)".into(),
            processes: 1,
            ..HostFacts::default()
        },
        sources: Vec::new(),
        processes: vec![process],
        speeds: Some(Box::new(HostSpeeds { disk_access_seconds: Some(5e-3), link, ..HostSpeeds::default() })),
    }
}
