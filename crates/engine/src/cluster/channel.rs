//! datafusion-distributed's channel to a worker, over Lightship's protocol.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

use arrow_array::{RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use async_trait::async_trait;
use datafusion::arrow::compute::take_record_batch;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, Label, MetricBuilder, MetricValue, Time};
use datafusion_distributed::{
    BytesMetricExt, ChannelResolver, CoordinatorToWorkerMsg, ExecuteTaskRequest, GetWorkerInfoRequest,
    GetWorkerInfoResponse, ProducerHead, SetPlanRequest, WorkerChannel, WorkerToCoordinatorMsg,
};
use futures::future::try_join_all;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use http::HeaderMap;
use lightship_wire::Codec;
use lightship_wire::control::Plan;
use url::Url;

use super::edge_plans::EdgePlans;
use super::metrics::TaskReport;
use super::peer::{Peer, Reply};
use super::request::{Execute, Head, Header, RequestKind, SetPlan, message_at};
use super::{Cluster, VERSION, explain, handler};
use crate::error::EngineError;

/// Rows of a batch where memory is not short, as DataFusion has it.
const BATCH_ROWS: usize = 8192;

/// Opens a channel to a node.
pub(crate) struct Channels(pub(crate) Weak<Cluster>);

#[async_trait]
impl ChannelResolver for Channels {
    async fn get_worker_client_for_url(&self, url: &Url) -> Result<Box<dyn WorkerChannel>> {
        let name = url.authority();
        let cluster = self.0.upgrade().ok_or_else(|| EngineError::gone(name))?;
        if name == cluster.name() {
            return Ok(Box::new(OwnChannel(cluster)));
        }
        #[cfg(feature = "grpc")]
        if let Some(grpc) = cluster.grpc.get() {
            return grpc.channel(name).await;
        }
        let peer = cluster.peer(name)?;
        Ok(Box::new(PeerChannel { peer, cluster }))
    }
}

/// The channel to this node itself.
struct OwnChannel(Arc<Cluster>);

#[async_trait]
impl WorkerChannel for OwnChannel {
    async fn coordinator_channel(
        &mut self,
        headers: HeaderMap,
        set: SetPlanRequest,
        to_worker: BoxStream<'static, CoordinatorToWorkerMsg>,
        _: ExecutionPlanMetricsSet,
        _: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<WorkerToCoordinatorMsg>>> {
        let (part, _) = self.0.queries.begin(set.task_key)?;
        let key = set.task_key;
        let worker = self.0.worker();
        let taken = worker.coordinator_channel(headers, set, to_worker.map(Ok).boxed());
        let taken = handler::STOP.scope(part.stop.clone(), taken).await;
        let reports = taken.map_err(|error| {
            let error = EngineError::from(error);
            // Readers of the part's rows get this error.
            self.0.queries.end_with(&key, error.to_failure());
            error
        })?;
        Ok(with(part, reports))
    }

    async fn execute_task(
        &mut self,
        _: HeaderMap,
        request: ExecuteTaskRequest,
        _: ExecutionPlanMetricsSet,
        _: &Arc<TaskContext>,
    ) -> Result<Vec<BoxStream<'static, Result<RecordBatch>>>> {
        let streams = handler::begin(&self.0, &self.0.worker(), request).await?;
        Ok(streams.into_iter().map(|stream| stream.boxed()).collect())
    }

    async fn get_worker_info(&mut self, _: GetWorkerInfoRequest) -> Result<GetWorkerInfoResponse> {
        Ok(GetWorkerInfoResponse { version: VERSION.into() })
    }
}

