//! The library for callers without async, such as drivers that are loaded into other programs.
//!
//! [`Connection`] runs queries, each over a connection of its own; a [`Reader`] returns the rows of one. [`copy`]
//! and [`write`] write to a [`Target`](crate::Target). The work is done by threads of a runtime of this process, which
//! starts with the first call. Callers may be on any thread, also on one of another runtime.
//!
//! Whoever waits calls a check from time to time, whose error ends the wait and cancels the work.
//!
//! After `fork`, the child has none of these threads: what was opened before fails there, and what the
//! child opens gets threads of its own.
//!
//! ```
//! use lightship::{Location, Options, blocking::Connection};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("sales.csv");
//! # std::fs::write(&path, "region,amount\nnorth,3\nsouth,4\n")?;
//! # let uri = path.to_str().unwrap();
//! let connection = Connection::open(vec![Location::parse(uri)?], Options::default(), || Ok(()))?;
//! let mut rows = 0;
//! let mut reader = connection.query("select * from sales")?;
//! while let Some(batch) = reader.next_batch()? {
//!     rows += batch.num_rows();
//! }
//! assert_eq!(rows, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connection;
mod write;

use std::pin::{Pin, pin};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::{Error, ErrorKind, Result};

pub use connection::{Canceller, Connection, Reader, RowProgress};
pub use write::{Progress, copy, write};

/// Called by those who wait. Its error ends the wait, and cancels what they wait for.
pub type Check = fn() -> Result<()>;

/// How often a check is called.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// How long [`shut_down`] waits for databases to accept cancel requests.
const CANCEL_WAIT: Duration = Duration::from_secs(2);
/// The first part of a query may run on these threads, and its futures are large.
const STACK_BYTES: usize = 8 << 20;

/// The threads of a process.
struct Process {
    id: u32,
    runtime: Runtime,
    /// Becomes true when the process ends.
    ending: watch::Sender<bool>,
}

/// Never freed: its threads may work until the process has ended. Not a lock: in a child process, one that was held when it
/// was forked would never be released.
static CURRENT: AtomicPtr<Process> = AtomicPtr::new(null_mut());

/// The threads of this process, if they have started.
fn started() -> Option<&'static Process> {
    // SAFETY: null, or a leaked box.
    let process = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
    // That of the process that this one was forked from has no threads here.
    process.filter(|process| process.id == std::process::id())
}

/// The threads of this process. Starts them if they have not started.
fn process() -> Result<&'static Process> {
    let current = CURRENT.load(Ordering::Acquire);
    if let Some(process) = started() {
        return Ok(process);
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, usize::from).max(2))
        .thread_name("lightship")
        .thread_stack_size(STACK_BYTES)
        .enable_all()
        .build()
        .map_err(|error| Error::new(ErrorKind::Limits, format!("cannot start threads: {error}")))?;
    let started = Process { id: std::process::id(), runtime, ending: watch::Sender::new(false) };
    let started = Box::into_raw(Box::new(started));
    match CURRENT.compare_exchange(current, started, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: a box that was just leaked.
        Ok(_) => Ok(unsafe { &*started }),
        Err(other) => {
            // SAFETY: nobody else has seen it.
            unsafe { Box::from_raw(started) }.runtime.shutdown_background();
            // SAFETY: another thread was faster, and has leaked its box.
            Ok(unsafe { &*other })
        }
    }
}

/// Cancels everything that runs, and waits until databases have accepted cancel requests, for up to two seconds. Called
/// before the process ends. Later calls of this module fail.
pub fn shut_down() {
    let Some(process) = started() else { return };
    process.ending.send_replace(true);
    let sent = Task(process.runtime.spawn(async {
        // Those who were cancelled drop their results first.
        tokio::time::sleep(Duration::from_millis(10)).await;
        lightship_sources::cancels_sent(CANCEL_WAIT).await;
        Ok(())
    }));
    let _ = wait(sent, &mut || Ok(()));
}

/// Work on the threads of this process. Dropping it ends the work.
struct Task<T>(JoinHandle<Result<T>>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|done| done.unwrap_or_else(|error| Err(lost(&error))))
    }
}

fn lost(error: &tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Internal, error.to_string())
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "cancelled")
}

fn spawn<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<Task<T>> {
    let process = process()?;
    let mut ending = process.ending.subscribe();
    let work = Box::pin(work);
    Ok(Task(process.runtime.spawn(async move {
        tokio::select! {
            done = work => done,
            _ = ending.wait_for(|ending| *ending) => Err(cancelled()),
        }
    })))
}

/// Runs a future on the threads of this process and waits for it.
///
/// # Errors
/// Those of the future and of the check.
pub fn run<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
    check: Check,
) -> Result<T> {
    wait(spawn(work)?, &mut || check())?
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits on this thread for a future that needs no runtime.
fn wait<T>(future: impl Future<Output = T>, check: &mut dyn FnMut() -> Result<()>) -> Result<T> {
    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return Ok(done);
        }
        check()?;
        std::thread::park_timeout(CHECK_EVERY);
    }
}
