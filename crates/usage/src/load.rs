//! What a query did on one host in one step of time.
//!
//! 1. Times that the system counts for threads exclude each other within a thread: processor, waiting for one, waiting
//!    for a disk, waiting for a lock. Their sum, divided by the step, is the parallelism that the step shows. Below 1,
//!    they are taken to follow each other; above, each has its part of the sum.
//! 2. Times of devices can overlap with them: a disk that was busy (where no thread's wait is counted), the link at
//!    its calibrated rate, sockets whose receiver did not read. The largest of all comes first, then the next, until
//!    the step is full: what does not fit was hidden behind something larger.
//! 3. What is left may have weaker reasons, in this order: the query's share of a busy disk that no thread waited
//!    for, a link that was busy below its rate, processors that others had taken, the hypervisor, waits of the whole
//!    host for disks and memory, acknowledgements of small messages that were waited for (`network.rs`).
//!
//! Waiting for a processor counts as a wait for others only as far as others used the processors. The threads of a
//! query that wait for each other need more processors: that is CPU time. So is the time for which the limit of its
//! control group held a thread back: to the query, a part of a processor is a slower processor.
//!
//! Threads that read ahead wait for a disk beside those that compute, and are many. So where a limit holds threads back,
//! processors and disk are compared by the part of the step for which they were in use, not by the number of waiting
//! threads (`held.rs`).

use crate::disk::disk_work;
use crate::exchange::{Exchanges, exchanges};
use crate::figure::Figure;
use crate::gather::Readings;
use crate::held::{Waits, held_back};
use crate::network::network;
use crate::part::{Basis, PARTS, Part, PerPart};
use crate::query::QuerySpan;

/// Processors count as taken if less than this part of their time is idle.
const IDLE_MAX: f64 = 0.05;
/// Parallelism that is at most this much above a whole number is rounded down: samples are not taken at exact moments.
pub(crate) const PARALLELISM_SLACK: f64 = 0.05;

/// Fractions of a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Load {
    /// What each part would take alone, 0 to 1.
    pub(crate) demand: PerPart,
    /// What it is given; the sum is at most 1.
    pub(crate) given: PerPart,
    /// Of that, what can't have been hidden behind other parts.
    pub(crate) certain: PerPart,
    /// Of what is given, the work that more nodes would not divide.
    pub(crate) fixed: PerPart,
    /// The same of the demand.
    pub(crate) fixed_demand: PerPart,
    pub(crate) basis: [Basis; PARTS],
    pub(crate) is_shared: [bool; PARTS],
    /// For how much of the step the database waited for its client.
    pub(crate) client_wait: f64,
    pub(crate) exchanges: Option<Exchanges>,
    /// Threads that were active at once, on average; `None` without processor time.
    pub(crate) parallelism: Option<f64>,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            demand: [0.0; PARTS],
            given: [0.0; PARTS],
            certain: [0.0; PARTS],
            fixed: [0.0; PARTS],
            fixed_demand: [0.0; PARTS],
            basis: [Basis::Rest; PARTS],
            is_shared: [false; PARTS],
            client_wait: 0.0,
            exchanges: None,
            parallelism: None,
        }
    }
}

impl Load {
    pub(crate) fn explained(&self) -> f64 {
        self.given.iter().sum::<f64>().min(1.0)
    }

    /// Gives a part its demand, up to the rest of the step.
    pub(crate) fn fill(&mut self, part: Part, demand: f64, basis: Basis, is_shared: bool) {
        let demand = if demand.is_nan() { 0.0 } else { demand.clamp(0.0, 1.0) };
        let given = demand.min(1.0 - self.explained());
        let index = part.index();
        if given > self.given[index] || self.given[index] == 0.0 {
            self.basis[index] = basis;
        }
        self.is_shared[index] |= is_shared && given > 0.0;
        self.demand[index] = (self.demand[index] + demand).min(1.0);
        self.given[index] += given;
    }

    /// The same, for work that another host did.
    pub(crate) fn fill_from(&mut self, other: &Self, part: Part, demand: f64) {
        let index = part.index();
        let before = self.given[index];
        self.fill(part, demand, other.basis[index], other.is_shared[index]);
        let fixed =
            if other.demand[index] > 0.0 { other.fixed_demand[index] / other.demand[index] } else { 0.0 };
        self.fixed[index] += (self.given[index] - before) * fixed;
    }
}

/// A part that can overlap with others.
struct Item {
    part: Part,
    demand: f64,
    /// How much of it is certain if nothing hides it; `None` for a device, whose whole time is.
    of_threads: Option<f64>,
    basis: Basis,
    is_shared: bool,
}

