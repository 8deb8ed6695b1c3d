//! What a query's workers on one host counted, one reading for each figure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::amount::Amount;
use crate::curve::Curve;
use crate::figure::Figure;
use crate::fixed::FixedWork;
use crate::query::{HostWork, Share, Worker};
use crate::sample::Subject;
use crate::source::SubjectKind;
use crate::speeds::HostSpeeds;
use crate::timeline::Timeline;

/// If the query's disk was busy, or tasks of the host waited for disks, for at least this fraction of the run, a wait
/// of exactly 0 is taken as "not counted": kernels report 0 when delay accounting is off.
const UNCOUNTED_DISK_WAIT: f64 = 0.05;

/// Figures whose sum is the processor time.
pub(crate) const CPU_TIMES: [Figure; 3] = [Figure::CpuNs, Figure::CpuUserNs, Figure::CpuSystemNs];

/// A figure of a query on a host: the sum over the subjects that have it.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    /// The curves, each with the number of queries among which it is divided, if it is shared.
    curves: Vec<(Curve, Option<usize>)>,
    pub(crate) kind: SubjectKind,
    pub(crate) is_shared: bool,
    /// The moments between which `steps` has the growth.
    moments: Arc<[u64]>,
    steps: Vec<Option<f64>>,
}

impl Reading {
    fn new(curve: Curve, users: Option<usize>, kind: SubjectKind, is_shared: bool) -> Self {
        let (moments, steps) = (Arc::default(), Vec::new());
        Self { curves: vec![(curve, users)], kind, is_shared, moments, steps }
    }

    /// Computes what the figure grew by from each of the moments to the next. The moments are in order.
    fn divide_at(&mut self, moments: &Arc<[u64]>) {
        let mut sums: Vec<Option<Amount>> = vec![None; moments.len().saturating_sub(1)];
        for (curve, users) in &self.curves {
            for (sum, grown) in sums.iter_mut().zip(curve.growth(moments)) {
                let Some(grown) = grown else { continue };
                let amount = Amount::exact(grown);
                let amount = users.map_or(amount, |users| amount.shared(users));
                *sum = Some(sum.map_or(amount, |sum| sum.plus(amount)));
            }
        }
        self.steps = sums.into_iter().map(|sum| sum.map(|sum| sum.value)).collect();
        self.moments = moments.clone();
    }

    /// The value of [`Reading::between`].
    fn value(&self, from: u64, to: u64) -> Option<f64> {
        let step = self.moments.partition_point(|moment| *moment < from);
        let moment = |index: usize| self.moments.get(index).copied();
        if moment(step) == Some(from)
            && moment(step + 1) == Some(to)
            && let Some(value) = self.steps.get(step)
        {
            return *value;
        }
        self.between(from, to).map(|amount| amount.value)
    }

    pub(crate) fn between(&self, from: u64, to: u64) -> Option<Amount> {
        let mut sum: Option<Amount> = None;
        for (curve, users) in &self.curves {
            let Some(amount) = curve.between(from, to) else { continue };
            let amount = users.map_or(amount, |users| amount.shared(users));
            sum = Some(sum.map_or(amount, |sum| sum.plus(amount)));
        }
        sum
    }

    /// The time for which at least one of the subjects was seen, at least.
    pub(crate) fn covered_ns(&self, from: u64, to: u64) -> u64 {
        self.curves.iter().map(|(curve, _)| curve.covered_ns(from, to)).max().unwrap_or(0)
    }
}

/// All readings of a query on one host, and of the host around it.
#[derive(Debug, Clone)]
pub(crate) struct Readings {
    pub(crate) host: String,
    pub(crate) divides: bool,
    /// What more nodes would not divide, of the work of a host that they would.
    pub(crate) fixed: FixedWork,
    pub(crate) speeds: HostSpeeds,
    /// Processors, at least 1.
    pub(crate) processors: Option<f64>,
    /// The query's own, or its share.
    pub(crate) own: BTreeMap<Figure, Reading>,
    /// The whole host's.
    pub(crate) around: BTreeMap<Figure, Reading>,
    /// Each disk's.
    pub(crate) disks: Vec<BTreeMap<Figure, Reading>>,
    /// Workers of which there is no sample in the span.
    pub(crate) missing: Vec<Subject>,
    /// Whether the wait for disks is counted.
    pub(crate) counts_disk_wait: bool,
    /// Whether the query read or wrote bytes of disks, or may have, because they were not counted.
    pub(crate) uses_disk: bool,
    /// The time in which threads waited for disks, in nanoseconds: of each step, as much as they waited, but no more than
    /// it is long. 0 until the run is divided.
    pub(crate) disk_in_use_ns: f64,
}

/// The order in which the workers' figures are looked for; the first group that has the figure is used.
fn rank(figure: Figure, worker: &Worker) -> u8 {
    let kind = SubjectKind::of(&worker.subject);
    let is_device = match kind {
        SubjectKind::Disk => is_of_disk(figure),
        SubjectKind::Peer | SubjectKind::Interface => is_of_socket(figure),
        _ => false,
    };
    let order = match kind {
        SubjectKind::Peer | SubjectKind::Disk if is_device => 0,
        SubjectKind::Process => 1,
        SubjectKind::Task => 2,
        SubjectKind::Interface if is_device => 3,
        SubjectKind::Host => 4,
        _ => 5,
    };
    order + if worker.share == Share::Own { 0 } else { 8 }
}

