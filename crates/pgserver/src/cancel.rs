//! Cancel requests: which statement of which session they stop.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use subtle::ConstantTimeEq as _;
use tokio::sync::watch;

/// What a session is doing, as far as cancel requests are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Running,
    Cancelled,
}

/// All sessions of a server that can be cancelled.
#[derive(Default)]
pub(crate) struct Sessions {
    by_process: Mutex<HashMap<u32, Entry>>,
}

struct Entry {
    secret: u32,
    state: Arc<watch::Sender<State>>,
}

/// A session's place among them, which is given up when it is dropped.
pub(crate) struct SessionKey {
    sessions: Arc<Sessions>,
    /// What clients take for the id of a process.
    pub(crate) process: u32,
    pub(crate) secret: u32,
    state: Arc<watch::Sender<State>>,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Entry>> {
        self.by_process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A key that no other session has. `None` if the system has no random numbers.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<SessionKey> {
        let mut bytes = [0; 8];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes).ok()?;
        let [a, b, c, d, secret @ ..] = bytes;
        let secret = u32::from_be_bytes(secret);
        // Positive, as ids of processes are.
        let mut process = (u32::from_be_bytes([a, b, c, d]) >> 1).max(1);
        let state = Arc::new(watch::Sender::new(State::Idle));
        let mut sessions = self.lock();
        while sessions.contains_key(&process) {
            process = (process + 1) & (u32::MAX >> 1);
        }
        sessions.insert(process, Entry { secret, state: state.clone() });
        Some(SessionKey { sessions: self.clone(), process, secret, state })
    }

    /// Cancels what a session is running, if the secret is right.
    pub(crate) fn cancel(&self, process: u32, secret: u32) {
        let sessions = self.lock();
        let Some(entry) = sessions.get(&process) else { return };
        if bool::from(entry.secret.ct_eq(&secret)) {
            entry.state.send_if_modified(|state| {
                let is_running = *state == State::Running;
                if is_running {
                    *state = State::Cancelled;
                }
                is_running
            });
        }
    }
}

impl SessionKey {
    /// A statement begins: earlier requests do not count.
    pub(crate) fn begin_statement(&self) {
        self.state.send_replace(State::Running);
    }

    /// The statement has ended.
    pub(crate) fn end_statement(&self) {
        self.state.send_replace(State::Idle);
    }

    /// Whether the statement is to be cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        *self.state.borrow() == State::Cancelled
    }

    /// Returns when the statement is to be cancelled.
    pub(crate) fn cancelled(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut state = self.state.subscribe();
        async move {
            if state.wait_for(|state| *state == State::Cancelled).await.is_err() {
                std::future::pending().await
            }
        }
    }
}

impl Drop for SessionKey {
    fn drop(&mut self) {
        self.sessions.lock().remove(&self.process);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn only_a_running_statement_is_cancelled_and_only_with_the_secret() {
        let sessions = Arc::<Sessions>::default();
        let key = sessions.begin().unwrap();
        sessions.cancel(key.process, key.secret);
        key.begin_statement();
        assert!(key.cancelled().now_or_never().is_none());
        sessions.cancel(key.process, !key.secret);
        sessions.cancel(!key.process, key.secret);
        assert!(key.cancelled().now_or_never().is_none());
        sessions.cancel(key.process, key.secret);
        assert!(key.cancelled().now_or_never().is_some());
        key.begin_statement();
        assert!(key.cancelled().now_or_never().is_none());
        let process = key.process;
        drop(key);
        sessions.cancel(process, 0);
        assert!(sessions.lock().is_empty());
    }
}