/// The load of a host in a step, without round trips and the wait for the client, which depend on other hosts.
pub(crate) fn load(readings: &Readings, span: &QuerySpan, from: u64, to: u64) -> Load {
    let length_ns = (to.saturating_sub(from)).max(1) as f64;
    let own = |figure| readings.own(figure, from, to).map(|amount| amount / length_ns);
    let is_shared = |figure| readings.own.get(&figure).is_some_and(|reading| reading.is_shared);
    let cpu = readings.own_cpu(from, to).map(|amount| amount / length_ns);
    let waited = own(Figure::RunQueueWaitNs);
    let all_cpu = readings.all_cpu_ns(from, to).map(|all| all / length_ns);
    let quota = own(Figure::QuotaWaitNs).unwrap_or(0.0).min(waited.unwrap_or(0.0));
    let (cpu_self, waited_others) = split_wait(cpu.unwrap_or(0.0), waited.unwrap_or(0.0) - quota, all_cpu);
    let cpu_self = cpu_self + quota;
    let lock = own(Figure::LockWaitNs).unwrap_or(0.0);
    let disk_wait = own(Figure::DiskWaitNs).filter(|_| readings.counts_disk_wait);
    let threads = cpu_self + waited_others + lock + disk_wait.unwrap_or(0.0);
    let scale = threads.max(1.0);
    let held = held_back(readings, span, (from, to), Waits { cpu, waited, quota, cpu_self, disk_wait });
    let (cpu_self, disk_wait) = match &held {
        Some(held) => (held.cpu_time, Some(held.disk_time)),
        None => (cpu_self, disk_wait),
    };
    let at_least =
        (threads - PARALLELISM_SLACK).ceil().max(1.0).max(span.known.parallelism.map_or(1.0, f64::from));
    let mut items = Vec::with_capacity(PARTS);
    let mut add_threads = |part, time: f64, is_shared| {
        let of_threads = Some(time / at_least);
        items.push(Item { part, demand: time / scale, of_threads, basis: Basis::Counted, is_shared });
    };
    add_threads(Part::Cpu, cpu_self, readings.cpu_is_shared());
    add_threads(Part::RunQueueWait, waited_others, is_shared(Figure::RunQueueWaitNs));
    add_threads(Part::LockWait, lock, is_shared(Figure::LockWaitNs));
    let disk = disk_work(readings, from, to);
    // Bytes are counted when they are asked for, and the wait for them may be longer than this step.
    let of_bytes = disk.filter(|disk| disk.bytes > 0.0);
    let of_bytes = of_bytes.or_else(|| disk_work(readings, span.began_ns, span.ended_ns)).or(disk);
    let sequential_part = of_bytes.map_or(1.0, |disk| disk.sequential_part);
    if let Some(wait) = disk_wait {
        add_threads(Part::DiskSequential, wait * sequential_part, is_shared(Figure::DiskWaitNs));
        add_threads(Part::DiskRandom, wait * (1.0 - sequential_part), is_shared(Figure::DiskWaitNs));
    } else {
        let formula = disk.and_then(|disk| Some(disk.sequential_seconds? + disk.random_seconds?));
        let busy = readings.own_disk_busy_ns(from, to).map(|busy| (busy / length_ns, Basis::DeviceBusy));
        let time = busy.or(formula.map(|seconds| (seconds * 1e9 / length_ns, Basis::Formula)));
        if let Some((time, basis)) = time {
            let is_shared = is_shared(Figure::DiskReadBytes);
            let mut add = |part, demand| {
                items.push(Item { part, demand, of_threads: None, basis, is_shared });
            };
            add(Part::DiskSequential, time.min(1.0) * sequential_part);
            add(Part::DiskRandom, time.min(1.0) * (1.0 - sequential_part));
        }
    }
    let network = network(readings, span, from, to);
    items.extend(network.times.into_iter().map(|(part, demand, basis, is_shared)| Item {
        part,
        demand: demand.min(1.0),
        of_threads: None,
        basis,
        is_shared,
    }));
    let mut load = overlay(items);
    if disk_wait.is_some() {
        // What a disk did ahead of its threads was hidden, and would be seen if they were faster.
        let seconds = disk.and_then(|disk| Some(disk.sequential_seconds? + disk.random_seconds?));
        let busy = readings.own_disk_busy_ns(from, to).or(seconds.map(|seconds| seconds * 1e9));
        let busy = (busy.unwrap_or(0.0) / length_ns).min(1.0);
        for (part, share) in
            [(Part::DiskSequential, sequential_part), (Part::DiskRandom, 1.0 - sequential_part)]
        {
            // Where nothing else was, the query may have waited for accesses that no thread waited in, as with
            // asynchronous reads.
            let beyond = busy * share - load.demand[part.index()];
            load.fill(part, beyond, Basis::DeviceBusy, false);
        }
    }
    if let Some(held) = held {
        let alone = [
            (Part::Cpu, held.cpu_alone),
            (Part::DiskSequential, held.disk_alone * sequential_part),
            (Part::DiskRandom, held.disk_alone * (1.0 - sequential_part)),
        ];
        for (part, alone) in alone {
            let demand = &mut load.demand[part.index()];
            *demand = demand.max(alone);
        }
    }
    load.parallelism = cpu.map(|_| threads);
    load.client_wait = own(Figure::ClientWaitNs).unwrap_or(0.0).min(1.0);
    load.exchanges = exchanges(readings, &span.known, span.run_ns(), from, to);
    let has_disk = disk_wait.is_some() || load.demand[Part::DiskSequential.index()] > 0.0;
    let seen = Seen {
        busy: network.busy,
        cpu,
        all_cpu,
        counts_cpu_wait: waited.is_some(),
        counts_disk_wait: disk_wait.is_some(),
        has_disk,
        sequential_part,
    };
    load.fill(Part::QueueWait, span.queued(from, to), Basis::Counted, false);
    load.certain[Part::QueueWait.index()] = load.given[Part::QueueWait.index()];
    fill_weaker(readings, (from, to), &seen, &mut load);
    for part in Part::ALL {
        let fixed = if readings.divides { readings.fixed.of(part, from, to) } else { 1.0 };
        load.fixed[part.index()] = load.given[part.index()] * fixed;
        load.fixed_demand[part.index()] = load.demand[part.index()] * fixed;
    }
    load
}

