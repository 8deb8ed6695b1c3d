//! Machines that run queries, in virtual time: threads that use processors, disks, links and locks, and the counters
//! that an agent would read. What the division should find is recorded on the way.

use std::collections::BTreeMap;

use crate::*;

/// When agents begin to sample, before the query does, in seconds.
pub(super) const BEFORE: f64 = 3.0;
/// A send buffer, in bytes.
const BUFFER: f64 = 256.0 * 1024.0;
const PAGE: f64 = 8192.0;
const READ: f64 = 131_072.0;

/// What a machine can really do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) processors: f64,
    pub(super) cpu: f64,
    pub(super) hogs: f64,
    pub(super) disk: f64,
    pub(super) access: f64,
    pub(super) link: f64,
    pub(super) round_trip: f64,
    /// The rate at which the receiver reads.
    pub(super) reader: f64,
}

pub(super) const NODE: Machine = Machine {
    processors: 2.0,
    cpu: 1.0,
    hogs: 0.0,
    disk: 200e6,
    access: 5e-3,
    link: 1.25e9,
    round_trip: 100e-6,
    reader: f64::INFINITY,
};

/// A step of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// Seconds on a processor of speed 1.
    Cpu(f64),
    /// Bytes in sequence, waited for.
    Read(f64),
    /// Bytes in sequence, of which the next were asked for while these were used.
    ReadAhead(f64),
    /// Pages at random places.
    Random(f64),
    /// Bytes through the socket.
    Send(f64),
    /// A message to the client, its time, and its answer.
    Exchange(f64),
    /// Seconds until a lock is free.
    Lock(f64),
    /// Seconds for nothing.
    Sleep(f64),
}

/// A counter: when it grew by how much. Spans don't overlap.
#[derive(Clone, Default, Debug)]
struct Counter(Vec<(f64, f64, f64)>);

impl Counter {
    fn add(&mut self, from: f64, to: f64, amount: f64) {
        let before = self.0.last().map_or(0.0, |last| last.2);
        self.0.push((from, to, before + amount));
    }

    fn at(&self, t: f64) -> f64 {
        let index = self.0.partition_point(|span| span.0 <= t);
        let Some(index) = index.checked_sub(1) else { return 0.0 };
        let before = index.checked_sub(1).map_or(0.0, |before| self.0[before].2);
        let (from, to, after) = self.0[index];
        if t >= to { after } else { before + (after - before) * (t - from) / (to - from) }
    }
}

/// A thread after its run.
#[derive(Clone, Default, Debug)]
pub(super) struct Thread {
    counters: BTreeMap<(u8, Figure), Counter>,
    pub(super) end: f64,
    /// Seconds by part, as they were spent.
    pub(super) spent: BTreeMap<Part, f64>,
    /// The stage and the number of the task that it works for, and from when on samples have it.
    task: Option<(u32, u32, f64)>,
}

const PROCESS: u8 = 0;
const PEER: u8 = 1;
const TASK: u8 = 2;
const DISK: u8 = 3;
const CLIENT: u8 = 4;

impl Thread {
    fn count(&mut self, of: u8, figure: Figure, from: f64, to: f64, amount: f64) {
        self.counters.entry((of, figure)).or_default().add(from, to, amount);
    }

    /// It works for a task of a stage, which samples have from a moment on.
    pub(super) fn for_task(mut self, stage: u32, task: u32, from: f64) -> Self {
        self.task = Some((stage, task, from));
        self
    }

    fn at(&self, of: u8, figure: Figure, t: f64) -> f64 {
        self.counters.get(&(of, figure)).map_or(0.0, |counter| counter.at(t))
    }

    fn spend(&mut self, part: Part, seconds: f64) {
        *self.spent.entry(part).or_default() += seconds;
    }
}

