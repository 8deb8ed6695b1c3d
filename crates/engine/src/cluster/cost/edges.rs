//! What each node is expected to send to each other node, and how long that takes.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties as _, Partitioning};
use datafusion_distributed::{DistributedLeafExec, NetworkBoundaryExt, NetworkShuffleExec, Stage};
use lightship_tuner::{Budget, Limits, Link, LinkModel, Plane, Query};

use super::estimate::Estimate;
use super::facts::{Facts, WireCost};
use super::identity::{identity, keeps_rows, place, reads_all};
use super::rates::ProcessorRates;
use crate::cluster::edge_plans::{EdgePlan, EdgePlans, WINDOW_BATCHES_MAX};
use crate::cluster::exchange::{Exchange, WINDOW_BATCHES};
use crate::cluster::members::Snapshot;
use crate::cluster::route::{self, host_of};
use crate::cluster::shard::ShardScanExec;
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
    /// Of the slowest processor.
    pub(crate) rates: ProcessorRates,
    /// Processors of the host, if all nodes share one.
    pub(crate) processors: Option<usize>,
    /// Partitions of a task.
    pub(crate) partitions: usize,
    /// The time that stages need to start.
    pub(crate) start_seconds: f64,
    /// The memory that edges share.
    pub(crate) exchange: &'a Exchange,
}

/// A subplan, and what it takes if it has never run.
struct Subplan {
    identity: u64,
    estimate: Estimate,
    /// Seconds of the processor of a node for its part in all stages of the subplan.
    processor_seconds: f64,
    /// The largest `work_seconds` of the edges between these stages.
    work_seconds: f64,
    /// The time of the slowest edge between these stages.
    edge_seconds: f64,
}

/// A stage that reads rows, or sends them.
#[derive(Clone, Copy)]
struct At<'a> {
    stage: usize,
    /// One for each task.
    nodes: &'a [String],
    /// Seconds of a thread for each row that is read, in the operators that get it first, in all tasks together.
    row_seconds: f64,
}

