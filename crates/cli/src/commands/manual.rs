//! `lightship completions` and `lightship man`.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use lightship::ErrorKind;
use serde::Serialize;

use crate::error::CliError;

/// Print a script that completes this command in a shell
///
/// For bash: source <(lightship completions bash)
#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Write the manual pages
#[derive(Args)]
pub(crate) struct ManArgs {
    /// Folder for the pages, one for each subcommand. Without it the main page is printed to stdout.
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

pub(crate) fn cmd_completions(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "lightship", &mut text);
    print(&text)
}

pub(crate) fn cmd_man(args: &ManArgs) -> Result<(), CliError> {
    let command = crate::Cli::command();
    if let Some(folder) = &args.folder {
        return clap_mangen::generate_to(command, folder)
            .map_err(|e| CliError::new(ErrorKind::Source, format!("{}: {e}", folder.display())));
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).map_err(|e| CliError::internal(e.to_string()))?;
    print(&text)
}

/// What a command answers, as text and as JSON.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Answer {
    /// As a person reads it.
    pub text: String,
    /// The object of `--json`.
    pub json: String,
}

impl Answer {
    /// `object` is the object of `--json`.
    pub(super) fn new(text: String, object: &impl Serialize) -> Result<Self, CliError> {
        let json = serde_json::to_string(object).map_err(|e| CliError::internal(e.to_string()))?;
        Ok(Self { text, json })
    }

    /// Writes it to stdout.
    pub(super) fn print(self, json: bool) -> Result<(), CliError> {
        print(if json { self.json + "\n" } else { self.text }.as_bytes())
    }
}

/// Writes to stdout.
pub(super) fn print(text: &[u8]) -> Result<(), CliError> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text).and_then(|()| stdout.flush()).map_err(|e| match e.kind() {
        std::io::ErrorKind::BrokenPipe => CliError::new(ErrorKind::BrokenPipe, ""),
        _ => CliError::new(ErrorKind::Source, format!("stdout: {e}")),
    })
}
