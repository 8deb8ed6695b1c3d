//! Queries over several nodes.
//!
//! The plan comes from `datafusion-distributed` 4.0, which cuts a query into stages, and stages into tasks.
//! This module knows which nodes are members ([`members`]), which rows each node has ([`table`], [`shard`])
//! and which node runs which task ([`route`]). It carries plans, rows and measurements between nodes over
//! Lightship's protocol ([`channel`], [`handler`]).

mod catalog;
mod change;
mod channel;
pub(crate) mod cost;
mod edge_plans;
mod exchange;
pub(crate) mod explain;
#[cfg(feature = "grpc")]
mod grpc;
mod handler;
mod learn;
mod links;
mod members;
mod metrics;
mod overlay;
mod peer;
mod planner;
mod queries;
mod request;
mod route;
mod shard;
mod sweep;
mod table;
mod until_error;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow_schema::SchemaRef;
use datafusion::catalog::{SchemaProvider, TableProvider};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::{SessionState, SessionStateBuilder, TaskContext};
use datafusion::physical_plan::{ExecutionPlan, StatisticsArgs, StatisticsContext};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_distributed::{DistributedExt, NetworkBoundaryExt, Worker, WorkerQueryContext};
use lightship_transport::net::{Answer, ClientConfig, Intake};
use lightship_wire::cluster::Task;
use lightship_wire::control::{ErrorCode, Failure};
use tokio::sync::{OnceCell, Semaphore};
use uuid::Uuid;

use self::catalog::ClusterTables;
pub use self::change::{MemberChange, change_members};
use self::channel::Channels;
use self::cost::facts::Facts;
use self::cost::history::{self, EdgeHistory};
use self::cost::rates::Rates;
use self::cost::ways::{Choices, FastestStrategies};
use self::edge_plans::EdgePlans;
use self::exchange::Exchange;
use self::learn::LEARNERS_MAX;
use self::links::Links;
use self::members::store::Store;
use self::members::{Members, MembersConfig};
use self::overlay::Overlay;
pub use self::overlay::{OverlayConfig, OverlayState};
use self::peer::{Dial, Peer};
use self::queries::Queries;
use self::request::Table;
pub(crate) use self::request::{RangeScan, RangeScanPart, malformed};
use self::shard::ShardCodec;
use self::table::ClusterSchema;
pub(crate) use self::until_error::until_error;
use crate::error::{EngineError, Result};
use crate::files::FileLocation;
use crate::meter::TaskMeters;
use crate::range::{RangeFiles, WithRangeFiles};
use crate::stop::StopFlag;
use crate::threads::Threads;
use crate::{arithmetic, functions, information_schema};

/// Must be the same on all nodes: no other version of the engine can decode a plan.
pub(crate) const VERSION: &str = concat!(
    "lightship ",
    env!("CARGO_PKG_VERSION"),
    ", cluster 5, datafusion 55.2, datafusion-distributed 4.0"
);

/// A node that accepts no connection within this time counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// No node takes longer to welcome another one.
const WELCOME_TIMEOUT_MAX: Duration = Duration::from_secs(20);

/// The protocol that carries plans and rows between nodes. Membership always goes over Lightship's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wire {
    /// Lightship's protocol.
    #[default]
    Lightship,
    /// datafusion-distributed's gRPC, at the port after the node's, for comparison. It has no tokens and no
    /// TLS.
    #[cfg(feature = "grpc")]
    Grpc,
}

