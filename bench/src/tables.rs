//! Results as tables in Markdown.

use crate::results::{Results, Summary};

/// How contenders are compared by their first figure.
pub(crate) struct Standing<'a> {
    pub(crate) ratio: Ratio<'a>,
    /// Targets: the highest ratio for the row of a contender.
    pub(crate) targets: &'a [(&'a str, f64)],
}

/// What the column of ratios shows.
#[derive(Clone, Copy)]
pub(crate) enum Ratio<'a> {
    /// The value of this contender divided by the row's.
    Ours(&'a str),
    /// The row's value divided by that of this contender.
    Of(&'a str),
}

impl Ratio<'_> {
    fn contender(&self) -> &str {
        match self {
            Self::Ours(name) | Self::Of(name) => name,
        }
    }

    fn head(&self) -> String {
        match self {
            Self::Ours(_) => "ours / this".into(),
            Self::Of(name) => format!("this / {name}"),
        }
    }
}

/// A table of the contenders of a place: one row each, with all figures.
pub(crate) fn contenders<S: AsRef<str>>(
    results: &Results,
    place: &[S],
    standing: Option<&Standing<'_>>,
) -> String {
    let names = results.contenders(place);
    // No ratios without a run of the contender that the others are compared with.
    let standing = standing.filter(|standing| names.contains(&standing.ratio.contender()));
    let aims = standing.is_some_and(|standing| standing.targets.iter().any(|(of, _)| names.contains(of)));
    let rounds: Vec<_> = names.iter().map(|name| results.rounds(place, name)).collect();
    let uneven = rounds.iter().any(|count| *count != rounds[0]);
    let mut head = vec![String::new()];
    for (at, figure) in results.figures.iter().enumerate() {
        head.push(format!("{}, median", figure.name));
        if figure.range {
            head.extend(["min", "max"].map(ToOwned::to_owned));
        }
        if let (0, Some(standing)) = (at, standing) {
            head.push(standing.ratio.head());
            head.extend(aims.then(|| "target".to_owned()));
        }
    }
    head.extend(uneven.then(|| "rounds".to_owned()));
    let rows = names.iter().zip(rounds).map(|(name, rounds)| {
        let mut cells = vec![(*name).to_owned()];
        for (at, figure) in results.figures.iter().enumerate() {
            let summary = results.summary(place, name, at);
            let values = [summary.median, summary.min, summary.max];
            let shown = if figure.range { &values[..] } else { &values[..1] };
            cells.extend(shown.iter().map(|value| number(*value, figure.digits)));
            if let (0, Some(standing)) = (at, standing) {
                let other = results.median(place, standing.ratio.contender());
                let ratio = match standing.ratio {
                    Ratio::Ours(_) => other / summary.median,
                    Ratio::Of(_) => summary.median / other,
                };
                cells.push(number(ratio, 2));
                let target = standing.targets.iter().find(|(of, _)| of == name);
                cells.extend(
                    aims.then(|| target.map_or(String::new(), |(_, target)| format!("<= {target:.2}"))),
                );
            }
        }
        cells.extend(uneven.then(|| rounds.to_string()));
        cells
    });
    table(&head, rows)
}

/// A table of one figure: a row for each of `rows`, a column for each of `columns`.
///
/// `corner` heads the first column; `cell` returns the text for a row and a column.
pub(crate) fn grid<R: AsRef<str>, C: AsRef<str>>(
    corner: &str,
    rows: &[R],
    columns: &[C],
    cell: impl Fn(&str, &str) -> String,
) -> String {
    let columns: Vec<_> = columns.iter().map(AsRef::as_ref).collect();
    let head: Vec<_> = [corner].iter().chain(&columns).map(ToString::to_string).collect();
    let line = |row: &R| {
        let cells = columns.iter().map(|column| cell(row.as_ref(), column));
        std::iter::once(row.as_ref().to_owned()).chain(cells).collect::<Vec<_>>()
    };
    table(&head, rows.iter().map(line))
}

/// A median with its range; empty if it is not a number.
pub(crate) fn spread(summary: Summary, digits: usize) -> String {
    let Summary { median, min, max } = summary;
    if median.is_nan() { String::new() } else { format!("{median:.digits$} ({min:.digits$}-{max:.digits$})") }
}

/// A number; empty if it is not a number.
pub(crate) fn number(value: f64, digits: usize) -> String {
    if value.is_nan() { String::new() } else { format!("{value:.digits$}") }
}

fn table(head: &[String], rows: impl Iterator<Item = Vec<String>>) -> String {
    // A vertical bar within a cell would end it.
    let escaped = |cells: &[String]| cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>();
    let line = |cells: &[String]| format!("| {} |", escaped(cells).join(" | "));
    let rule = vec!["---".to_owned(); head.len()];
    let lines = [line(head), line(&rule)].into_iter().chain(rows.map(|cells| line(&cells)));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{open, runs};

    #[test]
    fn contenders_are_compared_with_ours() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut results = open(folder.path());
        results.add(runs("lan", 1.0, &[("a", &[1.0, 1.0, 4.0]), ("b", &[2.0, 2.0, 2.0])])).expect("saved");
        let standing = Standing { ratio: Ratio::Ours("a"), targets: &[("b", 0.8)] };
        let shown = contenders(&results, &["lan"], Some(&standing));
        let expected = "\
|  | seconds, median | min | max | ours / this | target | wire MB, median |
| --- | --- | --- | --- | --- | --- | --- |
| a | 1.00 | 1.00 | 4.00 | 1.00 |  | 10 |
| b | 2.00 | 2.00 | 2.00 | 0.50 | <= 0.80 | 20 |";
        assert_eq!(shown, expected);
        results.add(runs("lan", 1.0, &[("b", &[3.0])])).expect("saved");
        let uneven = contenders(&results, &["lan"], None);
        assert!(uneven.ends_with("| b | 3.00 | 3.00 | 3.00 | 30 | 1 |"), "{uneven}");
        let of = Standing { ratio: Ratio::Of("a"), targets: &[("b", 4.0)] };
        let shown = contenders(&results, &["lan"], Some(&of));
        assert!(shown.contains("this / a | target"), "{shown}");
        assert!(shown.ends_with("| b | 3.00 | 3.00 | 3.00 | 3.00 | <= 4.00 | 30 | 1 |"), "{shown}");
        let absent = Standing { ratio: Ratio::Ours("not run"), targets: &[] };
        assert_eq!(contenders(&results, &["lan"], Some(&absent)), uneven);
    }

    #[test]
    fn a_grid_has_a_cell_for_each_pair_escapes_bars_and_leaves_missing_values_empty() {
        let cell = |row: &str, column: &str| {
            let value = if row == "y|z" { f64::NAN } else { 1.0 };
            format!("{column}{}", spread(Summary { median: value, min: 0.5, max: 2.25 }, 1))
        };
        let shown = grid("of", &["x", "y|z"], &["a", "b"], cell);
        let expected = "\
| of | a | b |
| --- | --- | --- |
| x | a1.0 (0.5-2.2) | b1.0 (0.5-2.2) |
| y\\|z | a | b |";
        assert_eq!(shown, expected);
    }
}
