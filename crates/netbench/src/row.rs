//! What is asked of a cell, and what came of it: a row of the results.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cpu::Cpu;
use crate::host::Target;
use crate::stats::Latency;

/// Longest phase, in seconds.
pub const SECONDS_MAX: f64 = 600.0;
/// Longest pause after a message, in milliseconds.
pub const DELAY_MS_MAX: f64 = 10_000.0;

/// What all cells of a sweep have in common.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// How long each of the two phases is measured; above 0, at most [`SECONDS_MAX`].
    pub seconds: f64,
    /// Pause after each message, at most [`DELAY_MS_MAX`]. The clock that ends it has ticks of a
    /// millisecond.
    pub delay_ms: f64,
    /// `TCP_NODELAY`: small messages do not wait for others. Without it Nagle's algorithm holds
    /// them back until what was sent before is acknowledged.
    pub nodelay: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { seconds: 1.0, delay_ms: 0.0, nodelay: true }
    }
}

impl Settings {
    /// Of a phase, without its warm-up.
    pub fn length(&self) -> Duration {
        bounded(self.seconds, SECONDS_MAX)
    }

    /// After a message.
    pub fn delay(&self) -> Duration {
        bounded(self.delay_ms / 1e3, DELAY_MS_MAX / 1e3)
    }
}

/// Anything else than a time is none.
fn bounded(seconds: f64, most: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.min(most)).unwrap_or_default()
}

/// What one cell is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// At once, dealt round robin over the hosts.
    pub connections: u32,
    /// Of each message, from 1 to [`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX).
    pub message_bytes: u32,
}

/// What came of a cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Servers, with a blank between them.
    pub hosts: String,
    /// What was asked.
    #[serde(flatten)]
    pub settings: Settings,
    /// What was asked.
    #[serde(flatten)]
    pub cell: Cell,
    /// Connections that failed while messages went there and back.
    pub latency_failures: u32,
    /// Connections that failed while messages went without end.
    pub flood_failures: u32,
    /// Why the first of them did.
    pub failure: Option<String>,
    /// As it arrived, while all connections were full. Nothing where all of them failed.
    pub throughput_bytes_per_second: Option<f64>,
    /// The same in messages.
    pub messages_per_second: Option<f64>,
    /// All that arrived, before and after what is measured too, over connections that did not fail.
    pub bytes_arrived: u64,
    /// With one message at a time on each connection, and nothing else.
    pub latency: Option<Latency>,
    /// With one message at a time on one more connection a host, while all others are full.
    pub loaded_latency: Option<Latency>,
    /// Of this host, while connections were full.
    pub client_cpu: Cpu,
    /// Of the busiest server, while connections were full.
    pub server_cpu: Cpu,
}

impl Row {
    /// Nothing yet.
    pub(crate) fn new(targets: &[Target], settings: &Settings, cell: Cell) -> Self {
        Self {
            hosts: hosts_text(targets),
            settings: *settings,
            cell,
            latency_failures: 0,
            flood_failures: 0,
            failure: None,
            throughput_bytes_per_second: None,
            messages_per_second: None,
            bytes_arrived: 0,
            latency: None,
            loaded_latency: None,
            client_cpu: Cpu::default(),
            server_cpu: Cpu::default(),
        }
    }

    /// Whether all of it could be measured.
    pub fn is_whole(&self) -> bool {
        self.latency_failures == 0 && self.flood_failures == 0
    }

    /// Part of the connections that failed in the phase with more failures, from 0 to 1.
    pub fn failed_part(&self) -> f64 {
        f64::from(self.latency_failures.max(self.flood_failures)) / f64::from(self.cell.connections.max(1))
    }
}

/// Names of servers, with a blank between them.
pub fn hosts_text(targets: &[Target]) -> String {
    let names: Vec<_> = targets.iter().map(|target| target.host.to_string()).collect();
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_bounded_whatever_is_asked() {
        let settings = |seconds, delay_ms| Settings { seconds, delay_ms, nodelay: true };
        assert_eq!(settings(1.5, 2.0).length(), Duration::from_millis(1500));
        assert_eq!(settings(1.5, 2.0).delay(), Duration::from_millis(2));
        assert_eq!(settings(f64::INFINITY, -1.0).length(), Duration::from_secs(600));
        assert_eq!(settings(f64::NEG_INFINITY, -1.0).length(), Duration::ZERO);
        assert_eq!(settings(1.0, -1.0).delay(), Duration::ZERO);
    }
}
