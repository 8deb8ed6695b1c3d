//! SQL on one node, or on all nodes of a cluster: DataFusion over registered tables.
//!
//! [`Engine`] holds the tables and runs queries; as a
//! [`Service`](lightship_transport::net::Service) it answers them over the wire.
//! It is read-only: statements can read the registered tables and nothing else.
//!
//! This is the only crate that uses DataFusion. Its public interface has none of DataFusion's types, and its futures are
//! boxed: an `async fn` would be compiled again by each crate that awaits it, with DataFusion's planner.

mod arithmetic;
mod case;
mod cluster;
mod dialect;
mod duplicates;
mod error;
mod explained;
mod files;
mod functions;
#[cfg(fuzzing)]
pub mod fuzzing;
mod information_schema;
mod load;
mod memory_pool;
mod meter;
mod optimizer;
mod other_joins;
mod parameters;
mod pushdown;
mod query;
mod range;
mod remote;
mod service;
mod spill;
mod statement;
mod stop;
mod threads;
mod unknown;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::future::BoxFuture;
use lightship_sources::file_options::FileOptions;
use lightship_sources::{ReadOptions, Source, TableName};
use tokio::sync::watch;

use cluster::{Cluster, Local, LocalTable};
use files::SharedReads;
use load::{RowMemory, RunningQueries};
use memory_pool::QueryMemory;
use range::{RangeFiles, WithRangeFiles};
use threads::Threads;

pub use cluster::{
    ClusterConfig, ClusterLoad, Member, MemberChange, MemberState, OverlayConfig, OverlayState, Wire,
    change_members,
};
pub use error::{EngineError, Result};
pub use explained::{
    Choice, Cost, Edge, ExpectedEdge, Explained, LeftOut, StageExplained, Strategy, TaskExplained,
};
pub use files::{FileLocation, STDIN, is_known_file};
pub use meter::{QueryObserver, QueryOutcome, QueryTimes, TaskMeters};
pub use query::Running;
pub use statement::{STATEMENT_BYTES_MAX, STATEMENT_DEPTH_MAX, STATEMENT_READS_MAX};
pub use threads::{QueryPhase, THREAD_NAME};

/// The time zone of `timestamptz`, `now()` and the like.
const TIME_ZONE: &str = "UTC";
/// Sorts that a query may run at once: for each partition, those of both inputs of a few joins.
const SORTS_AT_ONCE: usize = 32;
/// Memory of a partition of a query for each row of a batch. With less memory, batches have fewer rows.
const BATCH_ROW_MEMORY_BYTES: usize = 16 << 10;
const BATCH_ROWS_MIN: usize = 512;

/// Settings of an engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Memory shared by all running queries, in bytes. Sorts, joins and aggregations
    /// that need more spill to disk, or fail if they can't.
    pub query_memory_bytes: usize,
    /// Memory, in bytes, for rows that all queries together are reading and sending. When it is used up, further
    /// queries wait until others end.
    pub row_memory_bytes: usize,
    /// Memory shared by all in-memory tables, in bytes.
    pub table_memory_bytes: usize,
    /// Partitions of a query that run at once while few queries are running. More partitions need
    /// more memory.
    pub partitions: usize,
    /// Folder for data that queries spill; `None` is the system's folder for temporary files.
    pub spill_folder: Option<PathBuf>,
    /// Counts the processor time of each task of a query, if it is to be counted.
    pub meters: Option<Arc<TaskMeters>>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            query_memory_bytes: 1 << 30,
            row_memory_bytes: 1 << 30,
            table_memory_bytes: 4 << 30,
            partitions: std::thread::available_parallelism().map_or(1, usize::from),
            spill_folder: None,
            meters: None,
        }
    }
}

/// How the files of a table are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileAccess {
    /// By each query.
    Own,
    /// By each query; in a cluster, all nodes that have the table read the same files, each a share of them.
    Shared,
    /// Once, into memory.
    InMemory,
}

/// A table of an engine.
#[derive(Debug, Clone)]
pub struct TableEntry {
    /// Name in SQL.
    pub name: String,
    /// Columns.
    pub schema: SchemaRef,
    /// Number of rows, if known.
    pub rows: Option<u64>,
    /// Bytes that the table holds in memory.
    pub memory_bytes: usize,
    /// Its files, if it has some.
    pub files: Option<FileLocation>,
    /// Identifies a database table among all databases; `None` for files, or if it can't be determined.
    pub identity: Option<String>,
    /// In a cluster: all nodes that have the table read the same files. Otherwise each node has its own rows.
    pub shared: bool,
}

