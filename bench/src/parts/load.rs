//! Many Lightship clients at once, and one that runs small queries meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use lightship_session::{Client, ClientConfig, Endpoint, Options};
use lightship_transport::net::tls;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::fetch::endpoint;
use super::{Latencies, TransferResult};
use crate::Result;

/// Which results, from which node, and by how many clients.
#[derive(Args, Debug)]
pub(crate) struct Load {
    port: u16,
    sql: String,
    /// Clients that run the query at the same time
    #[arg(long)]
    clients: usize,
    /// Query that another client repeats until they have their rows
    #[arg(long)]
    small: String,
    /// Certificate of the CA that signed the node's certificate
    #[arg(long)]
    ca: Option<PathBuf>,
}

/// The result of a load: the line that its process prints.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct LoadResult {
    pub(crate) seconds: f64,
    /// Rows of all clients.
    pub(crate) rows: u64,
    /// Bytes of Arrow buffers.
    pub(crate) bytes: u64,
    /// Latencies of the small queries.
    pub(crate) small: Latencies,
}

impl Load {
    fn endpoint(&self) -> Result<Endpoint> {
        let Endpoint::Tcp { port, .. } = endpoint("127.0.0.1", self.port) else {
            return Err("no port".into());
        };
        let tls = self.ca.as_deref().map(tls::client_with_authority).transpose()?;
        Ok(Endpoint::Tcp { host: "localhost".into(), port, tls })
    }

    pub(super) async fn run(&self) -> Result<LoadResult> {
        let endpoint = self.endpoint()?;
        let config = ClientConfig { shared_memory: false, ..ClientConfig::default() };
        let mut small = Client::connect_with(&endpoint, &config).await?;
        let ready = Arc::new(Barrier::new(self.clients + 1));
        let mut clients = JoinSet::new();
        for _ in 0..self.clients {
            let mut client = Client::connect_with(&endpoint, &config).await?;
            let (ready, sql) = (ready.clone(), self.sql.clone());
            clients.spawn(async move {
                ready.wait().await;
                let mut transfer = client.fetch(&sql, &Options::default()).await?;
                while transfer.next().await?.is_some() {}
                let report = transfer.report();
                Ok::<_, crate::Error>((report.rows, report.bytes_arrow))
            });
        }
        ready.wait().await;
        let began = Instant::now();
        let over = Arc::new(AtomicBool::new(false));
        let (sql, until) = (self.small.clone(), over.clone());
        let asked = tokio::spawn(async move {
            let mut latencies = Vec::new();
            while latencies.is_empty() || !until.load(Ordering::Relaxed) {
                let began = Instant::now();
                let mut transfer = small.fetch(&sql, &Options::default()).await?;
                while transfer.next().await?.is_some() {}
                drop(transfer);
                latencies.push(began.elapsed());
            }
            Ok::<_, crate::Error>(latencies)
        });
        let (mut rows, mut bytes) = (0, 0);
        while let Some(done) = clients.join_next().await {
            let (its_rows, its_bytes) = done??;
            rows += its_rows;
            bytes += its_bytes;
        }
        let seconds = began.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        Ok(LoadResult { seconds, rows, bytes, small: Latencies::of(&mut asked.await??) })
    }
}

/// Runs queries one after the other on one client.
pub(super) async fn queries(port: u16, file: &Path) -> Result<TransferResult> {
    let queries: Vec<String> = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let config = ClientConfig { shared_memory: false, ..ClientConfig::default() };
    let mut client = Client::connect_with(&endpoint("127.0.0.1", port), &config).await?;
    let began = Instant::now();
    let (mut rows, mut bytes) = (0, 0);
    for sql in queries {
        let mut transfer = client.fetch(&sql, &Options::default()).await?;
        while transfer.next().await?.is_some() {}
        let report = transfer.report();
        (rows, bytes) = (rows + report.rows, bytes + report.bytes_arrow);
    }
    TransferResult::since(began, rows, bytes)
}
