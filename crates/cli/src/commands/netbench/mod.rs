//! `lightship netbench`: a network measured by itself.

mod print;
mod run;
mod serve;
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
/// How many connections, and messages of which size, does it take to fill a link, and what do they
/// cost? `serve` is the other end, `run` measures one pair of both, `sweep` all pairs of a grid, as
/// CSV and plots. It speaks TCP of its own, so that it measures the network and not Lightship.
#[derive(Args)]
#[command(
    disable_help_subcommand = true,
    after_long_help = "Examples:
  lightship netbench serve --listen 0.0.0.0                 on one host
  lightship netbench run db.example --connections 16 --message-bytes 64KiB
  lightship netbench sweep db.example --connections 2..64 --message-bytes 256..1MiB --keep

What is measured of each pair:
  latency         a message there and one as large back, one at a time on each connection: nothing
                  waits behind its own sender's earlier messages
  throughput      all connections full of messages, counted where they arrive, by the clock there
  loaded latency  latency on one more connection a host, while all the others are full
  processors      medians of both ends while the connections are full: of the process in percent of
                  one core, of the host in percent of all its cores"
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
    /// Whether it runs until it is told to stop.
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

/// A phase's length, as a number of seconds or a time with its unit.
fn phase_seconds(text: &str) -> Result<f64, String> {
    let bare = crate::size::number(text).map(Ok);
    let seconds = bare.unwrap_or_else(|| text.parse().map(|Seconds(seconds)| seconds))?;
    if seconds > 0.0 && seconds <= SECONDS_MAX {
        Ok(seconds)
    } else {
        Err(format!("more than 0, at most {SECONDS_MAX} seconds"))
    }
}

/// A pause, in milliseconds. The clock that ends it has no finer ticks.
fn delay_ms(text: &str) -> Result<f64, String> {
    let milliseconds = if text.trim() == "0" { 0.0 } else { text.parse::<Seconds>()?.0 * 1e3 };
    if milliseconds == 0.0 || (1.0..=DELAY_MS_MAX).contains(&milliseconds) {
        Ok(milliseconds)
    } else {
        Err("0, or from 1ms to 10s".into())
    }
}

/// The size of one message.
fn message_bytes(text: &str) -> Result<u32, String> {
    let Size(bytes) = text.parse()?;
    let fitting = u32::try_from(bytes).ok().filter(|bytes| (1..=MESSAGE_BYTES_MAX).contains(bytes));
    fitting.ok_or_else(|| "from 1 byte to 64MiB".into())
}

/// Looks whether a server answers on each host.
async fn find(hosts: &[Host]) -> Result<Vec<Target>, CliError> {
    let mut targets = Vec::with_capacity(hosts.len());
    for host in hosts {
        targets.push(Target::find(host).await?);
    }
    Ok(targets)
}

/// Says beforehand when the system will not let so many connections be made.
fn warn_of_open_files(connections: u32, hosts: usize) {
    /// What the process has open besides.
    const OTHERS: u64 = 32;
    let needed = u64::from(connections) + 2 * hosts as u64 + OTHERS;
    if let Some(limit) = open_files_max().filter(|limit| *limit < needed) {
        crate::say!(
            "{connections} connections need {needed} open files, and {limit} are allowed: some will fail\n\
             hint: ulimit -n {needed}, here and where the server is"
        );
    }
}

/// What cells have in common.
fn settings(seconds: Option<f64>, delay_ms: Option<f64>, nagle: bool) -> Settings {
    let usual = Settings::default();
    Settings {
        seconds: seconds.unwrap_or(usual.seconds),
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
