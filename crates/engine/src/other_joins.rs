//! Other joins, for queries whose hash tables don't fit in memory.
//!
//! A hash join is faster, but keeps one of its inputs in memory. How large that is can't be told from a plan: estimates
//! of conditions and of other joins are far off. So a query begins with hash joins; if they need more memory than there
//! is before its first rows, it begins again with joins that sort, which spill.
//!
//! On several nodes, an input may also have been sent to all of them because far too few rows were expected. So if a plan
//! does that, the query begins again without it, and only then with joins that sort. From a plan that has run to its end, the nodes
//! learn how many rows there are.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream, execute_stream};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use lightship_wire::control::Reason;

use crate::cluster::{self, Cluster};
use crate::error::EngineError;
use crate::explained::Explained;
use crate::meter::ObservedQuery;
use crate::stop::stoppable;

/// How long to wait, on average, before a query begins again on several nodes, which hold what they had for the plan before
/// for a moment (`cluster/sweep.rs`); three times as long before the next time.
const PAUSE: Duration = Duration::from_millis(400);

/// The joins of a plan that needs less memory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum OtherJoins {
    /// Hash joins. Only inputs of which few rows are known to come may be sent to all nodes.
    Divided,
    /// Joins that sort.
    Sorted,
}

impl OtherJoins {
    /// In which to plan a query so.
    fn state(self, state: &SessionState) -> SessionState {
        let mut state = state.clone();
        let options = state.config_mut().options_mut();
        match self {
            Self::Divided => {
                options.optimizer.hash_join_single_partition_threshold = 0;
                options.optimizer.hash_join_single_partition_threshold_rows = 0;
            }
            Self::Sorted => {
                options.optimizer.prefer_hash_join = false;
                // With one partition, DataFusion has only hash joins.
                options.execution.target_partitions = options.execution.target_partitions.max(2);
            }
        }
        state
    }
}

/// A query that can be planned again.
pub(crate) struct Alternatives {
    query: LogicalPlan,
    /// In which it was planned first.
    state: SessionState,
    /// To be tried, in this order.
    left: VecDeque<OtherJoins>,
    /// Joins of the first plan with an input of which all tasks have all rows.
    broadcasts: usize,
    /// Before the next plan, if other nodes have a part in it.
    pause: Duration,
    /// If this node is one of several; and the text of the query.
    cluster: Option<(Arc<Cluster>, String)>,
}

impl Alternatives {
    /// `None` if a plan has no hash join, or adds rows, which it may have done when memory runs out.
    pub(crate) fn to(
        plan: &Arc<dyn ExecutionPlan>,
        query: &LogicalPlan,
        state: &SessionState,
        cluster: Option<(&Arc<Cluster>, &str)>,
    ) -> Result<Option<Self>> {
        if matches!(query, LogicalPlan::Dml(_)) || hash_joins(plan, |_| true) == 0 {
            return Ok(None);
        }
        let mut left = VecDeque::from([OtherJoins::Sorted]);
        let broadcasts = broadcasts(plan);
        if cluster::query_of(plan)?.is_some() {
            // Once more, because other nodes may still hold memory for the plan before.
            left.push_back(OtherJoins::Sorted);
            if broadcasts > 0 {
                left.push_front(OtherJoins::Divided);
            }
        }
        let cluster = cluster.map(|(cluster, sql)| (cluster.clone(), sql.to_owned()));
        let (query, state) = (query.clone(), state.clone());
        Ok(Some(Self { query, state, left, broadcasts, pause: PAUSE, cluster }))
    }

    /// The next plan, after a pause.
    async fn next(&mut self) -> Result<Option<(Arc<dyn ExecutionPlan>, SessionState)>> {
        while let Some(joins) = self.left.pop_front() {
            let state = joins.state(&self.state);
            let plan = state.create_physical_plan(&self.query).await?;
            if joins == OtherJoins::Divided && broadcasts(&plan) >= self.broadcasts {
                // It is the same plan.
                continue;
            }
            if cluster::query_of(&plan)?.is_some() {
                // Queries that failed together do not begin again together.
                tokio::time::sleep(self.pause.mul_f64(0.5 + fastrand::f64())).await;
                self.pause *= 3;
            }
            return Ok(Some((plan, state)));
        }
        Ok(None)
    }

    /// Starts a plan.
    fn execute(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        state: &SessionState,
    ) -> Result<SendableRecordBatchStream> {
        let Some((cluster, sql)) = &self.cluster else {
            return execute_stream(stoppable(plan, state.config())?, state.task_ctx());
        };
        let plan = cluster::until_error(plan)?;
        let query = cluster::query_of(&plan)?;
        let rows = cluster.execute(plan, state)?;
        // Nodes count the work for it under a number of its own.
        let observed = cluster.meters.as_ref().zip(query);
        let observed =
            observed.map(|(meters, query)| meters.begin(query, sql, Arc::default(), Instant::now()));
        Ok(observed_rows(rows, observed))
    }
}

