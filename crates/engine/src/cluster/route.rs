//! Which node does which part of a plan: the one that has the rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, exec_err};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::prelude::SessionConfig;
use datafusion_distributed::{
    DesiredTaskCountEvent, DesiredTaskCountEventResponse, DistributedLeafExec, NetworkBoundaryExt,
    RouteTasksEvent, RouteTasksEventResponse, ScaleUpLeafNodeEvent, ScaleUpLeafNodeEventResponse, Stage,
    WorkerPlanRewriteEvent, WorkerPlanRewriteEventResponse,
};
use url::Url;

use super::ask::{Shards, Share};
use super::members::Snapshot;
use super::shard::ShardScanExec;

/// A table that all can read is read by one node for each so many bytes.
const SHARE_BYTES: u64 = 4 << 20;

fn snapshot(config: &SessionConfig) -> Result<Arc<Snapshot>> {
    match config.get_extension::<Snapshot>() {
        Some(snapshot) => Ok(snapshot),
        None => exec_err!("a plan for many nodes without its nodes"),
    }
}

/// Into how many tasks a scan is cut.
pub(crate) fn desired_tasks(
    event: DesiredTaskCountEvent<'_>,
) -> Option<Result<DesiredTaskCountEventResponse>> {
    let scan = event.plan.downcast_ref::<ShardScanExec>()?;
    let Shards { nodes, share, bytes, .. } = scan.shards();
    let tasks = match (share, bytes) {
        (Some(_), Some(bytes)) => nodes.len().min(bytes.div_ceil(SHARE_BYTES) as usize),
        _ => nodes.len(),
    };
    Some(Ok(DesiredTaskCountEventResponse::desired(tasks.max(1))))
}

/// A scan for each task.
///
/// Where there are as many tasks as nodes, task *i* is node *i*'s, whatever table is scanned: so
/// scans of several tables in one part of the plan all find their rows at home.
pub(crate) fn scale_up(event: ScaleUpLeafNodeEvent<'_>) -> Option<Result<ScaleUpLeafNodeEventResponse>> {
    let scan = event.plan.downcast_ref::<ShardScanExec>()?;
    let variants = snapshot(event.session_config).map(|snapshot| {
        deal(scan.shards(), &snapshot, event.task_count)
            .into_iter()
            .map(|shards| Arc::new(scan.with_shards(shards)) as Arc<dyn ExecutionPlan>)
            .collect::<Vec<_>>()
    });
    let leaf = variants.and_then(|variants| DistributedLeafExec::try_new(event.plan.clone(), variants));
    Some(leaf.map(|leaf| ScaleUpLeafNodeEventResponse::new(Arc::new(leaf))))
}

/// The rows of each task.
fn deal(shards: &Shards, snapshot: &Snapshot, tasks: usize) -> Vec<Shards> {
    let part = |whole: Option<u64>| whole.map(|whole| whole / tasks as u64);
    let (rows, bytes) = (part(shards.rows), part(shards.bytes));
    if let Some(share) = shards.share {
        let share = |task| Some(Share { part: task as u64, of: tasks as u64, ..share });
        return (0..tasks).map(|task| Shards { share: share(task), rows, bytes, ..shards.clone() }).collect();
    }
    let mut dealt = vec![Shards { nodes: Vec::new(), share: None, rows, bytes }; tasks];
    for (place, name) in shards.nodes.iter().enumerate() {
        let at_home = snapshot.nodes.iter().position(|node| node.name == *name);
        let task = match at_home {
            Some(node) if tasks == snapshot.nodes.len() => node,
            _ => place % tasks,
        };
        dealt[task].nodes.push(name.clone());
    }
    dealt
}

