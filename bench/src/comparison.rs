//! Contenders in turns, and what came of them.

use crate::Result;

/// What is measured of every run.
pub(crate) struct Figure {
    /// Name with unit.
    pub(crate) name: &'static str,
    /// Digits after the point.
    pub(crate) digits: usize,
    /// Whether the table has least and most beside the median.
    pub(crate) range: bool,
}

type Run<'a> = Box<dyn FnMut() -> Result<Vec<f64>> + 'a>;

/// Something that is measured.
pub(crate) struct Contender<'a> {
    name: String,
    /// Ours divided by this one is to be at most so much.
    target: Option<f64>,
    rounds_max: u32,
    run: Run<'a>,
    /// By round, a value a figure.
    values: Vec<Vec<f64>>,
}

impl<'a> Contender<'a> {
    /// `run` returns a value for every figure of the comparison.
    pub(crate) fn new(name: impl Into<String>, run: impl FnMut() -> Result<Vec<f64>> + 'a) -> Self {
        let run = Box::new(run);
        Self { name: name.into(), target: None, rounds_max: u32::MAX, run, values: Vec::new() }
    }

    /// States what ours divided by this one is to be at most.
    pub(crate) fn target(self, ratio: f64) -> Self {
        Self { target: Some(ratio), ..self }
    }

    /// Runs no more often than this, and never uncounted.
    pub(crate) fn rounds_max(self, rounds: u32) -> Self {
        Self { rounds_max: rounds, ..self }
    }
}

/// Median, least and most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Summary {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let last = sorted.len().saturating_sub(1);
        Self { median: (at(last / 2) + at(last.div_ceil(2))) / 2.0, min: at(0), max: at(last) }
    }
}

/// Contenders that do the same work. The first one is ours.
pub(crate) struct Comparison<'a> {
    /// The first figure is the one that is compared.
    pub(crate) figures: &'static [Figure],
    pub(crate) contenders: Vec<Contender<'a>>,
}

impl Comparison<'_> {
    /// Runs all of them once uncounted, then in turns.
    pub(crate) fn run(&mut self, rounds: u32) -> Result<()> {
        for round in 0..=rounds {
            for contender in &mut self.contenders {
                let limited = contender.rounds_max != u32::MAX;
                if round > contender.rounds_max || (round == 0 && limited) {
                    continue;
                }
                let values = (contender.run)().map_err(|e| format!("{}: {e}", contender.name))?;
                let shown = self.figures.iter().zip(&values);
                let shown: Vec<_> =
                    shown.map(|(figure, v)| format!("{} {v:.*}", figure.name, figure.digits)).collect();
                let what = if round == 0 { "warm-up".into() } else { format!("{round}/{rounds}") };
                eprintln!("{what} {}: {}", contender.name, shown.join(", "));
                if round > 0 {
                    contender.values.push(values);
                }
            }
        }
        Ok(())
    }

    /// Median of a figure of a contender.
    pub(crate) fn median(&self, contender: usize, figure: usize) -> f64 {
        self.summary(contender, figure).median
    }

    fn summary(&self, contender: usize, figure: usize) -> Summary {
        let values = &self.contenders[contender].values;
        Summary::of(values.iter().filter_map(|round| round.get(figure).copied()))
    }

    /// The table in Markdown.
    pub(crate) fn markdown(&self) -> String {
        let compared = self.contenders.iter().any(|c| c.target.is_some());
        let mut head = vec![String::new()];
        for (at, figure) in self.figures.iter().enumerate() {
            head.push(format!("{}, median", figure.name));
            if figure.range {
                head.extend(["min", "max"].map(ToOwned::to_owned));
            }
            if at == 0 && compared {
                head.extend(["ours / this", "target"].map(ToOwned::to_owned));
            }
        }
        let mut lines = vec![row(&head), row(&vec!["---".to_owned(); head.len()])];
        for (index, contender) in self.contenders.iter().enumerate() {
            let mut cells = vec![contender.name.clone()];
            for (at, figure) in self.figures.iter().enumerate() {
                let summary = self.summary(index, at);
                let values = [summary.median, summary.min, summary.max];
                let shown = if figure.range { &values[..] } else { &values[..1] };
                cells.extend(shown.iter().map(|value| format!("{value:.*}", figure.digits)));
                if at == 0 && compared {
                    cells.push(format!("{:.2}", self.summary(0, 0).median / summary.median));
                    cells.push(contender.target.map_or(String::new(), |target| format!("<= {target:.2}")));
                }
            }
            lines.push(row(&cells));
        }
        lines.join("\n")
    }

    /// Every run, as CSV.
    pub(crate) fn csv(&self) -> String {
        let names: Vec<_> = self.figures.iter().map(|figure| figure.name.replace(' ', "_")).collect();
        let mut lines = vec![format!("contender,round,{}", names.join(","))];
        for contender in &self.contenders {
            for (round, values) in contender.values.iter().enumerate() {
                let values: Vec<_> = values.iter().map(ToString::to_string).collect();
                lines.push(format!("\"{}\",{},{}", contender.name, round + 1, values.join(",")));
            }
        }
        lines.join("\n") + "\n"
    }
}

fn row(cells: &[String]) -> String {
    format!("| {} |", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_medians_with_their_range() {
        let of = |values: &[f64]| Summary::of(values.iter().copied());
        assert_eq!(of(&[3.0, 1.0, 2.0]), Summary { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(of(&[4.0, 1.0]), Summary { median: 2.5, min: 1.0, max: 4.0 });
        assert!(of(&[]).median.is_nan());
    }

    #[test]
    fn contenders_run_in_turns_and_the_first_run_does_not_count() {
        let order = std::cell::RefCell::new(String::new());
        let contender = |name: &'static str, value: f64| {
            let order = &order;
            Contender::new(name, move || {
                order.borrow_mut().push_str(name);
                Ok(vec![value])
            })
        };
        const FIGURES: &[Figure] = &[Figure { name: "seconds", digits: 1, range: true }];
        let contenders = vec![contender("a", 1.0), contender("b", 2.0).target(0.8)];
        let mut comparison = Comparison { figures: FIGURES, contenders };
        comparison.run(2).expect("all run");
        assert_eq!(*order.borrow(), "ababab");
        assert_eq!(comparison.csv(), "contender,round,seconds\n\"a\",1,1\n\"a\",2,1\n\"b\",1,2\n\"b\",2,2\n");
        assert!(comparison.markdown().ends_with("| b | 2.0 | 2.0 | 2.0 | 0.50 | <= 0.80 |"));
    }
}
