//! Side-by-side measurements: Lightship and its peers take turns in one run on one machine.
//!
//! Each benchmark ([`experiments`]) is one or more [`comparison::Comparison`]s, whose contenders run
//! A B C A B C. Each run is saved as a line of CSV ([`results`]). The benchmark's section and plots are
//! made from all saved runs ([`tables`], [`plot`], [`report`]). Benchmarks over a link run on hosts of
//! the lab ([`links`]), with one process for each part: Lightship's parts are the hidden command `part`
//! ([`parts`]), the peers' are the programs in `bench/peers`.
//!
//! A report draws no conclusions: it shows targets beside the figures, whether they are met or not.

mod all;
mod comparison;
mod data;
mod experiments;
mod links;
mod parts;
mod peers;
mod places;
mod process;
mod report;
mod results;
mod settings;
mod tables;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use lightship_plot as plot;
use settings::Settings;

/// Any error. Its text is shown to the user.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// Compare Lightship with its peers on this machine
///
/// Each benchmark writes NAME.csv (every run), NAME.svg, and its section of a page
/// in docs/results. Benchmarks of the command measure target/release/lightship, which
/// must be built first. Benchmarks over a link need root; `cargo run -p lab -- doctor`
/// lists what else they need. Data and the peers' Python environment are kept in target.
#[derive(Parser)]
#[command(after_long_help = "Examples:
  bench memory-to-arrow                          as published
  bench peers --link wan --only lightship flight one link, some contenders; other results are kept
  bench codecs --quick                           a trial: does it run at all?
  bench all --quick                              all of them

A run replaces the earlier figures of its contenders at the same place and scale, and all
figures of that place at any other scale. Only contenders of one run can be compared
fairly: publish figures that were measured together.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// From a node's memory to Arrow batches in a client: Lightship, Arrow Flight, a plain socket
    MemoryToArrow(Settings),
    /// From CSV, JSON lines and Parquet, also from S3, to Arrow, Parquet and PostgreSQL: Lightship, DuckDB, Polars, pyarrow, psql
    Files(experiments::files::FileSettings),
    /// From PostgreSQL to Arrow batches: Lightship, DuckDB, ADBC, ConnectorX, and COPY as the floor
    PostgresToArrow(Settings),
    /// Peak memory of `fetch` and of a node for 1 GB and 10 GB of rows
    FetchMemory(Settings),
    /// Clients: `lightship` in Python compared with ConnectorX, ADBC and others; a node's Flight SQL and PostgreSQL's protocol
    Clients(Settings),
    /// 1 to 300 clients at once: throughput, latency of small queries meanwhile, memory
    Load(Settings),
    /// Transfers by one command, and TPC-H on one node: Lightship, psql, DuckDB, pgloader and others
    Jobs(Settings),
    /// Round trip of `select 1` to a node, compared with the engine alone
    RoundTrip(Settings),
    /// From memory over links: Lightship with each codec, Arrow Flight, netcat, DuckDB Quack
    Peers(Settings),
    /// From PostgreSQL over links: a Lightship node on its host, COPY, psycopg, ADBC, ConnectorX, DuckDB
    PeersPostgresql(Settings),
    /// From MariaDB over links: a Lightship node on its host, MariaDB's client plain and compressed
    PeersMariadb(Settings),
    /// Every codec over every link with every data set, and `auto` compared with the best
    Codecs(Settings),
    /// Messages of 2 KB to 100 MB, with and without compression
    ChunkSize(Settings),
    /// Encodings by column on one core: bytes, encoding, decoding
    Columns(Settings),
    /// The same for the wide tables
    ColumnsWide(Settings),
    /// Encodings by Arrow type on one core: bytes, encoding, decoding
    Types(Settings),
    /// Layouts of text, by width
    Strings(Settings),
    /// The same, each compressed with LZ4 and with Zstandard
    StringsCompressed(Settings),
    /// Layouts of NULL, by the share of NULL
    Nulls(Settings),
    /// The same rows as Protocol Buffers
    Protobuf(Settings),
    /// A million rows over links with round trips of 0.1 to 100 ms
    Latency(Settings),
    /// A million rows over links of 10 to 1000 Mbit/s
    Bandwidth(Settings),
    /// Fetch size and message size: a grid of sizes, the model, its plans, and fixed strategies
    Mind(Settings),
    /// Over a link whose bandwidth changes halfway, compared with an oracle
    BandwidthCut(Settings),
    /// Over a link that another flow begins to share halfway, compared with fixed sizes
    CompetingFlow(Settings),
    /// One result over 1 to 8 connections, with and without loss
    Streams(Settings),
    /// Links measured by `lightship calibrate`, and a driver with the fetch size of `lightship tune`
    Calibrate(Settings),
    /// Transfers over a known and an unknown link
    ColdStart(Settings),
    /// The network alone: 143 pairs of connections and message size over links, one way and both ways
    Network(Settings),
    /// Shuffles over overlays: forwards, time, policies, simulated and over sockets
    Overlay(Settings),
    /// TPC-H over four nodes: Lightship's protocol between them, and datafusion-distributed's gRPC
    Shuffle(Settings),
    /// Queries over 16 and 32 nodes with 4 to 16 connections a node: an overlay, and direct connections
    ClusterOverlay(Settings),
    /// Joins in which one key has 30% of the rows, compared with an earlier build
    SkewedJoin(Settings),
    /// Range files: bulk load, scan and single records, compared with redb alone and a table
    RangeLoad(Settings),
    /// Range files: a scan that 1 to 1000 buckets answer, by strategy of reception
    RangeReception(Settings),
    /// Range files: the first records of a wide range
    RangeLimit(Settings),
    /// Range files: receptions in virtual time, to a million servers, and trees of servers
    RangeVirtual(Settings),
    /// Usage: five queries of TPC-H on 1, 3 and 6 nodes, with what-if predictions of each change
    #[command(alias = "usage-what-if")]
    UsageNodes(Settings),
    /// Usage: limits and faults that are made on purpose, and whether they are found
    UsageFaults(Settings),
    /// Usage: what agents cost
    UsageCost(Settings),
    /// memory-to-arrow, postgres-to-arrow, fetch-memory and round-trip
    Transfer(Settings),
    /// Every benchmark, each in a process of its own
    All(all::All),
    /// One process of a benchmark
    #[command(hide = true, subcommand)]
    Part(Box<parts::Part>),
}