/// Runs SQL over registered tables.
pub struct Engine {
    context: SessionContext,
    config: EngineConfig,
    tables: BTreeMap<String, TableEntry>,
    cluster: Option<Arc<Cluster>>,
    threads: Arc<Threads>,
    load: RunningQueries,
    room: RowMemory,
    range_files: Option<Arc<RangeFiles>>,
}

impl Engine {
    /// Creates an engine without tables.
    ///
    /// # Errors
    /// When the spill folder can't be used, or threads can't be started.
    pub fn new(config: EngineConfig) -> Result<Self> {
        let spill = spill::factory(config.spill_folder.as_ref())?;
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(QueryMemory::new(config.query_memory_bytes)))
            .with_disk_manager_builder(DiskManagerBuilder::default().with_temp_file_factory(spill))
            // Listings are not cached, so the next query sees files that were added to a folder.
            .with_object_list_cache_limit(0);
        // `information_schema` is one of this crate.
        let mut session = SessionConfig::new()
            .with_target_partitions(config.partitions.max(1))
            .with_information_schema(false);
        // A merge holds a few batches of each spilled file.
        let batch_rows = config.query_memory_bytes / config.partitions.max(1) / BATCH_ROW_MEMORY_BYTES;
        let batch_rows = batch_rows.clamp(BATCH_ROWS_MIN, session.batch_size());
        session = session.with_batch_size(batch_rows);
        let options = session.options_mut();
        options.sql_parser.collect_spans = true;
        options.execution.time_zone = Some(TIME_ZONE.into());
        // Each sort reserves this to merge what it spilled. The default would take all of a small memory.
        let reserved = &mut options.execution.sort_spill_reservation_bytes;
        *reserved = (*reserved).min(config.query_memory_bytes / SORTS_AT_ONCE);
        // Strings, not views (docs/decisions/0003-strings-not-views.md).
        options.sql_parser.map_string_types_to_utf8view = false;
        let mut state = SessionStateBuilder::new()
            .with_config(session)
            .with_runtime_env(Arc::new(runtime.build()?))
            .with_default_features()
            .with_physical_optimizer_rules(optimizer::rules())
            .build();
        arithmetic::register(&mut state)?;
        let pool = state.runtime_env().memory_pool.clone();
        functions::register(&mut state, &pool)?;
        state.add_analyzer_rule(arithmetic::rule());
        let context = SessionContext::new_with_state(state);
        if let Some(catalog) = context.catalog("datafusion") {
            information_schema::register(&context.state(), catalog.as_ref(), None)?;
        }
        context.register_object_store(
            ObjectStoreUrl::local_filesystem().as_ref(),
            Arc::<SharedReads>::default(),
        );
        let (tables, threads, load) = (BTreeMap::new(), Threads::start()?, RunningQueries::default());
        let room = RowMemory::new(config.row_memory_bytes as u64);
        Ok(Self { context, config, tables, cluster: None, threads, load, room, range_files: None })
    }

    /// The tables, by name.
    pub fn tables(&self) -> impl Iterator<Item = &TableEntry> {
        self.tables.values()
    }

    /// Registers a file, a folder of files of one kind, or the files that a pattern such as `data/*.csv` matches,
    /// under a name. The path may have options of [`FileOptions`](lightship_sources::file_options::FileOptions).
    ///
    /// # Errors
    /// When there are no files to read, or they can't be read.
    pub fn register_path<'a>(&'a mut self, name: &'a str, path: &'a Path) -> BoxFuture<'a, Result<()>> {
        self.register_files(name, path.into(), FileAccess::Own)
    }

    /// Registers a file, a folder of files of one kind, or objects of an object store, under a name.
    ///
    /// # Errors
    /// When there are no files to read, or they can't be read; [`EngineError::Limit`] when they don't fit in the memory left
    /// for tables.
    pub fn register_files<'a>(
        &'a mut self,
        name: &'a str,
        location: FileLocation,
        access: FileAccess,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let table = location.open(&self.context).await?;
            let entry = TableEntry { files: Some(location), ..TableEntry::empty(name) };
            match access {
                FileAccess::Own => self.register(name, table, entry),
                FileAccess::Shared => self.register(name, table, TableEntry { shared: true, ..entry }),
                FileAccess::InMemory => {
                    let used: usize = self.tables.values().map(|t| t.memory_bytes).sum();
                    let left = self.config.table_memory_bytes.saturating_sub(used);
                    let partitions = self.config.partitions.max(1);
                    let loaded = files::load(&self.context, table, name, left, partitions).await?;
                    let (rows, memory_bytes) = (Some(loaded.rows), loaded.bytes);
                    self.register(name, Arc::new(loaded.table), TableEntry { rows, memory_bytes, ..entry })
                }
            }
        })
    }

    /// Like [`Engine::register_path`], for files that all nodes of a cluster read: each node reads
    /// a share of them.
    ///
    /// # Errors
    /// When there are no files to read, or they can't be read.
    pub fn register_shared_path<'a>(
        &'a mut self,
        name: &'a str,
        path: &'a Path,
    ) -> BoxFuture<'a, Result<()>> {
        self.register_files(name, path.into(), FileAccess::Shared)
    }

    /// Registers a file or folder, and loads all its rows into memory.
    ///
    /// # Errors
    /// [`EngineError::Limit`] when the rows don't fit in the memory left for tables.
    pub fn register_in_memory<'a>(&'a mut self, name: &'a str, path: &'a Path) -> BoxFuture<'a, Result<()>> {
        self.register_files(name, path.into(), FileAccess::InMemory)
    }

    /// Registers a table of a database. Each query reads it from the database, which selects
    /// the columns and applies simple conditions and limits.
    ///
    /// # Errors
    /// When the database has no such table or can't be reached.
    pub fn register_source<'a>(
        &'a mut self,
        name: &'a str,
        source: Arc<dyn Source>,
        table: TableName,
        options: ReadOptions,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            // Only compared with the identities of other nodes' tables.
            let identity = lightship_sources::identity(source.as_ref(), &table).await.unwrap_or_else(|error| {
            tracing::warn!(name, %error, "cannot identify the table; duplicates on other nodes go undetected");
            None
        });
            let table = remote::SourceTable::open(source, table, options).await?;
            self.register(name, Arc::new(table), TableEntry { identity, ..TableEntry::empty(name) })
        })
    }

    /// Registers bytes that are read once, by the first query that reads the table: standard input. `location` may have
    /// options, as in `-?format=csv`.
    ///
    /// # Errors
    /// When their format can't be read, or their beginning is not in it.
    pub fn register_stdin<'a>(
        &'a mut self,
        name: &'a str,
        location: &'a Path,
        bytes: Box<dyn std::io::Read + Send>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (_, options) = FileOptions::split(location)?;
            let table = files::stdin::open(&self.context, bytes, options).await?;
            self.register(name, table, TableEntry::empty(name))
        })
    }

    fn register(&mut self, name: &str, table: Arc<dyn TableProvider>, registered: TableEntry) -> Result<()> {
        if self.tables.contains_key(name) {
            return Err(EngineError::Config(format!("two tables are called `{name}`")));
        }
        let registered = TableEntry { schema: table.schema(), ..registered };
        self.context.register_table(datafusion::common::TableReference::bare(name), table)?;
        self.tables.insert(name.into(), registered);
        Ok(())
    }

    /// Opens the range files in a folder, or creates the folder. Clients may then create, change and drop range
    /// files, and query them as tables. `cluster` is the configuration for [`Engine::join`], if the node is going
    /// to join a cluster; then buckets may be on all nodes that have range files. Requests run on the runtime that
    /// calls this. No range file gets the name of a table that is registered before.
    ///
    /// # Errors
    /// When the folder can't be used or its data is damaged.
    pub fn open_range_files(&mut self, folder: &Path, cluster: Option<&ClusterConfig>) -> Result<()> {
        let files = Arc::new(RangeFiles::open(folder, cluster)?);
        files.reserve(self.tables.keys().cloned());
        if let Some(catalog) = self.context.catalog("datafusion")
            && let Some(others) = catalog.schema("public")
        {
            catalog.register_schema("public", Arc::new(WithRangeFiles { others, files: files.clone() }))?;
            information_schema::register(&self.context.state(), catalog.as_ref(), Some(files.clone()))?;
        }
        self.range_files = Some(files);
        Ok(())
    }

    /// The names of the range files that this node knows.
    pub fn range_files(&self) -> Vec<String> {
        self.range_files.as_ref().map(|files| files.names()).unwrap_or_default()
    }

    /// Ends splits of range files that were interrupted when the node last ran. Call it when the node can be
    /// reached and has joined its cluster.
    pub fn recover_range_files(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(files) = &self.range_files {
                files.recover().await;
            }
        })
    }

    /// Joins a cluster with the tables registered so far. From then on, queries read the tables of
    /// all nodes and run on all nodes.
    ///
    /// # Errors
    /// When the node's name is not an address, or the files of a table can't be read.
    pub fn join(&mut self, config: ClusterConfig) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let table = |table: &TableEntry| LocalTable {
                name: table.name.clone(),
                schema: table.schema.clone(),
                files: table.files.clone(),
                identity: table.identity.clone(),
                shared: table.shared,
            };
            let local = Local {
                range_files: self.range_files.clone(),
                context: self.context.clone(),
                tables: self.tables.values().map(table).collect(),
            };
            let cluster =
                Cluster::join(config, local, self.threads.clone(), self.config.meters.clone()).await?;
            if let Some(files) = &self.range_files {
                files.joined(&cluster);
            }
            self.cluster = Some(cluster);
            Ok(())
        })
    }

    /// The nodes of the cluster as this one sees them, sorted by name; empty outside a cluster.
    pub fn cluster_nodes(&self) -> Vec<Member> {
        self.cluster.as_ref().map(|cluster| cluster.nodes()).unwrap_or_default()
    }

    /// Counts changes to [`Engine::cluster_nodes`]; `None` outside a cluster.
    pub fn watch_cluster(&self) -> Option<watch::Receiver<u64>> {
        self.cluster.as_ref().and_then(|cluster| cluster.members().subscribe())
    }

    /// Resources that this node holds for cluster queries.
    pub fn cluster_load(&self) -> ClusterLoad {
        self.cluster.as_ref().map(|cluster| cluster.load()).unwrap_or_default()
    }

    /// Bytes that the operators of queries hold, those of other nodes' queries among them.
    pub fn query_memory(&self) -> usize {
        self.context.runtime_env().memory_pool.reserved()
    }

    /// The overlay that carries rows, as this node sees it; `None` if the node is not part of one.
    /// [`Engine::watch_cluster`] also counts when the overlay opens and ends.
    pub fn cluster_overlay(&self) -> Option<OverlayState> {
        self.cluster.as_ref().and_then(|cluster| cluster.overlay())
    }

    /// Leaves the cluster in order: tells the other nodes that this one is going.
    pub fn leave(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.members().leave();
        }
    }

    /// Stores what is only written now and then, such as what nodes sent in earlier queries. To be called once no query
    /// runs, before a node stops.
    pub async fn store(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.store().await;
        }
    }
}

/// Columns from the text between the parentheses of CREATE TABLE, as in `id bigint, name text`.
///
/// # Errors
/// If the text is not a list of columns.
pub fn columns(text: &str) -> BoxFuture<'_, Result<SchemaRef>> {
    Box::pin(async move {
        let mut config = SessionConfig::new();
        config.options_mut().sql_parser.map_string_types_to_utf8view = false;
        config.options_mut().execution.time_zone = Some(TIME_ZONE.into());
        let context = SessionContext::new_with_config(config);
        let sql = format!("create table t ({text})");
        let statement = statement::parse(&sql, &context.state().config_options().sql_parser)?;
        let plan = context.state().statement_to_plan(statement).await?;
        let LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(table)) = &plan else {
            return Err(EngineError::Config(format!("{text} is not a list of columns")));
        };
        Ok(Arc::new(table.input.schema().as_arrow().clone()))
    })
}

impl TableEntry {
    fn empty(name: &str) -> Self {
        let schema = Arc::new(Schema::empty());
        Self {
            name: name.into(),
            schema,
            rows: None,
            memory_bytes: 0,
            files: None,
            identity: None,
            shared: false,
        }
    }
}
