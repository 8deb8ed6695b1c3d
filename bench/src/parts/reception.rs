//! Many small servers of range files in one process, and clients that scan them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use clap::{Args, ValueEnum};
use futures::future::BoxFuture;
use futures::{FutureExt, TryStreamExt};
use lightship_rangefile::{
    Capacity, ClientOptions, Connections, Definition, Interval, Network, Node, Order, RangeFile, RowWriter,
    ScanOptions, ScanReport, WriteMode,
};
use lightship_session::{ClientConfig, Endpoint, Failure};
use lightship_transport::net::{
    Answer, Caller, Intake, Listen, Server, ServerConfig, Service, raise_descriptors,
};
use lightship_transport::proto::reception::ReceptionMode;
use lightship_wire::cluster::{Recipient, Task};
use lightship_wire::control::{ErrorCode, Query};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::fetch::endpoint;
use super::print;
use crate::Result;
use crate::process::memory_bytes;

const KEY_BYTES: usize = 8;
/// The most first scans, each on new connections, and the most scans on connections that are open.
const REPETITIONS: usize = 9;
/// After this time, no other scan of the same kind begins.
const REPEATING_MAX: Duration = Duration::from_secs(2);
/// How long the splits may take that follow a write.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// Servers of range files, with a file of one bucket each, or of several.
#[derive(Args, Debug)]
pub(crate) struct RangeServers {
    /// Where they listen
    address: IpAddr,
    /// Their number
    servers: usize,
    /// Buckets of the file
    buckets: usize,
    /// Records of a bucket, about
    records: usize,
    /// Bytes of a record
    record_bytes: usize,
    /// For their databases
    folder: PathBuf,
}

/// What the servers have: the line that their process prints when all is ready.
#[derive(Serialize, Deserialize)]
pub(crate) struct RangeServed {
    /// Of the first server.
    pub(crate) address: SocketAddr,
    pub(crate) buckets: u64,
    pub(crate) records: u64,
    /// Servers that have a bucket.
    pub(crate) servers: u64,
}

/// A server without an engine.
struct RangeServer {
    node: Node,
}

impl Service for RangeServer {
    fn query<'a>(
        &'a self,
        _query: &'a Query,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        let failure = Failure::new(ErrorCode::Sql, "this server has range files only");
        Box::pin(async { Err(failure) })
    }

    fn task<'a>(
        &'a self,
        task: &'a Task,
        caller: &'a Caller,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async move {
            match task.recipient {
                Recipient::RangeFiles => self.node.answer(&task.body, caller).await,
                Recipient::Engine => {
                    Err(Failure::new(ErrorCode::Forbidden, "this server has range files only"))
                }
            }
        })
    }

    fn has_range_files(&self) -> bool {
        true
    }

    fn beside<'a>(&'a self, intake: Intake) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.node.set_intake(intake);
        Box::pin(std::future::pending())
    }
}

/// Requests of servers to each other, which stay in this process: every pair would need a connection otherwise.
#[derive(Default)]
struct Neighbours {
    nodes: OnceLock<Vec<(String, Node)>>,
}

impl Network for Neighbours {
    fn nodes(&self) -> Vec<String> {
        self.nodes.get().into_iter().flatten().map(|(name, _)| name.clone()).collect()
    }

    fn request(
        &self,
        node: &str,
        body: Vec<u8>,
    ) -> BoxFuture<'static, lightship_rangefile::Result<lightship_rangefile::Reply>> {
        let found = self.nodes.get().into_iter().flatten().find(|(name, _)| name == node);
        let node = found.map(|(_, node)| node.clone());
        async move {
            let node = node.ok_or_else(|| Failure::new(ErrorCode::Peer, "there is no such server"))?;
            Ok(node.answer(&body, &Caller { is_peer: true, address: None }).await?.into())
        }
        .boxed()
    }
}

