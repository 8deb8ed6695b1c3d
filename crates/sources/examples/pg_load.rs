//! Loads TPC-H's `lineitem` into PostgreSQL: `pg_load URI SCALE`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::RecordBatch;
use lightship_sources::postgres::PostgresDestination;
use lightship_sources::{Destination, TableName, TableWrite, WriteMode};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(uri), Some(scale)) = (args.next(), args.next()) else {
        return Err("usage: pg_load URI SCALE".into());
    };
    let mut batches = lightship_testkit::tpch::lineitem(scale.parse()?).peekable();
    let schema = batches.peek().map(RecordBatch::schema).ok_or("no rows at this scale")?;
    let table = TableName { schema: None, name: "lineitem".into() };
    let start = Instant::now();
    let mut destination =
        PostgresDestination::create(&uri, &TableWrite::new(table, WriteMode::Append), &Arc::clone(&schema))
            .await?;
    for batch in batches {
        destination.write(batch).await?;
    }
    let written = Box::new(destination).finish().await?;
    println!("{} rows, {} bytes, {:.3} s", written.rows, written.bytes, start.elapsed().as_secs_f64());
    Ok(())
}
