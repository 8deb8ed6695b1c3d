//! `lightship fetch`: writes a result to a file or the terminal.

use std::num::NonZeroU32;
use std::str::FromStr;

use clap::Args;
use lightship::{Codec, DuplicateColumns, Location, Options, Statement, Target, WriteTarget, copy};

use super::files::{FileArgs, reads_stdin};
use super::output::{OutputArgs, ReportArgs};
use super::sql::SqlArgs;
use super::values::ValueArgs;
use crate::error::CliError;
use crate::size::Size;

/// Run a query and write its result to a file or stdout
///
/// Without -o the result goes to stdout: as a table on a terminal, as CSV elsewhere. A file gets its
/// name only when it is complete; after an error no file is left.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship fetch lightship://localhost 'select * from lineitem' \\
      -o lineitem.parquet
  lightship fetch postgresql://me@db/shop 'select * from orders' \\
      -o orders.parquet --stats stats.json
  lightship fetch sales.csv 'select region, sum(amount) from sales group by 1'
  lightship fetch sales.csv 'select * from sales where region = ?' -p north
  lightship fetch sales.csv 'select * from sales' -o sales.tsv.gz
  lightship fetch lightship://localhost 'select * from t' \\
      --format stream | consumer
  lightship fetch lightship://a 'select * from sales' -o sales.parquet \\
      --also lightship://b --also postgresql://me@db/shop
  lightship fetch --table s=sales.csv --table r=regions.parquet \\
      'select r.name, sum(s.amount) from s join r on s.region = r.id group by 1'
  lightship fetch - 'select count(*) from stdin' < sales.csv.gz

A file or folder is a table with its name in lower case, and _ for other
characters than letters and digits: sales-2024.csv is `sales_2024`.
Standard input is the table `stdin`.")]
pub(crate) struct FetchArgs {
    /// Source to query: lightship://[TOKEN@]HOST[:PORT], lightship+unix:PATH, postgresql://…, mysql://…,
    /// sqlite:FILE, adbc:DRIVER?OPTION=VALUE, a file, folder or pattern such as 'data/2024-*.csv' of Parquet, CSV, JSON,
    /// Arrow, Avro or Excel, or `-` for standard input.
    #[arg(value_name = "URI", required_unless_present = "table")]
    uri: Option<String>,
    #[command(flatten)]
    sql: SqlArgs,
    /// A file, folder or pattern as a table of this name. Can be repeated; then URI can be left out.
    #[arg(long, value_name = "NAME=PATH")]
    table: Vec<String>,
    #[command(flatten)]
    parameters: ParameterArgs,
    #[command(flatten)]
    also: AlsoArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    columns: ColumnArgs,
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    transfer: TransferArgs,
}

/// Values of the query's parameters.
#[derive(Args)]
pub(crate) struct ParameterArgs {
    /// Value of the query's next parameter, as text. Can be repeated.
    ///
    /// The first value is that of the first ?, or of $1. The source converts the text to the type that the
    /// query requires; where it requires none, cast it in SQL, as in cast($1 as date). PostgreSQL takes $1,
    /// MySQL and SQLite take ?, nodes and files take either.
    #[arg(short = 'p', long = "param", value_name = "VALUE", allow_hyphen_values = true)]
    parameters: Vec<String>,
}

impl ParameterArgs {
    /// The query with these values.
    pub(crate) fn statement(&self, sql: String) -> Statement {
        match self.parameters.as_slice() {
            [] => sql.into(),
            values => Statement::with_texts(sql, values.iter().map(String::as_str)),
        }
    }
}

/// Sources besides the first.
#[derive(Args)]
pub(crate) struct AlsoArgs {
    /// Another source for the same query, whose rows are added to the result (UNION ALL). Can be
    /// repeated.
    ///
    /// All sources run the query at the same time. Rows interleave as they arrive; order is kept only
    /// within one source. The columns must have the same names, and types that one type can hold
    /// without loss, such as Int32 and Int64. If one source fails, the command fails. --memory is divided
    /// between the sources that are read at a time, with at least 4MiB each; of more sources, some wait
    /// until others have ended, and run the query twice: the first time, only for its columns.
    #[arg(long, value_name = "URI")]
    also: Vec<String>,
}