fn is_of_disk(figure: Figure) -> bool {
    (Figure::DiskReadBytes..=Figure::DiskBusyNs).contains(&figure)
}

fn is_of_socket(figure: Figure) -> bool {
    (Figure::NetworkReceivedBytes..=Figure::SocketRetransmits).contains(&figure)
        || matches!(figure, Figure::SocketSegmentsReceived | Figure::SocketSegmentsSent)
}

impl Readings {
    pub(crate) fn new(timeline: &Timeline, work: &HostWork, speeds: HostSpeeds, span: (u64, u64)) -> Self {
        let host = work.host.as_str();
        // A subject that is listed twice works once.
        let bound_ns = timeline.clock_bound_ns(host, span);
        let mut seen = BTreeSet::new();
        let workers: Vec<&Worker> =
            work.workers.iter().filter(|worker| seen.insert(&worker.subject)).collect();
        let mut has_samples = vec![false; workers.len()];
        let (mut own, mut ranks) = (BTreeMap::new(), BTreeMap::new());
        for figure in Figure::ALL {
            let mut best: Option<(u8, Reading)> = None;
            for (index, worker) in workers.iter().enumerate() {
                let rank = rank(figure, worker);
                let is_own = worker.share == Share::Own;
                let curve = timeline.curve(host, &worker.subject, figure, (span, bound_ns), is_own);
                let Some(curve) = curve else {
                    continue;
                };
                if curve.covered_ns(span.0, span.1) == 0 {
                    continue;
                }
                has_samples[index] = true;
                let users = match &worker.share {
                    Share::Own => None,
                    Share::Shared { with } => Some(with.len() + 1),
                };
                match &mut best {
                    Some((found, reading)) if *found == rank => reading.curves.push((curve, users)),
                    Some((found, _)) if *found < rank => {}
                    _ => {
                        let kind = SubjectKind::of(&worker.subject);
                        let is_shared = users.is_some();
                        best = Some((rank, Reading::new(curve, users, kind, is_shared)));
                    }
                }
            }
            if let Some((rank, reading)) = best {
                own.insert(figure, reading);
                ranks.insert(figure, rank);
            }
        }
        // Processor time is counted as a whole or in two parts, by different subjects: it is taken from one of them.
        let parts = [Figure::CpuUserNs, Figure::CpuSystemNs];
        let whole_rank = ranks.get(&Figure::CpuNs).copied().unwrap_or(u8::MAX);
        if parts.iter().filter_map(|part| ranks.get(part)).any(|rank| *rank < whole_rank) {
            own.remove(&Figure::CpuNs);
        } else {
            parts.iter().for_each(|part| drop(own.remove(part)));
        }
        let missing = workers.iter().zip(&has_samples).filter(|(_, has)| !**has);
        let missing = missing.map(|(worker, _)| worker.subject.clone()).collect();
        let all_of = |subject: &Subject| -> BTreeMap<Figure, Reading> {
            let curve = |figure| {
                let curve = timeline.curve(host, subject, figure, (span, bound_ns), false)?;
                Some((figure, Reading::new(curve, None, SubjectKind::of(subject), true)))
            };
            Figure::ALL.into_iter().filter_map(curve).collect()
        };
        let disks = timeline.disks(host).map(all_of).collect();
        let processors = timeline.processors(host).unwrap_or(speeds.processors);
        let mut readings = Self {
            host: work.host.clone(),
            divides: work.divides,
            fixed: FixedWork::default(),
            speeds,
            processors: (processors > 0).then(|| f64::from(processors)),
            own,
            around: all_of(&Subject::Host),
            disks,
            missing,
            counts_disk_wait: true,
            uses_disk: true,
            disk_in_use_ns: 0.0,
        };
        let (from, to) = span;
        let wait = readings.own(Figure::DiskWaitNs, from, to);
        let busy = readings.own_disk_busy_ns(from, to).unwrap_or(0.0);
        let pressure = readings.around(Figure::PressureIoSomeNs, from, to).unwrap_or(0.0);
        let bytes = readings.own_sum([Figure::DiskReadBytes, Figure::DiskWrittenBytes], from, to);
        readings.uses_disk = bytes.is_none_or(|bytes| bytes > 0.0);
        // Of the waits of the whole host, others have their share.
        let time = match bytes {
            Some(bytes) if readings.uses_disk => {
                let all = [Figure::DiskReadBytes, Figure::DiskWrittenBytes];
                let all: f64 = all.into_iter().filter_map(|figure| readings.of_disks(figure, from, to)).sum();
                busy.max(pressure * if all > 0.0 { (bytes / all).min(1.0) } else { 1.0 })
            }
            _ => busy,
        };
        let is_dead = wait == Some(0.0) && time >= UNCOUNTED_DISK_WAIT * (to - from) as f64;
        readings.counts_disk_wait = wait.is_some() && !is_dead;
        readings
    }

