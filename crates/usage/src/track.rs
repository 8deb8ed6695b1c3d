//! The samples of one host, in order, within a limit of memory.
//!
//! Samples are ordered by run and number, and their times must agree with that order. One that disagrees is set
//! aside; when [`SUSPECTS`] in turn agree with each other, the clock or the numbers have stepped, and those that they
//! contradict are dropped instead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::clock::ClockMap;
use crate::curve::{Curve, Shape};
use crate::figure::Figure;
use crate::sample::{Figures, Sample, Subject};
use crate::source::{HostSources, SubjectKind};
use crate::timeline::{Insertion, SampleCounts};

/// Samples that must agree with each other before they overrule older ones.
const SUSPECTS: usize = 3;
/// What a map's node takes for each entry, about.
const OVERHEAD_BYTES: usize = 48;
/// The counts of references before shared values.
const COUNTS_BYTES: usize = 2 * size_of::<usize>();
/// Of the kept samples, this part is dropped at a time when there are too many.
const DROPPED_PART: usize = 8;
/// Points before and after a span that a curve is built from, so that odd values at its ends are recognised.
const MARGIN: usize = 3;

const _: () = assert!(Figure::ALL.len() <= 64, "a mask of figures has 64 bits");

/// How far the beginning of a process may be off: Linux counts it in ticks.
const BEGAN_NS: u64 = 20_000_000;

/// Run and number of a sample: their order is the order of the samples.
type Key = (u64, u64);

/// The figures of one subject at one moment, without room for those that are missing.
#[derive(Debug, Clone)]
struct Point {
    key: Key,
    at: u64,
    mask: u64,
    /// Shared with excerpts.
    values: Arc<[u64]>,
}

impl Point {
    fn get(&self, figure: Figure) -> Option<u64> {
        let bit = 1 << (figure as u8);
        let index = (self.mask & (bit - 1)).count_ones() as usize;
        (self.mask & bit != 0).then(|| self.values.get(index).copied()).flatten()
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + COUNTS_BYTES + size_of_val::<[u64]>(&self.values)
    }
}

/// When a sample was taken.
#[derive(Debug, Clone, Copy)]
struct Taken {
    key: Key,
    at: u64,
    bound_ns: u64,
}

/// One host's samples.
#[derive(Debug, Clone, Default)]
pub(crate) struct Track {
    pub(crate) clock: ClockMap,
    pub(crate) sources: HostSources,
    pub(crate) counts: SampleCounts,
    samples: VecDeque<Taken>,
    series: BTreeMap<Subject, VecDeque<Point>>,
    suspects: Vec<(u64, Sample)>,
    bytes: usize,
}

/// What a subject takes in memory.
fn subject_bytes(subject: &Subject) -> usize {
    let text = match subject {
        Subject::Disk(name) | Subject::Interface(name) => name.len(),
        Subject::Task { query, .. } => query.len(),
        Subject::Host | Subject::Process { .. } | Subject::Peer { .. } => 0,
    };
    size_of::<Subject>() + size_of::<VecDeque<Point>>() + OVERHEAD_BYTES + text
}

/// What a sample takes in memory at most, if all of its subjects are new.
pub(crate) fn sample_bytes(sample: &Sample) -> usize {
    let entry = |entry: &crate::sample::Entry| {
        let values = entry.figures.iter().count() * size_of::<u64>();
        subject_bytes(&entry.subject) + size_of::<Point>() + COUNTS_BYTES + values
    };
    sample.entries.iter().map(entry).fold(size_of::<Taken>(), usize::saturating_add)
}