/// Where each task runs.
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
    // Rows that each task reads of each node's own, and who can read what all can.
    let mut own = vec![BTreeMap::<&str, u64>::new(); tasks];
    let mut readers: Option<&[String]> = None;
    let mut child = None;
    plan.apply(|plan| {
        if let Some(leaf) = plan.downcast_ref::<DistributedLeafExec>() {
            for (task, variant) in leaf.variants().iter().enumerate().take(tasks) {
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
    let there = |name: &str| all.iter().any(|node| node.name == name).then(|| name.to_owned());
    let node = |task: usize| {
        let most = own[task].iter().max_by_key(|(_, bytes)| **bytes).and_then(|(name, _)| there(name));
        let reader = || readers.and_then(|readers| there(readers.get(task % readers.len())?));
        let beside = || child.clone().filter(|_| tasks == 1);
        most.or_else(reader).or_else(beside).unwrap_or_else(|| all[task % all.len()].name.clone())
    };
    Ok((0..tasks).map(node).collect())
}

/// A plan from another node may read the tables of the cluster and what other nodes send, and nothing else.
pub(crate) fn only_known_leaves(event: WorkerPlanRewriteEvent<'_>) -> Result<WorkerPlanRewriteEventResponse> {
    event.plan.apply(|plan| {
        if is_known(plan) {
            return Ok(TreeNodeRecursion::Continue);
        }
        exec_err!("a plan from another node has a {} with {} partitions, which reads what is no table of the cluster",
            plan.name(), plan.output_partitioning().partition_count())
    })?;
    Ok(WorkerPlanRewriteEventResponse::new(event.plan))
}

/// Whether any node can run this operator.
pub(crate) fn is_known(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match plan.name() {
        "DataSinkExec" => false,
        // The last three make their rows themselves.
        "ShardScanExec" | "WorkTableExec" | "EmptyExec" | "PlaceholderRowExec" | "LazyMemoryExec" => true,
        "DataSourceExec" => is_in_memory(plan),
        _ => plan.as_network_boundary().is_some() || !plan.children().is_empty(),
    }
}

/// Rows that stand in the plan itself, as those of VALUES.
fn is_in_memory(plan: &Arc<dyn ExecutionPlan>) -> bool {
    use datafusion::datasource::memory::{DataSourceExec, MemorySourceConfig};
    let source = plan.downcast_ref::<DataSourceExec>().map(DataSourceExec::data_source);
    source.is_some_and(|source| source.downcast_ref::<MemorySourceConfig>().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::members::Node;

    fn snapshot(names: &[&str]) -> Snapshot {
        let node = |name: &&str| Node {
            name: (*name).into(),
            url: Url::parse(&format!("lightship://{name}")).unwrap(),
            tables: Vec::new(),
        };
        Snapshot { nodes: names.iter().map(node).collect(), ..Snapshot::default() }
    }

    fn names(dealt: &[Shards]) -> Vec<Vec<&str>> {
        dealt.iter().map(|shards| shards.nodes.iter().map(String::as_str).collect()).collect()
    }

    #[test]
    fn with_as_many_tasks_as_nodes_every_row_is_at_home() {
        let nodes = snapshot(&["a:1", "b:1", "c:1"]);
        let shards = Shards { nodes: vec!["a:1".into(), "c:1".into()], ..Shards::default() };
        assert_eq!(names(&deal(&shards, &nodes, 3)), [vec!["a:1"], vec![], vec!["c:1"]]);
    }

    #[test]
    fn no_rows_are_lost_or_doubled_whatever_the_number_of_tasks() {
        let nodes = snapshot(&["a:1", "b:1", "c:1", "d:1"]);
        for tasks in 1..6 {
            for count in 1..=4 {
                let all: Vec<String> = nodes.nodes[..count].iter().map(|node| node.name.clone()).collect();
                let shards = Shards { nodes: all.clone(), ..Shards::default() };
                let mut dealt: Vec<&str> = Vec::new();
                let parts = deal(&shards, &nodes, tasks);
                names(&parts).into_iter().for_each(|names| dealt.extend(names));
                dealt.sort_unstable();
                assert_eq!(dealt, all, "{tasks} tasks of {count} nodes");
            }
        }
    }
}
