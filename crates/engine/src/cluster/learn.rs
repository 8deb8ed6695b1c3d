//! What a query is expected to send before it runs, and what is learned from it once it has.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion_distributed::{DistributedExec, DistributedExt};
use futures::StreamExt as _;
use tokio::sync::OwnedSemaphorePermit;

use super::Cluster;
use super::cost::edges::{Prediction, plans};
use super::cost::rates::Rates;
use super::explain;
use super::members::Snapshot;
use super::route::on_one_host;
use crate::explained::ExpectedEdge;

/// Queries that are learned from at a time: their plans are kept until all nodes have reported.
pub(super) const LEARNERS_MAX: usize = 16;
/// How long nodes may take to report.
const LEARN_TIMEOUT: Duration = Duration::from_secs(1);

/// A plan that is to run on several nodes.
pub(super) struct Planned {
    plan: Arc<dyn ExecutionPlan>,
    /// The nodes that it was planned for; `None` if it runs on one node.
    snapshot: Option<Arc<Snapshot>>,
    /// Partitions of a task.
    partitions: usize,
    /// What the nodes are expected to send each other.
    pub(super) expected: Vec<ExpectedEdge>,
}

impl Cluster {
    /// What the nodes of a plan are expected to send each other, and a context in which they do it as planned.
    pub(super) fn planned(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        state: &SessionState,
    ) -> Result<(Planned, Arc<TaskContext>)> {
        let partitions = state.config().target_partitions();
        let mut planned = Planned { plan: plan.clone(), snapshot: None, partitions, expected: Vec::new() };
        let Some(snapshot) =
            state.config().get_extension::<Snapshot>().filter(|_| plan.is::<DistributedExec>())
        else {
            return Ok((planned, state.task_ctx()));
        };
        let prediction = Prediction {
            facts: &self.facts,
            snapshot: &snapshot,
            rates: Rates::of(&snapshot).processor,
            processors: on_one_host(&snapshot)
                .then(|| std::thread::available_parallelism().map_or(1, NonZero::get)),
            partitions,
            start_seconds: self.edges.start_seconds(),
            exchange: &self.exchange,
        };
        planned.expected = prediction.edges(plan, self.name())?;
        planned.snapshot = Some(snapshot);
        let plans = plans(&planned.expected);
        let mut config = state.config().clone();
        config.set_distributed_passthrough_headers(plans.to_headers())?;
        config.set_extension(Arc::new(plans));
        Ok((planned, Arc::new(TaskContext::from(state).with_session_config(config))))
    }

    /// The rows of a plan, which its nodes send as they are expected to be fastest. Once they have ended, what the
    /// operators gave and the nodes sent is remembered.
    pub(crate) fn execute(
        self: &Arc<Self>,
        plan: Arc<dyn ExecutionPlan>,
        state: &SessionState,
    ) -> Result<SendableRecordBatchStream> {
        let (planned, context) = self.planned(&plan, state)?;
        Ok(self.learn_from(planned, execute_stream(plan, context)?))
    }

    fn learn_from(
        self: &Arc<Self>,
        planned: Planned,
        rows: SendableRecordBatchStream,
    ) -> SendableRecordBatchStream {
        let permit = self.learners.clone().try_acquire_owned().ok();
        let Some(permit) = permit.filter(|_| planned.snapshot.is_some()) else { return rows };
        let schema = rows.schema();
        let learning = (rows, Some((self.clone(), planned, permit)));
        let rows = futures::stream::unfold(learning, move |(mut rows, mut learning)| async move {
            let batch = rows.next().await;
            match (&batch, learning.take()) {
                (Some(Ok(_)), again) => learning = again,
                // A plan that has failed has not given all its rows.
                (Some(Err(_)), _) => {}
                (None, Some((cluster, planned, permit))) => {
                    tokio::spawn(cluster.learn(planned, permit));
                }
                (None, None) => {}
            }
            Some((batch?, (rows, learning)))
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }

    /// Learns from a plan whose rows have all been read.
    async fn learn(self: Arc<Self>, planned: Planned, permit: OwnedSemaphorePermit) {
        if let Ok(Some(measured)) = explain::measured(planned.plan.clone(), LEARN_TIMEOUT).await
            && let Err(error) = self.remember(&planned, &measured)
        {
            tracing::debug!(%error, "what a query sent could not be told");
        }
        drop(permit);
    }

    /// Remembers what the operators of a plan gave, and what its nodes sent.
    pub(super) fn remember(&self, planned: &Planned, measured: &Arc<dyn ExecutionPlan>) -> Result<()> {
        let Some(snapshot) = &planned.snapshot else { return Ok(()) };
        self.facts.learn(measured, snapshot.nodes.len() * planned.partitions);
        let sent = explain::explained(measured, self.name(), snapshot, true)?.edges;
        self.edges.add(&planned.expected, sent);
        Ok(())
    }
}
