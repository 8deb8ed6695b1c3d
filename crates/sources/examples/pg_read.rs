//! Reads a result of PostgreSQL into Arrow and says how fast:
//! `pg_read URI SQL [STREAMS]`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::time::Instant;

use futures::TryStreamExt;
use lightship_sources::postgres::PostgresSource;
use lightship_sources::{ReadOptions, Source};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(uri), Some(sql)) = (args.next(), args.next()) else {
        return Err("usage: pg_read URI SQL [STREAMS]".into());
    };
    let mut options = ReadOptions::default();
    if let Some(streams) = args.next() {
        options.streams = streams.parse()?;
    }
    let source = PostgresSource::connect(&uri).await?;
    let start = Instant::now();
    let mut rows = source.query(&sql, &options).await?;
    let (mut count, mut bytes, mut batches) = (0, 0, 0);
    while let Some(batch) = rows.batches.try_next().await? {
        count += batch.num_rows();
        bytes += batch.get_array_memory_size();
        batches += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{count} rows, {batches} batches, {bytes} bytes, {seconds:.3} s, {:.0} rows/s, peak {} KB",
        count as f64 / seconds,
        peak_rss_kb().unwrap_or(0)
    );
    Ok(())
}

fn peak_rss_kb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.split_whitespace().next()?.parse().ok()
}