impl AlsoArgs {
    /// All sources, with `first` at the beginning, and files as tables in it.
    ///
    /// # Errors
    /// If one is not valid, or standard input is to be read for several purposes.
    pub(crate) fn locations(
        &self,
        first: Option<&str>,
        tables: &[String],
        files: &FileArgs,
        sql: &SqlArgs,
    ) -> Result<Vec<Location>, CliError> {
        let uris = first.into_iter().chain(self.also.iter().map(String::as_str));
        let mut locations = files.locations(uris, tables)?;
        match locations.iter_mut().filter_map(|location| reads_stdin(location).then_some(())).count() {
            0 => {}
            1 => sql.not_from_stdin()?,
            _ => return Err(CliError::usage("standard input can be only one of the sources")),
        }
        Ok(locations)
    }
}

/// How to handle columns of the same name.
#[derive(Args)]
pub(crate) struct ColumnArgs {
    /// What to do with columns of the same name: error, or rename, which numbers them: a, a_2, a_3.
    /// With error, only the table format may have duplicates.
    #[arg(long, value_name = "error|rename", default_value = "error")]
    duplicate_columns: DuplicateColumns,
}

/// How rows are transferred. `auto` is the default of most options, and rarely wrong.
#[derive(Args)]
#[command(next_help_heading = "Transfer")]
pub(crate) struct TransferArgs {
    /// Memory for rows in this command. [default: 64MiB; 1GiB for a query over files, which runs in
    /// this command]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Encoding of rows on the link: auto, none, light, light+lz4 or light+zstd.
    ///
    /// light sends each column in the cheapest of several encodings; +lz4 and +zstd compress what still
    /// shrinks. All cost processor time at both ends and save bytes on the link. auto measures them and
    /// follows changes of the link; its trials cost about 1% of the time. On one host auto encodes
    /// nothing.
    #[arg(long, value_name = "auto|CODEC", default_value = "auto")]
    codec: Auto<Codec>,
    /// Rows per batch. More need more memory, fewer cost more round trips.
    #[arg(long, value_name = "auto|N", default_value = "auto")]
    batch_rows: Auto<u32>,
    /// Bytes per message. About 1MiB is best on most links.
    #[arg(long, value_name = "auto|SIZE", default_value = "auto")]
    message_bytes: Auto<Size>,
    /// Largest message for a single row that exceeds --message-bytes. It is part of --memory.
    #[arg(long, value_name = "auto|SIZE", default_value = "auto")]
    message_bytes_max: Auto<Size>,
    /// Batches in flight. Enough of them hide the round trip; each takes memory. auto starts with what
    /// is known of the link and adjusts it during the transfer.
    #[arg(long, value_name = "auto|N", default_value = "auto")]
    window: Auto<u32>,
    /// Number of connections for one result, to a PostgreSQL database or a node.
    ///
    /// A large table of PostgreSQL is read over several connections; auto uses up to 4. From a node, over
    /// TCP, more than one helps if loss or a limit per connection slows a single one down. Each costs a
    /// handshake and one of the node's connections, and takes bandwidth from others on the link. auto
    /// starts with 1, and tries 2 and 4 if many segments are lost and much is still to come.
    #[arg(long, value_name = "auto|N", default_value = "auto")]
    streams: Auto<NonZeroU32>,
    #[command(flatten)]
    values: ValueArgs,
}

/// A value that is given, or `auto`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Auto<T>(Option<T>);

impl<T> Auto<T> {
    /// The given value; `None` for `auto`.
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

pub(crate) async fn cmd_fetch(mut args: FetchArgs, json: bool) -> Result<(), CliError> {
    if !args.table.is_empty() {
        args.sql.take_from(&mut args.uri);
    }
    let from = args.also.locations(args.uri.as_deref(), &args.table, &args.files, &args.sql)?;
    let (target, format, options) = args.output.destination(json)?;
    args.report.check(target == WriteTarget::Stdout)?;
    let sql = args.sql.read().await?;
    let to = Target::File { target, format, options };
    let options = args.transfer.options(&args.columns);
    let statement = args.parameters.statement(sql);
    let report = copy(&from, statement, to, &options, &mut args.report.progress(json)).await?;
    args.report.finish(&report, json)
}
