//! Compares the figures in the hand-written text of the pages of results, of the README and of the guide with the tables that
//! they come from.
//!
//! A figure has a mark behind it, which readers of the page do not see:
//!
//! ```text
//! 0.43<!--= clients.csv seconds[case=PostgreSQL to pyarrow; contender=Lightship] / [contender=ConnectorX] -->
//! ```
//!
//! The rows of the CSV file that have these values give the median of the column; `min`, `max`, `sum`, `mean` and `count`
//! before the name give these. `sum by query:` is the sum of the medians of each query. Terms are joined from left to right by
//! ` / `, ` * `, ` + ` and ` - `; a number is a term, and a term without a file has the file and the column of the one before,
//! and its conditions except those that it replaces. `max for link; query:` at the beginning computes the whole for each link and
//! query that the first term's rows have, and takes the largest. `A|B` is one of several values, `*` stands for any text, and
//! `KEY!=VALUE` excludes rows. A figure is right if it is the value rounded to its digits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Result<T> = std::result::Result<T, String>;

const BEGIN: &str = "<!--= ";
const END: &str = " -->";

/// Checks every mark of the pages in `folder` and adds what is wrong to `found`. Returns how many marks there are.
///
/// # Errors
/// When the folder or a page can't be read.
pub(crate) fn check(root: &Path, found: &mut Vec<String>) -> std::io::Result<usize> {
    let mut tables = Tables { folder: root.join("docs/results"), read: BTreeMap::new() };
    let mut pages = vec![root.join("README.md")];
    for folder in ["docs/results", "docs/guide"] {
        for entry in std::fs::read_dir(root.join(folder))? {
            pages.push(entry?.path());
        }
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    let mut count = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page)?;
        let name = page.strip_prefix(root).unwrap_or(&page).display();
        for (number, line) in text.lines().enumerate() {
            for mark in marks(line) {
                count += 1;
                if let Err(error) =
                    mark.and_then(|(figure, expression)| compare(figure, expression, &mut tables))
                {
                    found.push(format!("{name}:{}: {error}", number + 1));
                }
            }
        }
    }
    Ok(count)
}

/// The figures of a line that have a mark, with its expression.
fn marks(line: &str) -> impl Iterator<Item = Result<(&str, &str)>> {
    line.match_indices(BEGIN).map(|(at, _)| {
        let rest = &line[at + BEGIN.len()..];
        let end = rest.find(END).ok_or_else(|| format!("a mark without `{END}` in its line"))?;
        let before = &line[..at];
        let is_of = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '%');
        let begin = before
            .rfind(|c| !is_of(c))
            .map_or(0, |last| last + before[last..].chars().next().map_or(1, char::len_utf8));
        Ok((&before[begin..], &rest[..end]))
    })
}

fn compare(figure: &str, expression: &str, tables: &mut Tables) -> Result<()> {
    let digits = figure.trim_end_matches('%').replace(',', "");
    let shown: f64 =
        digits.parse().map_err(|_| format!("no figure before the mark `{expression}`, but `{figure}`"))?;
    let scale = if figure.ends_with('%') { 100.0 } else { 1.0 };
    let value = evaluate(expression, tables).map_err(|error| format!("{figure}: {error}"))? * scale;
    let places = digits.split_once('.').map_or(0, |(_, places)| places.len());
    let half = 0.5 * 10f64.powi(-i32::try_from(places).unwrap_or(i32::MAX));
    // A value in the middle may be rounded either way.
    if (value - shown).abs() <= half * 1.000_001 {
        return Ok(());
    }
    Err(format!("{figure} is {value:.*} in the data: {expression}", places + 2))
}

fn evaluate(expression: &str, tables: &mut Tables) -> Result<f64> {
    let (group, formula) = match expression.split_once(" for ") {
        Some((fold, rest)) if Fold::named(fold).is_some() => {
            let (keys, formula) = rest.split_once(": ").ok_or("`for` without a colon")?;
            (Fold::named(fold).map(|fold| (fold, keys_of(keys))), formula)
        }
        _ => (None, expression),
    };
    let terms = terms(formula)?;
    let Some((fold, keys)) = group else { return computed(&terms, &[], tables) };
    let Some((_, Term::Cells(first))) = terms.first() else { return Err("`for` needs a table".into()) };
    let mut values = Vec::new();
    for group in first.groups(&keys, &[], tables)? {
        values.push(computed(&terms, &group, tables)?);
    }
    fold.of(values)
}

