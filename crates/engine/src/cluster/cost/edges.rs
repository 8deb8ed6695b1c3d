//! What each node is expected to send to each other node, and how long that takes.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_distributed::{NetworkBoundaryExt, NetworkShuffleExec, Stage};

use super::estimate::Estimate;
use super::facts::{Facts, WireCost};
use super::identity::{identity, keeps_rows};
use crate::cluster::members::Snapshot;
use crate::cluster::route;
use crate::explained::ExpectedEdge;

/// Bytes on the wire for a byte in memory, where these rows were never sent before.
const CODED: f64 = 0.5;

/// What is known when a plan is explained.
pub(crate) struct Prediction<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) snapshot: &'a Snapshot,
    /// Partitions of a task.
    pub(crate) partitions: usize,
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
        self.explore(plan, 0, &[me.to_owned()], &mut edges)?;
        Ok(edges)
    }

    fn explore(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        stage: usize,
        nodes: &[String],
        edges: &mut Vec<ExpectedEdge>,
    ) -> Result<Subplan> {
        if let Some(boundary) = plan.as_network_boundary()
            && let Stage::Local(input) = boundary.input_stage()
        {
            let from = route::nodes(&input.plan, input.tasks, self.snapshot)?;
            let below = self.explore(&input.plan, input.num, &from, edges)?;
            let sent = self.facts.sent(below.identity, plan.as_ref());
            self.of_boundary(plan, (input.num, &from), (stage, nodes), &below.estimate, sent, edges);
            return Ok(below);
        }
        let mut inputs = Vec::new();
        for child in plan.children() {
            inputs.push(self.explore(child, stage, nodes, edges)?);
        }
        let identities: Vec<u64> = inputs.iter().map(|input| input.identity).collect();
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
        let production = before.map_or(0.0, |sent| sent.row_seconds * rows);
        for sender in from {
            for receiver in to.iter().filter(|receiver| *receiver != sender) {
                // All edges of a node share its link.
                let others =
                    |nodes: &[String], node: &String| nodes.iter().filter(|other| *other != node).count();
                let sending = bytes * others(to, sender) as f64 / self.snapshot.capacity(sender);
                let receiving = bytes * others(from, receiver) as f64 / self.snapshot.capacity(receiver);
                let link = self.snapshot.link(sender, receiver);
                let alone = link.map_or(0.0, |link| bytes / link.bytes_per_second);
                let first = link.map_or(0.0, |link| link.first_message_seconds);
                let link_seconds = sending.max(receiving).max(alone) + first;
                edges.push(ExpectedEdge {
                    from_stage,
                    to_stage,
                    from_node: sender.clone(),
                    to_node: receiver.clone(),
                    rows,
                    bytes_wire: bytes,
                    link_seconds,
                    seconds: link_seconds.max(production),
                    is_known: before.is_some(),
                });
            }
        }
    }
}
