//! A [`Scan`] as a `SELECT` of MySQL and SQLite.
//!
//! Identifiers are quoted with backticks, which SQLite accepts too: it reads an
//! unknown name in double quotes as a string.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::Schema;

use crate::{Rows, Scan, TableName};

/// Quotes a name as an identifier.
pub(crate) fn identifier(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// The table's quoted name, with its schema if it has one.
pub(crate) fn table(name: &TableName) -> String {
    match &name.schema {
        Some(schema) => format!("{}.{}", identifier(schema), identifier(&name.name)),
        None => identifier(&name.name),
    }
}

/// The statement for `scan`. Without columns (an empty list) it returns one
/// integer, the number of rows, for [`rows_without_columns`].
pub(crate) fn statement(scan: &Scan) -> String {
    let table = table(&scan.table);
    // The line break ends a comment at the end of the condition.
    let filter = scan.filter.as_ref().map(|filter| format!(" WHERE ({filter}\n)")).unwrap_or_default();
    let limit = scan.limit.map(|limit| format!(" LIMIT {limit}")).unwrap_or_default();
    match scan.columns.as_deref() {
        None => format!("SELECT * FROM {table}{filter}{limit}"),
        Some([]) if limit.is_empty() => format!("SELECT COUNT(*) FROM {table}{filter}"),
        Some([]) => format!("SELECT COUNT(*) FROM (SELECT 1 FROM {table}{filter}{limit}) AS counted"),
        Some(columns) => {
            let columns: Vec<_> = columns.iter().map(|column| identifier(column)).collect();
            format!("SELECT {} FROM {table}{filter}{limit}", columns.join(", "))
        }
    }
}

/// `count` rows without columns, at most `batch_rows` in a batch.
pub(crate) fn rows_without_columns(count: u64, batch_rows: usize) -> Rows {
    let schema = Arc::new(Schema::empty());
    let batch_rows = batch_rows.max(1) as u64;
    let batches = futures::stream::iter((0..count.div_ceil(batch_rows)).map({
        let schema = schema.clone();
        move |batch| {
            let rows = batch_rows.min(count - batch * batch_rows);
            let rows = usize::try_from(rows).unwrap_or(usize::MAX);
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            Ok(RecordBatch::try_new_with_options(schema.clone(), Vec::new(), &options)?)
        }
    }));
    Rows { schema, batches: Box::pin(batches), rows_estimate: Some(count), tuples: None }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt};

    use super::*;

    fn check(columns: Option<&[&str]>, filter: Option<&str>, limit: Option<u64>, expected: &str) {
        let scan = Scan {
            table: TableName { schema: None, name: "t`x".into() },
            columns: columns.map(|columns| columns.iter().map(|&c| c.to_owned()).collect()),
            filter: filter.map(str::to_owned),
            limit,
        };
        assert_eq!(statement(&scan), expected);
    }

    #[test]
    fn scans_become_statements() {
        check(None, None, None, "SELECT * FROM `t``x`");
        check(Some(&["a", "b c"]), None, Some(3), "SELECT `a`, `b c` FROM `t``x` LIMIT 3");
        check(None, Some("a = 1 OR b -- x"), None, "SELECT * FROM `t``x` WHERE (a = 1 OR b -- x\n)");
        check(Some(&[]), Some("a"), None, "SELECT COUNT(*) FROM `t``x` WHERE (a\n)");
        check(Some(&[]), None, Some(1), "SELECT COUNT(*) FROM (SELECT 1 FROM `t``x` LIMIT 1) AS counted");
    }

    #[test]
    fn schema_and_name_are_quoted_separately() {
        let name = TableName { schema: Some("a.b".into()), name: "c`d".into() };
        assert_eq!(table(&name), "`a.b`.`c``d`");
    }

    #[test]
    fn rows_without_columns_come_in_batches() {
        for (count, sizes) in [(0, vec![]), (1, vec![1]), (10, vec![5, 5]), (11, vec![5, 5, 1])] {
            let rows = rows_without_columns(count, 5);
            let batches: Vec<_> =
                rows.batches.map(|b| b.unwrap().num_rows()).collect().now_or_never().unwrap();
            assert_eq!(batches, sizes);
        }
    }
}
