//! EXPLAIN of a query over several nodes: its stages, their nodes, and the rows sent between nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::Result;
use datafusion::execution::SessionState;
use datafusion::physical_plan::metrics::{MetricValue, MetricsSet};
use datafusion::physical_plan::{ExecutionPlan, displayable, execute_stream};
use datafusion_distributed::{
    BytesCounterMetric, DISTRIBUTED_DATAFUSION_TASK_ID_LABEL, DistributedExec, DistributedMetricsFormat,
    NetworkBoundaryExt, NetworkShuffleExec, Stage, display_plan_ascii, rewrite_distributed_plan_with_metrics,
};
use futures::StreamExt;
use lightship_wire::Codec;

use super::Cluster;
use super::cost::ways::Choices;
use super::members::Snapshot;
use super::route;
use crate::explained::{Edge, Explained, StageExplained, TaskExplained};

/// Nodes report their metrics as soon as a query has ended; a lost node never does.
const METRICS_TIMEOUT: Duration = Duration::from_secs(10);

/// Explains a plan; with `run`, runs it first.
pub(crate) async fn explain(
    cluster: &Arc<Cluster>,
    snapshot: &Snapshot,
    plan: Arc<dyn ExecutionPlan>,
    state: &SessionState,
    run: bool,
) -> Result<Explained> {
    let choices = state.config().get_extension::<Choices>();
    // A query that stays on one node makes no use of them.
    let choices =
        choices.filter(|_| plan.is::<DistributedExec>()).map(|choices| choices.get()).unwrap_or_default();
    // Before the query runs: a prediction must not know what it is about.
    let (planned, context) = cluster.planned(&plan, state)?;
    let (mut seconds, mut count) = (None, None);
    let mut shown = plan.clone();
    if run {
        let began = Instant::now();
        let mut rows = execute_stream(plan.clone(), context)?;
        let mut sum = 0;
        while let Some(batch) = rows.next().await {
            sum += batch?.num_rows() as u64;
        }
        (seconds, count) = (Some(began.elapsed().as_secs_f64()), Some(sum));
        match measured(plan.clone(), METRICS_TIMEOUT).await? {
            Some(measured) => {
                cluster.remember(&planned, &measured)?;
                shown = measured;
            }
            None => tracing::warn!("some nodes did not report their metrics"),
        }
    }
    let text = match plan.downcast_ref::<DistributedExec>() {
        Some(_) => display_plan_ascii(shown.as_ref(), run),
        None => displayable(plan.as_ref()).indent(false).to_string(),
    };
    let found = explained(&shown, cluster.name(), snapshot, run)?;
    Ok(Explained { seconds, rows: count, expected_edges: planned.expected, choices, plan: text, ..found })
}

/// The stages and edges of a plan, whose coordinator is `me`; with `run`, of one that has run.
pub(super) fn explained(
    plan: &Arc<dyn ExecutionPlan>,
    me: &str,
    snapshot: &Snapshot,
    run: bool,
) -> Result<Explained> {
    let mut found = Explained::default();
    let root =
        plan.downcast_ref::<DistributedExec>().and_then(|root| root.children().first().map(|c| (*c).clone()));
    stage(root.as_ref().unwrap_or(plan), 0, &[me.to_owned()], snapshot, run, &mut found)?;
    Ok(found)
}

/// A plan that has run, with what its operators measured; `None` if a node has not reported it within this time.
pub(super) async fn measured(
    plan: Arc<dyn ExecutionPlan>,
    timeout: Duration,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let measured = rewrite_distributed_plan_with_metrics(plan, DistributedMetricsFormat::PerTask);
    tokio::time::timeout(timeout, measured).await.ok().transpose()
}

/// Explains a stage and its inputs; the inputs come first.
fn stage(
    plan: &Arc<dyn ExecutionPlan>,
    number: usize,
    nodes: &[String],
    snapshot: &Snapshot,
    run: bool,
    found: &mut Explained,
) -> Result<()> {
    let (mut reads, mut operators) = (Vec::new(), Vec::new());
    let mut cpu_ns = vec![0; nodes.len()];
    let mut given = vec![None; nodes.len()];
    let mut below = Vec::new();
    let mut receives_shares = false;
    walk(plan, 0, &mut |node, depth| {
        let text = displayable(node.as_ref()).one_line().to_string();
        operators.push(format!("{}{}", "  ".repeat(depth), text.trim_end()));
        let metrics = node.metrics().unwrap_or_default();
        for (task, measured) in by_task(&metrics) {
            let Some(task_ns) = cpu_ns.get_mut(task) else { continue };
            *task_ns += measured.cpu_ns;
            if depth == 0 && measured.has_rows {
                given[task] = Some(measured.rows);
            }
        }
        let Some(boundary) = node.as_network_boundary() else { return };
        receives_shares |= node.is::<NetworkShuffleExec>();
        let input = boundary.input_stage();
        reads.push(input.num());
        if let Stage::Local(input) = input {
            below.push((input.num, input.plan.clone(), input.tasks));
        }
        for ((task, from), sent) in by_edge(&metrics) {
            let Some(to) = nodes.get(task) else { continue };
            found.edges.push(Edge {
                from_stage: input.num(),
                to_stage: number,
                from_node: from,
                to_node: to.clone(),
                rows: sent.rows,
                bytes_wire: sent.seconds().map(|_| sent.bytes),
                codec: most_used(&sent.decoded_bytes).map(|codec| codec.to_string()),
                overlay_streams: sent.overlay_streams,
                wait_seconds: sent.wait_ns as f64 / 1e9,
                seconds: sent.seconds(),
            });
        }
    });
    for (number, plan, tasks) in below {
        let nodes = route::nodes(&plan, tasks, snapshot)?;
        stage(&plan, number, &nodes, snapshot, run, found)?;
    }
    let tasks = nodes.iter().zip(&cpu_ns).zip(&given).map(|((node, cpu_ns), rows)| TaskExplained {
        node: node.clone(),
        rows: rows.filter(|_| run),
        cpu_seconds: run.then_some(*cpu_ns as f64 / 1e9),
    });
    let left_out = route::left_out(snapshot)
        .filter(|out| receives_shares && out.nodes.len() + nodes.len() == snapshot.nodes.len())
        .filter(|out| !nodes.iter().any(|node| out.nodes.contains(node)));
    let tasks = tasks.collect();
    found.stages.push(StageExplained { stage: number, reads, tasks, operators, left_out });
    Ok(())
}