/// The value of the terms from left to right, of the rows that meet the conditions of a group too.
fn computed(terms: &[(char, Term)], group: &[Condition], tables: &mut Tables) -> Result<f64> {
    let mut value = 0.0;
    for (operator, term) in terms {
        let next = match term {
            Term::Number(number) => *number,
            Term::Cells(cells) => cells.value(group, tables)?,
        };
        value = match operator {
            '/' => value / next,
            '*' => value * next,
            '-' => value - next,
            _ => value + next,
        };
    }
    Ok(value)
}

/// How several values become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fold {
    Median,
    Min,
    Max,
    Sum,
    Mean,
    Count,
}

impl Fold {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "median" => Self::Median,
            "min" => Self::Min,
            "max" => Self::Max,
            "sum" => Self::Sum,
            "mean" => Self::Mean,
            "count" => Self::Count,
            _ => return None,
        })
    }

    #[allow(clippy::cast_precision_loss, reason = "tables have few rows")]
    fn of(self, mut values: Vec<f64>) -> Result<f64> {
        if values.is_empty() {
            return Err("no row has these values".into());
        }
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let sum: f64 = values.iter().sum();
        Ok(match self {
            Self::Median => f64::midpoint(values[(count - 1) / 2], values[count / 2]),
            Self::Min => values[0],
            Self::Max => values[count - 1],
            Self::Sum => sum,
            Self::Mean => sum / count as f64,
            Self::Count => count as f64,
        })
    }
}

/// What rows have in a column.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Condition {
    key: String,
    value: Wanted,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    /// This text.
    Exactly(String),
    /// One of these, or none of them, in which `*` stands for any text.
    Like { patterns: Vec<String>, are_excluded: bool },
}

impl Condition {
    /// `KEY=VALUE`, `KEY=A|B`, `KEY=* x *` or `KEY!=VALUE`.
    fn parse(text: &str) -> Option<Self> {
        let (key, value) = text.split_once('=')?;
        let patterns = || value.split('|').map(str::to_owned).collect();
        let (key, value) = match key.strip_suffix('!') {
            Some(key) => (key, Wanted::Like { patterns: patterns(), are_excluded: true }),
            None if value.contains(['|', '*']) => {
                (key, Wanted::Like { patterns: patterns(), are_excluded: false })
            }
            None => (key, Wanted::Exactly(value.into())),
        };
        Some(Self { key: key.into(), value })
    }

    fn is_met(&self, cell: &str) -> bool {
        match &self.value {
            Wanted::Exactly(value) => cell == value,
            Wanted::Like { patterns, are_excluded } => {
                patterns.iter().any(|pattern| is_like(cell, pattern)) != *are_excluded
            }
        }
    }
}

/// Whether a text has the parts of a pattern, with anything for each `*` between them.
fn is_like(text: &str, pattern: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return text == pattern };
    let Some(text) = text.strip_prefix(first) else { return false };
    text.char_indices().map(|(at, _)| at).chain([text.len()]).any(|at| is_like(&text[at..], rest))
}

#[derive(Debug)]
enum Term {
    Number(f64),
    Cells(Cells),
}

/// A column of the rows of a file that meet conditions.
#[derive(Debug, Clone)]
struct Cells {
    fold: Fold,
    by: Vec<String>,
    file: String,
    column: String,
    conditions: Vec<Condition>,
}

impl Cells {
    fn value(&self, group: &[Condition], tables: &mut Tables) -> Result<f64> {
        let conditions: Vec<_> = self.conditions.iter().chain(group).cloned().collect();
        if self.by.is_empty() {
            return self.fold.of(tables.values(&self.file, &self.column, &conditions)?);
        }
        let mut medians = Vec::new();
        for part in self.groups(&self.by, group, tables)? {
            let conditions: Vec<_> = conditions.iter().chain(&part).cloned().collect();
            medians.push(Fold::Median.of(tables.values(&self.file, &self.column, &conditions)?)?);
        }
        self.fold.of(medians)
    }

    /// The values of `keys` that rows have, each a list of conditions.
    fn groups(
        &self,
        keys: &[String],
        group: &[Condition],
        tables: &mut Tables,
    ) -> Result<BTreeSet<Vec<Condition>>> {
        let conditions: Vec<_> = self.conditions.iter().chain(group).cloned().collect();
        let table = tables.of(&self.file)?;
        let places = keys.iter().map(|key| table.place(key)).collect::<Result<Vec<_>>>()?;
        let rows = table.rows(&conditions)?;
        let of = |row: &Vec<String>| {
            let exactly = |(key, &place): (&String, &usize)| Condition {
                key: key.clone(),
                value: Wanted::Exactly(row[place].clone()),
            };
            keys.iter().zip(&places).map(exactly).collect()
        };
        Ok(rows.into_iter().map(of).collect())
    }
}

