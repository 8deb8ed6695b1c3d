//! The parameters of a cell, and its results: a row of the table.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cpu::Cpu;
use crate::host::Target;
use crate::stats::Latency;

/// The longest phase, in seconds.
pub const SECONDS_MAX: f64 = 600.0;
/// The longest pause after a message, in milliseconds.
pub const DELAY_MS_MAX: f64 = 10_000.0;

/// Settings that all cells of a sweep share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// How long throughput is measured; above 0, at most [`SECONDS_MAX`].
    pub seconds: f64,
    /// How long latency is measured; above 0, at most [`SECONDS_MAX`].
    #[serde(default = "usual_seconds")]
    pub latency_seconds: f64,
    /// Whether servers send as well while throughput is measured.
    #[serde(default)]
    pub both_ways: bool,
    /// Pause after each message, at most [`DELAY_MS_MAX`]. Its resolution is a millisecond.
    pub delay_ms: f64,
    /// `TCP_NODELAY`: small messages are sent at once. Without it, Nagle's algorithm holds them back
    /// until earlier data is acknowledged.
    pub nodelay: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let seconds = usual_seconds();
        Self { seconds, latency_seconds: seconds, both_ways: false, delay_ms: 0.0, nodelay: true }
    }
}

fn usual_seconds() -> f64 {
    1.0
}

impl Settings {
    /// The length of the latency phase, without its warm-up.
    pub fn latency_length(&self) -> Duration {
        bounded(self.latency_seconds, SECONDS_MAX)
    }

    /// The length of the throughput phase, without its warm-up.
    pub fn length(&self) -> Duration {
        bounded(self.seconds, SECONDS_MAX)
    }

    /// The pause after a message.
    pub fn delay(&self) -> Duration {
        bounded(self.delay_ms / 1e3, DELAY_MS_MAX / 1e3)
    }
}

/// At most `most`; zero if `seconds` is not a valid duration.
fn bounded(seconds: f64, most: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.min(most)).unwrap_or_default()
}

/// The parameters of one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// Concurrent connections, distributed round robin over the hosts.
    pub connections: u32,
    /// Size of each message, from 1 to [`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX).
    pub message_bytes: u32,
}

/// The results of a cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Servers, separated by spaces.
    pub hosts: String,
    /// The settings of the sweep.
    #[serde(flatten)]
    pub settings: Settings,
    /// The parameters of the cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// Connections that failed in the latency phase.
    pub latency_failures: u32,
    /// Connections that failed in the throughput phase.
    pub flood_failures: u32,
    /// Why the first of them failed.
    pub failure: Option<String>,
    /// Throughput at the receiver with all connections saturated. `None` if all of them failed.
    pub throughput_bytes_per_second: Option<f64>,
    /// What servers sent meanwhile, counted at this host, if the load goes both ways.
    pub returned_bytes_per_second: Option<f64>,
    /// Throughput in messages.
    pub messages_per_second: Option<f64>,
    /// All bytes received over connections that did not fail, including those before and after the
    /// measurement.
    pub bytes_arrived: u64,
    /// Latency with one message at a time on each connection, without other traffic.
    pub latency: Option<Latency>,
    /// Latency with one message at a time on one extra connection per host, while all others are saturated.
    pub loaded_latency: Option<Latency>,
    /// Processor use of this host while connections were saturated.
    pub client_cpu: Cpu,
    /// Processor use of the busiest server while connections were saturated.
    pub server_cpu: Cpu,
}

impl Row {
    /// A row without results, for a cell of any sweep.
    pub fn of(connections: u32, message_bytes: u32) -> Self {
        Self::new(&[], &Settings::default(), Cell { connections, message_bytes })
    }

    /// A row without results.
    pub(crate) fn new(targets: &[Target], settings: &Settings, cell: Cell) -> Self {
        Self {
            hosts: hosts_text(targets),
            settings: *settings,
            cell,
            latency_failures: 0,
            flood_failures: 0,
            failure: None,
            throughput_bytes_per_second: None,
            returned_bytes_per_second: None,
            messages_per_second: None,
            bytes_arrived: 0,
            latency: None,
            loaded_latency: None,
            client_cpu: Cpu::default(),
            server_cpu: Cpu::default(),
        }
    }

    /// Whether no connection failed.
    pub fn is_whole(&self) -> bool {
        self.latency_failures == 0 && self.flood_failures == 0
    }

    /// The share of connections that failed, in the phase with more failures, from 0 to 1.
    pub fn failed_part(&self) -> f64 {
        f64::from(self.latency_failures.max(self.flood_failures)) / f64::from(self.cell.connections.max(1))
    }
}

/// Names of servers, separated by spaces.
pub fn hosts_text(targets: &[Target]) -> String {
    let names: Vec<_> = targets.iter().map(|target| target.host.to_string()).collect();
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_bounded_for_any_settings() {
        let settings = |seconds, delay_ms| Settings { seconds, delay_ms, ..Settings::default() };
        assert_eq!(settings(1.5, 2.0).length(), Duration::from_millis(1500));
        assert_eq!(settings(1.5, 2.0).delay(), Duration::from_millis(2));
        assert_eq!(settings(f64::INFINITY, -1.0).length(), Duration::from_secs(600));
        assert_eq!(settings(f64::NEG_INFINITY, -1.0).length(), Duration::ZERO);
        assert_eq!(settings(1.0, -1.0).delay(), Duration::ZERO);
    }
}
