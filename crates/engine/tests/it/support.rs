//! Nodes in this process, with real sockets between them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use futures::{StreamExt, TryStreamExt};
use lightship_engine::{ClusterConfig, ClusterLoad, Engine, EngineConfig, OverlayConfig};
use lightship_transport::net::{Listen, Rows, Server, ServerConfig};
use lightship_wire::control::Failure;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A node of a cluster.
pub(crate) struct Node {
    pub(crate) engine: Arc<Engine>,
    pub(crate) name: String,
    /// The address that it listens on.
    pub(crate) address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// Whether the nodes share a table's files.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Storage {
    Own,
    Shared,
}

/// An engine with a table for each file in a folder.
pub(crate) async fn engine(folder: &Path, storage: Storage, partitions: usize) -> Engine {
    let mut engine = Engine::new(EngineConfig { partitions, ..EngineConfig::default() }).unwrap();
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "parquet"));
    for path in files {
        let name = path.file_stem().unwrap().to_str().unwrap();
        match storage {
            Storage::Own => engine.register_path(name, &path).await.unwrap(),
            Storage::Shared => engine.register_shared_path(name, &path).await.unwrap(),
        }
    }
    engine
}

/// Settings of a node's overlay, with at most this many connections.
pub(crate) fn overlay_part(connections_max: usize) -> OverlayConfig {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    OverlayConfig { listener: Arc::new(listener), address, connections_max, tls: None, insecure: false }
}

impl Node {
    /// Starts a node that listens, joins the others, and answers. Its name is its address unless
    /// `config` has one.
    pub(crate) async fn start(mut engine: Engine, others: &[&Node], config: ClusterConfig) -> Self {
        let listen = Listen::Tcp(([127, 0, 0, 1], 0).into());
        let peer_token = Some(config.token.clone());
        let config_of_server = ServerConfig { peer_token, ..ServerConfig::default() };
        let server = Server::bind(&[listen], config_of_server).await.unwrap();
        let address = match server.local().unwrap()[..] {
            [Listen::Tcp(address)] => address,
            ref other => panic!("{other:?}"),
        };
        let name = if config.name.is_empty() { address.to_string() } else { config.name.clone() };
        let join = others.iter().map(|node| node.name.clone()).chain(config.join.clone()).collect();
        engine.join(ClusterConfig { name: name.clone(), join, ..config }).await.unwrap();
        let engine = Arc::new(engine);
        let (stop, stopped) = watch::channel(false);
        let service = engine.clone();
        let task = tokio::spawn(async move { server.run(service, stopped).await.unwrap() });
        Self { engine, name, address, stop, task }
    }

    /// Runs a query and returns all its rows.
    pub(crate) async fn query(&self, sql: &str) -> Result<Vec<RecordBatch>, Failure> {
        run(&self.engine, sql).await
    }

    /// Leaves the cluster in order.
    pub(crate) async fn leave(self) {
        self.engine.leave();
        self.stop.send(true).unwrap();
        self.task.await.unwrap();
    }

    /// Stops at once, as if the process had been killed.
    pub(crate) fn kill(self) {
        self.task.abort();
    }
}

/// Runs a query and returns all its rows.
pub(crate) async fn run(engine: &Engine, sql: &str) -> Result<Vec<RecordBatch>, Failure> {
    let running = engine.query(sql).await.map_err(|error| error.to_failure())?;
    running.into_rows().try_collect().await
}

/// Reads rows until they fail; panics if they end without a failure.
pub(crate) async fn failure_of(rows: &mut Rows) -> Failure {
    loop {
        match rows.next().await.expect("an error, not a short result") {
            Ok(_) => {}
            Err(failure) => return failure,
        }
    }
}

/// Waits until this node has met this many other nodes.
pub(crate) async fn met(node: &Node, others: usize) {
    let mut cluster = node.engine.watch_cluster().unwrap();
    while node.engine.cluster_nodes().iter().filter(|member| member.is_met()).count() != others {
        cluster.changed().await.unwrap();
    }
}

/// Waits until the nodes hold no resources for queries.
pub(crate) async fn free(nodes: &[Node]) {
    while nodes.iter().any(|node| node.engine.cluster_load() != ClusterLoad::default()) {
        tokio::task::yield_now().await;
    }
}
