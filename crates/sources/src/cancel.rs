//! Cancels statements at their servers when nobody waits for their rows any more.
//!
//! That takes a moment, because a cancel request needs its own connection, perhaps with TLS. A process
//! that is about to end must wait in [`cancels_sent`], or the statement keeps running.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

/// Maximum failures that are kept for [`cancels_sent`].
const FAILURES_MAX: usize = 64;

/// Statements of this process that may have to be cancelled.
struct Registry {
    state: Mutex<State>,
    /// The number of open statements.
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// The server of each statement.
    open: BTreeMap<u64, String>,
    failures: Vec<String>,
}

static REGISTRY: LazyLock<Registry> =
    LazyLock::new(|| Registry { state: Mutex::default(), count: watch::Sender::new(0) });

impl Registry {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registers a task that reads from a server and cancels its statement when nobody wants the rows.
/// It is created before the task starts, and dropped when the task has ended.
#[derive(Debug)]
pub(crate) struct StatementGuard(u64);

impl StatementGuard {
    /// `target` names the server.
    pub(crate) fn begin(target: String) -> Self {
        let mut state = REGISTRY.state();
        let id = state.next;
        state.next += 1;
        state.open.insert(id, target);
        REGISTRY.count.send_replace(state.open.len());
        Self(id)
    }
}

impl Drop for StatementGuard {
    fn drop(&mut self) {
        let mut state = REGISTRY.state();
        state.open.remove(&self.0);
        REGISTRY.count.send_replace(state.open.len());
    }
}

/// Cancels a statement in a background task. `request` does it, and has its own timeout.
pub(crate) fn send(target: String, request: impl Future<Output = Result<(), String>> + Send + 'static) {
    let failed = |target: &str, reason: &str| {
        tracing::info!(target, reason, "a statement could not be cancelled");
        let mut state = REGISTRY.state();
        if state.failures.len() < FAILURES_MAX {
            state.failures.push(format!("a statement of {target} could not be cancelled: {reason}"));
        }
    };
    let Ok(runtime) = Handle::try_current() else { return failed(&target, "the process is ending") };
    let working = StatementGuard::begin(target.clone());
    runtime.spawn(async move {
        if let Err(reason) = request.await {
            failed(&target, &reason);
        }
        drop(working);
    });
}

/// Waits until every abandoned statement has been cancelled at its server. A process calls this before
/// it ends. Returns a message for each statement that could not be cancelled and may still run.
pub async fn cancels_sent(timeout: Duration) -> Vec<String> {
    let mut count = REGISTRY.count.subscribe();
    let in_time = tokio::time::timeout(timeout, count.wait_for(|count| *count == 0)).await;
    let mut state = REGISTRY.state();
    let mut failures = std::mem::take(&mut state.failures);
    if in_time.is_err() {
        failures.extend(state.open.values().take(FAILURES_MAX).map(|target| {
            format!("{target} has not ended a cancelled statement within {} s", timeout.as_secs_f32())
        }));
    }
    failures.into_iter().map(|failure| format!("{failure}; the statement may still run there")).collect()
}
