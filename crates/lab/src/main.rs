//! The `lab` command: several hosts on one machine, from the command line.

#![allow(clippy::print_stdout, reason = "the commands print their results to stdout")]

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lab::LabError;

use crate::commands::{doctor, run, verify};

/// Creates two or more hosts on one machine, joined by links of limited speed, and
/// runs commands on them. Everything is removed at the end, even after a crash.
///
/// LINK is local, fast (10 Gbit/s), lan (1 Gbit/s, 0.3 ms), wan (100 Mbit/s, 25 ms
/// each way), slow (10 Mbit/s, 100 ms each way), or numbers such as 50mbit,10ms,1%.
#[derive(Parser)]
#[command(
    name = "lab",
    max_term_width = 100,
    disable_help_subcommand = true,
    after_long_help = "Examples:
  cargo run -p lab -- doctor
  cargo run -p lab -- verify --link all
  cargo run -p lab -- run --link wan --serve 'python3 -m http.server 8000' --port 8000 \\
      -- sh -c 'curl -sS http://$LAB_B:8000/'
  cargo run -p lab -- shell --link wan,1% --cpu b=0.4"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Shell(run::ShellArgs),
    Verify(verify::VerifyArgs),
    Doctor(doctor::DoctorArgs),
}

/// The exit code of the lab's own failures, as opposed to those of the command it runs.
/// `env` and `timeout` use the same code.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => run::cmd_run(args),
        Command::Shell(args) => run::cmd_shell(args),
        Command::Verify(args) => verify::cmd_verify(args),
        Command::Doctor(args) => doctor::cmd_doctor(args),
    };
    done.unwrap_or_else(|error: LabError| {
        eprintln!("error: {error}");
        ExitCode::from(FAILED)
    })
}
