//! A query, from its text to its rows.

use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::datasource::source_as_provider;
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{DmlStatement, LogicalPlan, WriteOp};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, SendableRecordBatchStream, StatisticsArgs, StatisticsContext,
    execute_stream,
};
use datafusion::prelude::SQLOptions;
use datafusion::sql::parser::Statement;
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt};
use lightship_transport::net::{Delivery, Prepared, Rows};
use lightship_wire::control::{ErrorCode, Failure, Reason};
use tokio::sync::TryAcquireError;
use uuid::Uuid;

use crate::cluster::{self, Cluster};
use crate::duplicates::Aliases;
use crate::error::{EngineError, Result};
use crate::files::damage;
use crate::load::{self, RowMemory};
use crate::meter::{Meter, ObservedQuery, metered, metered_batches};
use crate::other_joins::{self, Alternatives};
use crate::range::table::RangeTable;
use crate::stop::{StopFlag, StopGuard, stoppable};
use crate::threads::{QueryPhase, Threads};
use crate::unknown::{table_names, unknown_name};
use crate::{Engine, case, parameters, statement};

/// How long a cluster query waits for others to end.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);

impl Engine {
    /// Plans a query and starts it.
    ///
    /// # Errors
    /// [`EngineError::Sql`] for statements that are not valid SQL or name something that does not exist,
    /// [`EngineError::Forbidden`] for statements that do more than read,
    /// [`EngineError::TooComplex`] for statements that are too large or too deep.
    pub fn query<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Result<Running>> {
        self.execute(sql, None)
    }

    /// Plans a query and starts it, with the values of its parameters: the columns of `parameters`, in order, which has one
    /// row. They are cast to the types that the statement requires.
    ///
    /// # Errors
    /// As [`Engine::query`]; [`EngineError::Parameters`] if there are fewer or more values than parameters, or one can't
    /// be cast.
    pub fn execute<'a>(
        &'a self,
        sql: &'a str,
        parameters: Option<&'a RecordBatch>,
    ) -> BoxFuture<'a, Result<Running>> {
        Box::pin(self.start(sql, parameters))
    }

    /// Plans a statement without running it.
    ///
    /// # Errors
    /// As [`Engine::query`].
    pub fn prepare<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Result<Prepared>> {
        Box::pin(async move {
            let mut state = match &self.cluster {
                None => self.context.state(),
                Some(cluster) => {
                    cluster.members().tried().await;
                    cluster.state()?
                }
            };
            set_time(&mut state);
            let text = sql.to_owned();
            self.threads.block(QueryPhase::Planning, || async move { prepare(&text, &state).await }).await
        })
    }

    async fn start(&self, sql: &str, parameters: Option<&RecordBatch>) -> Result<Running> {
        let arrived = Instant::now();
        let meter = self.config.meters.as_ref().map(|_| Arc::<Meter>::default());
        let counted = self.load.count();
        let (state, slot) = match &self.cluster {
            None => {
                let mut state = self.context.state();
                let parts = counted.parts(self.config.partitions);
                state.config_mut().options_mut().execution.target_partitions = parts;
                (state, None)
            }
            Some(cluster) => {
                let slot = match cluster.query_slots.clone().try_acquire_owned() {
                    Err(TryAcquireError::NoPermits) => {
                        let began = Instant::now();
                        let slot = cluster.query_slots.clone().acquire_owned();
                        let slot = tokio::time::timeout(QUEUE_TIMEOUT, slot).await.map_err(|_| {
                            let message = "too many cluster queries are running on this node";
                            EngineError::Remote(Failure {
                                retryable: true,
                                ..Failure::new(ErrorCode::Busy, message)
                            })
                        })?;
                        if let Some(meter) = &meter {
                            meter.queued(arrived, began);
                        }
                        slot.ok()
                    }
                    other => other.ok(),
                };
                cluster.members().tried().await;
                (cluster.state()?, slot)
            }
        };
        let stop = StopFlag::default();
        let stopped = stop.guard();
        let (text, cluster, mut state, planning) =
            (sql.to_owned(), self.cluster.clone(), state, meter.clone());
        let parameters = parameters.cloned();
        let room = Room { memory: self.room.clone(), meter: meter.clone(), arrived };
        state.config_mut().set_extension(Arc::new(stop));
        set_time(&mut state);
        let begun = self.threads.block(QueryPhase::Planning, || async move {
            metered(planning, begin(&text, parameters.as_ref(), &state, cluster, room)).await
        });
        let Begun { query, schema, rows_estimate, batches } = begun.await?;
        let batches = metered_batches(meter.clone(), batches);
        let observed = self.config.meters.as_ref().zip(meter);
        let observed = observed.map(|(meters, meter)| meters.begin(query, sql, meter, arrived));
        let rows = batches.map(|batch| batch.map_err(|error| EngineError::from(error).to_failure()));
        // A query stops counting when its last rows are produced, even if the client has not taken them.
        let rows = self.threads.rows(Box::pin(rows), (slot, counted));
        Ok(Running { schema, rows_estimate, rows, stopped, observed, _threads: self.threads.clone() })
    }
}

