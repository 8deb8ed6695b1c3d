//! What a transfer came to, for people and for scripts.

use std::path::Path;

use lightship_session::{Resized, Retuned, Widened};
use lightship_sources::writers::write_file;
use serde::Serialize;

use crate::error::CliError;
use crate::size::{Size, grouped};

/// The object of `--stats` and `--json`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    pub(crate) rows: u64,
    /// Bytes of the rows as Arrow buffers.
    pub(crate) bytes_arrow: u64,
    /// Bytes on the wire; nothing where there was no wire of ours. Of several places: those of the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_wire: Option<u64>,
    /// Bytes that the destination wrote.
    pub(crate) bytes_written: u64,
    pub(crate) seconds: f64,
    pub(crate) rows_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plan: Option<PlanReport>,
    /// What carried the rows from a node: `tcp`, `unix` or `shared memory`. Of several nodes: all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) carrier: Option<String>,
    /// Messages, and those of them that came over connections beside the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) messages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) messages_joined: Option<u64>,
    pub(crate) stages: StagesReport,
    /// What travelled in which codec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) codecs: Vec<CodecReport>,
    /// Changes of the plan during the transfer.
    pub(crate) retunes: Vec<RetuneReport>,
    /// The places that were asked, in their order.
    pub(crate) sources: Vec<SourceReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_memory_bytes: Option<u64>,
}

/// What one place had to give.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SourceReport {
    /// Without password or token.
    pub(crate) uri: String,
    pub(crate) rows: u64,
    /// As they came, before they were made to fit the rows of others.
    pub(crate) bytes_arrow: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_wire: Option<u64>,
    /// From the question to its last row.
    pub(crate) seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) carrier: Option<String>,
    /// Of one node among others; of one alone they are those of the whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) plan: Option<PlanReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) retunes: Vec<RetuneReport>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct PlanReport {
    pub(crate) batch_rows: Option<u32>,
    pub(crate) batch_bytes: u32,
    pub(crate) message_bytes: u32,
    pub(crate) message_bytes_max: u32,
    pub(crate) window_batches: u32,
    pub(crate) codec: String,
    pub(crate) streams: u32,
    pub(crate) memory_bytes: u64,
    /// Most bytes of rows on their way at any time, but for a row that is larger than a message: W batches.
    pub(crate) in_flight_bytes: u64,
    /// What it was to take, where something was known of the link and of the result's size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) predicted_seconds: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct CodecReport {
    pub(crate) codec: String,
    pub(crate) messages: u64,
    /// Bytes of the rows, decoded.
    pub(crate) bytes_body: u64,
    pub(crate) bytes_wire: u64,
}

impl CodecReport {
    /// Of all these transfers together.
    pub(crate) fn all<'a>(reports: impl Iterator<Item = &'a lightship_session::Report>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for one in reports.flat_map(|report| &report.codecs) {
            let codec = one.codec.to_string();
            let at = all.iter().position(|known| known.codec == codec).unwrap_or_else(|| {
                all.push(Self { codec, messages: 0, bytes_body: 0, bytes_wire: 0 });
                all.len() - 1
            });
            all[at].messages += one.messages;
            all[at].bytes_body += one.bytes_body;
            all[at].bytes_wire += one.bytes_wire;
        }
        all
    }
}

/// A change on the way, and the first message after it, from 0.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(crate) enum RetuneReport {
    Codec {
        message: u64,
        from: String,
        to: String,
        /// The slowest stage under the old one.
        #[serde(skip_serializing_if = "Option::is_none")]
        slowest: Option<String>,
    },
    Sizes {
        message: u64,
        message_bytes: u32,
        window_batches: u32,
        /// Before.
        from_message_bytes: u32,
        from_window_batches: u32,
    },
    Streams {
        message: u64,
        /// Connections that rows came over before.
        from_streams: u32,
        streams: u32,
    },
}

