//! The samples of all hosts on one time line.
//!
//! Samples may be lost, doubled or reordered: counters lose no total with a sample, so that only the time resolution
//! suffers. What a subject used between two moments is interpolated; [`Used`] says how well it is known.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::amount::Amount;
use crate::clock::ClockMap;
use crate::curve::Curve;
use crate::error::{Result, UsageError};
use crate::figure::Figure;
use crate::query::QuerySpan;
use crate::sample::{Sample, Subject};
use crate::source::{FigureSource, HostSources, SubjectKind};
use crate::track::{Track, sample_bytes};

/// The longest name of a host, as in the domain name system.
const HOST_NAME_BYTES_MAX: usize = 255;
/// A sample may take this part of a host's memory.
const SAMPLE_PART: usize = 4;

/// Limits of a [`Timeline`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineLimits {
    /// The most hosts.
    pub hosts_max: usize,
    /// Bytes of samples that are kept, divided equally among the hosts; older ones are dropped. A sample of 20 subjects
    /// with 10 figures takes about 3 kB, so that 64 MiB hold an hour and a half of four hosts at one sample a second.
    pub bytes_max: usize,
}

impl Default for TimelineLimits {
    fn default() -> Self {
        Self { hosts_max: 256, bytes_max: 64 << 20 }
    }
}

/// What became of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Insertion {
    /// It is part of the time line.
    Kept,
    /// There is one with its run and number.
    Duplicate,
    /// It is older than all that is kept.
    TooOld,
    /// Its time contradicts its number. It is taken if those that follow agree with it.
    Contradicting,
}

/// Counts of a host's samples, by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleCounts {
    /// Taken.
    pub kept: u64,
    /// Received before.
    pub duplicates: u64,
    /// Older than all that was kept.
    pub late: u64,
    /// Left out because time and number contradict each other.
    pub contradicting: u64,
    /// Taken, and dropped when memory ran out.
    pub dropped: u64,
}

/// What a subject used in a span of time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// Of counters, what they grew by; of gauges, the highest value, with the lowest as its low bound. A figure that
    /// is unavailable is missing.
    pub amounts: BTreeMap<Figure, Amount>,
    /// For how much of the span samples exist, in nanoseconds: the least of all counters.
    pub covered_ns: u64,
    /// The same of each counter: one that began again was not seen meanwhile, and the others were.
    pub covered_by_figure: BTreeMap<Figure, u64>,
    /// Samples of the host within the span.
    pub samples: u64,
    /// Samples of the host that are missing within the span, by their numbers.
    pub lost: u64,
}

impl Used {
    /// An amount; `None` if it is unavailable.
    pub fn get(&self, figure: Figure) -> Option<Amount> {
        self.amounts.get(&figure).copied()
    }

    /// How fast a counter grew while it was seen, per second; `None` if it is unavailable.
    pub fn per_second(&self, figure: Figure) -> Option<f64> {
        let covered_ns = self.covered_by_figure.get(&figure).filter(|covered_ns| **covered_ns > 0)?;
        Some(self.get(figure)?.value / *covered_ns as f64 * 1e9)
    }
}

/// The samples of all hosts on one time line, in nanoseconds of a clock that the caller chooses, such as the
/// collector's.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    limits: TimelineLimits,
    hosts: BTreeMap<String, Track>,
}

impl Timeline {
    /// An empty time line.
    pub fn new(limits: TimelineLimits) -> Self {
        Self { limits, hosts: BTreeMap::new() }
    }

    /// Sets how a host's clock reads on the time line, for the samples that are inserted from now on. It must be set
    /// before the host's first sample, and again when the host has booted.
    ///
    /// # Errors
    /// If the drift is out of range, the name is empty or too long, or there are too many hosts.
    pub fn set_clock(&mut self, host: &str, clock: ClockMap) -> Result<()> {
        clock.check()?;
        if let Some(track) = self.hosts.get_mut(host) {
            track.clock = clock;
            return Ok(());
        }
        if host.is_empty() || host.len() > HOST_NAME_BYTES_MAX {
            return Err(UsageError::HostName { bytes: host.len(), max: HOST_NAME_BYTES_MAX });
        }
        if self.hosts.len() >= self.limits.hosts_max {
            return Err(UsageError::TooManyHosts { max: self.limits.hosts_max });
        }
        self.hosts.insert(host.into(), Track::new(clock));
        let host_bytes_max = self.host_bytes_max();
        self.hosts.values_mut().for_each(|track| track.shrink(host_bytes_max));
        Ok(())
    }

    /// Forgets a host and its samples.
    pub fn remove(&mut self, host: &str) {
        self.hosts.remove(host);
    }

    /// Sets where the figures of a host come from.
    ///
    /// # Errors
    /// [`UsageError::NoClock`] if the host is not known.
    pub fn set_sources(&mut self, host: &str, sources: HostSources) -> Result<()> {
        self.track_mut(host)?.sources = sources;
        Ok(())
    }

    /// Takes a sample. If memory is short, the oldest samples of the host are dropped.
    ///
    /// # Errors
    /// If the host's clock is not known, or the sample is too large for its share of memory.
    pub fn insert(&mut self, sample: Sample) -> Result<Insertion> {
        let host_bytes_max = self.host_bytes_max();
        let track = self.track_mut(&sample.host)?;
        let (bytes, max) = (sample_bytes(&sample), host_bytes_max / SAMPLE_PART);
        if bytes > max {
            return Err(UsageError::SampleTooLarge { host: sample.host, bytes, max });
        }
        Ok(track.insert(sample, host_bytes_max))
    }