/// A client's connections to servers by their addresses.
fn connections(first: SocketAddr) -> Arc<Connections> {
    let address = |node: &str| match node.parse::<SocketAddr>() {
        Ok(address) => Ok::<Endpoint, _>(endpoint(&address.ip().to_string(), address.port())),
        Err(error) => Err(Failure::new(ErrorCode::Peer, error.to_string())),
    };
    let config = ClientConfig { shared_memory: false, ..ClientConfig::default() };
    Arc::new(Connections::new(move || vec![first.to_string()], address, config))
}

impl RangeServers {
    /// Starts the servers, fills the file, and serves until it is killed.
    pub(super) async fn run(self) -> Result<()> {
        raise_descriptors()?;
        let mut servers = Vec::new();
        for _ in 0..self.servers {
            let config = ServerConfig { insecure: true, ..ServerConfig::default() };
            servers.push(Server::bind(&[Listen::Tcp(SocketAddr::new(self.address, 0))], config).await?);
        }
        let addresses = servers.iter().map(|server| match server.local()?.first() {
            Some(Listen::Tcp(address)) => Ok(*address),
            _ => Err("a server without an address".into()),
        });
        let addresses = addresses.collect::<Result<Vec<_>>>()?;
        let names = addresses.iter().map(ToString::to_string);
        let neighbours = Arc::new(Neighbours::default());
        // Held until the end: dropping the sender starts a shutdown.
        let (_alive, shutdown) = watch::channel(false);
        let mut nodes = Vec::new();
        for (seed, (server, name)) in (1..).zip(servers.into_iter().zip(names)) {
            let node = Node::open(&self.folder.join(seed.to_string()), &name, neighbours.clone(), seed)?;
            nodes.push((name, node.clone()));
            tokio::spawn(server.run(Arc::new(RangeServer { node }), shutdown.clone()));
        }
        neighbours.nodes.set(nodes).map_err(|_| "the servers are known already")?;
        let (buckets, records, servers) = self.fill(neighbours).await?;
        print(&RangeServed { address: addresses[0], buckets, records, servers })?;
        std::future::pending().await
    }

    /// Writes records until there are enough buckets. Returns the numbers of buckets, records, and servers with
    /// buckets.
    async fn fill(&self, network: Arc<dyn Network>) -> Result<(u64, u64, u64)> {
        let schema = self.batch(0)?.schema();
        let capacity = Capacity::Records(2 * self.records as u64);
        let definition = Definition::new("t", &schema, &["id".into()], capacity)?;
        let file = RangeFile::create(network, &definition, ClientOptions::default()).await?;
        let mut batches = 0;
        loop {
            let entries = settled(&file, capacity).await?;
            if batches > 0 && entries.len() >= self.buckets {
                let mut nodes: Vec<_> = entries.iter().map(|entry| &entry.node).collect();
                nodes.sort();
                nodes.dedup();
                return Ok((entries.len() as u64, (batches * self.records) as u64, nodes.len() as u64));
            }
            // A full bucket splits before the next records come: each split makes one bucket.
            let mut writer = RowWriter::new(file.clone(), WriteMode::Insert);
            writer.write(self.batch(batches)?).await?;
            writer.finish().await?;
            batches += 1;
        }
    }

    /// The records of one write, in the order of their keys.
    fn batch(&self, number: usize) -> Result<RecordBatch> {
        let keys = number * self.records..(number + 1) * self.records;
        let mut value = vec![0; self.record_bytes.saturating_sub(KEY_BYTES)];
        let mut values = FixedSizeBinaryBuilder::with_capacity(self.records, value.len() as i32);
        for key in keys.clone() {
            fastrand::Rng::with_seed(key as u64).fill(&mut value);
            values.append_value(&value)?;
        }
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(keys.map(|key| key as i64)));
        Ok(RecordBatch::try_from_iter([("id", keys), ("value", Arc::new(values.finish()) as ArrayRef)])?)
    }
}