impl RetuneReport {
    /// Of codec, sizes and connections, in their order.
    pub(crate) fn all(report: &lightship_session::Report) -> Vec<Self> {
        let mut all: Vec<Self> = report.resizes.iter().map(Self::from).collect();
        all.extend(report.retunes.iter().map(Self::from));
        all.extend(report.widened.iter().map(Self::from));
        all.sort_by_key(|retune| match retune {
            Self::Codec { message, .. } | Self::Sizes { message, .. } | Self::Streams { message, .. } => {
                *message
            }
        });
        all
    }
}

impl From<&Widened> for RetuneReport {
    fn from(widened: &Widened) -> Self {
        let Widened { message, from, to } = *widened;
        Self::Streams { message, from_streams: from, streams: to }
    }
}

impl From<&Resized> for RetuneReport {
    fn from(resized: &Resized) -> Self {
        Self::Sizes {
            message: resized.message,
            message_bytes: resized.to.message_bytes,
            window_batches: resized.to.window_batches,
            from_message_bytes: resized.from.message_bytes,
            from_window_batches: resized.from.window_batches,
        }
    }
}

impl From<&Retuned> for RetuneReport {
    fn from(retuned: &Retuned) -> Self {
        Self::Codec {
            message: retuned.message,
            from: retuned.from.to_string(),
            to: retuned.to.to_string(),
            slowest: retuned.slowest.map(|stage| stage.to_string()),
        }
    }
}

impl PlanReport {
    pub(crate) fn new(report: &lightship_session::Report) -> Self {
        let plan = &report.plan;
        let began_with = u64::from(plan.window_batches) * u64::from(plan.batch_bytes);
        let later = report.resizes.iter().map(|resized| resized.to.memory_bytes());
        Self {
            batch_rows: Some(plan.batch_rows).filter(|&rows| rows > 0),
            batch_bytes: plan.batch_bytes,
            message_bytes: plan.message_bytes,
            message_bytes_max: plan.message_bytes_max,
            window_batches: plan.window_batches,
            codec: plan.codec.map_or_else(|| "auto".to_owned(), |codec| codec.to_string()),
            streams: plan.streams,
            memory_bytes: plan.memory_bytes(),
            in_flight_bytes: later.fold(began_with, u64::max),
            predicted_seconds: report.predicted_seconds,
        }
    }
}

/// Seconds by stage. Stages overlap; those of several nodes are added up.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct StagesReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) produce: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) encode: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) send: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wait: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decode: Option<f64>,
    pub(crate) receive: f64,
    pub(crate) consume: f64,
}

impl Report {
    /// One line for a person.
    pub(crate) fn summary(&self) -> String {
        let rate = if self.seconds > 0.0 { (self.bytes_arrow as f64 / self.seconds) as u64 } else { 0 };
        // Shared memory is no wire; nor is it said what came partly through one and partly by the other.
        let by = self.carrier.as_deref().map(|carrier| match carrier {
            "tcp" | "unix" | "circuit" => "on the wire".to_owned(),
            other => format!("through {other}"),
        });
        let wire = self.bytes_wire.zip(by).map(|(b, by)| format!(", {} {by}", Size(b))).unwrap_or_default();
        let from = match self.sources.len() {
            0 | 1 => String::new(),
            places => format!(" from {places} places"),
        };
        let peak = self.peak_memory_bytes.map(|b| format!(", peak memory {}", Size(b))).unwrap_or_default();
        format!(
            "{} {}{from}, {} in {:.2} s ({}/s){wire}{peak}",
            grouped(self.rows),
            if self.rows == 1 { "row" } else { "rows" },
            Size(self.bytes_arrow),
            self.seconds,
            Size(rate),
        )
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), CliError> {
        let text = serde_json::to_string_pretty(self).map_err(|e| CliError::internal(e.to_string()))?;
        Ok(write_file(path, (text + "\n").as_bytes())?)
    }
}

/// The most memory this process has had resident.
pub(crate) fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