    /// The hosts, in the order of their names.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.hosts.keys().map(String::as_str)
    }

    /// The subjects of a host of which there are samples, in order.
    pub fn subjects(&self, host: &str) -> impl Iterator<Item = &Subject> {
        self.hosts.get(host).into_iter().flat_map(Track::subjects)
    }

    /// When the first and the last sample of a host were taken; `None` without samples.
    pub fn span(&self, host: &str) -> Option<(u64, u64)> {
        self.hosts.get(host)?.span()
    }

    /// What became of a host's samples.
    pub fn counts(&self, host: &str) -> Option<SampleCounts> {
        Some(self.hosts.get(host)?.counts)
    }

    /// The source of a figure; `None` if the host's agent did not report it.
    pub fn source(&self, host: &str, kind: SubjectKind, figure: Figure) -> Option<&FigureSource> {
        self.hosts.get(host)?.sources.get(kind, figure)
    }

    /// Processors of a host, if they are known.
    pub fn processors(&self, host: &str) -> Option<u32> {
        Some(self.hosts.get(host)?.sources.processors).filter(|processors| *processors > 0)
    }

    /// Bytes that the samples take, about. Each host may also have two samples set aside.
    pub fn bytes(&self) -> usize {
        self.hosts.values().map(Track::bytes).sum()
    }

    /// What a subject used from `from` to `to`, in nanoseconds on the time line. Nothing, if there is no sample of it.
    pub fn used(&self, host: &str, subject: &Subject, from: u64, to: u64) -> Used {
        let Some(track) = self.hosts.get(host) else { return Used::default() };
        let mut used = Used {
            covered_ns: u64::MAX,
            samples: track.moments(from, to).count() as u64,
            lost: track.lost(from, to),
            ..Used::default()
        };
        let bound_ns = track.bound_ns(from, to);
        for (figure, _) in track.figures(subject, from, to).iter() {
            if figure.is_gauge() {
                if let Some((low, high, _)) = track.gauge(subject, figure, from, to) {
                    used.amounts.insert(figure, Amount::new(high as f64, low as f64, high as f64));
                }
            } else if let Some(curve) = track.curve(subject, figure, (from, to), bound_ns)
                && let Some(amount) = curve.between(from, to)
            {
                let covered_ns = curve.covered_ns(from, to);
                used.covered_ns = used.covered_ns.min(covered_ns);
                used.covered_by_figure.insert(figure, covered_ns);
                used.amounts.insert(figure, amount);
            }
        }
        if used.covered_ns == u64::MAX {
            used.covered_ns = 0;
        }
        used
    }

    /// The samples from which [`crate::Footprint::new`] computes the same footprint of `span`. A copy of them can be
    /// looked at while this time line changes.
    #[must_use]
    pub fn excerpt(&self, span: &QuerySpan) -> Self {
        let hosts = span.hosts.iter().filter_map(|work| {
            let track = self.hosts.get(&work.host)?;
            let workers = work.workers.iter().map(|worker| &worker.subject);
            let around = track.subjects_in(Subject::DISKS).chain([&Subject::Host]);
            Some((work.host.clone(), track.excerpt(workers.chain(around), span.span())))
        });
        Self { limits: self.limits, hosts: hosts.collect() }
    }

    /// The curve of a counter, for many questions about the span of a query. The bound is that of
    /// [`Timeline::clock_bound_ns`].
    pub(crate) fn curve(
        &self,
        host: &str,
        subject: &Subject,
        figure: Figure,
        (span, bound_ns): ((u64, u64), u64),
        is_own: bool,
    ) -> Option<Curve> {
        if figure.is_gauge() {
            return None;
        }
        Some(self.hosts.get(host)?.curve(subject, figure, span, bound_ns)?.changed_at(span.0, span.1, is_own))
    }

    /// The median time between the samples of a host that were taken in a span, in nanoseconds, which is about the
    /// shortest time that can be resolved.
    pub(crate) fn step_ns(&self, host: &str, span: (u64, u64)) -> Option<u64> {
        let track = self.hosts.get(host)?;
        let mut moments: Vec<u64> = track.moments(span.0, span.1).collect();
        let last = moments.pop()?;
        let mut gaps =
            moments.iter().zip(moments.iter().skip(1).chain([&last])).map(|(a, b)| b - a).collect::<Vec<_>>();
        let middle = gaps.len() / 2;
        (!gaps.is_empty()).then(|| *gaps.select_nth_unstable(middle).1)
    }

    /// Samples of a host that are missing in a span, and those that are there.
    pub(crate) fn lost(&self, host: &str, span: (u64, u64)) -> (u64, u64) {
        let Some(track) = self.hosts.get(host) else { return (0, 0) };
        (track.lost(span.0, span.1), track.moments(span.0, span.1).count() as u64)
    }

    /// By how much the moments of the samples of a span may be wrong, in nanoseconds.
    pub(crate) fn clock_bound_ns(&self, host: &str, span: (u64, u64)) -> u64 {
        self.hosts.get(host).map_or(0, |track| track.bound_ns(span.0, span.1))
    }

    /// What one host may take.
    fn host_bytes_max(&self) -> usize {
        self.limits.bytes_max / self.hosts.len().max(1)
    }

    /// The samples of one host.
    pub(crate) fn track(&self, host: &str) -> Option<&Track> {
        self.hosts.get(host)
    }

    fn track_mut(&mut self, host: &str) -> Result<&mut Track> {
        // A name in a sample may be very long.
        let name = || host.chars().take(HOST_NAME_BYTES_MAX).collect();
        self.hosts.get_mut(host).ok_or_else(|| UsageError::NoClock { host: name() })
    }
}
