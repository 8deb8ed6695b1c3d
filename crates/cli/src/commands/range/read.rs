//! Reads range files.

use std::time::Instant;

use clap::{Args, ValueEnum};
use futures::{StreamExt, TryStreamExt};
use lightship::range::{
    self, ClientOptions, Interval, Order, RangeFile, ReceptionMode, ReceptionReport, ReceptionStrategy,
    ScanOptions,
};
use lightship::{Location, Observer};
use lightship_sources::location::Tls;
use lightship_sources::writers;

use super::FileArgs;
use crate::commands::manual::print;
use crate::commands::output::OutputArgs;
use crate::error::CliError;
use crate::progress::Progress;
use crate::size::{Limit, Size, grouped};

/// Print the row with a key
///
/// With fewer values than the key has columns, all rows whose keys begin with them are printed.
#[derive(Args)]
pub(super) struct GetArgs {
    #[command(flatten)]
    file: FileArgs,
    /// The values of the key's columns.
    #[arg(value_name = "KEY", required = true, allow_negative_numbers = true)]
    key: Vec<String>,
    #[command(flatten)]
    write: WriteArgs,
}

/// Where rows are written.
#[derive(Args)]
struct WriteArgs {
    #[command(flatten)]
    output: OutputArgs,
    /// Print no progress bar and no summary.
    #[arg(short, long)]
    quiet: bool,
}

pub(super) async fn get(args: GetArgs, json: bool) -> Result<(), CliError> {
    let file = open(&args.file, ClientOptions::default()).await?;
    let interval = range::prefix(file.definition(), &args.key)?;
    let rows = write(&file, interval, &ScanOptions::default(), &args.write, json).await?;
    if rows == 0 && !args.write.quiet && !json {
        crate::say!("no row has this key");
    }
    Ok(())
}

/// Read rows in the order of their keys
///
/// All nodes that have buckets of the interval send their rows straight to this command, several
/// buckets at a time. The scan is complete when the answers cover the interval; if a bucket does not
/// answer, the command fails and names the keys. Each bucket is read as it was at one moment; if a
/// connection is lost, the rest of its bucket is read as it is later.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship range scan lightship://db1 orders --limit 10
  lightship range scan lightship://db1 orders --from 100 --to 200 -o part.parquet
  lightship range scan lightship://db1 lineitem --from 17 --to 18 3
  lightship range scan lightship://db1 orders --any-order --reception push
  lightship range scan lightship://db1 orders --count
  lightship range scan lightship://db1 orders --greatest")]
pub(super) struct ScanArgs {
    #[command(flatten)]
    file: FileArgs,
    /// The first key: values of the key's first columns.
    #[arg(long, value_name = "VALUE", num_args = 1.., allow_negative_numbers = true)]
    from: Vec<String>,
    /// The key that ends the scan, which is not part of it.
    #[arg(long, value_name = "VALUE", num_args = 1.., allow_negative_numbers = true)]
    to: Vec<String>,
    /// Columns to read. [default: all]
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    columns: Option<Vec<String>>,
    /// Most rows.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Return rows as they arrive, not in the order of the key, which can be faster.
    #[arg(long)]
    any_order: bool,
    /// Only count the rows.
    #[arg(long, conflicts_with_all = ["columns", "limit", "any_order", "reception", "budget"])]
    count: bool,
    /// Only print the least key.
    #[arg(long, conflicts_with_all = ["columns", "limit", "any_order", "count", "reception", "budget"])]
    least: bool,
    /// Only print the greatest key.
    #[arg(long, conflicts_with_all = ["columns", "limit", "any_order", "count", "least", "reception", "budget"])]
    greatest: bool,
    /// How the rows of many buckets are received.
    #[arg(long, value_enum, value_name = "WAY", default_value_t = ReceptionWay::Auto)]
    reception: ReceptionWay,
    /// The maximum number of buckets that are read at the same time.
    #[arg(long, value_name = "N", default_value_t = ClientOptions::default().connections_max)]
    connections: usize,
    /// Memory for rows that are on their way or wait to be written, at least 2MiB; 1 MiB of it for each bucket that
    /// is read.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    budget: Size,
    /// How long a bucket may be unreachable, or send nothing, before the command fails.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    timeout: Limit,
    #[command(flatten)]
    write: WriteArgs,
}

/// How the rows of many buckets are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReceptionWay {
    /// Request buckets over one connection to each node, as many at a time as is fastest
    Auto,
    /// Nodes connect to this command, for all buckets at once; it asks refused ones again (needs --any-order)
    Push,
    /// As push, but refused nodes try again after a pause (needs --any-order)
    BackOff,
    /// As auto, with --connections buckets at a time
    Pull,
    /// As auto, after the nodes have announced their buckets by UDP
    Announce,
}

