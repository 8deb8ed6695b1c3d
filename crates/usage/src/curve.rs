//! One counter over time: what it grew by between any two moments, and how well that is known.
//!
//! Between two samples, a counter is taken to grow evenly. It only grows, so the true value at a moment lies between
//! those of the samples before and after, and no further from either than the fastest possible growth. The clock's
//! bound moves the moment both ways; the counter's resolution adds to both ends.
//!
//! A counter that goes back began again at 0: what it has reached since then counts, and what was lost before is
//! missing. A subject that ended between two samples is taken to have gone on as in its last interval, until the end
//! of the time that is looked at. A single value that is out of line with those around it, far too high or back for
//! one sample only, is left out.

use crate::amount::Amount;

/// The fastest growth of a counter without a limit of its own, per nanosecond: a hundred thousand threads, or 100 TB/s.
const GROWTH_MAX: f64 = 1e5;
/// A counter must grow so many times as fast as its limit to be out of line: a container may report fewer processors
/// than its counters cover.
const GROWTH_SLACK: f64 = 64.0;
/// How much longer than between two samples a counter may have grown, in nanoseconds: an agent reads its counters one
/// after the other.
const JITTER_NS: f64 = 1e8;

/// A counter that grows by at most this fraction of another pace counts as standing still.
const IDLE_PACE: f64 = 0.01;

/// A counter over time. Times are nanoseconds on the time line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Curve {
    /// Moments, and what was counted until then, from 0 on. Neither ever falls.
    points: Vec<(u64, f64)>,
    /// Estimates between the points, where more is known than even growth.
    knots: Vec<(u64, f64)>,
    /// Spans in which an unknown amount was lost.
    breaks: Vec<(u64, u64)>,
    /// When the subject was last seen, and when it was first missed, if it ended.
    tail: Option<(u64, u64)>,
    /// Growth per nanosecond that is assumed from the beginning of the tail on.
    tail_pace: f64,
    /// When the assumed growth ends.
    tail_until: u64,
    /// How a curve is read.
    shape: Shape,
}

/// What is known of a counter besides its values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Shape {
    /// The step in which it grows.
    pub(crate) resolution: f64,
    /// How far the moments may be wrong, in nanoseconds.
    pub(crate) bound_ns: u64,
    /// The fastest growth per nanosecond, where there is a limit.
    pub(crate) growth_max: Option<f64>,
}

impl Shape {
    fn is_plausible(&self, grown: u64, since_ns: u64) -> bool {
        let growth = self.growth_max.map_or(GROWTH_MAX, |growth| growth * GROWTH_SLACK);
        grown as f64 <= growth * (since_ns as f64 + JITTER_NS) + 4.0 * self.resolution
    }
}

impl Curve {
    /// The curve through values of a counter, in the order of time. `None` without values.
    pub(crate) fn new(values: impl IntoIterator<Item = (u64, u64)>, shape: Shape) -> Option<Self> {
        let mut values = values.into_iter();
        let first = values.next()?;
        let mut building = Building {
            curve: Self {
                points: vec![(first.0, 0.0)],
                knots: Vec::new(),
                breaks: Vec::new(),
                tail: None,
                tail_pace: 0.0,
                tail_until: 0,
                shape,
            },
            last: first,
            odd: None,
        };
        values.for_each(|value| building.add(value));
        Some(building.end())
    }

    /// Takes into account that waits are counted when they end: growth that is faster than a single thread can wait
    /// began in the intervals before it, as far as they have room, and not before `from`.
    pub(crate) fn counted_at_ends(mut self, from: u64) -> Self {
        let mut grown: Vec<f64> = self.points.windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
        let lengths: Vec<f64> = self.points.windows(2).map(|pair| (pair[1].0 - pair[0].0) as f64).collect();
        for end in (0..grown.len()).rev() {
            let mut excess = grown[end] - lengths[end];
            for index in (0..end).rev().take_while(|index| self.points[*index].0 >= from) {
                let moved = excess.min(lengths[index] - grown[index]);
                if moved <= 0.0 {
                    break;
                }
                // Another wait ended here, and this one began after that.
                let is_first = grown[index] > 0.0;
                grown[index] += moved;
                grown[end] -= moved;
                excess -= moved;
                if is_first {
                    break;
                }
            }
        }
        let mut sum = 0.0;
        for (point, grown) in self.points.iter_mut().skip(1).zip(grown) {
            sum += grown;
            point.1 = sum;
        }
        self
    }

