//! The hidden command `part`: the processes of a benchmark.

mod cluster;
mod databases;
mod engine;
mod fetch;
mod load;
mod objects;
mod protobuf;
mod range;
mod reception;
mod serve;
mod sizes;
mod sockets;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Subcommand, ValueEnum};
use lab::Host;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

pub(crate) use cluster::open;
pub(crate) use databases::{RunningDatabase, load_postgres};
pub(crate) use fetch::Fetch;
pub(crate) use load::{Load, LoadResult};
pub(crate) use range::{KeyOrder, RangeResult, Records};
pub(crate) use reception::{RangeServed, ScanTimes};
pub(crate) use sizes::TimedSizes;

use crate::Result;
use crate::process::{Process, memory_bytes};

/// One process. A server prints a line when it is ready: a port or a URI.
#[derive(Subcommand)]
pub(crate) enum Part {
    /// Read a result from a node and drop its batches
    Fetch(Fetch),
    /// Time the same result repeatedly on one connection
    Repeat {
        count: u32,
        #[command(flatten)]
        fetch: Fetch,
    },
    /// Read the same result with many clients at once, and drop its batches
    Load(Load),
    /// Serve the rows of a Parquet file from memory, for any query
    Serve {
        file: PathBuf,
        #[arg(long, default_value_t = crate::data::BATCH_ROWS)]
        batch_rows: usize,
    },
    /// Run a server of S3 with this bucket
    ServeS3 { bucket: String },
    /// Hold this many bytes in memory, and write them to every client
    SocketServe { bytes: u64 },
    /// Read everything from a socket into one buffer
    SocketRead { port: u16 },
    /// Serve the rows of lineitem from memory as Protocol Buffers
    ProtobufServe { file: PathBuf },
    /// Read rows as Protocol Buffers and drop them
    ProtobufRead {
        address: String,
        #[arg(value_enum)]
        shape: protobuf::Shape,
        #[arg(long)]
        compressed: bool,
    },
    /// Run a PostgreSQL server with the rows of a Parquet file as its table lineitem
    HoldPostgres { file: PathBuf },
    /// Run a MariaDB server with the rows of a CSV file as its table lineitem
    HoldMariadb { file: PathBuf },
    /// Read a result from PostgreSQL and drop its batches
    Postgres { uri: String, sql: String },
    /// Time batches from a node, by rows of a batch and bytes of a message
    Sizes {
        host: String,
        port: u16,
        /// Process of the node, whose processor time is counted
        #[arg(long)]
        server: u32,
        #[arg(long)]
        batches: u32,
        /// ROWS:BYTES
        #[arg(required = true)]
        sizes: Vec<sizes::Sizes>,
    },
    /// Time queries on an open connection to a node
    RoundTrips { port: u16, sql: String, count: u32 },
    /// Run a node of a cluster
    ClusterNode(cluster::ClusterNode),
    /// Run the queries of a file (a JSON list) on a node, and drop their batches
    Queries { port: u16, file: PathBuf },
    /// Load a range file over the nodes of a cluster, scan it, and look up single records
    Range {
        port: u16,
        #[command(flatten)]
        records: Records,
    },
    /// The same with the storage library alone, in a new file in a folder
    Library {
        folder: PathBuf,
        #[command(flatten)]
        records: Records,
    },
    /// Run many servers of range files, with a full file
    RangeServers(reception::RangeServers),
    /// Time scans of the file of such servers
    RangeScan(reception::RangeScan),
    /// Time queries in an engine in this process
    Engine { sql: String, count: u32 },
}

/// Threads that run a client's tasks.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Threads {
    One,
    Many,
}

/// The result of a transfer: the line that its process prints.
#[derive(Serialize, Deserialize)]
pub(crate) struct TransferResult {
    pub(crate) seconds: f64,
    pub(crate) rows: u64,
    /// Bytes of Arrow buffers, or bytes read from a socket.
    pub(crate) bytes: u64,
    /// Bytes of messages on the wire; 0 if only the link counts them.
    #[serde(default)]
    pub(crate) wire_bytes: u64,
    /// Bytes that the first plan allows in flight (W batches); 0 without a plan.
    #[serde(default)]
    pub(crate) plan_memory_bytes: u64,
    /// Connections that carried rows at the end.
    #[serde(default)]
    pub(crate) connections: u32,
    pub(crate) peak_memory_bytes: u64,
}