/// The room for a query's rows.
struct Room {
    memory: RowMemory,
    /// Counts the wait for it.
    meter: Option<Arc<Meter>>,
    /// When the query arrived.
    arrived: Instant,
}

/// A query that is ready to produce rows.
struct Begun {
    /// Its number, by which all nodes know it.
    query: Uuid,
    schema: SchemaRef,
    rows_estimate: Option<u64>,
    batches: SendableRecordBatchStream,
}

/// Plans and starts a query. Needs a thread with a large stack.
async fn begin(
    sql: &str,
    parameters: Option<&RecordBatch>,
    state: &SessionState,
    cluster: Option<Arc<Cluster>>,
    room: Room,
) -> Result<Begun> {
    let (plan, aliases) = plan_of(sql, state).await?;
    check_allowed(&plan)?;
    let nullable = parameters.map(|_| parameters::nullable(&plan));
    let plan = match parameters {
        Some(parameters) => parameters::bind(plan, parameters)?,
        None if parameters::may_be_in(sql) => parameters::bind_none(plan)?,
        None => plan,
    };
    // If the client has gone, the query ends here.
    tokio::task::yield_now().await;
    if let Some(cluster) = &cluster
        && let Some((inner, run)) = explained(&plan)
    {
        return Box::pin(explain(cluster, state, inner, run)).await;
    }
    let logical = plan;
    let plan = state.create_physical_plan(&logical).await?;
    let alternatives =
        Alternatives::to(&plan, &logical, state, cluster.as_ref().map(|cluster| (cluster, sql)))?;
    let plan = match &cluster {
        None => stoppable(plan, state.config())?,
        Some(_) => cluster::until_error(plan)?,
    };
    let query = cluster::query_of(&plan)?.unwrap_or_else(Uuid::new_v4);
    let (rows_estimate, _) = size_of(plan.as_ref());
    tracing::debug!(partitions = plan.output_partitioning().partition_count(), "query planned");
    let schema = plan.schema();
    tokio::task::yield_now().await;
    let bytes = load::rows_bytes(plan.as_ref());
    let scans = damage::scans(&plan);
    let runtime = state.runtime_env().clone();
    let state = state.clone();
    let execute = move || {
        let batches = match cluster {
            Some(cluster) => cluster.execute(plan, &state)?,
            None => execute_stream(plan, state.task_ctx())?,
        };
        Ok::<_, DataFusionError>(other_joins::or_another(batches, alternatives))
    };
    let batches = match room.memory.take_now(bytes) {
        Some(held) => held_by(execute()?, held),
        None => {
            tracing::debug!(bytes, "query waits for memory");
            let begun = async move {
                let began = Instant::now();
                let held = room.memory.take(bytes).await;
                if let Some(meter) = &room.meter {
                    meter.queued(room.arrived, began);
                }
                execute().map(|batches| held_by(batches, held))
            };
            let batches = futures::stream::once(begun).try_flatten();
            Box::pin(RecordBatchStreamAdapter::new(schema.clone(), batches))
        }
    };
    let batches = damage::named(batches, scans, runtime);
    let batches = match nullable {
        Some(nullable) => parameters::with_nulls(batches, &nullable),
        None => batches,
    };
    let schema = aliases.restore(&batches.schema());
    Ok(Begun { query, schema, rows_estimate, batches: aliases.restore_rows(batches) })
}