/// A stream that holds `kept` until it ends.
fn with<K: Send + 'static, T: 'static>(kept: K, stream: BoxStream<'static, T>) -> BoxStream<'static, T> {
    stream
        .map(move |item| {
            let _ = &kept;
            item
        })
        .boxed()
}

/// The channel to another node.
struct PeerChannel {
    peer: Arc<Peer>,
    cluster: Arc<Cluster>,
}

/// The transfer plan of answers other than rows of tables.
fn small() -> Plan {
    Plan { codec: None, ..Plan::default() }
}

impl PeerChannel {
    /// Sends a part of a plan; returns once the node has accepted it.
    async fn send(
        &self,
        headers: HeaderMap,
        set: SetPlanRequest,
        context: &Arc<TaskContext>,
    ) -> Result<Reply, EngineError> {
        let kind = RequestKind::SetPlan(SetPlan {
            key: set.task_key.into(),
            tasks: set.task_count as u64,
            plan: set.plan.encode(context)?,
            url: set.target_worker_url.into(),
            query_start_ns: set.query_start_time_ns as u64,
            headers: headers
                .iter()
                .map(|(name, value)| Header { name: name.to_string(), value: value.as_bytes().to_vec() })
                .collect(),
        });
        self.peer.request(kind, small(), None).await
    }
}

#[async_trait]
impl WorkerChannel for PeerChannel {
    /// Sends a part of a plan. The answer stays open until the query ends, so that the node notices if this
    /// one is lost.
    async fn coordinator_channel(
        &mut self,
        headers: HeaderMap,
        set: SetPlanRequest,
        to_worker: BoxStream<'static, CoordinatorToWorkerMsg>,
        _: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<WorkerToCoordinatorMsg>>> {
        if !set.work_unit_feed_declarations.is_empty() {
            return Err(DataFusionError::NotImplemented("work unit feeds to other nodes".into()));
        }
        let (part, _) = self.cluster.queries.begin(set.task_key)?;
        let key = set.task_key;
        let sent = self.send(headers, set, context).await;
        let reply = sent.inspect_err(|error| {
            // Readers of the part's rows get this error.
            self.cluster.queries.end_with(&key, error.to_failure());
        })?;
        let finish = finish(self.peer.clone(), RequestKind::Finish(key.into()), to_worker);
        let reports = futures::stream::try_unfold((reply, 0, None), |(mut reply, row, rows)| async move {
            let (row, rows): (usize, Option<RecordBatch>) = match rows {
                Some(_) => (row, rows),
                None => (0, reply.next().await?),
            };
            let Some(rows) = rows else { return Ok(None) };
            let report: TaskReport = message_at(&rows, row)?;
            let rest = (row + 1 < rows.num_rows()).then_some(rows);
            Ok::<_, DataFusionError>(Some((
                WorkerToCoordinatorMsg::TaskMetrics(report.to_metrics()),
                (reply, row + 1, rest),
            )))
        });
        // Both run concurrently; the answer ends after the node was notified that the query has ended.
        let finished = futures::stream::once(finish).filter_map(|done| async { done.err().map(Err) });
        // If this part fails, the query's other streams fail with the same error.
        let queries = self.cluster.queries.clone();
        let reports = futures::stream::select(reports, finished).map_err(move |error: DataFusionError| {
            let error = EngineError::from(error);
            queries.end_with(&key, error.to_failure());
            error.into()
        });
        Ok(with(part, reports.boxed()))
    }

    async fn execute_task(
        &mut self,
        _: HeaderMap,
        request: ExecuteTaskRequest,
        metrics: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<Vec<BoxStream<'static, Result<RecordBatch>>>> {
        let head = match request.producer_head {
            ProducerHead::None => None,
            ProducerHead::BroadcastExec { output_partitions } => {
                Some(Head::Broadcast(output_partitions as u64))
            }
            ProducerHead::RepartitionExec { partitioning } => {
                Some(Head::Repartition(partitioning.encode(context)?))
            }
        };
        let partitions = request.target_partition_start..request.target_partition_end;
        let planned = context.session_config().get_extension::<EdgePlans>();
        let edge = planned.and_then(|edges| edges.get(request.task_key.stage_id));
        let (plan, leases) = self.cluster.exchange().leases(partitions.len(), edge);
        let node = Label::new("node", self.peer.name.clone());
        let from = self.peer.name.clone();
        let measure = || MetricBuilder::new(&metrics).with_label(node.clone());
        let bytes = measure().bytes_counter(explain::BYTES);
        // Most streams use one codec, and counters that stay at zero would be reported too.
        let decoded = Arc::new(Codec::ALL.map(|codec| {
            let (metrics, node) = (metrics.clone(), node.clone());
            LazyLock::new(move || {
                MetricBuilder::new(&metrics).with_label(node).global_counter(explain::decoded(codec))
            })
        }));
        let rows_read = measure().global_counter(explain::ROWS);
        let wait = Time::new();
        measure().build(MetricValue::Time { name: explain::WAIT.into(), time: wait.clone() });
        let time = Time::new();
        measure().build(MetricValue::Time { name: explain::EDGE_TIME.into(), time: time.clone() });
        let links = self.cluster.clone();
        let meter = EdgeMeter::new(partitions.len(), time, move |bytes, took| {
            links.links.arrived(&from, bytes, took);
        });
        // Each partition has its own stream, so that reading one never waits for room that another takes.
        let replies = partitions.zip(leases).map(|(partition, lease)| {
            let (key, partition) = (request.task_key.into(), partition as u64);
            let kind = RequestKind::Execute(Execute { key, partition, head: head.clone() });
            self.peer.request(kind, plan, Some(lease))
        });
        let query = request.task_key.query_id;
        let replies: Vec<Reply> = tokio::select! {
            biased;
            replies = try_join_all(replies) => replies?,
            why = self.cluster.queries.ended(&query) => return Err(why.into()),
        };
        let over_overlay = replies.iter().filter(|reply| reply.is_over_overlay()).count();
        if over_overlay > 0 {
            measure().global_counter(explain::OVERLAY).add(over_overlay);
        }
        let streams = replies.into_iter().map(|reply| {
            let measured = (bytes.clone(), decoded.clone(), rows_read.clone(), wait.clone(), meter.clone());
            let (queries, query) = (self.cluster.queries.clone(), request.task_key.query_id);
            let slot = self.cluster.queries.keep(&request.task_key.query_id, reply);
            futures::stream::try_unfold(slot, move |slot| {
                let ((bytes, decoded, rows_read, wait, meter), queries) = (measured.clone(), queries.clone());
                async move {
                    let mut reply = slot.take().ok_or_else(|| queries.why(&query))?;
                    let waiting = Instant::now();
                    let rows = tokio::select! {
                        biased;
                        rows = reply.next() => rows?,
                        why = queries.ended(&query) => return Err(why.into()),
                    };
                    wait.add_elapsed(waiting);
                    let Some(rows) = rows else {
                        bytes.add_bytes(reply.bytes_wire as usize);
                        for (counter, bytes) in decoded.iter().zip(reply.decoded_bytes) {
                            if bytes > 0 {
                                counter.add(bytes as usize);
                            }
                        }
                        meter.ended(reply.bytes_wire);
                        return Ok(None);
                    };
                    rows_read.add(rows.num_rows());
                    slot.put(reply);
                    Ok::<_, DataFusionError>(Some((rows, slot)))
                }
            })
            .boxed()
        });
        let batch_rows = context.session_config().batch_size();
        Ok(streams.map(|rows| with_batches_of(batch_rows, rows)).collect())
    }

    async fn get_worker_info(&mut self, _: GetWorkerInfoRequest) -> Result<GetWorkerInfoResponse> {
        // Nodes of other versions were refused when they joined.
        Ok(GetWorkerInfoResponse { version: VERSION.into() })
    }
}

/// The same rows. Where batches have to be small because memory is, those of messages are divided: a sort needs memory for
/// about two copies of a batch, and fails without.
pub(super) fn with_batches_of(
    batch_rows: usize,
    rows: BoxStream<'static, Result<RecordBatch>>,
) -> BoxStream<'static, Result<RecordBatch>> {
    if batch_rows >= BATCH_ROWS {
        return rows;
    }
    let divided = move |batch: RecordBatch| {
        let all = batch.num_rows();
        let batch_rows = if shares_values(&batch.schema()) { all.max(1) } else { batch_rows };
        let parts = (0..all).step_by(batch_rows).map(move |first| {
            let rows = batch_rows.min(all - first);
            if rows == all || batch.num_columns() == 0 {
                return Ok(batch.slice(first, rows));
            }
            // A slice would keep all of the message, and be counted as such.
            let rows = UInt64Array::from_iter_values(first as u64..(first + rows) as u64);
            Ok(take_record_batch(&batch, &rows)?)
        });
        futures::stream::iter(parts)
    };
    rows.map_ok(divided).try_flatten().boxed()
}

/// Whether some of the rows would keep the values of all, however they are taken.
fn shares_values(schema: &Schema) -> bool {
    use DataType::{BinaryView, Dictionary, Utf8View};
    let shares = |field: &&Field| matches!(field.data_type(), Utf8View | BinaryView | Dictionary(_, _));
    schema.flattened_fields().iter().any(shares)
}

/// Times all streams of one task from one other node.
struct EdgeMeter<F> {
    requested: Instant,
    bytes: AtomicU64,
    streams_left: AtomicUsize,
    /// From the request to the end of the last stream.
    time: Time,
    arrived: F,
}

impl<F: Fn(u64, Duration)> EdgeMeter<F> {
    /// `arrived` is called with the bytes and the time of all streams after the last has ended.
    fn new(streams: usize, time: Time, arrived: F) -> Arc<Self> {
        let streams_left = AtomicUsize::new(streams);
        Arc::new(Self { requested: Instant::now(), bytes: AtomicU64::new(0), streams_left, time, arrived })
    }

    fn ended(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.streams_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let took = self.requested.elapsed();
            self.time.add_duration(took);
            (self.arrived)(self.bytes.load(Ordering::Relaxed), took);
        }
    }
}

