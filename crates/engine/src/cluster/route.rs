//! Decides which node runs which part of a plan: the one that has the rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, exec_err};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning};
use datafusion::prelude::SessionConfig;
use datafusion_distributed::{
    DesiredTaskCountEvent, DesiredTaskCountEventResponse, DistributedLeafExec, NetworkBoundaryExt,
    RouteTasksEvent, RouteTasksEventResponse, ScaleUpLeafNodeEvent, ScaleUpLeafNodeEventResponse, Stage,
    WorkerPlanRewriteEvent, WorkerPlanRewriteEventResponse,
};
use url::Url;

use super::cost::rates::Rates;
use super::members::Snapshot;
use super::request::{Shards, Share};
use super::shard::ShardScanExec;
use crate::explained::LeftOut;
use crate::range::scan::{Part, RangeScanExec};

/// A shared table is read by one node for each of these many bytes.
const SHARE_BYTES: u64 = 4 << 20;
/// All nodes receive rows unless fewer nodes take less than this part of the time.
const GAIN: f64 = 0.7;

fn snapshot(config: &SessionConfig) -> Result<Arc<Snapshot>> {
    match config.get_extension::<Snapshot>() {
        Some(snapshot) => Ok(snapshot),
        None => exec_err!("a plan for several nodes has no list of nodes"),
    }
}

/// The number of tasks that a scan is split into.
pub(crate) fn desired_tasks(
    event: DesiredTaskCountEvent<'_>,
) -> Option<Result<DesiredTaskCountEventResponse>> {
    if let Some(scan) = event.plan.downcast_ref::<RangeScanExec>() {
        let mut nodes: Vec<_> = scan.parts().filter_map(|part| part.node.as_ref()).collect();
        nodes.sort();
        nodes.dedup();
        let tasks = if scan.is_whole() { 1 } else { nodes.len().max(1) };
        return Some(Ok(DesiredTaskCountEventResponse::desired(tasks)));
    }
    if brings_together(event.plan) {
        let snapshot = snapshot(event.session_config).ok()?;
        let left_out = left_out(&snapshot)?.nodes.len();
        return Some(Ok(DesiredTaskCountEventResponse::maximum(snapshot.nodes.len() - left_out)));
    }
    let scan = event.plan.downcast_ref::<ShardScanExec>()?;
    let Shards { nodes, share, bytes, .. } = scan.shards();
    let tasks = match (share, bytes) {
        (Some(_), Some(bytes)) => nodes.len().min(bytes.div_ceil(SHARE_BYTES) as usize),
        _ => nodes.len(),
    };
    Some(Ok(DesiredTaskCountEventResponse::desired(tasks.max(1))))
}

/// Whether an operator starts a stage that only receives rows: all its inputs are repartitioned.
fn brings_together(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_divided = |input: &&Arc<dyn ExecutionPlan>| {
        let repartition = input.downcast_ref::<RepartitionExec>();
        repartition.is_some_and(|input| matches!(input.partitioning(), Partitioning::Hash(..)))
    };
    !plan.children().is_empty() && plan.children().iter().all(is_divided)
}

/// Whether all nodes are known by the same host: then they share its processors and its network, and a node that
/// looks slower was only measured at a busier moment.
pub(crate) fn on_one_host(snapshot: &Snapshot) -> bool {
    let mut hosts = snapshot.nodes.iter().map(|node| host_of(&node.name));
    let first = hosts.next();
    hosts.all(|host| Some(host) == first)
}

/// The host in the name of a node, which is HOST:PORT.
pub(crate) fn host_of(node: &str) -> Option<&str> {
    node.rsplit_once(':').map(|(host, _)| host)
}

/// The nodes and the bytes a second that each receives, the fastest first. All send the rows that they have, whichever
/// node receives them.
fn by_capacity(snapshot: &Snapshot) -> Vec<(&str, f64)> {
    let mut nodes: Vec<(&str, f64)> =
        snapshot.nodes.iter().map(|node| (node.name.as_str(), snapshot.receives(&node.name))).collect();
    // The sort is stable: nodes that are equally fast stay in order.
    nodes.sort_by(|a, b| b.1.total_cmp(&a.1));
    nodes
}

