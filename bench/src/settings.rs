//! The command-line options of a benchmark.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use crate::{Result, places};

/// The options of all benchmarks.
#[derive(Args, Clone, Debug)]
pub(crate) struct Settings {
    /// How often each contender runs, after one warm-up run that is not counted.
    #[arg(long, default_value_t = 5, conflicts_with = "quick", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only over these links, by name or as `100mbit,25ms`; earlier results of other links are kept.
    #[arg(long = "link", value_name = "LINK", num_args = 1..)]
    links: Vec<String>,
    /// Rows, as a multiple of TPC-H scale 1 (6,001,215 rows of lineitem, or another table of about its size).
    /// [default: depends on the benchmark and the link; smaller over slow links]
    #[arg(long, value_parser = scale)]
    scale: Option<f64>,
    /// Only contenders whose name contains one of these words, or equals it (`=Lightship`); earlier results
    /// of other contenders are kept.
    #[arg(long, value_name = "CONTENDER", num_args = 1..)]
    only: Vec<String>,
    /// Only jobs (`jobs`, `clients`) or numbers of clients (`load`) that equal one of these; earlier results of the others are kept.
    #[arg(long = "case", value_name = "CASE", num_args = 1..)]
    cases: Vec<String>,
    /// An earlier build of this program, whose nodes are a further contender (`shuffle`).
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) before: Option<PathBuf>,
    /// A trial: one round without warm-up over one link, a hundredth of the rows where a benchmark has a scale; results go
    /// to target/bench/quick.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Folder for results. Use another one for trials, to keep the published results.
    /// [default: docs/results, or target/bench/quick with --quick]
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
}

/// The scale with `--quick`.
const QUICK_SCALE: f64 = 0.01;

fn scale(text: &str) -> Result<f64, String> {
    let scale: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if scale > 0.0 && scale <= 100.0 { Ok(scale) } else { Err("expected more than 0 and at most 100".into()) }
}

impl Settings {
    /// How often each contender runs, after the warm-up run.
    pub(crate) fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }

    /// The folder for results.
    pub(crate) fn results(&self) -> PathBuf {
        self.results.clone().unwrap_or_else(|| if self.quick { places::quick() } else { places::results() })
    }

    /// All of `cases`, or the first and the last with `--quick`.
    pub(crate) fn some_if_quick<'a, T>(&self, cases: &'a [T]) -> Vec<&'a T> {
        let last = cases.len().saturating_sub(1);
        cases
            .iter()
            .enumerate()
            .filter(|(at, _)| !self.quick || [0, last].contains(at))
            .map(|(_, case)| case)
            .collect()
    }

    /// The links of `--link`, or `usual`, of which `--quick` takes the first.
    pub(crate) fn links(&self, usual: &[&str]) -> Vec<String> {
        if self.links.is_empty() {
            let usual = if self.quick { &usual[..1] } else { usual };
            usual.iter().map(ToString::to_string).collect()
        } else {
            self.links.clone()
        }
    }

    /// The scale of `--scale`, or one with which a run over the link takes seconds, not minutes.
    pub(crate) fn scale_over(&self, link: &str) -> f64 {
        self.scale_or(match link {
            "slow" => 0.02,
            "wan" => 0.2,
            _ => 1.0,
        })
    }

    /// The scale of `--scale`, or `usual`.
    pub(crate) fn scale_or(&self, usual: f64) -> f64 {
        self.scale.unwrap_or(if self.quick { usual.min(QUICK_SCALE) } else { usual })
    }

    /// Whether `--only` selects a contender of this name.
    pub(crate) fn wants(&self, contender: &str) -> bool {
        let contender = contender.to_lowercase();
        let meant = |word: &String| match word.to_lowercase().strip_prefix('=') {
            Some(name) => contender == name,
            None => contender.contains(&word.to_lowercase()),
        };
        self.only.is_empty() || self.only.iter().any(meant)
    }

    /// Whether `--case` selects this case.
    pub(crate) fn wants_case(&self, case: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|wanted| wanted.eq_ignore_ascii_case(case))
    }

    /// The options as text, to run the same again.
    pub(crate) fn arguments(&self) -> String {
        let mut words = vec![if self.quick { "--quick".into() } else { format!("--rounds {}", self.rounds) }];
        if !self.links.is_empty() {
            words.push(format!("--link {}", self.links.join(" ")));
        }
        words.extend(self.scale.map(|scale| format!("--scale {scale}")));
        // Where it is does not matter to others.
        words.extend(self.before.as_ref().map(|_| "--before PROGRAM".to_owned()));
        for (option, values) in [("--only", &self.only), ("--case", &self.cases)] {
            if !values.is_empty() {
                let quoted: Vec<_> = values.iter().map(|word| format!("'{word}'")).collect();
                words.push(format!("{option} {}", quoted.join(" ")));
            }
        }
        words.join(" ")
    }
}

/// The value of `--codec`: `auto` (`None`) or a codec's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodecChoice(pub(crate) Option<lightship_session::Codec>);

impl FromStr for CodecChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" { Ok(Self(None)) } else { text.parse().map(Some).map(Self) }
    }
}

/// `auto` and every codec by name, `auto` first.
pub(crate) fn codecs() -> impl Iterator<Item = String> {
    let fixed = lightship_session::Codec::ALL.map(|codec| codec.to_string());
    std::iter::once("auto".to_owned()).chain(fixed)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: Settings,
    }

    fn parse(words: &str) -> Settings {
        Line::parse_from(std::iter::once("bench").chain(words.split_whitespace())).settings
    }

    #[test]
    fn options_override_the_defaults() {
        let settings = parse("--link wan slow --scale 0.5 --only FLIGHT netcat --rounds 1");
        assert_eq!(settings.links(&["local"]), ["wan", "slow"]);
        assert_eq!(settings.scale_over("wan"), 0.5);
        assert!(settings.wants("Arrow Flight, lz4") && settings.wants("netcat, CSV"));
        assert!(!settings.wants("Lightship"));
        assert_eq!(settings.arguments(), "--rounds 1 --link wan slow --scale 0.5 --only 'FLIGHT' 'netcat'");
        let whole = parse("--only =lightship");
        assert!(whole.wants("Lightship") && !whole.wants("Lightship, none"));
        let case = parse("--case 100 csv");
        assert!(case.wants_case("100") && case.wants_case("CSV") && !case.wants_case("1"));
        assert_eq!(case.arguments(), "--rounds 5 --case '100' 'csv'");
        assert_eq!(parse("--before a/bench").arguments(), "--rounds 5 --before PROGRAM");
        let usual = parse("");
        assert!(usual.wants_case("1"));
        assert_eq!(usual.links(&["local"]), ["local"]);
        assert!(usual.wants("anything") && usual.scale_over("slow") < usual.scale_over("local"));
        assert!(Line::try_parse_from(["bench", "--scale", "0"]).is_err());
    }
}
