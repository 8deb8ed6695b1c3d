//! Estimates the size of a result.
//!
//! MariaDB's optimizer estimates how many rows it reads from each table, but not how many the statement
//! returns. So the rows are known only for statements without grouping, UNION and aggregates. MySQL's
//! optimizer estimates the rows of the whole statement. Neither estimates the width of a row, so the first
//! rows are fetched and their bytes on the wire are counted.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Error, Row};
use tokio::time::timeout;

use super::{MySqlSource, errors};
use crate::{Cursor, Cursors, Estimated, Result, SourceError};

/// Rows that are fetched to estimate the size of one.
const SAMPLE_ROWS: u32 = 100;
/// Maximum time to fetch them, because sorting and grouping delay the first row. After that the size is unknown
/// here, and the user can state it.
const SAMPLE_MAX: Duration = Duration::from_secs(10);

/// The id of the outermost SELECT.
const OUTERMOST: u64 = 1;
/// Maximum nesting of SELECTs that is followed.
const DEEP_MAX: usize = 16;

/// Estimates the size of a query's result.
pub(super) async fn estimate(source: &MySqlSource, sql: &str) -> Result<Estimated> {
    let mut connection = source.open().await?;
    // Prepared first, because that refuses more than one statement.
    let columns = async {
        let statement = connection.get()?.prep(sql).await?;
        if statement.num_params() > 0 {
            let required = statement.num_params();
            return Err(mysql_async::DriverError::StmtParamsMismatch { required, supplied: 0 }.into());
        }
        Ok(statement.columns().len())
    };
    let columns = match columns.await {
        Ok(columns) => columns,
        Err(error) => {
            connection.close().await;
            return Err(errors::statement(&source.server, sql, 0, error));
        }
    };
    let around = around(sql, columns);
    let explained = async {
        let conn = connection.get()?;
        let version: Option<String> = conn.query_first("SELECT VERSION()").await?;
        if version.is_some_and(|version| version.contains("MariaDB")) {
            let told: Vec<Row> = conn.query(format!("EXPLAIN EXTENDED {around}")).await?;
            Ok(rows(&told.iter().map(Step::read).collect::<Vec<_>>(), OUTERMOST, DEEP_MAX))
        } else {
            let told: Option<String> = conn.query_first(format!("EXPLAIN FORMAT=TREE {around}")).await?;
            Ok(told.as_deref().and_then(rows_of_tree))
        }
    };
    let explained: Result<_, Error> = explained.await;
    connection.close().await;
    let rows = match explained {
        Ok(rows) => rows.map(|rows| rows.ceil() as u64),
        // A statement that can be prepared, but not nested in a SELECT, is not a SELECT.
        Err(Error::Server(_)) => {
            return Err(SourceError::Unsupported("an estimate for a statement that is not a SELECT".into()));
        }
        Err(error) => return Err(errors::statement(&source.server, sql, 0, error)),
    };
    let sampled = Box::pin(sample(source, &around));
    let row_bytes = match timeout(SAMPLE_MAX, sampled).await {
        Ok(sampled) => sampled?,
        Err(_) => None,
    };
    Ok(Estimated { rows, row_bytes })
}

/// Mean bytes of the first rows.
async fn sample(source: &MySqlSource, around: &str) -> Result<Option<f64>> {
    let mut cursor = source.cursor(&format!("{around} LIMIT {SAMPLE_ROWS}")).await?;
    let fetched = cursor.fetch(SAMPLE_ROWS).await?;
    cursor.close().await?;
    Ok((fetched.rows > 0).then(|| fetched.bytes as f64 / fetched.rows as f64))
}

/// Wraps a statement in one that selects all its rows, whatever the names of its columns.
fn around(sql: &str, columns: usize) -> String {
    let names: Vec<_> = (1..=columns).map(|column| format!("c{column}")).collect();
    let sql = sql.trim_end_matches(|c: char| c == ';' || c.is_whitespace());
    // The line break ends a comment at the end of the statement.
    format!("WITH result ({}) AS ({sql}\n) SELECT * FROM result", names.join(", "))
}

/// A line of MariaDB's EXPLAIN.
#[derive(Debug, Clone, Default)]
struct Step {
    /// The id of its SELECT; `None` for the result of a UNION.
    select: Option<u64>,
    kind: String,
    table: String,
    access: String,
    rows: Option<f64>,
    /// The percentage of these that conditions keep.
    percent: f64,
    extra: String,
}

impl Step {
    fn read(row: &Row) -> Self {
        let text = |name| row.get_opt::<String, _>(name).and_then(Result::ok).unwrap_or_default();
        let number = |name| text(name).parse().ok().filter(|number: &f64| *number >= 0.0);
        Self {
            select: text("id").parse().ok(),
            kind: text("select_type"),
            table: text("table"),
            access: text("type"),
            rows: number("rows"),
            percent: number("filtered").unwrap_or(100.0),
            extra: text("Extra"),
        }
    }
}

