//! The Lightship client: one result, or many small ones.

use std::io::Write as _;
use std::num::NonZeroU32;
use std::time::Instant;

use clap::Args;
use lightship_session::{Client, ClientConfig, Endpoint, LinkPrior, Memory, Options, Retune};

use super::{Latencies, Threads, TransferResult};
use crate::Result;
use crate::settings::CodecChoice;

/// Warm-up round trips, which do not count.
const WARM_UP: u32 = 200;
/// Bytes in flight when the message size is varied: enough for any link, and the same for all sizes
/// that fit.
const WINDOW_BYTES: u64 = 16 << 20;
const WINDOW_BATCHES_MAX: u64 = 1024;

/// Which result, from where, and how.
#[derive(Args, Debug)]
pub(crate) struct Fetch {
    host: String,
    port: u16,
    sql: String,
    #[arg(long, default_value = "auto")]
    codec: CodecChoice,
    /// Bytes of a message
    #[arg(long)]
    message_bytes: Option<u32>,
    /// Rows of a batch; one batch is then in flight
    #[arg(long)]
    batch_rows: Option<u32>,
    /// Messages in flight; 16 MiB of them if only their size is given
    #[arg(long, requires = "message_bytes")]
    window: Option<u32>,
    /// Connections that carry rows
    #[arg(long)]
    streams: Option<NonZeroU32>,
    /// Known pace of the link, in bytes of rows a second
    #[arg(long)]
    pace: Option<f64>,
    /// Keep all batches until the clock has stopped
    #[arg(long)]
    keep: bool,
    /// Print a line when the query is sent
    #[arg(long)]
    announce: bool,
    /// Use the socket even if both ends share a host
    #[arg(long)]
    tcp: bool,
    #[arg(long, value_enum, default_value_t = Threads::One)]
    pub(super) threads: Threads,
}

impl Fetch {
    fn options(&self) -> Options {
        let known = LinkPrior { bytes_per_second: self.pace, ..LinkPrior::default() };
        let options = Options { codec: self.codec.0, known, streams: self.streams, ..Options::default() };
        let Some(message_bytes) = self.message_bytes else { return options };
        if self.batch_rows.is_some() {
            let (batch_rows, message_bytes) = (self.batch_rows, Some(message_bytes));
            return Options { batch_rows, message_bytes, window_batches: Some(1), ..options };
        }
        let message = u64::from(message_bytes).max(1);
        let usual = (WINDOW_BYTES / message).clamp(1, WINDOW_BATCHES_MAX);
        let window = self.window.map_or(usual, u64::from);
        Options {
            memory: Memory(2 * window * message),
            message_bytes: Some(message_bytes),
            window_batches: u32::try_from(window).ok(),
            ..options
        }
    }

    pub(super) async fn run(&self) -> Result<TransferResult> {
        let config = ClientConfig { shared_memory: !self.tcp, ..ClientConfig::default() };
        let mut client = Client::connect_with(&endpoint(&self.host, self.port), &config).await?;
        if self.announce {
            writeln!(std::io::stdout(), "asking")?;
        }
        let began = Instant::now();
        let mut transfer = client.fetch(&self.sql, &self.options()).await?;
        let mut kept = Vec::new();
        while let Some(batch) = transfer.next().await? {
            if self.keep {
                kept.push(batch);
            }
        }
        let report = transfer.report();
        let done = TransferResult::since(began, report.rows, report.bytes_arrow)?;
        let plan_memory_bytes = u64::from(report.plan.window_batches) * u64::from(report.plan.batch_bytes);
        let widened = report.retunes.iter().rev().find_map(|retune| match retune {
            Retune::Streams { streams, .. } => Some(*streams),
            _ => None,
        });
        let connections = widened.unwrap_or(report.plan.streams);
        Ok(TransferResult { wire_bytes: report.bytes_wire, plan_memory_bytes, connections, ..done })
    }
}

pub(super) async fn round_trips(port: u16, sql: &str, count: u32) -> Result<Latencies> {
    let mut client = Client::connect(&endpoint("127.0.0.1", port), "").await?;
    latencies(&mut client, sql, &Options::default(), WARM_UP, count).await
}

impl Fetch {
    /// Fetches the same result repeatedly on one connection.
    pub(super) async fn repeat(&self, count: u32) -> Result<Latencies> {
        let config = ClientConfig { shared_memory: !self.tcp, ..ClientConfig::default() };
        let mut client = Client::connect_with(&endpoint(&self.host, self.port), &config).await?;
        latencies(&mut client, &self.sql, &self.options(), 1, count).await
    }
}

async fn latencies(
    client: &mut Client,
    sql: &str,
    options: &Options,
    warm_up: u32,
    count: u32,
) -> Result<Latencies> {
    let mut latencies = Vec::new();
    for _ in 0..warm_up + count {
        let began = Instant::now();
        let mut transfer = client.fetch(sql, options).await?;
        while transfer.next().await?.is_some() {}
        drop(transfer);
        latencies.push(began.elapsed());
    }
    Ok(Latencies::of(&mut latencies[warm_up as usize..]))
}

pub(super) fn endpoint(host: &str, port: u16) -> Endpoint {
    Endpoint::Tcp { host: host.into(), port, tls: None }
}