fn run(command: Command) -> Result<()> {
    use experiments::{
        bandwidth_and_latency, bandwidth_cut, calibrate, chunk_size, clients, codecs, cold_start, columns,
        competing_flow, databases, fetch_memory, fetch_size, files, jobs, load, memory_to_arrow, network,
        nulls, overlay, peers, postgres_to_arrow, protobuf, range, round_trip, shuffle, streams, strings,
        types, usage,
    };
    match command {
        Command::MemoryToArrow(settings) => memory_to_arrow::run(&settings),
        Command::Files(settings) => files::run(&settings),
        Command::PostgresToArrow(settings) => postgres_to_arrow::run(&settings),
        Command::FetchMemory(settings) => fetch_memory::run(&settings),
        Command::Clients(settings) => clients::run(&settings),
        Command::Load(settings) => load::run(&settings),
        Command::Jobs(settings) => jobs::run(&settings),
        Command::RoundTrip(settings) => round_trip::run(&settings),
        Command::Peers(settings) => peers::run(&settings),
        Command::PeersPostgresql(settings) => databases::postgresql(&settings),
        Command::PeersMariadb(settings) => databases::mariadb(&settings),
        Command::Codecs(settings) => codecs::run(&settings),
        Command::ChunkSize(settings) => chunk_size::run(&settings),
        Command::Columns(settings) => columns::run(&settings),
        Command::ColumnsWide(settings) => columns::wide(&settings),
        Command::Types(settings) => types::run(&settings),
        Command::Strings(settings) => strings::run(&settings),
        Command::StringsCompressed(settings) => strings::compressed(&settings),
        Command::Nulls(settings) => nulls::run(&settings),
        Command::Protobuf(settings) => protobuf::run(&settings),
        Command::Latency(settings) => bandwidth_and_latency::latency(&settings),
        Command::Bandwidth(settings) => bandwidth_and_latency::bandwidth(&settings),
        Command::Mind(settings) => fetch_size::run(&settings),
        Command::BandwidthCut(settings) => bandwidth_cut::run(&settings),
        Command::CompetingFlow(settings) => competing_flow::run(&settings),
        Command::Streams(settings) => streams::run(&settings),
        Command::Calibrate(settings) => calibrate::run(&settings),
        Command::ColdStart(settings) => cold_start::run(&settings),
        Command::Overlay(settings) => overlay::run(&settings),
        Command::Network(settings) => network::run(&settings),
        Command::Shuffle(settings) => shuffle::run(&settings),
        Command::ClusterOverlay(settings) => shuffle::cluster_overlay::run(&settings),
        Command::SkewedJoin(settings) => shuffle::skewed_join::run(&settings),
        Command::RangeLoad(settings) => range::load::run(&settings),
        Command::RangeReception(settings) => range::reception::run(&settings),
        Command::RangeLimit(settings) => range::limit::run(&settings),
        Command::RangeVirtual(settings) => range::in_virtual_time::run(&settings),
        Command::UsageNodes(settings) => usage::nodes(&settings),
        Command::UsageFaults(settings) => usage::faults(&settings),
        Command::UsageCost(settings) => usage::cost(&settings),
        Command::Transfer(settings) => {
            memory_to_arrow::run(&settings)?;
            postgres_to_arrow::run(&settings)?;
            fetch_memory::run(&settings)?;
            round_trip::run(&settings)
        }
        Command::All(all) => all.run(),
        Command::Part(part) => parts::run(*part),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