/// Calls `visit` for each operator of a stage, from the root.
fn walk(plan: &Arc<dyn ExecutionPlan>, depth: usize, visit: &mut impl FnMut(&Arc<dyn ExecutionPlan>, usize)) {
    visit(plan, depth);
    if plan.as_network_boundary().is_none() {
        plan.children().into_iter().for_each(|child| walk(child, depth + 1, visit));
    }
}

#[derive(Default)]
pub(super) struct Measured {
    pub(super) rows: u64,
    pub(super) has_rows: bool,
    cpu_ns: u64,
}

/// What each task of an operator measured. Metrics without a label belong to the first task.
pub(super) fn by_task(metrics: &MetricsSet) -> BTreeMap<usize, Measured> {
    let mut tasks = BTreeMap::<usize, Measured>::new();
    for metric in metrics.iter() {
        let label = |name: &str| metric.labels().iter().find(|label| label.name() == name);
        if label("node").is_some() {
            continue;
        }
        let task = label(DISTRIBUTED_DATAFUSION_TASK_ID_LABEL).and_then(|label| label.value().parse().ok());
        let measured = tasks.entry(task.unwrap_or(0)).or_default();
        match metric.value() {
            MetricValue::OutputRows(rows) => {
                measured.rows += rows.value() as u64;
                measured.has_rows = true;
            }
            MetricValue::ElapsedCompute(time) => measured.cpu_ns += time.value() as u64,
            _ => {}
        }
    }
    tasks
}

#[derive(Default)]
pub(super) struct Sent {
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// Bytes of the rows in memory, by [`Codec::index`].
    pub(super) decoded_bytes: [u64; Codec::ALL.len()],
    overlay_streams: u64,
    wait_ns: u64,
    ns: u64,
    is_unfinished: bool,
}

impl Sent {
    /// The time of the edge, unless the reader left out some of the rows.
    pub(super) fn seconds(&self) -> Option<f64> {
        (self.ns > 0 && !self.is_unfinished).then_some(self.ns as f64 / 1e9)
    }
}

/// The codec that most of these bytes came in, by [`Codec::index`]; `None` if there are none.
pub(super) fn most_used(decoded_bytes: &[u64; Codec::ALL.len()]) -> Option<Codec> {
    let codecs = Codec::ALL.into_iter().zip(decoded_bytes).filter(|(_, bytes)| **bytes > 0);
    codecs.max_by_key(|(_, bytes)| **bytes).map(|(codec, _)| codec)
}

/// Names of the metrics that [`super::channel`] keeps for each node that it reads from.
pub(crate) const BYTES: &str = "bytes_transferred";
pub(crate) const ROWS: &str = "rows_transferred";
pub(crate) const WAIT: &str = "wait_time";
pub(crate) const EDGE_TIME: &str = "edge_time";
pub(crate) const OVERLAY: &str = "overlay_streams";
const DECODED: &str = "decoded_bytes ";

/// The name of the metric of rows that came in this codec.
pub(crate) fn decoded(codec: Codec) -> String {
    format!("{DECODED}{codec}")
}

/// What each task of a boundary read from each node.
pub(super) fn by_edge(metrics: &MetricsSet) -> BTreeMap<(usize, String), Sent> {
    let mut edges = BTreeMap::<(usize, String), Sent>::new();
    for metric in metrics.iter() {
        let label = |name: &str| metric.labels().iter().find(|label| label.name() == name);
        let Some(node) = label("node") else { continue };
        let task = label(DISTRIBUTED_DATAFUSION_TASK_ID_LABEL).and_then(|label| label.value().parse().ok());
        let sent = edges.entry((task.unwrap_or(0), node.value().to_owned())).or_default();
        match metric.value() {
            MetricValue::Count { name, count } if name == ROWS => sent.rows += count.value() as u64,
            MetricValue::Count { name, count } if name == OVERLAY => {
                sent.overlay_streams += count.value() as u64;
            }
            MetricValue::Count { name, count } if name.starts_with(DECODED) => {
                let codec = name.strip_prefix(DECODED).and_then(|codec| codec.parse::<Codec>().ok());
                if let Some(codec) = codec {
                    sent.decoded_bytes[codec.index()] += count.value() as u64;
                }
            }
            MetricValue::Time { name, time } if name == WAIT => sent.wait_ns += time.value() as u64,
            MetricValue::Time { name, time } if name == EDGE_TIME => {
                // A reader may have made several requests, each of some partitions.
                sent.ns = sent.ns.max(time.value() as u64);
                sent.is_unfinished |= time.value() == 0;
            }
            MetricValue::Custom { name, value } if name == BYTES => {
                let bytes = value.as_any().downcast_ref::<BytesCounterMetric>();
                sent.bytes += bytes.map_or(0, |bytes| bytes.value() as u64);
            }
            _ => {}
        }
    }
    edges
}
