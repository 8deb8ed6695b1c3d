//! Announcements: a small UDP message for each bucket that meets an interval (announce and pull).
//!
//! They go only to the address that the request has come from. They are repeated, ever more rarely, until the client
//! drops the answer of the request. Nothing depends on them: a client that misses some asks by TCP.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use lightship_transport::net::{Answer, Caller, blobs};
use lightship_transport::proto::reception::{
    ReceptionStrategy, Sender, SenderAction, SenderConfig, SenderEvent,
};
use prost::Message;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep, sleep_until};

use super::Node;
use super::deliver::{address_of, token};
use crate::error::Result;
use crate::key::Interval;
use crate::request::{Advertise, BucketEntry, NOTICE_BYTES_MAX, Notice};

/// Messages that are sent without a pause.
const BURST: u32 = 16;
/// The pause after them: with it, announcements are at most 20 MB/s, and a client's buffer has room for them.
const BURST_PAUSE: Duration = Duration::from_millis(1);
/// Time of a client for an announcement. They are spread over twice as much for each.
const NOTICE_TIME: Duration = Duration::from_micros(10);

impl Node {
    /// Announces the buckets that meet an interval to the caller. The answer has no rows, and ends when the client
    /// drops it, or has not for a minute.
    pub(super) fn advertise(&self, advertise: Advertise, caller: &Caller) -> Result<Answer> {
        let target = address_of(caller, advertise.port)?;
        let token = token(&advertise.token)?;
        let wanted: Interval = advertise.range.into();
        let entries = self.file(&advertise.file)?.entries(&self.shared.name);
        let notices = entries
            .into_iter()
            .filter(|entry| Interval::from(entry.range.clone()).meets(&wanted))
            .filter_map(|entry| notice(token.as_bytes(), entry))
            .collect();
        // If they can't be sent, the client asks by TCP.
        let announced = announce(target, notices).map(move |sent| {
            if let Err(error) = sent {
                tracing::info!(%error, %target, "announcements could not be sent");
            }
        });
        Ok(blobs(announced.into_stream().filter_map(|()| async { None })))
    }
}

/// The bytes of an announcement; `None` if they are too many, because the keys are long.
fn notice(token: &[u8], bucket: BucketEntry) -> Option<Vec<u8>> {
    let whole = Notice { token: token.to_vec(), bucket };
    if whole.encoded_len() <= NOTICE_BYTES_MAX {
        return Some(whole.encode_to_vec());
    }
    // The text is only for errors, the load for reports.
    let bucket = BucketEntry { low_text: String::new(), load: None, ..whole.bucket };
    let brief = Notice { bucket, ..whole };
    (brief.encoded_len() <= NOTICE_BYTES_MAX).then(|| brief.encode_to_vec())
}

/// Sends announcements until all senders have given up.
async fn announce(target: SocketAddr, notices: Vec<Vec<u8>>) -> std::io::Result<()> {
    let any = if target.is_ipv4() {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
    } else {
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
    };
    let socket = UdpSocket::bind(any).await?;
    let mut random = fastrand::Rng::new();
    let now = || Instant::now().into_std();
    let config = SenderConfig {
        announce_spread: NOTICE_TIME * 2 * u32::try_from(notices.len()).unwrap_or(u32::MAX),
        ..SenderConfig::default()
    };
    let strategy = ReceptionStrategy::Pull { connections: 1 };
    let mut senders = Vec::with_capacity(notices.len());
    let mut agenda = BTreeSet::new();
    for index in 0..notices.len() {
        let sender = Sender::new(config, strategy, now(), &mut random).map_err(std::io::Error::other)?;
        agenda.insert((now(), index));
        senders.push(sender);
    }
    let mut sent = 0u32;
    while let Some((at, index)) = agenda.pop_first() {
        sleep_until(at.into()).await;
        let sender = &mut senders[index];
        sender.handle(SenderEvent::Tick, now(), &mut random);
        match sender.next_action() {
            Some(SenderAction::Announce) => {
                // A client that has gone refuses them; it also drops the answer.
                let _ = socket.send_to(&notices[index], target).await;
                sent += 1;
                if sent.is_multiple_of(BURST) {
                    sleep(BURST_PAUSE).await;
                }
            }
            Some(SenderAction::End(_) | SenderAction::Connect) => continue,
            None => {}
        }
        agenda.extend(sender.deadline().map(|at| (at, index)));
    }
    Ok(())
}
