//! Several nodes that answer one query.
//!
//! The plan is datafusion-distributed's (`datafusion-distributed` 4.0): it cuts a query into stages, and
//! stages into tasks. What is here: who takes part ([`members`]), which rows each node has ([`table`],
//! [`shard`]), which node does what ([`route`]), and the way of plans, rows and measurements between them
//! ([`channel`], [`work`]), which is Lightship's own wire.

mod ask;
mod catalog;
mod change;
mod channel;
mod exchange;
pub(crate) mod explain;
#[cfg(feature = "grpc")]
mod grpc;
mod members;
mod metrics;
mod overlay;
mod peer;
mod planner;
mod queries;
mod reply;
mod route;
mod shard;
mod table;
mod until_error;
mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow_schema::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SessionState, SessionStateBuilder, TaskContext};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_distributed::{DistributedExt, Worker, WorkerQueryContext};
use lightship_transport::net::{Answer, ClientConfig, Intake};
use lightship_wire::cluster::Task;
use lightship_wire::control::Failure;
use tokio::sync::{OnceCell, Semaphore};

use self::ask::Table;
pub use self::change::{MemberChange, change_members};
use self::channel::Channels;
use self::exchange::Exchange;
use self::members::{Members, MembersConfig};
use self::overlay::Overlay;
pub use self::overlay::{OverlayConfig, OverlayState};
pub(crate) use self::peer::carry;
use self::peer::{Dial, Peer};
use self::queries::Queries;
use self::shard::ShardCodec;
use self::table::ClusterSchema;
pub(crate) use self::until_error::until_error;
use crate::error::{EngineError, Result};
use crate::stop::StopFlag;
use crate::threads::Threads;
use crate::{arithmetic, functions};

/// What nodes must have in common: plans are bytes of the engine's own making, which no other version reads.
pub(crate) const VERSION: &str = concat!(
    "lightship ",
    env!("CARGO_PKG_VERSION"),
    ", cluster 2, datafusion 55.2, datafusion-distributed 4.0"
);

/// A node that takes no connection in this time is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What carries plans and rows between nodes. Who takes part they tell each other over Lightship's, whichever it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wire {
    /// Lightship's own.
    #[default]
    Lightship,
    /// datafusion-distributed's own, at the port after the node's, for comparison: without tokens and TLS.
    #[cfg(feature = "grpc")]
    Grpc,
}

/// How a node takes part in a cluster.
#[derive(Clone)]
pub struct ClusterConfig {
    /// This node's address as others reach it, HOST:PORT; also its name.
    pub name: String,
    /// Addresses of other nodes; one is enough, if it is there. A node's own is passed over.
    pub join: Vec<String>,
    /// Folder where the node keeps which nodes belong to the cluster, so that it misses them after a restart. Without
    /// it the node knows nobody when it restarts, but for `join`.
    pub state_folder: Option<PathBuf>,
    /// Tables in parts are refused until this number of nodes has joined, including this one; 0 for no limit.
    pub expect_nodes: usize,
    /// Tables of which this node gives up the part that it had when it ran last.
    pub drop_parts: Vec<String>,
    /// The token by which nodes know each other; empty for none.
    pub token: String,
    /// How to verify other nodes; none is plain TCP.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Memory for rows on their way from other nodes, in bytes, of all queries together; each
    /// stream beyond it still has 128 KiB.
    pub exchange_bytes: u64,
    /// Sockets to one node of this host at most; what needs more fails. To nodes of other hosts there is one, with
    /// at most 4096 circuits.
    pub connections_per_node_max: usize,
    /// Whether nodes of this host are asked by circuits, too, as if they were on another.
    pub trunk_on_host: bool,
    /// Queries that this node plans and runs at once; others wait.
    pub queries_max: usize,
    /// A quiet node is pinged after this long, and lost after three times this. Shorter than a busy node's
    /// longest pause, it loses nodes that are there.
    pub ping_interval: Duration,
    /// The same on all nodes.
    pub wire: Wire,
    /// Bytes of the largest message of a stream between nodes; where memory is short they are smaller.
    pub message_bytes_max: u32,
    /// Its part in overlays: rows go over one where all nodes have this, and more peers than they may have connections
    /// to.
    pub overlay: Option<OverlayConfig>,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            join: Vec::new(),
            state_folder: None,
            expect_nodes: 0,
            drop_parts: Vec::new(),
            token: String::new(),
            tls: None,
            exchange_bytes: 256 << 20,
            connections_per_node_max: 512,
            trunk_on_host: false,
            queries_max: 16,
            ping_interval: Duration::from_secs(3),
            wire: Wire::default(),
            message_bytes_max: 1 << 20,
            overlay: None,
        }
    }
}