/// Waits until the query has ended, then notifies the node.
async fn finish(
    peer: Arc<Peer>,
    kind: RequestKind,
    to_worker: BoxStream<'static, CoordinatorToWorkerMsg>,
) -> Result<()> {
    to_worker.for_each(|_| futures::future::ready(())).await;
    let mut reply = peer.request(kind, small(), None).await?;
    while reply.next().await?.is_some() {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int64Array, RecordBatchOptions, StringArray};

    use super::*;

    #[test]
    fn rows_of_views_and_dictionaries_share_values() {
        let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
        let list = DataType::new_list(DataType::Utf8View, true);
        let structure = DataType::Struct(vec![Field::new("a", DataType::Utf8, true)].into());
        for (data_type, expected) in [(dictionary, true), (list, true), (structure, false)] {
            let schema =
                Schema::new(vec![Field::new("n", DataType::Int8, true), Field::new("c", data_type, true)]);
            assert_eq!(shares_values(&schema), expected, "{schema}");
        }
    }

    #[tokio::test]
    async fn batches_are_divided_where_they_have_to_be_small() {
        let texts = StringArray::from_iter_values((0..1100).map(|row| format!("row {row}")));
        let columns: [(_, ArrayRef); 2] =
            [("n", Arc::new(Int64Array::from_iter_values(0..1100))), ("t", Arc::new(texts))];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let options = RecordBatchOptions::new().with_row_count(Some(700));
        let without_columns = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options);
        for (batch, sizes) in [(batch, vec![512, 512, 76]), (without_columns.unwrap(), vec![512, 188])] {
            let all =
                futures::stream::iter([Ok(batch.clone()), Ok(batch.slice(0, 0)), Ok(batch.slice(0, 9))]);
            let divided: Vec<_> = with_batches_of(512, all.boxed()).try_collect().await.unwrap();
            assert_eq!(
                divided.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(),
                [sizes, vec![9]].concat()
            );
            let (last, expected) = (&divided[1], batch.slice(512, divided[1].num_rows()));
            assert_eq!(*last, expected);
            assert!(batch.num_columns() == 0 || last.get_array_memory_size() < batch.get_array_memory_size());
            let all = futures::stream::iter([Ok(batch.clone())]);
            let whole: Vec<_> = with_batches_of(BATCH_ROWS, all.boxed()).try_collect().await.unwrap();
            assert_eq!(whole, [batch]);
        }
    }

    #[test]
    fn the_time_of_an_edge_is_that_from_the_request_to_the_end_of_its_last_stream() {
        let time = Time::new();
        let arrived = Arc::new(AtomicU64::new(0));
        let told = arrived.clone();
        let meter = EdgeMeter::new(2, time.clone(), move |bytes, _| told.store(bytes, Ordering::Relaxed));
        let (requested, after) = (Instant::now(), Duration::from_millis(5));
        while requested.elapsed() < after {}
        meter.ended(30);
        assert_eq!((time.value(), arrived.load(Ordering::Relaxed)), (0, 0), "a stream is left");
        meter.ended(12);
        assert_eq!(arrived.load(Ordering::Relaxed), 42);
        assert!(time.value() as u128 >= after.as_nanos(), "{time}");
    }
}
