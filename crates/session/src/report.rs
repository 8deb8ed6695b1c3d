//! A serialisable report of what was planned for a transfer and what happened.

use std::fmt::Display;

use lightship_transport::net::Carrier;
use lightship_transport::proto::{Resized, Retuned};
use lightship_wire::Codec;
use lightship_wire::control::Plan;
use lightship_wire::tuning::{Sizes, Stage};
use serde::{Serialize, Serializer};

/// What was planned and what happened. The node's counts are available at the end of the result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Rows that arrived.
    pub rows: u64,
    /// Bytes of the rows as Arrow buffers.
    pub bytes_arrow: u64,
    /// Bytes of messages on the wire, as counted by the node.
    pub bytes_wire: u64,
    /// Messages, as counted by the node.
    pub messages: u64,
    /// Messages over additional connections, as counted by the node.
    pub messages_joined: u64,
    /// Time from the query to the last row.
    pub seconds: f64,
    /// The initial plan.
    pub plan: PlanReport,
    /// The carrier of the rows.
    #[serde(serialize_with = "text")]
    pub carrier: Carrier,
    /// Time spent in each stage.
    pub stages: Stages,
    /// Messages and bytes for each codec.
    pub codecs: Vec<CodecReport>,
    /// Changes of the plan during the transfer, in order.
    pub retunes: Vec<Retune>,
}

/// The plan of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PlanReport {
    /// F: maximum rows per batch; `None` limits batches only by bytes.
    pub batch_rows: Option<u32>,
    /// Maximum bytes per batch.
    pub batch_bytes: u32,
    /// M: target bytes per message.
    pub message_bytes: u32,
    /// The largest message, for a single row larger than M.
    pub message_bytes_max: u32,
    /// W: batches in flight or not yet consumed.
    pub window_batches: u32,
    /// The codec; `None`, shown as `auto`, lets the sender choose.
    #[serde(serialize_with = "text_or_auto")]
    pub codec: Option<Codec>,
    /// Connections that carry the rows.
    pub streams: u32,
    /// Maximum bytes of rows that the receiver holds under this plan.
    pub memory_bytes: u64,
    /// Maximum bytes of rows in flight at any time: W batches, not counting a single row larger than a
    /// message.
    pub in_flight_bytes: u64,
    /// The predicted time, if the link and the size of the result were known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_seconds: Option<f64>,
}

/// Time that a transfer spent in each stage, in seconds. Stages overlap, so they need not add up to the
/// total.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Stages {
    /// Stages at a node; `None` if the source is not a node.
    #[serde(flatten)]
    pub node: Option<NodeStages>,
    /// The receiver waited for rows.
    pub receive: f64,
    /// The receiver processed rows.
    pub consume: f64,
}

/// Stages at a node, and the decoding of its messages.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct NodeStages {
    /// The node waited for the query's rows.
    pub produce: f64,
    /// The node encoded messages.
    pub encode: f64,
    /// The node wrote bytes to its socket.
    pub send: f64,
    /// The node waited for credit.
    pub wait: f64,
    /// The receiver decoded messages, summed over all its threads.
    pub decode: f64,
}

impl std::ops::Add for NodeStages {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            produce: self.produce + other.produce,
            encode: self.encode + other.encode,
            send: self.send + other.send,
            wait: self.wait + other.wait,
            decode: self.decode + other.decode,
        }
    }
}

/// Messages and bytes in one codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CodecReport {
    /// The codec.
    #[serde(serialize_with = "text")]
    pub codec: Codec,
    /// Messages.
    pub messages: u64,
    /// Bytes of their rows after decoding.
    pub bytes_body: u64,
    /// Bytes of the messages on the wire.
    pub bytes_wire: u64,
}

/// A change of the plan, and the first message after it, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Retune {
    /// A change of the codec.
    Codec {
        /// The first message of the new codec.
        message: u64,
        /// The old codec.
        #[serde(serialize_with = "text")]
        from: Codec,
        /// The new codec.
        #[serde(serialize_with = "text")]
        to: Codec,
        /// The slowest stage under the old codec.
        #[serde(serialize_with = "text_or_nothing", skip_serializing_if = "Option::is_none")]
        slowest: Option<Stage>,
    },
    /// A change of the sizes.
    Sizes {
        /// The first message with the new sizes.
        message: u64,
        /// M after the change.
        message_bytes: u32,
        /// W after the change.
        window_batches: u32,
        /// M before the change.
        from_message_bytes: u32,
        /// W before the change.
        from_window_batches: u32,
    },
    /// An increase of the number of connections.
    Streams {
        /// Messages that had arrived before the change.
        message: u64,
        /// Connections that carried the rows before the change.
        from_streams: u32,
        /// Connections that may carry the rows after the change.
        streams: u32,
    },
}

impl Retune {
    /// The first message after the change.
    pub fn message(&self) -> u64 {
        match self {
            Self::Codec { message, .. } | Self::Sizes { message, .. } | Self::Streams { message, .. } => {
                *message
            }
        }
    }
}

impl From<&Retuned> for Retune {
    fn from(change: &Retuned) -> Self {
        let Retuned { message, from, to, slowest } = *change;
        Self::Codec { message, from, to, slowest }
    }
}

impl From<&Resized> for Retune {
    fn from(change: &Resized) -> Self {
        let Resized { message, from, to } = *change;
        Self::Sizes {
            message,
            message_bytes: to.message_bytes,
            window_batches: to.window_batches,
            from_message_bytes: from.message_bytes,
            from_window_batches: from.window_batches,
        }
    }
}

impl PlanReport {
    /// A report on a plan, and on the sizes that it was changed to.
    pub(crate) fn new(
        plan: &Plan,
        later: impl Iterator<Item = Sizes>,
        predicted_seconds: Option<f64>,
    ) -> Self {
        let began_with = u64::from(plan.window_batches) * u64::from(plan.batch_bytes);
        Self {
            batch_rows: Some(plan.batch_rows).filter(|&rows| rows > 0),
            batch_bytes: plan.batch_bytes,
            message_bytes: plan.message_bytes,
            message_bytes_max: plan.message_bytes_max,
            window_batches: plan.window_batches,
            codec: plan.codec,
            streams: plan.streams,
            memory_bytes: plan.memory_bytes(),
            in_flight_bytes: later.map(|sizes| sizes.memory_bytes()).fold(began_with, u64::max),
            predicted_seconds,
        }
    }
}

fn text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn text_or_auto<S: Serializer>(value: &Option<impl Display>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_str("auto"),
    }
}

fn text_or_nothing<S: Serializer>(value: &Option<impl Display>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}
