//! `lightship usage`: runs commands, says what limited them, and what other hardware would change.

mod node;
mod options;
mod report;
mod watch;

use clap::{Args, Subcommand};
use lightship::usage::{
    Change, Footprint, NodeQueryReport, NodesChange, Predictions, Record, Records, RunOptions, Verdict, run,
    what_if,
};
use lightship::{Error, ErrorKind};
use serde::Serialize;

use tokio::sync::watch as channel;

use self::node::NodeArgs;
pub(super) use self::options::{TokenArgs, address, host_name, interval_ns};
use self::report::{explained, predicted, seconds};
use super::manual::print;
use crate::columns::aligned;
use crate::error::CliError;

/// The label of a run that was given none; also stands for the last query of a node.
const LAST: &str = "last";

/// Say why a command was slow, and what other hardware would change
///
/// While a command runs, its processes and this host are sampled: processor time, waits for processors
/// and disks, bytes and waits of sockets, memory. Its run time is then divided into what it was spent
/// on. What no sampled resource explains is shown as unexplained.
///
/// The last run of each label is kept in LIGHTSHIP_USAGE or ~/.local/state/lightship/usage.
#[derive(Args)]
pub(crate) struct UsageArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Run(RunArgs),
    Watch(watch::WatchArgs),
    /// List the runs that are kept, or the last queries of a node, with what limited each
    Show(ShowArgs),
    /// Show where the time of a run or a query went, and what limited it
    Explain(LabelArgs),
    WhatIf(WhatIfArgs),
}

/// Run a command, and say what limited it
///
/// The command gets this program's input and output, and its exit code becomes this program's. The
/// report goes to stderr.
///
/// Only processes that descend from the command are sampled. A server that works for it is not: its time
/// is unexplained, or a wait. --postgres adds the sessions of PostgreSQL servers.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship usage run --label q1 --postgres postgresql://me@localhost/shop -- \\
      psql -c 'select count(*) from lineitem' shop
  lightship usage run --label sort -- sort -o sorted.csv rows.csv
  lightship usage explain sort

Samples are taken every 20 ms at first, and less often the longer the command
runs, down to one a second. Figures that this system does not give are missing,
never 0; `explain` names them.")]
struct RunArgs {
    /// Name of the run. It replaces an earlier run of the same name.
    #[arg(long, default_value = LAST)]
    label: String,
    /// Compare the time with a prediction that `what-if --save` has stored: what was changed, as in
    /// `cpu=2,disk=1.5`. Without a value, the change that was predicted last.
    #[arg(long, value_name = "CHANGE", num_args = 0..=1, require_equals = true)]
    changed: Option<Option<Change>>,
    /// Watch the sessions that the command has at this PostgreSQL server, too: their waits for locks and for
    /// the client, and, if the server is on this host, its processes.
    ///
    /// The sessions are found by the name of the application, which is set with PGAPPNAME. Programs that use
    /// libpq obey it. May be given several times: the sessions at all these servers belong to the command.
    #[arg(long, value_name = "URI")]
    postgres: Vec<String>,
    /// Print no report. It is kept all the same.
    #[arg(short, long)]
    quiet: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Args)]
struct ShowArgs {
    #[command(flatten)]
    node: NodeArgs,
}

#[derive(Args)]
struct LabelArgs {
    /// Name of the run; with --node, id of the query or the beginning of it.
    #[arg(default_value = LAST, value_name = "LABEL")]
    label: String,
    #[command(flatten)]
    node: NodeArgs,
}

/// Predict the time of a run on other hardware
///
/// Each factor is a speed: --disk 2 is a disk that is twice as fast. What was hidden behind a slow part
/// counts once that is faster. What is unexplained stays; the range in brackets covers that it may not.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship usage what-if q1 --cpu 2
  lightship usage what-if q1 --network 10 --round-trip 2
  lightship usage what-if q1 --nodes 6 --divided 0.9")]
struct WhatIfArgs {
    /// Name of the run; with --node, id of the query or the beginning of it.
    #[arg(default_value = LAST, value_name = "LABEL")]
    label: String,
    #[command(flatten)]
    node: NodeArgs,
    /// Speed of each processor, as a multiple.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    cpu: f64,
    /// Speed of the disk, sequential and random, as a multiple.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    disk: f64,
    /// Rate of the network, as a multiple.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    network: f64,
    /// Speed of round trips, as a multiple: 2 halves their time.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    round_trip: f64,
    /// Number of nodes that share the work, instead of those that did.
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Part of the work that more nodes divide, 0 to 1.
    #[arg(long, default_value_t = 1.0, value_name = "FRACTION", requires = "nodes")]
    divided: f64,
    /// Store the prediction, to compare it with a later run (`lightship usage run --changed`).
    #[arg(long)]
    save: bool,
}

impl UsageArgs {
    /// Whether a signal is left to the command that runs, or to the end of what is collected.
    pub(crate) fn is_service(&self) -> bool {
        matches!(self.action, Action::Run(_) | Action::Watch(_))
    }
}

pub(crate) async fn cmd_usage(
    args: UsageArgs,
    json: bool,
    stop: channel::Receiver<bool>,
) -> Result<(), CliError> {
    match args.action {
        Action::Watch(args) => watch::watch(args, json, stop).await,
        Action::Run(args) => run_command(args, json).await,
        Action::Show(args) => match args.node.page()? {
            Some(page) => node::show(&page, json).await,
            None => show(json),
        },
        Action::Explain(LabelArgs { label, node }) => {
            let subject = Subject::find(&label, &node).await?;
            if json {
                return print(to_json(&subject)?.as_bytes());
            }
            let (name, footprint, verdict) = subject.parts();
            print(explained(name, footprint, verdict, true).as_bytes())
        }
        Action::WhatIf(args) => predict(&args, json).await,
    }
}

