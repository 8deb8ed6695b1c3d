//! `lightship fetch`: a result, into a file or onto the terminal.

use std::io::IsTerminal;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use lightship::{
    Codec, DuplicateColumns, Format, Location, Options, Report, Target, WriteOptions, WriteTarget, copy,
};
use lightship_sources::writers::write_file;

use super::values::ValueArgs;
use crate::error::CliError;
use crate::progress::Progress;
use crate::size::{Size, grouped};

/// Run a query and bring its result here
///
/// The result goes to a file (-o), or to stdout: as a table on a terminal, as
/// CSV elsewhere. A file appears under its name once it is whole; whatever goes
/// wrong before, nothing is left behind.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship fetch lightship://localhost 'select * from lineitem' -o lineitem.parquet
  lightship fetch postgresql://me@db/shop 'select * from orders' -o orders.parquet --stats stats.json
  lightship fetch sales.csv 'select region, sum(amount) from sales group by region'
  lightship fetch lightship://localhost 'select * from t' -o - --format arrow | consumer
  lightship fetch lightship://a 'select * from sales' -o sales.parquet \\
      --also lightship://b --also postgresql://me@db/shop

A file or folder is a table of its own name: sales.csv is `sales`.")]
pub(crate) struct FetchArgs {
    /// Where to ask: lightship://HOST[:PORT], lightship+unix:PATH, postgresql://…,
    /// mysql://…, sqlite:FILE, or a file or folder of Parquet, CSV, JSON or Arrow.
    #[arg(value_name = "URI")]
    uri: String,
    /// The query.
    #[arg(value_name = "SQL")]
    sql: String,
    #[command(flatten)]
    also: AlsoArgs,
    /// File to write; `-` is stdout.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How to write: arrow, stream, parquet, csv, json, table. Told from the
    /// file's name when not given.
    #[arg(long)]
    format: Option<String>,
    /// Rows of a table that are shown on a terminal; the rest is counted.
    #[arg(long, value_name = "N", default_value_t = 40)]
    table_rows: usize,
    /// Write what was planned and what happened to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// No progress bar and no summary.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    columns: ColumnArgs,
    #[command(flatten)]
    transfer: TransferArgs,
}

/// Places beside the first.
#[derive(Args)]
pub(crate) struct AlsoArgs {
    /// Another place to ask the same, whose rows are added to the result (UNION ALL).
    /// Repeat it for more places.
    ///
    /// All are asked at once, and rows are taken from whoever has some: their order
    /// stays within a place, and there is none between places. All have to answer columns
    /// of the same names, and of types that one type can hold without loss, as Int32 and
    /// Int64. An error of one is the end of all. The memory is divided between them, and
    /// each needs 4MiB.
    #[arg(long, value_name = "URI")]
    also: Vec<String>,
}

impl AlsoArgs {
    /// All places, the first one first.
    pub(crate) fn locations(&self, first: &str) -> Result<Vec<Location>, CliError> {
        let places = std::iter::once(first).chain(self.also.iter().map(String::as_str));
        Ok(places.map(Location::parse).collect::<Result<_, _>>()?)
    }
}

/// Names of columns where they have to be different.
#[derive(Args)]
pub(crate) struct ColumnArgs {
    /// What becomes of a second column of one name: error, or rename, which numbers
    /// them: a, a_2, a_3. Only a table on the terminal may show both.
    #[arg(long, value_name = "error|rename", default_value = "error")]
    duplicate_columns: DuplicateColumns,
}

/// How rows travel. `auto` everywhere is the default and rarely wrong.
#[derive(Args)]
#[command(next_help_heading = "Transfer")]
pub(crate) struct TransferArgs {
    /// Memory that rows here may take at once. For a query over files that is all
    /// its work, so without a bound it gets 1GiB. [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// How rows are encoded: auto, none, light, light+lz4, light+zstd, lz4, zstd.
    ///
    /// Encoding costs processor time on both sides and saves bytes on the link. auto
    /// measures both and follows the link as it changes; trying costs it about 1% of the
    /// time. On one host nothing is encoded.
    #[arg(long, value_name = "auto|CODEC", default_value = "auto")]
    codec: Auto<Codec>,
    /// Rows of a batch: more need more memory, fewer cost round trips.
    #[arg(long, value_name = "auto|N", default_value = "auto")]
    batch_rows: Auto<u32>,
    /// Bytes of a message, about 1 MiB is best on most links.
    #[arg(long, value_name = "auto|SIZE", default_value = "auto")]
    message_bytes: Auto<Size>,
    /// Largest message for a single row that fits no other; part of the memory.
    #[arg(long, value_name = "auto|SIZE", default_value = "auto")]
    message_bytes_max: Auto<Size>,
    /// Batches on their way at once: enough of them hide the round trip, each takes memory. auto begins
    /// with what is known of the link and follows it on the way.
    #[arg(long, value_name = "auto|N", default_value = "auto")]
    window: Auto<u32>,
    /// Connections that a result comes over, to a database or a node.
    ///
    /// Of a database: those that one large table is read with, auto for up to 4. To a
    /// node, by TCP: more than 1 helps where loss, or a limit for each, holds one
    /// connection down; each costs a handshake and a place at the node, and takes from
    /// others on the link. auto is 1 there, and tries 2 and 4 on the way where many
    /// segments are lost and much is still to come.
    #[arg(long, value_name = "auto|N", default_value = "auto")]
    streams: Auto<NonZeroU32>,
    #[command(flatten)]
    values: ValueArgs,
}

