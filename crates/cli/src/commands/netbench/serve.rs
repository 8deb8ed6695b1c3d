//! `lightship netbench serve`: the server that `run` and `sweep` measure against.

use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use lightship_netbench::{PORT, Server, ServerConfig, open_files_max};
use tokio::sync::watch;

use crate::commands::manual::print;
use crate::error::CliError;
use crate::size::{Size, grouped};

/// Run the server for `run` and `sweep`, until it is interrupted
///
/// It counts and discards what clients send, or replies with as much, and reports how busy this host
/// is. There is no password: anyone who reaches the port can saturate this host's link. Run it only
/// while you measure.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship netbench serve
  lightship netbench serve --listen 0.0.0.0
  lightship netbench serve --listen 10.2.1.1:9000

Without --listen only this host can reach it; with 0.0.0.0 all hosts that can
reach this one.")]
pub(super) struct ServeArgs {
    /// Address to listen on: HOST[:PORT] or [IPV6]:PORT. Port 0 picks a free port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4271")]
    listen: String,
    /// Number of connections at once, at least 1. Each has a buffer of up to 64 KiB.
    #[arg(long, value_name = "N", default_value_t = ServerConfig::default().connections_max,
          value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    connections_max: usize,
    /// Close a connection after this many seconds without traffic.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=3600))]
    idle_timeout: u32,
    /// End when stdin ends, as it does when the `sweep --start` that started it ends.
    #[arg(long)]
    until_eof: bool,
}

/// Other files that the process has open.
const OTHERS: usize = 64;

impl ServeArgs {
    fn address(&self) -> String {
        let has_port = self.listen.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if has_port { self.listen.clone() } else { format!("{}:{PORT}", self.listen) }
    }

    fn config(&self) -> ServerConfig {
        let mut config = ServerConfig {
            connections_max: self.connections_max,
            idle: Duration::from_secs(self.idle_timeout.into()),
            ..ServerConfig::default()
        };
        let files = open_files_max().and_then(|limit| usize::try_from(limit).ok());
        let fitting = files.map(|files| files.saturating_sub(OTHERS).max(1));
        if let Some(fitting) = fitting.filter(|fitting| *fitting < config.connections_max) {
            crate::say!(
                "at most {fitting} connections at once: the system allows {} open files (ulimit -n)",
                files.unwrap_or_default()
            );
            config.connections_max = fitting;
        }
        config
    }
}

pub(super) async fn cmd_serve(
    args: &ServeArgs,
    json: bool,
    mut stop: watch::Receiver<bool>,
) -> Result<(), CliError> {
    let server = Server::bind(&args.address(), args.config()).await?;
    let counters = server.counters();
    let address = server.local_address().map_err(|e| CliError::internal(e.to_string()))?;
    if json {
        let ready = serde_json::json!({ "listening": [address.to_string()] });
        print(format!("{ready}\n").as_bytes())?;
    } else {
        crate::say!("listening on {address}");
    }
    let asked = async {
        // A closed channel also means to stop.
        let stopped = stop.wait_for(|&asked| asked);
        let ended = async {
            match args.until_eof {
                // A stdin that can't be read has ended too.
                true => drop(tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await),
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = stopped => {}
            () = ended => {}
        }
    };
    server.serve(asked).await;
    if json {
        let served = serde_json::json!({
            "connections": counters.connections(),
            "refused": counters.refused(),
            "bytes_arrived": counters.bytes(),
        });
        print(format!("{served}\n").as_bytes())
    } else {
        let (connections, bytes) = (grouped(counters.connections()), Size(counters.bytes()));
        crate::say!("{connections} connections, {bytes} arrived, {} refused", grouped(counters.refused()));
        Ok(())
    }
}