/// Plans a statement for its columns and parameters. Needs a thread with a large stack.
async fn prepare(sql: &str, state: &SessionState) -> Result<Prepared> {
    let (plan, aliases) = plan_of(sql, state).await?;
    check_allowed(&plan)?;
    let parameters = parameters::fields(&plan)?;
    let is_update = matches!(plan, LogicalPlan::Dml(_));
    let is_ordered = is_ordered(&plan);
    let columns = if explained(&plan).is_some() {
        Arc::new(plan.schema().as_arrow().clone())
    } else {
        // The logical plan's types can differ.
        state.create_physical_plan(&parameters::bind_null(plan)?).await?.schema()
    };
    Ok(Prepared { columns: aliases.restore(&columns), parameters, is_update, is_ordered })
}

/// Whether the statement asks for an order of its rows.
fn is_ordered(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) | LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) => true,
        LogicalPlan::Projection(projection) => is_ordered(&projection.input),
        LogicalPlan::Limit(limit) => is_ordered(&limit.input),
        LogicalPlan::SubqueryAlias(alias) => is_ordered(&alias.input),
        LogicalPlan::Filter(filter) => is_ordered(&filter.input),
        _ => false,
    }
}

/// Refuses statements that do more than read, or add rows to a range file.
fn check_allowed(plan: &LogicalPlan) -> Result<()> {
    let allowed = SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(inserts_into_range_file(plan))
        .with_allow_statements(false);
    allowed.verify_plan(plan).map_err(|e| EngineError::Forbidden(e.message().into_owned()))
}

/// Plans a statement. Names of columns in another case are corrected. If its select list repeats names, which DataFusion refuses, the repeated ones have
/// aliases in the plan.
async fn plan_of(sql: &str, state: &SessionState) -> Result<(LogicalPlan, Aliases)> {
    let options = &state.config_options().sql_parser;
    let mut statement = statement::parse(sql, options)?;
    let (mut aliases, mut corrections) = (Aliases::default(), 0);
    loop {
        // The planner consumes the statement.
        let error = match state.statement_to_plan(statement.clone()).await {
            Ok(plan) => return Ok((plan, aliases)),
            Err(error) => error,
        };
        if corrections < case::CORRECTIONS_MAX && case::correct(&error, &mut statement) {
            corrections += 1;
            continue;
        }
        if aliases.is_empty() {
            aliases = Aliases::add_to(&mut statement, sql);
        } else {
            return Err(with_reason(error, &statement, state));
        }
        if aliases.is_empty() {
            return Err(with_reason(error, &statement, state));
        }
    }
}

/// The error of a statement that can't be planned, with what programs may react to.
fn with_reason(error: DataFusionError, statement: &Statement, state: &SessionState) -> EngineError {
    let mut error = EngineError::from(error);
    if let EngineError::Sql { reason: reason @ None, hint, .. } = &mut error {
        *reason = unknown_name(statement, state);
        if *reason == Some(Reason::UndefinedTable) && hint.is_none() {
            *hint = table_names(state);
        }
    }
    error
}

/// Sets the time that `now()` and the like return in a query. It has whole microseconds, as in PostgreSQL: not all clients
/// can read more.
fn set_time(state: &mut SessionState) {
    state.mark_start_execution();
    if let Some(time) = &mut state.execution_props_mut().query_execution_start_time {
        *time -= Duration::from_nanos((time.timestamp_subsec_nanos() % 1000).into());
    }
}

