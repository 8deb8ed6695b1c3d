//! `lightship netbench run`: measures one number of connections with one message size.

use clap::Args;
use lightship::ErrorKind;
use lightship_netbench::{CONNECTIONS_MAX, Cell, Host, measure};

use super::{delay_ms, find, message_bytes, phase_seconds, settings, warn_of_open_files};
use crate::commands::manual::print;
use crate::error::CliError;

/// Measure one number of connections with one message size
///
/// Measures latency first, with one message at a time on each connection; then throughput with all
/// connections saturated, and the latency meanwhile. Connections that can't be opened, or break, are
/// counted and reported.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship netbench run db.example
  lightship netbench run 10.2.1.1 10.2.1.2:9000 \\
      --connections 64 --message-bytes 8KiB --seconds 5
  lightship netbench run db.example --message-bytes 256 --nagle
  lightship --json netbench run db.example > row.json")]
pub(super) struct RunArgs {
    /// Servers; connections are distributed over them round-robin.
    #[arg(value_name = "HOST[:PORT]", required = true)]
    hosts: Vec<Host>,
    /// Number of connections, over all hosts.
    #[arg(short, long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(CONNECTIONS_MAX)))]
    connections: u32,
    /// Bytes per message. Each message is one write.
    #[arg(short, long, value_name = "SIZE", default_value = "64KiB", value_parser = message_bytes)]
    message_bytes: u32,
    /// Length of each of the two phases, in seconds or with a unit, as 500ms.
    #[arg(short, long, default_value = "2", value_parser = phase_seconds)]
    seconds: f64,
    /// Length of the phase that measures latency. [default: that of --seconds]
    #[arg(long, value_name = "SECONDS", value_parser = phase_seconds)]
    latency_seconds: Option<f64>,
    /// Let the servers send as well, over the same connections.
    #[arg(long)]
    both_ways: bool,
    /// Pause after each message, as 10ms. [default: none]
    #[arg(long, value_name = "TIME", value_parser = delay_ms)]
    delay: Option<f64>,
    /// Keep Nagle's algorithm on: small messages wait for the acknowledgement of earlier ones.
    #[arg(long)]
    nagle: bool,
}

pub(super) async fn cmd_run(args: &RunArgs, json: bool) -> Result<(), CliError> {
    let targets = find(&args.hosts).await?;
    warn_of_open_files(args.connections, targets.len());
    let settings =
        settings(Some(args.seconds), args.latency_seconds, args.delay, (args.both_ways, args.nagle));
    let cell = Cell { connections: args.connections, message_bytes: args.message_bytes };
    let row = measure(&targets, &settings, cell).await;
    let text = match json {
        true => serde_json::to_string_pretty(&row).map_err(|e| CliError::internal(e.to_string()))?,
        false => super::print::row(&row),
    };
    print((text + "\n").as_bytes())?;
    if row.latency.is_none() && row.throughput_bytes_per_second.is_none() {
        let why = row.failure.unwrap_or_else(|| "no reply arrived".into());
        return Err(CliError::new(ErrorKind::Network, format!("nothing could be measured: {why}")));
    }
    Ok(())
}
