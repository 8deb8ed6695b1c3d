//! `lightship shell`: runs statements one after another over one connection.

mod command;
mod editor;
mod pager;
mod session;
mod statement;

use std::io::IsTerminal as _;

use clap::Args;
use lightship::Format;

use self::editor::{Editor, Typed};
use self::session::{Next, Session};
use super::fetch::{ColumnArgs, TransferArgs};
use super::files::{FileArgs, reads_stdin};
use super::sql;
use crate::error::CliError;

/// Run statements one after another: at a prompt, or from standard input
///
/// At a prompt, statements end with `;`, Tab completes the names of tables and columns, and the history
/// is kept. \? lists the commands of the shell. From a pipe or a file, statements are run until one
/// fails, whose error is the exit code.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship shell lightship://localhost
  lightship shell postgresql://me@db/shop
  lightship shell sales.csv < report.sql

The history is in LIGHTSHIP_SHELL_HISTORY, or ~/.local/state/lightship/shell_history; a line that
begins with \\c is not kept. Long results are shown in $PAGER, or less.")]
pub(crate) struct ShellArgs {
    /// Source to query, as for `lightship fetch`.
    #[arg(value_name = "URI", required_unless_present = "table")]
    uri: Option<String>,
    /// A file, folder or pattern as a table of this name. Can be repeated; then URI can be left out.
    #[arg(long, value_name = "NAME=PATH")]
    table: Vec<String>,
    /// How results are shown: table, csv or json. [default: table on a terminal, csv elsewhere]
    #[arg(long)]
    format: Option<String>,
    /// Number of rows that the table format shows; further rows are only counted.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    table_rows: usize,
    #[command(flatten)]
    columns: ColumnArgs,
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    transfer: TransferArgs,
}

impl ShellArgs {
    /// Whether someone types. Then an interrupt ends the query, and not the shell.
    pub(crate) fn is_interactive(&self) -> bool {
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }
}

pub(crate) async fn cmd_shell(args: ShellArgs, json: bool) -> Result<(), CliError> {
    let is_interactive = args.is_interactive();
    let format = match (&args.format, json) {
        (Some(name), _) => session::shown_format(name)?,
        (None, true) => Format::Json,
        (None, false) if is_interactive => Format::Table,
        (None, false) => Format::Csv,
    };
    let mut location = args.files.locations(args.uri.as_deref().into_iter(), &args.table)?.remove(0);
    if reads_stdin(&mut location) {
        return Err(CliError::usage(
            "standard input has the statements of the shell, so it can't be a table",
        ));
    }
    let options = args.transfer.options(&args.columns);
    let mut session = Session::open(location, options, format, args.table_rows, is_interactive, json).await?;
    if is_interactive { converse(&mut session, json).await } else { run_input(&mut session).await }
}

/// Runs what is typed until the end.
async fn converse(session: &mut Session, json: bool) -> Result<(), CliError> {
    crate::say!(r"{}: \? for help, \q to quit", session.location());
    let mut editor = Editor::new(session.names())?;
    loop {
        let prompt = session.prompt();
        // Other tasks go on while someone types.
        let typed = tokio::task::block_in_place(|| editor.read(&prompt));
        let text = match typed.map_err(|error| CliError::internal(format!("the terminal: {error}")))? {
            Typed::Text(text) => text,
            Typed::Cleared => continue,
            Typed::End => return Ok(()),
        };
        let ran = tokio::select! {
            ran = session.run_all(&text) => Some(ran),
            _ = tokio::signal::ctrl_c() => None,
        };
        match ran {
            Some(Ok(Next::Continue)) => {}
            Some(Ok(Next::Quit)) => return Ok(()),
            Some(Err(error)) => drop(error.report(json)),
            None => session.cancel(),
        }
    }
}

/// Runs the statements of standard input.
async fn run_input(session: &mut Session) -> Result<(), CliError> {
    let read = tokio::task::spawn_blocking(sql::read_stdin);
    let text = read.await.map_err(|error| CliError::internal(error.to_string()))??;
    session.run_all(&text).await.map(drop)
}
