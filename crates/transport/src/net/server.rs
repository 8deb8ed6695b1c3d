//! The server: its listeners, and a task for each connection.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lightship_wire::frame::HELLO_BYTES_MAX;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Service;
use super::admission::{Admission, Unauthenticated};
use super::conversation::Handler;
use super::intake::{Intake, Taken};
use super::listen::{self, AcceptedStream, Listen, Listener};
use super::striping::StripeOffers;
use crate::{Result, TransportError};

/// The longest token. A hello must have room for it and for the name of the program.
const TOKEN_BYTES_MAX: usize = 4 << 10;
const _: () = assert!(TOKEN_BYTES_MAX < HELLO_BYTES_MAX as usize / 2 + 1);

/// Fails if the token does not fit in a hello.
pub(super) fn check_token(token: &str) -> Result<()> {
    if token.len() <= TOKEN_BYTES_MAX {
        return Ok(());
    }
    Err(TransportError::Token { bytes: token.len(), bytes_max: TOKEN_BYTES_MAX })
}

/// Files and sockets that belong to no connection: listeners, tables, files that queries spill to.
const DESCRIPTORS_OWN: u64 = 128;

/// Settings of a server.
#[derive(Clone)]
pub struct ServerConfig {
    /// Certificate and key; `None` means plain TCP. Unix sockets never use TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Accepted bearer tokens. If empty, every client is accepted.
    pub tokens: Vec<String>,
    /// The token of other nodes of the cluster. If it is empty, every node is accepted. `None` if this node is
    /// not in a cluster.
    pub peer_token: Option<String>,
    /// Allows listening beyond this host without TLS and tokens.
    pub insecure: bool,
    /// The maximum number of concurrent client connections; more wait in the queue. Each may hold a message, a
    /// batch of the engine and the engine's own state; one from this host also its window in shared memory, of at
    /// most 32 MiB.
    pub connections_max: usize,
    /// The maximum number of clients in the queue; more are refused. Each holds a socket and some KiB.
    pub queue_max: usize,
    /// How long a client waits in the queue before it is refused; at most an hour.
    pub queue_timeout: Duration,
    /// The maximum number of concurrent unauthenticated connections; more wait in the system's backlog. Each
    /// holds a socket and some ten KiB. While all slots are taken, each may stay for 2 seconds.
    pub unauthenticated_max: usize,
    /// The maximum number of concurrent connections of other nodes of the cluster. They do not count as clients.
    pub peer_connections_max: usize,
    /// The largest message that a client can request; single rows may be larger.
    pub message_bytes_max: u32,
    /// The time allowed for the TLS handshake and the hello together.
    pub handshake_timeout: Duration,
    /// A quiet client is pinged after this time, and given up after three times this. For another node of the
    /// cluster, that node's own interval applies if it is shorter.
    pub ping_interval: Duration,
    /// How long a client may take nothing of a result while rows wait for it; then the query fails. Without a
    /// limit, a client that only answers pings keeps its query and the query's resources for ever. It does
    /// not apply to nodes of the cluster, which may wait for their own clients.
    pub stall_timeout: Option<Duration>,
    /// How long running queries may go on after a shutdown was requested.
    pub shutdown_grace: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            tls: None,
            tokens: Vec::new(),
            peer_token: None,
            insecure: false,
            connections_max: 256,
            queue_max: 256,
            queue_timeout: Duration::from_secs(10),
            unauthenticated_max: 512,
            peer_connections_max: 4096,
            message_bytes_max: 32 << 20,
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(10),
            stall_timeout: Some(Duration::from_secs(15 * 60)),
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

impl ServerConfig {
    /// The maximum number of open files and sockets of a process with this server: a socket and a segment of
    /// shared memory for each client, two sockets for each other node, one for each client in the queue and
    /// each unauthenticated connection, and some for the process itself.
    pub fn descriptors_max(&self) -> u64 {
        let connections = (self.connections_max as u64).saturating_add(self.peer_slots() as u64);
        let others = (self.queue_max as u64).saturating_add(self.unauthenticated_max as u64);
        connections.saturating_mul(2).saturating_add(others).saturating_add(DESCRIPTORS_OWN)
    }

    /// The maximum number of concurrent connections of other nodes.
    pub(super) fn peer_slots(&self) -> usize {
        if self.peer_token.is_some() { self.peer_connections_max } else { 0 }
    }

    /// The maximum number of concurrent connections of all kinds.
    fn tasks_max(&self) -> usize {
        [self.connections_max, self.queue_max, self.unauthenticated_max, self.peer_slots()]
            .into_iter()
            .fold(0, usize::saturating_add)
    }
}

/// Addresses that a server has bound and does not listen on yet. TCP connections to them are refused.
pub struct Reserved {
    addresses: Vec<listen::Reserved>,
    config: Arc<ServerConfig>,
}

impl Reserved {
    /// The addresses, with the ports that were chosen.
    ///
    /// # Errors
    /// If the system does not report an address.
    pub fn local(&self) -> Result<Vec<Listen>> {
        Ok(self.addresses.iter().map(listen::Reserved::local).collect::<Result<_, _>>()?)
    }