/// The nodes that receive no rows which any node can receive, if all together are clearly faster without them.
pub(crate) fn left_out(snapshot: &Snapshot) -> Option<LeftOut> {
    if on_one_host(snapshot) {
        return None;
    }
    let nodes = by_capacity(snapshot);
    let rates: Vec<f64> = nodes.iter().map(|(_, rate)| *rate).collect();
    let code_byte = Rates::of(snapshot).processor.code_byte();
    let receivers = receivers(&rates, code_byte);
    let seconds = |receivers| seconds_of_a_byte(&rates, receivers, code_byte);
    let left_out = nodes.get(receivers..).filter(|nodes| !nodes.is_empty())?;
    Some(LeftOut {
        nodes: left_out.iter().map(|(name, _)| (*name).to_owned()).collect(),
        time_with_all: seconds(nodes.len()) / seconds(receivers),
    })
}

/// Seconds to receive a byte that the first of the nodes, which are at least one, share evenly: the slowest of them decides.
/// `code_byte` is the seconds of a processor for a byte.
fn seconds_of_a_byte(rates: &[f64], receivers: usize, code_byte: f64) -> f64 {
    (1.0 / rates[receivers - 1] + code_byte) / receivers as f64
}

/// How many of the nodes, the fastest first, receive rows that are divided evenly: more nodes have less each, and
/// the slowest of them decides.
fn receivers(rates: &[f64], code_byte: f64) -> usize {
    let seconds = (1..=rates.len()).map(|receivers| seconds_of_a_byte(rates, receivers, code_byte));
    let fastest = seconds.enumerate().min_by(|a, b| {
        // Only a clear gain is worth an idle node: what was measured differs from time to time.
        let of = |(index, seconds): &(usize, f64)| {
            if index + 1 == rates.len() { seconds * GAIN } else { *seconds }
        };
        of(a).total_cmp(&of(b))
    });
    fastest.map_or(1, |(index, _)| index + 1)
}

/// Makes a scan for each task.
///
/// If there are as many tasks as nodes, task *i* runs on node *i*, for every table. So all scans in one
/// part of the plan read local rows.
pub(crate) fn scale_up(event: ScaleUpLeafNodeEvent<'_>) -> Option<Result<ScaleUpLeafNodeEventResponse>> {
    let snapshot = snapshot(event.session_config);
    let variants: Result<Vec<Arc<dyn ExecutionPlan>>> =
        if let Some(scan) = event.plan.downcast_ref::<ShardScanExec>() {
            snapshot.map(|snapshot| {
                let shards = distribute(scan.shards(), &snapshot, event.task_count).into_iter();
                shards.map(|shards| Arc::new(scan.with_shards(shards)) as _).collect()
            })
        } else if let Some(scan) = event.plan.downcast_ref::<RangeScanExec>() {
            snapshot.map(|snapshot| {
                let tasks = event.task_count;
                let parts = scan.divided(tasks, |index, part| task_of(part, index, &snapshot, scan, tasks));
                parts.into_iter().map(|part| Arc::new(part) as _).collect()
            })
        } else {
            return None;
        };
    let leaf = variants.and_then(|variants| DistributedLeafExec::try_new(event.plan.clone(), variants));
    Some(leaf.map(|leaf| ScaleUpLeafNodeEventResponse::new(Arc::new(leaf))))
}

/// The task that reads a part of a range file.
fn task_of(part: &Part, index: usize, snapshot: &Snapshot, scan: &RangeScanExec, tasks: usize) -> usize {
    let Some(node) = &part.node else { return index % tasks };
    if tasks == snapshot.nodes.len() {
        return snapshot.nodes.iter().position(|known| known.name == *node).unwrap_or(index % tasks);
    }
    let mut nodes: Vec<&String> = scan.parts().filter_map(|part| part.node.as_ref()).collect();
    nodes.sort();
    nodes.dedup();
    nodes.binary_search(&node).unwrap_or(index) % tasks
}

