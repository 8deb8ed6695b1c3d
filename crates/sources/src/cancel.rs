//! Statements that run at a server and are to be stopped there once nobody waits for their rows.
//!
//! What stops them takes a moment: a connection of its own, with TLS perhaps. A process that ends
//! must wait for it, or the server goes on: [`cancels_sent`].

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

/// Failures that are kept for [`cancels_sent`].
const FAILURES_MAX: usize = 64;

/// Statements of this process that may have to be cancelled.
struct Registry {
    state: Mutex<State>,
    /// How many there are.
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// The server of each.
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

/// A task that reads from a server and cancels its statement when nobody wants the rows. It is made
/// before the task begins, and dropped when the task has ended.
#[derive(Debug)]
pub(crate) struct Working(u64);

impl Working {
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

impl Drop for Working {
    fn drop(&mut self) {
        let mut state = REGISTRY.state();
        state.open.remove(&self.0);
        REGISTRY.count.send_replace(state.open.len());
    }
}

/// Sends a cancel request on a task of its own. `request` gives up by itself.
pub(crate) fn send(target: String, request: impl Future<Output = Result<(), String>> + Send + 'static) {
    let failed = |target: &str, reason: &str| {
        tracing::info!(target, reason, "a statement could not be cancelled");
        let mut state = REGISTRY.state();
        if state.failures.len() < FAILURES_MAX {
            state.failures.push(format!("the cancel request to {target} could not be sent: {reason}"));
        }
    };
    let Ok(runtime) = Handle::try_current() else { return failed(&target, "the process is ending") };
    let working = Working::begin(target.clone());
    runtime.spawn(async move {
        if let Err(reason) = request.await {
            failed(&target, &reason);
        }
        drop(working);
    });
}

/// Waits until every statement whose rows nobody waits for has been cancelled at its server, for a
/// process that is about to end. Answers what could not be cancelled, for a person to read: there
/// the statement may go on.
pub async fn cancels_sent(timeout: Duration) -> Vec<String> {
    let mut count = REGISTRY.count.subscribe();
    let in_time = tokio::time::timeout(timeout, count.wait_for(|count| *count == 0)).await;
    let mut state = REGISTRY.state();
    let mut failures = std::mem::take(&mut state.failures);
    if in_time.is_err() {
        failures.extend(state.open.values().take(FAILURES_MAX).map(|target| {
            format!("the cancel request to {target} was not taken within {} s", timeout.as_secs_f32())
        }));
    }
    failures.into_iter().map(|failure| format!("{failure}; the statement may still run there")).collect()
}
