//! A node of a cluster, over Lightship's protocol or over gRPC.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use lightship_engine::{ClusterConfig, Engine, EngineConfig, OverlayConfig, Wire};
use lightship_transport::net::{Listen, Server, ServerConfig};
use tokio::sync::watch;

use super::print;
use crate::Result;

/// Connections of other nodes, for all queries together.
const CONNECTIONS_MAX: usize = 4096;

/// The tables of a node, and its cluster.
#[derive(Args, Debug)]
pub(crate) struct ClusterNode {
    /// Folder with a file `NAME.parquet` for each table
    folder: PathBuf,
    /// Address that it listens on and that other nodes know it by
    address: SocketAddr,
    /// Another node of the cluster
    #[arg(long)]
    join: Option<String>,
    /// All nodes have the same files in the folder
    #[arg(long)]
    shared: bool,
    /// Partitions of a query
    #[arg(long)]
    partitions: usize,
    /// Take part in an overlay, with this many connections for rows
    #[arg(long)]
    connections: Option<usize>,
    /// Send plans and rows over datafusion-distributed's gRPC
    #[arg(long)]
    grpc: bool,
}

impl ClusterNode {
    /// Runs until it is killed. Prints its address, then the number of known nodes at every change.
    pub(super) async fn run(self) -> Result<()> {
        let config = ServerConfig {
            insecure: true,
            peer_token: Some(String::new()),
            connections_max: CONNECTIONS_MAX,
            ..ServerConfig::default()
        };
        let server = Server::bind(&[Listen::Tcp(self.address)], config).await?;
        let mut engine = open(&self.folder, self.shared, self.partitions).await?;
        let config = ClusterConfig {
            name: self.address.to_string(),
            join: self.join.iter().cloned().collect(),
            overlay: self.connections.map(|most| self.overlay(most)).transpose()?,
            wire: if self.grpc { Wire::Grpc } else { Wire::Lightship },
            ..ClusterConfig::default()
        };
        engine.join(config).await?;
        print(&self.address.to_string())?;
        let engine = Arc::new(engine);
        // Held until the end: dropping the sender starts a shutdown.
        let (_alive, shutdown) = watch::channel(false);
        let serving = tokio::spawn(server.run(engine.clone(), shutdown));
        let mut changes = engine.watch_cluster().ok_or("the node is not in a cluster")?;
        loop {
            print(&(1 + engine.cluster_nodes().iter().filter(|member| member.is_met()).count()))?;
            if changes.changed().await.is_err() {
                return Ok(serving.await??);
            }
        }
    }
}

impl ClusterNode {
    /// The part in an overlay, at the port after that of the node.
    fn overlay(&self, connections_max: usize) -> Result<OverlayConfig> {
        let address = SocketAddr::new(self.address.ip(), self.address.port() + 1);
        let listener = Arc::new(TcpListener::bind(address)?);
        let address = address.to_string();
        Ok(OverlayConfig { listener, address, connections_max, tls: None, insecure: true })
    }
}

/// Opens an engine with the tables of a folder.
pub(crate) async fn open(folder: &std::path::Path, shared: bool, partitions: usize) -> Result<Engine> {
    let mut engine = Engine::new(EngineConfig { partitions, ..EngineConfig::default() })?;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "parquet") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match shared {
            true => engine.register_shared_path(&name, &path).await?,
            false => engine.register_path(&name, &path).await?,
        }
    }
    Ok(engine)
}
