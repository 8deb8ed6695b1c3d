//! A node of a cluster, over either wire.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use lightship_engine::{ClusterConfig, Engine, EngineConfig, Wire};
use lightship_transport::net::{Listen, Server, ServerConfig};
use tokio::sync::watch;

use super::print;
use crate::Result;

/// Connections of other nodes, for all queries at once.
const CONNECTIONS_MAX: usize = 4096;

/// Which tables, and with whom.
#[derive(Args, Debug)]
pub(crate) struct ClusterNode {
    /// With a file `NAME.parquet` for each table
    folder: PathBuf,
    /// Where it listens, and what others know it by
    address: SocketAddr,
    /// Another node
    #[arg(long)]
    join: Option<String>,
    /// All nodes read the files of the folder
    #[arg(long)]
    shared: bool,
    /// Partitions of a query
    #[arg(long)]
    partitions: usize,
    /// Plans and rows go over datafusion-distributed's own wire
    #[arg(long)]
    grpc: bool,
}

impl ClusterNode {
    /// Takes part until it is killed. Prints its address, and then the number of nodes as often as it changes.
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
            join: self.join.into_iter().collect(),
            wire: if self.grpc { Wire::Grpc } else { Wire::Lightship },
            ..ClusterConfig::default()
        };
        engine.join(config).await?;
        print(&self.address.to_string())?;
        let engine = Arc::new(engine);
        // Held until the end: a sender that is gone asks for a shutdown.
        let (_alive, shutdown) = watch::channel(false);
        let serving = tokio::spawn(server.run(engine.clone(), shutdown));
        let mut changes = engine.watch_cluster().ok_or("a node of no cluster")?;
        loop {
            print(&(1 + engine.cluster_nodes().iter().filter(|member| member.is_met()).count()))?;
            if changes.changed().await.is_err() {
                return Ok(serving.await??);
            }
        }
    }
}

/// An engine with the tables of a folder.
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
