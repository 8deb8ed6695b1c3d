//! Work that keeps a processor busy (compressing, decompressing) beside the
//! threads that serve connections.
//!
//! As many jobs run at once in the whole process as there are processors; others
//! wait their turn. A job never waits for anything but its turn, so no order of
//! jobs can lock up.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::{io, thread};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

/// How many jobs run at once.
pub(super) static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));

static TURNS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(*PROCESSORS)));

/// Bytes of rows that are being encoded, or are encoded and not yet sent, of all results of the process; beside one
/// message of each.
pub(super) const HELD_BYTES_MAX: u64 = 256 << 20;
/// They are counted in these.
const HELD_UNIT_BYTES: u64 = 1 << 10;

static HELD: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new((HELD_BYTES_MAX / HELD_UNIT_BYTES) as usize)));

/// A share of [`HELD_BYTES_MAX`], given back when dropped.
pub(super) type Held = OwnedSemaphorePermit;

/// A share of so many bytes, if there is that much. Nobody waits for it.
pub(super) fn hold(bytes: u64) -> Option<Held> {
    let units = u32::try_from(bytes.div_ceil(HELD_UNIT_BYTES)).ok()?;
    HELD.clone().try_acquire_many_owned(units).ok()
}

/// A job under way. Dropped, it is not begun if its turn has not come; one that
/// runs ends by itself.
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

/// Its result. Fails only when the work panicked or the runtime is going down.
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
    async fn no_more_run_at_once_than_there_are_processors() {
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
        // Its turn has come back.
        for _ in 0..2 * *PROCESSORS {
            assert_eq!(Job::start(|| 1).await.unwrap(), 1);
        }
    }
}
