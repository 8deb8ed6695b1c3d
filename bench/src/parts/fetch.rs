//! Our client: a result, or many small ones.

use std::time::Instant;

use clap::Args;
use lightship_session::{Client, ClientConfig, Endpoint, Memory, Options};

use super::{Latencies, Threads, Transferred};
use crate::Result;
use crate::settings::CodecChoice;

/// Round trips before those that count.
const WARM_UP: u32 = 200;
/// Bytes on their way where the size of messages is what is studied: enough for
/// any link, and the same for all sizes that fit.
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
    /// Over the socket even where both ends share a host
    #[arg(long)]
    tcp: bool,
    #[arg(long, value_enum, default_value_t = Threads::One)]
    pub(super) threads: Threads,
}

impl Fetch {
    fn options(&self) -> Options {
        let options = Options { codec: self.codec.0, ..Options::default() };
        let Some(message_bytes) = self.message_bytes else { return options };
        let message = u64::from(message_bytes).max(1);
        let window = (WINDOW_BYTES / message).clamp(1, WINDOW_BATCHES_MAX);
        Options {
            memory: Memory(2 * window * message),
            message_bytes: Some(message_bytes),
            window_batches: u32::try_from(window).ok(),
            ..options
        }
    }

    pub(super) async fn run(&self) -> Result<Transferred> {
        let config = ClientConfig { shared_memory: !self.tcp, ..ClientConfig::default() };
        let mut client = Client::connect_with(&endpoint(&self.host, self.port), &config).await?;
        let began = Instant::now();
        let mut transfer = client.fetch(&self.sql, &self.options()).await?;
        while transfer.next().await?.is_some() {}
        let report = transfer.report();
        let done = Transferred::since(began, report.rows, report.bytes_arrow)?;
        let plan_memory_bytes = report.plan.memory_bytes();
        Ok(Transferred { wire_bytes: report.bytes_wire, plan_memory_bytes, ..done })
    }
}

pub(super) async fn round_trips(port: u16, sql: &str, count: u32) -> Result<Latencies> {
    let mut client = Client::connect(&endpoint("127.0.0.1", port), "").await?;
    let options = Options::default();
    let mut latencies = Vec::new();
    for _ in 0..WARM_UP + count {
        let began = Instant::now();
        let mut transfer = client.fetch(sql, &options).await?;
        while transfer.next().await?.is_some() {}
        drop(transfer);
        latencies.push(began.elapsed());
    }
    Ok(Latencies::of(&mut latencies[WARM_UP as usize..]))
}

pub(super) fn endpoint(host: &str, port: u16) -> Endpoint {
    Endpoint::Tcp { host: host.into(), port, tls: None }
}