/// The configuration of a node of a cluster.
#[derive(Clone)]
pub struct ClusterConfig {
    /// This node's address as others reach it, HOST:PORT; also its name.
    pub name: String,
    /// Addresses of other nodes; one that runs is enough. The node's own address is ignored.
    pub join: Vec<String>,
    /// Folder where the node stores the list of the cluster's nodes, so that it expects them after a
    /// restart. Without it, a restarted node knows only the nodes in `join`.
    pub state_folder: Option<PathBuf>,
    /// Tables in parts are refused until this number of nodes has joined, including this one; 0 for no limit.
    pub expect_nodes: usize,
    /// Tables whose part this node gives up; it had the part when it last ran.
    pub drop_parts: Vec<String>,
    /// The token that nodes authenticate each other with; empty for none.
    pub token: String,
    /// How to verify other nodes; `None` is plain TCP.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Memory in bytes for rows in flight from other nodes, for all queries together. Each stream beyond it
    /// still gets 128 KiB.
    pub exchange_bytes: u64,
    /// Queries that this node plans and runs at the same time; others wait.
    pub queries_max: usize,
    /// A silent node is pinged after this long, and counts as lost after three times this. If this is
    /// shorter than the longest pause of a busy node, nodes that still run count as lost.
    pub ping_interval: Duration,
    /// The protocol between nodes. Must be the same on all nodes.
    pub wire: Wire,
    /// Bytes of the largest message of a stream between nodes. Messages are smaller when memory is short.
    pub message_bytes_max: u32,
    /// The configuration of overlays. Rows go over an overlay when all nodes have this and each has more
    /// peers than connections.
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
            queries_max: 16,
            ping_interval: Duration::from_secs(3),
            wire: Wire::default(),
            message_bytes_max: 1 << 20,
            overlay: None,
        }
    }
}

impl ClusterConfig {
    /// The settings of a connection to another node.
    pub(crate) fn client(&self) -> ClientConfig {
        ClientConfig {
            token: self.token.clone(),
            connect_timeout: CONNECT_TIMEOUT,
            // A node that says nothing for this long counts as lost; all requests wait for the same attempt to connect.
            welcome_timeout: (self.ping_interval * 3).clamp(CONNECT_TIMEOUT, WELCOME_TIMEOUT_MAX),
            ping_interval: self.ping_interval,
            shared_memory: false,
            peer: true,
        }
    }
}

/// The state of a node, as another node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberState {
    /// It is connected.
    Joined,
    /// It has not been tried yet.
    Connecting,
    /// It has not been reached since this node started.
    Unreachable,
    /// It was stopped. Queries that need its rows fail.
    Stopped,
    /// The connection to it was lost. Queries that need its rows fail.
    Lost,
    /// It was removed from the cluster. Its rows are no longer part of the tables.
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
    /// Whether it is the node that made this list.
    pub is_self: bool,
    /// Its state.
    pub state: MemberState,
    /// Why it is absent, if it is.
    pub why: Option<String>,
}

impl Member {
    /// Whether it is another node, and has joined.
    pub fn is_met(&self) -> bool {
        !self.is_self && self.state == MemberState::Joined
    }
}

/// What a node holds for the queries of a cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClusterLoad {
    /// Parts of other nodes' plans.
    pub parts: usize,
    /// Memory for rows in flight to this node.
    pub exchange_bytes: u64,
}

/// A cluster, as one of its nodes.
pub(crate) struct Cluster {
    members: Arc<Members>,
    overlay: Option<Arc<Overlay>>,
    exchange: Arc<Exchange>,
    queries: Arc<Queries>,
    /// What operators gave in earlier queries.
    facts: Arc<Facts>,
    /// What nodes sent each other in earlier queries, beside what was expected.
    edges: Arc<EdgeHistory>,
    /// Permits for queries that are learned from.
    learners: Arc<Semaphore>,
    /// What was measured of the links to this node.
    links: Links,
    /// Permits for queries that are planned here.
    pub(crate) query_slots: Arc<Semaphore>,
    local: Local,
    /// Decode and run parts of plans.
    threads: Arc<Threads>,
    /// Counts what the parts use, if it is to be counted.
    pub(crate) meters: Option<Arc<TaskMeters>>,
    worker: OnceCell<Worker>,
    /// Replaces Lightship's protocol.
    #[cfg(feature = "grpc")]
    grpc: OnceCell<grpc::Grpc>,
}

/// The tables that this node has.
pub(crate) struct Local {
    pub(crate) range_files: Option<Arc<RangeFiles>>,
    pub(crate) context: SessionContext,
    pub(crate) tables: Vec<LocalTable>,
}

