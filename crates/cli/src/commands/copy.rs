//! `lightship copy`: copies a result into a database or a file.

use clap::Args;
use lightship::{Location, Target, WriteMode, copy};
use lightship_sources::writers::check_target;

use super::fetch::{AlsoArgs, ColumnArgs, ParameterArgs, TransferArgs};
use super::files::{FileArgs, is_table};
use super::output::ReportArgs;
use super::sql::SqlArgs;
use crate::error::CliError;

/// Copy a result into a table of a database, a file or a range file
///
/// All rows arrive, or none, except in a range file, which keeps what was written before an error. A missing
/// table is created with the types of the result. Each value arrives unchanged; a value that the column can't
/// hold exactly is an error with row and column.
#[derive(Args)]
#[command(
    allow_missing_positional = true,
    after_long_help = "Examples:
  lightship copy mysql://me@old/shop 'select * from orders' \\
      postgresql://me@new/shop --table orders
  lightship copy orders.parquet 'select * from orders' \\
      postgresql://me@new/shop --table archive.orders
  lightship copy postgresql://me@new/shop 'select * from orders' \\
      mysql://me@report/shop --table orders --mode upsert --key id
  lightship copy postgresql://me@new/shop 'select * from orders' \\
      sqlite:orders.db --table orders
  lightship copy lightship://localhost --file report.sql report.parquet"
)]
pub(crate) struct CopyArgs {
    /// Source to query, as for `lightship fetch`.
    #[arg(value_name = "URI")]
    from: String,
    #[command(flatten)]
    sql: SqlArgs,
    #[command(flatten)]
    parameters: ParameterArgs,
    #[command(flatten)]
    also: AlsoArgs,
    /// Destination of the rows: postgresql://…, mysql://…, sqlite:FILE, adbc:DRIVER?OPTION=VALUE,
    /// lightship://… for a range file, a file, or a folder (FOLDER/) that gets a new file.
    #[arg(value_name = "URI")]
    to: String,
    /// Table to write: [SCHEMA.]NAME, or the name of a range file. Required for databases and nodes; files and
    /// folders have no tables. NAME=PATH is a table to read instead, as for `lightship fetch`; can be repeated.
    #[arg(long, value_name = "NAME")]
    table: Vec<String>,
    /// What to do if the table or file exists: append adds rows, existing too, but does not create a missing one,
    /// create fails, replace puts a new one in its place, truncate keeps the table and replaces its rows, upsert
    /// updates the rows whose --key exists and inserts the others. [default: append, for files replace]
    ///
    /// append matches columns by name. replace loads a new table, with the types of the result, and swaps it for
    /// the old one once all rows have arrived; its indexes, privileges and comments are kept, and a note names what
    /// can't be kept. Until then the old table can be read, even by the query of this copy. The swap waits up to 10
    /// seconds for others that use the old table (in PostgreSQL, unless lock_timeout is set for the connection).
    ///
    /// Rows are added to CSV, JSON lines and Arrow streams (.arrows). Other formats take append only for a folder,
    /// which gets another file.
    #[arg(long, value_name = "append|existing|create|replace|truncate|upsert")]
    mode: Option<WriteMode>,
    /// Columns that identify a row, for --mode upsert. The table must have a unique index on exactly these
    /// columns; a table that is created gets them as its primary key.
    ///
    /// Other columns of an existing row get the values of the new row; columns that the result lacks stay
    /// unchanged. Two rows of the result with the same key are an error, because their order would decide
    /// which of them stays, and a result has no order; so is NULL in the key. The rows wait in a temporary
    /// table until all have arrived.
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    key: Vec<String>,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    columns: ColumnArgs,
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    transfer: TransferArgs,
}

pub(crate) async fn cmd_copy(mut args: CopyArgs, json: bool) -> Result<(), CliError> {
    let (tables, written): (Vec<String>, Vec<String>) =
        args.table.into_iter().partition(|table| is_table(table));
    let table = match written.as_slice() {
        [] => None,
        [table] => Some(table.as_str()),
        _ => return Err(CliError::usage("--table: only one table can be written")),
    };
    let mut first = Some(args.from);
    if !tables.is_empty() {
        args.sql.take_from(&mut first);
    }
    let from = args.also.locations(first.as_deref(), &tables, &args.files, &args.sql)?;
    let to = Location::parse(&args.to)?;
    let to = Target::at(&to, table, args.mode, &args.key)?;
    args.report.check(false)?;
    if let Target::File { target, options, .. } = &to {
        check_target(target.clone(), options.mode)?;
    }
    let sql = args.sql.read().await?;
    let options = args.transfer.options(&args.columns);
    let statement = args.parameters.statement(sql);
    let report = copy(&from, statement, to, &options, &mut args.report.progress(json)).await?;
    args.report.finish(&report, json)
}
