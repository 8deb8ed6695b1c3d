//! The overlay settings of a node, from its options or from measurements.

use std::net::{TcpListener, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;

use lightship::ErrorKind;
use lightship_engine::{ClusterConfig, OverlayConfig};
use lightship_netbench::{Bounds, Host, Limits, SavedPlateau};
use lightship_session::Profiles;
use lightship_transport::net::tls;

use super::NodeArgs;
use crate::error::{CliError, listen_hint};
use crate::size::Size;

/// The default without a measurement.
const CONNECTIONS_DEFAULT: usize = 64;
/// Limits of the values taken from measurements: connections, and bytes of a message.
const CONNECTIONS_MEASURED_MAX: u32 = 512;
const MESSAGE_BYTES: std::ops::RangeInclusive<u32> = 64 << 10..=1 << 20;
/// The range of --exchange-message.
const MESSAGE_BYTES_ASKED: std::ops::RangeInclusive<u64> = 4 << 10..=16 << 20;

impl NodeArgs {
    /// Adds the overlay settings, and the size of messages between nodes.
    pub(super) fn add_overlay(&self, config: &mut ClusterConfig) -> Result<(), CliError> {
        if let Some(size) = self.exchange_message {
            if !MESSAGE_BYTES_ASKED.contains(&size.0) {
                return Err(CliError::usage(format!(
                    "--exchange-message {size}: expected a size from 4KiB to 16MiB"
                )));
            }
            config.message_bytes_max = size.0 as u32;
        }
        let Some(listen) = &self.overlay_listen else {
            let options = [
                ("--overlay-advertise", self.overlay_advertise.is_some()),
                ("--connections-between-nodes", self.connections_between_nodes.is_some()),
            ];
            return match options.into_iter().find(|(_, given)| *given) {
                Some((option, _)) => Err(CliError::usage(format!("{option} requires --overlay-listen"))
                    .hint("add the address of the overlay: --overlay-listen HOST:PORT")),
                None => Ok(()),
            };
        };
        let listener = bind(listen)?;
        let at = listener.local_addr().map_err(|e| failed(listen, &e))?;
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(tls::server(certificate, key)?),
            _ => None,
        };
        if !at.ip().is_loopback() && !self.insecure && (tls.is_none() || config.token.is_empty()) {
            return Err(CliError::usage(format!(
                "--overlay-listen {listen} can be reached from other hosts, which requires TLS and a cluster token"
            ))
            .hint("give --tls-cert, --tls-key, --cluster-ca and --cluster-token-file"));
        }
        let address = match &self.overlay_advertise {
            Some(given) => match given.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
                Some((host, Ok(0))) if !host.is_empty() => format!("{host}:{}", at.port()),
                Some((host, Ok(_))) if !host.is_empty() => given.clone(),
                _ => {
                    return Err(CliError::usage(format!("--overlay-advertise {given}: expected HOST:PORT")));
                }
            },
            None if !at.ip().is_unspecified() => at.to_string(),
            // The host by which other nodes reach this one.
            None => {
                let host = config.name.rsplit_once(':').map_or(config.name.as_str(), |(host, _)| host);
                format!("{host}:{}", at.port())
            }
        };
        let others = || config.join.iter().map(String::as_str);
        let measured = Profiles::of_user().ok().and_then(|folder| measured(others(), folder.folder()));
        let connections_max = match (self.connections_between_nodes, &measured) {
            (Some(asked), _) => asked,
            (None, Some((Limits { connections: Some(most), .. }, _))) => (*most).max(2) as usize,
            (None, _) => CONNECTIONS_DEFAULT,
        };
        if let (None, Some((limits, _))) = (self.exchange_message, &measured) {
            config.message_bytes_max = limits.message_bytes;
        }
        let by = measured.map_or_else(String::new, |(limits, hosts)| {
            let what = if limits.connections.is_some() { "as" } else { "the messages as" };
            format!(", {what} measured by netbench for {hosts}")
        });
        crate::say!(
            "rows go directly up to {connections_max} nodes, relayed beyond, in messages of up to {}{by}",
            Size(config.message_bytes_max.into())
        );
        let (listener, insecure) = (Arc::new(listener), self.insecure);
        config.overlay = Some(OverlayConfig { listener, address, connections_max, tls, insecure });
        Ok(())
    }
}

