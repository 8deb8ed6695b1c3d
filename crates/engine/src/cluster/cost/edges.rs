//! What each node is expected to send to each other node, and how long that takes.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_distributed::{NetworkBoundaryExt, NetworkShuffleExec, Stage};
use lightship_tuner::{Budget, Limits, Link, LinkModel, Plane, Query};

use super::estimate::Estimate;
use super::facts::{Facts, WireCost};
use super::identity::{identity, keeps_rows, place};
use crate::cluster::edge_plans::{EdgePlan, EdgePlans, WINDOW_BATCHES_MAX};
use crate::cluster::exchange::{Exchange, WINDOW_BATCHES};
use crate::cluster::members::Snapshot;
use crate::cluster::route;
use crate::explained::ExpectedEdge;

/// Bytes on the wire for a byte in memory, where these rows were never sent before.
const CODED: f64 = 0.5;

/// Messages have room for more rows than are expected, which may be wrong.
const ROOM: f64 = 2.0;
/// Of the time of an edge, what may be added to save memory.
const TOLERANCE: f64 = 0.02;

/// What is known when a plan is to run.
pub(crate) struct Prediction<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) snapshot: &'a Snapshot,
    /// Partitions of a task.
    pub(crate) partitions: usize,
    /// The memory that edges share.
    pub(crate) exchange: &'a Exchange,
}

/// A subplan.
struct Subplan {
    identity: u64,
    estimate: Estimate,
}