/// The latencies of many queries: the line that their process prints.
#[derive(Serialize, Deserialize)]
pub(crate) struct Latencies {
    pub(crate) median_us: f64,
    pub(crate) p99_us: f64,
}

impl Part {
    /// Starts this program as `part` with these arguments on a host; `None` is this host.
    pub(crate) fn spawn(host: Option<&Host>, arguments: &[&str]) -> Result<Process> {
        Self::spawn_of(&std::env::current_exe()?, host, arguments)
    }

    /// The same of another build of this program.
    pub(crate) fn spawn_of(program: &Path, host: Option<&Host>, arguments: &[&str]) -> Result<Process> {
        Process::spawn(host, program, ["part"].iter().chain(arguments))
    }
}

/// Runs a part and prints its result.
pub(crate) fn run(part: Part) -> Result<()> {
    match part {
        Part::Fetch(fetch) => print(&fetch.threads.runtime()?.block_on(fetch.run())?),
        Part::Repeat { count, fetch } => print(&fetch.threads.runtime()?.block_on(fetch.repeat(count))?),
        Part::Queries { port, file } => {
            print(&Threads::Many.runtime()?.block_on(load::queries(port, &file))?)
        }
        Part::Load(load) => print(&Threads::Many.runtime()?.block_on(load.run())?),
        Part::Serve { file, batch_rows } => Threads::Many.runtime()?.block_on(serve::run(&file, batch_rows)),
        Part::ServeS3 { bucket } => objects::serve(&bucket),
        Part::SocketServe { bytes } => sockets::serve(bytes),
        Part::SocketRead { port } => print(&sockets::read(port)?),
        Part::ProtobufServe { file } => protobuf::serve(&file),
        Part::ProtobufRead { address, shape, compressed } => {
            print(&protobuf::read(&address, shape, compressed)?)
        }
        Part::HoldPostgres { file } => databases::hold_postgres(&file),
        Part::HoldMariadb { file } => databases::hold_mariadb(&file),
        Part::Postgres { uri, sql } => {
            print(&Threads::Many.runtime()?.block_on(databases::read_postgres(&uri, &sql))?)
        }
        Part::Sizes { host, port, server, batches, sizes } => {
            print(&Threads::One.runtime()?.block_on(sizes::time(&host, port, server, batches, &sizes))?)
        }
        Part::RoundTrips { port, sql, count } => {
            print(&Threads::One.runtime()?.block_on(fetch::round_trips(port, &sql, count))?)
        }
        Part::Range { port, records } => {
            print(&Threads::Many.runtime()?.block_on(range::file(port, &records))?)
        }
        Part::Library { folder, records } => print(&range::library(&folder, &records)?),
        Part::RangeServers(servers) => Threads::Many.runtime()?.block_on(servers.run()),
        Part::RangeScan(scan) => print(&Threads::Many.runtime()?.block_on(scan.run())?),
        Part::ClusterNode(node) => Threads::Many.runtime()?.block_on(node.run()),
        Part::Engine { sql, count } => print(&Threads::Many.runtime()?.block_on(engine::run(&sql, count))?),
    }
}

fn print(result: &impl Serialize) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(result)?)?)
}

impl Threads {
    fn runtime(self) -> Result<Runtime> {
        let mut builder = match self {
            Self::One => Builder::new_current_thread(),
            Self::Many => Builder::new_multi_thread(),
        };
        Ok(builder.enable_all().build()?)
    }
}

impl TransferResult {
    fn since(began: Instant, rows: u64, bytes: u64) -> Result<Self> {
        let seconds = began.elapsed().as_secs_f64();
        let peak_memory_bytes = memory_bytes("self", "VmHWM")?;
        Ok(Self {
            seconds,
            rows,
            bytes,
            wire_bytes: 0,
            plan_memory_bytes: 0,
            connections: 0,
            peak_memory_bytes,
        })
    }

    /// Returns itself if it has all rows.
    ///
    /// # Errors
    /// When the number of rows differs: the figures would be those of other work.
    pub(crate) fn whole(self, rows: u64) -> Result<Self> {
        if self.rows == rows { Ok(self) } else { Err(format!("{} rows instead of {rows}", self.rows).into()) }
    }
}

impl Latencies {
    fn of(latencies: &mut [Duration]) -> Self {
        latencies.sort();
        let at = |share: f64| {
            let index = (latencies.len() as f64 * share) as usize;
            latencies.get(index).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6)
        };
        Self { median_us: at(0.5), p99_us: at(0.99) }
    }
}
