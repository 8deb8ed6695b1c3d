//! The `lightship` command.
//!
//! stdout is data, stderr is talk; `--json` makes both machine-readable. Each
//! subcommand is a file in `commands/`.

/// A line on stderr; when nobody listens there, the work goes on.
macro_rules! say {
    ($($arguments:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arguments)*);
    }};
}
pub(crate) use say;

mod columns;
mod commands;
mod error;
mod feed;
mod interrupt;
mod progress;
mod report;
mod size;

use clap::Parser;

use crate::error::CliError;

/// Ships query results: from a node, a database or files, to files, a database
/// or the terminal, as fast as the link and both machines allow, inside a memory
/// bound.
#[derive(Parser)]
#[command(name = "lightship", version, max_term_width = 100, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// What is said on stderr of the inner workings: error, warn, info, debug, trace.
    #[arg(long, global = true, value_name = "LEVEL", env = "LIGHTSHIP_LOG", hide_env_values = true)]
    log: Option<String>,

    /// Say everything as JSON: results as JSON lines, reports and errors as
    /// objects on stderr.
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    let json = cli.json;
    match run(cli) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => error.report(json),
    }
}

fn run(cli: Cli) -> Result<(), CliError> {
    let level = cli.log.as_deref().unwrap_or(cli.command.default_log());
    let filter = tracing_subscriber::EnvFilter::builder()
        .parse(level)
        .map_err(|e| CliError::usage(format!("--log {level}: {e}")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .init();
    // Files are written on threads of their own; two workers keep a slow step of
    // one connection from holding up another.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, usize::from).max(2))
        .enable_all()
        .build()
        .map_err(|e| CliError::internal(format!("can't start the runtime: {e}")))?;
    runtime.block_on(interrupt::interruptible(cli.command, cli.json))
}