impl Prediction<'_> {
    /// The edges below the coordinator's stage, which runs on `me`.
    pub(crate) fn edges(&self, plan: &Arc<dyn ExecutionPlan>, me: &str) -> Result<Vec<ExpectedEdge>> {
        let mut edges = Vec::new();
        self.explore(plan, 0, At { stage: 0, nodes: &[me.to_owned()], row_seconds: 0.0 }, &mut edges)?;
        Ok(edges)
    }

    /// The edges of a subplan, which is `at` a place of the plan.
    fn explore(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        at: u64,
        stage: At<'_>,
        edges: &mut Vec<ExpectedEdge>,
    ) -> Result<Subplan> {
        if let Some(boundary) = plan.as_network_boundary()
            && let Stage::Local(input) = boundary.input_stage()
        {
            let from = route::nodes(&input.plan, input.tasks, self.snapshot)?;
            let at = place(at, plan.as_ref(), &[]);
            let from = At { stage: input.num, nodes: &from, row_seconds: 0.0 };
            let below = self.explore(&input.plan, at, from, edges)?;
            let sent = self.facts.sent(below.identity, plan.as_ref(), at);
            return Ok(self.of_boundary(plan, (from, stage), below, sent, edges));
        }
        let mut inputs = Vec::new();
        let mut identities = Vec::new();
        let of_row = |input, after| self.row_seconds(plan.as_ref(), input, stage.nodes.len(), after);
        for (index, child) in plan.children().into_iter().enumerate() {
            let below = place(at, plan.as_ref(), &identities);
            let row_seconds = of_row(index, stage.row_seconds);
            let input = self.explore(child, below, At { row_seconds, ..stage }, edges)?;
            identities.push(input.identity);
            inputs.push(input);
        }
        let streams = stage.nodes.len() * self.partitions;
        let identity = identity(plan.as_ref(), &identities, self.snapshot.nodes.len() * self.partitions);
        let rows = |input: &Subplan| input.estimate.rows().unwrap_or(0.0);
        let own: f64 = inputs.iter().enumerate().map(|(index, input)| rows(input) * of_row(index, 0.0)).sum();
        let below: f64 = inputs.iter().map(|input| input.processor_seconds).sum();
        let processor_seconds = below + own / self.threads(stage.nodes.len());
        let is_same = keeps_rows(plan.as_ref())
            && inputs.len() == 1
            && plan.children().first().is_some_and(|child| child.schema() == plan.schema());
        if is_same && let Some(input) = inputs.pop() {
            return Ok(Subplan { identity, processor_seconds, ..input });
        }
        let estimates: Vec<&Estimate> = inputs.iter().map(|input| &input.estimate).collect();
        let estimate = Estimate::of(plan.as_ref(), &estimates, streams, self.facts.rows(identity));
        let read_bytes = if inputs.is_empty() { read_bytes(plan.as_ref(), &estimate) } else { 0.0 };
        let reading = read_bytes * self.rates.scan_byte / self.threads(stage.nodes.len());
        Ok(Subplan {
            identity,
            estimate,
            processor_seconds: processor_seconds + reading,
            work_seconds: inputs.iter().map(|input| input.work_seconds).fold(0.0, f64::max),
            edge_seconds: inputs.iter().map(|input| input.edge_seconds).fold(0.0, f64::max),
        })
    }

    /// Seconds of a thread for each row of an operator's input, in all tasks together: those of the operators that were
    /// measured. If the operator passes rows on one by one, they are followed by those of the operator above it.
    fn row_seconds(&self, plan: &dyn ExecutionPlan, input: usize, nodes: usize, above: f64) -> f64 {
        if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
            let is_whole = *join.partition_mode() == PartitionMode::CollectLeft;
            return match input {
                // A thread of each node reads all rows.
                0 if is_whole => self.rates.build_row * self.threads(nodes).max(nodes as f64),
                0 => self.rates.build_row,
                _ => self.rates.probe_row,
            };
        }
        match plan.name() {
            "AggregateExec" => self.rates.group_row,
            "RepartitionExec" if matches!(plan.output_partitioning(), Partitioning::Hash(..)) => {
                self.rates.route_row + above
            }
            _ if reads_all(plan) => 0.0,
            _ if keeps_rows(plan) || plan.is::<FilterExec>() => above,
            _ => 0.0,
        }
    }

    /// Threads that work at the same time on a stage of this many tasks.
    fn threads(&self, nodes: usize) -> f64 {
        let threads = nodes.saturating_mul(self.partitions);
        self.processors.map_or(threads, |processors| threads.min(processors)).max(1) as f64
    }

    /// The edges between two stages.
    fn of_boundary(
        &self,
        boundary: &Arc<dyn ExecutionPlan>,
        (sending, receiving): (At<'_>, At<'_>),
        input: Subplan,
        before: Option<WireCost>,
        edges: &mut Vec<ExpectedEdge>,
    ) -> Subplan {
        let (from, to, estimate) = (sending.nodes, receiving.nodes, &input.estimate);
        let Some(rows) = estimate.rows() else { return input };
        let reading_seconds = rows * receiving.row_seconds / self.threads(to.len());
        // Only a shuffle divides the rows over its readers; others get all of them.
        let readers = if boundary.is::<NetworkShuffleExec>() { to.len().max(1) } else { 1 };
        let rows = rows / from.len().max(1) as f64 / readers as f64;
        let before = before.as_ref();
        let row_bytes = before.map_or(estimate.row_bytes() * CODED, |sent| sent.row_bytes);
        let bytes = rows * row_bytes;
        let coded = row_bytes / estimate.row_bytes().max(1.0);
        let plan = self.sizes(rows, estimate.row_bytes(), before.map(|_| coded), (from, to));
        let times = before.and_then(|sent| sent.times.as_ref());
        let usual = times.map(|times| times.usual(rows));
        let memory_bytes = rows * estimate.row_bytes();
        // Of one task, while the others run beside it.
        let coding = |byte_seconds: f64, edges: usize, tasks: usize| {
            memory_bytes * edges as f64 * byte_seconds * tasks as f64 / self.threads(tasks)
        };
        let mut coding_seconds = 0.0_f64;
        let first = edges.len();
        for sender in from {
            for receiver in to.iter().filter(|receiver| *receiver != sender) {
                // All edges of a node share its link.
                let others =
                    |nodes: &[String], node: &String| nodes.iter().filter(|other| *other != node).count();
                // Nodes of one host send rows as they are.
                let is_near = host_of(sender) == host_of(receiver);
                let bytes = if is_near && before.is_none() { memory_bytes } else { bytes };
                let (readers, senders) = (others(to, sender), others(from, receiver));
                let sends = bytes * readers as f64 / self.snapshot.sends(sender);
                let receives = bytes * senders as f64 / self.snapshot.receives(receiver);
                let link = self.snapshot.link(sender, receiver);
                let alone = link.map_or(0.0, |link| bytes / link.bytes_per_second);
                let first_message = link.map_or(0.0, |link| link.first_message_seconds);
                let transfer_seconds = sends.max(receives).max(alone);
                let link_seconds = transfer_seconds + first_message;
                let [encoder, decoder] =
                    [sender, receiver].map(|node| self.snapshot.processor(node).unwrap_or_default());
                let coding = coding(encoder.encode_byte, readers, from.len())
                    + coding(decoder.decode_byte, senders, to.len());
                let coding = if is_near { 0.0 } else { coding };
                coding_seconds = coding_seconds.max(coding);
                // All stages share the processors.
                let processor_seconds = input.processor_seconds + coding + reading_seconds;
                // A first message is part of the start.
                let work_seconds = transfer_seconds.max(processor_seconds).max(input.work_seconds);
                let never_sent = || input.edge_seconds.max(work_seconds + self.start_seconds);
                let seconds = usual.unwrap_or_else(never_sent).max(link_seconds);
                edges.push(ExpectedEdge {
                    from_stage: sending.stage,
                    to_stage: receiving.stage,
                    from_node: sender.clone(),
                    to_node: receiver.clone(),
                    rows,
                    bytes_wire: bytes,
                    codec: before.and_then(|sent| sent.codec).map(|codec| codec.to_string()),
                    link_seconds,
                    processor_seconds,
                    work_seconds,
                    seconds,
                    slowest_seconds: 0.0,
                    is_known: before.is_some(),
                    message_bytes: plan.message_bytes.into(),
                    window_batches: plan.window_batches,
                });
            }
        }
        let edges = &mut edges[first..];
        let slowest = times.map_or(0.0, |times| times.slowest(rows));
        let slowest = edges.iter().map(|edge| edge.seconds).fold(slowest, f64::max);
        edges.iter_mut().for_each(|edge| edge.slowest_seconds = slowest);
        Subplan {
            processor_seconds: input.processor_seconds + coding_seconds,
            work_seconds: edges.iter().map(|edge| edge.work_seconds).fold(input.work_seconds, f64::max),
            edge_seconds: edges.iter().map(|edge| edge.seconds).fold(input.edge_seconds, f64::max),
            ..input
        }
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

/// Bytes in memory that a scan reads to find its rows.
fn read_bytes(scan: &dyn ExecutionPlan, estimate: &Estimate) -> f64 {
    if let Some(leaf) = scan.downcast_ref::<DistributedLeafExec>() {
        return read_bytes(leaf.original().as_ref(), estimate);
    }
    let shards = scan.downcast_ref::<ShardScanExec>().map(ShardScanExec::read_bytes);
    shards.or_else(|| estimate.bytes()).unwrap_or(0.0)
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

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int64Array, RecordBatch};
    use datafusion::common::{JoinType, NullEquality};
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::physical_expr::PhysicalExpr;
    use datafusion::physical_expr::expressions::Column;
    use datafusion::physical_plan::joins::HashJoinExecBuilder;

    use super::*;

    /// A join of 1000 and 10,000 rows of 8 bytes.
    fn join(mode: PartitionMode) -> Arc<dyn ExecutionPlan> {
        let [left, right] = [1000, 10_000].map(|count| {
            let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..count));
            let rows = RecordBatch::try_from_iter([("key", values)]).unwrap();
            MemorySourceConfig::try_new_exec(&[vec![rows.clone()]], rows.schema(), None).unwrap()
        });
        let key: Arc<dyn PhysicalExpr> = Arc::new(Column::new("key", 0));
        HashJoinExecBuilder::new(left, right, vec![(key.clone(), key)], JoinType::Inner)
            .with_partition_mode(mode)
            .with_null_equality(NullEquality::NullEqualsNothing)
            .build_exec()
            .unwrap()
    }

    #[test]
    fn a_stage_that_has_never_run_takes_what_its_operators_take_of_the_threads_of_its_nodes() {
        let rates =
            ProcessorRates { build_row: 1e-6, probe_row: 1e-7, scan_byte: 1e-9, ..ProcessorRates::default() };
        let (facts, snapshot, exchange) =
            (Facts::default(), Snapshot::default(), Exchange::new(1 << 20, 1 << 20));
        let nodes = ["a:1", "a:2", "a:3", "a:4"].map(str::to_owned);
        let seconds = |mode, processors| {
            let prediction = Prediction {
                facts: &facts,
                snapshot: &snapshot,
                rates,
                processors,
                partitions: 2,
                start_seconds: 0.0,
                exchange: &exchange,
            };
            let stage = At { stage: 1, nodes: &nodes, row_seconds: 0.0 };
            prediction.explore(&join(mode), 0, stage, &mut Vec::new()).unwrap().processor_seconds
        };
        let (build, probe, scan) = (1e-3, 1e-3, 88e-6);
        for (mode, processors, expected) in [
            (PartitionMode::Partitioned, None, (build + probe + scan) / 8.0),
            // One thread of each node builds the table of all rows.
            (PartitionMode::CollectLeft, None, build + (probe + scan) / 8.0),
            // Four nodes of one host take turns.
            (PartitionMode::Partitioned, Some(2), (build + probe + scan) / 2.0),
            (PartitionMode::CollectLeft, Some(2), 4.0 * build / 2.0 + (probe + scan) / 2.0),
            (PartitionMode::CollectLeft, Some(16), build + (probe + scan) / 8.0),
        ] {
            let found = seconds(mode, processors);
            assert!((found / expected - 1.0).abs() < 1e-9, "{mode:?} {processors:?}: {found} {expected}");
        }
    }
}