/// Whether a statement adds rows to a range file.
fn inserts_into_range_file(plan: &LogicalPlan) -> bool {
    let LogicalPlan::Dml(DmlStatement { target, op: WriteOp::Insert(_), .. }) = plan else { return false };
    source_as_provider(target).is_ok_and(|table| table.is::<RangeTable>())
}

/// The same rows, in a stream that keeps `held` until it is dropped.
fn held_by(batches: SendableRecordBatchStream, held: impl Send + 'static) -> SendableRecordBatchStream {
    let schema = batches.schema();
    let batches = batches.inspect(move |_| {
        let _held = &held;
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, batches))
}

/// The query of an EXPLAIN, and whether to run it.
fn explained(plan: &LogicalPlan) -> Option<(&LogicalPlan, bool)> {
    match plan {
        LogicalPlan::Explain(explain) => Some((&explain.plan, false)),
        LogicalPlan::Analyze(analyze) => Some((&analyze.input, true)),
        _ => None,
    }
}

/// The result of an EXPLAIN: two rows, the plan as text for people and as JSON for programs.
async fn explain(
    cluster: &Arc<Cluster>,
    state: &SessionState,
    query: &LogicalPlan,
    run: bool,
) -> Result<Begun> {
    let explained = other_joins::explain(cluster, query, state, run).await?;
    let json = serde_json::to_string(&explained).map_err(|e| EngineError::Internal(e.to_string()))?;
    let kinds = StringArray::from(vec!["distributed_plan", "distributed_plan_json"]);
    let texts = StringArray::from(vec![explained.plan, json]);
    let columns: [(_, ArrayRef); 2] = [("plan_type", Arc::new(kinds)), ("plan", Arc::new(texts))];
    let rows = RecordBatch::try_from_iter(columns).map_err(DataFusionError::from)?;
    let schema = rows.schema();
    let batches = futures::stream::once(async move { Ok(rows) });
    let batches = Box::pin(RecordBatchStreamAdapter::new(schema.clone(), batches));
    Ok(Begun { query: Uuid::new_v4(), schema, rows_estimate: Some(2), batches })
}

/// Estimates of the rows and bytes that a plan will produce, if known.
pub(crate) fn size_of(plan: &dyn ExecutionPlan) -> (Option<u64>, Option<u64>) {
    let Ok(statistics) = StatisticsContext::new().compute(plan, &StatisticsArgs::new()) else {
        return (None, None);
    };
    let number = |precision: &Precision<usize>| precision.get_value().map(|&value| value as u64);
    (number(&statistics.num_rows), number(&statistics.total_byte_size))
}

/// A running query. Dropping it stops the query.
pub struct Running {
    schema: SchemaRef,
    rows_estimate: Option<u64>,
    rows: Rows,
    stopped: StopGuard,
    observed: Option<ObservedQuery>,
    /// The engine may be dropped before its queries.
    _threads: Arc<Threads>,
}

impl Running {
    /// Columns of the result.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Rows that the planner expects, if it has an estimate.
    pub fn rows_estimate(&self) -> Option<u64> {
        self.rows_estimate
    }

    /// Where the service that sends the rows counts what it sends.
    pub(crate) fn delivery(&self) -> Arc<Delivery> {
        self.observed.as_ref().map(ObservedQuery::delivery).unwrap_or_default()
    }

    /// The batches, with errors in the form that is sent to clients.
    pub fn into_rows(self) -> Rows {
        let Self { mut rows, stopped, mut observed, _threads, .. } = self;
        Box::pin(futures::stream::poll_fn(move |context| {
            let _kept = (&stopped, &_threads);
            let Some(query) = &mut observed else { return rows.poll_next_unpin(context) };
            query.asked();
            let next = ready!(rows.poll_next_unpin(context));
            match &next {
                Some(Ok(_)) => {}
                ended => {
                    let failure = ended.as_ref().and_then(|failed| failed.as_ref().err());
                    query.end(failure.map(|failure| failure.message.clone()));
                }
            }
            // Also after the last rows: the query ends when these are dropped, because they have been sent.
            query.gave();
            Poll::Ready(next)
        }))
    }
}