    /// Continues the curve of a subject that was missing at `missed_ns` and until `end_ns`. It is taken to have gone on
    /// as before until `alive_ns`, but for what is known.
    pub(crate) fn ended(mut self, missed_ns: u64, end_ns: u64, alive_ns: u64) -> Self {
        let Some((&(last, sum), before)) = self.points.split_last() else { return self };
        if missed_ns <= last {
            return self;
        }
        let until = alive_ns.clamp(last, missed_ns);
        let pace = before.last().filter(|before| before.0 < last);
        let pace = pace.map_or(0.0, |&(t, value)| (sum - value) / (last - t) as f64);
        let pace = pace.min(self.shape.growth_max.unwrap_or(f64::INFINITY));
        let end = sum + pace * (until - last) as f64;
        self.points.extend([(until, end), (missed_ns, end), (end_ns.max(missed_ns), end)]);
        (self.tail, self.tail_pace, self.tail_until) = (Some((last, missed_ns)), pace, until);
        self
    }

    /// For how much of the time from `from` to `to` the counter was seen, in nanoseconds.
    pub(crate) fn covered_ns(&self, from: u64, to: u64) -> u64 {
        let (Some(&(first, _)), Some(&(last, _))) = (self.points.first(), self.points.last()) else {
            return 0;
        };
        let broken: u64 = self.breaks.iter().map(|&(a, b)| overlap((a, b), (from, to))).sum();
        overlap((first, last), (from, to)).saturating_sub(broken)
    }

    /// What the counter grew by from `from` to `to`; `None` if it was not seen in that time.
    pub(crate) fn between(&self, from: u64, to: u64) -> Option<Amount> {
        let covered = self.covered_ns(from, to);
        if to <= from || covered == 0 {
            return None;
        }
        let value = self.at(to) - self.at(from);
        let (from_low, from_high) = self.bounds_at(from);
        let (to_low, to_high) = self.bounds_at(to);
        let mut low = to_low - from_high - self.shape.resolution;
        let mut high = to_high - from_low + self.shape.resolution;
        // What was not seen may have been as fast as possible, or, without a limit, as fast as the rest.
        let unseen = (to - from - covered) as f64;
        let pace = value / covered as f64;
        high += unseen * self.shape.growth_max.unwrap_or(pace);
        if let Some(tail) = self.tail {
            low -= overlap((tail.0, self.tail_until), (from, to)) as f64 * self.tail_pace;
            high += overlap(tail, (from, to)) as f64 * self.shape.growth_max.unwrap_or(pace);
        }
        if let Some(growth) = self.shape.growth_max {
            let limit = growth * (to - from).saturating_add(2 * self.shape.bound_ns.min(u64::MAX / 4)) as f64;
            high = high.min(limit + self.shape.resolution);
            low = low.max(0.0);
        }
        Some(Amount::new(value, low, high))
    }

    /// Takes into account that the use changed at `from` and `to`, when a query began and ended: the growth of an
    /// interval with such a moment is divided by the paces of the intervals on both sides, and none of them is given
    /// more than at its own pace, or than by even growth. If `is_own`, the counter is of the query alone: if it stood
    /// still in the interval outside, all of the growth is the query's.
    pub(crate) fn changed_at(mut self, from: u64, to: u64, is_own: bool) -> Self {
        let interval = |at: u64| {
            let after = self.points.partition_point(|point| point.0 <= at);
            after.checked_sub(1).filter(|_| after < self.points.len())
        };
        let (first, last) = (interval(from), interval(to));
        let mut knots = Vec::new();
        if first.is_some() && first == last {
            let Some(index) = first else { return self };
            let [(t0, v0), (t1, v1)] = [self.points[index], self.points[index + 1]];
            let out = index.checked_sub(1).and_then(|index| self.pace(index)).zip(self.pace(index + 1));
            if let Some((before, after)) = out {
                let (before, after) = (before * (from - t0) as f64, after * (t1 - to) as f64);
                let scale = ((v1 - v0) / (before + after)).min(1.0);
                let scale = if scale.is_nan() { 1.0 } else { scale };
                knots = vec![(from, v0 + before * scale), (to, v1 - after * scale)];
            }
        } else {
            let split = |index: usize, at: u64, is_begin: bool| {
                let [(t0, v0), (t1, v1)] = [self.points[index], self.points[index + 1]];
                let (before, after) = (self.pace(index.checked_sub(1)?)?, self.pace(index + 1)?);
                let outside = if is_begin { before } else { after };
                if is_own && outside <= IDLE_PACE * (v1 - v0) / (t1 - t0) as f64 {
                    return Some((at, if is_begin { v0 } else { v1 }));
                }
                let (left, right) = (before * (at - t0) as f64, after * (t1 - at) as f64);
                let (all, even) = (v1 - v0, (v1 - v0) / (t1 - t0) as f64);
                let part =
                    if left + right > 0.0 { all * left / (left + right) } else { even * (at - t0) as f64 };
                let part = part.min(left.max(even * (at - t0) as f64));
                Some((at, v0 + part.max(all - right.max(even * (t1 - at) as f64)).clamp(0.0, all)))
            };
            knots.extend(first.and_then(|index| split(index, from, true)));
            knots.extend(last.and_then(|index| split(index, to, false)));
        }
        self.knots = knots;
        self
    }