    /// Computes all figures from each of the moments to the next at once. The division asks for each of them often.
    pub(crate) fn divide_at(&mut self, moments: &Arc<[u64]>) {
        let disks = self.disks.iter_mut().flat_map(BTreeMap::values_mut);
        let all = self.own.values_mut().chain(self.around.values_mut()).chain(disks);
        all.for_each(|reading| reading.divide_at(moments));
        let in_use = moments.windows(2).map(|step| {
            let waited = self.own(Figure::DiskWaitNs, step[0], step[1]).unwrap_or(0.0);
            waited.min(step[1].saturating_sub(step[0]) as f64)
        });
        self.disk_in_use_ns = in_use.sum();
    }

    /// A figure of the query in a span.
    pub(crate) fn own(&self, figure: Figure, from: u64, to: u64) -> Option<f64> {
        self.own.get(&figure)?.value(from, to)
    }

    /// The same, with its bounds.
    pub(crate) fn own_amount(&self, figure: Figure, from: u64, to: u64) -> Option<Amount> {
        self.own.get(&figure)?.between(from, to)
    }

    /// A figure of the whole host.
    pub(crate) fn around(&self, figure: Figure, from: u64, to: u64) -> Option<f64> {
        self.around.get(&figure)?.value(from, to)
    }

    /// The same, with its bounds.
    pub(crate) fn around_amount(&self, figure: Figure, from: u64, to: u64) -> Option<Amount> {
        self.around.get(&figure)?.between(from, to)
    }

    /// The sum of figures, of which at least one is there.
    pub(crate) fn own_sum<const N: usize>(&self, figures: [Figure; N], from: u64, to: u64) -> Option<f64> {
        figures.into_iter().filter_map(|figure| self.own(figure, from, to)).reduce(|sum, more| sum + more)
    }

    /// The same, with its bounds.
    pub(crate) fn own_sum_amount<const N: usize>(
        &self,
        figures: [Figure; N],
        from: u64,
        to: u64,
    ) -> Option<Amount> {
        figures.into_iter().filter_map(|figure| self.own_amount(figure, from, to)).reduce(Amount::plus)
    }

    pub(crate) fn own_cpu(&self, from: u64, to: u64) -> Option<f64> {
        self.own_sum(CPU_TIMES, from, to)
    }

    /// Whether the processor time is of subjects that work for others, too.
    pub(crate) fn cpu_is_shared(&self) -> bool {
        CPU_TIMES.iter().any(|figure| self.own.get(figure).is_some_and(|reading| reading.is_shared))
    }

    /// Processor time of all on the host, in nanoseconds.
    pub(crate) fn all_cpu_ns(&self, from: u64, to: u64) -> Option<f64> {
        let user = self.around(Figure::CpuUserNs, from, to)?;
        let system = self.around(Figure::CpuSystemNs, from, to)?;
        Some(user + system)
    }

    /// How long the query's bytes kept the busiest disk busy, in nanoseconds: its share by bytes.
    pub(crate) fn own_disk_busy_ns(&self, from: u64, to: u64) -> Option<f64> {
        const BYTES: [Figure; 2] = [Figure::DiskReadBytes, Figure::DiskWrittenBytes];
        let own_bytes = self.own_sum(BYTES, from, to)?;
        // The query has the disks to itself.
        if self.own.get(&Figure::DiskBusyNs).is_some_and(|busy| !busy.is_shared) {
            return self.own(Figure::DiskBusyNs, from, to);
        }
        let mut busiest: Option<f64> = None;
        for disk in &self.disks {
            let Some(busy) = disk.get(&Figure::DiskBusyNs).and_then(|busy| busy.value(from, to)) else {
                continue;
            };
            let bytes = BYTES.map(|figure| disk.get(&figure).and_then(|bytes| bytes.value(from, to)));
            let bytes: f64 = bytes.into_iter().flatten().sum();
            let share = if bytes > 0.0 { (own_bytes / bytes).min(1.0) } else { 0.0 };
            busiest = Some(busiest.unwrap_or(0.0).max(busy * share));
        }
        busiest
    }

    /// How long the busiest disk of the host was busy, for this query and for others, in nanoseconds.
    pub(crate) fn disk_busy_ns(&self, from: u64, to: u64) -> Option<f64> {
        let busy = |disk: &BTreeMap<Figure, Reading>| disk.get(&Figure::DiskBusyNs)?.value(from, to);
        self.disks.iter().filter_map(busy).max_by(f64::total_cmp)
    }

    /// A figure of the host's disks: the host's sum, or that of the disk with the most bytes, so that a volume and
    /// the disk below it are not counted twice.
    pub(crate) fn of_disks(&self, figure: Figure, from: u64, to: u64) -> Option<f64> {
        if let Some(amount) = self.around(figure, from, to) {
            return Some(amount);
        }
        let of = |disk: &BTreeMap<Figure, Reading>| disk.get(&figure)?.value(from, to);
        self.disks.iter().filter_map(of).max_by(f64::total_cmp)
    }
}