fn keys_of(text: &str) -> Vec<String> {
    text.split("; ").map(str::to_owned).collect()
}

fn terms(formula: &str) -> Result<Vec<(char, Term)>> {
    let mut terms: Vec<(char, Term)> = Vec::new();
    let mut rest = formula.trim();
    let mut operator = '+';
    loop {
        // The first operator outside of conditions, which may have one in a value.
        let mut depth = 0_i32;
        let end = rest.char_indices().find_map(|(at, c)| {
            depth += i32::from(c == '[') - i32::from(c == ']');
            let next = rest[at..].chars().take(3).collect::<Vec<_>>();
            (depth == 0 && matches!(next[..], [' ', '/' | '*' | '+' | '-', ' '])).then_some(at)
        });
        let text = rest[..end.unwrap_or(rest.len())].trim();
        let before = terms.iter().rev().find_map(|(_, term)| match term {
            Term::Cells(cells) => Some(cells),
            Term::Number(_) => None,
        });
        let term = text
            .parse()
            .map_or_else(|_| cells(text, before).map(Term::Cells), |number| Ok(Term::Number(number)))?;
        terms.push((operator, term));
        let Some(end) = end else { return Ok(terms) };
        operator = rest[end + 1..].chars().next().unwrap_or('+');
        rest = &rest[end + 3..];
    }
}

/// `[FOLD [by KEYS:]] FILE COLUMN[KEY=VALUE; ...]`, or only the last part.
fn cells(text: &str, before: Option<&Cells>) -> Result<Cells> {
    let wrong = || format!("expected FILE.csv COLUMN[KEY=VALUE; ...], not `{text}`");
    let (head, list) = text.strip_suffix(']').and_then(|text| text.split_once('[')).ok_or_else(wrong)?;
    let mut cells = if head.is_empty() {
        before.cloned().ok_or("the first term has no file")?
    } else {
        let (mut head, mut fold, mut by) = (head, Fold::Median, Vec::new());
        if let Some((named, rest)) =
            head.split_once(' ').and_then(|(name, rest)| Some((Fold::named(name)?, rest)))
        {
            (fold, head) = (named, rest);
            if let Some((keys, rest)) = head.strip_prefix("by ").and_then(|rest| rest.split_once(": ")) {
                (by, head) = (keys_of(keys), rest);
            }
        }
        let (file, column) = head.split_once(' ').ok_or_else(wrong)?;
        Cells { fold, by, file: file.into(), column: column.into(), conditions: Vec::new() }
    };
    for condition in list.split("; ").filter(|condition| !condition.is_empty()) {
        let condition = Condition::parse(condition).ok_or_else(wrong)?;
        cells.conditions.retain(|known| known.key != condition.key);
        cells.conditions.push(condition);
    }
    Ok(cells)
}

/// The files that marks name, each read once.
struct Tables {
    folder: PathBuf,
    read: BTreeMap<String, Table>,
}

struct Table {
    name: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Tables {
    fn of(&mut self, file: &str) -> Result<&Table> {
        if !self.read.contains_key(file) {
            let wrong = |error: csv::Error| format!("{file}: {error}");
            let mut reader = csv::Reader::from_path(self.folder.join(file)).map_err(wrong)?;
            let fields = |record: &csv::StringRecord| record.iter().map(str::to_owned).collect::<Vec<_>>();
            let columns = fields(reader.headers().map_err(wrong)?);
            let rows = reader
                .records()
                .map(|record| record.map(|record| fields(&record)))
                .collect::<csv::Result<_>>();
            self.read.insert(file.into(), Table { name: file.into(), columns, rows: rows.map_err(wrong)? });
        }
        Ok(&self.read[file])
    }

    fn values(&mut self, file: &str, column: &str, conditions: &[Condition]) -> Result<Vec<f64>> {
        let table = self.of(file)?;
        let place = table.place(column)?;
        let cell = |row: &Vec<String>| match row[place].as_str() {
            "" => Ok(f64::NAN),
            text => text.parse().map_err(|_| format!("{file}, column {column}: `{text}` is not a number")),
        };
        let mut values = table.rows(conditions)?.into_iter().map(cell).collect::<Result<Vec<f64>>>()?;
        // Not measured.
        values.retain(|value| !value.is_nan());
        if values.is_empty() {
            Err(format!("no row of {file} has a value of {column} with {conditions:?}"))
        } else {
            Ok(values)
        }
    }
}

impl Table {
    fn place(&self, column: &str) -> Result<usize> {
        self.columns
            .iter()
            .position(|known| known == column)
            .ok_or_else(|| format!("{} has no column `{column}`, but {}", self.name, self.columns.join("; ")))
    }

