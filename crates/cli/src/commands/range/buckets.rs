//! Shows range files and their buckets.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use lightship::Location;
use lightship::range::{self, BucketEntry, Capacity, ClientOptions, Definition};
use lightship_plot::{Axis, Bars, BarsPanel};
use lightship_sources::writers::write_file;

use super::FileArgs;
use crate::columns::aligned;
use crate::commands::manual::print;
use crate::error::CliError;
use crate::size::{Size, grouped};

/// Show the buckets of a range file: their keys, nodes and sizes
#[derive(Args)]
pub(super) struct BucketsArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Draw the size of each bucket, in the order of their keys, in this file (SVG). Each node has a colour.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

pub(super) async fn buckets(args: BucketsArgs, json: bool) -> Result<(), CliError> {
    let file =
        range::open(&Location::parse(&args.file.uri)?, &args.file.name, ClientOptions::default()).await?;
    let (buckets, failed) = file.buckets().await;
    if let Some(path) = &args.plot {
        let drawn = plot(&args.file.name, &buckets).map_err(|e| CliError::internal(e.to_string()))?;
        write_file(path, drawn.as_bytes())?;
    }
    if json {
        let entry = |bucket: &BucketEntry| {
            serde_json::json!({
                "from": bucket.low_text, "node": bucket.node, "records": bucket.records, "bytes": bucket.bytes,
                "epoch": bucket.epoch,
            })
        };
        let absent = |(node, error): &(String, range::RangeError)| serde_json::json!({ "node": node, "reason": error.to_string() });
        let all = serde_json::json!({
            "buckets": buckets.iter().map(entry).collect::<Vec<_>>(),
            "absent": failed.iter().map(absent).collect::<Vec<_>>(),
        });
        return print(format!("{all}\n").as_bytes());
    }
    let mut text = String::new();
    let mut table = vec![["from key", "node", "records", "bytes"].map(str::to_owned).to_vec()];
    table.extend(buckets.iter().map(|bucket| {
        vec![
            bucket.low_text.clone(),
            bucket.node.clone(),
            bucket.records.map_or_else(String::new, grouped),
            bucket.bytes.map_or_else(String::new, |bytes| Size(bytes).to_string()),
        ]
    }));
    aligned(&mut text, 0, &table, 2);
    let mut nodes: BTreeMap<&str, (usize, u64, u64)> = BTreeMap::new();
    for bucket in &buckets {
        let node = nodes.entry(&bucket.node).or_default();
        *node = (node.0 + 1, node.1 + bucket.records.unwrap_or(0), node.2 + bucket.bytes.unwrap_or(0));
    }
    text.push('\n');
    let mut table = vec![["node", "buckets", "records", "bytes"].map(str::to_owned).to_vec()];
    table.extend(nodes.into_iter().map(|(node, (count, records, bytes))| {
        vec![node.to_owned(), count.to_string(), grouped(records), Size(bytes).to_string()]
    }));
    aligned(&mut text, 0, &table, 1);
    print(text.as_bytes())?;
    for (node, error) in failed {
        crate::say!("node {node} did not answer: {error}");
    }
    Ok(())
}

/// The records of each bucket, coloured by node.
fn plot(name: &str, buckets: &[BucketEntry]) -> Result<String, lightship_plot::PlotError> {
    let mut parts: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (index, bucket) in buckets.iter().enumerate() {
        let values = parts.entry(&bucket.node).or_insert_with(|| vec![f64::NAN; buckets.len()]);
        values[index] = bucket.records.unwrap_or(0) as f64;
    }
    let parts = parts.into_iter().map(|(node, values)| (node.to_owned(), values)).collect();
    let panel = BarsPanel { y: Axis::linear("records"), parts };
    let title = format!("Range file {name}: {} buckets", buckets.len());
    Bars { title, x: "bucket, in the order of the keys".into(), panels: vec![panel] }.svg()
}

/// List the range files that a node knows
#[derive(Args)]
pub(super) struct ListArgs {
    /// A node that has range files: lightship://[TOKEN@]HOST[:PORT] or lightship+unix:PATH.
    #[arg(value_name = "URI")]
    uri: String,
}

pub(super) async fn list(args: &ListArgs, json: bool) -> Result<(), CliError> {
    let files = range::list(&Location::parse(&args.uri)?).await?;
    let columns = |file: &Definition| -> Vec<String> {
        file.schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect()
    };
    if json {
        let entry = |file: &Definition| serde_json::json!({ "name": file.name, "key": file.key, "columns": columns(file) });
        let all: Vec<_> = files.iter().map(entry).collect();
        return print(format!("{}\n", serde_json::json!({ "files": all })).as_bytes());
    }
    let mut text = String::new();
    let mut table = vec![["range file", "key", "bucket capacity", "columns"].map(str::to_owned).to_vec()];
    table.extend(files.iter().map(|file| {
        let capacity = match file.capacity {
            Capacity::Records(records) => format!("{} records", grouped(records)),
            Capacity::Bytes(bytes) => Size(bytes).to_string(),
        };
        vec![file.name.clone(), file.key.join(", "), capacity, columns(file).join(", ")]
    }));
    aligned(&mut text, 0, &table, 4);
    print(text.as_bytes())
}
