//! Side-by-side measurements: ours and the peers in one run, in turns, on one
//! machine.
//!
//! Each benchmark is a [`comparison::Comparison`]: contenders that are run A B C
//! A B C, a table of medians and ratios, and a place in `docs/results`. What is
//! measured is always a process of its own: our clients are the hidden command
//! `part` ([`parts`]), the peers are the programs in `bench/peers`.
//!
//! It asks for no conclusions: targets stand beside the figures, met or not.

mod comparison;
mod fetch_memory;
mod latency;
mod memory_to_arrow;
mod parts;
mod peers;
mod places;
mod postgres_to_arrow;
mod process;
mod report;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Whatever went wrong, for a person to read.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

/// Compare Lightship with its peers on this machine
///
/// Writes docs/results/NAME.csv and the benchmark's section of
/// docs/results/transfer.md. Measures target/release/lightship, which must be built.
#[derive(Parser)]
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
    /// The round trip of `select 1` against the engine alone
    Latency(Settings),
    /// All of them
    All(Settings),
    /// One process of a benchmark
    #[command(hide = true, subcommand)]
    Part(parts::Part),
}

#[derive(Args, Clone, Copy)]
struct Settings {
    /// How often each contender runs; one more run of each, before the first, is not counted.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(5..))]
    rounds: u32,
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::MemoryToArrow(settings) => memory_to_arrow::run(settings.rounds),
        Command::PostgresToArrow(settings) => postgres_to_arrow::run(settings.rounds),
        Command::FetchMemory(settings) => fetch_memory::run(settings.rounds),
        Command::Latency(settings) => latency::run(settings.rounds),
        Command::All(settings) => {
            memory_to_arrow::run(settings.rounds)?;
            postgres_to_arrow::run(settings.rounds)?;
            fetch_memory::run(settings.rounds)?;
            latency::run(settings.rounds)
        }
        Command::Part(part) => parts::run(part),
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
