//! SQL on one node, or on all nodes of a cluster: DataFusion over the tables that were registered.
//!
//! [`Engine`] holds the tables and runs queries; as a
//! [`Service`](lightship_transport::net::Service) it answers them over the wire.
//! It reads only: what was not registered can't be opened by any statement.
//!
//! The only crate that sees DataFusion; nothing of it shows in the interface.

mod arithmetic;
mod cluster;
mod dialect;
mod error;
mod explained;
mod files;
mod functions;
#[cfg(fuzzing)]
pub mod fuzzing;
mod load;
mod optimizer;
mod pushdown;
mod query;
mod remote;
mod service;
mod statement;
mod stop;
mod threads;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use lightship_sources::{ReadOptions, Source, TableName};
use tokio::sync::watch;

use cluster::{Cluster, Local, LocalTable};
use files::SharedReads;
use load::{Load, Room};
use threads::Threads;

pub use cluster::{
    ClusterConfig, ClusterLoad, Member, MemberChange, MemberState, OverlayConfig, OverlayState, Wire,
    change_members,
};
pub use error::{EngineError, Result};
pub use explained::{Edge, Explained, StageExplained, TaskExplained};
pub use query::Running;
pub use statement::{STATEMENT_BYTES_MAX, STATEMENT_DEPTH_MAX, STATEMENT_READS_MAX};
pub use threads::{Part, THREAD_NAME};

/// How an engine runs.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Memory that running queries may take together, in bytes; sorts, joins and
    /// aggregations beyond it go to disk or fail.
    pub query_memory_bytes: usize,
    /// Memory, in bytes, for rows that all queries together are reading and sending. When it is used up, further
    /// queries wait until others end.
    pub row_memory_bytes: usize,
    /// Memory that in-memory tables may take together, in bytes.
    pub table_memory_bytes: usize,
    /// How many parts of a query run at once, where few queries do. More parts mean more memory.
    pub partitions: usize,
    /// Where queries put what does not fit their memory; the system's folder for
    /// temporary files where absent.
    pub spill_folder: Option<PathBuf>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            query_memory_bytes: 1 << 30,
            row_memory_bytes: 1 << 30,
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
    /// What tells it from all other tables of databases, where it is one.
    pub identity: Option<String>,
    /// In a cluster: all nodes that have the table read the same files. Otherwise each has rows of its own.
    pub shared: bool,
}

/// Tables, and what runs SQL over them.
pub struct Engine {
    context: SessionContext,
    config: EngineConfig,
    tables: BTreeMap<String, Registered>,
    cluster: Option<Arc<Cluster>>,
    threads: Arc<Threads>,
    load: Load,
    room: Room,
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
        context.register_object_store(
            ObjectStoreUrl::local_filesystem().as_ref(),
            Arc::<SharedReads>::default(),
        );
        let (tables, threads, load) = (BTreeMap::new(), Threads::start()?, Load::default());
        let room = Room::new(config.row_memory_bytes as u64);
        Ok(Self { context, config, tables, cluster: None, threads, load, room })
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
        // Only to be compared with those of other nodes.
        let identity = lightship_sources::identity(source.as_ref(), &table).await.unwrap_or_else(|error| {
            tracing::warn!(name, %error, "other nodes that serve the same table would not be noticed");
            None
        });
        let table = remote::SourceTable::open(source, table, options).await?;
        self.register(name, Arc::new(table), Registered { identity, ..Registered::empty(name) })
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
            identity: table.identity.clone(),
            shared: table.shared,
        };
        let local =
            Local { context: self.context.clone(), tables: self.tables.values().map(table).collect() };
        self.cluster = Some(Cluster::join(config, local, self.threads.clone()).await?);
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
}

impl Registered {
    fn empty(name: &str) -> Self {
        let schema = Arc::new(Schema::empty());
        Self {
            name: name.into(),
            schema,
            rows: None,
            memory_bytes: 0,
            path: None,
            identity: None,
            shared: false,
        }
    }
}
