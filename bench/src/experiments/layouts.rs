//! Shared by the studies of memory layouts: time and bytes per value, over one quantity.

use std::fmt::Debug;
use std::hint::black_box;
use std::time::Instant;

use arrow_array::Array;

use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::plot::{Axis, Lines, LinesPanel, Series};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::tables::{grid, number, spread};

const FIGURES: &[Figure] = &[
    Figure { name: "ns a value", digits: 2, range: true },
    Figure { name: "bytes a value", digits: 2, range: false },
];

/// Encodes and decodes `values` once. Returns the figures.
///
/// # Errors
/// Those of `encode` and `decode`, and when the decoded values differ.
pub(super) fn measure<A: Array + PartialEq>(
    values: &A,
    encode: impl FnOnce(&A) -> Result<Vec<u8>>,
    decode: impl FnOnce(&[u8]) -> Result<A>,
) -> Result<Vec<f64>> {
    let began = Instant::now();
    let bytes = black_box(encode(values)?);
    let decoded = black_box(decode(&bytes)?);
    let elapsed = began.elapsed();
    if decoded != *values {
        return Err("the decoded values differ from the original".into());
    }
    let count = values.len() as f64;
    Ok(vec![elapsed.as_secs_f64() * 1e9 / count, bytes.len() as f64 / count])
}

/// Layouts that are compared over a quantity.
pub(super) struct Study<L: 'static> {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) text: &'static str,
    pub(super) dimension: &'static [&'static str],
    pub(super) axis: Axis,
    pub(super) contenders: &'static [(&'static str, L)],
}

impl<L: Copy + Debug> Study<L> {
    /// `places` are the values of the quantity, each with a function that measures a layout there.
    pub(super) fn run<M: Fn(L) -> Result<Vec<f64>>>(
        self,
        settings: &Settings,
        scale: f64,
        places: impl Iterator<Item = Result<(String, M)>>,
    ) -> Result<()> {
        let load = report::load();
        let mut results = Results::open(&settings.results(), self.name, self.dimension, FIGURES)?;
        for place in places {
            let (value, measure) = place?;
            let contenders = self.contenders.iter().map(|(name, layout)| {
                let measure = &measure;
                Contender::new(*name, move || measure(*layout))
            });
            let contenders = contenders.collect();
            let place = Case { values: vec![value], scale, note: String::new() };
            results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)?;
        }
        Report {
            name: self.name,
            page: Page::ColumnarProtocol,
            title: self.title,
            text: if scale == 1.0 { self.text.into() } else { format!("{} Scaled by {scale}.", self.text) },
            tables: self.tables(&results),
            plots: vec![(self.plot(&results)?, "Time and bytes per value, by layout")],
            versions: Vec::new(),
            load,
            settings,
        }
        .publish()
    }

    fn tables(&self, results: &Results) -> Vec<String> {
        let names: Vec<_> = self.contenders.iter().map(|(name, _)| *name).collect();
        let table = |(at, figure): (usize, &Figure)| {
            let cell = |value: &str, layout: &str| {
                let summary = results.summary(&[value], layout, at);
                if figure.range {
                    spread(summary, figure.digits)
                } else {
                    number(summary.median, figure.digits)
                }
            };
            let table = grid(self.dimension[0], &results.values(0), &names, cell);
            let range = if figure.range { ": median (min-max)" } else { "" };
            format!("{}{range}\n\n{table}", figure.name)
        };
        FIGURES.iter().enumerate().map(table).collect()
    }

    fn plot(&self, results: &Results) -> Result<String> {
        let panel = |(at, figure): (usize, &Figure)| {
            let series = |(name, _): &(&str, L)| {
                let point =
                    |value: &str| (value.parse().unwrap_or(f64::NAN), results.summary(&[value], name, at));
                Series { name: (*name).into(), points: results.values(0).into_iter().map(point).collect() }
            };
            let series = self.contenders.iter().map(series).collect();
            LinesPanel { title: figure.name.into(), y: Axis::log(figure.name), series }
        };
        let panels = FIGURES.iter().enumerate().map(panel).collect();
        Ok(Lines::new(self.axis.clone(), panels).svg()?)
    }
}
