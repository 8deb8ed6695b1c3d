//! The estimate of a clock's offset and drift.

use std::collections::VecDeque;

use super::Interval;

/// Exchanges from which on a drift is estimated, and the time that they must span.
const FIT_EXCHANGES_MIN: usize = 4;
const FIT_SPAN_NS_MIN: i64 = 10_000_000_000;
/// Points of the line.
const FIT_POINTS_MAX: usize = 16;

/// The offset as a line. Large offsets have more digits than a double, so only the part above `base_ns` is one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    at_ns: i64,
    base_ns: i64,
    above_ns: f64,
    slope: f64,
}

impl Line {
    /// The median of the slopes between the exchanges with the least round trips, one of each part of the time (Theil
    /// and Sen): single ones that are wrong do not move it.
    pub(super) fn fit(exchanges: &VecDeque<Interval>, drift_ppm_max: u32) -> Option<Self> {
        let (first, last) = (exchanges.front()?, exchanges.back()?);
        let span_ns = last.at_ns - first.at_ns;
        if exchanges.len() < FIT_EXCHANGES_MIN || span_ns < FIT_SPAN_NS_MIN {
            return None;
        }
        let part_ns = span_ns / FIT_POINTS_MAX as i64 + 1;
        let mut points: Vec<Interval> = Vec::with_capacity(FIT_POINTS_MAX);
        for interval in exchanges {
            let part = |interval: &Interval| (interval.at_ns - first.at_ns) / part_ns;
            match points.last_mut() {
                Some(best) if part(best) == part(interval) => {
                    if interval.width_ns() < best.width_ns() {
                        *best = *interval;
                    }
                }
                _ => points.push(*interval),
            }
        }
        let mut slopes = Vec::with_capacity(FIT_POINTS_MAX * FIT_POINTS_MAX / 2);
        for (index, one) in points.iter().enumerate() {
            for other in points.iter().skip(index + 1) {
                let passed_ns = other.at_ns - one.at_ns;
                if passed_ns > span_ns / 4 {
                    slopes.push((other.middle_ns() - one.middle_ns()) as f64 / passed_ns as f64);
                }
            }
        }
        let slope_max = f64::from(drift_ppm_max) / 1e6;
        let slope = median(&mut slopes)?.clamp(-slope_max, slope_max);
        let at_ns = last.at_ns;
        let mut offsets: Vec<f64> = points
            .iter()
            .map(|point| (point.middle_ns() - last.middle_ns()) as f64 + slope * (at_ns - point.at_ns) as f64)
            .collect();
        Some(Self { at_ns, base_ns: last.middle_ns(), above_ns: median(&mut offsets)?, slope })
    }

    /// How much faster the agent's clock is, in millionths.
    pub(super) fn drift_ppm(self) -> f64 {
        self.slope * 1e6
    }

    /// The offset at a time of the collector.
    pub(super) fn at(self, at_ns: i64) -> i64 {
        let above_ns = self.above_ns + self.slope * at_ns.saturating_sub(self.at_ns) as f64;
        self.base_ns.saturating_add(above_ns as i64)
    }
}

fn median(numbers: &mut [f64]) -> Option<f64> {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}
