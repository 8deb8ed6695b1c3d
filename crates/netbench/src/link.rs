//! Measures what a link can do at most: both directions, each alone, and the round trip.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::connect::ClientConnection;
use crate::cpu::Meter;
use crate::error::{ConnectionError, NetbenchError};
use crate::host::Target;
use crate::row::{Cell, Settings};
use crate::run::{WARM_UP, flood, pings};
use crate::wire::Mode;

/// Connections of a direction: one may be limited by the window of its receiver.
const CONNECTIONS: u32 = 4;
/// Bytes of a message that fills the link.
const MESSAGE_BYTES: u32 = 64 << 10;
/// Bytes of a message that fits into one packet.
const SMALL_MESSAGE_BYTES: u32 = 64;

/// What a link can do at most, as seen from the host that measures it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkRates {
    /// Bytes per second that this host receives.
    pub received_bytes_per_second: f64,
    /// Bytes per second that this host sends, counted by the other one.
    pub sent_bytes_per_second: f64,
    /// The median of the time from a small message to its answer, in seconds.
    pub round_trip_seconds: f64,
}

/// Measures the link to a server: the round trip, then sending, then receiving. Each takes a third of `length`, and a
/// fifth more in which TCP's windows open.
///
/// # Errors
/// [`NetbenchError::Host`] if a part can't be measured.
pub async fn measure_link(target: &Target, length: Duration) -> Result<LinkRates, NetbenchError> {
    let fail = |fault| NetbenchError::Host { host: target.host.to_string(), fault };
    let seconds = length.as_secs_f64() / 3.0;
    let settings = Settings { seconds, latency_seconds: seconds, ..Settings::default() };
    let targets = std::slice::from_ref(target);
    let small = Cell { connections: 1, message_bytes: SMALL_MESSAGE_BYTES };
    let (latency, failures) = pings(targets, &settings, small).await;
    let latency = latency.ok_or_else(|| fail(nothing(failures.first)))?;
    let large = Cell { connections: CONNECTIONS, message_bytes: MESSAGE_BYTES };
    let sent = flood(targets, &settings, large, &Meter::open()).await;
    let sent_bytes_per_second = sent.bytes_per_second.filter(|rate| *rate > 0.0);
    Ok(LinkRates {
        round_trip_seconds: latency.p50_us / 1e6,
        sent_bytes_per_second: sent_bytes_per_second.ok_or_else(|| fail(nothing(sent.failures.first)))?,
        received_bytes_per_second: received(target, settings.length()).await.map_err(fail)?,
    })
}

fn nothing(why: Option<String>) -> ConnectionError {
    ConnectionError::Broke(std::io::Error::other(why.unwrap_or_else(|| "no message arrived".to_owned())))
}

/// Bytes per second that arrive from a server over [`CONNECTIONS`].
async fn received(target: &Target, length: Duration) -> Result<f64, ConnectionError> {
    let wanted = vec![(target.address, 0); CONNECTIONS as usize];
    let counted = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for opened in ClientConnection::all(wanted, Mode::Supply, MESSAGE_BYTES, true).await {
        let (opened, counted) = (opened?, counted.clone());
        tasks.spawn(async move { opened.receive(&counted).await });
    }
    let measuring = async {
        tokio::time::sleep(length.mul_f64(WARM_UP)).await;
        let (began, before) = (Instant::now(), counted.load(Ordering::Relaxed));
        tokio::time::sleep(length).await;
        (counted.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64()
    };
    tokio::select! {
        rate = measuring => match rate > 0.0 {
            true => Ok(rate),
            false => Err(nothing(None)),
        },
        Some(ended) = tasks.join_next() => Err(ended.unwrap_or_else(|error| nothing(Some(error.to_string())))),
    }
}