pub(super) async fn scan(args: ScanArgs, json: bool) -> Result<(), CliError> {
    let patience = args.timeout.0.ok_or_else(|| CliError::usage("--timeout must be a duration"))?;
    let connections_max = args.connections.max(1);
    let connects = matches!(args.reception, ReceptionWay::Push | ReceptionWay::BackOff);
    if connects && !args.any_order {
        return Err(CliError::usage("--reception push and back-off need --any-order"));
    }
    let is_encrypted =
        matches!(Location::parse(&args.file.uri)?, Location::Node { tls, .. } if tls != Tls::Off);
    if is_encrypted && args.reception == ReceptionWay::Announce {
        return Err(CliError::usage("--reception announce receives messages that are not encrypted")
            .hint("leave --reception at auto"));
    }
    let options = ClientOptions { patience, connections_max, ..ClientOptions::default() };
    let file = open(&args.file, options).await?;
    let bound = |values: &[String]| match values {
        [] => Ok(None),
        values => range::prefix(file.definition(), values).map(|interval| Some(interval.low)),
    };
    let interval = Interval::new(bound(&args.from)?.unwrap_or_default(), bound(&args.to)?);
    if args.count {
        let rows = file.count(&interval).await.map_err(lightship::Error::from)?;
        return match json {
            true => print(format!("{}\n", serde_json::json!({ "rows": rows })).as_bytes()),
            false => print(format!("{rows}\n").as_bytes()),
        };
    }
    if args.least || args.greatest {
        let found = match args.least {
            true => file.least_key(&interval).await,
            false => file.greatest_key(&interval).await,
        };
        let found = found.map_err(lightship::Error::from)?;
        let key = found.map(|key| file.definition().format().display(&key));
        return match (json, key) {
            (true, key) => print(format!("{}\n", serde_json::json!({ "key": key })).as_bytes()),
            (false, Some(key)) => print(format!("{key}\n").as_bytes()),
            (false, None) => {
                crate::say!("there are no rows");
                Ok(())
            }
        };
    }
    let order = if args.any_order { Order::Any } else { Order::Key };
    let options = ScanOptions {
        order,
        limit: args.limit,
        columns: args.columns,
        reception: match args.reception {
            ReceptionWay::Auto | ReceptionWay::Announce => ReceptionMode::Auto,
            ReceptionWay::Push => ReceptionMode::Push,
            ReceptionWay::BackOff => ReceptionMode::BackOff,
            ReceptionWay::Pull => {
                ReceptionMode::Pull { connections: u32::try_from(connections_max).unwrap_or(u32::MAX) }
            }
        },
        announced: args.reception == ReceptionWay::Announce,
        budget_bytes: args.budget.0,
    };
    write(&file, interval, &options, &args.write, json).await.map(drop)
}

async fn open(args: &FileArgs, options: ClientOptions) -> Result<RangeFile, CliError> {
    Ok(range::open(&Location::parse(&args.uri)?, &args.name, options).await?)
}

/// Writes the rows of an interval. Returns their number.
async fn write(
    file: &RangeFile,
    interval: Interval,
    options: &ScanOptions,
    to: &WriteArgs,
    json: bool,
) -> Result<u64, CliError> {
    let began = Instant::now();
    let (target, format, written) = to.output.destination(json)?;
    let scanned = file.scan(interval, options).map_err(lightship::Error::from)?;
    let (received, mut destination) =
        (scanned.report, writers::create(target, format, scanned.schema, written)?);
    let mut progress = Progress::new(to.quiet || json);
    progress.began(None, &[]);
    let (mut rows, mut bytes) = (0, 0);
    let mut batches = scanned.rows.map(|batch| batch.map_err(lightship::Error::from));
    while let Some(batch) = batches.try_next().await? {
        let size = lightship_wire::rows_bytes(&batch);
        (rows, bytes) = (rows + batch.num_rows() as u64, bytes + size);
        progress.arrived(batch.num_rows() as u64, size);
        destination.write(batch).await?;
    }
    destination.finish().await?;
    drop(progress);
    let seconds = began.elapsed().as_secs_f64();
    let received = received.get();
    if to.quiet {
        return Ok(rows);
    }
    if json {
        let mut summary = serde_json::json!({ "rows": rows, "bytes_arrow": bytes, "seconds": seconds });
        if let Some(report) = received {
            summary["reception"] = reception_json(&report);
        }
        crate::say!("{summary}");
    } else {
        let (count, noun) = (grouped(rows), if rows == 1 { "row" } else { "rows" });
        let received = received.map_or_else(String::new, |report| reception_text(&report));
        crate::say!("{count} {noun}, {} in {seconds:.2} s{received}", Size(bytes));
    }
    Ok(rows)
}

/// The name of a strategy, as `--reception` has it.
fn strategy_name(strategy: ReceptionStrategy) -> &'static str {
    match strategy {
        ReceptionStrategy::Push => "push",
        ReceptionStrategy::BackOff => "back-off",
        ReceptionStrategy::Pull { .. } => "pull",
    }
}

fn reception_json(report: &ReceptionReport) -> serde_json::Value {
    serde_json::json!({
        "strategy": strategy_name(report.strategy),
        "connections": match report.strategy {
            ReceptionStrategy::Pull { connections } => Some(connections),
            ReceptionStrategy::Push | ReceptionStrategy::BackOff => None,
        },
        "parts": report.parts,
        "requested": report.requested,
        "refused": report.refused,
        "asked_again": report.asked,
        "lost": report.lost,
        "memory_bytes_peak": report.used_bytes_peak,
    })
}

/// What follows the size and the time in a summary.
fn reception_text(report: &ReceptionReport) -> String {
    let buckets = if report.parts == 1 { "bucket" } else { "buckets" };
    let mut text = format!("; {} from {} {buckets}", strategy_name(report.strategy), grouped(report.parts));
    let counts =
        [(report.refused, "connections refused"), (report.asked, "asked again"), (report.lost, "lost")];
    for (count, what) in counts {
        if count > 0 {
            text += &format!(", {} {what}", grouped(count));
        }
    }
    text
}
