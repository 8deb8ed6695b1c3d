//! The targets beside what was measured, from the files of all three benchmarks.

use super::outcome::{Row, Rows};
use super::{cost, faults, predictions};
use crate::report::{self, Page};
use crate::results::{Results, Summary};
use crate::settings::Settings;
use crate::{Result, places, tables};

const NAME: &str = "usage-targets";

/// Whether a target is met; what was measured.
type Outcome = (bool, String);

/// Reasons that were found for targets that are missed, written by hand: the beginning of a target, and why. Without a
/// target, they are notes on all of the page.
const REASONS: &str = "bench/src/experiments/usage/reasons.csv";

pub(super) fn publish(settings: &Settings) -> Result<()> {
    let reasons = reasons()?;
    let rows = Rows::open(&settings.results(), faults::NAME, faults::DIMENSIONS)?;
    let costs = Results::open(&settings.results(), cost::NAME, &["what"], cost::FIGURES)?;
    let agents = Results::open(&settings.results(), cost::AGENT_NAME, &["interval"], cost::AGENT_FIGURES)?;
    let lines = predictions::compared(&settings.results())?;
    let all: [(&str, Option<Outcome>); 5] = [
        (
            "at least 90% explained of the time of queries that one resource limits on purpose",
            explained(&rows),
        ),
        ("predictions of at least 24 changes: mean error at most 10%, worst at most 20%", predicted(&lines)),
        ("at least 9 of 10 faults named rightly, none unexplained", named(&rows)),
        ("an agent takes at most 1% of a processor with one sample a second", agent(&agents)),
        ("queries are slowed down by less than 1%", slowdown(&costs)),
    ];
    let known: Vec<(&str, Outcome)> =
        all.into_iter().filter_map(|(target, outcome)| Some((target, outcome?))).collect();
    let names: Vec<&str> = known.iter().map(|(target, _)| *target).collect();
    let cell = |row: &str, column: &str| {
        let Some((target, (is_met, measured))) = known.iter().find(|(target, _)| *target == row) else {
            return String::new();
        };
        match column {
            "measured" => measured.clone(),
            "met" => if *is_met { "yes" } else { "**no**" }.to_owned(),
            _ if *is_met => String::new(),
            _ => {
                let of = |(begin, why): &(String, String)| {
                    (!begin.is_empty() && target.starts_with(begin)).then(|| why.clone())
                };
                reasons.iter().find_map(of).unwrap_or_default()
            }
        }
    };
    let text = "After M. Taufer, T. Stricker and R. Weber, \"Inverting Middleware Framework: a Framework for Performance \
                Analysis of Distributed OLAP Benchmark on Clusters of PCs by Filtering and Abstracting Low Level Resource \
                Usage\", ETH Zürich. Each figure is of the sections below, which say how it was measured. [The \
                guide](../guide/usage.md) explains the parts of the time; [decision 24](../decisions/0024-usage.md), how \
                they are found.";
    let table = tables::grid("target", &names, &["measured", "met", "why not"], cell);
    let notes = reasons.iter().filter(|(of, _)| of.is_empty()).map(|(_, note)| note.clone());
    let parts: Vec<String> = [text.to_owned(), table].into_iter().chain(notes).collect();
    report::put(&settings.results(), Page::Usage, NAME, &parts.join("\n\n"))
}

fn reasons() -> Result<Vec<(String, String)>> {
    let path = places::root().join(REASONS);
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_path(path)?;
    let reason = |record: csv::StringRecord| {
        let field = |at: usize| record.get(at).unwrap_or_default().to_owned();
        (field(0), field(1))
    };
    reader.records().map(|record| Ok(reason(record?))).collect()
}

/// The fraction that is explained, of the runs that one resource limits.
fn explained(rows: &Rows) -> Option<Outcome> {
    let limited: Vec<&Row> = rows.rows.iter().filter(|row| row.place[0] == faults::LIMIT).collect();
    let least = limited.iter().min_by(|a, b| a.explained().total_cmp(&b.explained()))?;
    let enough = limited.iter().filter(|row| row.explained() >= 0.9).count();
    let all = limited.len();
    let seconds: f64 = limited.iter().map(|row| row.seconds).sum();
    let part = limited.iter().map(|row| row.explained() * row.seconds).sum::<f64>() / seconds;
    let named = limited.iter().filter(|row| faults::is_right(row)).count();
    let text = format!(
        "{:.1}% of the time of {all} runs; at least 90% in {enough} of them, least {:.0}% ({}); the resource is named in \
         {named}",
        part * 100.0,
        least.explained() * 100.0,
        least.place[1..4].join(", ")
    );
    Some((part >= 0.9 && enough == all, text))
}

fn predicted(lines: &[predictions::Line]) -> Option<Outcome> {
    let worst = lines.iter().max_by(|a, b| a.error().total_cmp(&b.error()))?;
    let mean = lines.iter().map(predictions::Line::error).sum::<f64>() / lines.len() as f64;
    let few = lines.iter().filter(|line| line.error() <= 0.2).count();
    let text = format!(
        "{} changes: mean {:.1}%, worst {:.0}% ({} {}, {} to {}); at most 20% in {few}",
        lines.len(),
        mean * 100.0,
        worst.error() * 100.0,
        worst.system,
        worst.query,
        worst.from,
        worst.to
    );
    Some((lines.len() >= 24 && mean <= 0.1 && worst.error() <= 0.2, text))
}

fn named(rows: &Rows) -> Option<Outcome> {
    let injected: Vec<&Row> = rows.rows.iter().filter(|row| row.place[0] == faults::FAULT).collect();
    let all = injected.len();
    let right = injected.iter().filter(|row| faults::is_right(row)).count();
    let unexplained =
        injected.iter().filter(|row| ["inefficient", "unknown"].contains(&row.limit.as_str())).count();
    let text = format!("{right} of {all} runs; {unexplained} unexplained");
    (all > 0).then(|| (10 * right >= 9 * all && unexplained == 0, text))
}

fn agent(agents: &Results) -> Option<Outcome> {
    let Summary { median, max, .. } = agents.summary(&["1s"], cost::AGENT, 0);
    (!median.is_nan()).then(|| (median <= 1.0, format!("{median:.2}% (most {max:.2}%)")))
}

fn slowdown(costs: &Results) -> Option<Outcome> {
    let more = |name: &str, figure: usize| {
        let of = |name: &str| costs.summary(&["TPC-H"], name, figure).median;
        (of(name) / of(cost::PLAIN) - 1.0) * 100.0
    };
    let [usage, beside] = [cost::USAGE, cost::BESIDE].map(|name| more(name, 0));
    let text = format!(
        "{usage:+.1}% in a node, {beside:+.1}% beside one; processor time of the node {:+.1}%",
        more(cost::USAGE, 1)
    );
    (!usage.is_nan()).then_some((usage < 1.0 && beside < 1.0, text))
}
