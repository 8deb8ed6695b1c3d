//! The results that are being sent, by the identifiers in their tickets, so that they can be cancelled.

use std::sync::{Arc, Mutex};

use lightship_transport::{Result, TransportError};
use rustls::crypto::SecureRandom;
use tokio::sync::Notify;

use crate::connection::lock;

/// Identifies a result. It is random, so that only who got the ticket can cancel it.
pub(crate) type RunId = [u8; 16];

/// The results that are being sent. There are as many as statements may run.
pub(crate) struct Running {
    runs: Mutex<Vec<(RunId, Arc<Notify>)>>,
    random: &'static dyn SecureRandom,
}

/// A result that is being sent, until it is dropped.
pub(crate) struct Run {
    running: Arc<Running>,
    cancel: Arc<Notify>,
}

impl Running {
    pub(crate) fn new() -> Result<Self> {
        let random = rustls::crypto::ring::default_provider().secure_random;
        let running = Self { runs: Mutex::default(), random };
        running.identifier()?;
        Ok(running)
    }

    /// A new identifier.
    ///
    /// # Errors
    /// If the system provides no random bytes.
    pub(crate) fn identifier(&self) -> Result<RunId> {
        let mut id = RunId::default();
        let none = |_| TransportError::Config("the system provides no random bytes".into());
        self.random.fill(&mut id).map_err(none)?;
        Ok(id)
    }

    /// Enters a result.
    pub(crate) fn begin(self: &Arc<Self>, id: RunId) -> Run {
        let cancel = Arc::<Notify>::default();
        lock(&self.runs).push((id, cancel.clone()));
        Run { running: self.clone(), cancel }
    }

    /// Cancels a result. `false` if it is not being sent.
    pub(crate) fn cancel(&self, id: &RunId) -> bool {
        let runs = lock(&self.runs);
        let cancelled = runs.iter().filter(|(known, _)| known == id);
        cancelled.map(|(_, cancel)| cancel.notify_one()).count() > 0
    }
}

impl Run {
    /// Returns when the result is cancelled.
    pub(crate) async fn cancelled(&self) {
        self.cancel.notified().await;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        lock(&self.running.runs).retain(|(_, cancel)| !Arc::ptr_eq(cancel, &self.cancel));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_result_is_cancelled_by_its_identifier() {
        let running = Arc::new(Running::new().unwrap());
        let (id, other) = (running.identifier().unwrap(), running.identifier().unwrap());
        assert_ne!(id, other);
        assert!(!running.cancel(&id));
        let (first, second) = (running.begin(id), running.begin(id));
        assert!(running.cancel(&id), "a ticket that is used twice is cancelled twice");
        first.cancelled().await;
        second.cancelled().await;
        drop((first, second));
        assert!(!running.cancel(&id));
        assert!(lock(&running.runs).is_empty());
    }
}