/// The rows of each task.
fn distribute(shards: &Shards, snapshot: &Snapshot, tasks: usize) -> Vec<Shards> {
    let part = |whole: Option<u64>| whole.map(|whole| whole / tasks as u64);
    let (rows, bytes) = (part(shards.rows), part(shards.bytes));
    if let Some(share) = shards.share {
        let share = |task| Some(Share { part: task as u64, of: tasks as u64, ..share });
        return (0..tasks).map(|task| Shards { share: share(task), rows, bytes, ..shards.clone() }).collect();
    }
    let mut distributed = vec![Shards { nodes: Vec::new(), share: None, rows, bytes }; tasks];
    for (index, name) in shards.nodes.iter().enumerate() {
        let local = snapshot.nodes.iter().position(|node| node.name == *name);
        let task = match local {
            Some(node) if tasks == snapshot.nodes.len() => node,
            _ => index % tasks,
        };
        distributed[task].nodes.push(name.clone());
    }
    distributed
}

/// The node that each task runs on.
pub(crate) fn route(event: RouteTasksEvent<'_>) -> Option<Result<RouteTasksEventResponse>> {
    Some(urls(&event).map(RouteTasksEventResponse::new))
}

fn urls(event: &RouteTasksEvent<'_>) -> Result<Vec<Url>> {
    let snapshot = snapshot(event.task_ctx.session_config())?;
    let names = nodes(event.plan, event.task_count, &snapshot)?;
    let url =
        |name: &String| snapshot.nodes.iter().find(|node| node.name == *name).map(|node| node.url.clone());
    Ok(names.iter().filter_map(url).collect())
}

