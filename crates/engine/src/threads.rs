//! The threads that queries are planned and run on, apart from those that answer sockets and signals.
//!
//! A query may hold its thread as long as it computes, and may need much of its stack: what is planned is a tree, and
//! planning, running and dropping it are recursive. So these threads are the engine's own, and their stacks
//! are large enough for the deepest tree that [`crate::statement`] lets in.

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

/// Address space of a thread's stack; memory is taken as the stack grows.
pub(crate) const STACK_BYTES: usize = 256 << 20;

/// Queries that are planned at once; others wait. Each holds one of the 512 threads that also read files, on which
/// planning may wait.
const PLANNED_MAX: usize = 64;

/// The name of each thread, by which what it says of a panic can be recognised.
pub const THREAD_NAME: &str = "lightship-query";

/// The engine's threads. Dropped, all work on them is dropped, and nobody waits for it.
pub(crate) struct Threads {
    /// Always there until it is dropped.
    runtime: Option<Runtime>,
    handle: Handle,
    planners: Arc<Semaphore>,
}

impl Threads {
    /// # Errors
    /// When the system gives no threads.
    pub(crate) fn start() -> Result<Arc<Self>> {
        let workers = std::thread::available_parallelism().map_or(2, usize::from).max(2);
        let runtime = Builder::new_multi_thread()
            .worker_threads(workers)
            .thread_name(THREAD_NAME)
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()
            .map_err(|e| EngineError::Internal(format!("can't start threads for queries: {e}")))?;
        let handle = runtime.handle().clone();
        let planners = Arc::new(Semaphore::new(PLANNED_MAX));
        Ok(Arc::new(Self { runtime: Some(runtime), handle, planners }))
    }

    /// Does what takes a thread for a while, as planning does. When the answer is dropped, it ends at the next point where it
    /// waits.
    ///
    /// # Errors
    /// Those of the work; [`EngineError::Panic`] where it panics.
    pub(crate) async fn block<T, F>(&self, part: Part, work: impl FnOnce() -> F + Send + 'static) -> Result<T>
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

    /// Runs a future here. Dropping the answer drops the future.
    ///
    /// # Errors
    /// Those of the work; [`EngineError::Panic`] where it panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        part: Part,
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

    /// Computes rows here, one batch ahead of who takes them. Dropping the answer stops it; `kept` is dropped when it
    /// has stopped.
    pub(crate) fn rows<K: Send + 'static>(&self, mut rows: Rows, kept: K) -> Rows {
        let (give, mut take) = mpsc::channel::<Result<RecordBatch, Failure>>(1);
        let producing = async move {
            // A place first: so no more than one batch waits here.
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
                        place.send(Err(panicked(Part::Running, panic).to_failure()));
                        break;
                    }
                }
            }
            // What has ended gives back what it holds, whether or not all of it is taken.
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
            // May be dropped by any thread, and a thread that computes is not waited for.
            runtime.shutdown_background();
        }
    }
}

/// What was done with a query when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// From text to a plan.
    Planning,
    /// From a plan to rows.
    Running,
}

impl std::fmt::Display for Part {
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

fn of_join(part: Part, error: tokio::task::JoinError) -> EngineError {
    match error.try_into_panic() {
        Ok(panic) => panicked(part, panic),
        Err(_) => EngineError::Internal("the node is shutting down".into()),
    }
}

/// A panic as an error. The text of a panic is all that it has to say.
pub(crate) fn panicked(part: Part, panic: Box<dyn Any + Send>) -> EngineError {
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
    async fn a_panic_is_an_error_of_its_part_and_others_go_on() {
        let threads = Threads::start().unwrap();
        let failed = threads.block::<(), _>(Part::Planning, || async { panic!("no {}", "plan") }).await;
        assert_eq!(failed.unwrap_err().to_string(), "a fault in planning the query: no plan");
        let failed = threads.run::<()>(Part::Running, async { panic!("no rows") }).await;
        assert_eq!(failed.unwrap_err().to_string(), "a fault in running the query: no rows");
        let panics = futures::stream::poll_fn(|_| panic!("in a stream"));
        let failed = threads.rows(Box::pin(panics), ()).next().await.unwrap().unwrap_err();
        assert_eq!(failed.message, "a fault in running the query: in a stream");
        assert_eq!(threads.run(Part::Running, async { Ok(7) }).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn dropping_the_rows_stops_what_makes_them() {
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
