//! SQL on one node, or on all nodes of a cluster: DataFusion over the tables that were registered.
//!
//! [`Engine`] holds the tables and runs queries; as a
//! [`Service`](lightship_transport::net::Service) it answers them over the wire.
//! It reads only: what was not registered can't be opened by any statement.
//!
//! The only crate that sees DataFusion; nothing of it shows in the interface.

mod cluster;
mod error;
mod files;
#[cfg(fuzzing)]
pub mod fuzzing;
mod pushdown;
mod remote;
mod service;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::common::stats::Precision;
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, SendableRecordBatchStream, StatisticsArgs, StatisticsContext,
    execute_stream,
};
use datafusion::prelude::{SQLOptions, SessionConfig, SessionContext};
use futures::StreamExt;
use lightship_sources::{ReadOptions, Source, TableName};
use lightship_wire::control::{ErrorCode, Failure};
use tokio::sync::{OwnedSemaphorePermit, watch};

use cluster::{Cluster, Local, LocalTable};

pub use cluster::{ClusterConfig, ClusterLoad, Member, OverlayConfig, OverlayState, Wire};
pub use error::{EngineError, Result};

/// A query of a cluster waits so long for others to end.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);

/// How an engine runs.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Memory that running queries may take together, in bytes; sorts, joins and
    /// aggregations beyond it go to disk or fail.
    pub query_memory_bytes: usize,
    /// Memory that in-memory tables may take together, in bytes.
    pub table_memory_bytes: usize,
    /// How many parts of a query run at once. More parts mean more memory.
    pub partitions: usize,
    /// Where queries put what does not fit their memory; the system's folder for
    /// temporary files where absent.
    pub spill_folder: Option<PathBuf>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            query_memory_bytes: 1 << 30,
            table_memory_bytes: 4 << 30,
            partitions: std::thread::available_parallelism().map_or(1, usize::from),
            spill_folder: None,
        }
    }
}

/// A table of an engine.
#[derive(Debug, Clone)]
pub struct Registered {
    /// Name in SQL.
    pub name: String,
    /// Columns.
    pub schema: SchemaRef,
    /// Rows, where they were counted.
    pub rows: Option<u64>,
    /// Bytes that the table holds in memory.
    pub memory_bytes: usize,
    /// Its file or folder, where it is one.
    pub path: Option<PathBuf>,
    /// In a cluster: all nodes that have the table read the same files. Otherwise each has rows of its own.
    pub shared: bool,
}

/// Tables, and what runs SQL over them.
pub struct Engine {
    context: SessionContext,
    config: EngineConfig,
    tables: BTreeMap<String, Registered>,
    cluster: Option<Arc<Cluster>>,
}