impl Track {
    pub(crate) fn new(clock: ClockMap) -> Self {
        Self { clock, ..Self::default() }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// By how much the moments of the samples that a curve of this span is built from may be wrong, in nanoseconds.
    pub(crate) fn bound_ns(&self, from: u64, to: u64) -> u64 {
        let first = self.samples.partition_point(|sample| sample.at <= from).saturating_sub(1 + MARGIN);
        let end = self.samples.partition_point(|sample| sample.at < to).saturating_add(1 + MARGIN);
        let around = self.samples.range(first..end.clamp(first, self.samples.len()));
        around.map(|sample| sample.bound_ns).max().unwrap_or(0)
    }

    /// When the first and the last sample were taken.
    pub(crate) fn span(&self) -> Option<(u64, u64)> {
        Some((self.samples.front()?.at, self.samples.back()?.at))
    }

    pub(crate) fn subjects(&self) -> impl Iterator<Item = &Subject> {
        self.series.keys()
    }

    /// The tasks, with the first and the last moment of each.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = (&Subject, (u64, u64))> {
        // No subject is after a task.
        let tasks = self.series.range(Subject::tasks("").start..);
        tasks.filter_map(|(subject, points)| Some((subject, (points.front()?.at, points.back()?.at))))
    }

    /// The subjects in a range of their order.
    pub(crate) fn subjects_in(&self, range: Range<Subject>) -> impl Iterator<Item = &Subject> {
        self.series.range(range).map(|(subject, _)| subject)
    }

    /// Whether a counter of a subject changed in a span, or between the samples around it.
    pub(crate) fn is_active(&self, subject: &Subject, from: u64, to: u64) -> bool {
        let counters = !Figure::ALL
            .into_iter()
            .filter(|figure| figure.is_gauge())
            .fold(0, |mask, figure| mask | 1 << (figure as u8));
        let Some(points) = self.series.get(subject) else { return false };
        let mut points = window(points, from, to, 0);
        let Some(mut before) = points.next() else { return false };
        let counted = |point: &Point| {
            Figure::ALL
                .into_iter()
                .filter(|figure| !figure.is_gauge())
                .any(|figure| point.get(figure) > Some(0))
        };
        // What it counted before it was first seen may belong to the span.
        if before.at > from && counted(before) {
            return true;
        }
        points.any(|point| {
            let last = std::mem::replace(&mut before, point);
            let both = last.mask & point.mask & counters;
            (last.values != point.values || last.mask != point.mask)
                && Figure::ALL
                    .into_iter()
                    .any(|figure| both & 1 << (figure as u8) != 0 && last.get(figure) != point.get(figure))
        })
    }