/// Rows of one SELECT by the steps of the statement, if known. Follows at most `deep` nested SELECTs.
fn rows(steps: &[Step], select: u64, deep: usize) -> Option<f64> {
    let mut all = 1.0;
    for step in steps.iter().filter(|step| step.select == Some(select)) {
        // A derived table that is written first: for its LIMIT, or because it groups, unites or aggregates.
        let made = step.table.strip_prefix("<derived").and_then(|table| table.strip_suffix('>'));
        all *= match (step.rows, made) {
            (Some(rows), None) => rows * step.percent / 100.0,
            // One row without a table.
            (Some(rows), Some(_)) if step.access == "system" => rows,
            (Some(made_rows), Some(made)) => {
                let made = made.parse().ok()?;
                // Fewer rows mean a LIMIT: the server does not account for anything else that reduces them.
                let limited = is_plain(steps, made) && made_rows < rows(steps, made, deep.checked_sub(1)?)?;
                limited.then_some(made_rows * step.percent / 100.0)?
            }
            (None, _) => {
                let none = ["Impossible", "no matching row"].iter().any(|none| step.extra.starts_with(none));
                none.then_some(0.0)?
            }
        };
    }
    Some(all)
}

/// Whether a SELECT does not group, and can't be part of a UNION.
fn is_plain(steps: &[Step], select: u64) -> bool {
    steps.iter().all(|step| {
        let grouped = step.select == Some(select) && step.extra.contains("Using temporary");
        !grouped && step.kind != "UNION" && step.select.is_some()
    })
}

/// Rows of a statement by the first line of MySQL's tree, such as `-> Limit: 7 row(s)  (cost=0.75 rows=5)`.
fn rows_of_tree(tree: &str) -> Option<f64> {
    let (_, told) = tree.lines().next()?.rsplit_once(" rows=")?;
    let number = told.split([' ', ')']).next()?;
    number.parse().ok().filter(|rows: &f64| *rows >= 0.0 && rows.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(select: u64, kind: &str, table: &str, rows: f64, extra: &str) -> Step {
        Step {
            select: Some(select),
            kind: kind.into(),
            table: table.into(),
            access: "ALL".into(),
            rows: Some(rows),
            percent: 50.0,
            extra: extra.into(),
        }
    }

    #[test]
    fn rows_are_estimated_from_mariadbs_steps() {
        let check = |steps: &[Step], expected: Option<f64>| {
            assert_eq!(rows(steps, OUTERMOST, DEEP_MAX), expected, "{steps:?}");
        };
        let inner = |extra| step(2, "DERIVED", "t", 1000.0, extra);
        let ours = |rows| Step { percent: 100.0, ..step(1, "PRIMARY", "<derived2>", rows, "") };
        check(&[step(1, "SIMPLE", "a", 100.0, ""), step(1, "SIMPLE", "b", 4.0, "")], Some(100.0));
        check(&[step(1, "PRIMARY", "<derived3>", 7.0, ""), step(3, "DERIVED", "t", 7.0, "")], None);
        check(&[step(1, "PRIMARY", "<derivedx>", 7.0, "")], None);
        check(&[step(1, "PRIMARY", "<derived1>", 7.0, "")], None);
        check(&[step(1, "PRIMARY", "<derived3>", 8.0, ""), step(3, "DERIVED", "t", 70.0, "")], Some(4.0));
        check(&[ours(10.0), inner("Using filesort")], Some(10.0));
        // Aggregated, grouped, united, or with a LIMIT that is not reached.
        check(&[ours(500.0), inner("")], None);
        check(&[ours(10.0), inner("Using temporary; Using filesort")], None);
        check(&[ours(10.0), inner(""), step(3, "UNION", "u", 4.0, "")], None);
        check(&[Step { access: "system".into(), ..ours(1.0) }, Step { rows: None, ..inner("") }], Some(1.0));
        let none = Step { rows: None, ..step(1, "SIMPLE", "", 0.0, "Impossible WHERE") };
        check(&[none], Some(0.0));
        check(&[Step { rows: None, ..step(1, "SIMPLE", "t", 0.0, "") }], None);
    }

    #[test]
    fn rows_are_estimated_from_mysqls_tree() {
        let check = |tree: &str, expected: Option<f64>| assert_eq!(rows_of_tree(tree), expected, "{tree}");
        check("-> Inner hash join (t2.c2 = t1.c1)  (cost=4.70 rows=12)\n    -> Table scan", Some(12.0));
        check("-> Filter: (t.a = 'x rows=5')  (cost=0.35..2.1 rows=4.5e+6)", Some(4.5e6));
        check("-> Table scan on <temporary>\n    -> Aggregate  (cost=1 rows=2)", None);
        check("-> Rows fetched before execution  (cost=0.00 rows=1)", Some(1.0));
        check("<not executable by iterator executor>", None);
        check("", None);
    }

    #[test]
    fn statements_are_wrapped() {
        assert_eq!(
            around("select 1, 2 -- two ; \n", 2),
            "WITH result (c1, c2) AS (select 1, 2 -- two\n) SELECT * FROM result"
        );
    }
}
