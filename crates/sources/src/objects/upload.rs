//! Uploads of objects, which appear whole or not at all.
//!
//! A small object is sent with one request. A larger one is sent in parts, which the store puts together at the end; until
//! then nobody sees it. An upload that fails, or is dropped, is aborted, so that the store forgets the parts. A process that is
//! killed can't do that: buckets have rules that remove such parts.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path as Key;
use object_store::{MultipartUpload, ObjectStoreExt as _, PutPayload};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::{ObjectError, ObjectErrorKind, ObjectLocation, ObjectScheme, Store};

/// Size of the first parts: the smallest that S3 takes.
const PART_BYTES_MIN: usize = 5 << 20;
/// Parts of the same size. Each further such number has parts of twice the size, so that 10,000 parts, the most that S3
/// takes, suffice for 5 TB, its largest object.
const PARTS_OF_A_SIZE: usize = 1000;
const PARTS_MAX: usize = 10_000;
/// Bytes of parts that are being sent while the next one is filled. One part is sent in any case.
const SENDING_BYTES_MAX: usize = 10 << 20;
/// How long a store may take to forget an upload.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long parts that are being sent may take to arrive before their upload is aborted. A store that has all bytes of a part
/// keeps it, even if the upload is aborted before it is stored; one that has only some does not.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(3);

/// The size of part `number`, from 0.
fn part_bytes(number: usize) -> usize {
    PART_BYTES_MIN << (number / PARTS_OF_A_SIZE).min(PARTS_MAX / PARTS_OF_A_SIZE)
}

/// Ends an upload that waits for the server.
#[derive(Debug, Clone)]
pub(crate) struct Cancel(watch::Sender<bool>);

impl Cancel {
    pub(crate) fn cancel(&self) {
        self.0.send_replace(true);
    }
}

/// Waits for the server from a thread that may block.
struct Waiter {
    /// Its own, so that parts are sent while the next ones are encoded, whatever the caller's threads wait for. `Some`
    /// until it is dropped.
    runtime: Option<Runtime>,
    location: ObjectLocation,
    cancelled: watch::Sender<bool>,
}

impl Waiter {
    /// Waits for the work, or for [`Cancel::cancel`].
    fn wait<T>(&self, work: impl Future<Output = object_store::Result<T>>) -> Result<T, ObjectError> {
        let Some(runtime) = &self.runtime else { return Err(self.stopped()) };
        let mut cancelled = self.cancelled.subscribe();
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = cancelled.wait_for(|cancelled| *cancelled) => Err(self.stopped()),
                done = work => done.map_err(|error| self.explain(&error)),
            }
        })
    }

    fn explain(&self, error: &object_store::Error) -> ObjectError {
        ObjectError::of(&self.location.to_string(), self.location.scheme(), error)
    }

    fn stopped(&self) -> ObjectError {
        self.refusal("the upload was stopped", None)
    }

    fn refusal(&self, reason: &str, hint: Option<&str>) -> ObjectError {
        refusal(&self.location, reason, hint)
    }
}

fn refusal(location: &ObjectLocation, reason: &str, hint: Option<&str>) -> ObjectError {
    ObjectError {
        object: location.to_string(),
        reason: reason.to_owned(),
        hint: hint.map(str::to_owned),
        kind: ObjectErrorKind::Other,
    }
}

/// An object that is being written. If it is dropped before [`Self::commit`], no object appears.
pub(crate) struct Upload {
    store: Store,
    key: Key,
    /// The bytes of the next part.
    part: Vec<u8>,
    /// Number of parts before it.
    parts: usize,
    sending: VecDeque<JoinHandle<object_store::Result<()>>>,
    /// `Some` from the first part until the object is complete.
    upload: Option<Box<dyn MultipartUpload>>,
    waiter: Waiter,
}

impl Upload {
    pub(crate) fn open(location: &ObjectLocation) -> Result<Self, ObjectError> {
        if location.scheme() == ObjectScheme::Http {
            let hint = "write to s3://, gs:// or az://, or to a local file";
            return Err(refusal(location, "files of a web server are only read", Some(hint)));
        }
        if location.is_prefix() {
            let hint = "add a name, as in s3://bucket/result.parquet";
            return Err(refusal(location, "it names no object", Some(hint)));
        }
        let store = Store::of(location)?;
        let threads = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lightship-upload")
            .enable_all()
            .build();
        let runtime = threads.map_err(|e| refusal(location, &format!("cannot start a thread: {e}"), None))?;
        let cancelled = watch::Sender::new(false);
        let waiter = Waiter { runtime: Some(runtime), location: location.clone(), cancelled };
        let (part, sending) = (Vec::new(), VecDeque::new());
        Ok(Self { store, key: location.key(), part, parts: 0, sending, upload: None, waiter })
    }

    pub(crate) fn canceller(&self) -> Cancel {
        Cancel(self.waiter.cancelled.clone())
    }

