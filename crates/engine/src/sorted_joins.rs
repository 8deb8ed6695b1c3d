//! Joins that sort their inputs, for joins whose hash tables don't fit in memory.
//!
//! A hash join is faster, but keeps one of its inputs in memory. How large that is can't be told from a plan: estimates
//! of conditions and of other joins are far off. So a query begins with hash joins; if they need more memory than there
//! is before its first rows, it begins again with joins that sort, which spill.

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream, execute_stream};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::stop::stoppable;

/// The query, to be planned again.
pub(crate) struct Alternative {
    plan: LogicalPlan,
    state: SessionState,
}

impl Alternative {
    /// `None` if a plan has no hash join, or adds rows, which it may have done when memory runs out.
    pub(crate) fn to(
        physical: &Arc<dyn ExecutionPlan>,
        plan: &LogicalPlan,
        state: &SessionState,
    ) -> Option<Self> {
        if matches!(plan, LogicalPlan::Dml(_)) || !has_hash_join(physical) {
            return None;
        }
        let mut state = state.clone();
        let options = state.config_mut().options_mut();
        options.optimizer.prefer_hash_join = false;
        // With one partition, DataFusion has only hash joins.
        options.execution.target_partitions = options.execution.target_partitions.max(2);
        Some(Self { plan: plan.clone(), state })
    }

    async fn execute(self) -> Result<SendableRecordBatchStream> {
        let plan = self.state.create_physical_plan(&self.plan).await?;
        execute_stream(stoppable(plan, self.state.config())?, self.state.task_ctx())
    }
}

/// The rows of a plan, or of the alternative if the plan needs too much memory before its first rows.
pub(crate) fn or_sorted(
    batches: SendableRecordBatchStream,
    alternative: Option<Alternative>,
) -> SendableRecordBatchStream {
    let Some(alternative) = alternative else { return batches };
    let schema = batches.schema();
    let begun = {
        let schema = schema.clone();
        async move {
            let mut batches = batches;
            let first = batches.next().await;
            if let Some(Err(error)) = &first
                && is_exhausted(error)
            {
                tracing::debug!(%error, "the query begins again with joins that sort");
                drop(batches);
                return alternative.execute().await;
            }
            let all = stream::iter(first).chain(batches);
            Ok(Box::pin(RecordBatchStreamAdapter::new(schema, all)) as SendableRecordBatchStream)
        }
    };
    let batches = stream::once(begun).try_flatten();
    Box::pin(RecordBatchStreamAdapter::new(schema, batches))
}

fn is_exhausted(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

fn has_hash_join(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let mut is_found = false;
    // The closure does not fail.
    let _ = plan.apply(|plan| {
        is_found = plan.is::<HashJoinExec>();
        Ok(if is_found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    is_found
}
