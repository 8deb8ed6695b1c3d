//! `lightship overlay`: plans overlays between nodes that are not all connected to each other.

mod answer;
mod load;
mod run;
mod shape;
mod show;
mod simulate;

use clap::{Args, Subcommand};

use crate::error::CliError;

/// Plan shuffles between nodes that are not all connected to each other
///
/// In an overlay every node keeps a few connections instead of one to each other node, and nodes
/// forward messages between nodes without a connection. Use it where the number of connections is the
/// bottleneck. It costs bytes: each forward sends a message over the network once more.
/// docs/overlay.md describes it in full.
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

/// Writes a requested file.
fn write(path: &std::path::Path, text: &str) -> Result<(), CliError> {
    Ok(lightship_sources::writers::write_file(path, text.as_ref())?)
}
