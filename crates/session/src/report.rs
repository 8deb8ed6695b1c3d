//! What was planned for a transfer and what happened, as one object that serialises.

use std::fmt::Display;

use lightship_transport::net::Carrier;
use lightship_transport::proto::{Resized, Retuned};
use lightship_wire::Codec;
use lightship_wire::control::Plan;
use lightship_wire::tuning::{Sizes, Stage};
use serde::{Serialize, Serializer};

/// What was planned and what happened. What the node counts is there at the end of the result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Rows that arrived.
    pub rows: u64,
    /// Their bytes as Arrow buffers.
    pub bytes_arrow: u64,
    /// Bytes of messages on the wire; the node counts them.
    pub bytes_wire: u64,
    /// Messages; the node counts them.
    pub messages: u64,
    /// Messages that came over connections beside the first; the node counts them.
    pub messages_joined: u64,
    /// From the query to the last row.
    pub seconds: f64,
    /// The plan that the transfer began with.
    pub plan: PlanReport,
    /// What carried the rows.
    #[serde(serialize_with = "text")]
    pub carrier: Carrier,
    /// Where the time went.
    pub stages: Stages,
    /// What travelled in which codec.
    pub codecs: Vec<CodecReport>,
    /// Changes of the plan during the transfer, in their order.
    pub retunes: Vec<Retune>,
}

/// The plan of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PlanReport {
    /// F: most rows of a batch; `None` leaves it to the bytes.
    pub batch_rows: Option<u32>,
    /// Most bytes of a batch.
    pub batch_bytes: u32,
    /// M: the size that messages are cut to.
    pub message_bytes: u32,
    /// The largest message, for a row that fits no other.
    pub message_bytes_max: u32,
    /// W: batches on their way or unconsumed.
    pub window_batches: u32,
    /// `None`, shown as `auto`, leaves it to the sender.
    #[serde(serialize_with = "text_or_auto")]
    pub codec: Option<Codec>,
    /// Connections that carry the rows.
    pub streams: u32,
    /// Most bytes of rows that the plan has the receiver hold.
    pub memory_bytes: u64,
    /// Most bytes of rows on their way at any time, but for a row that is larger than a message: W batches.
    pub in_flight_bytes: u64,
    /// The time predicted, where link and size of the result were known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_seconds: Option<f64>,
}

/// Where the time of a transfer went, in seconds. Stages overlap: they need not add up to the whole.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Stages {
    /// Of those at a node; `None` where no node was asked.
    #[serde(flatten)]
    pub node: Option<NodeStages>,
    /// The receiver waited for rows.
    pub receive: f64,
    /// The receiver was busy with rows.
    pub consume: f64,
}

/// Stages of which a node, and the reading of its messages, report.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct NodeStages {
    /// The node waited for the query's rows.
    pub produce: f64,
    /// The node wrote messages.
    pub encode: f64,
    /// The node handed bytes to its socket.
    pub send: f64,
    /// The node waited for credit.
    pub wait: f64,
    /// The receiver read messages, on all its threads together.
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

/// What travelled in one codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CodecReport {
    /// Which.
    #[serde(serialize_with = "text")]
    pub codec: Codec,
    /// Messages.
    pub messages: u64,
    /// Bytes of their rows, decoded.
    pub bytes_body: u64,
    /// Their bytes on the wire.
    pub bytes_wire: u64,
}

/// A change of the plan, and the first message after it, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Retune {
    /// Another codec.
    Codec {
        /// The first message of the new codec.
        message: u64,
        /// The old codec.
        #[serde(serialize_with = "text")]
        from: Codec,
        /// The new codec.
        #[serde(serialize_with = "text")]
        to: Codec,
        /// The slowest stage under the old one.
        #[serde(serialize_with = "text_or_nothing", skip_serializing_if = "Option::is_none")]
        slowest: Option<Stage>,
    },
    /// Other sizes.
    Sizes {
        /// The first message of the new sizes.
        message: u64,
        /// M from then on.
        message_bytes: u32,
        /// W from then on.
        window_batches: u32,
        /// M before.
        from_message_bytes: u32,
        /// W before.
        from_window_batches: u32,
    },
    /// More connections.
    Streams {
        /// Messages that had come by then.
        message: u64,
        /// Connections that carried the rows before.
        from_streams: u32,
        /// Connections that may carry them from then on.
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
    /// Of a plan, and of the sizes that it was changed to.
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