/// The node of each task of a stage.
pub(crate) fn nodes(plan: &Arc<dyn ExecutionPlan>, tasks: usize, snapshot: &Snapshot) -> Result<Vec<String>> {
    let all = &snapshot.nodes;
    if tasks == all.len() {
        return Ok(all.iter().map(|node| node.name.clone()).collect());
    }
    // The bytes that each task reads from each node's part, and the nodes that can read the shared table.
    let mut own = vec![BTreeMap::<&str, u64>::new(); tasks];
    let mut readers: Option<&[String]> = None;
    let mut child = None;
    plan.apply(|plan| {
        if let Some(leaf) = plan.downcast_ref::<DistributedLeafExec>() {
            for (task, variant) in leaf.variants().iter().enumerate().take(tasks) {
                if let Some(scan) = variant.downcast_ref::<RangeScanExec>() {
                    let each = scan.bytes() / (scan.parts().count().max(1) as u64);
                    for node in scan.parts().filter_map(|part| part.node.as_deref()) {
                        *own[task].entry(node).or_default() += 1 + each;
                    }
                    continue;
                }
                let Some(scan) = variant.downcast_ref::<ShardScanExec>() else { continue };
                let shards = scan.shards();
                match shards.share {
                    Some(_) => readers = Some(&shards.nodes),
                    None => {
                        for node in &shards.nodes {
                            *own[task].entry(node).or_default() += 1 + shards.bytes.unwrap_or(0);
                        }
                    }
                }
            }
        } else if let Some(boundary) = plan.as_network_boundary() {
            match boundary.input_stage() {
                Stage::Remote(stage) => {
                    if let [only] = stage.workers.as_slice() {
                        child = Some(only.authority().to_owned());
                    }
                }
                Stage::Local(stage) if stage.tasks == 1 && tasks == 1 => {
                    child = nodes(&stage.plan, 1, snapshot)?.pop();
                }
                Stage::Local(_) => {}
            }
            return Ok(TreeNodeRecursion::Jump);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let fastest = by_capacity(snapshot);
    let there = |name: &str| all.iter().any(|node| node.name == name).then(|| name.to_owned());
    let node = |task: usize| {
        let most = own[task].iter().max_by_key(|(_, bytes)| **bytes).and_then(|(name, _)| there(name));
        let reader = || readers.and_then(|readers| there(readers.get(task % readers.len())?));
        let beside = || child.clone().filter(|_| tasks == 1);
        most.or_else(reader).or_else(beside).unwrap_or_else(|| fastest[task % fastest.len()].0.to_owned())
    };
    Ok((0..tasks).map(node).collect())
}

/// Checks that a plan from another node reads only the tables of the cluster and what other nodes send.
pub(crate) fn only_known_leaves(event: WorkerPlanRewriteEvent<'_>) -> Result<WorkerPlanRewriteEventResponse> {
    event.plan.apply(|plan| {
        if is_known(plan) {
            return Ok(TreeNodeRecursion::Continue);
        }
        exec_err!("a plan from another node has a {} with {} partitions, which does not read a table of the cluster",
            plan.name(), plan.output_partitioning().partition_count())
    })?;
    Ok(WorkerPlanRewriteEventResponse::new(event.plan))
}

/// Whether any node can run this operator.
pub(crate) fn is_known(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match plan.name() {
        "DataSinkExec" => false,
        // The last three generate their rows.
        "ShardScanExec" | "RangeScanExec" | "WorkTableExec" | "EmptyExec" | "PlaceholderRowExec"
        | "LazyMemoryExec" => true,
        "DataSourceExec" => is_in_memory(plan),
        _ => plan.as_network_boundary().is_some() || !plan.children().is_empty(),
    }
}

/// Whether the rows are in the plan itself, such as those of VALUES.
fn is_in_memory(plan: &Arc<dyn ExecutionPlan>) -> bool {
    use datafusion::datasource::memory::{DataSourceExec, MemorySourceConfig};
    let source = plan.downcast_ref::<DataSourceExec>().map(DataSourceExec::data_source);
    source.is_some_and(|source| source.downcast_ref::<MemorySourceConfig>().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::members::Node;

    #[test]
    fn nodes_of_one_host_are_equally_fast() {
        assert!(on_one_host(&snapshot(&["a:1", "a:2"])) && on_one_host(&snapshot(&["[::1]:1", "[::1]:2"])));
        assert!(!on_one_host(&snapshot(&["a:1", "a:2", "b:1"])));
    }

    #[test]
    fn a_node_behind_a_slow_link_receives_nothing_that_others_can() {
        let code_byte = 1e-9;
        assert_eq!(receivers(&[1.25e8; 4], code_byte), 4);
        assert_eq!(receivers(&[1.25e8, 1.25e8, 1.25e8, 1.25e7], code_byte), 3);
        // Three quarters of the rate are not slow enough: three nodes would take as long.
        assert_eq!(receivers(&[1.25e8, 1.25e8, 1.25e8, 0.9e8], code_byte), 4);
        assert_eq!(receivers(&[1e9], code_byte), 1);
        assert_eq!(receivers(&[], code_byte), 1);
    }

    fn snapshot(names: &[&str]) -> Snapshot {
        let node = |name: &&str| Node {
            name: (*name).into(),
            url: Url::parse(&format!("lightship://{name}")).unwrap(),
            tables: Vec::new(),
            processor: None,
        };
        Snapshot { nodes: names.iter().map(node).collect(), ..Snapshot::default() }
    }

    fn names(distributed: &[Shards]) -> Vec<Vec<&str>> {
        distributed.iter().map(|shards| shards.nodes.iter().map(String::as_str).collect()).collect()
    }

    #[test]
    fn with_as_many_tasks_as_nodes_every_row_is_read_locally() {
        let nodes = snapshot(&["a:1", "b:1", "c:1"]);
        let shards = Shards { nodes: vec!["a:1".into(), "c:1".into()], ..Shards::default() };
        assert_eq!(names(&distribute(&shards, &nodes, 3)), [vec!["a:1"], vec![], vec!["c:1"]]);
    }

    #[test]
    fn any_number_of_tasks_reads_each_part_once() {
        let nodes = snapshot(&["a:1", "b:1", "c:1", "d:1"]);
        for tasks in 1..6 {
            for count in 1..=4 {
                let all: Vec<String> = nodes.nodes[..count].iter().map(|node| node.name.clone()).collect();
                let shards = Shards { nodes: all.clone(), ..Shards::default() };
                let mut read: Vec<&str> = Vec::new();
                let parts = distribute(&shards, &nodes, tasks);
                names(&parts).into_iter().for_each(|names| read.extend(names));
                read.sort_unstable();
                assert_eq!(read, all, "{tasks} tasks of {count} nodes");
            }
        }
    }
}
