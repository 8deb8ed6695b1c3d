//! The `lightship` command.
//!
//! Data goes to stdout and messages to stderr; `--json` makes both machine-readable. Each
//! subcommand is a file in `commands/`. This is a library so that the Python package has the command, too.

/// Prints a line to stderr. If stderr is closed, the command continues.
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
mod interrupt;
mod progress;
mod size;

use std::ffi::OsString;
use std::time::Duration;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};

pub use crate::commands::Answer;
use crate::error::CliError;

/// How long threads have to end after the command has ended.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the command waits at its end for databases to accept its cancel requests.
const CANCEL_WAIT: Duration = Duration::from_secs(2);

/// Ships query results from a node, a database or files to files, a database or the terminal, as
/// fast as the link and both machines allow, within a memory limit.
#[derive(Parser)]
#[command(
    name = "lightship",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 success, 1 internal error, 2 usage, 3 source, 4 network, 5 data, 6 limits,
129 hang-up, 130 interrupt."
)]
pub(crate) struct Cli {
    /// Log level of the messages on stderr: error, warn, info, debug or trace. [default: info for
    /// `node` and `netbench serve`, warn for others]
    #[arg(long, global = true, value_name = "LEVEL", env = "LIGHTSHIP_LOG", hide_env_values = true)]
    log: Option<String>,

    /// Print everything as JSON: results on stdout, with rows as JSON lines unless --format is a binary
    /// format; reports and errors as objects on stderr.
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: commands::Command,
}

/// Runs the command with these arguments, of which the first is the name of the program. Returns its exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let matches = commands::grouped(Cli::command()).get_matches_from(arguments);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let json = cli.json;
    match run_parsed(cli) {
        Ok(()) => 0,
        Err(error) => error.report(json),
    }
}

/// What `explain`, `tune` or `calibrate` answers to these arguments, of which the first is the name of the program.
///
/// # Errors
/// As the command; also if the arguments are not valid, or another command is named.
pub async fn answer(arguments: impl IntoIterator<Item = OsString>) -> lightship::Result<Answer> {
    let usage = |message| lightship::Error::new(lightship::ErrorKind::Usage, message);
    let refused = |error: clap::Error| {
        // Without the usage of the command line, which follows a blank line.
        let text = error.to_string();
        let message = text.split("\n\n").next().unwrap_or_default();
        usage(message.strip_prefix("error: ").unwrap_or(message).to_owned())
    };
    let cli = Cli::command().try_get_matches_from(arguments).map_err(refused)?;
    let cli = Cli::from_arg_matches(&cli).map_err(refused)?;
    match Box::pin(cli.command.answer()).await {
        Some(answered) => answered.map_err(|error| *error.error),
        None => Err(usage("this command does more than answer".to_owned())),
    }
}

fn run_parsed(cli: Cli) -> Result<(), CliError> {
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
    log_panics_of_queries();
    // Files are written and queries run on other threads. With two workers, a slow step of one
    // connection does not delay another.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, usize::from).max(2))
        .enable_all()
        .build()
        .map_err(|e| CliError::internal(format!("can't start the runtime: {e}")))?;
    let done = runtime.block_on(async {
        let done = cli.command.run_until_interrupted(cli.json).await;
        // A query that was interrupted or has failed may still run at a database.
        for unsent in lightship_sources::cancels_sent(CANCEL_WAIT).await {
            say!("warning: {unsent}");
        }
        done
    });
    // Don't wait for a thread that is blocked on a file or a pipe.
    runtime.shutdown_timeout(THREADS_TIMEOUT);
    done
}

/// Logs where a query panicked; the user gets the query's error.
fn log_panics_of_queries() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| match std::thread::current().name() {
        Some(lightship_engine::THREAD_NAME) => tracing::info!(%panic, "a query failed"),
        _ => others(panic),
    }));
}
