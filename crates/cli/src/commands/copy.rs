//! `lightship copy`: a result, into a database or a file.

use std::path::PathBuf;

use clap::Args;
use lightship_sources::postgres::PostgresDestination;
use lightship_sources::writers::{self, Format, Target, WriteOptions};
use lightship_sources::{Location, TableName, WriteMode};

use super::fetch::{AlsoArgs, ColumnArgs, TransferArgs, finish};
use crate::error::CliError;
use crate::feed::Feeds;

/// Copy a result into a table of another database, or into a file
///
/// The rows arrive in one transaction: all of them or none. A missing table is
/// created with the types that the columns have. Each value arrives as it is, or is
/// refused with its row and column. A table that is replaced can be read until the
/// new one takes its place, by this copy too; its indexes, constraints and privileges
/// go with it.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship copy mysql://me@old/shop 'select * from orders' postgresql://me@new/shop --table orders
  lightship copy orders.parquet 'select * from orders' postgresql://me@new/shop --table archive.orders
  lightship copy lightship://localhost 'select * from lineitem' lineitem.parquet")]
pub(crate) struct CopyArgs {
    /// Where to ask, as for `fetch`.
    #[arg(value_name = "URI")]
    from: String,
    /// The query.
    #[arg(value_name = "SQL")]
    sql: String,
    #[command(flatten)]
    also: AlsoArgs,
    /// Where the rows go: postgresql://…, or a file.
    #[arg(value_name = "URI")]
    to: String,
    /// Table to write, [SCHEMA.]NAME.
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// What becomes of a table that is there already: append keeps its rows, create
    /// refuses, replace puts a new one in its place once all rows are there. That takes
    /// a lock on it, for which others get 10 seconds to end what they do with it; the
    /// setting lock_timeout of the login says otherwise.
    #[arg(long, value_name = "append|create|replace", default_value = "append", value_parser = mode)]
    mode: WriteMode,
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

fn mode(text: &str) -> Result<WriteMode, String> {
    match text {
        "append" => Ok(WriteMode::Append),
        "create" => Ok(WriteMode::Create),
        "replace" => Ok(WriteMode::Replace),
        other => Err(format!("no mode `{other}`; there are append, create, replace")),
    }
}

/// `[SCHEMA.]NAME` as a table.
pub(crate) fn table_name(text: &str) -> TableName {
    match text.split_once('.') {
        Some((schema, name)) => TableName { schema: Some(schema.into()), name: name.into() },
        None => TableName { schema: None, name: text.into() },
    }
}

pub(crate) async fn cmd_copy(args: CopyArgs, json: bool) -> Result<(), CliError> {
    let (from, to) = (args.also.locations(&args.from)?, Location::parse(&args.to)?);
    let mut options = args.columns.rule(args.transfer.options(from.len())?);
    // What can't be written is said before anything is read.
    let table = match (&to, &args.table) {
        (Location::Postgres(_), None) => {
            return Err(CliError::usage("which table? name it with --table [SCHEMA.]NAME"));
        }
        (Location::Postgres(_), Some(name)) => table_name(name),
        (Location::Path(path), _) if Format::from_path(path).is_some() => table_name(""),
        (other, _) => {
            return Err(CliError::usage(format!("can't copy into {other}")).hint(
                "copy writes to PostgreSQL (postgresql://…) and to files (.parquet, .csv, .json, .arrow)",
            ));
        }
    };
    options.read.tuples = matches!(to, Location::Postgres(_)) && args.transfer.leaves_values();
    let write = WriteOptions {
        memory_bytes: usize::try_from(args.transfer.memory_bytes() / 3).unwrap_or(usize::MAX),
        ..WriteOptions::default()
    };
    let mut feeds = Feeds::open(&from, &options).await?;
    let mode = args.mode;
    let report = feeds
        .pump(&args.sql, &options, args.quiet || json, async |schema| match &to {
            Location::Postgres(uri) => {
                Ok(Box::new(PostgresDestination::create(uri, &table, &schema, mode).await?) as _)
            }
            Location::Path(path) => {
                let format = Format::from_path(path).unwrap_or(Format::Parquet);
                Ok(writers::create(Target::File(path.clone()), format, schema, write)?)
            }
            other => Err(CliError::usage(format!("can't copy into {other}"))),
        })
        .await?;
    if let Some(path) = &args.stats {
        report.write(path)?;
    }
    finish(&report, args.quiet, json)
}
