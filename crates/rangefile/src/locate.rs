//! Asks a node where the buckets of a file are, page by page and within a limit of bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prost::Message;

use crate::error::{RangeError, Result};
use crate::image::IMAGE_BYTES_MAX;
use crate::key::Interval;
use crate::network::{Network, ask_one, unexpected};
use crate::request::{Directory, Locate, RequestKind};

/// Bytes of the buckets in an answer, unless a single one has more.
pub(crate) const PAGE_BYTES: usize = 1 << 20;

/// The memory for what several nodes answer to one question.
#[derive(Debug)]
pub(crate) struct Room(AtomicUsize);

impl Default for Room {
    fn default() -> Self {
        Self::new(IMAGE_BYTES_MAX)
    }
}

impl Room {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }

    /// Takes bytes, or fails if so many are not left.
    fn take(&self, bytes: usize) -> Result<()> {
        let left = |left: usize| left.checked_sub(bytes);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        taken.map(drop).map_err(|_| RangeError::TooManyBuckets { bytes_max: IMAGE_BYTES_MAX })
    }
}

/// What a node knows of a file: all buckets, or only its own.
///
/// # Errors
/// [`RangeError::TooManyBuckets`] if there is no room for the answer; or that the node fails, can't be reached, or
/// answers something else.
pub(crate) async fn locate(
    network: &Arc<dyn Network>,
    node: &str,
    file: &str,
    own: bool,
    room: &Room,
) -> Result<Directory> {
    locate_all(network, node, Locate { file: file.to_owned(), own, ..Locate::default() }, room).await
}

/// Which of its own buckets a node has in an interval. It may answer with others, too.
///
/// # Errors
/// As [`locate`].
pub(crate) async fn locate_within(
    network: &Arc<dyn Network>,
    node: &str,
    file: &str,
    interval: &Interval,
    room: &Room,
) -> Result<Directory> {
    let within = Some(interval.into());
    locate_all(network, node, Locate { file: file.to_owned(), own: true, within, ..Locate::default() }, room)
        .await
}

async fn locate_all(
    network: &Arc<dyn Network>,
    node: &str,
    mut request: Locate,
    room: &Room,
) -> Result<Directory> {
    let mut whole: Option<Directory> = None;
    loop {
        let page: Directory = ask_one(network, node, RequestKind::Locate(request.clone())).await?;
        room.take(page.encoded_len())?;
        let next = page.next.clone();
        let directory = match &mut whole {
            None => whole.insert(page),
            Some(whole) if whole.file == page.file => {
                whole.buckets.extend(page.buckets);
                whole
            }
            // It was dropped meanwhile.
            Some(whole) => return Err(RangeError::NoFile(std::mem::take(&mut whole.file.name))),
        };
        match next {
            Some(next) if next > request.from => request.from = next,
            Some(_) => return Err(unexpected(node)),
            None => {
                directory.next = None;
                return Ok(whole.unwrap_or_default());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::FutureExt;
    use futures::future::BoxFuture;
    use lightship_transport::net::blobs;

    use super::*;
    use crate::network::Reply;
    use crate::request::{BucketEntry, Request};

    /// A node that answers with pages.
    struct Pages(Mutex<Box<dyn FnMut(Locate) -> Vec<u8> + Send>>);

    impl Network for Pages {
        fn nodes(&self) -> Vec<String> {
            vec!["n".into()]
        }

        fn request(&self, _: &str, body: Vec<u8>) -> BoxFuture<'static, Result<Reply>> {
            let Some(RequestKind::Locate(locate)) = Request::decode(&*body).unwrap().kind else { panic!() };
            let answer = self.0.lock().unwrap()(locate);
            async { Ok(blobs(futures::stream::iter([Ok(answer)])).into()) }.boxed()
        }
    }

    async fn asked(room: usize, page: impl FnMut(Locate) -> Vec<u8> + Send + 'static) -> Result<Directory> {
        let network: Arc<dyn Network> = Arc::new(Pages(Mutex::new(Box::new(page))));
        locate(&network, "n", "t", true, &Room::new(room)).await
    }

    /// A bucket, and that others follow.
    fn page(low: u8, next: u8) -> Vec<u8> {
        let mut bucket = BucketEntry { bucket: low.into(), ..BucketEntry::default() };
        bucket.range.low = vec![low];
        Directory { buckets: vec![bucket], next: (next > 0).then(|| vec![next]), ..Directory::default() }
            .encode_to_vec()
    }

    #[tokio::test]
    async fn all_pages_are_read() {
        let next = |locate: Locate| match locate.from.first() {
            None => page(1, 5),
            Some(5) => page(5, 9),
            _ => page(9, 0),
        };
        let found = asked(1000, next).await.unwrap();
        let found: Vec<u64> = found.buckets.iter().map(|bucket| bucket.bucket).collect();
        assert_eq!(found, [1, 5, 9]);
    }

    #[tokio::test]
    async fn pages_without_end_are_refused() {
        let error = asked(1000, |locate| page(0, locate.from.first().map_or(1, |low| low + 1))).await;
        assert!(matches!(error, Err(RangeError::TooManyBuckets { .. })), "{error:?}");
        let error = asked(1000, |_| page(0, 7)).await.unwrap_err();
        assert!(error.to_string().contains("unexpected answer"), "{error}");
    }
}