    fn rows(&self, conditions: &[Condition]) -> Result<Vec<&Vec<String>>> {
        let place = |condition: &Condition| self.place(&condition.key);
        let places = conditions.iter().map(place).collect::<Result<Vec<_>>>()?;
        let is_met = |row: &&Vec<String>| {
            conditions.iter().zip(&places).all(|(condition, &place)| condition.is_met(&row[place]))
        };
        Ok(self.rows.iter().filter(is_met).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> Tables {
        let rows = [
            ["lan", "q1", "ours", "1", "2.0"],
            ["lan", "q1", "ours", "2", "4.0"],
            ["lan", "q1", "theirs", "1", "6.0"],
            ["lan", "q2", "ours", "1", "1.0"],
            ["lan", "q2", "theirs", "1", "10"],
            ["wan / slow", "q1", "ours", "1", "7"],
            ["wan / slow", "q1", "theirs", "1", "NaN"],
            ["wan / slow", "q1", "theirs", "2", "14"],
        ];
        let table = Table {
            name: "t.csv".into(),
            columns: ["link", "query", "contender", "round", "wire MB"].map(Into::into).to_vec(),
            rows: rows.map(|row| row.map(Into::into).to_vec()).to_vec(),
        };
        Tables { folder: PathBuf::new(), read: [("t.csv".into(), table)].into() }
    }

    #[test]
    fn expressions_have_the_values_of_their_rows() {
        for (expression, expected) in [
            ("t.csv wire MB[link=lan; query=q1; contender=ours]", 3.0),
            ("max t.csv wire MB[link=lan; query=q1; contender=ours]", 4.0),
            ("count t.csv wire MB[link=lan]", 5.0),
            ("t.csv wire MB[link=lan; query=q1; contender=ours] / [contender=theirs]", 0.5),
            ("t.csv wire MB[link=wan / slow; contender=ours] / [contender=theirs]", 0.5),
            ("sum by query: t.csv wire MB[link=lan; contender=ours] / [contender=theirs] * 100", 25.0),
            ("min for link; query: t.csv wire MB[contender=ours] / [contender=theirs]", 0.1),
            ("sum t.csv wire MB[link=lan; contender!=theirs]", 7.0),
            ("max t.csv wire MB[link=l*n|x; query=q*; contender=*urs]", 4.0),
            ("count t.csv wire MB[link=*s*w; contender!=a|ours]", 1.0),
            ("1 - t.csv wire MB[link=lan; query=q2; contender=ours]", 0.0),
        ] {
            let value = evaluate(expression, &mut tables()).unwrap();
            assert!((value - expected).abs() < 1e-12, "{expression}: {value}");
        }
    }

    #[test]
    fn figures_are_compared_to_their_digits() {
        let line = "takes **0.33**, 33.3%<!--= t.csv wire MB[query=q2; contender=ours] / 3 -->, not é0.4<!--= 0.5 / 1 -->, \
                    1,253<!--= 1253.4 / 1 -->, x<!--= 1 / 1 -->, 3<!--= t.csv wire MB[link=none] -->, 2<!--= t.csv MB[] -->";
        let said: Vec<_> =
            marks(line).map(|mark| mark.and_then(|(a, b)| compare(a, b, &mut tables()))).collect();
        assert_eq!(
            said.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [true, false, true, false, false, false]
        );
        let errors: Vec<_> = said.into_iter().filter_map(Result::err).collect();
        assert_eq!(errors[0], "0.4 is 0.500 in the data: 0.5 / 1");
        assert!(errors[1].starts_with("no figure"), "{errors:?}");
        assert!(errors[2].contains("no row of t.csv"), "{errors:?}");
        assert!(errors[3].contains("no column `MB`"), "{errors:?}");
    }

    #[test]
    fn marks_that_are_not_expressions_are_errors() {
        for expression in
            ["", "t.csv", "[a=b]", "t.csv wire MB[query]", "max for link t.csv wire MB[]", "absent.csv x[]"]
        {
            assert!(evaluate(expression, &mut tables()).is_err(), "{expression}");
        }
        assert!(marks("1<!--= 1").next().unwrap().is_err());
    }
}
