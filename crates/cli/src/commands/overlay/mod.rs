//! `lightship overlay`: nodes that are not all connected to each other.

mod answer;
mod load;
mod run;
mod shape;
mod show;
mod shuffle;
mod simulate;

use clap::{Args, Subcommand};

use crate::error::CliError;

/// Shuffles between nodes that are not all connected to each other
///
/// Where every node keeps a few connections instead of one to each other node, messages between those
/// without one are forwarded. That pays where connections are what there are too many of, and costs
/// bytes: each forward is one more way over the network. docs/overlay.md has the whole of it.
#[derive(Args)]
pub(crate) struct OverlayArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Show(show::ShowArgs),
    Simulate(simulate::SimulateArgs),
    Run(run::RunArgs),
}

pub(crate) async fn cmd_overlay(args: &OverlayArgs, json: bool) -> Result<(), CliError> {
    match &args.command {
        Command::Show(args) => show::cmd_show(args, json),
        Command::Simulate(args) => simulate::cmd_simulate(args, json).await,
        Command::Run(args) => run::cmd_run(args, json).await,
    }
}

/// Writes a file that was asked for.
fn write(path: &std::path::Path, text: &str) -> Result<(), CliError> {
    Ok(lightship_sources::writers::write_file(path, text.as_ref())?)
}
