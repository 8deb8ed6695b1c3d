//! `lightship range`: creates, changes and reads range files.

mod buckets;
mod read;
mod write;

use clap::{Args, Subcommand};

use crate::error::CliError;

/// Work with range files: keyed tables that grow over the nodes of a cluster
///
/// A range file has its rows in the order of a key, in buckets over the nodes that were started with
/// --range-data. A bucket that is full splits in the middle, and its upper half moves to the node that
/// has the least, of those whose disks have room. Rows are on disk when an insert returns. There is one copy of each bucket: while its
/// node is down, its rows can't be read or written.
///
/// In SQL, a range file is a table: conditions on the key select the buckets that are read.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship range create lightship://db1 orders --key id \\
      --columns 'id bigint, customer text, price decimal(10,2)'
  lightship range insert lightship://db1 orders orders.parquet
  lightship range get lightship://db1 orders 4711
  lightship range scan lightship://db1 orders --from 100 --to 200 -o part.parquet
  lightship range buckets lightship://db1 orders
  lightship fetch lightship://db1 'select count(*) from orders where id < 1000'")]
pub(crate) struct RangeArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Create(write::CreateArgs),
    Insert(write::InsertArgs),
    Delete(write::DeleteArgs),
    Get(read::GetArgs),
    Scan(read::ScanArgs),
    Buckets(buckets::BucketsArgs),
    List(buckets::ListArgs),
    Drop(write::DropArgs),
}

/// A range file.
#[derive(Args)]
struct FileArgs {
    /// A node that has range files: lightship://[TOKEN@]HOST[:PORT] or lightship+unix:PATH.
    #[arg(value_name = "URI")]
    uri: String,
    /// Name of the range file.
    #[arg(value_name = "NAME")]
    name: String,
}

pub(crate) async fn cmd_range(args: RangeArgs, json: bool) -> Result<(), CliError> {
    match args.action {
        Action::Create(args) => write::create(args, json).await,
        Action::Insert(args) => write::insert(args, json).await,
        Action::Delete(args) => write::delete(args, json).await,
        Action::Get(args) => read::get(args, json).await,
        Action::Scan(args) => read::scan(args, json).await,
        Action::Buckets(args) => buckets::buckets(args, json).await,
        Action::List(args) => buckets::list(&args, json).await,
        Action::Drop(args) => write::drop_file(&args, json).await,
    }
}
