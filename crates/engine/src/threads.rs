//! The threads that plan and run queries, separate from those that serve sockets and signals.
//!
//! A query may occupy its thread for as long as it computes, and may need a large stack: a plan is
//! a tree, and planning, running and dropping it are recursive. So the engine has its own threads,
//! with stacks large enough for the deepest tree that [`crate::statement`] accepts.

use std::any::Any;
use std::sync::Arc;

use arrow_array::RecordBatch;
use futures::{FutureExt, StreamExt};
use lightship_transport::net::Rows;
use lightship_wire::control::Failure;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::error::{EngineError, Result};

/// Address space of a thread's stack. It takes memory only as the stack grows.
pub(crate) const STACK_BYTES: usize = 256 << 20;

/// Maximum number of queries that are planned at once; others wait. Each occupies one of the 512
/// blocking threads. Reading files needs these threads too, and planning may wait for it.
const PLANNED_MAX: usize = 64;

/// The name of each thread, by which a panic hook recognises panics of queries.
pub const THREAD_NAME: &str = "lightship-query";

/// Starts a thread of its own for reading that may wait, or that borrows from what it reads.
///
/// # Errors
/// When the system can't start a thread.
pub(crate) fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<std::thread::JoinHandle<T>> {
    let thread = std::thread::Builder::new().name(THREAD_NAME.into()).spawn(work);
    thread.map_err(|e| EngineError::Internal(format!("cannot start a thread for a query: {e}")))
}

/// The engine's threads. Dropping this drops all work on them without waiting for it.
pub(crate) struct Threads {
    /// `Some` until it is dropped.
    runtime: Option<Runtime>,
    handle: Handle,
    planners: Arc<Semaphore>,
}

impl Threads {
    /// # Errors
    /// When the system can't start threads.
    pub(crate) fn start() -> Result<Arc<Self>> {
        let workers = std::thread::available_parallelism().map_or(2, usize::from).max(2);
        let runtime = Builder::new_multi_thread()
            .worker_threads(workers)
            .thread_name(THREAD_NAME)
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()
            .map_err(|e| EngineError::Internal(format!("cannot start threads for queries: {e}")))?;
        let handle = runtime.handle().clone();
        let planners = Arc::new(Semaphore::new(PLANNED_MAX));
        Ok(Arc::new(Self { runtime: Some(runtime), handle, planners }))
    }

    /// Runs work that occupies a thread for a while, such as planning. If the returned future is
    /// dropped, the work ends at its next await.
    ///
    /// # Errors
    /// Those of the work; [`EngineError::Panic`] if it panics.
    pub(crate) async fn block<T, F>(
        &self,
        part: QueryPhase,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>>,
    {
        let place = self.planners.clone().acquire_owned().await.map_err(|_| ended())?;
        let (alive, dropped) = oneshot::channel::<()>();
        let handle = self.handle.clone();
        let done = self.handle.spawn_blocking(move || {
            let _place = place;
            handle.block_on(async move {
                tokio::select! {
                    biased;
                    _ = dropped => Err(ended()),
                    done = async { work().await } => done,
                }
            })
        });
        let done = done.await;
        drop(alive);
        done.unwrap_or_else(|error| Err(of_join(part, error)))
    }

    /// Runs a future on these threads. Dropping the returned future drops it.
    ///
    /// # Errors
    /// Those of the work; [`EngineError::Panic`] if it panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        part: QueryPhase,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let mut tasks = JoinSet::new();
        tasks.spawn_on(work, &self.handle);
        match tasks.join_next().await {
            Some(Ok(done)) => done,
            Some(Err(error)) => Err(of_join(part, error)),
            None => Err(ended()),
        }
    }

    /// Computes rows on these threads, one batch ahead of the consumer. Dropping the returned
    /// stream stops it. `kept` is dropped when the computation has ended or stopped.
    pub(crate) fn rows<K: Send + 'static>(&self, mut rows: Rows, kept: K) -> Rows {
        let (give, mut take) = mpsc::channel::<Result<RecordBatch, Failure>>(1);
        let producing = async move {
            // Reserves first, so that at most one batch waits in the channel.
            while let Ok(place) = give.reserve().await {
                let next = std::panic::AssertUnwindSafe(rows.next()).catch_unwind();
                let next = tokio::select! {
                    biased;
                    () = give.closed() => break,
                    next = next => next,
                };
                match next {
                    Ok(Some(item)) => {
                        let failed = item.is_err();
                        place.send(item);
                        if failed {
                            break;
                        }
                    }
                    Ok(None) => break,
                    Err(panic) => {
                        place.send(Err(panicked(QueryPhase::Running, panic).to_failure()));
                        break;
                    }
                }
            }
            // Releases what the query holds when it ends, even if the consumer has not taken all rows.
            drop(rows);
            drop(kept);
        };
        let mut tasks = JoinSet::new();
        tasks.spawn_on(producing, &self.handle);
        Box::pin(futures::stream::poll_fn(move |context| {
            let _owned = &tasks;
            take.poll_recv(context)
        }))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Any thread may drop this, and must not wait for threads that compute.
            runtime.shutdown_background();
        }
    }
}

/// The phase in which a query failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryPhase {
    /// From text to a plan.
    Planning,
    /// From a plan to rows.
    Running,
}

impl std::fmt::Display for QueryPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Planning => "planning",
            Self::Running => "running",
        })
    }
}

fn ended() -> EngineError {
    EngineError::Internal("the query was stopped".into())
}

fn of_join(part: QueryPhase, error: tokio::task::JoinError) -> EngineError {
    match error.try_into_panic() {
        Ok(panic) => panicked(part, panic),
        Err(_) => EngineError::Internal("the node is shutting down".into()),
    }
}

/// A panic as an error, with the panic's message.
pub(crate) fn panicked(part: QueryPhase, panic: Box<dyn Any + Send>) -> EngineError {
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    EngineError::Panic { part, message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_fails_only_its_own_work() {
        let threads = Threads::start().unwrap();
        let failed = threads.block::<(), _>(QueryPhase::Planning, || async { panic!("no {}", "plan") }).await;
        assert_eq!(failed.unwrap_err().to_string(), "internal error while planning the query: no plan");
        let failed = threads.run::<()>(QueryPhase::Running, async { panic!("no rows") }).await;
        assert_eq!(failed.unwrap_err().to_string(), "internal error while running the query: no rows");
        let panics = futures::stream::poll_fn(|_| panic!("in a stream"));
        let failed = threads.rows(Box::pin(panics), ()).next().await.unwrap().unwrap_err();
        assert_eq!(failed.message, "internal error while running the query: in a stream");
        assert_eq!(threads.run(QueryPhase::Running, async { Ok(7) }).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn dropping_the_rows_stops_their_computation() {
        let threads = Threads::start().unwrap();
        let (kept, dropped) = oneshot::channel::<()>();
        let schema = Arc::new(arrow_schema::Schema::empty());
        let endless = futures::stream::repeat_with(move || Ok(RecordBatch::new_empty(schema.clone())));
        let mut rows = threads.rows(Box::pin(endless), kept);
        assert!(rows.next().await.is_some());
        drop(rows);
        assert!(dropped.await.is_err());
    }
}
