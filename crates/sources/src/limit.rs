//! Limits the connections to each database server.
//!
//! Each scan of a query waits for one connection. It takes additional connections only while they are
//! free, and releases them when other queries wait.
//! Idle connections count too, and are closed when another query needs one.
//! The short-lived connections that cancel a statement don't count.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Result, SourceError};

/// How long a query waits for a connection.
const WAIT: Duration = Duration::from_secs(30);

/// Connection limits by server. Sources opened with clones of the same value share the limits.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    connections: usize,
    wait: Duration,
    servers: Arc<Mutex<HashMap<String, Arc<ServerConnections>>>>,
}

impl ConnectionLimits {
    /// Allows at most this many connections to each server.
    pub fn new(connections: NonZeroUsize) -> Self {
        let connections = connections.get().min(Semaphore::MAX_PERMITS);
        Self { connections, wait: WAIT, servers: Arc::default() }
    }

    /// No limit, for callers that open few connections.
    pub fn unlimited() -> Self {
        Self::new(NonZeroUsize::MAX)
    }

    /// Sets how long a query waits for a connection, instead of 30 s.
    #[must_use]
    pub fn with_wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// The limit of one server.
    pub(crate) fn of(&self, server: &str) -> Arc<ServerConnections> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            Arc::new(ServerConnections {
                name: server.to_owned(),
                connections: self.connections,
                wait: self.wait,
                free: Arc::new(Semaphore::new(self.connections)),
                waiting: AtomicUsize::new(0),
                idle: Mutex::default(),
            })
        };
        servers.entry(server.to_owned()).or_insert_with(new).clone()
    }
}

/// Idle connections, kept for the next query.
pub(crate) trait Idle: Send + Sync {
    /// Closes one if there is one, and returns whether there was.
    fn close_one(&self) -> bool;
}

/// The connections of one server.
pub(crate) struct ServerConnections {
    name: String,
    connections: usize,
    wait: Duration,
    free: Arc<Semaphore>,
    /// Queries that wait for a connection.
    waiting: AtomicUsize,
    idle: Mutex<Vec<Weak<dyn Idle>>>,
}

impl fmt::Debug for ServerConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("name", &self.name)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

/// A permit to have one connection open.
pub(crate) type Permit = OwnedSemaphorePermit;

struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ServerConnections {
    /// Registers idle connections, which may be closed for waiting queries.
    pub(crate) fn add_idle(&self, idle: &Arc<impl Idle + 'static>) {
        let idle: Arc<dyn Idle> = idle.clone();
        let mut all = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|idle| idle.strong_count() > 0);
        all.push(Arc::downgrade(&idle));
    }

    /// Waits for the permit of a query's first connection.
    ///
    /// # Errors
    /// [`SourceError::Busy`] when no connection becomes free in time.
    pub(crate) async fn first(&self) -> Result<Permit> {
        if let Some(permit) = self.another() {
            return Ok(permit);
        }
        // From here on, connections are closed after use instead of kept.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(&self.waiting);
        self.close_idle();
        match tokio::time::timeout(self.wait, self.free.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(SourceError::Busy {
                target: self.name.clone(),
                connections: self.connections,
                waited: self.wait,
            }),
        }
    }

    /// The permit for one more connection, if one is free.
    pub(crate) fn another(&self) -> Option<Permit> {
        self.free.clone().try_acquire_owned().ok()
    }

    /// Whether queries wait for a connection, so that connections are closed after use.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    fn close_idle(&self) {
        let all: Vec<_> = {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.iter().filter_map(Weak::upgrade).collect()
        };
        all.iter().any(|idle| idle.close_one());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(connections: usize) -> Arc<ServerConnections> {
        let limits = ConnectionLimits::new(NonZeroUsize::new(connections).unwrap());
        limits.with_wait(Duration::from_millis(20)).of("h:1/d")
    }

    #[tokio::test]
    async fn waiting_too_long_for_a_connection_is_an_error() {
        let server = server(2);
        let (first, second) = (server.first().await.unwrap(), server.another().unwrap());
        assert!(server.another().is_none());
        let error = server.first().await.unwrap_err();
        assert!(matches!(&error, SourceError::Busy { connections: 2, .. }), "{error}");
        assert!(error.retryable() && error.to_string().contains("h:1/d"), "{error}");
        drop(first);
        let _first = server.first().await.unwrap();
        drop(second);
        assert!(!server.is_awaited());
    }

    #[tokio::test]
    async fn idle_connections_are_closed_for_waiting_queries() {
        struct Kept(Mutex<Option<Permit>>);
        impl Idle for Kept {
            fn close_one(&self) -> bool {
                self.0.lock().unwrap().take().is_some()
            }
        }
        let server = server(1);
        let kept = Arc::new(Kept(Mutex::new(server.another())));
        server.add_idle(&kept);
        let _permit = server.first().await.unwrap();
        assert!(kept.0.lock().unwrap().is_none());
    }

    #[test]
    fn clones_share_the_limit_of_a_server() {
        let limits = ConnectionLimits::new(NonZeroUsize::MIN);
        let _permit = limits.of("h:1/d").another().unwrap();
        assert!(limits.clone().of("h:1/d").another().is_none());
        assert!(limits.of("h:2/d").another().is_some());
    }
}
