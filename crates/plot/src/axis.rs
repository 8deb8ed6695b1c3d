//! An axis: its label, its scale and its ticks.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// A quantity with its unit, linear or logarithmic.
#[derive(Clone, Debug)]
pub struct Axis {
    pub(crate) label: String,
    log: bool,
    /// On a logarithmic axis: ticks are powers of two instead of ten.
    by_two: bool,
    shown: fn(f64) -> String,
}

impl Axis {
    /// A linear axis that starts at zero.
    pub fn linear(label: &str) -> Self {
        Self { label: label.into(), log: false, by_two: false, shown: plain }
    }

    /// A logarithmic axis. The label says so.
    pub fn log(label: &str) -> Self {
        let label = format!("{label} (log scale)");
        Self { log: true, ..Self::linear(label.trim_start()) }
    }

    /// A logarithmic axis with ticks at powers of two.
    pub fn doubling(label: &str) -> Self {
        Self { by_two: true, ..Self::log(label) }
    }

    /// Labels ticks as bytes in units of 1024.
    pub fn binary_bytes(self) -> Self {
        Self { shown: binary_bytes, ..self }
    }

    /// Labels ticks in thousands and millions: 1k, 1M.
    pub fn thousands(self) -> Self {
        Self { shown: thousands, ..self }
    }

    /// Labels ticks as seconds, each in a suitable unit: 1 s, 1 ms.
    pub fn seconds(self) -> Self {
        Self { shown: seconds, ..self }
    }

    /// Labels ticks as bytes in units of 1000.
    pub fn bytes(self) -> Self {
        Self { shown: bytes, ..self }
    }

    /// The section of the axis that contains all values, with some room.
    pub(crate) fn scale(&self, values: impl Iterator<Item = f64>) -> Scale {
        let known = values.filter(|value| value.is_finite() && (!self.log || *value > 0.0));
        let (low, high) = known.fold((f64::INFINITY, 0f64), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low > high { (1.0, 10.0) } else { (low, high) };
        let (span, ticks) = match (self.log, self.by_two) {
            (true, true) => doubling_span(low, high),
            (true, false) => log_span(low, high),
            (false, _) => linear_span(high),
        };
        Scale { axis: self.clone(), span, ticks }
    }
}

/// A section of an axis with its ticks: a coordinate of a chart.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    axis: Axis,
    span: Range<f64>,
    ticks: Vec<f64>,
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let at = |value: f64| if self.axis.log { value.log10() } else { value };
        let (low, high) = (at(self.span.start), at(self.span.end));
        // What the axis can't show, such as 0 on a logarithmic one, is at its end.
        let part = ((at(*value) - low) / (high - low)).clamp(0.0, 1.0);
        first + (part * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.span.clone()
    }
}

impl ValueFormatter<f64> for Scale {
    fn format(value: &f64) -> String {
        plain(*value)
    }

    fn format_ext(&self, value: &f64) -> String {
        (self.axis.shown)(*value)
    }
}

fn linear_span(high: f64) -> (Range<f64>, Vec<f64>) {
    let high = if high > 0.0 { high * 1.05 } else { 1.0 };
    let decade = 10f64.powf((high / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * decade).into_iter().find(|step| high / step <= 6.0);
    let step = step.unwrap_or(high);
    (0.0..high, (0..).map(|n| f64::from(n) * step).take_while(|tick| *tick <= high).collect())
}

/// With fewer ticks an axis can't be read.
const TICKS_MIN: usize = 3;

fn log_span(low: f64, high: f64) -> (Range<f64>, Vec<f64>) {
    let room = (high / low).powf(0.06).max(1.12);
    let span = low / room..high * room;
    let wide = (span.end / span.start).log10();
    let within: &[f64] = match wide {
        _ if wide > 2.5 => &[1.0],
        _ if wide > 1.0 => &[1.0, 2.0, 5.0],
        _ => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
    };
    let decades = span.start.log10().floor() as i32..=span.end.log10().ceil() as i32;
    let ticks = decades.flat_map(|decade| within.iter().map(move |m| m * 10f64.powi(decade)));
    let ticks: Vec<f64> = ticks.filter(|tick| span.contains(tick)).collect();
    let ticks = if ticks.len() < TICKS_MIN { even_ticks(&span) } else { ticks };
    (span, ticks)
}

/// Ticks at even distances, for a short section of a logarithmic axis.
fn even_ticks(span: &Range<f64>) -> Vec<f64> {
    let width = span.end - span.start;
    let decade = 10f64.powf((width / TICKS_MIN as f64).log10().floor());
    let within = |step: f64| {
        let first = (span.start / step).ceil();
        let count = ((span.end / step).floor() - first + 1.0).max(0.0) as u32;
        (0..count).map(move |n| (first + f64::from(n)) * step).collect::<Vec<_>>()
    };
    let ticks = [10.0, 5.0, 2.0, 1.0].map(|multiple| within(multiple * decade));
    ticks.into_iter().find(|ticks| ticks.len() >= TICKS_MIN).unwrap_or_default()
}

/// Puts ticks at every n-th power of two, with n as small as legible labels allow.
fn doubling_span(low: f64, high: f64) -> (Range<f64>, Vec<f64>) {
    const TICKS_MAX: i32 = 8;
    let (first, last) = (low.log2().floor() as i32, high.log2().ceil() as i32);
    let step = (last - first + 1).div_euclid(TICKS_MAX) + 1;
    let span = low / 1.2..high * 1.2;
    let ticks = (first..=last).step_by(step.unsigned_abs() as usize).map(|power| 2f64.powi(power));
    let ticks = ticks.filter(|tick| span.contains(tick)).collect();
    (span, ticks)
}

/// Up to three decimals, without trailing zeros.
fn plain(value: f64) -> String {
    let rounded = format!("{value:.3}");
    rounded.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn bytes(value: f64) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "KB")];
    let fitting = units.into_iter().find(|(unit, _)| value >= unit * 0.999);
    fitting.map_or(format!("{} B", plain(value)), |(unit, name)| format!("{} {name}", plain(value / unit)))
}

