//! Chores of the repository: `cargo run -p xtask -- tidy`, `-- demo`, `-- cluster`, `-- usage`.

#![allow(clippy::print_stdout, reason = "chores print to stdout")]

mod cluster;
mod demo;
mod figures;
mod node;
mod tidy;
mod usage;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Chores of the repository")]
struct Xtask {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check what the compiler does not: dependencies between crates, file headers, stray words,
    /// figures of the pages of results.
    Tidy,
    /// Show the main job on generated TPC-H data, with the release binary.
    Demo(demo::DemoArgs),
    /// Show queries over several nodes, with the release binary.
    Cluster(cluster::ClusterArgs),
    /// Show where the time of queries goes, with the release binary.
    Usage(usage::UsageArgs),
}

fn main() -> std::process::ExitCode {
    let done = match Xtask::parse().chore {
        Chore::Tidy => tidy::tidy(),
        Chore::Demo(args) => demo::demo(&args),
        Chore::Cluster(args) => cluster::cluster(&args),
        Chore::Usage(args) => usage::usage(&args),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
