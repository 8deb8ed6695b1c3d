//! Runs work that keeps a processor busy (compressing, decompressing) outside the threads that serve
//! connections.
//!
//! The whole process runs at most one job per processor at a time; others wait for their turn. A job waits
//! for nothing else, so jobs can't deadlock.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::{io, thread};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

/// The maximum number of concurrent jobs.
pub(super) static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));

static TURNS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(*PROCESSORS)));

/// Bytes of rows that are being encoded, or are encoded and not sent yet, in the whole process. One message of
/// each result does not count.
pub(super) const HELD_BYTES_MAX: u64 = 256 << 20;
/// The unit in which these bytes are counted.
const HELD_UNIT_BYTES: u64 = 1 << 10;

static HELD: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new((HELD_BYTES_MAX / HELD_UNIT_BYTES) as usize)));

/// A share of [`HELD_BYTES_MAX`], given back when dropped.
pub(super) type EncodingPermit = OwnedSemaphorePermit;

/// Takes a share of `bytes`, if available. Does not wait.
pub(super) fn hold(bytes: u64) -> Option<EncodingPermit> {
    let units = u32::try_from(bytes.div_ceil(HELD_UNIT_BYTES)).ok()?;
    HELD.clone().try_acquire_many_owned(units).ok()
}

/// A job. If dropped before its turn, it is never started; a running job runs to its end.
#[derive(Debug)]
pub(super) struct Job<T>(JoinHandle<io::Result<T>>);

impl<T: Send + 'static> Job<T> {
    pub(super) fn start(work: impl FnOnce() -> T + Send + 'static) -> Self {
        Self(tokio::spawn(async {
            // The semaphore is never closed.
            let turn = TURNS.clone().acquire_owned().await.map_err(io::Error::other)?;
            let job = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                work()
            });
            Ok(job.await?)
        }))
    }
}

/// Yields the job's result. Fails only if the work panics or the runtime shuts down.
impl<T> Future for Job<T> {
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(ready!(Pin::new(&mut self.0).poll(context))?)
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn at_most_one_job_per_processor_runs_at_a_time() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        let jobs: Vec<_> = (0..8 * *PROCESSORS)
            .map(|n| {
                Job::start(move || {
                    let running = RUNNING.fetch_add(1, Ordering::SeqCst) + 1;
                    thread::yield_now();
                    RUNNING.fetch_sub(1, Ordering::SeqCst);
                    (n, running)
                })
            })
            .collect();
        for (n, job) in jobs.into_iter().enumerate() {
            let (found, running) = job.await.unwrap();
            assert_eq!(found, n);
            assert!(running <= *PROCESSORS, "{running} at once");
        }
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let error = Job::start(|| -> u32 { panic!("no") }).await.unwrap_err();
        assert!(error.to_string().contains("panic"), "{error}");
        // The permits were given back.
        for _ in 0..2 * *PROCESSORS {
            assert_eq!(Job::start(|| 1).await.unwrap(), 1);
        }
    }
}
