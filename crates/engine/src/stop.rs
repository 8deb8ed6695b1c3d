//! Stops queries while they compute, and lets other tasks run meanwhile.
//!
//! A stream of rows can be stopped only between two polls, and some operators could compute for
//! years in one poll: a join whose condition holds for no pair of rows never returns any. So each
//! evaluation of a join's condition is a point where the query can be stopped and where other tasks
//! get the thread. Operators that multiply rows count against their task's budget, so that the
//! consumer of those rows yields.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arrow_array::RecordBatch;
use arrow_schema::{DataType, FieldRef, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::lit;
use datafusion::physical_expr_common::physical_expr::proto_encode::PhysicalExprEncodeCtx;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, HashJoinExecBuilder, NestedLoopJoinExec, NestedLoopJoinExecBuilder,
    SortMergeJoinExec, SymmetricHashJoinExec,
};
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::PhysicalExprNode;
use lightship_wire::control::{ErrorCode, Failure};

use crate::error::EngineError;

/// Evaluations of a join's condition, each on a batch of rows, after which other tasks get the thread.
const EVALUATIONS_PER_TURN: u32 = 64;

/// Tells a query to stop. Clones belong to the same query.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the flag when it is dropped.
    pub(crate) fn guard(&self) -> StopGuard {
        StopGuard(self.clone())
    }
}

/// Stops a query when it is dropped.
#[derive(Debug)]
pub(crate) struct StopGuard(StopFlag);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Makes a plan stop even within a poll once its session's flag, if there is one, is set. The
/// operators stay the same.
///
/// # Errors
/// When an operator can't be rebuilt with another condition.
pub(crate) fn stoppable(
    plan: Arc<dyn ExecutionPlan>,
    session: &SessionConfig,
) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(flag) = session.get_extension::<StopFlag>() else { return Ok(plan) };
    let flag = flag.as_ref();
    let plan = plan.transform_up(|plan| {
        let changed: Arc<dyn ExecutionPlan> = if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
            let filter = match join.filter() {
                Some(filter) => watched(filter, flag),
                // It returns rows at once.
                None if *join.join_type() == JoinType::Inner => return Ok(Transformed::no(plan)),
                None => {
                    let always = JoinFilter::new(lit(true), Vec::new(), Arc::new(Schema::empty()));
                    watched(&always, flag)
                }
            };
            Arc::new(NestedLoopJoinExecBuilder::from(join).with_filter(Some(filter)).build()?)
        } else if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
            let Some(filter) = join.filter() else { return Ok(Transformed::no(plan)) };
            let filter = watched(filter, flag);
            HashJoinExecBuilder::from(join).with_filter(Some(filter)).build_exec()?
        } else if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>() {
            let Some(filter) = join.filter() else { return Ok(Transformed::no(plan)) };
            Arc::new(SortMergeJoinExec::try_new(
                join.left().clone(),
                join.right().clone(),
                join.on().to_vec(),
                Some(watched(filter, flag)),
                join.join_type(),
                join.sort_options().to_vec(),
                join.null_equality(),
            )?)
        } else {
            return Ok(Transformed::no(plan));
        };
        Ok(Transformed::yes(changed))
    })?;
    Ok(plan.data)
}

fn watched(filter: &JoinFilter, flag: &StopFlag) -> JoinFilter {
    let expression = filter.expression().clone();
    let inner = match expression.downcast_ref::<StoppableExpr>() {
        Some(watched) => watched.inner.clone(),
        None => expression,
    };
    let turn = Arc::default();
    let watched = StoppableExpr { inner, flag: flag.clone(), turn };
    JoinFilter::new(Arc::new(watched), filter.column_indices().to_vec(), filter.schema().clone())
}

/// A condition that can stop the query at each evaluation.
#[derive(Debug)]
struct StoppableExpr {
    inner: Arc<dyn PhysicalExpr>,
    flag: StopFlag,
    /// Evaluations so far.
    turn: Arc<AtomicU32>,
}

impl PartialEq for StoppableExpr {
    fn eq(&self, other: &Self) -> bool {
        self.inner.as_ref() == other.inner.as_ref()
    }
}

impl Eq for StoppableExpr {}

impl Hash for StoppableExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl fmt::Display for StoppableExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl PhysicalExpr for StoppableExpr {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.inner.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.inner.nullable(schema)
    }

    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.inner.return_field(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        if self.flag.is_set() {
            let failure = Failure::new(ErrorCode::Cancelled, "the query was stopped");
            return Err(EngineError::Remote(failure).into());
        }
        if self.turn.fetch_add(1, Ordering::Relaxed) % EVALUATIONS_PER_TURN != EVALUATIONS_PER_TURN - 1 {
            return self.inner.evaluate(batch);
        }
        // Another thread takes over this thread's other tasks until the poll ends.
        tokio::task::block_in_place(|| self.inner.evaluate(batch))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let inner = children.pop().unwrap_or_else(|| self.inner.clone());
        Ok(Arc::new(Self { inner, flag: self.flag.clone(), turn: self.turn.clone() }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_sql(f)
    }

    /// Sends the plain condition. The other node makes it stop by its own flag.
    fn try_to_proto(&self, context: &PhysicalExprEncodeCtx<'_>) -> Result<Option<PhysicalExprNode>> {
        context.encode_child(&self.inner).map(Some)
    }
}

/// Makes operators that may turn one batch into many count each batch against their task's budget,
/// as scans do.
#[derive(Debug)]
pub(crate) struct YieldWhereRowsMultiply;

impl PhysicalOptimizerRule for YieldWhereRowsMultiply {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let mut below_cooperative = false;
        let plan = plan.transform_down(|plan| {
            if std::mem::replace(&mut below_cooperative, plan.is::<CooperativeExec>()) || !multiplies(&plan) {
                return Ok(Transformed::no(plan));
            }
            let wrapped: Arc<dyn ExecutionPlan> = Arc::new(CooperativeExec::new(plan));
            below_cooperative = true;
            // Its child is visited next.
            Ok(Transformed::new(wrapped, true, TreeNodeRecursion::Continue))
        })?;
        Ok(plan.data)
    }

    fn name(&self) -> &'static str {
        "YieldWhereRowsMultiply"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn multiplies(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<CrossJoinExec>()
        || plan.is::<NestedLoopJoinExec>()
        || plan.is::<HashJoinExec>()
        || plan.is::<SortMergeJoinExec>()
        || plan.is::<SymmetricHashJoinExec>()
        || plan.is::<UnnestExec>()
}
