//! Shows range files and their buckets.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use lightship::range::{self, BucketEntry, BucketLoad, Capacity, ClientOptions, Definition, Interval};
use lightship::{ErrorKind, Location};
use lightship_plot::{Axis, Bars, BarsPanel};
use lightship_sources::writers::write_file;

use super::FileArgs;
use crate::columns::aligned;
use crate::commands::manual::print;
use crate::error::CliError;
use crate::size::{Size, grouped};

/// Show the buckets of a range file: their keys, nodes, sizes, and what they were asked for
///
/// Requests and their rows are counted since the node of a bucket was started, or since the bucket was made by a split.
#[derive(Args)]
pub(super) struct BucketsArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Draw the records and the requests of each bucket, in the order of their keys, in this file (SVG). Each node has a
    /// colour.
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
    let definition = file.definition();
    if json {
        let absent = |(node, error): &(String, range::RangeError)| serde_json::json!({ "node": node, "reason": error.to_string() });
        let mut all = as_json(definition, &buckets);
        all["absent"] = failed.iter().map(absent).collect();
        print(format!("{all}\n").as_bytes())?;
    } else {
        print(as_text(definition, &buckets).as_bytes())?;
        for (node, error) in &failed {
            crate::say!("warning: node {node} did not answer: {error}");
        }
    }
    match failed.len() {
        0 => Ok(()),
        1 => Err(CliError::new(ErrorKind::Network, "a node did not answer: its buckets are missing")),
        nodes => Err(CliError::new(
            ErrorKind::Network,
            format!("{nodes} nodes did not answer: their buckets are missing"),
        )),
    }
}

/// A bucket, or keys that no node which answered has.
enum Line<'a> {
    Bucket(&'a BucketEntry),
    Gap(Interval),
}

/// All keys in their order. Buckets may overlap: one that is being moved may be seen twice.
fn lines(buckets: &[BucketEntry]) -> Vec<Line<'_>> {
    let mut lines = Vec::with_capacity(buckets.len());
    // The end of the keys so far; `None` after the last one.
    let mut reached = Some(Vec::new());
    for bucket in buckets {
        if let Some(end) = &reached
            && *end < bucket.range.low
        {
            lines.push(Line::Gap(Interval::new(end.clone(), Some(bucket.range.low.clone()))));
        }
        lines.push(Line::Bucket(bucket));
        reached = match (reached, &bucket.range.high) {
            (Some(end), Some(high)) => Some(end.max(high.clone())),
            _ => None,
        };
    }
    lines.extend(reached.map(|end| Line::Gap(Interval::new(end, None))));
    lines
}

/// The first key of an interval, and the first one after it, as text; empty where it has no end.
fn ends(definition: &Definition, interval: &Interval) -> [String; 2] {
    let text = |key: &[u8]| if key.is_empty() { String::new() } else { definition.format().display(key) };
    [text(&interval.low), interval.high.as_deref().map_or_else(String::new, text)]
}

fn as_json(definition: &Definition, buckets: &[BucketEntry]) -> serde_json::Value {
    let (mut entries, mut gaps) = (Vec::new(), Vec::new());
    for line in lines(buckets) {
        match line {
            Line::Bucket(bucket) => {
                let [_, to] = ends(definition, &bucket.range.clone().into());
                let load = bucket.load.as_ref();
                entries.push(serde_json::json!({
                    "from": bucket.low_text, "to": to, "node": bucket.node, "records": bucket.records,
                    "bytes": bucket.bytes, "epoch": bucket.epoch, "reads": load.map(|load| load.reads),
                    "read_rows": load.map(|load| load.read_rows), "writes": load.map(|load| load.writes),
                    "written_rows": load.map(|load| load.written_rows),
                }));
            }
            Line::Gap(keys) => {
                let [from, to] = ends(definition, &keys);
                gaps.push(serde_json::json!({ "from": from, "to": to }));
            }
        }
    }
    serde_json::json!({ "buckets": entries, "gaps": gaps })
}

/// The columns of a load.
const LOAD: [&str; 4] = ["reads", "rows read", "writes", "rows written"];

fn load_cells(load: Option<&BucketLoad>) -> Vec<String> {
    let cells = |load: &BucketLoad| [load.reads, load.read_rows, load.writes, load.written_rows].map(grouped);
    load.map_or_else(|| vec![String::new(); LOAD.len()], |load| cells(load).to_vec())
}

