//! `lightship netbench sweep`: measures a grid.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lightship_netbench::{
    CONNECTIONS, Host, MESSAGE_BYTES, NetbenchError, Plateau, ResultTable, Row, SavedPlateau, Sweep, figures,
    write_whole,
};
use lightship_session::Profiles;
use serde::{Deserialize, Serialize};

use super::start::start_servers;
use super::values::{Counts, SizeList};
use super::{delay_ms, find, phase_seconds, settings, warn_of_open_files};
use crate::commands::manual::print;
use crate::commands::node::toml_error;
use crate::error::CliError;

/// Measure a grid: every number of connections with every message size
///
/// Writes a row for each pair to netbench.csv, with failures, and plots next to it at the end. The file
/// is complete after each pair: after an interrupt the same command continues where it stopped, and a
/// larger grid measures only the missing pairs. Pairs measured with other settings stay in the file.
#[derive(Args, Deserialize, Default)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
#[command(after_long_help = "Examples:
  lightship netbench sweep db.example
  lightship netbench sweep db.example --connections 2,4,8 \\
      --message-bytes 256..1MiB --seconds 0.5
  lightship netbench sweep 10.2.1.1 10.2.1.2 --output two-hosts --keep
  lightship netbench sweep 10.2.1.1 10.2.1.2 --both-ways --start \\
      'ssh {host} lightship netbench serve --listen 0.0.0.0:{port} --until-eof'
  lightship netbench sweep --config grid.toml

The defaults are 143 pairs, which take about 7 minutes.
A..B doubles from A up to B, and can be part of a list: 1,2..64,100.

Every option can be set in a TOML file given with --config:
  hosts = [\"10.2.1.1\"]
  connections = \"2..2048\"
  message-bytes = [256, \"64KiB\"]
  seconds = 2
  latency-seconds = 1
  both-ways = true
  start = \"ssh {host} lightship netbench serve ... --until-eof\"
  delay = \"10ms\"
  nagle = true
  keep = true
  output = \"DIR\"
Options of the command line override the file.")]
pub(super) struct SweepArgs {
    /// Servers; connections are distributed over them round-robin.
    #[arg(value_name = "HOST[:PORT]", required_unless_present = "config")]
    hosts: Vec<String>,
    /// Numbers of connections. [default: 2..2048]
    #[arg(short, long, value_name = "LIST")]
    connections: Option<Counts>,
    /// Message sizes. [default: 256..1MiB]
    #[arg(short, long, value_name = "LIST")]
    message_bytes: Option<SizeList>,
    /// Length of each of the two phases of a pair, in seconds or with a unit, as 500ms. [default: 1]
    #[arg(short, long)]
    seconds: Option<Typed>,
    /// Length of the phase that measures latency. [default: that of --seconds]
    #[arg(long, value_name = "SECONDS")]
    latency_seconds: Option<Typed>,
    /// Let the servers send as well, over the same connections.
    #[arg(long)]
    both_ways: bool,
    /// Command that starts the server of each host, in which {host} and {port} are replaced, as
    /// 'ssh {host} lightship netbench serve --listen 0.0.0.0:{port} --until-eof'. The servers end with
    /// the sweep.
    #[arg(long, value_name = "COMMAND")]
    start: Option<String>,
    /// Pause after each message, as 10ms. [default: none]
    #[arg(long, value_name = "TIME")]
    delay: Option<Typed>,
    /// Keep Nagle's algorithm on: small messages wait for the acknowledgement of earlier ones.
    #[arg(long)]
    nagle: bool,
    /// Folder for netbench.csv and the plots. [default: netbench]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Measure pairs with failures again, although they are in the file.
    #[arg(long)]
    retry: bool,
    /// Save the result for each host, next to the profiles of links: the fewest connections and the
    /// smallest message within 5% of the best throughput. `lightship node` takes defaults from it.
    #[arg(long)]
    keep: bool,
    /// Read options from this TOML file.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Print no progress bar and no report.
    #[arg(short, long)]
    #[serde(skip)]
    quiet: bool,
}

/// A number, or a text with a unit. It is parsed after the command line and the file are merged.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Typed {
    Number(f64),
    Text(String),
}

impl std::str::FromStr for Typed {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::Text(text.to_owned()))
    }
}

impl Typed {
    fn read(
        this: Option<&Self>,
        flag: &str,
        as_: fn(&str) -> Result<f64, String>,
    ) -> Result<Option<f64>, CliError> {
        let Some(this) = this else { return Ok(None) };
        let text = match this {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        };
        as_(&text).map(Some).map_err(|why| CliError::usage(format!("--{flag} {text}: {why}")))
    }
}

impl SweepArgs {
    /// The options of the command line, completed with those of the file.
    fn with_file(self) -> Result<Self, CliError> {
        let Some(path) = &self.config else { return Ok(self) };
        let text =
            std::fs::read_to_string(path).map_err(|e| CliError::usage(format!("{}: {e}", path.display())))?;
        let file: Self = toml::from_str(&text).map_err(|e| CliError::usage(toml_error(path, &text, &e)))?;
        Ok(Self {
            hosts: if self.hosts.is_empty() { file.hosts } else { self.hosts },
            connections: self.connections.or(file.connections),
            message_bytes: self.message_bytes.or(file.message_bytes),
            seconds: self.seconds.or(file.seconds),
            latency_seconds: self.latency_seconds.or(file.latency_seconds),
            both_ways: self.both_ways || file.both_ways,
            start: self.start.or(file.start),
            delay: self.delay.or(file.delay),
            nagle: self.nagle || file.nagle,
            output: self.output.or(file.output),
            retry: self.retry || file.retry,
            keep: self.keep || file.keep,
            config: self.config,
            quiet: self.quiet,
        })
    }