/// Divides the wait for processors: the part in which the query's own threads had them is CPU time. All are processors.
fn split_wait(cpu: f64, waited: f64, all_cpu: Option<f64>) -> (f64, f64) {
    let runnable = cpu + waited;
    let Some(all_cpu) = all_cpu.filter(|_| runnable > 1.0) else { return (cpu, waited) };
    let own = cpu * (1.0 - 1.0 / runnable);
    let others = (all_cpu - cpu).max(0.0);
    let part = if own + others > 0.0 { others / (own + others) } else { 1.0 };
    (cpu + waited * (1.0 - part), waited * part)
}

/// Gives each item its place in the step, the largest first.
fn overlay(mut items: Vec<Item>) -> Load {
    items.retain(|item| item.demand.is_finite() && item.demand > 0.0);
    items.sort_by(|a, b| b.demand.total_cmp(&a.demand).then(a.part.cmp(&b.part)));
    let mut load = Load::default();
    let all: f64 = items.iter().map(|item| item.demand).sum();
    let devices: f64 = items.iter().filter(|item| item.of_threads.is_none()).map(|item| item.demand).sum();
    for (order, item) in items.into_iter().enumerate() {
        load.fill(item.part, item.demand, item.basis, item.is_shared);
        let index = item.part.index();
        let certain = match item.of_threads {
            Some(certain) if order == 0 => certain,
            Some(certain) => certain - devices,
            None if order == 0 => item.demand,
            None => 2.0 * item.demand - all,
        };
        load.certain[index] = certain.clamp(0.0, load.given[index]);
    }
    load
}

/// What was observed in a step, as fractions of it.
struct Seen {
    /// For how much of it sockets had data to send, their limits taken off, and the likeliest reason.
    busy: Option<(Part, f64)>,
    /// Processors that the query used, and all on the host.
    cpu: Option<f64>,
    all_cpu: Option<f64>,
    counts_cpu_wait: bool,
    counts_disk_wait: bool,
    /// Whether any time of disks is known.
    has_disk: bool,
    sequential_part: f64,
}