/// What is explained.
#[derive(Serialize)]
#[serde(untagged)]
enum Subject {
    Run(Box<Record>),
    Query { query: Box<NodeQueryReport>, footprint: Box<Footprint>, verdict: Box<Verdict> },
}

impl Subject {
    /// The last run with a label; or, at a node, a query.
    async fn find(label: &str, node: &NodeArgs) -> Result<Self, CliError> {
        match node.page()? {
            None => Ok(Self::Run(Box::new(Records::of_user()?.find(label)?))),
            Some(page) => node::find(&page, label).await,
        }
    }

    fn parts(&self) -> (&str, &Footprint, &Verdict) {
        match self {
            Self::Run(record) => (&record.label, &record.footprint, &record.verdict),
            Self::Query { query, footprint, verdict } => (&query.query.label, footprint, verdict),
        }
    }
}

async fn run_command(args: RunArgs, json: bool) -> Result<(), CliError> {
    // Before it runs: a run that can't be kept is not worth the wait.
    let records = Records::of_user()?;
    let label = args.label.clone();
    if let Some(Some(change)) = &args.changed {
        Predictions::of_user().and_then(|stored| stored.of_label(&label)).map_err(Error::from)?;
        change.check().map_err(|error| CliError::usage(error.to_string()))?;
    }
    let options = RunOptions { label: args.label, host: host_name(), postgres: args.postgres };
    let command = args.command;
    let running = tokio::task::spawn_blocking(move || run(&command, &options));
    let record = running.await.map_err(|e| CliError::internal(e.to_string()))??;
    if json {
        crate::say!("{}", to_json(&record)?.trim_end());
    } else if !args.quiet {
        crate::say!("{}", explained(&record.label, &record.footprint, &record.verdict, false).trim_end());
    }
    records.keep(&record)?;
    if let Some(change) = &args.changed {
        let seconds = record.footprint.run_ns as f64 / 1e9;
        let compare = || Predictions::of_user()?.compare(&label, change.as_ref(), seconds);
        let compared = compare().map_err(Error::from)?;
        if json {
            crate::say!("{}", to_json(&compared)?.trim_end());
        } else {
            crate::say!("{compared}");
        }
    }
    match record.exit_code {
        0 => Ok(()),
        code => Err(CliError::of_command(u8::try_from(code).unwrap_or(u8::MAX))),
    }
}

fn show(json: bool) -> Result<(), CliError> {
    let records = Records::of_user()?;
    let mut found = Vec::new();
    for label in records.labels()? {
        match records.find(&label) {
            Ok(record) => found.push(record),
            Err(error) => crate::say!("warning: {}", error.message),
        }
    }
    found.sort_by_key(|record| record.began_unix_ms);
    if json {
        return found.iter().try_for_each(|record| print(to_json(record)?.as_bytes()));
    }
    if found.is_empty() {
        crate::say!("no runs are kept; make one with `lightship usage run --label NAME -- COMMAND`");
        return Ok(());
    }
    let mut table = vec![["label", "limit", "time", "explained"].map(String::from).to_vec()];
    table.extend(found.iter().map(|record| {
        let explained = record.footprint.division.explained() * 100.0;
        vec![
            record.label.clone(),
            record.verdict.limit.name().to_owned(),
            seconds(record.footprint.run_ns),
            format!("{explained:.0}%"),
        ]
    }));
    let mut text = String::new();
    aligned(&mut text, 0, &table, 2);
    print(text.as_bytes())
}

async fn predict(args: &WhatIfArgs, json: bool) -> Result<(), CliError> {
    let subject = Subject::find(&args.label, &args.node).await?;
    let (name, footprint, _) = subject.parts();
    let from = footprint.hosts.iter().filter(|host| host.divides).count().max(1);
    let from = u32::try_from(from).unwrap_or(u32::MAX);
    let nodes = args.nodes.map(|to| NodesChange { from, to, divided: args.divided });
    let change = Change {
        cpu: args.cpu,
        disk_sequential: args.disk,
        disk_random: args.disk,
        network: args.network,
        round_trip: args.round_trip,
        nodes,
    };
    if change == Change::default() {
        return Err(CliError::usage("nothing is changed")
            .hint("give one of --cpu, --disk, --network, --round-trip and --nodes"));
    }
    let stored = Predictions::of_user().map_err(Error::from)?;
    let history = stored.history().map_err(Error::from)?;
    let prediction = what_if(footprint, &change, &history)
        .map_err(|error| Error::new(ErrorKind::Usage, error.to_string()))?;
    if args.save {
        if !matches!(subject, Subject::Run(_)) {
            return Err(CliError::usage(
                "--save is for runs: queries of a node are not run again under a label",
            ));
        }
        stored.save(&args.label, &change, &prediction).map_err(Error::from)?;
        crate::say!(
            "stored; compare it with `lightship usage run --label {} --changed={change}`",
            args.label
        );
    }
    let text = if json { to_json(&prediction)? } else { predicted(name, &prediction) };
    print(text.as_bytes())
}

fn to_json(value: &impl serde::Serialize) -> Result<String, CliError> {
    serde_json::to_string(value).map(|text| text + "\n").map_err(|e| CliError::internal(e.to_string()))
}
