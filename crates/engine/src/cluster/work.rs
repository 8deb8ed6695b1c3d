//! What this node does for others.

use std::sync::Arc;

use arrow_schema::{Field, Schema};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_distributed::{
    CoordinatorToWorkerMsg, ExecuteTaskRequest, MaybeEncoded, ProducerHead, SetPlanRequest, Worker,
    WorkerToCoordinatorMsg,
};
use futures::{FutureExt, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue};
use lightship_transport::net::Answer;
use lightship_wire::cluster::Task;
use lightship_wire::control::{ErrorCode, Failure};
use prost::Message as _;
use url::Url;

use super::Cluster;
use super::ask::{Ask, Change, Execute, Head, Key, Request, Scan, SetPlan, Watch, malformed};
use super::metrics::TaskReport;
use super::reply::blobs;
use super::shard::ShardScanExec;
use crate::error::{EngineError, Result};
use crate::remote::with_schema;
use crate::stop::StopFlag;
use crate::threads::Part;

tokio::task_local! {
    /// Of the part of a query whose plan is being taken.
    pub(crate) static STOP: StopFlag;
}

/// Does what another node asks for.
///
/// # Errors
/// What the node is told.
pub(crate) async fn answer(cluster: &Arc<Cluster>, task: &Task) -> Result<Answer, Failure> {
    let request = Request::decode(task.body.as_slice())
        .map_err(|e| Failure::new(ErrorCode::Protocol, malformed(&e.to_string()).to_string()))?;
    let ask = match request.ask {
        Some(Ask::Watch(watch)) => return watched(cluster, &watch),
        Some(Ask::Finish(key)) => return finish(cluster, &key).map_err(|error| error.to_failure()),
        Some(Ask::Change(change)) => {
            return self::change(cluster, &change).await.map_err(|error| error.to_failure());
        }
        Some(ask) => ask,
        None => return Err(Failure::new(ErrorCode::Protocol, "empty request")),
    };
    // What has to do with plans needs the threads for it.
    let here = cluster.clone();
    let answered = cluster.threads.run(Part::Running, async move {
        let worker = here.worker();
        match ask {
            Ask::SetPlan(set) => set_plan(&here, &worker, set).await,
            Ask::Execute(execute) => self::execute(&here, &worker, execute).await,
            Ask::Scan(scan) => self::scan(&here, scan),
            Ask::Watch(_) | Ask::Finish(_) | Ask::Change(_) => {
                Err(EngineError::Internal("answered before".into()))
            }
        }
    });
    let answer = answered.await.map_err(|error| error.to_failure())?;
    Ok(Answer { rows: cluster.threads.rows(answer.rows, ()), ..answer })
}

fn watched(cluster: &Arc<Cluster>, watch: &Watch) -> Result<Answer, Failure> {
    let watched = cluster.members().watched(watch)?;
    Ok(blobs(futures::stream::unfold(watched, |mut watched| async move {
        let description = watched.next().await?;
        Some((Ok(description.encode_to_vec()), watched))
    })))
}