impl Engine {
    /// An engine without tables.
    ///
    /// # Errors
    /// When the folder for spills can't be had.
    pub fn new(config: EngineConfig) -> Result<Self> {
        let mut runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(FairSpillPool::new(config.query_memory_bytes)))
            // A file that was added to a folder is there for the next query.
            .with_object_list_cache_limit(0);
        if let Some(folder) = &config.spill_folder {
            runtime = runtime.with_temp_file_path(folder);
        }
        let mut session = SessionConfig::new()
            .with_target_partitions(config.partitions.max(1))
            .with_information_schema(true);
        let options = session.options_mut();
        options.sql_parser.collect_spans = true;
        // A sort sets this aside for merging what it spilled; in a small memory the default is all of it.
        let reserved = &mut options.execution.sort_spill_reservation_bytes;
        *reserved = (*reserved).min(config.query_memory_bytes / 8);
        // Strings, not views (docs/decisions/0003-strings-not-views.md).
        options.sql_parser.map_string_types_to_utf8view = false;
        let context = SessionContext::new_with_config_rt(session, Arc::new(runtime.build()?));
        Ok(Self { context, config, tables: BTreeMap::new(), cluster: None })
    }

    /// The tables, by name.
    pub fn tables(&self) -> impl Iterator<Item = &Registered> {
        self.tables.values()
    }

    /// Registers a file, or a folder of files of one kind, under a name.
    ///
    /// # Errors
    /// When there is nothing to read, or it can't be read.
    pub async fn register_path(&mut self, name: &str, path: &Path) -> Result<()> {
        let table = files::open(&self.context, path).await?;
        self.register(name, table, Registered { path: Some(path.into()), ..Registered::empty(name) })
    }

    /// As [`Engine::register_path`], of files that all nodes of a cluster read: each reads a share of them.
    ///
    /// # Errors
    /// When there is nothing to read, or it can't be read.
    pub async fn register_shared_path(&mut self, name: &str, path: &Path) -> Result<()> {
        let table = files::open(&self.context, path).await?;
        let registered = Registered { path: Some(path.into()), shared: true, ..Registered::empty(name) };
        self.register(name, table, registered)
    }

    /// Registers a file or folder, and holds all its rows in memory.
    ///
    /// # Errors
    /// [`EngineError::Limit`] when the rows don't fit the memory left for tables.
    pub async fn register_in_memory(&mut self, name: &str, path: &Path) -> Result<()> {
        let table = files::open(&self.context, path).await?;
        let used: usize = self.tables.values().map(|t| t.memory_bytes).sum();
        let left = self.config.table_memory_bytes.saturating_sub(used);
        let loaded = files::load(&self.context, table, name, left, self.config.partitions.max(1)).await?;
        let registered = Registered {
            rows: Some(loaded.rows),
            memory_bytes: loaded.bytes,
            path: Some(path.into()),
            ..Registered::empty(name)
        };
        self.register(name, Arc::new(loaded.table), registered)
    }

    /// Registers a table of a database: read when queried, with columns, simple
    /// conditions and limits left to the database.
    ///
    /// # Errors
    /// When the database has no such table or can't be reached.
    pub async fn register_source(
        &mut self,
        name: &str,
        source: Arc<dyn Source>,
        table: TableName,
        options: ReadOptions,
    ) -> Result<()> {
        let table = remote::SourceTable::open(source, table, options).await?;
        self.register(name, Arc::new(table), Registered::empty(name))
    }

    fn register(&mut self, name: &str, table: Arc<dyn TableProvider>, registered: Registered) -> Result<()> {
        if self.tables.contains_key(name) {
            return Err(EngineError::Config(format!("two tables are called `{name}`")));
        }
        let registered = Registered { schema: table.schema(), ..registered };
        self.context.register_table(datafusion::common::TableReference::bare(name), table)?;
        self.tables.insert(name.into(), registered);
        Ok(())
    }

    /// Takes part in a cluster, with the tables that are registered now. Queries then are over the tables of all
    /// its nodes, and run on all of them.
    ///
    /// # Errors
    /// When the node's name is no address, or a table can't be looked at.
    pub async fn join(&mut self, config: ClusterConfig) -> Result<()> {
        let table = |table: &Registered| LocalTable {
            name: table.name.clone(),
            schema: table.schema.clone(),
            path: table.path.clone(),
            shared: table.shared,
        };
        let local =
            Local { context: self.context.clone(), tables: self.tables.values().map(table).collect() };
        self.cluster = Some(Cluster::join(config, local).await?);
        Ok(())
    }

    /// The nodes of the cluster as this one sees them, by name; none where it is in none.
    pub fn cluster_nodes(&self) -> Vec<Member> {
        self.cluster.as_ref().map(|cluster| cluster.nodes()).unwrap_or_default()
    }

    /// Counts changes of what [`Engine::cluster_nodes`] answers.
    pub fn watch_cluster(&self) -> Option<watch::Receiver<u64>> {
        self.cluster.as_ref().and_then(|cluster| cluster.members().subscribe())
    }

    /// What this node holds for queries of the cluster.
    pub fn cluster_load(&self) -> ClusterLoad {
        self.cluster.as_ref().map(|cluster| cluster.load()).unwrap_or_default()
    }

    /// The overlay that rows go over, as this node sees it; none where it takes part in none. What
    /// [`Engine::watch_cluster`] counts includes that it opens and ends.
    pub fn cluster_overlay(&self) -> Option<OverlayState> {
        self.cluster.as_ref().and_then(|cluster| cluster.overlay())
    }

    /// Says goodbye to the other nodes: they no longer count on this one.
    pub fn leave(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.members().leave();
        }
    }

    /// Plans a query and begins it.
    ///
    /// # Errors
    /// [`EngineError::Sql`] for what is not SQL or names what is not there,
    /// [`EngineError::Forbidden`] for statements that do more than read.
    pub async fn query(&self, sql: &str) -> Result<Running> {
        let (state, place) = match &self.cluster {
            None => (self.context.state(), None),
            Some(cluster) => {
                let place = cluster.places.clone().acquire_owned();
                let place = tokio::time::timeout(QUEUE_TIMEOUT, place).await.map_err(|_| {
                    let message = "as many queries of the cluster as may are running here";
                    EngineError::Remote(Failure { retryable: true, ..Failure::new(ErrorCode::Busy, message) })
                })?;
                cluster.members().tried().await;
                (cluster.state()?, place.ok())
            }
        };
        let plan = state.create_logical_plan(sql).await?;
        let reads_only =
            SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        reads_only.verify_plan(&plan).map_err(|e| EngineError::Forbidden(e.message().into_owned()))?;
        if let Some(cluster) = &self.cluster
            && let Some((inner, run)) = explained(&plan)
        {
            return self.explain(cluster, &state, inner, run).await;
        }
        let plan = state.create_physical_plan(&plan).await?;
        let (rows_estimate, _) = size_of(plan.as_ref());
        tracing::debug!(partitions = plan.output_partitioning().partition_count(), "query planned");
        let schema = plan.schema();
        let batches = execute_stream(plan, state.task_ctx())?;
        Ok(Running { schema, rows_estimate, batches, place })
    }
}

