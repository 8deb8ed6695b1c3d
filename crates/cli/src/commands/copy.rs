//! `lightship copy`: a result, into a database or a file.

use std::path::PathBuf;

use clap::Args;
use lightship::{Format, Location, TableName, Target, WriteMode, WriteTarget, copy};

use super::fetch::{AlsoArgs, ColumnArgs, TransferArgs, finish};
use crate::error::CliError;
use crate::progress::Progress;

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
    #[arg(long, value_name = "append|create|replace", default_value = "append")]
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

pub(crate) async fn cmd_copy(args: CopyArgs, json: bool) -> Result<(), CliError> {
    let (from, to) = (args.also.locations(&args.from)?, Location::parse(&args.to)?);
    let to = match (&to, &args.table) {
        (Location::Postgres(_), None) => {
            return Err(CliError::usage("which table? name it with --table [SCHEMA.]NAME"));
        }
        (Location::Path(path), _) if let Some(format) = Format::from_path(path) => {
            Target::file(WriteTarget::File(path.clone()), format)
        }
        (location, name) => {
            Target::table(location, TableName::parse(name.as_deref().unwrap_or_default()), args.mode)?
        }
    };
    let options = args.transfer.options(&args.columns);
    let report = copy(&from, &args.sql, to, &options, &mut Progress::new(args.quiet || json)).await?;
    finish(&report, args.stats.as_deref(), args.quiet, json)
}