pub(crate) struct LocalTable {
    pub(crate) name: String,
    pub(crate) schema: SchemaRef,
    pub(crate) files: Option<FileLocation>,
    /// Identifies a table of a database; different for any two such tables.
    pub(crate) identity: Option<String>,
    pub(crate) shared: bool,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cluster").field(&self.members.me).finish()
    }
}

impl Cluster {
    /// Joins the cluster.
    ///
    /// # Errors
    /// When the name is not an address, a table can't be planned, or the configuration of overlays is invalid.
    pub(crate) async fn join(
        config: ClusterConfig,
        local: Local,
        threads: Arc<Threads>,
        meters: Option<Arc<TaskMeters>>,
    ) -> Result<Arc<Self>> {
        let mut tables = Vec::new();
        for table in &local.tables {
            tables.push(describe(&local.context, table).await?);
        }
        let client = config.client();
        let overlay = config.overlay.map(|part| Overlay::new(part, client.clone(), config.tls.clone()));
        let overlay = overlay.transpose()?;
        let dial = Dial {
            // Connections run on the joining runtime, not on threads that a query may occupy.
            runtime: tokio::runtime::Handle::current(),
            overlay: overlay.clone(),
            tls: config.tls,
            client,
        };
        let state_folder = config.state_folder.clone();
        let known = MembersConfig {
            state_folder: config.state_folder,
            expect_nodes: config.expect_nodes,
            drop_parts: config.drop_parts,
        };
        let members = Members::new(&config.name, tables, dial, known)?;
        let edges = Store::path(state_folder.as_deref(), &members.me, "edges.jsonl");
        let cluster = Arc::new(Self {
            members: members.clone(),
            overlay,
            exchange: Arc::new(Exchange::new(config.exchange_bytes, config.message_bytes_max)),
            queries: Arc::default(),
            facts: Arc::default(),
            edges: Arc::new(EdgeHistory::open(edges)),
            learners: Arc::new(Semaphore::new(LEARNERS_MAX)),
            links: Links::default(),
            query_slots: Arc::new(Semaphore::new(config.queries_max.max(1))),
            local,
            threads,
            meters,
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
        tokio::spawn(links::follow(Arc::downgrade(&cluster)));
        tokio::spawn(sweep::follow(Arc::downgrade(&cluster)));
        tokio::spawn(history::follow(Arc::downgrade(&cluster.edges)));
        Ok(cluster)
    }

    /// The cluster that runs a plan.
    pub(crate) fn of(context: &TaskContext) -> DataFusionResult<Arc<Self>> {
        context
            .session_config()
            .get_extension::<Self>()
            .ok_or_else(|| DataFusionError::Internal("a cluster's plan runs without a cluster".into()))
    }

    pub(crate) fn name(&self) -> &str {
        &self.members.me
    }

    pub(crate) fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// The range files; `None` if this node has none.
    pub(crate) fn range_files(&self) -> Option<Arc<RangeFiles>> {
        self.local.range_files.clone()
    }

    /// The failure of a request for rows of range files to a node without.
    pub(crate) fn no_range_files(&self) -> Failure {
        let message = format!("node {} has no range files", self.name());
        Failure::new(ErrorCode::Peer, message).hint("start it with --range-data FOLDER")
    }

    /// The nodes that may have range files: all that belong to the cluster.
    pub(crate) fn range_nodes(&self) -> Vec<String> {
        let nodes =
            self.nodes().into_iter().filter(|node| node.is_self || node.state != MemberState::Removed);
        nodes.map(|node| node.name).collect()
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
        // This node runs, even if it was removed. The sort is stable, so its first entry is the joined one.
        all.dedup_by(|a, b| a.name == b.name);
        all
    }

    /// Stores what nodes sent in earlier queries.
    pub(crate) async fn store(&self) {
        let edges = self.edges.clone();
        // The task fails only if it panics.
        let _ = tokio::task::spawn_blocking(move || edges.write()).await;
    }

    /// What this node holds for queries now.
    pub(crate) fn load(&self) -> ClusterLoad {
        ClusterLoad { parts: self.queries.parts(), exchange_bytes: self.exchange.held_bytes() }
    }

    /// Forms and uses overlays until this node leaves, if it is configured to.
    pub(crate) async fn follow_overlays(&self, intake: Intake) {
        if let Some(overlay) = &self.overlay {
            overlay.follow(&self.members, intake).await;
        }
    }

    /// The current overlay; none if this node is not configured for overlays.
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

    /// A fingerprint of the files of a table of this node; none if it has no such files.
    async fn fingerprint(&self, table: &str) -> Result<Option<u64>> {
        match self.find(table).and_then(|local| local.files.as_ref()) {
            Some(files) => files.fingerprint().await.map(Some),
            None => Ok(None),
        }
    }

    /// Checks that the files of a shared table are those that the query was planned for.
    async fn check_files(&self, table: &str, fingerprint: u64) -> Result<()> {
        if self.fingerprint(table).await? == Some(fingerprint) {
            return Ok(());
        }
        Err(EngineError::File(format!(
            "node {} and the coordinator see different files of `{table}`, or the files have just changed",
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
        // A task may read only some partitions of a plan, so no partition may depend on others being read.
        options.optimizer.enable_round_robin_repartition = false;
        Ok((state, provider))
    }

    /// A context for work that another node requested.
    fn task_context(self: &Arc<Self>) -> Arc<TaskContext> {
        let mut state = self.local.context.state();
        state.config_mut().set_extension(self.clone());
        state.task_ctx()
    }

    /// A state in which a query over all nodes is planned.
    pub(crate) fn state(self: &Arc<Self>) -> Result<SessionState> {
        let base = self.local.context.state();
        let mut config = base.config().clone();
        // With one partition, the planner would never use a second node.
        let partitions = config.target_partitions().max(2);
        config.options_mut().execution.target_partitions = partitions;
        config.options_mut().catalog.create_default_catalog_and_schema = true;
        let snapshot = Arc::new(self.members.snapshot());
        let choices = Arc::new(Choices::default());
        let rule = FastestStrategies {
            nodes: snapshot.nodes.len(),
            rates: Rates::of(&snapshot),
            memory_bytes: match base.runtime_env().memory_pool.memory_limit() {
                MemoryLimit::Finite(bytes) => bytes as f64,
                _ => f64::INFINITY,
            },
            facts: self.facts.clone(),
            choices: choices.clone(),
        };
        let config = config.with_extension(self.clone()).with_extension(snapshot.clone());
        let builder = SessionStateBuilder::new()
            .with_default_features()
            .with_physical_optimizer_rules(crate::optimizer::rules_for(rule))
            .with_runtime_env(base.runtime_env().clone())
            .with_config(config.with_extension(choices))
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
        let own = ClusterTables {
            members: self.nodes(),
            snapshot: snapshot.clone(),
            overlay: self.overlay(),
            edges: self.edges.clone(),
        };
        all.register_schema("cluster", Arc::new(own))?;
        let tables: Arc<dyn SchemaProvider> =
            Arc::new(ClusterSchema { snapshot, cluster: Arc::downgrade(self) });
        let tables = match self.local.range_files.clone() {
            Some(files) => Arc::new(WithRangeFiles { others: tables, files }),
            None => tables,
        };
        all.register_schema("public", tables)?;
        information_schema::register(&state, &all, self.local.range_files.clone())?;
        state.catalog_list().register_catalog("datafusion".into(), Arc::new(all));
        Ok(state)
    }

    /// Runs tasks on this node, for its own queries and for those of others.
    fn worker(self: &Arc<Self>) -> Worker {
        if let Some(worker) = self.worker.get() {
            return worker.clone();
        }
        let base = self.local.context.state().config().clone();
        let cluster = Arc::downgrade(self);
        let build = move |mut context: WorkerQueryContext| {
            let (base, cluster) = (base.clone(), cluster.clone());
            async move {
                let cluster = cluster
                    .upgrade()
                    .ok_or_else(|| DataFusionError::Internal("the node is stopping".into()))?;
                let config = context.builder.config().get_or_insert_default();
                adopt(config, &base);
                config.set_extension(cluster.clone());
                let edges = EdgePlans::of_headers(&context.headers);
                config.set_extension(Arc::new(edges));
                config.set_extension(Arc::new(handler::STOP.try_with(StopFlag::clone).unwrap_or_default()));
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
        // If two threads make one at the same time, either will do: no plan has been set yet.
        let _ = self.worker.set(worker.clone());
        self.worker.get().cloned().unwrap_or(worker)
    }

    /// Answers a request of another node.
    ///
    /// # Errors
    /// The failure that the other node receives.
    pub(crate) async fn answer(self: &Arc<Self>, task: &Task) -> Result<Answer, Failure> {
        handler::answer(self, task).await
    }
}

/// The nodes that a state was made for.
pub(crate) fn snapshot_of(state: &SessionState) -> Result<Arc<members::Snapshot>> {
    state
        .config()
        .get_extension()
        .ok_or_else(|| EngineError::Internal("the session state has no cluster".into()))
}

/// The number by which all nodes know the query of a plan; `None` if the plan runs on this node alone.
pub(crate) fn query_of(plan: &Arc<dyn ExecutionPlan>) -> DataFusionResult<Option<Uuid>> {
    let mut found = None;
    plan.apply(|plan| {
        found = plan.as_network_boundary().map(|boundary| boundary.input_stage().query_id());
        Ok(if found.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// The nodes of one query, as datafusion-distributed asks for them.
struct Nodes(Arc<members::Snapshot>);

impl datafusion_distributed::WorkerResolver for Nodes {
    fn get_urls(&self) -> DataFusionResult<Vec<url::Url>> {
        Ok(self.0.nodes.iter().map(|node| node.url.clone()).collect())
    }
}

/// Gives a task the settings of this node, except for those that came with the task.
fn adopt(config: &mut SessionConfig, base: &SessionConfig) {
    let (options, own) = (config.options_mut(), base.options());
    let batch_size = options.execution.batch_size;
    options.execution = own.execution.clone();
    // This node's, if that is smaller than what came with the task: its memory is short.
    options.execution.batch_size = own.execution.batch_size.min(batch_size);
    options.sql_parser = own.sql_parser.clone();
}

/// Describes a table to other nodes.
async fn describe(context: &SessionContext, table: &LocalTable) -> Result<Table> {
    let plan = context.table(table.name.as_str()).await?.create_physical_plan().await?;
    let (rows, bytes) = crate::query::size_of(plan.as_ref());
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new());
    let encoded = lightship_wire::schema::encode(&table.schema);
    Ok(Table {
        name: table.name.clone(),
        schema: encoded.map_err(|e| EngineError::Config(format!("table `{}`: {e}", table.name)))?,
        rows,
        bytes,
        shared: table.shared,
        fingerprint: match (&table.files, &table.identity) {
            (Some(files), _) => files.fingerprint().await?,
            (None, Some(identity)) => crate::files::hash(identity.as_bytes()).max(1),
            (None, None) => 0,
        },
        in_database: table.identity.is_some(),
        statistics: statistics.map(|known| cost::statistics::encode(&known)).unwrap_or_default(),
    })
}

/// Decodes bytes of another node as each type that they can be.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    use prost::Message as _;

    let _ = request::Description::decode(bytes);
    let field = |name: &str, kind| arrow_schema::Field::new(name, kind, true);
    let schema = arrow_schema::Schema::new(vec![
        field("number", arrow_schema::DataType::Int64),
        field("text", arrow_schema::DataType::Utf8),
    ]);
    let sent = cost::statistics::decode(bytes, &schema);
    let _ = cost::statistics::of_table(&[sent.clone(), sent], &schema);
    if let Ok(request::Request { kind: Some(request::RequestKind::Finish(key)) }) =
        request::Request::decode(bytes)
    {
        let _ = key.to_task();
    }
    if let Ok(report) = metrics::TaskReport::decode(bytes) {
        let measured = report.to_metrics();
        let again = metrics::TaskReport::from(&measured);
        assert_eq!(metrics::TaskReport::from(&again.to_metrics()), again);
    }
}