/// How a node is, as another one sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberState {
    /// It answers.
    Joined,
    /// It has not been tried yet.
    Connecting,
    /// It could not be reached since this node began.
    Unreachable,
    /// It has said goodbye. Its rows are missed.
    Stopped,
    /// It has gone without a word. Its rows are missed.
    Lost,
    /// It was removed from the cluster. Its rows no longer count.
    Removed,
}

impl std::fmt::Display for MemberState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Joined => "joined",
            Self::Connecting => "connecting",
            Self::Unreachable => "unreachable",
            Self::Stopped => "stopped",
            Self::Lost => "lost",
            Self::Removed => "removed",
        })
    }
}

/// A node as another one sees it.
#[derive(Debug, Clone)]
pub struct Member {
    /// HOST:PORT.
    pub name: String,
    /// It is the one that was asked.
    pub is_self: bool,
    /// How it is.
    pub state: MemberState,
    /// Why it is not there, if it is not.
    pub why: Option<String>,
}

impl Member {
    /// Whether it has joined, and is another node.
    pub fn is_met(&self) -> bool {
        !self.is_self && self.state == MemberState::Joined
    }
}

/// What a node holds for the queries of a cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClusterLoad {
    /// Parts of other nodes' plans.
    pub parts: usize,
    /// Memory for rows on their way here.
    pub exchange_bytes: u64,
}

/// A node's part in a cluster.
pub(crate) struct Cluster {
    members: Arc<Members>,
    overlay: Option<Arc<Overlay>>,
    exchange: Arc<Exchange>,
    queries: Arc<Queries>,
    /// Places for queries that are planned here.
    pub(crate) places: Arc<Semaphore>,
    local: Local,
    /// Where parts of plans are decoded and run.
    threads: Arc<Threads>,
    worker: OnceCell<Worker>,
    /// In place of our own wire.
    #[cfg(feature = "grpc")]
    grpc: OnceCell<grpc::Grpc>,
}

/// The tables that this node has.
pub(crate) struct Local {
    pub(crate) context: SessionContext,
    /// By name: columns, and files whose state is compared.
    pub(crate) tables: Vec<LocalTable>,
}

pub(crate) struct LocalTable {
    pub(crate) name: String,
    pub(crate) schema: SchemaRef,
    pub(crate) path: Option<PathBuf>,
    /// What tells it from all other tables of databases.
    pub(crate) identity: Option<String>,
    pub(crate) shared: bool,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cluster").field(&self.members.me).finish()
    }
}