/// A setting that may be left to us.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Auto<T>(Option<T>);

impl<T> Auto<T> {
    /// What was given; nothing where it is left to us.
    pub(crate) fn given(self) -> Option<T> {
        self.0
    }
}

impl<T: FromStr> FromStr for Auto<T>
where
    T::Err: std::fmt::Display,
{
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self(None)),
            text => text.parse().map(|value| Self(Some(value))).map_err(|e: T::Err| e.to_string()),
        }
    }
}

impl TransferArgs {
    pub(crate) fn options(&self, columns: &ColumnArgs) -> Options {
        let capped = |size: Size| u32::try_from(size.0.max(1)).unwrap_or(u32::MAX);
        Options {
            memory_bytes: self.memory.map(|size| size.0),
            codec: self.codec.0,
            batch_rows: self.batch_rows.0,
            message_bytes: self.message_bytes.0.map(capped),
            message_bytes_max: self.message_bytes_max.0.map(capped),
            window_batches: self.window.0,
            streams: self.streams.0,
            duplicate_columns: Some(columns.duplicate_columns),
            ..self.values.options()
        }
    }
}

pub(crate) async fn cmd_fetch(args: FetchArgs, json: bool) -> Result<(), CliError> {
    let from = args.also.locations(&args.uri)?;
    let (target, format) = destination(&args, json)?;
    let options = WriteOptions { table_rows: args.table_rows, ..WriteOptions::default() };
    let to = Target::File { target, format, options };
    let options = args.transfer.options(&args.columns);
    let report = copy(&from, &args.sql, to, &options, &mut Progress::new(args.quiet || json)).await?;
    finish(&report, args.stats.as_deref(), args.quiet, json)
}

/// Says what happened, on stderr and in the file of `--stats`.
pub(crate) fn finish(report: &Report, stats: Option<&Path>, quiet: bool, json: bool) -> Result<(), CliError> {
    let internal = |e: serde_json::Error| CliError::internal(e.to_string());
    if let Some(path) = stats {
        let text = serde_json::to_string_pretty(report).map_err(internal)?;
        write_file(path, (text + "\n").as_bytes())?;
    }
    if json {
        crate::say!("{}", serde_json::to_string(report).map_err(internal)?);
    } else if !quiet {
        crate::say!("{}", summary(report));
    }
    Ok(())
}

/// One line for a person.
fn summary(report: &Report) -> String {
    let rate = if report.seconds > 0.0 { (report.bytes_arrow as f64 / report.seconds) as u64 } else { 0 };
    // Shared memory is no wire; nor is it said what came partly through one and partly by the other.
    let by = report.carrier.as_deref().map(|carrier| match carrier {
        "tcp" | "unix" | "circuit" => "on the wire".to_owned(),
        other => format!("through {other}"),
    });
    let wire = report.bytes_wire.zip(by).map(|(b, by)| format!(", {} {by}", Size(b))).unwrap_or_default();
    let from = match report.sources.len() {
        0 | 1 => String::new(),
        places => format!(" from {places} places"),
    };
    let peak = report.peak_memory_bytes.map(|b| format!(", peak memory {}", Size(b))).unwrap_or_default();
    format!(
        "{} {}{from}, {} in {:.2} s ({}/s){wire}{peak}",
        grouped(report.rows),
        if report.rows == 1 { "row" } else { "rows" },
        Size(report.bytes_arrow),
        report.seconds,
        Size(rate),
    )
}

fn destination(args: &FetchArgs, json: bool) -> Result<(WriteTarget, Format), CliError> {
    let named = args.format.as_deref().map(Format::from_str).transpose()?;
    match &args.output {
        Some(path) if path.as_os_str() != "-" => {
            let format = named.or_else(|| Format::from_path(path)).ok_or_else(|| {
                CliError::usage(format!("{}: the name does not tell the format", path.display()))
                    .hint("name it with --format arrow|stream|parquet|csv|json|table")
            })?;
            Ok((WriteTarget::File(path.clone()), format))
        }
        _ => {
            let terminal = std::io::stdout().is_terminal();
            let format = named.unwrap_or(match (json, terminal) {
                (true, _) => Format::Json,
                (false, true) => Format::Table,
                (false, false) => Format::Csv,
            });
            if terminal && matches!(format, Format::ArrowFile | Format::ArrowStream | Format::Parquet) {
                return Err(CliError::usage("binary data does not belong on a terminal")
                    .hint("write it to a file with -o FILE, or into a pipe"));
            }
            Ok((WriteTarget::Stdout, format))
        }
    }
}