async fn set_plan(cluster: &Arc<Cluster>, worker: &Worker, set: SetPlan) -> Result<Answer> {
    let key = set.key.to_task()?;
    let mut headers = HeaderMap::with_capacity(set.headers.len());
    for header in &set.headers {
        let fail = |e: http::Error| EngineError::from(malformed(&e.to_string()));
        headers.insert(
            HeaderName::from_bytes(header.name.as_bytes()).map_err(|e| fail(e.into()))?,
            HeaderValue::from_bytes(&header.value).map_err(|e| fail(e.into()))?,
        );
    }
    let request = SetPlanRequest {
        task_key: key,
        task_count: set.tasks as usize,
        plan: MaybeEncoded::Encoded(set.plan),
        work_unit_feed_declarations: Vec::new(),
        target_worker_url: Url::parse(&set.url).map_err(|e| malformed(&e.to_string()))?,
        query_start_time_ns: set.query_start_ns as usize,
    };
    let (part, finished) = cluster.queries.begin(key)?;
    // Ends when it is said, or with this answer.
    let until_finished =
        finished.into_stream().filter_map(|_| async { None::<DataFusionResult<CoordinatorToWorkerMsg>> });
    let from_worker = worker.coordinator_channel(headers, request, until_finished.boxed());
    let from_worker = STOP.scope(part.stop.clone(), from_worker).await;
    let from_worker = from_worker.map_err(|error| {
        let error = EngineError::from(error);
        // Whoever waits for the part's rows is told why there are none.
        cluster.queries.end_with(&key, error.to_failure());
        error
    })?;
    let reports = from_worker.filter_map(move |message| {
        let _ = &part;
        async move {
            match message {
                Ok(WorkerToCoordinatorMsg::TaskMetrics(metrics)) => {
                    Some(Ok(TaskReport::from(&metrics).encode_to_vec()))
                }
                Ok(_) => None,
                Err(error) => Some(Err(EngineError::from(error).to_failure())),
            }
        }
    });
    Ok(blobs(reports))
}

fn finish(cluster: &Cluster, key: &Key) -> Result<Answer> {
    cluster.queries.end(&key.to_task()?);
    Ok(blobs(futures::stream::empty()))
}

async fn change(cluster: &Cluster, change: &Change) -> Result<Answer> {
    let members = cluster.members();
    let changed = match change.remove {
        true => members.remove(&change.node).await,
        false => members.restore(&change.node).await,
    };
    changed.map_err(|error| match error {
        EngineError::Config(message) => EngineError::Remote(Failure::new(ErrorCode::Forbidden, message)),
        error => error,
    })?;
    Ok(blobs(futures::stream::empty()))
}

async fn execute(cluster: &Cluster, worker: &Worker, execute: Execute) -> Result<Answer> {
    let partition = execute.partition as usize;
    let producer_head = match execute.head {
        None => ProducerHead::None,
        Some(Head::Broadcast(partitions)) => {
            ProducerHead::BroadcastExec { output_partitions: partitions as usize }
        }
        Some(Head::Repartition(bytes)) => {
            ProducerHead::RepartitionExec { partitioning: MaybeEncoded::Encoded(bytes) }
        }
    };
    let request = ExecuteTaskRequest {
        task_key: execute.key.to_task()?,
        target_partition_start: partition,
        target_partition_end: partition + 1,
        producer_head,
    };
    let mut streams = begin(cluster, worker, request).await?;
    let rows = streams.pop().ok_or_else(|| malformed("no partition"))?;
    let answer = rows_of(rows);
    Ok(Answer { encoders: cluster.exchange.encoders(&answer.schema), ..answer })
}

/// The partitions of a part. It may be asked for before it is set, but not once its query has ended.
pub(crate) async fn begin(
    cluster: &Cluster,
    worker: &Worker,
    request: ExecuteTaskRequest,
) -> Result<Vec<SendableRecordBatchStream>> {
    let query = request.task_key.query_id;
    tokio::select! {
        biased;
        begun = worker.execute_task(request) => Ok(begun?.0),
        why = cluster.queries.ended(&query) => Err(why),
    }
}

fn scan(cluster: &Arc<Cluster>, scan: Scan) -> Result<Answer> {
    if scan.partitions != 1 {
        return Err(malformed("a scan of several partitions").into());
    }
    let context = cluster.task_context();
    let plan = ShardScanExec::from_message(scan, &context)?;
    Ok(rows_of(plan.execute(0, context)?))
}

fn rows_of(rows: SendableRecordBatchStream) -> Answer {
    // Metadata is no part of a column, and would have to be the same in each batch.
    let found = rows.schema();
    let fields = found.fields().iter().map(|f| Field::new(f.name(), f.data_type().clone(), f.is_nullable()));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let wanted = schema.clone();
    let rows = rows.map(move |batch| {
        batch
            .and_then(|batch| with_schema(&batch, &wanted))
            .map_err(|error| EngineError::from(error).to_failure())
    });
    Answer::new(schema, None, Box::pin(rows))
}