/// The query of an EXPLAIN, and whether it is to be run.
fn explained(plan: &LogicalPlan) -> Option<(&LogicalPlan, bool)> {
    match plan {
        LogicalPlan::Explain(explain) => Some((&explain.plan, false)),
        LogicalPlan::Analyze(analyze) => Some((&analyze.input, true)),
        _ => None,
    }
}

impl Engine {
    /// The answer to an EXPLAIN: two rows, the plan for people and, as JSON, for programs.
    async fn explain(
        &self,
        cluster: &Arc<Cluster>,
        state: &SessionState,
        query: &LogicalPlan,
        run: bool,
    ) -> Result<Running> {
        let plan = state.create_physical_plan(query).await?;
        let nodes = cluster::snapshot_of(state)?;
        let explained = cluster::explain::explain(cluster, &nodes, plan, state.task_ctx(), run).await?;
        let json = serde_json::to_string(&explained).map_err(|e| EngineError::Internal(e.to_string()))?;
        let kinds = StringArray::from(vec!["distributed_plan", "distributed_plan_json"]);
        let texts = StringArray::from(vec![explained.plan, json]);
        let columns: [(_, ArrayRef); 2] = [("plan_type", Arc::new(kinds)), ("plan", Arc::new(texts))];
        let rows = RecordBatch::try_from_iter(columns).map_err(DataFusionError::from)?;
        let schema = rows.schema();
        let batches = futures::stream::once(async move { Ok(rows) });
        let batches = Box::pin(RecordBatchStreamAdapter::new(schema.clone(), batches));
        Ok(Running { schema, rows_estimate: Some(2), batches, place: None })
    }
}

/// Rows and bytes that a plan is expected to give, where that is known.
fn size_of(plan: &dyn ExecutionPlan) -> (Option<u64>, Option<u64>) {
    let Ok(statistics) = StatisticsContext::new().compute(plan, &StatisticsArgs::new()) else {
        return (None, None);
    };
    let number = |precision: &Precision<usize>| precision.get_value().map(|&value| value as u64);
    (number(&statistics.num_rows), number(&statistics.total_byte_size))
}

impl Registered {
    fn empty(name: &str) -> Self {
        let schema = Arc::new(Schema::empty());
        Self { name: name.into(), schema, rows: None, memory_bytes: 0, path: None, shared: false }
    }
}

/// A query that has begun. Dropping it stops it.
pub struct Running {
    schema: SchemaRef,
    rows_estimate: Option<u64>,
    batches: SendableRecordBatchStream,
    /// Among the queries of the cluster, until the last row.
    place: Option<OwnedSemaphorePermit>,
}

impl Running {
    /// Columns of the result.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Rows that the planner expects, where it has an idea.
    pub fn rows_estimate(&self) -> Option<u64> {
        self.rows_estimate
    }

    /// The batches, with errors that a client understands.
    pub fn into_rows(self) -> lightship_transport::net::Rows {
        // What has failed gives back what it holds, even if it is still held itself.
        let begun = Some((self.batches, self.place));
        Box::pin(futures::stream::unfold(begun, |begun| async move {
            let (mut batches, place) = begun?;
            match batches.next().await? {
                Ok(batch) => Some((Ok(batch), Some((batches, place)))),
                Err(error) => Some((Err(EngineError::from(error).to_failure()), None)),
            }
        }))
    }
}
