//! Turns a logical plan into a physical one, for the nodes of a cluster or for this node alone.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion_distributed::{
    NetworkBoundaryExt, SessionStateBuilderExt, Stage, WorkerPlanRewriteEvent, WorkerPlanRewriteEventResponse,
};

use super::route;
use crate::stop::stoppable;

/// Depth of the deepest plan that is sent to other nodes, in operators and expressions together. Each level
/// is encoded as two nested messages, and the decoder accepts 100.
const DEPTH_MAX: usize = 44;

/// Plans a query for the cluster if possible, otherwise for this node, which then requests only rows of
/// tables from others.
pub(crate) fn with_cluster_planner(builder: SessionStateBuilder) -> SessionStateBuilder {
    let planned = Arc::new(Planned::default());
    let mut builder = builder.with_query_planner(planned.clone()).with_distributed_planner();
    match builder.query_planner().take() {
        Some(distributed) => builder.with_query_planner(Arc::new(ClusterPlanner { planned, distributed })),
        None => builder,
    }
}

#[derive(Debug)]
struct ClusterPlanner {
    /// Gives `distributed` the plan to start from.
    planned: Arc<Planned>,
    distributed: Arc<dyn QueryPlanner + Send + Sync>,
}

#[async_trait]
impl QueryPlanner for ClusterPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let local = DefaultPhysicalPlanner::default().create_physical_plan(plan, session).await?;
        let local = stoppable(local, session.config())?;
        if stays_here(&local)? {
            return Ok(local);
        }
        self.planned.put(local.clone());
        let distributed = self.distributed.create_physical_plan(plan, session).await?;
        let mut deepest = 0;
        depth(&distributed, &mut deepest)?;
        Ok(if deepest > DEPTH_MAX { local } else { distributed })
    }
}

/// Returns the plan that was put in.
#[derive(Debug, Default)]
struct Planned(Mutex<Option<Arc<dyn ExecutionPlan>>>);

impl Planned {
    fn put(&self, plan: Arc<dyn ExecutionPlan>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan);
    }
}

#[async_trait]
impl QueryPlanner for Planned {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let planned = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match planned {
            Some(planned) => Ok(planned),
            None => DefaultPhysicalPlanner::default().create_physical_plan(plan, session).await,
        }
    }
}

/// Whether a plan can't be divided among nodes.
///
/// Each iteration of a recursive query uses the rows of the one before and reads its tables again, which
/// parts on other nodes can't do. Other nodes can't read what only this node has.
fn stays_here(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let mut stays = false;
    plan.apply(|plan| {
        stays = plan.is::<RecursiveQueryExec>() || !route::is_known(plan);
        Ok(if stays { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(stays)
}

/// The depth of this node's part of a plan, including expressions. Sets `deepest` to the depth of the
/// deepest part of another node.
fn depth(plan: &Arc<dyn ExecutionPlan>, deepest: &mut usize) -> Result<usize> {
    if let Some(boundary) = plan.as_network_boundary() {
        if let Stage::Local(stage) = boundary.input_stage() {
            let sent = depth(&stage.plan, deepest)?;
            *deepest = sent.max(*deepest);
        }
        return Ok(1);
    }
    let mut own = 0;
    plan.apply_expressions(&mut |expression| {
        own = own.max(expression_depth(expression));
        Ok(TreeNodeRecursion::Continue)
    })?;
    let mut below = 0;
    for child in plan.children() {
        below = below.max(depth(child, deepest)?);
    }
    Ok(1 + own.max(below))
}

fn expression_depth(expression: &Arc<dyn PhysicalExpr>) -> usize {
    1 + expression.children().into_iter().map(expression_depth).max().unwrap_or(0)
}

/// Makes a part that runs for another node stop when its query has ended.
pub(crate) fn stoppable_part(event: WorkerPlanRewriteEvent<'_>) -> Result<WorkerPlanRewriteEventResponse> {
    Ok(WorkerPlanRewriteEventResponse::new(stoppable(event.plan, event.session_config)?))
}