/// The buckets, once none is over its capacity.
async fn settled(file: &RangeFile, capacity: Capacity) -> Result<Vec<lightship_rangefile::BucketEntry>> {
    let Capacity::Records(max) = capacity else { return Err("a capacity in records is expected".into()) };
    let began = Instant::now();
    loop {
        let (entries, failed) = file.buckets().await;
        if let Some((node, error)) = failed.into_iter().next() {
            return Err(format!("{node}: {error}").into());
        }
        if entries.iter().all(|entry| entry.records.unwrap_or(0) <= max) {
            return Ok(entries);
        }
        if began.elapsed() > SETTLE_MAX {
            return Err("the buckets don't split".into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// How the rows are received.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Reception {
    Auto,
    Pull,
    Announce,
    Push,
    BackOff,
}

/// A client that scans the whole file, or the first records.
#[derive(Args, Debug)]
pub(crate) struct RangeScan {
    /// Of one server
    address: SocketAddr,
    #[arg(value_enum)]
    reception: Reception,
    /// Connections at a time, to pull
    #[arg(long, default_value_t = 1)]
    connections: u32,
    /// Read in the order of the key
    #[arg(long)]
    in_order: bool,
    /// Read the first records only
    #[arg(long)]
    limit: Option<u64>,
}

/// The times of scans: the line that their process prints.
#[derive(Serialize, Deserialize)]
pub(crate) struct ScanTimes {
    /// The median of first scans, which open the connections.
    pub(crate) first_seconds: f64,
    /// The median of scans on open connections.
    pub(crate) next_seconds: f64,
    pub(crate) rows: u64,
    /// Parts that were requested, of the first scan; with repetitions.
    pub(crate) requested: u64,
    /// Connections that were refused, of the first scan.
    pub(crate) refused: u64,
    /// Bytes that all parts together had in flight or waiting, at most.
    pub(crate) used_bytes: u64,
    pub(crate) peak_memory_bytes: u64,
}

impl RangeScan {
    pub(super) async fn run(self) -> Result<ScanTimes> {
        raise_descriptors()?;
        let pull = ReceptionMode::Pull { connections: self.connections };
        let (reception, announced) = match self.reception {
            Reception::Auto => (ReceptionMode::Auto, false),
            Reception::Pull => (pull, false),
            Reception::Announce => (pull, true),
            Reception::Push => (ReceptionMode::Push, false),
            Reception::BackOff => (ReceptionMode::BackOff, false),
        };
        let order = if self.in_order { Order::Key } else { Order::Any };
        let options =
            ScanOptions { order, limit: self.limit, reception, announced, ..ScanOptions::default() };
        let open = || RangeFile::open(connections(self.address), "t", ClientOptions::default());
        let mut file = open().await?;
        let (seconds, rows, report) = scan(&file, &options).await?;
        let check = |again| if again == rows { Ok(()) } else { Err(format!("{again} rows after {rows}")) };
        let mut first = vec![seconds];
        let began = Instant::now();
        while first.len() < REPETITIONS && began.elapsed() + Duration::from_secs_f64(seconds) < REPEATING_MAX
        {
            file = open().await?;
            let (seconds, again, _) = scan(&file, &options).await?;
            check(again)?;
            first.push(seconds);
        }
        let mut next = Vec::with_capacity(REPETITIONS);
        let began = Instant::now();
        while next.len() < REPETITIONS && (next.is_empty() || began.elapsed() < REPEATING_MAX) {
            let (seconds, again, _) = scan(&file, &options).await?;
            check(again)?;
            next.push(seconds);
        }
        let report = report.get().ok_or("a scan without a report")?;
        Ok(ScanTimes {
            first_seconds: median(first),
            next_seconds: median(next),
            rows,
            requested: report.requested,
            refused: report.refused,
            used_bytes: report.used_bytes_peak,
            peak_memory_bytes: memory_bytes("self", "VmHWM")?,
        })
    }
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

async fn scan(file: &RangeFile, options: &ScanOptions) -> Result<(f64, u64, ScanReport)> {
    let began = Instant::now();
    let mut scanned = file.scan(Interval::ALL, options)?;
    let mut rows = 0;
    while let Some(batch) = scanned.rows.try_next().await? {
        rows += batch.num_rows() as u64;
    }
    Ok((began.elapsed().as_secs_f64(), rows, scanned.report))
}