    /// Adds bytes. Waits while too much is being sent.
    pub(crate) fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let missing = part_bytes(self.parts).saturating_sub(self.part.len());
            let (now, later) = bytes.split_at(missing.min(bytes.len()));
            self.part.extend_from_slice(now);
            bytes = later;
            if self.part.len() >= part_bytes(self.parts) {
                self.send_part().map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    /// Sends what is left, and makes the object visible.
    pub(crate) fn commit(mut self) -> io::Result<()> {
        self.finish().map_err(io::Error::other)
    }

    fn finish(&mut self) -> Result<(), ObjectError> {
        if self.upload.is_none() {
            let payload = PutPayload::from(std::mem::take(&mut self.part));
            self.waiter.wait(self.store.put(&self.key, payload))?;
            return Ok(());
        }
        if !self.part.is_empty() {
            self.send_part()?;
        }
        self.wait_until_sending(0)?;
        if let Some(upload) = &mut self.upload {
            self.waiter.wait(upload.complete())?;
        }
        self.upload = None;
        Ok(())
    }

    fn send_part(&mut self) -> Result<(), ObjectError> {
        if self.parts >= PARTS_MAX {
            let reason = format!("the result is too large for {PARTS_MAX} parts");
            return Err(self.waiter.refusal(&reason, Some("write it as several objects")));
        }
        if *self.waiter.cancelled.borrow() {
            return Err(self.waiter.stopped());
        }
        let others = (SENDING_BYTES_MAX / part_bytes(self.parts)).max(1);
        self.wait_until_sending(others - 1)?;
        if self.upload.is_none() {
            self.begin()?;
        }
        let next = Vec::with_capacity(part_bytes(self.parts + 1));
        let bytes = Bytes::from(std::mem::replace(&mut self.part, next));
        if let (Some(upload), Some(runtime)) = (&mut self.upload, &self.waiter.runtime) {
            self.sending.push_back(runtime.spawn(upload.put_part(bytes.into())));
        }
        self.parts += 1;
        Ok(())
    }

    /// Begins an upload in parts. If it is stopped meanwhile, waits a little for what the store has begun, to abort it.
    fn begin(&mut self) -> Result<(), ObjectError> {
        let (store, key) = (self.store.clone(), self.key.clone());
        let Some(runtime) = &self.waiter.runtime else { return Err(self.waiter.stopped()) };
        let mut begun = runtime.spawn(async move { store.put_multipart(&key).await });
        let joined =
            |begun: Result<_, tokio::task::JoinError>| begun.unwrap_or_else(|error| Err(error.into()));
        match self.waiter.wait(async { joined((&mut begun).await) }) {
            Ok(upload) => self.upload = Some(upload),
            Err(error) => {
                if *self.waiter.cancelled.borrow() {
                    let late = runtime.block_on(async { timeout(ABORT_TIMEOUT, &mut begun).await });
                    self.upload = late.ok().and_then(|begun| joined(begun).ok());
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits until at most this many parts are being sent.
    fn wait_until_sending(&mut self, most: usize) -> Result<(), ObjectError> {
        while self.sending.len() > most
            && let Some(mut part) = self.sending.pop_front()
        {
            let sent =
                self.waiter.wait(async { (&mut part).await.unwrap_or_else(|error| Err(error.into())) });
            if !part.is_finished() {
                self.sending.push_front(part);
            }
            sent?;
        }
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(runtime) = self.waiter.runtime.take() else { return };
        // This is the thread that writes, which may wait: `finish` forgets an upload that is complete, and before a first part
        // there is none.
        if let Some(mut upload) = self.upload.take() {
            let sending = std::mem::take(&mut self.sending);
            let aborted = runtime.block_on(async {
                let arrival = Instant::now() + ARRIVAL_TIMEOUT;
                for mut part in sending {
                    // Whether it has arrived or failed, it is forgotten.
                    if timeout_at(arrival, &mut part).await.is_err() {
                        part.abort();
                        let _ = part.await;
                    }
                }
                timeout(ABORT_TIMEOUT, upload.abort()).await
            });
            let failure = match aborted {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(self.waiter.explain(&error).reason),
                Err(_) => Some("no answer in time".to_owned()),
            };
            if let Some(reason) = failure {
                let object = self.waiter.location.to_string();
                tracing::warn!(object, reason, "parts of an upload that has failed may remain in the bucket");
            }
        }
        runtime.shutdown_background();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_object_fits_into_the_parts_that_a_store_takes() {
        let all: u64 = (0..PARTS_MAX).map(|number| part_bytes(number) as u64).sum();
        assert!(all > 5_000_000_000_000, "{all}");
        assert_eq!((part_bytes(0), part_bytes(999), part_bytes(1000)), (5 << 20, 5 << 20, 10 << 20));
    }
}