    /// Growth per nanosecond of an interval.
    fn pace(&self, index: usize) -> Option<f64> {
        let [(t0, v0), (t1, v1)] = [*self.points.get(index)?, *self.points.get(index + 1)?];
        (t1 > t0).then(|| (v1 - v0) / (t1 - t0) as f64)
    }

    /// The values of [`Curve::between`] from each of the moments to the next. The moments are in order.
    pub(crate) fn growth(&self, moments: &[u64]) -> impl Iterator<Item = Option<f64>> {
        let mut after = 0;
        let mut value = move |at: u64| {
            while self.points.get(after).is_some_and(|point| point.0 <= at) {
                after += 1;
            }
            self.at_before(at, after)
        };
        let mut last = moments.first().map_or((0, 0.0), |at| (*at, value(*at)));
        moments.iter().skip(1).map(move |&to| {
            let next = (to, value(to));
            let (from, was) = std::mem::replace(&mut last, next);
            (from < to && self.covered_ns(from, to) > 0).then_some(next.1 - was)
        })
    }

    /// What was counted until a moment, by even growth between the samples and knots.
    fn at(&self, at: u64) -> f64 {
        self.at_before(at, self.points.partition_point(|point| point.0 <= at))
    }

    /// The same, where `after` is the number of the first point after the moment.
    fn at_before(&self, at: u64, after: usize) -> f64 {
        let mut before = after.checked_sub(1).and_then(|before| self.points.get(before));
        let mut after = self.points.get(after);
        for knot in &self.knots {
            if knot.0 <= at && before.is_some_and(|before| before.0 <= knot.0) {
                before = Some(knot);
            } else if knot.0 > at && after.is_some_and(|after| after.0 > knot.0) {
                after = Some(knot);
            }
        }
        match (before, after) {
            (Some(&(t0, v0)), Some(&(t1, v1))) => {
                v0 + (v1 - v0) * ((at - t0) as f64 / t1.saturating_sub(t0).max(1) as f64)
            }
            (Some(&(_, value)), None) => value,
            _ => 0.0,
        }
    }

    /// The least and the most that was counted until a moment.
    fn bounds_at(&self, at: u64) -> (f64, f64) {
        let (early, late) = (at.saturating_sub(self.shape.bound_ns), at.saturating_add(self.shape.bound_ns));
        let before = self.points.partition_point(|point| point.0 <= early).checked_sub(1);
        let after = self.points.partition_point(|point| point.0 < late);
        let end = self.points.last().map_or(0.0, |point| point.1);
        let before = before.and_then(|before| self.points.get(before)).copied();
        let after = self.points.get(after).copied();
        let mut low = before.map_or(0.0, |point| point.1);
        let mut high = after.map_or(end, |point| point.1);
        if let Some(growth) = self.shape.growth_max {
            if let Some((t, value)) = after {
                low = low.max(value - growth * t.saturating_sub(early) as f64);
            }
            if let Some((t, value)) = before {
                high = high.min(value + growth * late.saturating_sub(t) as f64);
            }
        }
        let middle = self.at(at);
        (low.min(middle), high.max(middle))
    }
}

/// A curve that is being built.
struct Building {
    curve: Curve,
    /// The last value that was in line.
    last: (u64, u64),
    /// A value that was not, and waits for the next to tell whether the counter or the value was wrong.
    odd: Option<(u64, u64)>,
}