/// Fills the rest of the step with weaker reasons.
fn fill_weaker(readings: &Readings, (from, to): (u64, u64), seen: &Seen, load: &mut Load) {
    let &Seen { busy, cpu, all_cpu, sequential_part, .. } = seen;
    let length_ns = (to.saturating_sub(from)).max(1) as f64;
    let around = |figure| readings.around(figure, from, to).map(|amount| amount / length_ns);
    // Where messages go back and forth, the time of exchanges is known better.
    let busy = busy.filter(|_| load.exchanges.is_none());
    let beyond = |load: &Load, busy: f64| busy - load.demand[Part::Network.index()];
    let sockets_shared = readings.own.get(&Figure::SocketBusyNs).is_some_and(|reading| reading.is_shared);
    if let Some((part @ (Part::Network | Part::ReceiverLimited), busy)) = busy {
        let basis = if part == Part::Network { Basis::Counted } else { Basis::Inferred };
        load.fill(part, beyond(load, busy), basis, sockets_shared);
    }
    if readings.own_sum([Figure::NetworkReceivedBytes, Figure::NetworkSentBytes], from, to).is_none() {
        let rates = &readings.speeds.link;
        let received = around(Figure::NetworkReceivedBytes).zip(rates.received_bytes_per_second);
        let sent = around(Figure::NetworkSentBytes).zip(rates.sent_bytes_per_second);
        let busy = received.into_iter().chain(sent).map(|(bytes, rate)| bytes * 1e9 / rate);
        load.fill(Part::Network, busy.fold(0.0, f64::max), Basis::Inferred, true);
    }
    let others = all_cpu.zip(cpu).map(|(all, own)| (all - own).max(0.0));
    if !seen.counts_cpu_wait
        && let (Some(idle), Some(processors)) = (around(Figure::CpuIdleNs), readings.processors)
        && idle < IDLE_MAX * processors
    {
        load.fill(Part::RunQueueWait, others.unwrap_or(0.0) / processors, Basis::Inferred, true);
    }
    if let (Some(stolen), Some(processors)) = (around(Figure::CpuStolenNs), readings.processors) {
        // The hypervisor takes from those that run: the query's part is its part of the processors' use.
        let running = all_cpu.unwrap_or(processors).max(cpu.unwrap_or(0.0)).max(1e-9);
        let part = cpu.unwrap_or(0.0).min(1.0) / running.min(processors);
        load.fill(Part::Stolen, stolen * part.min(1.0), Basis::Inferred, true);
    }
    if !seen.has_disk
        && readings.own_sum([Figure::DiskReadBytes, Figure::DiskWrittenBytes], from, to).is_none()
    {
        let busy = readings.disk_busy_ns(from, to).unwrap_or(0.0) / length_ns;
        load.fill(Part::DiskSequential, busy, Basis::Inferred, true);
    }
    if !seen.counts_disk_wait
        && readings.uses_disk
        && let Some(pressure) = around(Figure::PressureIoSomeNs)
    {
        let found = load.given[Part::DiskSequential.index()] + load.given[Part::DiskRandom.index()];
        let beyond = (pressure - found).max(0.0);
        load.fill(Part::DiskSequential, beyond * sequential_part, Basis::HostPressure, true);
        load.fill(Part::DiskRandom, beyond * (1.0 - sequential_part), Basis::HostPressure, true);
    }
    if let Some(pressure) = around(Figure::PressureMemorySomeNs) {
        load.fill(Part::MemoryPressure, pressure, Basis::HostPressure, true);
    }
    if let Some((part @ Part::RoundTrips, busy)) = busy {
        load.fill(part, beyond(load, busy), Basis::Inferred, sockets_shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(part: Part, demand: f64, of_threads: Option<f64>) -> Item {
        Item { part, demand, of_threads, basis: Basis::Counted, is_shared: false }
    }

    #[test]
    fn what_does_not_fit_is_hidden_behind_the_largest() {
        let load = overlay(vec![item(Part::Cpu, 0.6, Some(0.6)), item(Part::Network, 0.9, None)]);
        assert_eq!(load.given[Part::Network.index()], 0.9);
        assert!((load.given[Part::Cpu.index()] - 0.1).abs() < 1e-12);
        assert_eq!(load.demand[Part::Cpu.index()], 0.6);
        assert_eq!(load.certain[Part::Cpu.index()], 0.0);
        assert_eq!(load.certain[Part::Network.index()], 0.9);
    }

    #[test]
    fn threads_of_a_query_that_wait_for_each_other_need_processors() {
        // 4 threads on 2 processors, alone.
        assert_eq!(split_wait(2.0, 2.0, Some(2.0)), (4.0, 0.0));
        // One thread beside a hog on one processor.
        assert_eq!(split_wait(0.5, 0.5, Some(1.0)), (0.5, 0.5));
        // Without knowledge of the others, it is a wait.
        assert_eq!(split_wait(2.0, 2.0, None), (2.0, 2.0));
    }
}
