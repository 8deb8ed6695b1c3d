//! The subcommands, one file each.

mod calibrate;
mod cluster;
mod copy;
mod explain;
mod fetch;
mod manual;
mod netbench;
mod node;
mod overlay;
mod tune;
mod values;

use clap::Subcommand;
use tokio::sync::watch;

use crate::error::CliError;

#[derive(Subcommand)]
pub(crate) enum Command {
    Node(Box<node::NodeArgs>),
    Fetch(fetch::FetchArgs),
    Copy(copy::CopyArgs),
    Explain(explain::ExplainArgs),
    Cluster(cluster::ClusterArgs),
    Calibrate(calibrate::CalibrateArgs),
    Tune(Box<tune::TuneArgs>),
    Overlay(Box<overlay::OverlayArgs>),
    Netbench(netbench::NetbenchArgs),
    Completions(manual::CompletionsArgs),
    Man(manual::ManArgs),
}

impl Command {
    pub(crate) async fn run(self, json: bool, stop: watch::Receiver<bool>) -> Result<(), CliError> {
        match self {
            Self::Node(args) => node::cmd_node(*args, json, stop).await,
            Self::Fetch(args) => fetch::cmd_fetch(args, json).await,
            Self::Copy(args) => copy::cmd_copy(args, json).await,
            Self::Cluster(args) => cluster::cmd_cluster(args, json).await,
            Self::Explain(args) => explain::cmd_explain(args, json).await,
            Self::Calibrate(args) => calibrate::cmd_calibrate(args, json).await,
            Self::Tune(args) => tune::cmd_tune(&args, json).await,
            Self::Overlay(args) => overlay::cmd_overlay(&args, json).await,
            Self::Netbench(args) => netbench::cmd_netbench(args, json, stop).await,
            Self::Completions(args) => manual::cmd_completions(&args),
            Self::Man(args) => manual::cmd_man(&args),
        }
    }

    /// Whether the command runs until it is told to stop, and then ends by itself.
    pub(crate) fn is_service(&self) -> bool {
        match self {
            Self::Node(_) => true,
            Self::Netbench(args) => args.is_service(),
            _ => false,
        }
    }

    pub(crate) fn default_log(&self) -> &'static str {
        if self.is_service() { "info" } else { "warn" }
    }
}
