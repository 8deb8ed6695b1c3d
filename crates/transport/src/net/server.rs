//! The side that answers: its listeners, and a task for each connection.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Service;
use super::conversation::Handler;
use super::intake::{Intake, Taken};
use super::listen::{Accepted, Listen, Listener};
use super::striping::Tickets;
use crate::{Result, TransportError};

/// So many connections beyond the limit are told that it is reached; any more are just closed.
const REFUSALS_MAX: usize = 64;

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
    /// Connections at once; one more is told to come later. Each may hold a
    /// message, a batch of the engine and the engine's own state; one from this
    /// host also its window in shared memory, of at most 32 MiB.
    pub connections_max: usize,
    /// Connections of nodes of the same cluster at once, beside those.
    pub peer_connections_max: usize,
    /// Largest message that a client can ask for; single rows may be larger.
    pub message_bytes_max: u32,
    /// TLS and hello together may take this long.
    pub handshake_timeout: Duration,
    /// A quiet client is pinged after this long, and given up after three times this. For a node of the
    /// cluster it is as long as that node itself waits for others, if that is less.
    pub ping_interval: Duration,
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
            peer_connections_max: 4096,
            message_bytes_max: 32 << 20,
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

impl ServerConfig {
    /// Files and sockets that a process with such a server may come to have open: a socket and a segment of
    /// shared memory for each client, a socket from each node and another one to it, and some for the process itself.
    pub fn descriptors_max(&self) -> u64 {
        let peers = if self.peer_token.is_some() { self.peer_connections_max } else { 0 };
        let connections = (self.connections_max as u64).saturating_add(peers as u64);
        connections.saturating_mul(2).saturating_add(DESCRIPTORS_OWN)
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
    /// [`TransportError::Config`] for an address beyond this host without both
    /// TLS and a token, unless that was allowed; [`TransportError::Connect`]
    /// when the address can't be had.
    pub async fn bind(listen: &[Listen], config: ServerConfig) -> Result<Self> {
        let safe = config.tls.is_some() && !config.tokens.is_empty();
        if let Some(open) = listen.iter().find(|l| !l.is_local() && !safe && !config.insecure) {
            return Err(TransportError::Config(format!(
                "{open} can be reached from other hosts, which takes TLS and a token"
            )));
        }
        let mut listeners = Vec::new();
        for listen in listen {
            let fail = |source| TransportError::Connect { target: listen.to_string(), source };
            listeners.push(Listener::bind(listen).await.map_err(fail)?);
        }
        let (intake, taken) = Intake::new();
        Ok(Self { listeners, intake, taken, config: Arc::new(config) })
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
        let places = Arc::new(Semaphore::new(self.config.connections_max));
        let peers = if self.config.peer_token.is_some() { self.config.peer_connections_max } else { 0 };
        let peer_places = Arc::new(Semaphore::new(peers));
        let mut tasks = JoinSet::new();
        let mut beside = JoinSet::new();
        let (of_service, intake) = (service.clone(), self.intake.clone());
        beside.spawn(async move { of_service.beside(intake).await });
        loop {
            tokio::select! {
                accepted = accept(&self.listeners, &mut self.taken) => match accepted {
                    Ok(_) if tasks.len() >= self.config.connections_max + peers + REFUSALS_MAX => {}
                    Ok((stream, peer)) => {
                        let (config, service) = (self.config.clone(), service.clone());
                        let (tickets, intake) = (tickets.clone(), self.intake.clone());
                        let (places, shutdown) = (places.clone(), shutdown.clone());
                        let peer_places = peer_places.clone();
                        tasks.spawn(async move {
                            let place = Mutex::new(places.try_acquire_owned().ok());
                            let handler =
                                Handler { config, service, tickets, place, peer_places, shutdown, intake };
                            match handler.serve(stream).await {
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
async fn accept(listeners: &[Listener], taken: &mut Taken) -> std::io::Result<(Accepted, String)> {
    let listening = async {
        if listeners.is_empty() {
            return std::future::pending().await;
        }
        let listening = listeners.iter().map(|listener| Box::pin(listener.accept()));
        futures::future::select_all(listening).await.0
    };
    tokio::select! {
        Some(pipe) = taken.recv() => Ok(pipe),
        accepted = listening => accepted,
    }
}

/// Comes back when it is time to stop.
pub(super) async fn down(shutdown: &mut watch::Receiver<bool>) {
    // A sender that is gone will never ask for more: that is a shutdown too.
    let _ = shutdown.wait_for(|&down| down).await;
}
