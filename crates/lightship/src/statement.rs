//! A query with the values of its parameters.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, StringArray};
use arrow_schema::{DataType, Field, Schema};

use crate::{Error, ErrorKind, Result};

/// A query, with the values of its parameters if it has some. Text is a query without parameters.
///
/// Placeholders are those of the source: `?` or `$1`, `$2` and so on for nodes and files, `$1` for PostgreSQL, `?` for MySQL
/// and SQLite. Each source casts the values to the types that the query requires.
#[derive(Debug, Clone)]
pub struct Statement {
    pub(crate) sql: String,
    /// One row.
    pub(crate) parameters: Option<RecordBatch>,
}

impl Statement {
    /// A query with these values: the columns of `row`, in the order of the parameters. Their names do not matter.
    ///
    /// # Errors
    /// If it is not one row.
    pub fn with_row(sql: impl Into<String>, row: RecordBatch) -> Result<Self> {
        if row.num_rows() != 1 {
            let message = format!("{} rows of parameters for one execution of a query", row.num_rows());
            return Err(Error::new(ErrorKind::Usage, message).hint("execute the query once for each row"));
        }
        Ok(Self { sql: sql.into(), parameters: Some(row) })
    }

    /// A query with these values as text.
    pub fn with_texts<'a>(sql: impl Into<String>, values: impl IntoIterator<Item = &'a str>) -> Self {
        let columns: Vec<ArrayRef> =
            values.into_iter().map(|value| Arc::new(StringArray::from(vec![value])) as ArrayRef).collect();
        let fields =
            (1..=columns.len()).map(|number| Field::new(format!("${number}"), DataType::Utf8, false));
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let row = RecordBatch::try_new_with_options(schema, columns, &options);
        Self { sql: sql.into(), parameters: row.ok() }
    }

    /// The SQL.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// Whether it is an INSERT, which a node answers with the number of its rows.
    pub(crate) fn is_insert(&self) -> bool {
        let rest = without_comments(&self.sql);
        let word = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next();
        word.is_some_and(|word| word.eq_ignore_ascii_case("insert"))
    }
}

/// The text from its first word on.
fn without_comments(sql: &str) -> &str {
    let mut rest = sql.trim_start();
    loop {
        rest = if let Some(comment) = rest.strip_prefix("--") {
            comment.split_once('\n').map_or("", |(_, rest)| rest)
        } else if let Some(mut comment) = rest.strip_prefix("/*") {
            // Comments are nested.
            let mut depth = 1;
            while depth > 0 {
                let Some(at) = comment.find("*/") else { return "" };
                depth += comment[..at].matches("/*").count();
                depth -= 1;
                comment = &comment[at + 2..];
            }
            comment
        } else {
            return rest;
        };
        rest = rest.trim_start();
    }
}

impl From<&str> for Statement {
    fn from(sql: &str) -> Self {
        Self { sql: sql.to_owned(), parameters: None }
    }
}

impl From<&String> for Statement {
    fn from(sql: &String) -> Self {
        sql.as_str().into()
    }
}

impl From<String> for Statement {
    fn from(sql: String) -> Self {
        Self { sql, parameters: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserts_are_told_from_queries() {
        for (sql, expected) in [
            ("insert into t values (1)", true),
            ("  INSERT\ninto t select 1", true),
            ("-- why\n/* a /* b */ c */ insert into t values (1)", true),
            ("select 'insert into t'", false),
            ("inserted", false),
            ("/* insert into t", false),
            ("-- insert into t", false),
            ("", false),
        ] {
            assert_eq!(Statement::from(sql).is_insert(), expected, "{sql}");
        }
    }
}