/// Runs a thread's steps, `units` times, beside `others` threads that use processors all the time.
pub(super) fn run(machine: &Machine, ops: &[Op], units: usize, others: f64, start: f64) -> Thread {
    let mut thread = Thread::default();
    let mut t = start;
    let (mut link_free, mut disk_free) = (start, start);
    for _ in 0..units {
        for op in ops {
            let from = t;
            match *op {
                Op::Cpu(seconds) => {
                    let need = seconds / machine.cpu;
                    let runnable = 1.0 + others + machine.hogs;
                    let took = need * (runnable / machine.processors).max(1.0);
                    t += took;
                    thread.count(PROCESS, Figure::CpuUserNs, from, t, need * 0.9e9);
                    thread.count(PROCESS, Figure::CpuSystemNs, from, t, need * 0.1e9);
                    thread.count(PROCESS, Figure::RunQueueWaitNs, from, t, (took - need) * 1e9);
                    thread.spend(Part::Cpu, need);
                    thread.spend(Part::RunQueueWait, took - need);
                }
                Op::Read(bytes) => {
                    let took = bytes / machine.disk;
                    t += took;
                    disk(&mut thread, from, t, from, t, bytes, bytes / READ);
                    thread.spend(Part::DiskSequential, took);
                }
                Op::ReadAhead(bytes) => {
                    // The disk is at most one unit ahead.
                    let began = disk_free.max(from - bytes / machine.disk).max(start);
                    let ready = began + bytes / machine.disk;
                    disk_free = ready;
                    t = t.max(ready);
                    disk(&mut thread, began, ready, from, t, bytes, bytes / READ);
                    thread.spend(Part::DiskSequential, t - from);
                }
                Op::Random(pages) => {
                    let took = pages * machine.access;
                    t += took;
                    disk(&mut thread, from, t, from, t, pages * PAGE, pages);
                    thread.spend(Part::DiskRandom, took);
                }
                Op::Send(bytes) => {
                    let rate = machine.link.min(machine.reader);
                    let began = link_free.max(t);
                    let end = began + bytes / rate;
                    link_free = end;
                    t = t.max(end - BUFFER / rate);
                    let limited = if machine.reader < machine.link {
                        Figure::SocketReceiverLimitedNs
                    } else {
                        Figure::SocketSendBufferLimitedNs
                    };
                    thread.count(PEER, Figure::SocketBusyNs, began, end, (end - began) * 1e9);
                    if t > from {
                        thread.count(PEER, limited, from, t, (t - from) * 1e9);
                    }
                    thread.count(PEER, Figure::NetworkSentBytes, began, end, bytes);
                    let is_reader = machine.reader < machine.link;
                    thread.spend(if is_reader { Part::ReceiverLimited } else { Part::Network }, t - from);
                }
                Op::Exchange(client) => {
                    let used = client / machine.cpu;
                    t += machine.round_trip + used;
                    thread.count(PEER, Figure::NetworkSentBytes, from, t, 120.0);
                    thread.count(PEER, Figure::NetworkReceivedBytes, from, t, 80.0);
                    thread.count(PEER, Figure::SocketBusyNs, from, t, machine.round_trip * 1e9);
                    thread.count(TASK, Figure::ClientWaitNs, from, t, (t - from) * 1e9);
                    thread.count(PROCESS, Figure::VoluntarySwitches, from, t, 1.0);
                    thread.count(CLIENT, Figure::CpuUserNs, from, from + used, used * 1e9);
                    thread.spend(Part::RoundTrips, machine.round_trip);
                    thread.spend(Part::Cpu, used);
                }
                Op::Lock(seconds) => {
                    t += seconds;
                    thread.count(TASK, Figure::LockWaitNs, from, t, seconds * 1e9);
                    thread.spend(Part::LockWait, seconds);
                }
                Op::Sleep(seconds) => {
                    t += seconds;
                    thread.spend(Part::Unexplained, seconds);
                }
            }
        }
    }
    thread.end = t.max(link_free);
    thread.spend(Part::Network, thread.end - t);
    thread
}

fn disk(thread: &mut Thread, began: f64, ready: f64, from: f64, to: f64, bytes: f64, requests: f64) {
    thread.count(DISK, Figure::DiskBusyNs, began, ready, (ready - began) * 1e9);
    thread.count(DISK, Figure::DiskReads, began, ready, requests);
    thread.count(PROCESS, Figure::DiskReadBytes, began, ready, bytes);
    if to > from {
        thread.count(PROCESS, Figure::DiskWaitNs, from, to, (to - from) * 1e9);
    }
}

/// A host with what ran on it.
pub(super) struct Ran {
    pub(super) name: &'static str,
    pub(super) machine: Machine,
    pub(super) threads: Vec<Thread>,
    pub(super) divides: bool,
    /// Whether it is the client of the exchanges of others.
    pub(super) is_client: bool,
}

/// How agents sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampling {
    pub(super) interval: f64,
    /// Nanoseconds of a tick of processor time.
    pub(super) tick: f64,
    /// Whether waits for processors and disks are counted, as they are on Linux with all permissions.
    pub(super) waits: bool,
    /// The part of the samples that is lost; as many are doubled and reordered.
    pub(super) faults: f64,
}

pub(super) const FINE: Sampling = Sampling { interval: 0.01, tick: 1.0, waits: true, faults: 0.0 };
pub(super) const COARSE: Sampling = Sampling { interval: 1.0, tick: 1e7, waits: true, faults: 0.0 };

/// The same numbers in every run.
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

