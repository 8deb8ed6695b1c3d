//! The server: its listener, and a task for each connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lightship_transport::net::Service;
use lightship_transport::{Result, TransportError};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::cancel::Sessions;
use crate::catalog::Catalog;
use crate::config::PgConfig;
use crate::error::SessionEnd;
use crate::scram::Verifier;
use crate::startup;

/// Connections that the system holds until they are accepted.
const BACKLOG: u32 = 1024;

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) config: PgConfig,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) catalog: Catalog,
    /// `None` if every client is accepted.
    pub(crate) verifier: Option<Verifier>,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) clients: Arc<Semaphore>,
}

/// An address that a server has bound and does not listen on yet. Connections to it are refused.
pub struct PgReserved {
    socket: TcpSocket,
    address: SocketAddr,
    config: PgConfig,
}

/// A server that listens and does not answer yet.
pub struct PgServer {
    listener: TcpListener,
    address: SocketAddr,
    config: PgConfig,
}

fn cannot_listen(address: SocketAddr, source: std::io::Error) -> TransportError {
    TransportError::Listen { address: format!("postgresql://{address}"), source }
}

impl PgReserved {
    /// The address, with the port that was chosen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts to listen.
    ///
    /// # Errors
    /// [`TransportError::Listen`] if another process listens on the address already.
    pub fn listen(self) -> Result<PgServer> {
        let Self { socket, address, config } = self;
        let listener = socket.listen(BACKLOG).map_err(|source| cannot_listen(address, source))?;
        Ok(PgServer { listener, address, config })
    }
}

impl PgServer {
    /// Binds an address and starts to listen; port 0 picks a free port. It needs a Tokio runtime.
    ///
    /// # Errors
    /// As [`PgServer::reserve`] and [`PgReserved::listen`].
    pub fn bind(address: SocketAddr, config: PgConfig) -> Result<Self> {
        Self::reserve(address, config)?.listen()
    }

    /// Binds an address without listening.
    ///
    /// # Errors
    /// [`TransportError::Config`] for an address beyond this host without both TLS and a token, unless
    /// [`PgConfig::insecure`]; [`TransportError::Listen`] if the address can't be bound.
    pub fn reserve(address: SocketAddr, config: PgConfig) -> Result<PgReserved> {
        let is_safe = config.tls.is_some() && !config.tokens.is_empty();
        if !address.ip().is_loopback() && !is_safe && !config.insecure {
            return Err(TransportError::Config(format!(
                "postgresql://{address} can be reached from other hosts, which requires TLS and a token"
            )));
        }
        let bind = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // Allows binding while connections of an earlier server are still being closed.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let bound = socket.local_addr()?;
            Ok((socket, bound))
        };
        let (socket, address) = bind().map_err(|source| cannot_listen(address, source))?;
        Ok(PgReserved { socket, address, config })
    }

    /// The address in use.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves clients until `shutdown` becomes true. Idle clients are then disconnected; running statements may finish
    /// within the grace period.
    ///
    /// # Errors
    /// [`TransportError::Config`] if the catalog can't be set up.
    pub async fn run(self, service: Arc<dyn Service>, mut shutdown: watch::Receiver<bool>) -> Result<()> {
        let Self { listener, config, .. } = self;
        let shared = Arc::new(Shared::new(config, service)?);
        let unauthenticated =
            Arc::new(Semaphore::new(shared.config.unauthenticated_max.clamp(1, Semaphore::MAX_PERMITS)));
        let mut tasks = JoinSet::new();
        loop {
            while tasks.try_join_next().is_some() {}
            let accepted = async {
                // The semaphore is never closed.
                let slot = unauthenticated.clone().acquire_owned().await.ok();
                (listener.accept().await, slot)
            };
            tokio::select! {
                (accepted, slot) = accepted => match accepted {
                    Ok((stream, peer)) => {
                        let (shared, shutdown) = (shared.clone(), shutdown.clone());
                        tasks.spawn(async move {
                            match Box::pin(serve(stream, slot, shared, shutdown)).await {
                                Ok(()) | Err(SessionEnd::Closed) => tracing::debug!(%peer, "PostgreSQL client disconnected"),
                                Err(error) => tracing::info!(%peer, %error, "connection of a PostgreSQL client ended"),
                            }
                        });
                    }
                    Err(error) => {
                        // Out of descriptors, or the client has disconnected. Keep serving others.
                        tracing::warn!(%error, "accept failed");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
                () = down(&mut shutdown) => break,
            }
        }
        drop(listener);
        let ended = async { while tasks.join_next().await.is_some() {} };
        if timeout(shared.config.shutdown_grace, ended).await.is_err() {
            tracing::warn!(
                connections = tasks.len(),
                "closing connections of PostgreSQL clients whose statements did not end in time"
            );
        }
        tasks.shutdown().await;
        Ok(())
    }
}

impl Shared {
    fn new(config: PgConfig, service: Arc<dyn Service>) -> Result<Self> {
        let verifier = if config.tokens.is_empty() {
            None
        } else {
            let verifier = Verifier::new(&config.tokens);
            Some(verifier.ok_or_else(|| TransportError::Config("the system has no random numbers".into()))?)
        };
        let tls = config.tls.as_ref().map(|tls| {
            // Clients that begin with TLS at once require the name of the protocol.
            let mut tls = rustls::ServerConfig::clone(tls);
            tls.alpn_protocols = vec![b"postgresql".to_vec()];
            TlsAcceptor::from(Arc::new(tls))
        });
        let catalog =
            Catalog::new().map_err(|error| TransportError::Config(format!("the catalog: {error}")))?;
        let clients = Arc::new(Semaphore::new(config.connections_max.min(Semaphore::MAX_PERMITS)));
        Ok(Self { config, service, catalog, verifier, tls, sessions: Arc::default(), clients })
    }
}

/// Returns when the server must shut down.
pub(crate) async fn down(shutdown: &mut watch::Receiver<bool>) {
    // A dropped sender is a shutdown too.
    let _ = shutdown.wait_for(|&down| down).await;
}

async fn serve(
    stream: TcpStream,
    slot: Option<OwnedSemaphorePermit>,
    shared: Arc<Shared>,
    shutdown: watch::Receiver<bool>,
) -> std::result::Result<(), SessionEnd> {
    stream.set_nodelay(true)?;
    // A client that has vanished would hold its place for ever.
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(20));
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    let handshake = Box::pin(startup::accept(stream, shared.clone(), shutdown));
    let Some(session) =
        timeout(shared.config.handshake_timeout, handshake).await.map_err(|_| SessionEnd::Late)??
    else {
        return Ok(());
    };
    drop(slot);
    session.run().await
}
