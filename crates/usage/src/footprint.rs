//! The footprint of a query: what it used on each host, the source's times, and the division of its run time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::amount::Amount;
use crate::disk::{AccessOrder, disk_work};
use crate::divide::divide;
use crate::error::Result;
use crate::figure::Figure;
use crate::gather::{CPU_TIMES, Readings};
use crate::load::load;
use crate::part::Division;
use crate::query::{Known, QuerySpan};
use crate::sample::Subject;
use crate::source::{FigureSource, SubjectKind};
use crate::speeds::{HostSpeeds, LinkSpeeds};
use crate::timeline::Timeline;

/// A figure of a query on a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChargedFigure {
    /// How much.
    pub amount: Amount,
    /// What it was counted of.
    pub kind: SubjectKind,
    /// Whether it is a share of something that others used, too.
    pub is_shared: bool,
    /// Where it comes from, if the agent reported that.
    pub source: Option<FigureSource>,
}

/// Times of a query on a host by the formulas of the source, in nanoseconds. `None` where a figure or a calibrated
/// speed is missing.
///
/// The source counts instructions; processor time takes their place. It adds up both directions of the network; links
/// are full duplex today, so [`ModelTimes::network_duplex_ns`] is what the division uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelTimes {
    /// Processor time over the parallelism of the run.
    pub cpu_ns: Option<f64>,
    /// Sequential bytes at the disk's sequential rates.
    pub disk_sequential_ns: Option<f64>,
    /// Random accesses at the time of one.
    pub disk_random_ns: Option<f64>,
    /// Bytes received and sent, over the sum of both rates.
    pub network_ns: Option<f64>,
    /// The direction of the link with more to do, at its rate.
    pub network_duplex_ns: Option<f64>,
}

impl ModelTimes {
    /// Sequential and random disk accesses together.
    pub fn disk_ns(&self) -> Option<f64> {
        Some(self.disk_sequential_ns? + self.disk_random_ns?)
    }

    /// The maximum of both, of each kind. The disk's times are kept together, as a host has both.
    fn max(self, other: Self) -> Self {
        let larger = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        let of_disk = if other.disk_ns() > self.disk_ns() { other } else { self };
        Self {
            cpu_ns: larger(self.cpu_ns, other.cpu_ns),
            disk_sequential_ns: of_disk.disk_sequential_ns,
            disk_random_ns: of_disk.disk_random_ns,
            network_ns: larger(self.network_ns, other.network_ns),
            network_duplex_ns: larger(self.network_duplex_ns, other.network_duplex_ns),
        }
    }
}

/// What a query used on one host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostFootprint {
    /// The host.
    pub host: String,
    /// Whether more nodes would divide its work.
    pub divides: bool,
    /// Processors, if they are known.
    pub processors: Option<u32>,
    /// What was measured for the query. A figure that is unavailable is missing.
    pub figures: BTreeMap<Figure, ChargedFigure>,
    /// What was measured of the whole host at the same time.
    pub host_figures: BTreeMap<Figure, Amount>,
    /// Why figures are unavailable, where the agent gave a reason.
    pub unavailable: BTreeMap<Figure, String>,
    /// The measured speeds of its link; nothing if it was not measured.
    #[serde(default)]
    pub link: LinkSpeeds,
    /// Times by the formulas of the source.
    pub model: ModelTimes,
    /// How sequential and random disk accesses were distinguished; `None` if the query's bytes are not known.
    pub access_order: Option<AccessOrder>,
    /// How long the busiest disk of the host was busy, in nanoseconds.
    pub disk_busy_ns: Option<f64>,
    /// The average number of threads that were active at the same time, while at least one was.
    pub parallelism: Option<f64>,
    /// Seconds of the run for which this host limited the query.
    pub limit_seconds: f64,
    /// Subjects without samples in the run.
    pub missing: Vec<Subject>,
    /// For how much of the run the query's figures were sampled, in nanoseconds.
    pub covered_ns: u64,
    /// Samples of the host within the run.
    pub samples: u64,
    /// Samples that are missing within the run.
    pub lost: u64,
}