pub(super) fn process(name: &str) -> Subject {
    Subject::Process { pid: 100 + name.len() as u32, began_ns: 1 }
}

pub(super) fn peer(name: &str) -> Subject {
    let address = core::net::IpAddr::from([10, 0, 0, 9]);
    Subject::Peer { pid: 100 + name.len() as u32, began_ns: 1, address }
}

pub(super) fn task() -> Subject {
    task_of(0, 0)
}

fn task_of(stage: u32, task: u32) -> Subject {
    Subject::Task { query: "q".into(), stage, task }
}

/// Samples of a host, in the order in which they arrive.
pub(super) fn samples(ran: &Ran, all: &[Ran], sampling: Sampling, offset: u64) -> Vec<Sample> {
    let end = all.iter().flat_map(|ran| &ran.threads).map(|thread| thread.end).fold(0.0, f64::max) + 2.0;
    let mut draw = Draw(ran.name.bytes().map(u64::from).sum());
    let mut samples = Vec::new();
    let mut number = 0;
    let mut t = draw.next() * sampling.interval;
    while t < end {
        samples.push(sample(ran, all, sampling, offset, number, t));
        number += 1;
        t += sampling.interval * (0.97 + 0.06 * draw.next());
    }
    let mut arrived = Vec::new();
    for sample in samples {
        if draw.next() < sampling.faults {
            continue;
        }
        if draw.next() < sampling.faults {
            arrived.push(sample.clone());
        }
        let late = if draw.next() < sampling.faults { (draw.next() * 4.0) as usize } else { 0 };
        arrived.insert(arrived.len().saturating_sub(late), sample);
    }
    arrived
}

fn sample(ran: &Ran, all: &[Ran], sampling: Sampling, offset: u64, number: u64, t: f64) -> Sample {
    let machine = &ran.machine;
    let sum = |of, figure| ran.threads.iter().map(|thread| thread.at(of, figure, t)).sum::<f64>();
    let of_client = |figure| {
        let threads = all.iter().filter(|_| ran.is_client).flat_map(|ran| &ran.threads);
        threads.map(|thread| thread.at(CLIENT, figure, t)).sum::<f64>()
    };
    let cpu = |figure| sum(PROCESS, figure) + of_client(figure);
    let ticks = |ns: f64| ((ns / sampling.tick).floor() * sampling.tick) as u64;
    let entry = |subject, values: &[(Figure, u64)]| {
        let mut figures = Figures::default();
        values.iter().for_each(|(figure, value)| figures.set(*figure, *value));
        Entry { subject, figures }
    };
    let mut own = vec![
        (Figure::CpuUserNs, ticks(cpu(Figure::CpuUserNs))),
        (Figure::CpuSystemNs, ticks(cpu(Figure::CpuSystemNs))),
        (Figure::VoluntarySwitches, sum(PROCESS, Figure::VoluntarySwitches) as u64),
        (Figure::DiskReadBytes, sum(PROCESS, Figure::DiskReadBytes) as u64),
        (Figure::DiskWrittenBytes, 0),
    ];
    if sampling.waits {
        own.push((Figure::RunQueueWaitNs, sum(PROCESS, Figure::RunQueueWaitNs) as u64));
        own.push((Figure::DiskWaitNs, sum(PROCESS, Figure::DiskWaitNs) as u64));
    }
    let used = cpu(Figure::CpuUserNs) + cpu(Figure::CpuSystemNs);
    // Hogs use what the query leaves.
    let hogs = (machine.hogs * t * 1e9).min(machine.processors * t * 1e9 - used).max(0.0);
    let peer_figures = [
        Figure::NetworkSentBytes,
        Figure::NetworkReceivedBytes,
        Figure::SocketBusyNs,
        Figure::SocketReceiverLimitedNs,
        Figure::SocketSendBufferLimitedNs,
    ]
    .map(|figure| (figure, sum(PEER, figure) as u64));
    let tasks = [Figure::LockWaitNs, Figure::ClientWaitNs].map(|figure| (figure, sum(TASK, figure) as u64));
    let disk = [
        (Figure::DiskBusyNs, sum(DISK, Figure::DiskBusyNs) as u64),
        (Figure::DiskReads, sum(DISK, Figure::DiskReads) as u64),
        (Figure::DiskReadBytes, sum(PROCESS, Figure::DiskReadBytes) as u64),
    ];
    let host = [
        (Figure::CpuUserNs, (used + hogs) as u64),
        (Figure::CpuSystemNs, 0),
        (Figure::CpuIdleNs, (machine.processors * t * 1e9 - used - hogs).max(0.0) as u64),
        (Figure::MemoryAvailableBytes, 1 << 30),
    ];
    let mut entries = vec![
        entry(Subject::Host, &host),
        entry(Subject::Disk("sda".into()), &disk),
        entry(process(ran.name), &own),
        entry(peer(ran.name), &peer_figures),
    ];
    // A session, or the tasks that run, and those that ended since the last sample.
    if all.iter().flat_map(|ran| &ran.threads).all(|thread| thread.task.is_none()) {
        entries.push(entry(task(), &tasks));
    }
    let mut used: BTreeMap<Subject, f64> = BTreeMap::new();
    for thread in &ran.threads {
        let Some((stage, number, from)) = thread.task else { continue };
        if t >= from && t <= thread.end + sampling.interval {
            let of = |figure| thread.at(PROCESS, figure, t);
            *used.entry(task_of(stage, number)).or_default() +=
                of(Figure::CpuUserNs) + of(Figure::CpuSystemNs);
        }
    }
    entries.extend(used.into_iter().map(|(task, ns)| entry(task, &[(Figure::CpuNs, ns as u64)])));
    Sample { host: ran.name.into(), run: 7, number, at_ns: offset + (t * 1e9) as u64, entries }
}

