//! The server: its listener, and a task for each connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lightship_transport::net::Service;
use lightship_transport::{Result, TransportError};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::FlightConfig;
use crate::connection::Connections;
use crate::front::Front;
use crate::gate::Gate;

/// The wait after a connection could not be accepted, for example because there are too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The name of HTTP/2 in the TLS handshake. Clients of gRPC demand it.
const ALPN_HTTP2: &[u8] = b"h2";

/// A server that has bound its address and does not answer yet. Clients that connect wait.
pub struct FlightServer {
    listener: TcpListener,
    config: FlightConfig,
}

impl FlightServer {
    /// Binds an address and starts to listen. Port 0 picks a free port.
    ///
    /// # Errors
    /// [`TransportError::Config`] for settings that are not valid, and for an address beyond this host without both TLS
    /// and a token, unless [`FlightConfig::insecure`]; [`TransportError::Token`] for a token that is too long;
    /// [`TransportError::Listen`] if the address can't be bound.
    pub async fn bind(address: SocketAddr, config: FlightConfig) -> Result<Self> {
        config.check()?;
        let safe = config.tls.is_some() && !config.tokens.is_empty();
        if !address.ip().is_loopback() && !safe && !config.insecure {
            return Err(TransportError::Config(format!(
                "{address} can be reached from other hosts, which requires TLS and a token"
            )));
        }
        let fail = |source| TransportError::Listen { address: format!("grpc://{address}"), source };
        Ok(Self { listener: TcpListener::bind(address).await.map_err(fail)?, config })
    }

    /// The address in use, with the port that was chosen.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn address(&self) -> Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// Serves connections until `shutdown` becomes true or its sender is dropped. Running statements may then finish
    /// within the grace period, and all connections are closed. It does not run [`Service::beside`], which is for the
    /// node's own server.
    ///
    /// # Errors
    /// If the settings can't be applied. A connection that fails ends alone.
    pub async fn run(self, service: Arc<dyn Service>, mut shutdown: watch::Receiver<bool>) -> Result<()> {
        let Self { listener, config } = self;
        let acceptor = config.tls.as_ref().map(|tls| {
            let mut tls = rustls::ServerConfig::clone(tls);
            tls.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
            TlsAcceptor::from(Arc::new(tls))
        });
        let grace = config.shutdown_grace;
        let sockets = config.connections_max.saturating_add(config.unauthenticated_max.max(1));
        let sockets = Arc::new(Semaphore::new(sockets.min(Semaphore::MAX_PERMITS)));
        let gate = Arc::new(Gate::new(config.tokens.clone()));
        let config = Arc::new(config);
        let front = Front::new(service, config.clone(), gate.clone())?;
        let connections = Arc::new(Connections::new(config, gate, front));
        let mut tasks = JoinSet::new();
        loop {
            let accepted = async {
                let socket = sockets.clone().acquire_owned().await;
                (socket, listener.accept().await)
            };
            tokio::select! {
                () = down(&mut shutdown) => break,
                // Ended connections are taken out, so that they do not add up.
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
                (socket, accepted) = accepted => match accepted {
                    Ok((stream, peer)) => {
                        let (connections, acceptor, shutdown) =
                            (connections.clone(), acceptor.clone(), shutdown.clone());
                        tasks.spawn(async move {
                            connections.serve(stream, acceptor, shutdown).await;
                            tracing::debug!(%peer, "Flight connection closed");
                            drop(socket);
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "accept failed");
                        sleep(ACCEPT_RETRY).await;
                    }
                },
            }
        }
        drop(listener);
        let ended = async { while tasks.join_next().await.is_some() {} };
        if timeout(grace, ended).await.is_err() {
            tracing::warn!(
                connections = tasks.len(),
                "closing Flight connections whose queries did not end in time"
            );
        }
        tasks.shutdown().await;
        Ok(())
    }
}

/// Returns when the server must shut down.
pub(crate) async fn down(shutdown: &mut watch::Receiver<bool>) {
    // A dropped sender is a shutdown too.
    let _ = shutdown.wait_for(|&down| down).await;
}
