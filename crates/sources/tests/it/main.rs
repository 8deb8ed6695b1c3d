//! Sources and destinations against real servers and files.

mod adbc;
mod append;
mod copy_in;
mod cursor;
mod mysql;
mod parameters;
mod postgres;
mod postgres_values;
mod postgres_writes;
mod row_limit;
mod sqlite;
mod table_modes;
mod tables;
mod types_kept;
mod upsert;
mod writers;

use arrow_array::RecordBatch;
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use futures::TryStreamExt;
use lightship_sources::{Result, Rows};

/// All batches of a result.
async fn collect(rows: Rows) -> Result<Vec<RecordBatch>> {
    let schema = rows.schema.clone();
    let batches: Vec<_> = rows.batches.try_collect().await?;
    for batch in &batches {
        assert_eq!(batch.schema(), schema);
        assert!(batch.num_rows() > 0);
    }
    Ok(batches)
}

/// Every value as text, by rows; NULL is `NULL`.
async fn texts(rows: Rows) -> Result<Vec<Vec<String>>> {
    let mut texts = Vec::new();
    for batch in collect(rows).await? {
        let options = FormatOptions::new().with_null("NULL");
        let columns: Vec<_> =
            batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
        for row in 0..batch.num_rows() {
            texts.push(columns.iter().map(|column| column.value(row).to_string()).collect());
        }
    }
    Ok(texts)
}