fn failed(listen: &str, error: &std::io::Error) -> CliError {
    let this =
        CliError::new(ErrorKind::Network, format!("can't listen on {listen} (--overlay-listen): {error}"));
    match listen_hint(error.kind(), "--overlay-listen") {
        Some(hint) => this.hint(hint),
        None => this,
    }
}

fn bind(listen: &str) -> Result<TcpListener, CliError> {
    let has_port = listen.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if !has_port {
        return Err(CliError::usage(format!("--overlay-listen {listen}: expected HOST:PORT"))
            .hint("port 0 picks a free port"));
    }
    let wrong = |e: std::io::Error| CliError::usage(format!("--overlay-listen {listen}: {e}"));
    let address = listen.to_socket_addrs().map_err(wrong)?.next();
    let address =
        address.ok_or_else(|| CliError::usage(format!("--overlay-listen {listen}: no such host")))?;
    TcpListener::bind(address).map_err(|e| failed(listen, &e))
}

/// The limits from what netbench has saved for the hosts that this node joins, and the names of these hosts.
///
/// The number of connections is the most with which all hosts have nearly their best throughput.
fn measured<'a>(join: impl Iterator<Item = &'a str>, folder: &Path) -> Option<(Limits, String)> {
    let outcomes: Vec<SavedPlateau> = join
        // Without the node's port: netbench has a port of its own.
        .filter_map(|name| name.rsplit_once(':')?.0.parse::<Host>().ok())
        .filter_map(|host| match SavedPlateau::find(folder, &host) {
            Ok(found) => found,
            Err(error) => {
                crate::say!("{error}");
                None
            }
        })
        .collect();
    let bounds = Bounds {
        connections_max: CONNECTIONS_MEASURED_MAX,
        message_bytes_min: *MESSAGE_BYTES.start(),
        message_bytes_max: *MESSAGE_BYTES.end(),
    };
    let limits = Limits::of(&outcomes, &bounds)?;
    let hosts: Vec<&str> = outcomes.iter().map(|outcome| outcome.host.as_str()).collect();
    Some((limits, hosts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(folder: &Path, host: &str, connections_max: Option<u32>, message_bytes: u32) {
        let mut kept = serde_json::json!({
            "version": 1, "host": host, "hosts": host, "measured_at": 0, "cells": 1,
            "connections": 2, "connections_max": connections_max, "message_bytes": message_bytes,
            "bytes_per_second": 1e9, "best_bytes_per_second": 1e9,
        });
        kept["settings"] = serde_json::to_value(lightship_netbench::Settings::default()).unwrap();
        let outcome: SavedPlateau = serde_json::from_value(kept).unwrap();
        outcome.keep(folder).unwrap();
    }

    #[test]
    fn the_least_connections_and_the_largest_messages_of_the_hosts_are_the_limits() {
        let folder = tempfile::tempdir().unwrap();
        let join = ["10.0.0.1:4270", "[::1]:9", "db.example:4270"];
        assert_eq!(measured(join.into_iter(), folder.path()), None);
        keep(folder.path(), "10.0.0.1:4271", Some(4), 8 << 10);
        keep(folder.path(), "[::1]:4271", None, 256 << 10);
        let (limits, hosts) = measured(join.into_iter(), folder.path()).unwrap();
        assert_eq!((limits.connections, limits.message_bytes), (Some(4), 256 << 10));
        assert_eq!(hosts, "10.0.0.1:4271, [::1]:4271");
        // Messages are not smaller than the minimum, because that would gain nothing.
        let (limits, _) = measured(join.into_iter().take(1), folder.path()).unwrap();
        assert_eq!((limits.connections, limits.message_bytes), (Some(4), 64 << 10));
    }
}
