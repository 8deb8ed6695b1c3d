//! Query results from any place to any place: nodes, databases and files.
//!
//! [`connect`] opens a place, [`Connection::query`] runs SQL there, and the [`QueryResult`] gives Arrow batches
//! as they arrive, within a bound of memory:
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use lightship::{Location, Options, connect};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("sales.csv");
//! # std::fs::write(&path, "region,amount\nnorth,3\nsouth,4\n")?;
//! # let uri = path.to_str().unwrap();
//! // Or lightship://host, postgresql://me@db/shop, mysql://me@db/shop, sqlite:FILE.
//! let place = Location::parse(uri)?;
//! let mut connection = connect(&place, &Options::default()).await?;
//! let mut result = connection.query("select region, amount from sales").await?;
//! while let Some(batch) = result.next().await? {
//!     println!("{} rows", batch.num_rows());
//! }
//! assert_eq!(result.report().rows, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! [`connect_all`] opens several places, which answer as one. [`copy`] writes a result to a file or a table, all of it or
//! nothing:
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use lightship::{Format, Location, Options, Target, WriteTarget, copy};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("sales.csv");
//! # std::fs::write(&path, "region,amount\nnorth,3\nsouth,4\n")?;
//! # let (uri, file) = (path.to_str().unwrap(), folder.path().join("sales.parquet"));
//! let to = Target::file(WriteTarget::File(file), Format::Parquet);
//! let report = copy(&[Location::parse(uri)?], "select * from sales", to, &Options::default(), &mut ()).await?;
//! println!("{} rows, {} bytes", report.rows, report.bytes_written);
//! # assert_eq!(report.rows, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! [`Options`] and [`Report`] serialise with serde. A result or a future that is dropped before its end cancels the query at
//! its source.
//!
//! The token for a node is read from `LIGHTSHIP_TOKEN` if the URI has none. The figures of each transfer from a node are
//! kept in `LIGHTSHIP_PROFILES` or `~/.local/state/lightship/profiles`, and used to plan later transfers.

mod columns;
mod copy;
mod error;
mod explain;
mod interleave;
pub mod node;
mod options;
mod origin;
mod report;
mod result;

pub use copy::{Observer, Target, copy};
pub use error::{Error, ErrorKind, Position, Result};
pub use explain::{Explanation, explain};
pub use lightship_engine::{Edge, Explained, StageExplained, TaskExplained};
pub use lightship_session::{Codec, CodecReport, NodeStages, PlanReport, Retune, Stages};
pub use lightship_sources::columns::DuplicateColumns;
pub use lightship_sources::writers::{Compression, Format, Target as WriteTarget, WriteOptions};
pub use lightship_sources::{InfiniteRule, Location, NumericRule, TableName, WriteMode};
pub use options::Options;
pub use origin::{open_database, table_name};
pub use report::{Report, SourceReport, peak_memory_bytes};
pub use result::{Connection, QueryResult, connect, connect_all};
