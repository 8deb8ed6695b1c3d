//! Values that several commands about usage take.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use clap::Args;
use lightship::node::is_this_host;
use lightship_monitor::AgentOptions;

use crate::commands::node::token_in;
use crate::error::CliError;
use crate::size::Limit;

/// The token that agents and collectors share.
#[derive(Args)]
pub(crate) struct TokenArgs {
    /// File with the token by which the collector recognises its agents. In a cluster it is that of
    /// --cluster-token-file.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Work without a token beyond this host: anyone who reaches the port can send samples.
    #[arg(long)]
    insecure: bool,
}

impl TokenArgs {
    /// The token; empty if there is none, which is allowed for `addresses` of this host.
    pub(crate) fn token(&self, addresses: &[SocketAddr]) -> Result<String, CliError> {
        match &self.token_file {
            Some(path) => token_in(path),
            None => match addresses.iter().find(|address| !address.ip().is_loopback()) {
                Some(address) if !self.insecure => Err(CliError::usage(format!(
                    "{address} is not on this host, which requires a token for samples"
                ))
                .hint("give the agents and the collector the same file with --token-file, or --insecure")),
                _ => Ok(String::new()),
            },
        }
    }
}

/// The address of a host and a port.
pub(crate) fn address(option: &str, text: &str, port: Option<u16>) -> Result<SocketAddr, CliError> {
    let fail = |reason: String| CliError::usage(format!("{option} {text}: {reason}"));
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let full = match port {
        Some(port) if !has_port => format!("{text}:{port}"),
        None if !has_port => return Err(fail("expected HOST:PORT".into())),
        _ => text.to_owned(),
    };
    let mut addresses = full.to_socket_addrs().map_err(|error| fail(error.to_string()))?;
    addresses.next().ok_or_else(|| fail("no such host".into()))
}

/// The address of the page.
pub(crate) fn http_address(text: &str) -> Result<SocketAddr, CliError> {
    address("--http", text, None)
}

/// The time between two samples, in nanoseconds.
pub(crate) fn interval_ns(interval: Limit) -> Result<u64, CliError> {
    let ns = interval.0.and_then(|interval| u64::try_from(interval.as_nanos()).ok());
    let allowed = AgentOptions::INTERVAL_NS_MIN..=AgentOptions::INTERVAL_NS_MAX;
    ns.filter(|ns| allowed.contains(ns))
        .ok_or_else(|| CliError::usage("the time between two samples must be from 10ms to 1h"))
}

/// The name of this host.
pub(crate) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "this host".into(), |name| name.trim().into())
}

/// Whether a page on an address can be read from this host only.
pub(crate) fn is_local(address: SocketAddr) -> bool {
    is_this_host(&address.ip().to_string())
}
