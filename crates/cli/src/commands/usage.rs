//! `lightship usage`: runs commands, says what limited them, and what other hardware would change.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use lightship::usage::{
    Change, Division, History, NodesChange, Part, Prediction, Record, Records, RunOptions, run, what_if,
};
use lightship::{Error, ErrorKind};

use super::manual::print;
use crate::columns::aligned;
use crate::error::CliError;
use crate::size::Seconds;

/// Characters of the longest bar.
const BAR_MAX: f64 = 40.0;

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
    /// List the runs that are kept, with what limited each
    Show,
    /// Show where the time of a run went, and what limited it
    Explain(LabelArgs),
    WhatIf(WhatIfArgs),
}

/// Run a command, and say what limited it
///
/// The command gets this program's input and output, and its exit code becomes this program's. The
/// report goes to stderr.
///
/// Only processes that descend from the command are sampled. A server that works for it, such as
/// PostgreSQL for psql, is not: its time is unexplained, or a wait.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship usage run --label q1 -- psql -c 'select count(*) from lineitem' shop
  lightship usage run --label sort -- sort -o sorted.csv rows.csv
  lightship usage explain sort

Samples are taken every 20 ms at first, and less often the longer the command
runs, down to one a second. Figures that this system does not give are missing,
never 0; `explain` names them.")]
struct RunArgs {
    /// Name of the run. It replaces an earlier run of the same name.
    #[arg(long, default_value = "last")]
    label: String,
    /// Print no report. It is kept all the same.
    #[arg(short, long)]
    quiet: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Args)]
struct LabelArgs {
    /// Name of the run.
    #[arg(default_value = "last")]
    label: String,
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
    /// Name of the run.
    #[arg(default_value = "last")]
    label: String,
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
    /// Number of nodes that share the work, instead of one.
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Part of the work that more nodes divide, 0 to 1.
    #[arg(long, default_value_t = 1.0, value_name = "FRACTION", requires = "nodes")]
    divided: f64,
}

impl UsageArgs {
    /// Whether a signal is left to the command that runs.
    pub(crate) fn is_run(&self) -> bool {
        matches!(self.action, Action::Run(_))
    }
}

pub(crate) async fn cmd_usage(args: UsageArgs, json: bool) -> Result<(), CliError> {
    match args.action {
        Action::Run(args) => run_command(args, json).await,
        Action::Show => show(json),
        Action::Explain(LabelArgs { label }) => {
            let record = Records::of_user()?.find(&label)?;
            let text = if json { to_json(&record)? } else { explained(&record, true) };
            print(text.as_bytes())
        }
        Action::WhatIf(args) => predict(&args, json),
    }
}

async fn run_command(args: RunArgs, json: bool) -> Result<(), CliError> {
    // Before it runs: a run that can't be kept is not worth the wait.
    let records = Records::of_user()?;
    let options = RunOptions { label: args.label, host: host_name() };
    let command = args.command;
    let running = tokio::task::spawn_blocking(move || run(&command, &options));
    let record = running.await.map_err(|e| CliError::internal(e.to_string()))??;
    if json {
        crate::say!("{}", to_json(&record)?.trim_end());
    } else if !args.quiet {
        crate::say!("{}", explained(&record, false).trim_end());
    }
    records.keep(&record)?;
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

/// Where the time of a run went. `details` has the sources of the figures, and those that are missing.
fn explained(record: &Record, details: bool) -> String {
    let division = &record.footprint.division;
    let mut text = format!("{}: {}\n", record.label, seconds(record.footprint.run_ns));
    aligned(&mut text, 2, &bars(division), 1);
    // Writing to a String can't fail.
    let _ = writeln!(text, "{}", record.verdict.sentence);
    for evidence in &record.verdict.evidence {
        let _ = writeln!(text, "  {evidence}");
    }
    let _ = writeln!(text, "What would help: {}", record.verdict.advice);
    if !details {
        return text;
    }
    for host in &record.footprint.hosts {
        let _ = writeln!(text, "{}: {} samples", host.host, host.samples);
        for (figure, reason) in &host.unavailable {
            let _ = writeln!(text, "  {} unavailable: {reason}", figure.name());
        }
    }
    text
}

/// The parts with at least a thousandth of the time, a line each.
fn bars(division: &Division) -> Vec<Vec<String>> {
    let parts = division.parts.iter().filter(|time| division.fraction(time.part) >= 1e-3);
    parts
        .map(|time| {
            let fraction = division.fraction(time.part);
            let bar = "█".repeat((fraction * BAR_MAX).round() as usize);
            let percent = format!("{:.0}%", fraction * 100.0);
            vec![time.part.name().to_owned(), seconds(time.ns), percent, format!("{bar:<40}")]
        })
        .collect()
}

fn predict(args: &WhatIfArgs, json: bool) -> Result<(), CliError> {
    let record = Records::of_user()?.find(&args.label)?;
    let nodes = args.nodes.map(|to| NodesChange { from: 1, to, divided: args.divided });
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
    let prediction = what_if(&record.footprint, &change, &History::default())
        .map_err(|error| Error::new(ErrorKind::Usage, error.to_string()))?;
    let text = if json { to_json(&prediction)? } else { predicted(&record.label, &prediction) };
    print(text.as_bytes())
}

fn predicted(label: &str, prediction: &Prediction) -> String {
    let Prediction { seconds, low_seconds, high_seconds, measured_seconds, .. } = *prediction;
    let mut text = format!(
        "{label}: {} predicted ({} to {}), measured {}\n",
        Seconds(seconds),
        Seconds(low_seconds),
        Seconds(high_seconds),
        Seconds(measured_seconds)
    );
    let rows: Vec<Vec<String>> = prediction
        .parts
        .iter()
        .filter(|(_, part_seconds)| *part_seconds >= 1e-3 * seconds)
        .map(|(part, seconds): &(Part, f64)| vec![part.name().to_owned(), Seconds(*seconds).to_string()])
        .collect();
    aligned(&mut text, 2, &rows, 1);
    if let Some(error) = &prediction.error {
        let _ = writeln!(text, "Predictions of this kind so far: {error}.");
    }
    for note in &prediction.notes {
        let _ = writeln!(text, "{note}");
    }
    text
}

fn to_json(value: &impl serde::Serialize) -> Result<String, CliError> {
    serde_json::to_string(value).map(|text| text + "\n").map_err(|e| CliError::internal(e.to_string()))
}

fn seconds(ns: u64) -> String {
    Seconds(ns as f64 / 1e9).to_string()
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "this host".into(), |name| name.trim().into())
}
