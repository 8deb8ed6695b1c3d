//! The side that answers: its listeners, and a task for each connection.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lightship_wire::frame::HELLO_BYTES_MAX;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Service;
use super::conversation::Handler;
use super::door::{Door, Stranger};
use super::intake::{Intake, Taken};
use super::listen::{self, Accepted, Listen, Listener};
use super::striping::Tickets;
use crate::{Result, TransportError};

/// Longest token: a hello has to have room for it, and for the name of the program.
const TOKEN_BYTES_MAX: usize = 4 << 10;
const _: () = assert!(TOKEN_BYTES_MAX < HELLO_BYTES_MAX as usize / 2 + 1);

/// A hello has no room for longer tokens.
pub(super) fn check_token(token: &str) -> Result<()> {
    if token.len() <= TOKEN_BYTES_MAX {
        return Ok(());
    }
    Err(TransportError::Token { bytes: token.len(), bytes_max: TOKEN_BYTES_MAX })
}

/// Files and sockets that are none of a connection: listeners, tables, what queries put on disk.
const DESCRIPTORS_OWN: u64 = 128;

/// How a server behaves.
#[derive(Clone)]
pub struct ServerConfig {
    /// Certificate and key; none means plain TCP. Unix sockets never use TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Bearer tokens that are let in; none lets everybody in.
    pub tokens: Vec<String>,
    /// The token by which nodes of the same cluster are let in, besides clients; empty lets in every
    /// node. None: this is no node of a cluster.
    pub peer_token: Option<String>,
    /// Allows listening beyond this host without TLS and tokens.
    pub insecure: bool,
    /// Connections of clients at once; one more waits in line. Each may hold a
    /// message, a batch of the engine and the engine's own state; one from this
    /// host also its window in shared memory, of at most 32 MiB.
    pub connections_max: usize,
    /// Clients that wait in line for a connection; one more is refused. Each holds a socket and some KiB.
    pub queue_max: usize,
    /// How long a client waits in line before it is refused; an hour at most.
    pub queue_timeout: Duration,
    /// Connections at once that have not shown a token yet; any more wait in the system's queue. Each holds a socket and
    /// some ten KiB. While all are taken each may be kept for 2 seconds.
    pub strangers_max: usize,
    /// Connections of nodes of the same cluster at once, beside those.
    pub peer_connections_max: usize,
    /// Largest message that a client can ask for; single rows may be larger.
    pub message_bytes_max: u32,
    /// TLS and hello together may take this long.
    pub handshake_timeout: Duration,
    /// A quiet client is pinged after this long, and given up after three times this. For a node of the
    /// cluster it is as long as that node itself waits for others, if that is less.
    pub ping_interval: Duration,
    /// How long a client may take nothing of a result while rows wait for it; then the query ends. Without it a client
    /// that only answers pings keeps its query, and what that holds, for ever. Nodes of the cluster may: they wait for
    /// clients of their own.
    pub stall_timeout: Option<Duration>,
    /// How long running queries may go on after a shutdown was asked for.
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
            strangers_max: 512,
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
    /// Files and sockets that a process with such a server may come to have open: a socket and a segment of
    /// shared memory for each client, a socket from each node and another one to it, one for each that waits or is a
    /// stranger, and some for the process itself.
    pub fn descriptors_max(&self) -> u64 {
        let connections = (self.connections_max as u64).saturating_add(self.peer_places() as u64);
        let others = (self.queue_max as u64).saturating_add(self.strangers_max as u64);
        connections.saturating_mul(2).saturating_add(others).saturating_add(DESCRIPTORS_OWN)
    }

    /// Connections of other nodes at once.
    pub(super) fn peer_places(&self) -> usize {
        if self.peer_token.is_some() { self.peer_connections_max } else { 0 }
    }

    /// Connections at once, of whatever kind.
    fn tasks_max(&self) -> usize {
        [self.connections_max, self.queue_max, self.strangers_max, self.peer_places()]
            .into_iter()
            .fold(0, usize::saturating_add)
    }
}

/// Addresses that a server has, and does not listen on yet: who connects is refused, and not left waiting.
pub struct Reserved {
    addresses: Vec<listen::Reserved>,
    config: Arc<ServerConfig>,
}

impl Reserved {
    /// The addresses, with the ports that were taken.
    ///
    /// # Errors
    /// When the system can't say.
    pub fn local(&self) -> Result<Vec<Listen>> {
        Ok(self.addresses.iter().map(listen::Reserved::local).collect::<Result<_, _>>()?)
    }