impl Cluster {
    /// Begins to take part.
    ///
    /// # Errors
    /// When the name is no address, a table's size can't be found out, or its part in overlays makes no sense.
    pub(crate) async fn join(
        config: ClusterConfig,
        local: Local,
        threads: Arc<Threads>,
    ) -> Result<Arc<Self>> {
        let mut tables = Vec::new();
        for table in &local.tables {
            tables.push(describe(&local.context, table).await?);
        }
        let client = ClientConfig {
            token: config.token.clone(),
            connect_timeout: CONNECT_TIMEOUT,
            welcome_timeout: ClientConfig::default().welcome_timeout,
            ping_interval: config.ping_interval,
            shared_memory: false,
            peer: true,
        };
        let overlay = config.overlay.map(|part| Overlay::new(part, client.clone(), config.tls.clone()));
        let overlay = overlay.transpose()?;
        let dial = Dial {
            // Connections are served by who has joined, not by threads that may be held by a query.
            runtime: tokio::runtime::Handle::current(),
            overlay: overlay.clone(),
            tls: config.tls,
            client,
            connections_max: config.connections_per_node_max,
            trunk_on_host: config.trunk_on_host,
        };
        let known = MembersConfig {
            state_folder: config.state_folder,
            expect_nodes: config.expect_nodes,
            drop_parts: config.drop_parts,
        };
        let members = Members::new(&config.name, tables, dial, known)?;
        let cluster = Arc::new(Self {
            members: members.clone(),
            overlay,
            exchange: Arc::new(Exchange::new(config.exchange_bytes, config.message_bytes_max)),
            queries: Arc::default(),
            places: Arc::new(Semaphore::new(config.queries_max.max(1))),
            local,
            threads,
            worker: OnceCell::new(),
            #[cfg(feature = "grpc")]
            grpc: OnceCell::new(),
        });
        #[cfg(feature = "grpc")]
        if config.wire == Wire::Grpc {
            let serving = async { grpc::Grpc::serve(cluster.name(), cluster.worker()) };
            cluster.grpc.get_or_try_init(|| serving).await?;
        }
        members.join(&config.join);
        Ok(cluster)
    }

    /// The cluster that runs a plan.
    pub(crate) fn of(context: &TaskContext) -> DataFusionResult<Arc<Self>> {
        context
            .session_config()
            .get_extension::<Self>()
            .ok_or_else(|| DataFusionError::Internal("a plan for a cluster, without one".into()))
    }

    pub(crate) fn name(&self) -> &str {
        &self.members.me
    }

    pub(crate) fn members(&self) -> &Arc<Members> {
        &self.members
    }

    pub(crate) fn exchange(&self) -> &Arc<Exchange> {
        &self.exchange
    }

    /// The nodes, this one among them, by name.
    pub(crate) fn nodes(&self) -> Vec<Member> {
        let snapshot = self.members.snapshot();
        let member = |name: String, state, why| Member { is_self: name == self.name(), name, state, why };
        let here = snapshot.nodes.into_iter().map(|node| member(node.name, MemberState::Joined, None));
        let absent =
            snapshot.absent.into_iter().map(|absent| member(absent.name, absent.state, Some(absent.why)));
        let removed = snapshot.removed.into_iter().map(|name| member(name, MemberState::Removed, None));
        let mut all: Vec<Member> = here.chain(absent).chain(removed).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        // This node is here, even where it was removed.
        all.dedup_by(|a, b| a.name == b.name);
        all
    }

    /// What is held for queries now.
    pub(crate) fn load(&self) -> ClusterLoad {
        ClusterLoad { parts: self.queries.parts(), exchange_bytes: self.exchange.held_bytes() }
    }

    /// Takes part in overlays, if it is to, until this node leaves.
    pub(crate) async fn follow_overlays(&self, intake: Intake) {
        if let Some(overlay) = &self.overlay {
            overlay.follow(&self.members, intake).await;
        }
    }

    /// The overlay now; none where this node takes part in none.
    pub(crate) fn overlay(&self) -> Option<OverlayState> {
        self.overlay.as_ref().map(|overlay| overlay.state())
    }

    fn peer(&self, name: &str) -> DataFusionResult<Arc<Peer>> {
        self.members.peer(name).ok_or_else(|| EngineError::gone(name).into())
    }

    fn find(&self, table: &str) -> Option<&LocalTable> {
        self.local.tables.iter().find(|local| local.name == table)
    }