impl HostFootprint {
    /// A figure of the query in its unit; `None` if it is unavailable.
    pub fn value(&self, figure: Figure) -> Option<f64> {
        self.figures.get(&figure).map(|charged| charged.amount.value)
    }

    /// Processor time of the query, in nanoseconds.
    pub fn cpu_ns(&self) -> Option<f64> {
        CPU_TIMES.into_iter().filter_map(|figure| self.value(figure)).reduce(|sum, more| sum + more)
    }

    /// Processor time of all on the host, in nanoseconds.
    pub fn host_cpu_ns(&self) -> Option<f64> {
        let value = |figure| self.host_figures.get(&figure).map(|amount| amount.value);
        value(Figure::CpuUserNs).zip(value(Figure::CpuSystemNs)).map(|(user, system)| user + system)
    }
}

/// What a query used, and where its time went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Footprint {
    /// The query's name.
    pub label: String,
    /// Its run time in nanoseconds.
    pub run_ns: u64,
    /// What was known of it.
    pub known: Known,
    /// The hosts, in the query's order.
    pub hosts: Vec<HostFootprint>,
    /// The times of the source: for each kind, those of the host with the maximum.
    pub model: ModelTimes,
    /// The number of the host that limited the query longest; `None` if none worked for it.
    pub bottleneck: Option<usize>,
    /// The division of the run time.
    pub division: Division,
}

impl Footprint {
    /// The footprint of a query, from the samples of its time and the calibrated speeds of its hosts. A host without
    /// speeds has no times by formula.
    ///
    /// # Errors
    /// If the query took no time, has too many hosts, or a speed is out of range. Missing samples are no error: the
    /// time is then unexplained, and [`HostFootprint::missing`] says why.
    pub fn new(timeline: &Timeline, speeds: &BTreeMap<String, HostSpeeds>, span: &QuerySpan) -> Result<Self> {
        span.check()?;
        let mut readings = Vec::with_capacity(span.hosts.len());
        for work in &span.hosts {
            let speeds = speeds.get(&work.host).copied().unwrap_or_default();
            speeds.check()?;
            readings.push(Readings::new(timeline, work, speeds, span.span()));
        }
        let divided = divide(timeline, span, &mut readings);
        let hosts: Vec<HostFootprint> = readings
            .iter()
            .zip(&divided.limit_seconds)
            .map(|(readings, seconds)| host_footprint(timeline, span, readings, *seconds))
            .collect();
        let model = hosts.iter().map(|host| host.model).fold(ModelTimes::default(), ModelTimes::max);
        Ok(Self {
            label: span.label.clone(),
            run_ns: span.run_ns(),
            known: span.known.clone(),
            hosts,
            model,
            bottleneck: divided.bottleneck,
            division: divided.division,
        })
    }

    /// The host that limited the query longest.
    pub fn bottleneck_host(&self) -> Option<&HostFootprint> {
        self.hosts.get(self.bottleneck?)
    }
}