    /// Listens.
    ///
    /// # Errors
    /// [`TransportError::Listen`] when another process was quicker.
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

/// A server that listens and has not yet begun to answer.
pub struct Server {
    listeners: Vec<Listener>,
    intake: Intake,
    taken: Taken,
    config: Arc<ServerConfig>,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// As [`Server::reserve`] and [`Reserved::listen`].
    pub async fn bind(listen: &[Listen], config: ServerConfig) -> Result<Self> {
        Self::reserve(listen, config).await?.listen()
    }

    /// Takes addresses, and does not listen on them yet. A Unix socket takes connections nevertheless; they wait.
    ///
    /// # Errors
    /// [`TransportError::Config`] for an address beyond this host without both
    /// TLS and a token, unless that was allowed; [`TransportError::Token`] for one that is too long;
    /// [`TransportError::Listen`] when the address can't be had.
    pub async fn reserve(listen: &[Listen], config: ServerConfig) -> Result<Reserved> {
        config.tokens.iter().chain(&config.peer_token).try_for_each(|token| check_token(token))?;
        let safe = config.tls.is_some() && !config.tokens.is_empty();
        if let Some(open) = listen.iter().find(|l| !l.is_local() && !safe && !config.insecure) {
            return Err(TransportError::Config(format!(
                "{open} can be reached from other hosts, which takes TLS and a token"
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
    /// When the system can't say.
    pub fn local(&self) -> Result<Vec<Listen>> {
        Ok(self.listeners.iter().map(Listener::local).collect::<Result<_, _>>()?)
    }

    /// To hand it connections that are open already.
    pub fn intake(&self) -> Intake {
        self.intake.clone()
    }

    /// Answers until `shutdown` becomes true; then running queries may finish
    /// within the grace period, and all connections are closed.
    ///
    /// # Errors
    /// When a listener fails for good.
    pub async fn run(mut self, service: Arc<dyn Service>, mut shutdown: watch::Receiver<bool>) -> Result<()> {
        let tickets = Arc::<Tickets>::default();
        let door = Arc::new(Door::new(self.config.clone()));
        let tasks_max = self.config.tasks_max();
        let mut tasks = JoinSet::new();
        let mut beside = JoinSet::new();
        let (of_service, intake) = (service.clone(), self.intake.clone());
        beside.spawn(async move { of_service.beside(intake).await });
        loop {
            // Those that have ended count no more.
            while tasks.try_join_next().is_some() {}
            tokio::select! {
                accepted = accept(&self.listeners, &mut self.taken, &door) => match accepted {
                    // Only connections that come by others can be so many.
                    Ok(_) if tasks.len() >= tasks_max => {}
                    Ok((stream, peer, stranger)) => {
                        let (config, service) = (self.config.clone(), service.clone());
                        let (tickets, intake) = (tickets.clone(), self.intake.clone());
                        let (door, shutdown) = (door.clone(), shutdown.clone());
                        tasks.spawn(async move {
                            let place = Mutex::default();
                            let handler = Handler { config, service, tickets, door, place, shutdown, intake };
                            match handler.serve(stream, stranger).await {
                                Ok(()) => tracing::debug!(peer, "connection closed"),
                                Err(error) => tracing::info!(peer, %error, "connection ended"),
                            }
                        });
                    }
                    Err(error) => {
                        // Out of descriptors, or a client that left again: others can still be served.
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

/// The next connection, by whatever way.
async fn accept(
    listeners: &[Listener],
    taken: &mut Taken,
    door: &Door,
) -> std::io::Result<(Accepted, String, Stranger)> {
    let listening = async {
        if listeners.is_empty() {
            return std::future::pending().await;
        }
        let stranger = door.stranger().await;
        let listening = listeners.iter().map(|listener| Box::pin(listener.accept()));
        let (stream, peer) = futures::future::select_all(listening).await.0?;
        Ok((stream, peer, stranger.begins_now()))
    };
    tokio::select! {
        Some((pipe, peer)) = taken.recv() => Ok((pipe, peer, door.stranger_of_ours())),
        accepted = listening => accepted,
    }
}

/// Comes back when it is time to stop.
pub(super) async fn down(shutdown: &mut watch::Receiver<bool>) {
    // A sender that is gone will never ask for more: that is a shutdown too.
    let _ = shutdown.wait_for(|&down| down).await;
}
