//! Contenders that run in turns.

use crate::Result;
use crate::results::{Case, Figure, Run};
use crate::settings::Settings;

type Measure<'a> = Box<dyn FnMut() -> Result<Vec<f64>> + 'a>;

/// Something that is measured.
pub(crate) struct Contender<'a> {
    name: String,
    rounds_max: u32,
    measure: Measure<'a>,
}

impl<'a> Contender<'a> {
    /// `measure` returns a value for every figure of the comparison.
    pub(crate) fn new(name: impl Into<String>, measure: impl FnMut() -> Result<Vec<f64>> + 'a) -> Self {
        Self { name: name.into(), rounds_max: u32::MAX, measure: Box::new(measure) }
    }

    /// Limits the number of rounds, and skips the warm-up run.
    pub(crate) fn rounds_max(self, rounds: u32) -> Self {
        Self { rounds_max: rounds, ..self }
    }
}

/// Contenders that do the same work.
pub(crate) struct Comparison<'a> {
    pub(crate) figures: &'static [Figure],
    pub(crate) contenders: Vec<Contender<'a>>,
}

impl Comparison<'_> {
    /// Runs the wanted contenders in turns, after one warm-up round that does not count.
    pub(crate) fn run(mut self, settings: &Settings, place: &Case) -> Result<Vec<Run>> {
        self.contenders.retain(|contender| settings.wants(&contender.name));
        let mut runs = Vec::new();
        let first = u32::from(settings.quick);
        for round in first..=settings.rounds() {
            for contender in &mut self.contenders {
                let limited = contender.rounds_max != u32::MAX;
                if round > contender.rounds_max || (round == 0 && limited) {
                    continue;
                }
                let values = (contender.measure)().map_err(|e| format!("{}: {e}", contender.name))?;
                let shown = self.figures.iter().zip(&values);
                let shown: Vec<_> =
                    shown.map(|(figure, v)| format!("{} {v:.*}", figure.name, figure.digits)).collect();
                let what =
                    if round == 0 { "warm-up".into() } else { format!("{round}/{}", settings.rounds()) };
                eprintln!("{place}{what} {}: {}", contender.name, shown.join(", "));
                if round > 0 {
                    let (place, contender) = (place.clone(), contender.name.clone());
                    runs.push(Run { place, contender, round, values });
                }
            }
        }
        Ok(runs)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::settings::Settings;

    const FIGURES: &[Figure] = &[Figure { name: "seconds", digits: 1, range: true }];

    fn settings(only: &[&str]) -> Settings {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            settings: Settings,
        }
        let only = only.iter().flat_map(|word| ["--only", word]);
        Line::parse_from(["bench", "--rounds", "2"].into_iter().chain(only)).settings
    }

    #[test]
    fn contenders_run_in_turns_and_the_first_run_does_not_count() {
        let order = RefCell::new(String::new());
        let contender = |name: &'static str| {
            let order = &order;
            Contender::new(name, move || {
                order.borrow_mut().push_str(name);
                Ok(vec![order.borrow().len() as f64])
            })
        };
        let contenders = vec![contender("a"), contender("b"), contender("c").rounds_max(1)];
        let comparison = Comparison { figures: FIGURES, contenders };
        let runs = comparison.run(&settings(&[]), &Case::default()).expect("all run");
        assert_eq!(*order.borrow(), "ababcab");
        let runs: Vec<_> = runs.iter().map(|run| (&*run.contender, run.round, run.values[0])).collect();
        assert_eq!(runs, [("a", 1, 3.0), ("b", 1, 4.0), ("c", 1, 5.0), ("a", 2, 6.0), ("b", 2, 7.0)]);
    }

    #[test]
    fn only_wanted_contenders_run_and_an_error_names_its_contender() {
        let failing =
            || vec![Contender::new("x", || Err("broken".into())), Contender::new("y", || Ok(vec![]))];
        let run = |only: &[&str]| {
            let comparison = Comparison { figures: FIGURES, contenders: failing() };
            comparison.run(&settings(only), &Case::default())
        };
        assert_eq!(run(&["y"]).expect("runs").len(), 2);
        assert_eq!(run(&[]).map(|_| ()).expect_err("x fails").to_string(), "x: broken");
    }
}
