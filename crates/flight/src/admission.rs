//! How many statements run and are planned at once.

use std::sync::Arc;
use std::time::Duration;

use lightship_wire::control::{ErrorCode, Failure};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::FlightConfig;

/// The right to run or plan a statement, until it is dropped.
pub(crate) type Permit = OwnedSemaphorePermit;

/// Admits statements. Those that wait are bounded by the connections and the requests of each.
pub(crate) struct Admission {
    running: Arc<Semaphore>,
    /// Apart from those that run: a client that reads a result may plan its next statement.
    planning: Arc<Semaphore>,
    uploads: Arc<Semaphore>,
    queries_max: usize,
    uploads_max: usize,
    queue_timeout: Duration,
}

impl Admission {
    pub(crate) fn new(config: &FlightConfig) -> Self {
        let permits = config.queries_max.min(Semaphore::MAX_PERMITS);
        Self {
            running: Arc::new(Semaphore::new(permits)),
            planning: Arc::new(Semaphore::new(permits)),
            uploads: Arc::new(Semaphore::new(config.uploads_max.min(Semaphore::MAX_PERMITS))),
            queries_max: config.queries_max,
            uploads_max: config.uploads_max,
            queue_timeout: config.queue_timeout,
        }
    }

    /// Waits until a statement may run.
    pub(crate) async fn run(&self) -> Result<Permit, Failure> {
        let fail = || format!("{} statements run already, the maximum", self.queries_max);
        self.take(&self.running, fail).await
    }

    /// Waits until a statement may be planned.
    pub(crate) async fn plan(&self) -> Result<Permit, Failure> {
        let fail = || format!("{} statements are planned already, the maximum", self.queries_max);
        self.take(&self.planning, fail).await
    }

    /// Waits until a client may send rows.
    pub(crate) async fn upload(&self) -> Result<Permit, Failure> {
        let fail = || format!("{} clients send rows already, the maximum", self.uploads_max);
        self.take(&self.uploads, fail).await
    }

    async fn take(
        &self,
        semaphore: &Arc<Semaphore>,
        fail: impl FnOnce() -> String,
    ) -> Result<Permit, Failure> {
        match timeout(self.queue_timeout, semaphore.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Failure::new(ErrorCode::Busy, fail()).hint("try again later")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn statements_wait_and_are_refused() {
        let timeout = Duration::from_millis(20);
        let config = FlightConfig { queries_max: 1, queue_timeout: timeout, ..FlightConfig::default() };
        let admission = Admission::new(&config);
        let first = admission.run().await.unwrap();
        assert!(admission.plan().await.is_ok(), "planning has places of its own");
        assert_eq!(admission.run().await.unwrap_err().code, ErrorCode::Busy);
        drop(first);
        assert!(admission.run().await.is_ok());
    }
}
