//! The traffic over an overlay, and its direct connections.

use clap::{Args, ValueEnum};
use lightship_overlay::simulate::Network;
use lightship_overlay::{
    DirectPolicy, DirectUse, Reserve, Shape, Split, Traffic, TrafficKnowledge, TrafficMatrix,
};
use serde::Serialize;

use super::shape::{Family, ShapeArgs};
use crate::commands::fetch::Auto;
use crate::error::CliError;
use crate::size::{Size, number};

/// How direct connections are assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Policy {
    /// Each node chooses by its own traffic of the last period; connections are used one way (Samson's
    /// thesis).
    Thesis,
    /// Each node chooses by its own recent traffic; connections are used both ways, and replaced only if
    /// another is clearly better.
    Local,
    /// Like local, but chosen by the traffic of all nodes, the best connections first.
    Global,
    /// Like global, with --warm.
    Predicted,
}

/// Messages and direct connections.
#[derive(Debug, Clone, Args)]
pub(super) struct LoadArgs {
    /// Direct connections that a node may open besides the topology. auto divides --degree between a
    /// circulant and as many direct connections as save time with the traffic of an earlier run.
    #[arg(long, value_name = "auto|N", default_value = "0", help_heading = "Direct connections")]
    pub(super) direct: Auto<usize>,
    /// Direct connections that a node accepts; it refuses more. [default: no limit]
    #[arg(long, value_name = "N", help_heading = "Direct connections")]
    pub(super) accept: Option<usize>,
    /// How direct connections are assigned. [default: thesis with --topology original, else global]
    #[arg(long, value_name = "NAME", help_heading = "Direct connections")]
    policy: Option<Policy>,
    /// Start with direct connections that are chosen by the traffic of an earlier run: the same weights,
    /// but another seed.
    #[arg(long, help_heading = "Direct connections")]
    warm: bool,

    /// Percentages of every node's messages that go to node 0, node 1, and so on. The rest is spread
    /// evenly. [default: all messages are spread evenly]
    #[arg(long, value_name = "P,...", value_delimiter = ',', value_parser = percent, help_heading = "Traffic")]
    skew: Vec<f64>,
    /// Messages that each node sends.
    #[arg(long, value_name = "N", default_value_t = 1000, help_heading = "Traffic")]
    pub(super) messages_per_node: u64,
    /// Bytes per message.
    #[arg(long, value_name = "SIZE", default_value = "64KiB", help_heading = "Traffic")]
    pub(super) message_bytes: Size,
    /// Messages of its own that a node may have queued at a time.
    #[arg(long, value_name = "N", default_value_t = 32, help_heading = "Traffic")]
    pub(super) window: usize,
    /// Messages that may wait at the receiving end of a connection, for each number of hops made.
    #[arg(long, value_name = "N", default_value_t = 4, help_heading = "Traffic")]
    pub(super) queue: usize,
}

fn percent(text: &str) -> Result<f64, String> {
    number(text)
        .filter(|percent| *percent < 100.0)
        .ok_or_else(|| format!("`{text}`: expected a percentage below 100"))
}

/// The load of a run.
#[derive(Debug, Clone)]
pub(super) struct ShuffleInput {
    pub(super) shape: Shape,
    pub(super) traffic: Traffic,
    pub(super) policy: Policy,
    pub(super) pool: DirectPolicy,
    /// How the sockets were divided, with `--direct auto`.
    pub(super) split: Option<Split>,
    /// The traffic of an earlier run.
    pub(super) last: Option<TrafficMatrix>,
}

impl LoadArgs {
    pub(super) fn load(
        &self,
        shape: &ShapeArgs,
        through: DirectUse,
        network: &Network,
    ) -> Result<ShuffleInput, CliError> {
        let traffic = Traffic {
            messages_per_node: self.messages_per_node,
            message_bytes: self.message_bytes.0,
            weights_percent: self.skew.clone(),
        };
        let original = shape.topology == Family::Original;
        let policy = self.policy.unwrap_or(if original { Policy::Thesis } else { Policy::Global });
        let pool = match policy {
            Policy::Thesis => DirectPolicy { accepted_max: self.accept, ..DirectPolicy::thesis(0) },
            Policy::Local => {
                DirectPolicy { knowledge: TrafficKnowledge::Local, ..DirectPolicy::new(0, self.accept) }
            }
            Policy::Global | Policy::Predicted => DirectPolicy::new(0, self.accept),
        };
        let drawn = || {
            traffic.check(shape.nodes)?;
            // The messages of another run with the same weights, not of this one.
            Ok::<_, CliError>(traffic.drawn(shape.nodes, shape.seed.wrapping_add(1)))
        };
        let last = if self.warm || policy == Policy::Predicted { Some(drawn()?) } else { None };
        let (shape, opened_max, split) = match self.direct.given() {
            Some(opened_max) => (shape.shape()?, opened_max, None),
            None => {
                if shape.topology != Family::Circulant {
                    return Err(CliError::usage(format!(
                        "--direct auto divides the sockets of a circulant, not of a {}",
                        shape.name()
                    ))
                    .hint("use --topology circulant, or give a number: --direct 2"));
                }
                let reserve = Reserve {
                    sockets: shape.required()?,
                    pool: &pool,
                    through,
                    network,
                    message_bytes: traffic.message_bytes,
                };
                let demand = match &last {
                    Some(last) => last.clone(),
                    None => drawn()?,
                };
                let split = reserve.split(&demand, shape.tries(), shape.seed)?;
                (split.shape.clone(), split.direct, Some(split))
            }
        };
        Ok(ShuffleInput { shape, traffic, policy, pool: DirectPolicy { opened_max, ..pool }, split, last })
    }
}
