//! Batches of given sizes, timed one after the other, as in the thesis on fetch sizes.

use std::fs;
use std::str::FromStr;
use std::time::Duration;

use lightship_session::{Batches, Client, ClientConfig, NodeProbe, Pair, Probe};
use lightship_tuner::Sample;
use serde::{Deserialize, Serialize};

use super::fetch::endpoint;
use crate::Result;
use crate::process::processor_seconds;

/// How long each pair is timed: a link lets an initial burst pass faster than what follows.
const ENOUGH: Duration = Duration::from_millis(150);
/// How long rows are streamed first. This opens TCP's window: pairs on a connection in slow start fit no plane.
const STREAMED: Duration = Duration::from_secs(2);
const SQL: &str = "rows";

/// Rows of a batch, and bytes of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes(u32, u32);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sizes = || {
            let (rows, bytes) = text.split_once(':')?;
            Some(Self(rows.parse().ok()?, bytes.parse().ok()?))
        };
        sizes().ok_or_else(|| format!("expected ROWS:BYTES, not `{text}`"))
    }
}

/// The times of a pair of sizes, and what both ends did meanwhile, the first batch included.
#[derive(Serialize, Deserialize)]
pub(crate) struct TimedSizes {
    pub(crate) sample: Sample,
    /// Segments of TCP that this host received.
    pub(crate) segments: u64,
    /// Bytes that its interfaces received, headers of all layers included.
    pub(crate) received_bytes: u64,
    /// Processor time of this process.
    pub(crate) receiver_seconds: f64,
    /// Processor time of the server.
    pub(crate) sender_seconds: f64,
}

/// Times each pair. `server` is the number of the server's process. The result is in the order of the pairs.
pub(super) async fn time(
    host: &str,
    port: u16,
    server: u32,
    batches: u32,
    sizes: &[Sizes],
) -> Result<Vec<TimedSizes>> {
    let config = ClientConfig { shared_memory: false, ..ClientConfig::default() };
    let mut client = Client::connect_with(&endpoint(host, port), &config).await?;
    let mut probe = NodeProbe::new(&mut client, SQL);
    let row_bytes = probe.row_bytes().await?.ok_or("no rows")?;
    probe.rate(STREAMED).await?;
    let batches = Batches { min: batches, enough: ENOUGH };
    let mut timed = Vec::new();
    for &Sizes(batch_rows, message_bytes) in sizes {
        let before = Counters::read(server)?;
        let sample = probe.time(&Pair { batch_rows, row_bytes, message_bytes, batches }).await?;
        let after = Counters::read(server)?;
        timed.push(TimedSizes {
            sample: sample.ok_or_else(|| format!("too few rows for batches of {batch_rows}"))?,
            segments: after.segments - before.segments,
            received_bytes: after.received_bytes - before.received_bytes,
            receiver_seconds: after.receiver_seconds - before.receiver_seconds,
            sender_seconds: after.sender_seconds - before.sender_seconds,
        });
    }
    Ok(timed)
}

/// What the kernel has counted so far.
struct Counters {
    segments: u64,
    received_bytes: u64,
    receiver_seconds: f64,
    sender_seconds: f64,
}

impl Counters {
    fn read(server: u32) -> Result<Self> {
        // A packet that the kernel has joined counts once.
        let segments = crate::links::tcp_count(&fs::read_to_string("/proc/self/net/snmp")?, "InSegs");
        let interfaces = fs::read_to_string("/proc/self/net/dev")?;
        let received = [true, false].map(|loopback| crate::links::sum_received(&interfaces, loopback));
        Ok(Self {
            segments: segments.ok_or("/proc/net/snmp has no segments of TCP")?,
            received_bytes: received.into_iter().flatten().sum(),
            receiver_seconds: processor_seconds("self")?,
            sender_seconds: processor_seconds(&server.to_string())?,
        })
    }
}
