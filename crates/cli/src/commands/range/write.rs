//! Creates, changes and drops range files.

use clap::{Args, ValueEnum};
use lightship::range::{self, Capacity, ClientOptions, Definition, RangeFile, WriteMode};
use lightship::{Location, Options, Target, connect, copy, files};

use super::FileArgs;
use crate::commands::fetch::{ColumnArgs, TransferArgs};
use crate::commands::manual::print;
use crate::commands::output::ReportArgs;
use crate::error::CliError;
use crate::size::Size;

/// Create a range file
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship range create lightship://db1 orders --key id \\
      --columns 'id bigint, customer text'
  lightship range create lightship://db1 lineitem --like lineitem.parquet \\
      --key l_orderkey --key l_linenumber")]
pub(super) struct CreateArgs {
    #[command(flatten)]
    file: FileArgs,
    /// A column of the key. Repeat it for a key of several columns, the most significant first. Columns of
    /// the key are never NULL, and no two rows have the same key.
    #[arg(long, value_name = "COLUMN", required = true, value_delimiter = ',')]
    key: Vec<String>,
    /// The columns with their types in SQL, as in CREATE TABLE.
    #[arg(long, value_name = "COLUMNS", conflicts_with = "like")]
    columns: Option<String>,
    /// Take the columns of this file, or of a query's result with --sql.
    #[arg(long, value_name = "URI")]
    like: Option<String>,
    /// The query at --like. [default: all rows of the file]
    #[arg(long, requires = "like")]
    sql: Option<String>,
    /// Size at which a bucket splits, from 1KiB to 1GiB.
    ///
    /// Scans of large buckets are faster; small ones spread sooner over the nodes.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", conflicts_with = "capacity_records")]
    capacity: Size,
    /// Number of records at which a bucket splits, instead of a size.
    #[arg(long, value_name = "N")]
    capacity_records: Option<u64>,
}

pub(super) async fn create(args: CreateArgs, json: bool) -> Result<(), CliError> {
    let schema = match (&args.columns, &args.like) {
        (Some(columns), _) => range::columns(columns).await.map_err(|error| {
            CliError::from(error).hint("give columns as in CREATE TABLE: --columns 'id bigint, name text'")
        })?,
        (None, Some(uri)) => {
            let place = Location::parse(uri)?;
            let sql = query(&place, args.sql.as_deref())?;
            let mut connection = connect(&place, &Options::default()).await?;
            connection.query(&sql).await?.schema().clone()
        }
        (None, None) => {
            return Err(CliError::usage("the columns are missing")
                .hint("give --columns 'id bigint, name text', or --like FILE"));
        }
    };
    let capacity = match args.capacity_records {
        Some(records) => Capacity::Records(records),
        None => Capacity::Bytes(args.capacity.0),
    };
    let name = &args.file.name;
    let definition = Definition::new(name, &schema, &args.key, capacity).map_err(lightship::Error::from)?;
    range::create(&Location::parse(&args.file.uri)?, &definition).await?;
    done("created", name, json)
}

fn done(what: &str, name: &str, json: bool) -> Result<(), CliError> {
    match json {
        true => print(format!("{}\n", serde_json::json!({ what: name })).as_bytes()),
        false => print(format!("range file {name} {what}\n").as_bytes()),
    }
}

/// The query for all rows of a file or folder, unless another one is given.
fn query(place: &Location, sql: Option<&str>) -> Result<String, CliError> {
    match (sql, place) {
        (Some(sql), _) => Ok(sql.to_owned()),
        (None, Location::Path(_) | Location::Object(_)) => Ok(format!("select * from {}", files(place)?.0)),
        (None, other) => Err(CliError::usage(format!("a query to run at {other} is needed"))),
    }
}

/// What to do with rows whose keys exist.
#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// Fail.
    Insert,
    /// Replace them.
    Upsert,
}

/// Insert rows from a file or a query into a range file
///
/// Columns are matched by name, and each value must arrive unchanged. When the command returns, all
/// rows are on disk. After an error, some rows may be written: an upsert can be repeated as it is.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship range insert lightship://db1 orders orders.parquet
  lightship range insert lightship://db1 orders --mode upsert \\
      postgresql://me@db/shop 'select * from orders where day = current_date'")]
pub(super) struct InsertArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Source of the rows, as for `lightship fetch`.
    #[arg(value_name = "FROM")]
    from: String,
    /// SQL query to run at the source. [default: all rows of a file or folder]
    #[arg(value_name = "SQL")]
    sql: Option<String>,
    /// What to do with rows whose keys exist: insert fails, upsert replaces them.
    #[arg(
        long,
        value_enum,
        default_value = "insert",
        hide_possible_values = true,
        value_name = "insert|upsert"
    )]
    mode: Mode,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    columns: ColumnArgs,
    #[command(flatten)]
    transfer: TransferArgs,
}

pub(super) async fn insert(args: InsertArgs, json: bool) -> Result<(), CliError> {
    args.report.check(false)?;
    let from = Location::parse(&args.from)?;
    let sql = query(&from, args.sql.as_deref())?;
    let mode = match args.mode {
        Mode::Insert => WriteMode::Insert,
        Mode::Upsert => WriteMode::Upsert,
    };
    let to = Target::range_file(&Location::parse(&args.file.uri)?, &args.file.name, mode)?;
    let options = args.transfer.options(&args.columns);
    let report = copy(&[from], &sql, to, &options, &mut args.report.progress(json)).await?;
    args.report.finish(&report, json)
}

/// Delete rows of a range file by key
#[derive(Args)]
pub(super) struct DeleteArgs {
    #[command(flatten)]
    file: FileArgs,
    /// The values of the key's columns. With fewer values than columns, all rows whose keys begin with
    /// them are deleted.
    #[arg(value_name = "KEY", required = true, allow_negative_numbers = true)]
    key: Vec<String>,
}

pub(super) async fn delete(args: DeleteArgs, json: bool) -> Result<(), CliError> {
    let location = Location::parse(&args.file.uri)?;
    let file = range::open(&location, &args.file.name, ClientOptions::default()).await?;
    let deleted = delete_keys(&file, &args.key).await?;
    match json {
        true => print(format!("{}\n", serde_json::json!({ "deleted": deleted })).as_bytes()),
        false => {
            print(format!("{deleted} {} deleted\n", if deleted == 1 { "row" } else { "rows" }).as_bytes())
        }
    }
}

async fn delete_keys(file: &RangeFile, key: &[String]) -> Result<u64, CliError> {
    let interval = range::prefix(file.definition(), key)?;
    range::delete(file, interval).await.map_err(CliError::from)
}

/// Remove a range file with all its rows
///
/// All nodes of the cluster must be reachable: a node that is down would bring its buckets back.
#[derive(Args)]
pub(super) struct DropArgs {
    #[command(flatten)]
    file: FileArgs,
}

pub(super) async fn drop_file(args: &DropArgs, json: bool) -> Result<(), CliError> {
    range::drop_file(&Location::parse(&args.file.uri)?, &args.file.name).await?;
    done("dropped", &args.file.name, json)
}
