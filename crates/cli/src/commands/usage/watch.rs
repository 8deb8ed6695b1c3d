//! `lightship usage watch`: collects the samples of agents, and shows their hosts.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use lightship::usage::{CollectOptions, HttpOptions, UsageCollector};
use lightship_monitor::recorder::{HostOverview, HostState, Overview};
use lightship_monitor::{Recorder, monotonic_ns};
use lightship_sources::location::NODE_PORT;
use tokio::sync::watch;

use super::options::{TokenArgs, address, host_name, http_address, is_local};
use crate::columns::columns;
use crate::error::CliError;
use crate::size::{Seconds, Size, three_digits};

/// The time between two tables.
const REFRESH: Duration = Duration::from_secs(1);

/// Collect the samples of agents, and show their hosts
///
/// Agents on other hosts (`lightship agent`) send their samples here. Each second a table shows what each
/// host uses, how well its clock is known, and how many datagrams were lost.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship usage watch --listen 10.0.0.1 --token-file token --http 127.0.0.1:4280
  lightship agent 10.0.0.1 --token-file token          # on each host
  lightship usage watch --data samples/ --json > hosts.jsonl")]
pub(crate) struct WatchArgs {
    /// Address for samples, by UDP: HOST[:PORT].
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDR")]
    listen: String,
    /// Keep samples in Parquet files in this folder, at most 1 GiB.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Serve a page about the hosts on this address of this host: HOST:PORT.
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    #[command(flatten)]
    token: TokenArgs,
}

pub(crate) async fn watch(args: WatchArgs, json: bool, stop: watch::Receiver<bool>) -> Result<(), CliError> {
    let listen = address("--listen", &args.listen, Some(NODE_PORT))?;
    let token = args.token.token(&[listen])?;
    let http = args.http.as_deref().map(http_address).transpose()?;
    if let Some(address) = http.filter(|address| !is_local(*address)) {
        return Err(CliError::usage(format!("--http {address} can be reached from other hosts"))
            .hint("use 127.0.0.1; a node serves the page to other hosts, with TLS and a token"));
    }
    let collector = UsageCollector::bind(CollectOptions {
        listen,
        token,
        own_host: None,
        http: http.map(|address| (address, HttpOptions::new(host_name()))),
        history: args.data,
    })
    .await?;
    crate::say!("receiving samples on UDP {}", collector.address()?);
    if let Some(address) = collector.http_address()? {
        crate::say!("hosts are shown at http://{address}/");
    }
    let recorder = collector.recorder();
    tokio::select! {
        ended = collector.run(stop, |event| tracing::debug!(?event, "usage")) => Ok(ended?),
        shown = show(&recorder, json) => shown,
    }
}

/// Prints the hosts each second.
async fn show(recorder: &Arc<Recorder>, json: bool) -> Result<(), CliError> {
    let is_terminal = std::io::stdout().is_terminal();
    let mut ticks = tokio::time::interval(REFRESH);
    loop {
        ticks.tick().await;
        // Elsewhere, because this task receives the samples, too.
        let recorder = recorder.clone();
        let made = tokio::task::spawn_blocking(move || recorder.overview(monotonic_ns())).await;
        let overview = made.map_err(|error| CliError::internal(error.to_string()))?;
        let text = if json {
            super::to_json(&overview)?
        } else if is_terminal {
            // Back to the first line, and away with what was below.
            format!("\x1b[H\x1b[2J{}", table(&overview))
        } else {
            table(&overview)
        };
        crate::commands::manual::print(text.as_bytes())?;
        // If stdout is a pipe, its reader waits for this.
        let _ = std::io::stdout().flush();
    }
}

fn table(overview: &Overview) -> String {
    let heads =
        ["host", "CPU", "waiting", "disk read", "written", "received", "sent", "memory", "clock", "lost"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(overview.hosts.iter().map(row));
    let mut text = String::new();
    columns(&mut text, &rows);
    // Writing to a String can't fail.
    if overview.hosts.is_empty() {
        text.push_str("no agent has sent a sample yet; start one with `lightship agent`\n");
    }
    if let Some(history) = &overview.history {
        if let Some(error) = &history.error {
            let _ = writeln!(text, "samples are not kept on disk at the moment: {error}");
        }
        if history.lost > 0 {
            let _ = writeln!(text, "not on disk: {} samples", history.lost);
        }
    }
    let refused = &overview.collector;
    for (count, what) in [
        (refused.forged, "datagrams with another token, or forged"),
        (refused.malformed, "datagrams that are no samples"),
        (refused.refused, "datagrams of hosts beyond the limit"),
    ] {
        if count > 0 {
            let _ = writeln!(text, "refused: {count} {what}");
        }
    }
    text
}

fn row(host: &HostOverview) -> Vec<String> {
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "unavailable".into());
    let rate = |rate: Option<f64>| or_unknown(rate.map(|bytes| format!("{}/s", Size(bytes as u64))));
    let processors = host.facts.processors;
    let clock = match (host.clock.offset_ns, host.clock.bound_ns) {
        (Some(offset), Some(bound)) => {
            let sign = if offset < 0 { "-" } else { "+" };
            format!("{sign}{} ± {}", Seconds(offset.unsigned_abs() as f64 / 1e9), Seconds(bound as f64 / 1e9))
        }
        _ => "unknown".into(),
    };
    let name = match host.state {
        HostState::Live => host.name.clone(),
        HostState::Late => format!("{} (late)", host.name),
        HostState::Left => format!("{} (left)", host.name),
    };
    vec![
        name,
        or_unknown(host.cpu_used.map(|used| format!("{} of {processors}", three_digits(used)))),
        or_unknown(host.run_queue.map(three_digits)),
        rate(host.disk_read_bytes_per_second),
        rate(host.disk_written_bytes_per_second),
        rate(host.network_received_bytes_per_second),
        rate(host.network_sent_bytes_per_second),
        or_unknown(host.memory_used_bytes.map(|bytes| Size(bytes).to_string())),
        clock,
        host.datagrams.lost.to_string(),
    ]
}
