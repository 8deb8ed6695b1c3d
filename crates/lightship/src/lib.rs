//! Moves query results from any source to any destination: nodes, databases and files.
//!
//! [`connect`] opens a source, [`Connection::query`] runs SQL there, and the [`QueryResult`] returns
//! Arrow batches as they arrive, within a memory limit:
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
//! [`connect_all`] opens several sources and combines their rows into one result. [`copy`] writes a
//! result to a file or a table, either completely or not at all:
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
//! [`Writer`] writes batches of the caller. [`blocking`] has the same for callers without async.
//!
//! [`Options`] and [`Report`] serialise with serde. Dropping a result or a future before its end
//! cancels the query at its source.
//!
//! The token for a node is read from `LIGHTSHIP_TOKEN` if the URI has none. Each transfer from a node
//! is recorded in `LIGHTSHIP_PROFILES` or `~/.local/state/lightship/profiles`, and later transfers are
//! planned from these records.

pub mod blocking;
pub mod catalog;
mod columns;
mod copy;
mod error;
mod explain;
mod gather;
pub mod node;
mod options;
mod origin;
pub mod range;
mod report;
mod result;
mod statement;
pub mod usage;

pub use copy::{Observer, Target, Writer, copy};
pub use error::{Error, ErrorKind, Position, Result};
pub use explain::{Explanation, explain};
pub use lightship_engine::{
    Choice, Cost, Edge, ExpectedEdge, Explained, LeftOut, StageExplained, Strategy, TaskExplained,
};
pub use lightship_session::{Codec, CodecReport, NodeStages, PlanReport, Retune, Stages};
pub use lightship_sources::columns::DuplicateColumns;
pub use lightship_sources::writers::{Compression, Format, SharedBytes, Target as WriteTarget, WriteOptions};
pub use lightship_sources::{
    InfiniteRule, Location, NumericRule, StatementInfo, TableName, TableWrite, WriteMode, Written,
};
pub use options::Options;
pub use origin::{files, is_stdin, open_database, table_name};
pub use report::{Report, SourceReport, peak_memory_bytes};
pub use result::{Connection, QueryResult, connect, connect_all};
pub use statement::Statement;