fn host_footprint(
    timeline: &Timeline,
    span: &QuerySpan,
    readings: &Readings,
    limit_seconds: f64,
) -> HostFootprint {
    let (from, to) = span.span();
    let host = readings.host.as_str();
    let mut figures = BTreeMap::new();
    let mut unavailable = BTreeMap::new();
    for figure in Figure::ALL {
        let reading = readings.own.get(&figure);
        if let Some((reading, amount)) = reading.and_then(|own| Some((own, own.between(from, to)?))) {
            let source = timeline.source(host, reading.kind, figure).cloned();
            let (kind, is_shared) = (reading.kind, reading.is_shared);
            figures.insert(figure, ChargedFigure { amount, kind, is_shared, source });
            continue;
        }
        let kinds = [SubjectKind::Process, SubjectKind::Peer, SubjectKind::Task, SubjectKind::Host];
        let reason = kinds.into_iter().find_map(|kind| match timeline.source(host, kind, figure) {
            Some(FigureSource::Unavailable { reason }) => Some(reason.clone().into_owned()),
            _ => None,
        });
        if let Some(reason) = reason {
            unavailable.insert(figure, reason);
        }
    }
    gauges(timeline, span, readings, &mut figures);
    let around = readings.around.iter();
    let host_figures = around.filter_map(|(figure, reading)| Some((*figure, reading.between(from, to)?)));
    let whole = load(readings, span, from, to);
    let covered = readings.own.values().map(|reading| reading.covered_ns(from, to));
    let (lost, samples) = timeline.lost(host, span.span());
    let parallelism = whole.parallelism.map(|threads| threads.max(1.0));
    HostFootprint {
        host: readings.host.clone(),
        divides: readings.divides,
        processors: readings.processors.map(|processors| processors as u32),
        host_figures: host_figures.collect(),
        unavailable,
        link: readings.speeds.link,
        model: model(readings, parallelism, span.span()),
        access_order: disk_work(readings, from, to).map(|disk| disk.order),
        disk_busy_ns: readings.disk_busy_ns(from, to),
        parallelism,
        limit_seconds,
        missing: readings.missing.clone(),
        covered_ns: covered.max().unwrap_or(0),
        samples,
        lost,
        figures,
    }
}

/// Adds the gauges of the query's workers: the highest values, added up.
fn gauges(
    timeline: &Timeline,
    span: &QuerySpan,
    readings: &Readings,
    figures: &mut BTreeMap<Figure, ChargedFigure>,
) {
    let work = span.hosts.iter().filter(|work| work.host == readings.host).flat_map(|work| &work.workers);
    for worker in work {
        let used = timeline.used(&readings.host, &worker.subject, span.began_ns, span.ended_ns);
        let kind = SubjectKind::of(&worker.subject);
        let is_shared = worker.share != crate::query::Share::Own;
        for (figure, amount) in used.amounts.into_iter().filter(|(figure, _)| figure.is_gauge()) {
            let source = timeline.source(&readings.host, kind, figure).cloned();
            let charged = ChargedFigure { amount, kind, is_shared, source };
            figures
                .entry(figure)
                .and_modify(|sum| {
                    if sum.kind == kind {
                        sum.amount = sum.amount.plus(amount);
                        sum.is_shared |= is_shared;
                    }
                })
                .or_insert(charged);
        }
    }
}

/// The formulas of the source for one host.
fn model(readings: &Readings, parallelism: Option<f64>, (from, to): (u64, u64)) -> ModelTimes {
    let value = |figure| readings.own(figure, from, to);
    let cpu_ns = readings.own_cpu(from, to).map(|cpu| cpu / parallelism.unwrap_or(1.0));
    let disk = disk_work(readings, from, to);
    let received = value(Figure::NetworkReceivedBytes);
    let sent = value(Figure::NetworkSentBytes);
    let link = readings.speeds.link;
    let (receive_rate, send_rate) = (link.received_bytes_per_second, link.sent_bytes_per_second);
    let both = received.zip(sent).zip(receive_rate.zip(send_rate));
    let times = received.zip(receive_rate).into_iter().chain(sent.zip(send_rate));
    ModelTimes {
        cpu_ns,
        disk_sequential_ns: disk.and_then(|disk| disk.sequential_seconds).map(|seconds| seconds * 1e9),
        disk_random_ns: disk.and_then(|disk| disk.random_seconds).map(|seconds| seconds * 1e9),
        network_ns: both.map(|((received, sent), (a, b))| (received + sent) / (a + b) * 1e9),
        network_duplex_ns: times.map(|(bytes, rate)| bytes / rate * 1e9).reduce(f64::max),
    }
}