impl Building {
    fn add(&mut self, (at, value): (u64, u64)) {
        let is_in_line = |(since, from): (u64, u64), shape: &Shape| {
            value >= from && shape.is_plausible(value - from, at.saturating_sub(since))
        };
        if is_in_line(self.last, &self.curve.shape) {
            self.grow(at, value - self.last.1);
        } else if let Some(odd) = self.odd.filter(|odd| is_in_line(*odd, &self.curve.shape)) {
            self.restart(odd);
            self.grow(at, value - odd.1);
        } else {
            self.odd = Some((at, value));
            return;
        }
        self.last = (at, value);
        self.odd = None;
    }

    fn grow(&mut self, at: u64, by: u64) {
        let (last, sum) = self.curve.points.last().copied().unwrap_or_default();
        self.curve.points.push((at.max(last), sum + by as f64));
    }

    /// The counter went on from another value: from 0 if it went back.
    fn restart(&mut self, (at, value): (u64, u64)) {
        let since = self.last.0;
        let is_from_zero =
            value < self.last.1 && self.curve.shape.is_plausible(value, at.saturating_sub(since));
        self.grow(at, if is_from_zero { value } else { 0 });
        self.curve.breaks.push((since, at));
    }

    fn end(mut self) -> Curve {
        // A last value that went back is a restart. One that is too high is left out.
        if let Some(odd) = self.odd.filter(|odd| odd.1 < self.last.1) {
            self.restart(odd);
        }
        self.curve
    }
}