/// A query that ran, and what is to be found.
pub(super) struct Story {
    pub(super) ran: Vec<Ran>,
    pub(super) known: Known,
    /// What was calibrated; the machines may have become slower since.
    pub(super) calibrated: Machine,
}

impl Story {
    pub(super) fn run_seconds(&self) -> f64 {
        let ends = self.ran.iter().flat_map(|ran| &ran.threads).map(|thread| thread.end);
        ends.fold(0.0, f64::max) - BEFORE
    }

    pub(super) fn span(&self) -> QuerySpan {
        let work = |ran: &Ran| {
            let numbers = ran.threads.iter().filter_map(|thread| thread.task);
            let mut tasks: Vec<Subject> = numbers.map(|(stage, number, _)| task_of(stage, number)).collect();
            if self.ran.iter().flat_map(|ran| &ran.threads).all(|thread| thread.task.is_none()) {
                tasks.push(task());
            }
            let subjects = [process(ran.name), peer(ran.name)].into_iter().chain(tasks);
            HostWork {
                host: ran.name.into(),
                workers: subjects.map(Worker::own).collect(),
                divides: ran.divides,
            }
        };
        QuerySpan {
            label: "q".into(),
            began_ns: (BEFORE * 1e9) as u64,
            ended_ns: ((BEFORE + self.run_seconds()) * 1e9) as u64,
            hosts: self.ran.iter().map(work).collect(),
            known: self.known.clone(),
        }
    }

    pub(super) fn timeline(&self, sampling: Sampling) -> Timeline {
        let mut timeline = Timeline::new(TimelineLimits::default());
        for (index, ran) in self.ran.iter().enumerate() {
            let offset = 1_000_000_000 * (index as u64 * 1000 + 5);
            let clock = ClockMap { host_ns: offset, bound_ns: 50_000, ..ClockMap::default() };
            timeline.set_clock(ran.name, clock).unwrap();
            let mut sources =
                HostSources { processors: ran.machine.processors as u32, ..HostSources::default() };
            for figure in [Figure::CpuUserNs, Figure::CpuSystemNs] {
                let source = FigureSource::Available {
                    from: "/proc/PID/stat".into(),
                    resolution: sampling.tick as u64,
                };
                sources.set(SubjectKind::Process, figure, source);
            }
            timeline.set_sources(ran.name, sources).unwrap();
            for sample in samples(ran, &self.ran, sampling, offset) {
                timeline.insert(sample).unwrap();
            }
        }
        timeline
    }

    pub(super) fn speeds(&self) -> BTreeMap<String, HostSpeeds> {
        let machine = &self.calibrated;
        let speeds = HostSpeeds {
            processors: machine.processors as u32,
            cpu_units_per_second: Some(machine.cpu),
            disk_read_bytes_per_second: Some(machine.disk),
            disk_write_bytes_per_second: Some(machine.disk),
            disk_access_seconds: Some(machine.access),
            memory_bytes_per_second: None,
            link: LinkSpeeds {
                received_bytes_per_second: Some(machine.link),
                sent_bytes_per_second: Some(machine.link),
                round_trip_seconds: Some(machine.round_trip),
            },
            ..HostSpeeds::default()
        };
        self.ran.iter().map(|ran| (ran.name.to_owned(), speeds)).collect()
    }

    pub(super) fn footprint(&self, sampling: Sampling) -> Footprint {
        Footprint::new(&self.timeline(sampling), &self.speeds(), &self.span()).unwrap()
    }
}