    /// Whether this node has the table, or a part of it.
    fn has(&self, table: &str) -> bool {
        self.find(table).is_some()
    }

    /// What tells the files of a table of this node apart from others; nothing where it has no such files.
    fn fingerprint(&self, table: &str) -> Result<Option<u64>> {
        self.find(table).and_then(|local| local.path.as_deref()).map(crate::files::fingerprint).transpose()
    }

    /// Makes sure that a shared table's files are those that the query was planned for.
    fn check_files(&self, table: &str, fingerprint: u64) -> Result<()> {
        if self.fingerprint(table)? == Some(fingerprint) {
            return Ok(());
        }
        Err(EngineError::File(format!(
            "node {} finds other files of `{table}` than the node that planned the query, or they have just changed",
            self.name()
        )))
    }

    /// This node's part of a table, and a state to plan its scan in.
    async fn local_table(
        &self,
        table: &str,
        partitions: usize,
    ) -> DataFusionResult<(SessionState, Arc<dyn TableProvider>)> {
        let provider = self.local.context.table_provider(table).await?;
        let mut state = self.local.context.state();
        let options = state.config_mut().options_mut();
        options.execution.target_partitions = partitions;
        // Only some partitions of a plan may be read: none may depend on others being read.
        options.optimizer.enable_round_robin_repartition = false;
        Ok((state, provider))
    }

    /// A context for what is run for another node.
    fn task_context(self: &Arc<Self>) -> Arc<TaskContext> {
        let mut state = self.local.context.state();
        state.config_mut().set_extension(self.clone());
        state.task_ctx()
    }

    /// A state in which a query over all nodes is planned.
    pub(crate) fn state(self: &Arc<Self>) -> Result<SessionState> {
        let base = self.local.context.state();
        let mut config = base.config().clone();
        // With one partition nothing would be worth a second node.
        let partitions = config.target_partitions().max(2);
        config.options_mut().execution.target_partitions = partitions;
        config.options_mut().catalog.create_default_catalog_and_schema = true;
        let snapshot = Arc::new(self.members.snapshot());
        let builder = SessionStateBuilder::new()
            .with_default_features()
            .with_physical_optimizer_rules(crate::optimizer::rules())
            .with_runtime_env(base.runtime_env().clone())
            .with_config(config.with_extension(self.clone()).with_extension(snapshot.clone()))
            .with_distributed_worker_resolver(Nodes(snapshot.clone()))
            .with_distributed_channel_resolver(Channels(Arc::downgrade(self)))
            .with_distributed_user_codec(ShardCodec)
            .with_distributed_desired_task_count_handler(route::desired_tasks)
            .with_distributed_scale_up_leaf_node_handler(route::scale_up)
            .with_distributed_route_tasks_handler(route::route)
            .with_distributed_children_isolator_unions(false)?;
        let mut state = planner::with_cluster_planner(builder).build();
        arithmetic::register(&mut state)?;
        functions::register(&mut state, &base.runtime_env().memory_pool)?;
        state.add_analyzer_rule(arithmetic::rule());
        let all = datafusion::catalog::MemoryCatalogProvider::new();
        use datafusion::catalog::CatalogProvider as _;
        all.register_schema("cluster", catalog::schema(&self.nodes(), &snapshot)?)?;
        all.register_schema("public", Arc::new(ClusterSchema { snapshot, cluster: Arc::downgrade(self) }))?;
        state.catalog_list().register_catalog("datafusion".into(), Arc::new(all));
        Ok(state)
    }