    /// Starts to listen.
    ///
    /// # Errors
    /// [`TransportError::Listen`] if another process listens on an address already.
    pub fn listen(self) -> Result<Server> {
        let mut listeners = Vec::new();
        for reserved in self.addresses {
            let address = reserved.local().map_or_else(|_| "an address".into(), |local| local.to_string());
            let listener = reserved.listen().map_err(|source| TransportError::Listen { address, source })?;
            listeners.push(listener);
        }
        let (intake, taken) = Intake::new();
        Ok(Server { listeners, intake, taken, config: self.config })
    }
}

/// A server that listens and does not answer yet.
pub struct Server {
    listeners: Vec<Listener>,
    intake: Intake,
    taken: Taken,
    config: Arc<ServerConfig>,
}

impl Server {
    /// Binds the addresses and starts to listen.
    ///
    /// # Errors
    /// As [`Server::reserve`] and [`Reserved::listen`].
    pub async fn bind(listen: &[Listen], config: ServerConfig) -> Result<Self> {
        Self::reserve(listen, config).await?.listen()
    }

    /// Binds addresses without listening. A Unix socket accepts connections nevertheless; they wait.
    ///
    /// # Errors
    /// [`TransportError::Config`] for an address beyond this host without both TLS and a token, unless
    /// [`ServerConfig::insecure`]; [`TransportError::Token`] for a token that is too long;
    /// [`TransportError::Listen`] if an address can't be bound.
    pub async fn reserve(listen: &[Listen], config: ServerConfig) -> Result<Reserved> {
        config.tokens.iter().chain(&config.peer_token).try_for_each(|token| check_token(token))?;
        let safe = config.tls.is_some() && !config.tokens.is_empty();
        if let Some(open) = listen.iter().find(|l| !l.is_local() && !safe && !config.insecure) {
            return Err(TransportError::Config(format!(
                "{open} can be reached from other hosts, which requires TLS and a token"
            )));
        }
        let mut addresses = Vec::new();
        for listen in listen {
            let fail = |source| TransportError::Listen { address: listen.to_string(), source };
            addresses.push(listen::Reserved::bind(listen).await.map_err(fail)?);
        }
        Ok(Reserved { addresses, config: Arc::new(config) })
    }

    /// The addresses in use.
    ///
    /// # Errors
    /// If the system does not report an address.
    pub fn local(&self) -> Result<Vec<Listen>> {
        Ok(self.listeners.iter().map(Listener::local).collect::<Result<_, _>>()?)
    }

    /// Passes connections that are already open to this server.
    pub fn intake(&self) -> Intake {
        self.intake.clone()
    }

    /// Serves connections until `shutdown` becomes true. Running queries may then finish within the grace
    /// period, and all connections are closed.
    ///
    /// # Errors
    /// If a listener fails permanently.
    pub async fn run(mut self, service: Arc<dyn Service>, mut shutdown: watch::Receiver<bool>) -> Result<()> {
        let stripe_offers = Arc::<StripeOffers>::default();
        let admission = Arc::new(Admission::new(self.config.clone()));
        let tasks_max = self.config.tasks_max();
        let mut tasks = JoinSet::new();
        let mut beside = JoinSet::new();
        let (of_service, intake) = (service.clone(), self.intake.clone());
        beside.spawn(async move { of_service.beside(intake).await });
        loop {
            // Remove tasks that have ended.
            while tasks.try_join_next().is_some() {}
            tokio::select! {
                accepted = accept(&self.listeners, &mut self.taken, &admission) => match accepted {
                    // Only connections from the intake can exceed the limit.
                    Ok(_) if tasks.len() >= tasks_max => {}
                    Ok((stream, peer, unauthenticated)) => {
                        let (config, service) = (self.config.clone(), service.clone());
                        let (stripe_offers, admission, shutdown) = (stripe_offers.clone(), admission.clone(), shutdown.clone());
                        tasks.spawn(async move {
                            let (slot, address) = (Mutex::default(), stream.address());
                            let handler =
                                Handler { config, service, stripe_offers, admission, address, slot, shutdown };
                            match Arc::new(handler).serve(stream, unauthenticated).await {
                                Ok(()) => tracing::debug!(peer, "connection closed"),
                                Err(error) => tracing::info!(peer, %error, "connection ended"),
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
        drop((self.listeners, self.taken));
        let ended = async {
            while tasks.join_next().await.is_some() {}
            while beside.join_next().await.is_some() {}
        };
        if timeout(self.config.shutdown_grace, ended).await.is_err() {
            tracing::warn!(
                connections = tasks.len(),
                "closing connections whose queries did not end in time"
            );
        }
        tasks.shutdown().await;
        Ok(())
    }
}

/// The next connection, from a listener or the intake.
async fn accept(
    listeners: &[Listener],
    taken: &mut Taken,
    admission: &Admission,
) -> std::io::Result<(AcceptedStream, String, Unauthenticated)> {
    let listening = async {
        if listeners.is_empty() {
            return std::future::pending().await;
        }
        let unauthenticated = admission.unauthenticated().await;
        let listening = listeners.iter().map(|listener| Box::pin(listener.accept()));
        let (stream, peer) = futures::future::select_all(listening).await.0?;
        Ok((stream, peer, unauthenticated.begins_now()))
    };
    tokio::select! {
        Some((pipe, peer)) = taken.recv() => Ok((pipe, peer, admission.unauthenticated_from_intake())),
        accepted = listening => accepted,
    }
}

/// Returns when the server must shut down.
pub(super) async fn down(shutdown: &mut watch::Receiver<bool>) {
    // A dropped sender is a shutdown too.
    let _ = shutdown.wait_for(|&down| down).await;
}