impl Prediction<'_> {
    /// The edges below the coordinator's stage, which runs on `me`.
    pub(crate) fn edges(&self, plan: &Arc<dyn ExecutionPlan>, me: &str) -> Result<Vec<ExpectedEdge>> {
        let mut edges = Vec::new();
        self.explore(plan, 0, (0, &[me.to_owned()]), &mut edges)?;
        Ok(edges)
    }

    /// The edges of a subplan, which is `at` a place of the plan.
    fn explore(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        at: u64,
        (stage, nodes): (usize, &[String]),
        edges: &mut Vec<ExpectedEdge>,
    ) -> Result<Subplan> {
        if let Some(boundary) = plan.as_network_boundary()
            && let Stage::Local(input) = boundary.input_stage()
        {
            let from = route::nodes(&input.plan, input.tasks, self.snapshot)?;
            let at = place(at, plan.as_ref(), &[]);
            let below = self.explore(&input.plan, at, (input.num, &from), edges)?;
            let sent = self.facts.sent(below.identity, plan.as_ref(), at);
            self.of_boundary(plan, (input.num, &from), (stage, nodes), &below.estimate, sent, edges);
            return Ok(below);
        }
        let mut inputs = Vec::new();
        let mut identities = Vec::new();
        for child in plan.children() {
            let below = place(at, plan.as_ref(), &identities);
            let input = self.explore(child, below, (stage, nodes), edges)?;
            identities.push(input.identity);
            inputs.push(input);
        }
        let streams = nodes.len() * self.partitions;
        let identity = identity(plan.as_ref(), &identities, self.snapshot.nodes.len() * self.partitions);
        let is_same = keeps_rows(plan.as_ref())
            && inputs.len() == 1
            && plan.children().first().is_some_and(|child| child.schema() == plan.schema());
        if is_same && let Some(input) = inputs.pop() {
            return Ok(Subplan { identity, ..input });
        }
        let estimates: Vec<&Estimate> = inputs.iter().map(|input| &input.estimate).collect();
        let estimate = Estimate::of(plan.as_ref(), &estimates, streams, self.facts.rows(identity));
        Ok(Subplan { identity, estimate })
    }

    /// The edges between two stages.
    fn of_boundary(
        &self,
        boundary: &Arc<dyn ExecutionPlan>,
        (from_stage, from): (usize, &[String]),
        (to_stage, to): (usize, &[String]),
        estimate: &Estimate,
        before: Option<WireCost>,
        edges: &mut Vec<ExpectedEdge>,
    ) {
        let Some(rows) = estimate.rows() else { return };
        // Only a shuffle divides the rows over its readers; others get all of them.
        let readers = if boundary.is::<NetworkShuffleExec>() { to.len().max(1) } else { 1 };
        let rows = rows / from.len().max(1) as f64 / readers as f64;
        let row_bytes = before.map_or(estimate.row_bytes() * CODED, |sent| sent.row_bytes);
        let bytes = rows * row_bytes;
        let coded = row_bytes / estimate.row_bytes().max(1.0);
        let plan = self.sizes(rows, estimate.row_bytes(), before.map(|_| coded), (from, to));
        let [mean, slowest] = before.map_or([0.0; 2], |sent| {
            [sent.row_seconds, sent.slowest_row_seconds].map(|seconds| seconds * rows)
        });
        let first = edges.len();
        for sender in from {
            for receiver in to.iter().filter(|receiver| *receiver != sender) {
                // All edges of a node share its link.
                let others =
                    |nodes: &[String], node: &String| nodes.iter().filter(|other| *other != node).count();
                let sending = bytes * others(to, sender) as f64 / self.snapshot.sends(sender);
                let receiving = bytes * others(from, receiver) as f64 / self.snapshot.receives(receiver);
                let link = self.snapshot.link(sender, receiver);
                let alone = link.map_or(0.0, |link| bytes / link.bytes_per_second);
                let first_message = link.map_or(0.0, |link| link.first_message_seconds);
                let link_seconds = sending.max(receiving).max(alone) + first_message;
                edges.push(ExpectedEdge {
                    from_stage,
                    to_stage,
                    from_node: sender.clone(),
                    to_node: receiver.clone(),
                    rows,
                    bytes_wire: bytes,
                    link_seconds,
                    seconds: link_seconds.max(mean),
                    slowest_seconds: 0.0,
                    is_known: before.is_some(),
                    message_bytes: plan.message_bytes.into(),
                    window_batches: plan.window_batches,
                });
            }
        }
        let slowest = edges[first..].iter().map(|edge| edge.link_seconds).fold(slowest, f64::max);
        edges[first..].iter_mut().for_each(|edge| edge.slowest_seconds = slowest);
    }

    /// The sizes of messages and windows for streams of an edge with this many rows: messages as large as there are rows
    /// for, and a window that hides the round trip, by the model of transfers (`docs/cost-model.md`). `coded` is the bytes on
    /// the wire of a byte in memory, if it is known.
    fn sizes(
        &self,
        rows: f64,
        row_bytes: f64,
        coded: Option<f64>,
        (from, to): (&[String], &[String]),
    ) -> EdgePlan {
        let streams = self.partitions.max(1) as f64;
        // Both are batches of rows in memory, as the encoder counts them.
        let bytes = rows * row_bytes / streams;
        let most = self.exchange.message_bytes_max();
        let Some(coded) = coded else {
            // An estimate that is too low would make many small messages of a large edge.
            return EdgePlan { message_bytes: most as u32, window_batches: WINDOW_BATCHES };
        };
        let message_bytes = ((bytes * ROOM) as u64).clamp(1, most);
        let usual = EdgePlan { message_bytes: message_bytes as u32, window_batches: WINDOW_BATCHES };
        let links = to.iter().flat_map(|to| from.iter().filter_map(|from| self.snapshot.link(from, to)));
        let slowest = links.max_by(|a, b| a.first_message_seconds.total_cmp(&b.first_message_seconds));
        let Some(link) = slowest else { return usual };
        let all_streams = streams * from.len().saturating_sub(1).max(1) as f64;
        let per_message_byte = all_streams * coded / link.bytes_per_second;
        let plane = |constant| Plane { per_message_byte, constant, ..Plane::default() };
        let model = LinkModel { first: plane(link.first_message_seconds), next: plane(link.message_seconds) };
        let link = Link { model, rtt_seconds: link.first_message_seconds, ..Link::default() };
        let query = Query { volume_bytes: bytes as u64, row_bytes: row_bytes.max(1.0) };
        let limits = Limits {
            message_bytes_min: message_bytes,
            message_bytes_max: message_bytes,
            batch_bytes_max: message_bytes,
        };
        let budget = Budget {
            window_batches_min: WINDOW_BATCHES.into(),
            window_batches_max: WINDOW_BATCHES_MAX.into(),
            memory_bytes_max: (self.exchange.limit_bytes() as f64 / 2.0 / all_streams) as u64,
            tolerance: TOLERANCE,
        };
        // A row may be larger than a message.
        let Ok(plan) = lightship_tuner::plan(&link, &query, &limits, &budget) else { return usual };
        let window_batches = u32::try_from(plan.window_batches).unwrap_or(WINDOW_BATCHES_MAX);
        EdgePlan { window_batches: window_batches.clamp(WINDOW_BATCHES, WINDOW_BATCHES_MAX), ..usual }
    }
}

/// The sizes of each edge of a plan, for all nodes that run it.
pub(crate) fn plans(edges: &[ExpectedEdge]) -> EdgePlans {
    let mut plans = EdgePlans::default();
    for edge in edges {
        let message_bytes = u32::try_from(edge.message_bytes).unwrap_or(u32::MAX);
        plans.set(edge.from_stage, EdgePlan { message_bytes, window_batches: edge.window_batches });
    }
    plans
}
