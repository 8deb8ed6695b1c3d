//! The subcommands, one file each.

mod agent;
mod calibrate;
mod cluster;
mod copy;
mod explain;
mod fetch;
mod files;
mod manual;
mod netbench;
mod node;
mod output;
mod overlay;
mod range;
mod shell;
mod sql;
mod tune;
mod usage;
mod values;

use clap::Subcommand;
use tokio::sync::watch;

pub use self::manual::Answer;

use crate::error::CliError;
use crate::interrupt;

#[derive(Subcommand)]
pub(crate) enum Command {
    Node(Box<node::NodeArgs>),
    Agent(agent::AgentArgs),
    Fetch(fetch::FetchArgs),
    Shell(Box<shell::ShellArgs>),
    Copy(copy::CopyArgs),
    Explain(explain::ExplainArgs),
    Cluster(cluster::ClusterArgs),
    Range(range::RangeArgs),
    Calibrate(calibrate::CalibrateArgs),
    Tune(Box<tune::TuneArgs>),
    Overlay(Box<overlay::OverlayArgs>),
    Netbench(netbench::NetbenchArgs),
    Usage(usage::UsageArgs),
    Completions(manual::CompletionsArgs),
    Man(manual::ManArgs),
}

/// The subcommands as the help lists them.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Data", &["fetch", "copy", "shell", "explain"]),
    ("Nodes", &["node", "cluster", "range"]),
    ("Usage", &["usage", "agent"]),
    ("Tuning", &["calibrate", "tune"]),
    ("Networks", &["netbench", "overlay"]),
    ("Manual", &["completions", "man"]),
];

/// Lists the subcommands in groups: clap itself can only list them all under one heading.
pub(crate) fn grouped(command: clap::Command) -> clap::Command {
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for (heading, names) in GROUPS {
        text.push_str(&format!("\n{heading}:\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {name:<12} {about}\n"));
        }
    }
    text.push_str("\nOptions:\n{options}{after-help}");
    command.help_template(text)
}

impl Command {
    /// Runs the command. On a signal, a transfer is dropped, which cancels the query and removes incomplete files;
    /// a node is asked to shut down. At the prompt of a shell, an interrupt only ends the query.
    pub(crate) async fn run_until_interrupted(self, json: bool) -> Result<(), CliError> {
        if let Self::Shell(args) = self {
            if args.is_interactive() {
                return Box::pin(shell::cmd_shell(*args, json)).await;
            }
            return Box::pin(Self::Shell(args).run_until_signal(json)).await;
        }
        Box::pin(self.run_until_signal(json)).await
    }

    async fn run_until_signal(self, json: bool) -> Result<(), CliError> {
        let asked = interrupt::watch();
        let mut stop = asked.clone();
        let ends_by_itself = self.is_service();
        tokio::select! {
            done = Box::pin(self.run(json, asked)) => done,
            _ = stop.wait_for(|&asked| asked), if !ends_by_itself => Err(CliError::interrupted()),
        }
    }

    pub(crate) async fn run(self, json: bool, stop: watch::Receiver<bool>) -> Result<(), CliError> {
        match self {
            Self::Node(args) => node::cmd_node(*args, json, stop).await,
            Self::Fetch(args) => fetch::cmd_fetch(args, json).await,
            Self::Copy(args) => copy::cmd_copy(args, json).await,
            Self::Shell(args) => Box::pin(shell::cmd_shell(*args, json)).await,
            Self::Cluster(args) => cluster::cmd_cluster(args, json).await,
            Self::Range(args) => range::cmd_range(args, json).await,
            Self::Explain(args) => explain::cmd_explain(args, json).await,
            Self::Calibrate(args) => calibrate::cmd_calibrate(args, json).await,
            Self::Tune(args) => tune::cmd_tune(&args, json).await,
            Self::Overlay(args) => overlay::cmd_overlay(&args, json).await,
            Self::Netbench(args) => netbench::cmd_netbench(args, json, stop).await,
            Self::Usage(args) => usage::cmd_usage(args, json, stop).await,
            Self::Agent(args) => Box::pin(agent::cmd_agent(args, json, stop)).await,
            Self::Completions(args) => manual::cmd_completions(&args),
            Self::Man(args) => manual::cmd_man(&args),
        }
    }

    /// What the command answers instead of what it prints. `None` if it does more than answer.
    pub(crate) async fn answer(self) -> Option<Result<Answer, CliError>> {
        match self {
            Self::Explain(args) => Some(explain::answer(args).await),
            Self::Calibrate(args) => Some(calibrate::answer(args).await),
            Self::Tune(args) => Some(tune::answer(&args).await),
            _ => None,
        }
    }

    /// Whether the command runs until it is told to stop, and then ends by itself.
    pub(crate) fn is_service(&self) -> bool {
        match self {
            Self::Node(_) | Self::Agent(_) => true,
            Self::Netbench(args) => args.is_service(),
            Self::Usage(args) => args.is_service(),
            _ => false,
        }
    }

    pub(crate) fn default_log(&self) -> &'static str {
        match self {
            Self::Usage(_) | Self::Agent(_) => "warn",
            command if command.is_service() => "info",
            _ => "warn",
        }
    }
}
