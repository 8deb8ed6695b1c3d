//! What is sent over an overlay, and which direct connections it gets.

use clap::{Args, ValueEnum};
use lightship_overlay::simulate::Network;
use lightship_overlay::{Demand, Knowledge, Pool, Reserve, Shape, Split, Through, Traffic};
use serde::Serialize;

use super::shape::{Family, ShapeArgs};
use crate::commands::fetch::Auto;
use crate::error::CliError;
use crate::size::{Size, number};

/// Who gives direct connections to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Policy {
    /// Each node by what it sends itself, one way, anew every period: Samson's thesis.
    Thesis,
    /// Each node by what it sends itself, both ways, with a margin for what is there and a memory.
    Local,
    /// The best of all first, as all is known; both ways, with margin and memory.
    Global,
    /// The same, with --warm.
    Predicted,
}

/// Messages and direct connections.
#[derive(Debug, Clone, Args)]
pub(super) struct LoadArgs {
    /// Direct connections that a node may open beside the topology. auto: of a circulant's --degree, as
    /// many as pay under the traffic of a run before.
    #[arg(long, value_name = "auto|N", default_value = "0", help_heading = "Direct connections")]
    pub(super) direct: Auto<usize>,
    /// Direct connections that a node accepts; it refuses more. [default: any number]
    #[arg(long, value_name = "N", help_heading = "Direct connections")]
    pub(super) accept: Option<usize>,
    /// Who gets them. [default: thesis with the original, else global]
    #[arg(long, value_name = "NAME", help_heading = "Direct connections")]
    policy: Option<Policy>,
    /// Have direct connections from the beginning, by the traffic of a run before: of the same weights,
    /// from another seed.
    #[arg(long, help_heading = "Direct connections")]
    warm: bool,

    /// Percent of every node's messages that go to node 0, node 1, and so on; the rest goes to all
    /// alike. Without it all does.
    #[arg(long, value_name = "P,...", value_delimiter = ',', value_parser = percent, help_heading = "Traffic")]
    skew: Vec<f64>,
    /// Messages that each node sends.
    #[arg(long, value_name = "N", default_value_t = 1000, help_heading = "Traffic")]
    pub(super) messages_per_node: u64,
    /// Bytes of a message.
    #[arg(long, value_name = "SIZE", default_value = "64KiB", help_heading = "Traffic")]
    pub(super) message_bytes: Size,
    /// Own messages that a node has queued at a time.
    #[arg(long, value_name = "N", default_value_t = 32, help_heading = "Traffic")]
    pub(super) window: usize,
    /// Messages that wait at the far end of a connection, for each class of hops.
    #[arg(long, value_name = "N", default_value_t = 4, help_heading = "Traffic")]
    pub(super) queue: usize,
}

fn percent(text: &str) -> Result<f64, String> {
    number(text).filter(|percent| *percent < 100.0).ok_or_else(|| format!("`{text}` is no part in percent"))
}

/// What a run is of.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub(super) shape: Shape,
    pub(super) traffic: Traffic,
    pub(super) policy: Policy,
    pub(super) pool: Pool,
    /// How the sockets were divided, where that was ours to choose.
    pub(super) split: Option<Split>,
    /// What a run before sent.
    pub(super) last: Option<Demand>,
}

impl LoadArgs {
    pub(super) fn load(
        &self,
        shape: &ShapeArgs,
        through: Through,
        network: &Network,
    ) -> Result<Load, CliError> {
        let traffic = Traffic {
            messages_per_node: self.messages_per_node,
            message_bytes: self.message_bytes.0,
            weights_percent: self.skew.clone(),
        };
        let original = shape.topology == Family::Original;
        let policy = self.policy.unwrap_or(if original { Policy::Thesis } else { Policy::Global });
        let pool = match policy {
            Policy::Thesis => Pool { accepted_max: self.accept, ..Pool::thesis(0) },
            Policy::Local => Pool { knowledge: Knowledge::Local, ..Pool::new(0, self.accept) },
            Policy::Global | Policy::Predicted => Pool::new(0, self.accept),
        };
        let drawn = || {
            traffic.check(shape.nodes)?;
            // Not the messages of this run: those of another with the same weights.
            Ok::<_, CliError>(traffic.drawn(shape.nodes, shape.seed.wrapping_add(1)))
        };
        let last = if self.warm || policy == Policy::Predicted { Some(drawn()?) } else { None };
        let (shape, opened_max, split) = match self.direct.given() {
            Some(opened_max) => (shape.shape()?, opened_max, None),
            None => {
                if shape.topology != Family::Circulant {
                    return Err(CliError::usage(format!(
                        "--direct auto divides the sockets of a circulant, and this is a {}",
                        shape.name()
                    ))
                    .hint("--topology circulant, or say how many: --direct 2"));
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
        Ok(Load { shape, traffic, policy, pool: Pool { opened_max, ..pool }, split, last })
    }
}