/// Explains a query over several nodes; with `run`, runs it first, again if it needs too much memory.
pub(crate) async fn explain(
    cluster: &Arc<Cluster>,
    query: &LogicalPlan,
    state: &SessionState,
    run: bool,
) -> crate::error::Result<Explained> {
    let nodes = cluster::snapshot_of(state)?;
    let plan = state.create_physical_plan(query).await?;
    let alternatives = Alternatives::to(&plan, query, state, None)?;
    let failed = match cluster::explain::explain(cluster, &nodes, plan, state, run).await {
        Err(error) if is_exhausted(&error) => error,
        explained => return Ok(explained?),
    };
    let Some(mut alternatives) = alternatives else { return Err(failed.into()) };
    while let Ok(Some((plan, state))) = alternatives.next().await {
        if let Ok(explained) = cluster::explain::explain(cluster, &nodes, plan, &state, run).await {
            return Ok(explained);
        }
    }
    Err(failed.into())
}

/// The same rows, with whose end a query has ended.
fn observed_rows(
    mut rows: SendableRecordBatchStream,
    observed: Option<ObservedQuery>,
) -> SendableRecordBatchStream {
    let Some(mut observed) = observed else { return rows };
    let schema = rows.schema();
    let rows = stream::poll_fn(move |context| {
        let next = ready!(rows.poll_next_unpin(context));
        match &next {
            Some(Ok(_)) => {}
            Some(Err(error)) => observed.end(Some(EngineError::of_shared(error).to_failure().message)),
            None => observed.end(None),
        }
        Poll::Ready(next)
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

/// The rows of a plan, or of an alternative if the plan needs too much memory before its first rows.
pub(crate) fn or_another(
    batches: SendableRecordBatchStream,
    alternatives: Option<Alternatives>,
) -> SendableRecordBatchStream {
    let Some(alternatives) = alternatives else { return batches };
    let schema = batches.schema();
    let batches = stream::once(begun(batches, alternatives)).try_flatten();
    Box::pin(RecordBatchStreamAdapter::new(schema, batches))
}

/// The rows of the first plan that does not fail before its first rows; its error if all of them do: that of an alternative may
/// be about it alone, as that of standard input, which can be read only once.
async fn begun(
    batches: SendableRecordBatchStream,
    mut alternatives: Alternatives,
) -> Result<SendableRecordBatchStream> {
    let failed = match first_of(batches).await {
        Err(error) if is_exhausted(&error) => error,
        batches => return batches,
    };
    loop {
        tracing::debug!(%failed, "the query begins again with other joins");
        let again = async {
            let Some((plan, state)) = alternatives.next().await? else { return Ok(None) };
            first_of(alternatives.execute(plan, &state)?).await.map(Some)
        };
        match again.await {
            Ok(Some(batches)) => return Ok(batches),
            Ok(None) => return Err(failed),
            Err(error) => tracing::debug!(%error, "another plan of the query has failed"),
        }
    }
}

/// The same rows, once the first of them have come.
async fn first_of(mut batches: SendableRecordBatchStream) -> Result<SendableRecordBatchStream> {
    let first = batches.next().await.transpose()?;
    let schema = batches.schema();
    let all = stream::iter(first.map(Ok)).chain(batches);
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, all)))
}

/// Whether this node, or another one that has a part in the query, has too little memory for its operators. If it is known
/// how much is needed, that is for the result of a function, which other joins also need.
fn is_exhausted(error: &DataFusionError) -> bool {
    let failure = EngineError::of_shared(error).to_failure();
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
        || (failure.reason == Some(Reason::OutOfMemory) && failure.needed_bytes.is_none())
}

/// How many joins of a plan have an input of which all tasks have all rows.
fn broadcasts(plan: &Arc<dyn ExecutionPlan>) -> usize {
    hash_joins(plan, |mode| mode == PartitionMode::CollectLeft)
}

/// How many hash joins of such a mode a plan has.
fn hash_joins(plan: &Arc<dyn ExecutionPlan>, is_such: impl Fn(PartitionMode) -> bool) -> usize {
    let mut count = 0;
    // The closure does not fail.
    let _ = plan.apply(|plan| {
        let join = plan.downcast_ref::<HashJoinExec>();
        count += usize::from(join.is_some_and(|join| is_such(*join.partition_mode())));
        Ok(TreeNodeRecursion::Continue)
    });
    count
}
