//! Learns where the buckets of intervals are from announcements (announce and pull).

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use lightship_transport::TransportError;
use lightship_transport::net::{PushToken, bind_datagrams};
use prost::Message;
use tokio::time::{Instant, timeout_at};

use crate::client::RangeFile;
use crate::error::{RangeError, Result};
use crate::image::Image;
use crate::key::Interval;
use crate::network::tell;
use crate::request::{Advertise, NOTICE_BYTES_MAX, Notice, RequestKind};

/// After so long without a new announcement, the nodes are asked by TCP: UDP is blocked, or buckets are splitting.
/// Announcements are repeated several times in this time.
const QUIET: Duration = Duration::from_millis(500);
/// Asks all nodes to announce their buckets that meet the intervals, and learns them. Returns when these cover the
/// intervals or, without that, after a quiet time, or if no node announces any: what is unknown then is asked for by
/// TCP.
///
/// # Errors
/// If the system has no socket for it.
pub(super) async fn learn_announced(file: &RangeFile, intervals: &[Interval]) -> Result<()> {
    let (Some(first), Some(last)) = (intervals.first(), intervals.last()) else { return Ok(()) };
    let unusable = |error: std::io::Error| RangeError::from(TransportError::Io(error));
    let socket = bind_datagrams().map_err(unusable)?;
    let port = socket.local_addr().map_err(unusable)?.port();
    let token = PushToken::random()?;
    let advertise = Advertise {
        file: file.definition().name.clone(),
        range: (&Interval::new(first.low.clone(), last.high.clone())).into(),
        port: port.into(),
        token: token.as_bytes().to_vec(),
    };
    // Dropped at the end, so that the nodes send no more.
    let mut requests: FuturesUnordered<_> = file
        .nodes()
        .into_iter()
        .map(|node| {
            let (advertise, network) = (advertise.clone(), file.shared.network.clone());
            async move { tell(&network, &node, RequestKind::Advertise(advertise)).await }
        })
        .collect();
    // What was known before may be out of date, but not what is announced.
    let mut announced = Image::default();
    let mut quiet = Instant::now() + QUIET;
    let mut bytes = vec![0; NOTICE_BYTES_MAX];
    // Other messages, however many, do not prolong it.
    while Instant::now() < quiet {
        tokio::select! {
            biased;
            received = timeout_at(quiet, socket.recv_from(&mut bytes)) => {
                let Ok(received) = received else { return Ok(()) };
                let (mut length, _) = received.map_err(unusable)?;
                let mut is_new = false;
                // All that wait, before looking whether they cover the intervals.
                loop {
                    is_new |= learn(file, &token, &bytes[..length], &mut announced);
                    match socket.try_recv_from(&mut bytes) {
                        Ok((next, _)) if Instant::now() < quiet => length = next,
                        _ => break,
                    }
                }
                if is_new {
                    quiet = Instant::now() + QUIET;
                    let mut pieces = intervals.iter().flat_map(|interval| announced.route(interval));
                    if pieces.all(|(_, owner)| owner.is_some()) {
                        return Ok(());
                    }
                }
            }
            Some(ended) = requests.next() => {
                // Other nodes may have all that is needed.
                if let Err(error) = ended {
                    tracing::debug!(%error, "a node does not announce its buckets");
                }
                if requests.is_empty() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Learns of a bucket. Returns whether it was new.
fn learn(file: &RangeFile, token: &PushToken, bytes: &[u8], announced: &mut Image) -> bool {
    let Ok(notice) = Notice::decode(bytes) else { return false };
    let bucket = notice.bucket;
    // Messages are not encrypted: one who reads them can send others, so they name no new nodes.
    if !token.is(&notice.token) || !file.nodes().contains(&bucket.node) {
        return false;
    }
    let range: Interval = bucket.range.clone().into();
    let known = announced.route(&range);
    let is_known = |owner: &crate::image::Owner| owner.bucket == bucket.bucket && owner.epoch == bucket.epoch;
    let is_new = known.is_empty()
        || known.iter().any(|(_, owner)| owner.as_ref().is_none_or(|owner| !is_known(owner)));
    if is_new {
        announced.learn(&bucket);
        file.locked_image().learn(&bucket);
    }
    is_new
}
