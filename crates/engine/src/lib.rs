//! SQL on one node: DataFusion over the tables that were registered.
//!
//! [`Engine`] holds the tables and runs queries; as a
//! [`Service`](lightship_transport::net::Service) it answers them over the wire.
//! It reads only: what was not registered can't be opened by any statement.
//!
//! The only crate that sees DataFusion; nothing of it shows in the interface.

mod error;
mod files;
mod pushdown;
mod remote;
mod service;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::{
    ExecutionPlanProperties, SendableRecordBatchStream, StatisticsArgs, StatisticsContext, execute_stream,
};
use datafusion::prelude::{SQLOptions, SessionConfig, SessionContext};
use lightship_sources::{ReadOptions, Source, TableName};

pub use error::{EngineError, Result};

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
}

/// Tables, and what runs SQL over them.
pub struct Engine {
    context: SessionContext,
    config: EngineConfig,
    tables: BTreeMap<String, Registered>,
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
        Ok(Self { context, config, tables: BTreeMap::new() })
    }

    /// The tables, by name.
    pub fn tables(&self) -> impl Iterator<Item = &Registered> {
        self.tables.values()
    }

    /// Registers a file, or a folder of files of one kind, under a name.
    ///
    /// # Errors
    /// When there is nothing to read, or it can't be read.
    pub async fn register_path(&mut self, name: &str, path: &std::path::Path) -> Result<()> {
        let table = files::open(&self.context, path).await?;
        self.register(name, table, None, 0)
    }

    /// Registers a file or folder, and holds all its rows in memory.
    ///
    /// # Errors
    /// [`EngineError::Limit`] when the rows don't fit the memory left for tables.
    pub async fn register_in_memory(&mut self, name: &str, path: &std::path::Path) -> Result<()> {
        let table = files::open(&self.context, path).await?;
        let used: usize = self.tables.values().map(|t| t.memory_bytes).sum();
        let left = self.config.table_memory_bytes.saturating_sub(used);
        let loaded = files::load(&self.context, table, name, left, self.config.partitions.max(1)).await?;
        self.register(name, Arc::new(loaded.table), Some(loaded.rows), loaded.bytes)
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
        self.register(name, Arc::new(table), None, 0)
    }

    fn register(
        &mut self,
        name: &str,
        table: Arc<dyn TableProvider>,
        rows: Option<u64>,
        memory_bytes: usize,
    ) -> Result<()> {
        if self.tables.contains_key(name) {
            return Err(EngineError::Config(format!("two tables are called `{name}`")));
        }
        let schema = table.schema();
        self.context.register_table(datafusion::common::TableReference::bare(name), table)?;
        let registered = Registered { name: name.into(), schema, rows, memory_bytes };
        self.tables.insert(name.into(), registered);
        Ok(())
    }

    /// Plans a query and begins it.
    ///
    /// # Errors
    /// [`EngineError::Sql`] for what is not SQL or names what is not there,
    /// [`EngineError::Forbidden`] for statements that do more than read.
    pub async fn query(&self, sql: &str) -> Result<Running> {
        let plan = self.context.state().create_logical_plan(sql).await?;
        let reads_only =
            SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        reads_only.verify_plan(&plan).map_err(|e| EngineError::Forbidden(e.message().into_owned()))?;
        let plan = self.context.state().create_physical_plan(&plan).await?;
        let rows_estimate = StatisticsContext::new()
            .compute(plan.as_ref(), &StatisticsArgs::new())
            .ok()
            .and_then(|statistics| statistics.num_rows.get_value().copied())
            .map(|rows| rows as u64);
        tracing::debug!(partitions = plan.output_partitioning().partition_count(), "query planned");
        let schema = plan.schema();
        let batches = execute_stream(plan, self.context.task_ctx())?;
        Ok(Running { schema, rows_estimate, batches })
    }
}

/// A query that has begun. Dropping it stops it.
pub struct Running {
    schema: SchemaRef,
    rows_estimate: Option<u64>,
    batches: SendableRecordBatchStream,
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
        use futures::TryStreamExt;
        Box::pin(self.batches.map_err(|error| EngineError::from(error).to_failure()))
    }
}
