//! The hidden command `part`: processes that a benchmark is made of.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use clap::{Subcommand, ValueEnum};
use futures::TryStreamExt;
use lightship_engine::{Engine, EngineConfig};
use lightship_session::{Client, Codec, Endpoint, Options};
use lightship_sources::postgres::PostgresSource;
use lightship_sources::{ReadOptions, Source};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use crate::process::{Process, memory_bytes};
use crate::{Error, Result};

/// Size of one call to the system, on both sides of the plain socket.
const SOCKET_CALL_BYTES: usize = 1 << 20;
/// Round trips before those that count.
const LATENCY_WARM_UP: u32 = 200;

/// One process.
#[derive(Subcommand)]
pub(crate) enum Part {
    /// Read a result from a node, uncompressed, and drop its batches
    Fetch {
        port: u16,
        sql: String,
        #[arg(long, value_enum, default_value_t = Threads::One)]
        threads: Threads,
    },
    /// Hold so many bytes, and write them to whoever connects
    SocketServe { bytes: u64 },
    /// Read all that comes into one buffer
    SocketRead { port: u16 },
    /// Read a result from PostgreSQL and drop its batches
    Postgres { uri: String, sql: String },
    /// Time queries on an open connection to a node
    RoundTrips { port: u16, sql: String, count: u32 },
    /// Time queries in an engine of this process
    Engine { sql: String, count: u32 },
}

/// Threads that carry a client's tasks.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Threads {
    One,
    Many,
}

/// What a transfer came to: the line that its process prints.
#[derive(Serialize, Deserialize)]
pub(crate) struct Transferred {
    pub(crate) seconds: f64,
    pub(crate) rows: u64,
    /// Of Arrow buffers, or of what came from a socket.
    pub(crate) bytes: u64,
    pub(crate) peak_memory_bytes: u64,
}

/// What many queries took: the line that their process prints.
#[derive(Serialize, Deserialize)]
pub(crate) struct Latencies {
    pub(crate) median_us: f64,
    pub(crate) p99_us: f64,
}

impl Part {
    /// This program again, as the part of these arguments.
    pub(crate) fn spawn(arguments: &[&str]) -> Result<Process> {
        Process::spawn(std::env::current_exe()?, ["part"].iter().chain(arguments))
    }
}

/// Does what the process is for, and prints its line.
pub(crate) fn run(part: Part) -> Result<()> {
    match part {
        Part::Fetch { port, sql, threads } => print(&threads.runtime()?.block_on(fetch(port, &sql))?),
        Part::SocketServe { bytes } => socket_serve(bytes),
        Part::SocketRead { port } => print(&socket_read(port)?),
        Part::Postgres { uri, sql } => print(&Threads::Many.runtime()?.block_on(postgres(&uri, &sql))?),
        Part::RoundTrips { port, sql, count } => {
            print(&Threads::One.runtime()?.block_on(round_trips(port, &sql, count))?)
        }
        Part::Engine { sql, count } => print(&Threads::Many.runtime()?.block_on(engine(&sql, count))?),
    }
}

fn print(result: &impl Serialize) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(result)?)?)
}

impl Threads {
    fn runtime(self) -> Result<Runtime> {
        let mut builder = match self {
            Self::One => Builder::new_current_thread(),
            Self::Many => Builder::new_multi_thread(),
        };
        Ok(builder.enable_all().build()?)
    }
}

impl Transferred {
    fn since(began: Instant, rows: u64, bytes: u64) -> Result<Self> {
        let seconds = began.elapsed().as_secs_f64();
        Ok(Self { seconds, rows, bytes, peak_memory_bytes: memory_bytes("self", "VmHWM")? })
    }
}

async fn connect(port: u16) -> Result<Client> {
    Ok(Client::connect(&Endpoint::Tcp { host: "127.0.0.1".into(), port, tls: None }, "").await?)
}

async fn fetch(port: u16, sql: &str) -> Result<Transferred> {
    let options = Options { codec: Some(Codec::None), ..Options::default() };
    let mut client = connect(port).await?;
    let began = Instant::now();
    let mut transfer = client.fetch(sql, &options).await?;
    while transfer.next().await?.is_some() {}
    let report = transfer.report();
    Transferred::since(began, report.rows, report.bytes_arrow)
}

async fn postgres(uri: &str, sql: &str) -> Result<Transferred> {
    let source = PostgresSource::connect(uri).await?;
    let began = Instant::now();
    let mut answer = source.query(sql, &ReadOptions::default()).await?;
    let (mut rows, mut bytes) = (0, 0);
    while let Some(batch) = answer.batches.try_next().await? {
        rows += batch.num_rows() as u64;
        bytes += batch.get_array_memory_size() as u64;
    }
    Transferred::since(began, rows, bytes)
}

fn socket_serve(bytes: u64) -> Result<()> {
    // All of it in memory and none of it twice: what a table costs to read.
    let mut data = vec![0u8; usize::try_from(bytes)?];
    for (word, at) in data.chunks_mut(8).zip(0u64..) {
        word.copy_from_slice(&at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[..word.len()]);
    }
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    print(&listener.local_addr()?.port())?;
    loop {
        let (mut socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        // The reader says when it begins: the connection is open by then.
        socket.read_exact(&mut [0])?;
        data.chunks(SOCKET_CALL_BYTES).try_for_each(|chunk| socket.write_all(chunk))?;
    }
}

fn socket_read(port: u16) -> Result<Transferred> {
    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_nodelay(true)?;
    let mut buffer = vec![0; SOCKET_CALL_BYTES];
    let began = Instant::now();
    socket.write_all(&[1])?;
    let mut bytes = 0;
    loop {
        match socket.read(&mut buffer)? {
            0 => return Transferred::since(began, 0, bytes),
            read => bytes += read as u64,
        }
    }
}

async fn round_trips(port: u16, sql: &str, count: u32) -> Result<Latencies> {
    let mut client = connect(port).await?;
    let options = Options::default();
    let mut latencies = Vec::new();
    for _ in 0..LATENCY_WARM_UP + count {
        let began = Instant::now();
        let mut transfer = client.fetch(sql, &options).await?;
        while transfer.next().await?.is_some() {}
        drop(transfer);
        latencies.push(began.elapsed());
    }
    Ok(Latencies::of(&mut latencies[LATENCY_WARM_UP as usize..]))
}

async fn engine(sql: &str, count: u32) -> Result<Latencies> {
    let engine = Engine::new(EngineConfig::default())?;
    // As in a node: on a worker, not on the thread that waits for it.
    let sql = sql.to_owned();
    let mut latencies = tokio::spawn(async move {
        let mut latencies = Vec::new();
        for _ in 0..LATENCY_WARM_UP + count {
            let began = Instant::now();
            let rows = engine.query(&sql).await?.into_rows();
            let _batches: Vec<_> = rows.try_collect().await?;
            latencies.push(began.elapsed());
        }
        Ok::<_, Error>(latencies)
    })
    .await??;
    Ok(Latencies::of(&mut latencies[LATENCY_WARM_UP as usize..]))
}

impl Latencies {
    fn of(latencies: &mut [Duration]) -> Self {
        latencies.sort();
        let at = |share: f64| {
            let index = (latencies.len() as f64 * share) as usize;
            latencies.get(index).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6)
        };
        Self { median_us: at(0.5), p99_us: at(0.99) }
    }
}