/// How much two spans have in common.
pub(crate) fn overlap(a: (u64, u64), b: (u64, u64)) -> u64 {
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn curve(values: &[(u64, u64)], growth_max: Option<f64>) -> Curve {
        Curve::new(values.iter().copied(), Shape { growth_max, ..Shape::default() }).unwrap()
    }

    #[test]
    fn growth_is_even_between_samples_and_bounded_by_them() {
        let curve = curve(&[(0, 100), (S, 1100), (2 * S, 1100), (3 * S, 2100)], None);
        let all = curve.between(0, 3 * S).unwrap();
        assert_eq!((all.value, all.low, all.high), (2000.0, 2000.0, 2000.0));
        let part = curve.between(S / 2, 5 * S / 2).unwrap();
        assert_eq!((part.value, part.low, part.high), (1000.0, 0.0, 2000.0));
        assert!(curve.between(4 * S, 5 * S).is_none());
        assert!(curve.between(S, S).is_none());
    }

    #[test]
    fn the_fastest_possible_growth_narrows_the_bounds() {
        // 0.9 s of processor time in a second of one processor: the second half has at least 0.4 s.
        let curve = curve(&[(0, 0), (S, 9 * S / 10)], Some(1.0));
        let half = curve.between(S / 2, S).unwrap();
        assert!((half.low - 0.4e9).abs() < 1.0 && (half.high - 0.5e9).abs() < 1.0, "{half:?}");
    }

    #[test]
    fn a_query_that_begins_and_ends_between_samples_gets_its_use() {
        // Idle, then busy from 1.5 s to 3.5 s, then idle.
        let busy = [(0, 0), (S, 0), (2 * S, S / 2), (3 * S, 3 * S / 2), (4 * S, 2 * S), (5 * S, 2 * S)];
        let busy = curve(&busy, None).changed_at(3 * S / 2, 7 * S / 2, false);
        assert_eq!(busy.between(3 * S / 2, 7 * S / 2).unwrap().value, 2e9);
        assert_eq!(busy.between(3 * S / 2, 2 * S).unwrap().value, 0.5e9);
        assert_eq!(busy.between(S, 3 * S / 2).unwrap().value, 0.0);
        // Only at its beginning: its own counter grows by all of it, any other by half.
        let first = curve(&[(0, 0), (S, 0), (2 * S, S / 2), (3 * S, S / 2), (4 * S, S / 2)], None);
        for (is_own, value) in [(true, 0.5e9), (false, 0.25e9)] {
            let first = first.clone().changed_at(3 * S / 2, 7 * S / 2, is_own);
            assert_eq!(first.between(3 * S / 2, 7 * S / 2).unwrap().value, value);
        }
        // Always busy: nothing changes.
        let steady = [(0, 0), (S, S), (2 * S, 2 * S), (3 * S, 3 * S), (4 * S, 4 * S)];
        let steady = curve(&steady, None).changed_at(3 * S / 2, 5 * S / 2, false);
        assert_eq!(steady.between(3 * S / 2, 5 * S / 2).unwrap().value, 1e9);
        // Busy between two samples, and the query within: it has all, or what others leave.
        let short = curve(&[(0, 0), (S, 0), (2 * S, S / 4), (3 * S, S / 4)], None);
        assert_eq!(
            short.changed_at(3 * S / 2, 7 * S / 4, false).between(3 * S / 2, 7 * S / 4).unwrap().value,
            0.25e9
        );
        let before = curve(&[(0, 0), (S, 0), (2 * S, S), (3 * S, 2 * S)], None).changed_at(
            3 * S / 2,
            5 * S / 2,
            false,
        );
        assert_eq!(before.between(3 * S / 2, 2 * S).unwrap().value, 0.5e9, "no more than at its pace");
    }

    #[test]
    fn a_wait_that_is_counted_at_its_end_began_before() {
        let curve = |values: &[(u64, u64)]| curve(values, None);
        // 2.5 s of waiting that end in the fourth second.
        let waits = [(0, 0), (S, S / 4), (2 * S, S / 4), (3 * S, S / 4), (4 * S, 11 * S / 4), (5 * S, 3 * S)];
        let by_second = |from: u64| {
            let spread = curve(&waits).counted_at_ends(from);
            [0, 1, 2, 3, 4].map(|second| spread.between(second * S, (second + 1) * S).unwrap().value / 1e9)
        };
        assert_eq!(by_second(0), [0.25, 0.5, 1.0, 1.0, 0.25]);
        // Not before the query began.
        assert_eq!(by_second(2 * S), [0.25, 0.0, 1.0, 1.5, 0.25]);
        // Several threads that wait all the time.
        let threads = curve(&[(0, 0), (S, 3 * S), (2 * S, 6 * S)]).counted_at_ends(0);
        assert_eq!(threads.between(S, 2 * S).unwrap().value, 3e9);
    }

    #[test]
    fn clocks_and_ticks_widen_the_bounds() {
        let shape = Shape { resolution: 1e7, bound_ns: S / 10, growth_max: Some(1.0) };
        let curve = Curve::new([(0, 0), (S, S), (2 * S, 2 * S), (3 * S, 3 * S)], shape).unwrap();
        let middle = curve.between(S, 2 * S).unwrap();
        assert!(middle.low >= 0.79e9 && middle.low <= 0.99e9, "{middle:?}");
        assert!(middle.high <= 1.21e9, "{middle:?}");
    }

    #[test]
    fn a_counter_that_goes_back_began_again() {
        let curve = curve(&[(0, 1000), (S, 2000), (2 * S, 500), (3 * S, 1500)], None);
        let all = curve.between(0, 3 * S).unwrap();
        assert_eq!(all.value, 2500.0);
        assert!(all.high > 2500.0, "what was lost at the restart is unknown: {all:?}");
        assert_eq!(curve.covered_ns(0, 3 * S), 2 * S);
    }

    #[test]
    fn a_subject_that_ends_with_the_query_goes_on_until_then() {
        let curve = curve(&[(0, 0), (S, S / 2)], Some(1.0)).ended(2 * S, 10 * S, 3 * S / 2);
        let all = curve.between(0, 3 * S / 2).unwrap();
        assert!((all.value - 0.75e9).abs() < 1.0 && (all.low - 0.5e9).abs() < 1.0, "{all:?}");
        assert!(all.high >= 1e9);
    }

    #[test]
    fn single_odd_values_are_left_out() {
        for odd in [u64::MAX, 0] {
            let curve = curve(&[(0, S), (S, 2 * S), (2 * S, odd), (3 * S, 4 * S), (4 * S, 5 * S)], Some(2.0));
            assert_eq!(curve.between(0, 4 * S).unwrap().value, 4e9, "{odd}");
        }
        // At the end, too.
        let curve = curve(&[(0, S), (S, 2 * S), (2 * S, u64::MAX)], Some(2.0));
        assert_eq!(curve.between(0, 2 * S).unwrap().value, 1e9);
        assert_eq!(curve.covered_ns(0, 2 * S), S);
    }

    #[test]
    fn a_subject_that_ended_stays_at_its_last_value() {
        let curve = curve(&[(0, 0), (S, S)], Some(1.0)).ended(2 * S, 10 * S, 0);
        let all = curve.between(0, 10 * S).unwrap();
        assert_eq!((all.value, all.low), (1e9, 1e9));
        assert!((all.high - 2e9).abs() < 1.0, "it may have worked until it was missed: {all:?}");
    }
}