fn as_text(definition: &Definition, buckets: &[BucketEntry]) -> String {
    let mut text = String::new();
    let head = |first: &[&str]| first.iter().chain(&LOAD).map(|&name| name.to_owned()).collect::<Vec<_>>();
    let mut table = vec![head(&["from key", "to key", "node", "records", "bytes"])];
    table.extend(lines(buckets).into_iter().map(|line| match line {
        Line::Bucket(bucket) => {
            let [from, to] = ends(definition, &bucket.range.clone().into());
            let records = bucket.records.map_or_else(String::new, grouped);
            let bytes = bucket.bytes.map_or_else(String::new, |bytes| Size(bytes).to_string());
            let mut cells = vec![from, to, bucket.node.clone(), records, bytes];
            cells.extend(load_cells(bucket.load.as_ref()));
            cells
        }
        Line::Gap(keys) => {
            let [from, to] = ends(definition, &keys);
            vec![from, to, "gap: no node that answered has these keys".to_owned()]
        }
    }));
    aligned(&mut text, 0, &table, 3);
    let mut nodes: BTreeMap<&str, (usize, u64, u64, BucketLoad)> = BTreeMap::new();
    for bucket in buckets {
        let (count, records, bytes, sum) = nodes.entry(&bucket.node).or_default();
        *count += 1;
        *records += bucket.records.unwrap_or(0);
        *bytes += bucket.bytes.unwrap_or(0);
        let load = bucket.load.unwrap_or_default();
        sum.reads += load.reads;
        sum.read_rows += load.read_rows;
        sum.writes += load.writes;
        sum.written_rows += load.written_rows;
    }
    text.push('\n');
    let mut table = vec![head(&["node", "buckets", "records", "bytes"])];
    table.extend(nodes.into_iter().map(|(node, (count, records, bytes, load))| {
        let mut cells = vec![node.to_owned(), count.to_string(), grouped(records), Size(bytes).to_string()];
        cells.extend(load_cells(Some(&load)));
        cells
    }));
    aligned(&mut text, 0, &table, 1);
    text
}

/// The records and the requests of each bucket, coloured by node.
fn plot(name: &str, buckets: &[BucketEntry]) -> Result<String, lightship_plot::PlotError> {
    let panel = |label: &str, value: fn(&BucketEntry) -> u64| {
        let mut parts: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (index, bucket) in buckets.iter().enumerate() {
            let values = parts.entry(&bucket.node).or_insert_with(|| vec![f64::NAN; buckets.len()]);
            values[index] = value(bucket) as f64;
        }
        let parts = parts.into_iter().map(|(node, values)| (node.to_owned(), values)).collect();
        BarsPanel { y: Axis::linear(label), parts }
    };
    let requests = |bucket: &BucketEntry| bucket.load.map_or(0, |load| load.reads + load.writes);
    let panels = vec![
        panel("records", |bucket| bucket.records.unwrap_or(0)),
        panel("requests since the node started", requests),
    ];
    let title = format!("Range file {name}: {} buckets", buckets.len());
    Bars { title, x: "by key".into(), panels }.svg()
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

#[cfg(test)]
mod tests {
    use lightship::range::RangeRecord;

    use super::*;

    fn bucket(low: &[u8], high: Option<&[u8]>) -> BucketEntry {
        let range = RangeRecord { low: low.to_vec(), high: high.map(<[u8]>::to_vec) };
        BucketEntry { range, node: "a".into(), ..BucketEntry::default() }
    }

    #[test]
    fn keys_without_a_bucket_are_gaps() {
        let gaps = |buckets: &[BucketEntry]| -> Vec<Interval> {
            let gap = |line| match line {
                Line::Gap(keys) => Some(keys),
                Line::Bucket(_) => None,
            };
            lines(buckets).into_iter().filter_map(gap).collect()
        };
        let gap = |low: &[u8], high: Option<&[u8]>| Interval::new(low.to_vec(), high.map(<[u8]>::to_vec));
        assert!(gaps(&[bucket(b"", Some(b"c")), bucket(b"c", None)]).is_empty());
        assert_eq!(gaps(&[]), [Interval::ALL]);
        let some = [bucket(b"b", Some(b"c")), bucket(b"f", Some(b"h"))];
        assert_eq!(gaps(&some), [gap(b"", Some(b"b")), gap(b"c", Some(b"f")), gap(b"h", None)]);
        // They overlap.
        assert!(gaps(&[bucket(b"", None), bucket(b"c", Some(b"f"))]).is_empty());
    }
}