/// Formats bytes in units of 1024: 1 KiB.
pub fn binary_bytes(value: f64) -> String {
    in_units(value, &[(1_073_741_824.0, "GiB"), (1_048_576.0, "MiB"), (1024.0, "KiB"), (1.0, "B")])
}

fn thousands(value: f64) -> String {
    in_units(value, &[(1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")]).replace(' ', "")
}

fn seconds(value: f64) -> String {
    in_units(value, &[(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])
}

/// Formats a value in the largest unit that it reaches.
fn in_units(value: f64, units: &[(f64, &str)]) -> String {
    let fitting = units.iter().find(|(unit, _)| value >= unit * 0.999).or(units.last());
    fitting.map_or(String::new(), |(unit, name)| format!("{} {name}", plain(value / unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside_the_span() {
        let ticks = |axis: Axis, values: &[f64]| {
            let scale = axis.scale(values.iter().copied());
            let pixels = values.iter().map(|value| scale.map(value, (0, 100)));
            assert!(pixels.into_iter().all(|pixel| (0..=100).contains(&pixel)), "{scale:?}");
            scale.ticks.iter().map(|tick| scale.format_ext(tick)).collect::<Vec<_>>()
        };
        assert_eq!(ticks(Axis::linear("x"), &[0.0, 0.5, 1.0]), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(ticks(Axis::log("x"), &[0.1, 1000.0]), ["0.1", "1", "10", "100", "1000"]);
        assert_eq!(ticks(Axis::log("x"), &[2.0, 6.0]), ["2", "3", "4", "5"]);
        assert_eq!(ticks(Axis::log("x"), &[5.2, 6.2]), ["5", "5.5", "6", "6.5"]);
        assert_eq!(ticks(Axis::log("x"), &[0.30, 0.31]), ["0.28", "0.3", "0.32", "0.34"]);
        assert_eq!(Axis::log("").label, "(log scale)");
        assert_eq!(
            ticks(Axis::log("x").bytes(), &[2e3, 1e8]),
            ["10 KB", "100 KB", "1 MB", "10 MB", "100 MB"]
        );
        assert_eq!(
            ticks(Axis::doubling("x").binary_bytes(), &[256.0, 1_048_576.0]),
            ["256 B", "1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB"]
        );
        assert_eq!(ticks(Axis::doubling("x"), &[2.0, 16.0]), ["2", "4", "8", "16"]);
        assert_eq!(ticks(Axis::log("x").seconds(), &[2e-5, 2e-2]), ["100 us", "1 ms", "10 ms"]);
        assert!(!ticks(Axis::doubling("x"), &[]).is_empty());
        assert!(!ticks(Axis::log("x"), &[]).is_empty());
    }

    #[test]
    fn values_that_an_axis_cannot_show_are_at_its_end() {
        for axis in [Axis::log("x"), Axis::doubling("x"), Axis::linear("x")] {
            let scale = axis.scale([0.0, 1.0, 5.0].into_iter());
            let pixels = [-1.0, 0.0, f64::NAN, f64::NEG_INFINITY, f64::INFINITY, f64::MAX];
            assert_eq!(
                pixels.map(|value| scale.map(&value, (10, 90))),
                [10, 10, 10, 10, 90, 90],
                "{scale:?}"
            );
            // Vertical axes run upwards.
            assert_eq!(scale.map(&0.0, (90, 10)), 90);
        }
    }
}
