//! Answers the requests of other nodes.

use std::sync::Arc;
use std::time::Instant;

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
use lightship_transport::net::{Answer, blobs};
use lightship_wire::cluster::Task;
use lightship_wire::control::{ErrorCode, Failure};
use prost::Message as _;
use url::Url;

use super::Cluster;
use super::links::PROBE_BYTES_MAX;
use super::metrics::TaskReport;
use super::request::{
    Change, Execute, Head, Key, Probe, Request, RequestKind, Scan, SetPlan, Watch, malformed,
};
use super::shard::ShardScanExec;
use crate::error::{EngineError, Result};
use crate::meter::{metered, metered_batches};
use crate::remote::with_schema;
use crate::stop::StopFlag;
use crate::threads::QueryPhase;

/// Counted for each message of a probe, however small.
const PROBE_BYTES_MIN: u32 = 4 << 10;

tokio::task_local! {
    /// The stop flag of the part whose plan is being accepted.
    pub(crate) static STOP: StopFlag;
}

/// Answers a request of another node.
///
/// # Errors
/// The failure that the other node receives.
pub(crate) async fn answer(cluster: &Arc<Cluster>, task: &Task) -> Result<Answer, Failure> {
    let request = Request::decode(task.body.as_slice())
        .map_err(|e| Failure::new(ErrorCode::Protocol, malformed(&e.to_string()).to_string()))?;
    let kind = match request.kind {
        Some(RequestKind::Watch(watch)) => return watched(cluster, &watch),
        Some(RequestKind::Finish(key)) => return finish(cluster, &key).map_err(|error| error.to_failure()),
        Some(RequestKind::Change(change)) => {
            return self::change(cluster, &change).await.map_err(|error| error.to_failure());
        }
        Some(RequestKind::Probe(probe)) => return self::probe(cluster, probe),
        Some(kind) => kind,
        None => return Err(Failure::new(ErrorCode::Protocol, "empty request")),
    };
    // Requests that decode or run plans use the query threads.
    let here = cluster.clone();
    let answered = cluster.threads.run(QueryPhase::Running, async move {
        let worker = here.worker();
        match kind {
            RequestKind::SetPlan(set) => set_plan(&here, &worker, set).await,
            RequestKind::Execute(execute) => self::execute(&here, &worker, execute).await,
            RequestKind::Scan(scan) => self::scan(&here, scan),
            RequestKind::Watch(_)
            | RequestKind::Finish(_)
            | RequestKind::Change(_)
            | RequestKind::Probe(_) => Err(EngineError::Internal("the request was answered before".into())),
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

/// Messages of random bytes, which no codec makes smaller.
fn probe(cluster: &Cluster, probe: Probe) -> Result<Answer, Failure> {
    if !cluster.links.admits(probe.measurement, Instant::now()) {
        let failure = Failure::new(ErrorCode::Limit, "another node measures its link to this one");
        return Err(Failure { retryable: true, ..failure });
    }
    if u64::from(probe.messages) * u64::from(probe.bytes.max(PROBE_BYTES_MIN)) > PROBE_BYTES_MAX {
        return Err(Failure::new(ErrorCode::Protocol, "a probe of too many bytes"));
    }
    let message = move |_| {
        let mut bytes = vec![0; probe.bytes as usize];
        fastrand::fill(&mut bytes);
        Ok(bytes)
    };
    Ok(blobs(futures::stream::iter(0..probe.messages).map(message)))
}

async fn set_plan(cluster: &Arc<Cluster>, worker: &Worker, set: SetPlan) -> Result<Answer> {
    let key = set.key.to_task()?;
    let mut headers = HeaderMap::new();
    for header in &set.headers {
        let fail = |e: http::Error| EngineError::from(malformed(&e.to_string()));
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|e| fail(e.into()))?;
        let value = HeaderValue::from_bytes(&header.value).map_err(|e| fail(e.into()))?;
        headers.try_insert(name, value).map_err(|e| malformed(&e.to_string()))?;
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
    // Ends when the coordinator says so, or when this answer is dropped.
    let until_finished =
        finished.into_stream().filter_map(|_| async { None::<DataFusionResult<CoordinatorToWorkerMsg>> });
    let from_worker = worker.coordinator_channel(headers, request, until_finished.boxed());
    let from_worker = STOP.scope(part.stop.clone(), from_worker).await;
    let from_worker = from_worker.map_err(|error| {
        let error = EngineError::from(error);
        // Readers of the part's rows get this error.
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
    Ok(rows_of(cluster, rows))
}

/// The partitions of a part. Waits if the part has not been set yet; fails once its query has ended.
pub(crate) async fn begin(
    cluster: &Cluster,
    worker: &Worker,
    request: ExecuteTaskRequest,
) -> Result<Vec<SendableRecordBatchStream>> {
    let query = request.task_key.query_id;
    let meter = cluster.meters.as_ref().map(|meters| meters.of_task(&request.task_key));
    tokio::select! {
        biased;
        begun = metered(meter.clone(), worker.execute_task(request)) => match begun {
            Ok((streams, _)) => {
                Ok(streams.into_iter().map(|stream| metered_batches(meter.clone(), stream)).collect())
            }
            // The library has no type for it.
            Err(error) if error.to_string().contains("timed-out while waiting for the plan") => {
                let message = "a node was asked for rows of a query whose plan did not reach it: \
                               the coordinator is lost, or can't reach the node";
                let failure = Failure { retryable: true, ..Failure::new(ErrorCode::Peer, message) };
                Err(EngineError::Remote(failure))
            }
            Err(error) => Err(error.into()),
        },
        why = cluster.queries.ended(&query) => Err(why),
    }
}

fn scan(cluster: &Arc<Cluster>, scan: Scan) -> Result<Answer> {
    if scan.partitions != 1 {
        return Err(malformed("a scan of several partitions").into());
    }
    let context = cluster.task_context();
    let plan = ShardScanExec::from_message(scan, &context)?;
    Ok(rows_of(cluster, plan.execute(0, context)?))
}

fn rows_of(cluster: &Cluster, rows: SendableRecordBatchStream) -> Answer {
    // Without metadata, which would have to be the same in each batch.
    let found = rows.schema();
    let fields = found.fields().iter().map(|f| Field::new(f.name(), f.data_type().clone(), f.is_nullable()));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let wanted = schema.clone();
    let rows = rows.map(move |batch| {
        batch
            .and_then(|batch| with_schema(&batch, &wanted))
            .map_err(|error| EngineError::from(error).to_failure())
    });
    let encoders = Some(cluster.exchange.encoders(&schema));
    Answer { encoders, ..Answer::new(schema, None, Box::pin(rows)) }
}
