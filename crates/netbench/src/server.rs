//! The server: a listener, and one task per connection.

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

/// This many connections beyond the limit get a refusal; any more are closed without an answer.
const REFUSALS_MAX: usize = 64;
/// Connections that may wait to be accepted. Clients open many at once.
const BACKLOG: u32 = 1024;
/// The pause after accepting a connection has failed, usually because too many files are open.
const PAUSE: Duration = Duration::from_millis(100);

/// The configuration of a server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The maximum number of concurrent connections, each with a buffer of at most 64 KiB. Further ones
    /// are refused.
    pub connections_max: usize,
    /// A connection without traffic for this long is closed.
    pub idle: Duration,
    /// The time within which a client must send its header.
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

/// Counters of a running server.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) connections: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Counters {
    /// Connections that were accepted.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Connections that were refused: invalid headers, unknown runs, or too many connections.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Bytes of messages received.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// State shared by all connections.
#[derive(Debug)]
pub(crate) struct ServerState {
    pub(crate) began: Instant,
    pub(crate) config: ServerConfig,
    pub(crate) counters: Arc<Counters>,
    pub(crate) meter: Meter,
    /// Bytes received for each active run. Each control connection has one run.
    runs: Mutex<HashMap<u64, Arc<AtomicU64>>>,
    /// The source of run numbers. They are hard to guess, so that no client adds to another client's run.
    numbers: (RandomState, AtomicU64),
}

/// An active run. It ends when this is dropped.
pub(crate) struct Run<'a> {
    shared: &'a ServerState,
    pub(crate) number: u64,
    pub(crate) bytes: Arc<AtomicU64>,
}

impl ServerState {
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

/// A listening server.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    shared: Arc<ServerState>,
}

impl Server {
    /// Listens on `HOST:PORT`; port 0 picks a free port.
    ///
    /// # Errors
    /// [`NetbenchError::Listen`].
    pub async fn bind(address: &str, config: ServerConfig) -> Result<Self, NetbenchError> {
        let fail = |source| NetbenchError::Listen { address: address.to_owned(), source };
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "no such host");
        for resolved in lookup_host(address).await.map_err(fail)? {
            match listen(resolved) {
                Ok(listener) => {
                    let shared = ServerState {
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

    /// The address it listens on.
    ///
    /// # Errors
    /// If the system call fails.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The counters, which can be read while the server runs.
    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// Serves until `stop` completes, then closes all connections.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let mut tasks = JoinSet::new();
        tokio::select! {
            () = self.accept(&mut tasks) => {}
            () = stop => {}
        }
        // Abort the tasks and wait until they have ended.
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
                    // Too many open files, or the peer has already disconnected. Neither is a reason to
                    // end; the pause avoids a busy loop in the first case.
                    tracing::warn!(%error, "can't accept a connection");
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
                // In this order: a client that sees the close may connect again at once.
                drop(permit);
                drop(stream);
            });
        }
    }
}

async fn connection(stream: &mut TcpStream, peer: SocketAddr, shared: &ServerState, is_admitted: bool) {
    match serve(stream, shared, is_admitted).await {
        Ok(()) => tracing::debug!(%peer, "done"),
        Err(error) => tracing::debug!(%peer, %error, "ended"),
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Makes the port of a server that has just ended available at once.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
