//! Side-by-side measurements: ours and the peers in one run, in turns, on one
//! machine.
//!
//! Each benchmark ([`experiments`]) is one or more [`comparison::Comparison`]s:
//! contenders that run A B C A B C. What came of each run is kept as CSV
//! ([`results`]); from all of it the benchmark's section and plot are made
//! ([`tables`], [`plot`], [`report`]). What is measured over a link runs on hosts
//! of the lab ([`links`]), each part a process of its own: ours are the hidden
//! command `part` ([`parts`]), the peers the programs in `bench/peers`.
//!
//! It asks for no conclusions: targets stand beside the figures, met or not.

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

/// Whatever went wrong, for a person to read.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// Compare Lightship with its peers on this machine
///
/// Each benchmark writes NAME.csv (every run), NAME.svg, and its section of a page
/// in docs/results. What needs the command measures target/release/lightship, which
/// must be built; what runs over a link needs root, and `cargo run -p lab -- doctor`
/// says what else. Data and the peers' Python environment are kept in target.
#[derive(Parser)]
#[command(after_long_help = "Examples:
  bench memory-to-arrow                          as it is published
  bench peers --link wan --only lightship flight one link, some contenders; the rest is kept
  bench codecs --rounds 1 --scale 0.01 --results /tmp/trial
                                                 does it run at all?

A run replaces its contenders' earlier figures at the same place and scale, and all
figures of that place at another scale. Contenders are compared fairly only within
one call: publish what ran together.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// From a node's memory to Arrow batches in a client: ours, Arrow Flight, a plain socket
    MemoryToArrow(Settings),
    /// From PostgreSQL to Arrow batches: ours, DuckDB, ADBC, ConnectorX, and COPY as the floor
    PostgresToArrow(Settings),
    /// Most memory that `fetch` and a node take for 1 GB and 10 GB of rows
    FetchMemory(Settings),
    /// 1 to 300 clients at once: throughput, small queries meanwhile, memory
    Load(Settings),
    /// From one place to another by one command, and TPC-H on one node: ours, psql, DuckDB, pgloader and others
    Jobs(Settings),
    /// The round trip of `select 1` against the engine alone
    RoundTrip(Settings),
    /// From memory over links: ours by codec, Arrow Flight, netcat, DuckDB Quack
    Peers(Settings),
    /// From PostgreSQL over links: ours beside it, COPY, psycopg, ADBC, ConnectorX, DuckDB
    PeersPostgresql(Settings),
    /// From MariaDB over links: ours beside it, its own client plain and compressed
    PeersMariadb(Settings),
    /// Every codec over every link with every data set, and `auto` against the best
    Codecs(Settings),
    /// Messages of 2 KB to 100 MB, with and without compression
    ChunkSize(Settings),
    /// Encodings by column on one core: bytes, encoding, decoding
    Columns(Settings),
    /// Encodings by Arrow type on one core: bytes, encoding, decoding
    Types(Settings),
    /// Layouts of text by its width
    Strings(Settings),
    /// Layouts of NULL by its share
    Nulls(Settings),
    /// The same rows as Protocol Buffers
    Protobuf(Settings),
    /// A million rows over round trips of 0.1 to 100 ms
    Latency(Settings),
    /// A million rows over 10 to 1000 Mbit/s
    Bandwidth(Settings),
    /// Fetch size and message size: the grid, the model, its plans and the strategies
    Mind(Settings),
    /// Over a link whose bandwidth changes halfway, beside an oracle
    BandwidthCut(Settings),
    /// Over a link that another flow begins to share halfway, beside fixed sizes
    CompetingFlow(Settings),
    /// One result over 1 to 8 connections, with and without loss
    Streams(Settings),
    /// Links measured from another host, and a driver with a tuned fetch size
    Calibrate(Settings),
    /// Transfers with and without anything known of the link
    ColdStart(Settings),
    /// Shuffles over overlays: forwards, time, policies, simulated and over sockets
    Overlay(Settings),
    /// TPC-H over four nodes: ours between them, datafusion-distributed's gRPC
    Shuffle(Settings),
    /// The first four: the page docs/results/transfer.md
    Transfer(Settings),
    /// One process of a benchmark
    #[command(hide = true, subcommand)]
    Part(Box<parts::Part>),
}

fn run(command: Command) -> Result<()> {
    use experiments::{
        bandwidth_and_latency, bandwidth_cut, calibrate, chunk_size, codecs, cold_start, columns,
        competing_flow, databases, fetch_memory, jobs, load, memory_to_arrow, mind, nulls, overlay, peers,
        postgres_to_arrow, protobuf, round_trip, shuffle, streams, strings, types,
    };
    match command {
        Command::MemoryToArrow(settings) => memory_to_arrow::run(&settings),
        Command::PostgresToArrow(settings) => postgres_to_arrow::run(&settings),
        Command::FetchMemory(settings) => fetch_memory::run(&settings),
        Command::Load(settings) => load::run(&settings),
        Command::Jobs(settings) => jobs::run(&settings),
        Command::RoundTrip(settings) => round_trip::run(&settings),
        Command::Peers(settings) => peers::run(&settings),
        Command::PeersPostgresql(settings) => databases::postgresql(&settings),
        Command::PeersMariadb(settings) => databases::mariadb(&settings),
        Command::Codecs(settings) => codecs::run(&settings),
        Command::ChunkSize(settings) => chunk_size::run(&settings),
        Command::Columns(settings) => columns::run(&settings),
        Command::Types(settings) => types::run(&settings),
        Command::Strings(settings) => strings::run(&settings),
        Command::Nulls(settings) => nulls::run(&settings),
        Command::Protobuf(settings) => protobuf::run(&settings),
        Command::Latency(settings) => bandwidth_and_latency::latency(&settings),
        Command::Bandwidth(settings) => bandwidth_and_latency::bandwidth(&settings),
        Command::Mind(settings) => mind::run(&settings),
        Command::BandwidthCut(settings) => bandwidth_cut::run(&settings),
        Command::CompetingFlow(settings) => competing_flow::run(&settings),
        Command::Streams(settings) => streams::run(&settings),
        Command::Calibrate(settings) => calibrate::run(&settings),
        Command::ColdStart(settings) => cold_start::run(&settings),
        Command::Overlay(settings) => overlay::run(&settings),
        Command::Shuffle(settings) => shuffle::run(&settings),
        Command::Transfer(settings) => {
            memory_to_arrow::run(&settings)?;
            postgres_to_arrow::run(&settings)?;
            fetch_memory::run(&settings)?;
            round_trip::run(&settings)
        }
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
