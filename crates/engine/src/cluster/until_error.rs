//! Ends a plan's rows at the first error.
//!
//! datafusion-distributed polls a plan for rows after it has failed, and DataFusion's window functions
//! panic when they are polled again.

use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
    ReplaceChildrenOptions,
};
use datafusion_distributed::DistributedExec;
use futures::StreamExt as _;

/// The same plan, whose part on this node is not polled again after it has failed.
pub(crate) fn until_error(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if plan.downcast_ref::<DistributedExec>().is_none() {
        return Ok(plan);
    }
    let wrap = |child: &Arc<dyn ExecutionPlan>| Arc::new(UntilErrorExec { input: child.clone() }) as _;
    let children = plan.children().into_iter().map(wrap).collect();
    plan.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

#[derive(Debug)]
struct UntilErrorExec {
    input: Arc<dyn ExecutionPlan>,
}

impl UntilErrorExec {
    fn of(children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self { input })),
            Err(_) => Err(DataFusionError::Internal("UntilErrorExec has one input".into())),
        }
    }
}

impl DisplayAs for UntilErrorExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UntilErrorExec")
    }
}

impl ExecutionPlan for UntilErrorExec {
    fn name(&self) -> &'static str {
        "UntilErrorExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Self::of(children)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Self::of(children)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let rows = self.input.execute(partition, context)?;
        let schema = rows.schema();
        let rows = futures::stream::unfold(Some(rows), |rows| async move {
            let mut rows = rows?;
            match rows.next().await? {
                Ok(batch) => Some((Ok(batch), Some(rows))),
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}