    /// What runs tasks here, for this node's queries and others'.
    fn worker(self: &Arc<Self>) -> Worker {
        if let Some(worker) = self.worker.get() {
            return worker.clone();
        }
        let base = self.local.context.state().config().clone();
        let cluster = Arc::downgrade(self);
        let build = move |mut context: WorkerQueryContext| {
            let (base, cluster) = (base.clone(), cluster.clone());
            async move {
                let cluster =
                    cluster.upgrade().ok_or_else(|| DataFusionError::Internal("the node ends".into()))?;
                let config = context.builder.config().get_or_insert_default();
                adopt(config, &base);
                config.set_extension(cluster.clone());
                config.set_extension(Arc::new(work::STOP.try_with(StopFlag::clone).unwrap_or_default()));
                let mut state = context
                    .builder
                    .with_distributed_user_codec(ShardCodec)
                    .with_distributed_channel_resolver(Channels(Arc::downgrade(&cluster)))
                    .with_distributed_worker_plan_rewrite_handler(route::only_known_leaves)
                    .with_distributed_worker_plan_rewrite_handler(planner::stoppable_part)
                    .build();
                arithmetic::register(&mut state)?;
                let pool = state.runtime_env().memory_pool.clone();
                functions::register(&mut state, &pool)?;
                Ok(state)
            }
        };
        let worker = Worker::from_session_builder(build)
            .with_runtime_env(self.local.context.runtime_env())
            .with_version(VERSION);
        // Were two made at once, either would do: plans are set before this is asked a second time.
        let _ = self.worker.set(worker.clone());
        self.worker.get().cloned().unwrap_or(worker)
    }

    /// Does what another node asks for.
    ///
    /// # Errors
    /// What the node is told.
    pub(crate) async fn answer(self: &Arc<Self>, task: &Task) -> Result<Answer, Failure> {
        work::answer(self, task).await
    }
}

/// The nodes that a state was made for.
pub(crate) fn snapshot_of(state: &SessionState) -> Result<Arc<members::Snapshot>> {
    state.config().get_extension().ok_or_else(|| EngineError::Internal("a state for no cluster".into()))
}

/// The nodes of one query, as datafusion-distributed asks for them.
struct Nodes(Arc<members::Snapshot>);

impl datafusion_distributed::WorkerResolver for Nodes {
    fn get_urls(&self) -> DataFusionResult<Vec<url::Url>> {
        Ok(self.0.nodes.iter().map(|node| node.url.clone()).collect())
    }
}

/// A task runs by this node's own settings, but for those that came with it.
fn adopt(config: &mut SessionConfig, base: &SessionConfig) {
    let (options, own) = (config.options_mut(), base.options());
    let batch_size = options.execution.batch_size;
    options.execution = own.execution.clone();
    options.execution.batch_size = batch_size;
    options.sql_parser = own.sql_parser.clone();
}

/// What other nodes need to know of a table.
async fn describe(context: &SessionContext, table: &LocalTable) -> Result<Table> {
    let plan = context.table(table.name.as_str()).await?.create_physical_plan().await?;
    let (rows, bytes) = crate::query::size_of(plan.as_ref());
    let encoded = lightship_wire::schema::encode(&table.schema);
    Ok(Table {
        name: table.name.clone(),
        schema: encoded.map_err(|e| EngineError::Config(format!("table `{}`: {e}", table.name)))?,
        rows,
        bytes,
        shared: table.shared,
        fingerprint: match (&table.path, &table.identity) {
            (Some(path), _) => crate::files::fingerprint(path)?,
            (None, Some(identity)) => crate::files::hash(identity.as_bytes()).max(1),
            (None, None) => 0,
        },
        in_database: table.identity.is_some(),
    })
}

/// Reads bytes of another node in each way in which they can be meant.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    use prost::Message as _;

    let _ = ask::Description::decode(bytes);
    if let Ok(ask::Request { ask: Some(ask::Ask::Finish(key)) }) = ask::Request::decode(bytes) {
        let _ = key.to_task();
    }
    if let Ok(report) = metrics::TaskReport::decode(bytes) {
        let measured = report.to_metrics();
        let again = metrics::TaskReport::from(&measured);
        assert_eq!(metrics::TaskReport::from(&again.to_metrics()), again);
    }
}