    fn hosts(&self) -> Result<Vec<Host>, CliError> {
        let hosts = self.hosts.iter().map(|host| host.parse::<Host>());
        let hosts = hosts.collect::<Result<Vec<_>, _>>().map_err(|e| CliError::usage(e.to_string()))?;
        if hosts.is_empty() {
            return Err(
                CliError::usage("no host to measure").hint("give one, or set hosts = [...] in the file")
            );
        }
        Ok(hosts)
    }

    async fn sweep(&self, hosts: &[Host]) -> Result<Sweep, CliError> {
        let usual = |e: String| CliError::internal(e);
        let connections = match &self.connections {
            Some(Counts(counts)) => counts.clone(),
            None => CONNECTIONS.parse::<Counts>().map_err(usual)?.0,
        };
        let message_bytes = match &self.message_bytes {
            Some(SizeList(sizes)) => sizes.clone(),
            None => MESSAGE_BYTES.parse::<SizeList>().map_err(usual)?.0,
        };
        let seconds = Typed::read(self.seconds.as_ref(), "seconds", phase_seconds)?;
        let latency = Typed::read(self.latency_seconds.as_ref(), "latency-seconds", phase_seconds)?;
        let delay = Typed::read(self.delay.as_ref(), "delay", delay_ms)?;
        let settings = settings(seconds, latency, delay, (self.both_ways, self.nagle));
        let targets = find(hosts).await?;
        Ok(Sweep { targets, settings, connections, message_bytes, retry: self.retry })
    }
}

/// The last object of `--json`, after the rows.
#[derive(Serialize)]
struct Swept<'a> {
    cells: usize,
    cells_with_failures: usize,
    csv: String,
    plots: Vec<String>,
    plateau: Option<Plateau>,
    kept: &'a [String],
}

pub(super) async fn cmd_sweep(args: SweepArgs, json: bool) -> Result<(), CliError> {
    let args = args.with_file()?;
    let folder = args.output.clone().unwrap_or_else(|| "netbench".into());
    // Open the folder first, so that one that can't be used is an error before anything is measured.
    let profiles = if args.keep { Some(Profiles::of_user()?) } else { None };
    let mut table = ResultTable::open(folder.join("netbench.csv"))?;
    let hosts = args.hosts()?;
    let _servers = match &args.start {
        Some(command) => start_servers(command, &hosts).await?,
        None => Vec::new(),
    };
    let sweep = args.sweep(&hosts).await?;
    warn_of_open_files(sweep.connections.iter().copied().max().unwrap_or(0), sweep.targets.len());

    let began = Instant::now();
    let missing = sweep.missing(&table).len();
    let bar = bar(missing, args.quiet || json);
    let mut printed = Ok(());
    let told = |row: &Row| {
        bar.inc(1);
        let left = (missing as u64).saturating_sub(bar.position()) as f64;
        let left = began.elapsed().mul_f64(left / bar.position().max(1) as f64);
        bar.set_message(format!("{} left", super::print::minutes(left)));
        printed = if json { line(row) } else { Ok(()) };
        if printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    sweep.run(&mut table, told).await?;
    printed?;
    bar.finish_and_clear();

    let rows = sweep.rows(&table);
    let plots = draw(&folder, &rows)?;
    let mut kept = Vec::new();
    if let Some(profiles) = profiles {
        for target in &sweep.targets {
            let found = SavedPlateau::of(&target.host, &sweep.settings, &rows, SystemTime::now());
            if let Some(outcome) = found {
                kept.push(outcome.keep(profiles.folder())?.display().to_string());
            }
        }
    }
    let plateau = Plateau::of(&rows);
    if json {
        let swept = Swept {
            cells: rows.len(),
            cells_with_failures: rows.iter().filter(|row| !row.is_whole()).count(),
            csv: table.path().display().to_string(),
            plots,
            plateau,
            kept: &kept,
        };
        return line(&swept);
    }
    if !args.quiet {
        let report = super::print::sweep(&rows, plateau.as_ref(), missing, began.elapsed());
        print((report + "\n").as_bytes())?;
        crate::say!("wrote {} and {} plots next to it", table.path().display(), plots.len());
        kept.iter().for_each(|path| crate::say!("saved in {path}"));
    }
    Ok(())
}

/// An object of `--json` on stdout.
fn line(object: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(object).map_err(|e| CliError::internal(e.to_string()))?;
    print((text + "\n").as_bytes())
}

/// Draws all figures, and returns their paths.
fn draw(folder: &Path, rows: &[Row]) -> Result<Vec<String>, CliError> {
    let mut plots = Vec::new();
    for figure in figures(rows).map_err(NetbenchError::from)? {
        let path = folder.join(&figure.file);
        write_whole(&path, figure.svg.as_bytes())?;
        plots.push(path.display().to_string());
    }
    Ok(plots)
}

fn bar(cells: usize, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} pairs, {msg}");
    let bar = ProgressBar::new(cells as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message("starting");
    // Show that time passes during the first pair, too.
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
