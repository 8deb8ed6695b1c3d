//! `lightship netbench serve`: the other end.

use std::time::Duration;

use clap::Args;
use lightship_netbench::{PORT, Server, ServerConfig, open_files_max};
use tokio::sync::watch;

use crate::commands::manual::print;
use crate::error::CliError;
use crate::size::{Size, grouped};

/// Answer those who measure, until it is interrupted
///
/// Swallows what they send and counts it, or sends as much back; says how busy this host is
/// meanwhile. There is no password: whoever reaches the port can fill this host's link. Serve for as
/// long as you measure.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship netbench serve                         this host alone
  lightship netbench serve --listen 0.0.0.0        all that reach it
  lightship netbench serve --listen 10.2.1.1:9000")]
pub(super) struct ServeArgs {
    /// Address to listen on, HOST[:PORT] or [IPV6]:PORT; port 0 is one that is free.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4271")]
    listen: String,
    /// Connections at once, each with a buffer of at most 64 KiB.
    #[arg(long, value_name = "N", default_value_t = ServerConfig::default().connections_max)]
    connections_max: usize,
    /// Seconds after which a connection is closed over which nothing comes or goes.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=3600))]
    idle_timeout: u32,
}

/// Files that are open besides connections.
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
        // Nobody left to ask is as good as being asked.
        let _ = stop.wait_for(|&asked| asked).await;
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
