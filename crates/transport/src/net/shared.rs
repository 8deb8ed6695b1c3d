//! One connection that many requests share.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lightship_wire::control::Failure;

use super::{ClientConfig, Connection, Endpoint};
use crate::TransportError;

/// A connection that is opened when it is first needed, and again after it was lost.
#[derive(Default)]
pub struct SharedConnection {
    open: Mutex<Option<Connection>>,
    /// Held while connecting. Contains when the last attempt failed, and why.
    connecting: tokio::sync::Mutex<Option<(Instant, Failure)>>,
}

impl SharedConnection {
    /// The open connection, or a new one. Those who wait for the same attempt share its failure.
    ///
    /// # Errors
    /// What `blame` makes of the reason.
    pub async fn get(
        &self,
        endpoint: &Endpoint,
        config: &ClientConfig,
        blame: impl FnOnce(TransportError) -> Failure,
    ) -> Result<Connection, Failure> {
        let requested = Instant::now();
        let mut failed = self.connecting.lock().await;
        if let Some(connection) = self.open().as_ref().filter(|connection| connection.is_open()) {
            return Ok(connection.share());
        }
        if let Some((_, failure)) = failed.as_ref().filter(|(when, _)| *when > requested) {
            return Err(failure.clone());
        }
        let connection = Connection::connect(endpoint, config).await.map_err(|error| {
            let failure = blame(error);
            *failed = Some((Instant::now(), failure.clone()));
            failure
        })?;
        let shared = connection.share();
        *self.open() = Some(connection);
        Ok(shared)
    }

    /// The round trip of the open connection, 0 if it does not leave this host; `None` if there is none.
    pub fn round_trip(&self) -> Option<Duration> {
        self.open().as_ref().map(|open| if open.same_host() { Duration::ZERO } else { open.rtt() })
    }

    /// Drops the connection because its peer is gone. Running answers continue to their end.
    pub fn forget(&self) {
        *self.open() = None;
    }

    fn open(&self) -> MutexGuard<'_, Option<Connection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
