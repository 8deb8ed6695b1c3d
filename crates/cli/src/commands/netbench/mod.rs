//! `lightship netbench`: measures a network without Lightship's protocol.

mod print;
mod run;
mod serve;
mod start;
mod sweep;
mod values;

use clap::{Args, Subcommand};
use lightship_netbench::{
    DELAY_MS_MAX, Host, MESSAGE_BYTES_MAX, SECONDS_MAX, Settings, Target, open_files_max,
};
use tokio::sync::watch;

use crate::error::CliError;
use crate::size::{Seconds, Size};

/// Measure a network: throughput and latency by connections and message size
///
/// It shows how many connections, and messages of what size, it takes to use a link fully, and what
/// they cost. Start `serve` on the other host; `run` measures one pair of both, `sweep` all pairs of a
/// grid, with CSV and plots as the result. It uses plain TCP, so that it measures the network and not
/// Lightship.
#[derive(Args)]
#[command(
    disable_help_subcommand = true,
    after_long_help = "Examples:
  lightship netbench serve --listen 0.0.0.0
  lightship netbench run db.example --connections 16 --message-bytes 64KiB
  lightship netbench sweep db.example \\
      --connections 2..64 --message-bytes 256..1MiB --keep

Start `serve` on one host, then `run` or `sweep` on another.

Measured for each pair:
  latency         round trip of a message and a reply of the same size, one at
                  a time on each connection, so that no message waits behind
                  another of the same sender
  throughput      all connections saturated; messages are counted at the
                  receiver, by its clock; with --both-ways, servers send as
                  much as they can at the same time
  loaded latency  latency on one more connection per host, while all others are
                  saturated
  processors      medians at both ends while the connections are saturated: the
                  process in percent of one core, the host in percent of all its
                  cores"
)]
pub(crate) struct NetbenchArgs {
    #[command(subcommand)]
    command: Netbench,
}

#[derive(Subcommand)]
enum Netbench {
    Serve(serve::ServeArgs),
    Run(run::RunArgs),
    Sweep(sweep::SweepArgs),
}

impl NetbenchArgs {
    /// Whether the command runs until it is told to stop.
    pub(crate) fn is_service(&self) -> bool {
        matches!(self.command, Netbench::Serve(_))
    }
}

pub(crate) async fn cmd_netbench(
    args: NetbenchArgs,
    json: bool,
    stop: watch::Receiver<bool>,
) -> Result<(), CliError> {
    match args.command {
        Netbench::Serve(args) => serve::cmd_serve(&args, json, stop).await,
        Netbench::Run(args) => run::cmd_run(&args, json).await,
        Netbench::Sweep(args) => sweep::cmd_sweep(args, json).await,
    }
}

/// The length of a phase, as a number of seconds or a time with a unit.
fn phase_seconds(text: &str) -> Result<f64, String> {
    let bare = crate::size::number(text).map(Ok);
    let seconds = bare.unwrap_or_else(|| text.parse().map(|Seconds(seconds)| seconds))?;
    if seconds > 0.0 && seconds <= SECONDS_MAX {
        Ok(seconds)
    } else {
        Err(format!("expected above 0, at most {SECONDS_MAX} seconds"))
    }
}

/// A pause, in milliseconds, the resolution of the timer.
fn delay_ms(text: &str) -> Result<f64, String> {
    let milliseconds = if text.trim() == "0" { 0.0 } else { text.parse::<Seconds>()?.0 * 1e3 };
    if milliseconds == 0.0 || (1.0..=DELAY_MS_MAX).contains(&milliseconds) {
        Ok(milliseconds)
    } else {
        Err("expected 0, or from 1ms to 10s".into())
    }
}

/// The size of one message.
fn message_bytes(text: &str) -> Result<u32, String> {
    let Size(bytes) = text.parse()?;
    let fitting = u32::try_from(bytes).ok().filter(|bytes| (1..=MESSAGE_BYTES_MAX).contains(bytes));
    fitting.ok_or_else(|| "expected from 1 byte to 64MiB".into())
}

/// Checks that a server answers on each host.
async fn find(hosts: &[Host]) -> Result<Vec<Target>, CliError> {
    let mut targets = Vec::with_capacity(hosts.len());
    for host in hosts {
        targets.push(Target::find(host).await?);
    }
    Ok(targets)
}

/// Warns beforehand if the open-file limit is too low for the connections.
fn warn_of_open_files(connections: u32, hosts: usize) {
    /// Other files that the process has open.
    const OTHERS: u64 = 32;
    let needed = u64::from(connections) + 2 * hosts as u64 + OTHERS;
    if let Some(limit) = open_files_max().filter(|limit| *limit < needed) {
        crate::say!(
            "{connections} connections need {needed} open files, but {limit} are allowed: some will fail\n\
             hint: run `ulimit -n {needed}` here and on the server's host"
        );
    }
}

/// The settings of all cells. Latency is measured for as long as throughput, unless it has a length of its own.
fn settings(
    seconds: Option<f64>,
    latency_seconds: Option<f64>,
    delay_ms: Option<f64>,
    (both_ways, nagle): (bool, bool),
) -> Settings {
    let usual = Settings::default();
    let seconds = seconds.unwrap_or(usual.seconds);
    Settings {
        seconds,
        latency_seconds: latency_seconds.unwrap_or(seconds),
        both_ways,
        delay_ms: delay_ms.unwrap_or(usual.delay_ms),
        nodelay: !nagle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_bounded() {
        assert_eq!(phase_seconds("0.5"), Ok(0.5));
        assert_eq!(phase_seconds("200ms"), Ok(0.2));
        assert_eq!(delay_ms("0"), Ok(0.0));
        assert_eq!(delay_ms("0s"), Ok(0.0));
        assert_eq!(delay_ms("2ms"), Ok(2.0));
        assert_eq!(message_bytes("64KiB"), Ok(65_536));
        for text in ["", "0", "-1", "601", "nan", "1h"] {
            assert!(phase_seconds(text).is_err(), "{text}");
        }
        for text in ["", "5", "10us", "11s"] {
            assert!(delay_ms(text).is_err(), "{text}");
        }
        for text in ["", "0", "65MiB", "x"] {
            assert!(message_bytes(text).is_err(), "{text}");
        }
    }
}
