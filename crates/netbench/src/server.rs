//! The side that answers: a listener, and a task a connection.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::connection::serve;
use crate::cpu::Meter;
use crate::error::NetbenchError;

/// So many connections beyond the limit are told that it is reached; any more are just closed.
const REFUSALS_MAX: usize = 64;
/// Connections that wait until they are accepted. Clients make many at once.
const BACKLOG: u32 = 1024;
/// Until connections are taken again, after the system had no file left for one.
const PAUSE: Duration = Duration::from_millis(100);

/// How a server behaves.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Connections at once, each with a buffer of at most 64 KiB. One more is told that there are
    /// too many.
    pub connections_max: usize,
    /// A connection over which nothing comes or goes for so long is closed.
    pub idle: Duration,
    /// A header that is not there by then does not come.
    pub header_timeout: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            connections_max: 8192,
            idle: Duration::from_secs(120),
            header_timeout: Duration::from_secs(10),
        }
    }
}

/// What a server has seen, as it goes.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) connections: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Counters {
    /// Connections that were taken.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Connections that were not: hostile, too many, too late.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Bytes of messages that arrived.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) began: Instant,
    pub(crate) config: ServerConfig,
    pub(crate) counters: Arc<Counters>,
    pub(crate) meter: Meter,
    /// Bytes that arrived for each run under way. As many as there are control connections.
    runs: Mutex<HashMap<u64, Arc<AtomicU64>>>,
    /// Runs get numbers that others don't guess, so as not to count for a run of theirs.
    numbers: (RandomState, AtomicU64),
}

/// A run under way, until this is dropped.
pub(crate) struct Run<'a> {
    shared: &'a Shared,
    pub(crate) number: u64,
    pub(crate) bytes: Arc<AtomicU64>,
}

impl Shared {
    pub(crate) fn begin_run(&self) -> Run<'_> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let number = loop {
            let next = self.numbers.0.hash_one(self.numbers.1.fetch_add(1, Ordering::Relaxed));
            if next != 0 && !runs.contains_key(&next) {
                break next;
            }
        };
        let bytes = Arc::<AtomicU64>::default();
        runs.insert(number, bytes.clone());
        Run { shared: self, number, bytes }
    }

    pub(crate) fn bytes_of(&self, run: u64) -> Option<Arc<AtomicU64>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(&run).cloned()
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.shared.runs.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
}

impl Server {
    /// Listens on `HOST:PORT`; port 0 is one that is free.
    ///
    /// # Errors
    /// [`NetbenchError::Listen`].
    pub async fn bind(address: &str, config: ServerConfig) -> Result<Self, NetbenchError> {
        let fail = |source| NetbenchError::Listen { address: address.to_owned(), source };
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "no such host");
        for resolved in lookup_host(address).await.map_err(fail)? {
            match listen(resolved) {
                Ok(listener) => {
                    let shared = Shared {
                        began: Instant::now(),
                        config,
                        counters: Arc::default(),
                        meter: Meter::open(),
                        runs: Mutex::default(),
                        numbers: (RandomState::new(), AtomicU64::new(0)),
                    };
                    return Ok(Self { listener, shared: Arc::new(shared) });
                }
                Err(error) => failed = error,
            }
        }
        Err(fail(failed))
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system doesn't say.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What it has seen; stays readable while it runs.
    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// Serves until `stop` is there; then all connections are closed.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let mut tasks = JoinSet::new();
        tokio::select! {
            () = self.accept(&mut tasks) => {}
            () = stop => {}
        }
        // Aborts them, and waits until they are gone.
        tasks.shutdown().await;
    }

    async fn accept(&self, tasks: &mut JoinSet<()>) {
        let served = Arc::new(Semaphore::new(self.shared.config.connections_max));
        let refused = Arc::new(Semaphore::new(REFUSALS_MAX));
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(_) = tasks.join_next() => continue,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Too many files are open, or the peer is gone already: neither is a reason
                    // to end, and the first one none to run in circles.
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let (permit, is_admitted) = match served.clone().try_acquire_owned() {
                Ok(permit) => (permit, true),
                Err(_) => match refused.clone().try_acquire_owned() {
                    Ok(permit) => (permit, false),
                    Err(_) => continue,
                },
            };
            let shared = self.shared.clone();
            tasks.spawn(async move {
                let mut stream = stream;
                connection(&mut stream, peer, &shared, is_admitted).await;
                // In this order: a client that sees the end may come again at once.
                drop(permit);
                drop(stream);
            });
        }
    }
}

async fn connection(stream: &mut TcpStream, peer: SocketAddr, shared: &Shared, is_admitted: bool) {
    match serve(stream, shared, is_admitted).await {
        Ok(()) => tracing::debug!(%peer, "done"),
        Err(error) => tracing::debug!(%peer, %error, "ended"),
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // The port of a server that has just ended is free at once.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
