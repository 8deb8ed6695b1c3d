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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;
    use std::sync::{Arc, Mutex};

    use arrow_schema::{DataType, Field, Schema};
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use lightship_transport::net::blobs;
    use proptest::prelude::*;
    use tokio::net::UdpSocket;

    use super::*;
    use crate::network::{Network, Reply};
    use crate::request::{BucketEntry, Directory, Request};
    use crate::{Capacity, ClientOptions, Definition};

    const NODE: &str = "n";

    /// A node whose announcements are sent as they are here: the sender's order, and how often each.
    struct Announcing {
        notices: Mutex<Vec<BucketEntry>>,
        /// Before each announcement, another one that must not count.
        has_strangers: bool,
    }

    impl Network for Announcing {
        fn nodes(&self) -> Vec<String> {
            vec![NODE.into()]
        }

        fn request(&self, _: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
            let answer = match Request::decode(&*body).unwrap().kind {
                Some(RequestKind::Locate(_)) => {
                    let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
                    let definition =
                        Definition::new("t", &schema, &["id".into()], Capacity::default()).unwrap();
                    let file = definition.to_record().unwrap();
                    let directory = Directory { file, nodes: vec![NODE.into()], ..Directory::default() };
                    blobs(futures::stream::iter([Ok(directory.encode_to_vec())]))
                }
                Some(RequestKind::Advertise(advertise)) => {
                    let (notices, has_strangers) = (self.notices.lock().unwrap().clone(), self.has_strangers);
                    let sending = async move {
                        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
                        let port = u16::try_from(advertise.port).unwrap();
                        for bucket in notices {
                            let stranger = BucketEntry { bucket: 99, epoch: 99, ..bucket.clone() };
                            let elsewhere = BucketEntry { node: "elsewhere".into(), ..stranger.clone() };
                            let token = advertise.token.clone();
                            let mut sent = vec![Notice { token: token.clone(), bucket }];
                            if has_strangers {
                                sent.insert(0, Notice { token: vec![7; 16], bucket: stranger });
                                sent.insert(0, Notice { token, bucket: elsewhere });
                            }
                            for notice in sent {
                                let bytes = notice.encode_to_vec();
                                socket.send_to(&bytes, (Ipv4Addr::LOCALHOST, port)).await.unwrap();
                            }
                        }
                        std::future::pending().await
                    };
                    blobs(sending.into_stream())
                }
                kind => panic!("{kind:?}"),
            };
            async { Ok(answer.into()) }.boxed()
        }
    }

    fn entry(bucket: u64, epoch: u64, low: u8, high: u8) -> BucketEntry {
        let key = |end: u8| vec![end];
        let range =
            Interval::new(if low == 0 { Vec::new() } else { key(low) }, (high > 0).then(|| key(high)));
        BucketEntry { bucket, node: NODE.into(), range: (&range).into(), epoch, ..BucketEntry::default() }
    }

    /// The image of a client after announcements.
    async fn learned(notices: Vec<BucketEntry>, has_strangers: bool) -> Image {
        let network = Announcing { notices: Mutex::new(notices), has_strangers };
        let file = RangeFile::open(Arc::new(network), "t", ClientOptions::default()).await.unwrap();
        learn_announced(&file, &[Interval::ALL]).await.unwrap();
        file.image()
    }

    fn pieces(image: &Image) -> Vec<(Interval, u64)> {
        image.owners().map(|(interval, owner)| (interval, owner.bucket)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

        /// Buckets that split while they are announced: the messages of before and of after arrive in any order, any number
        /// of times.
        #[test]
        fn announcements_may_be_doubled_and_arrive_in_any_order(
            bounds in prop::collection::btree_set(1..250_u8, 0..12),
            has_old in any::<bool>(),
            has_strangers in any::<bool>(),
            copies in 1..4_usize,
            seed in any::<u64>(),
        ) {
            let ends: Vec<u8> = [0].into_iter().chain(bounds.iter().copied()).collect();
            let after = |index: usize| ends.get(index + 1).copied().unwrap_or(0);
            let last = ends.len() as u64;
            let latest: Vec<BucketEntry> =
                ends.iter().enumerate().map(|(index, low)| entry(index as u64, last, *low, after(index))).collect();
            // As each bucket was before it gave keys to the next ones.
            let old = ends.iter().enumerate().map(|(index, low)| entry(index as u64, index as u64, *low, 0));
            let mut notices: Vec<BucketEntry> = latest.clone();
            if has_old {
                notices.extend(old);
            }
            notices = notices.iter().flat_map(|notice| std::iter::repeat_n(notice.clone(), copies)).collect();
            fastrand::Rng::with_seed(seed).shuffle(&mut notices);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let found = pieces(&runtime.block_on(learned(notices, has_strangers)));
            // Each key has one owner, which has announced it.
            let whole: Vec<_> = found.windows(2).map(|pair| pair[0].0.high == Some(pair[1].0.low.clone())).collect();
            prop_assert!(whole.iter().all(|is_next| *is_next), "{found:?}");
            prop_assert!(found[0].0.low.is_empty() && found[found.len() - 1].0.high.is_none());
            let buckets: BTreeSet<u64> = found.iter().map(|(_, bucket)| *bucket).collect();
            prop_assert!(buckets.iter().all(|bucket| *bucket < last), "{found:?}");
            if !has_old {
                let expected: Vec<(Interval, u64)> =
                    latest.into_iter().map(|entry| (entry.range.into(), entry.bucket)).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