    /// What is needed to know what some subjects did in a span: the same answers about the span, of fewer samples.
    pub(crate) fn excerpt<'a>(
        &self,
        subjects: impl IntoIterator<Item = &'a Subject>,
        (from, to): (u64, u64),
    ) -> Self {
        let bound_ns = self.bound_ns(from, to);
        let (from, to) = (from.saturating_sub(bound_ns), to.saturating_add(bound_ns));
        // One more on both sides than a curve takes: it depends on whether there are others before and after.
        let range = |before: usize, after: usize, all: usize| {
            before.saturating_sub(2 + MARGIN)..after.saturating_add(2 + MARGIN).min(all)
        };
        let before = self.samples.partition_point(|sample| sample.at <= from);
        let after = self.samples.partition_point(|sample| sample.at <= to);
        let around = range(before, after, self.samples.len());
        // All samples of the span are counted, also if many have the same moment.
        let start = around.start.min(self.samples.partition_point(|sample| sample.at < from));
        let mut needed: BTreeSet<usize> = (start..around.end).collect();
        // The curve of a subject that is new begins with the first sample, and that of one that ended goes on to the last.
        needed.extend([0, self.samples.len().saturating_sub(1)]);
        let mut series = BTreeMap::new();
        for subject in subjects {
            let Some(points) = self.series.get(subject) else { continue };
            let before = points.partition_point(|point| point.at <= from);
            let after = points.partition_point(|point| point.at <= to);
            let kept: VecDeque<Point> = points.range(range(before, after, points.len())).cloned().collect();
            // Whether a subject is new, or ended, is seen by the samples next to its own.
            let before_first =
                kept.front().map(|point| self.samples.partition_point(|sample| sample.key < point.key));
            let after_last =
                kept.back().map(|point| self.samples.partition_point(|sample| sample.key <= point.key));
            needed.extend(before_first.and_then(|first| first.checked_sub(1)));
            needed.extend(after_last);
            series.insert(subject.clone(), kept);
        }
        let samples = needed.into_iter().filter_map(|index| self.samples.get(index).copied()).collect();
        Self { clock: self.clock, sources: self.sources.clone(), samples, series, ..Self::default() }
    }

    /// When the first and the last sample with a subject were taken.
    pub(crate) fn subject_span(&self, subject: &Subject) -> Option<(u64, u64)> {
        let points = self.series.get(subject)?;
        Some((points.front()?.at, points.back()?.at))
    }

    /// The moments of the samples within a span.
    pub(crate) fn moments(&self, from: u64, to: u64) -> impl Iterator<Item = u64> + '_ {
        let first = self.samples.partition_point(|sample| sample.at < from);
        self.samples.range(first..).map(|sample| sample.at).take_while(move |at| *at <= to)
    }

    /// The last moments, the latest first.
    pub(crate) fn last_moments(&self, count: usize) -> Vec<u64> {
        self.samples.iter().rev().take(count).map(|sample| sample.at).collect()
    }

    /// Samples that are missing between those of a span, by their numbers.
    pub(crate) fn lost(&self, from: u64, to: u64) -> u64 {
        let first = self.samples.partition_point(|sample| sample.at <= from).saturating_sub(1);
        let mut lost = 0u64;
        let mut last: Option<Key> = None;
        for &Taken { key, at, .. } in self.samples.range(first..) {
            if let Some(last) = last.filter(|last| last.0 == key.0) {
                lost = lost.saturating_add((key.1 - last.1).saturating_sub(1));
            }
            last = Some(key);
            if at >= to {
                break;
            }
        }
        lost
    }

    /// Takes a sample, which is no larger than `bytes_max`.
    pub(crate) fn insert(&mut self, sample: Sample, bytes_max: usize) -> Insertion {
        let key = (sample.run, sample.number);
        let at = self.clock.to_line(sample.at_ns);
        let index = self.samples.partition_point(|kept| kept.key < key);
        if self.samples.get(index).is_some_and(|kept| kept.key == key) {
            self.counts.duplicates += 1;
            return Insertion::Duplicate;
        }
        let oldest = self.samples.front().map_or(0, |oldest| oldest.at);
        if index == 0 && at < oldest && self.counts.dropped > 0 {
            self.counts.late += 1;
            return Insertion::TooOld;
        }
        let before = index.checked_sub(1).and_then(|index| self.samples.get(index)).map(|kept| kept.at);
        let after = self.samples.get(index).map(|kept| kept.at);
        // A map that was measured again moves moments by as much as both may be wrong.
        let slack = self.clock.bound_ns(sample.at_ns).saturating_mul(2);
        let is_before = before.is_some_and(|before| at.saturating_add(slack) < before);
        let is_after = after.is_some_and(|after| at > after.saturating_add(slack));
        if is_before || is_after {
            return self.suspect(at, sample, bytes_max);
        }
        self.suspects.clear();
        let at = at.clamp(before.unwrap_or(0), after.unwrap_or(u64::MAX).max(before.unwrap_or(0)));
        self.keep(index, at, sample, bytes_max);
        Insertion::Kept
    }

    /// Sets a sample aside whose time contradicts its number, unless it is the last of many that agree.
    fn suspect(&mut self, at: u64, sample: Sample, bytes_max: usize) -> Insertion {
        let key = (sample.run, sample.number);
        let index = self.suspects.partition_point(|(_, other)| (other.run, other.number) < key);
        if self.suspects.get(index).is_some_and(|(_, other)| (other.run, other.number) == key) {
            self.counts.duplicates += 1;
            return Insertion::Duplicate;
        }
        let (before, after) = self.suspects.split_at(index);
        let agrees = before.last().is_none_or(|before| before.0 <= at)
            && after.first().is_none_or(|after| at <= after.0);
        if agrees {
            self.suspects.insert(index, (at, sample));
        } else {
            self.suspects = vec![(at, sample)];
        }
        if self.suspects.len() < SUSPECTS {
            self.counts.contradicting += 1;
            return Insertion::Contradicting;
        }
        let suspects = std::mem::take(&mut self.suspects);
        let stands = |key: Key, at: u64| {
            suspects.iter().all(|(other_at, other)| {
                let other = (other.run, other.number);
                (key < other && at <= *other_at) || (key > other && at >= *other_at)
            })
        };
        let (was, mut freed) = (self.samples.len(), 0);
        self.samples.retain(|sample| stands(sample.key, sample.at));
        for points in self.series.values_mut() {
            points.retain(|point| {
                let is_kept = stands(point.key, point.at);
                freed += if is_kept { 0 } else { point.bytes() };
                is_kept
            });
        }
        let dropped = was - self.samples.len();
        self.counts.contradicting += dropped as u64;
        self.bytes = self.bytes.saturating_sub(freed + dropped * size_of::<Taken>());
        self.prune();
        self.counts.contradicting -= (suspects.len() as u64 - 1).min(self.counts.contradicting);
        for (at, sample) in suspects {
            let key = (sample.run, sample.number);
            let index = self.samples.partition_point(|kept| kept.key < key);
            if self.samples.get(index).is_none_or(|kept| kept.key != key) {
                self.keep(index, at, sample, bytes_max);
            }
        }
        Insertion::Kept
    }

    fn keep(&mut self, index: usize, at: u64, sample: Sample, bytes_max: usize) {
        let key = (sample.run, sample.number);
        let bound_ns = self.clock.bound_ns(sample.at_ns);
        self.samples.insert(index, Taken { key, at, bound_ns });
        self.bytes += size_of::<Taken>();
        for entry in sample.entries {
            let is_new = !self.series.contains_key(&entry.subject);
            let added = if is_new { subject_bytes(&entry.subject) } else { 0 };
            let points = self.series.entry(entry.subject).or_default();
            let index = points.partition_point(|point| point.key < key);
            if points.get(index).is_some_and(|point| point.key == key) {
                continue;
            }
            let mask = entry.figures.iter().fold(0, |mask, (figure, _)| mask | 1 << (figure as u8));
            let values = entry.figures.iter().map(|(_, value)| value).collect();
            let point = Point { key, at, mask, values };
            self.bytes += added + point.bytes();
            points.insert(index, point);
        }
        self.counts.kept += 1;
        self.shrink(bytes_max);
    }

    /// Drops the oldest samples until the others take at most `bytes_max`.
    pub(crate) fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max && !self.samples.is_empty() {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let count = self.samples.len().div_ceil(DROPPED_PART);
        self.samples.drain(..count);
        self.counts.dropped += count as u64;
        let mut freed = count * size_of::<Taken>();
        let first = self.samples.front().map(|sample| sample.key);
        for points in self.series.values_mut() {
            let is_old = |point: &Point| first.is_none_or(|first| point.key < first);
            while points.front().is_some_and(is_old) {
                freed += points.pop_front().map_or(0, |point| point.bytes());
            }
        }
        self.bytes = self.bytes.saturating_sub(freed);
        self.prune();
    }

    /// Forgets subjects without points.
    fn prune(&mut self) {
        let mut freed = 0;
        self.series.retain(|subject, points| {
            freed += if points.is_empty() { subject_bytes(subject) } else { 0 };
            !points.is_empty()
        });
        self.bytes = self.bytes.saturating_sub(freed);
    }

    /// The highest and the lowest value of a gauge in a span, and the last one: the value before it counts, too.
    pub(crate) fn gauge(
        &self,
        subject: &Subject,
        figure: Figure,
        from: u64,
        to: u64,
    ) -> Option<(u64, u64, u64)> {
        let points = self.series.get(subject)?;
        let first = points.partition_point(|point| point.at <= from).saturating_sub(1);
        let values = points.range(first..).take_while(|point| point.at <= to);
        values.filter_map(|point| point.get(figure)).fold(None, |all, value| {
            let (low, high, _) = all.unwrap_or((value, value, value));
            Some((value.min(low), value.max(high), value))
        })
    }

    /// The figures of a subject that were counted in a span.
    pub(crate) fn figures(&self, subject: &Subject, from: u64, to: u64) -> Figures {
        let mut figures = Figures::default();
        let Some(points) = self.series.get(subject) else { return figures };
        let mask = window(points, from, to, 0).fold(0, |mask, point| mask | point.mask);
        for figure in Figure::ALL.into_iter().filter(|figure| mask & 1 << (*figure as u8) != 0) {
            figures.set(figure, 0);
        }
        figures
    }

    /// The curve of a counter in a span, whose moments may be wrong by `bound_ns` ([`Track::bound_ns`]).
    pub(crate) fn curve(
        &self,
        subject: &Subject,
        figure: Figure,
        (from, to): (u64, u64),
        bound_ns: u64,
    ) -> Option<Curve> {
        let points = self.series.get(subject)?;
        let kind = SubjectKind::of(subject);
        let resolution = self.sources.get(kind, figure).map_or(0, |source| source.resolution());
        let (alive_from, alive_ns) = (from, to);
        let growth_max = self.sources.growth_max(kind, figure);
        let shape = Shape { resolution: resolution as f64, bound_ns, growth_max };
        let (from, to) = (from.saturating_sub(bound_ns), to.saturating_add(bound_ns));
        let first = points.partition_point(|point| point.at <= from).saturating_sub(1 + MARGIN);
        let birth = if first == 0 { self.birth(subject) } else { None };
        let birth = birth.into_iter().flatten().map(|at| (at, 0));
        let mut values = window(points, from, to, MARGIN)
            .filter_map(|point| point.get(figure).map(|value| (point.at, value)))
            .peekable();
        // A figure that is not counted was not 0 before its subject began.
        values.peek()?;
        let curve = Curve::new(birth.chain(values), shape)?;
        let curve = if kind == SubjectKind::Process && figure.is_counted_at_end() {
            curve.counted_at_ends(alive_from)
        } else {
            curve
        };
        let (Some(last), Some(end)) = (points.back(), self.samples.back()) else { return Some(curve) };
        let missed = self.samples.get(self.samples.partition_point(|sample| sample.key <= last.key));
        Some(match missed {
            Some(missed) if to > last.at => curve.ended(missed.at, end.at, alive_ns),
            _ => curve,
        })
    }

    /// When a subject's counters were 0 because it did not exist yet: from the first sample, which did not have it,
    /// until it began.
    fn birth(&self, subject: &Subject) -> Option<[u64; 2]> {
        let first = self.series.get(subject)?.front()?;
        let before = self.samples.partition_point(|sample| sample.key < first.key).checked_sub(1)?;
        let Taken { key: before_key, at: before, .. } = *self.samples.get(before)?;
        let start = self.samples.front()?.at;
        match subject {
            // It may have run for long before the agent was told of it.
            Subject::Process { began_ns, .. } => {
                let began = self.clock.to_line(*began_ns);
                let slack = self.clock.bound_ns(*began_ns).saturating_add(BEGAN_NS);
                let is_new = began.saturating_add(slack) >= before && began <= first.at.saturating_add(slack);
                is_new.then(|| [start, began.max(before).min(first.at)])
            }
            // Their counters begin with the agent's run, or with the program's.
            Subject::Peer { .. } | Subject::Task { .. } if before_key.0 == first.key.0 => {
                Some([start, before])
            }
            _ => None,
        }
    }
}

/// The points of a span, with one before and one after it, and a margin.
fn window(points: &VecDeque<Point>, from: u64, to: u64, margin: usize) -> impl Iterator<Item = &Point> {
    let first = points.partition_point(|point| point.at <= from).saturating_sub(1 + margin);
    let end = points.partition_point(|point| point.at < to).saturating_add(1 + margin).min(points.len());
    points.range(first.min(end)..end)
}
