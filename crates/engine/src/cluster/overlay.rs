//! Overlays carry rows between nodes that have more peers than they may have connections.
//!
//! An overlay is formed when all connected nodes can be part of one ([`follow`]), and used once each has
//! announced that it has started its part. Until then, and whenever the overlay can't be used, rows go
//! directly. [`lightship_overlay::SocketBudget`] chooses the route of each stream. Everything other than
//! rows goes directly.

mod follow;
mod instance;

use std::collections::BTreeMap;
use std::fmt;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lightship_overlay::{CONNECTIONS_MIN, StreamRoute};
use lightship_relay::{Security, Tls};
use lightship_transport::net::{ClientConfig, Connection};

use self::instance::OverlayInstance;
pub(crate) use self::instance::OverlayRoute;
use super::request::OverlayPart;
use crate::error::{EngineError, Result};

/// The configuration of a node's part in overlays.
#[derive(Clone)]
pub struct OverlayConfig {
    /// The bound listener for the overlay's connections. It stays open as long as the node runs.
    pub listener: Arc<TcpListener>,
    /// The listener's address as other nodes reach it, HOST:PORT.
    pub address: String,
    /// The most connections for rows to other nodes, at least 2. The smallest value of all nodes applies.
    pub connections_max: usize,
    /// This node's certificate, if nodes use TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Allows listening beyond this host without TLS and a token.
    pub insecure: bool,
}

/// The overlay as a node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OverlayState {
    /// Names of the nodes that it connects, sorted; empty if there is no overlay.
    pub nodes: Vec<String>,
    /// Whether new streams may use it: all of its nodes have announced their part, and none has changed since.
    pub is_open: bool,
    /// Connections of each node in the topology.
    pub topology: usize,
    /// Streams that this node has opened over it.
    pub streams: u64,
    /// Messages that this node has forwarded for others.
    pub forwarded: u64,
    /// This node's current connections to others in it.
    pub connections: usize,
    /// The most connections at any time.
    pub connections_max: usize,
    /// The most peers to which streams went directly at the same time, since this node started.
    pub direct_peers_max: usize,
    /// Links of the overlay, of any nodes, that are broken now.
    pub broken_links: usize,
}

/// A node's part in overlays. There is one overlay at a time.
pub(crate) struct Overlay {
    config: OverlayConfig,
    /// How to connect to others.
    client: ClientConfig,
    tls: Option<Arc<rustls::ClientConfig>>,
    now: Mutex<Option<Arc<OverlayInstance>>>,
    direct: Mutex<DirectStreams>,
}

/// Streams that go directly.
#[derive(Default)]
struct DirectStreams {
    by_peer: BTreeMap<String, usize>,
    /// The most peers at the same time.
    peers_max: usize,
}

/// The chosen route of a stream.
enum Chosen {
    Direct(Direct),
    Overlay(Arc<OverlayInstance>, u32),
}

/// Counts a direct stream until it is dropped.
pub(crate) struct Direct {
    overlay: Arc<Overlay>,
    peer: String,
}

impl Drop for Direct {
    fn drop(&mut self) {
        let mut direct = self.overlay.direct();
        if let Some(streams) = direct.by_peer.get_mut(&self.peer) {
            *streams -= 1;
            if *streams == 0 {
                direct.by_peer.remove(&self.peer);
            }
        }
    }
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Overlay").field(&self.config.address).finish()
    }
}

impl Overlay {
    /// # Errors
    /// When `connections_max` is too small, or the listener can't be used.
    pub(crate) fn new(
        config: OverlayConfig,
        client: ClientConfig,
        tls: Option<Arc<rustls::ClientConfig>>,
    ) -> Result<Arc<Self>> {
        if config.connections_max < CONNECTIONS_MIN {
            let most = config.connections_max;
            let why =
                format!("{most} connections between nodes: an overlay needs at least {CONNECTIONS_MIN}");
            return Err(EngineError::Config(why));
        }
        let nonblocking = config.listener.set_nonblocking(true);
        nonblocking.map_err(|e| EngineError::Config(format!("the overlay's listener: {e}")))?;
        // If a node hangs, everything relayed through it is silent too. Its neighbour should notice first
        // and name it, so streams over the overlay wait twice as long.
        let client = ClientConfig { ping_interval: 2 * client.ping_interval, ..client };
        Ok(Arc::new(Self { config, client, tls, now: Mutex::default(), direct: Mutex::default() }))
    }

    /// What other nodes are sent about it before there is an overlay.
    pub(crate) fn part(&self) -> OverlayPart {
        OverlayPart {
            address: self.config.address.clone(),
            connections_max: self.config.connections_max as u64,
            epoch: None,
        }
    }

    fn now(&self) -> MutexGuard<'_, Option<Arc<OverlayInstance>>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn direct(&self) -> MutexGuard<'_, DirectStreams> {
        self.direct.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection over the overlay for a stream with messages of this size; or, if the stream is to go
    /// directly, a guard that counts it.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        peer: &str,
        message_bytes: u32,
    ) -> std::result::Result<(Connection, OverlayRoute), Direct> {
        let (instance, node) = match self.choose(peer, message_bytes) {
            Chosen::Direct(direct) => return Err(direct),
            Chosen::Overlay(instance, node) => (instance, node),
        };
        match instance.connect(node, &self.client).await {
            Ok(connection) => Ok((connection, OverlayRoute::new(instance, node))),
            Err(error) => {
                tracing::debug!(node = peer, %error, "the overlay can't be used: the stream goes directly");
                Err(self.take_direct(&mut self.direct(), peer))
            }
        }
    }

    fn choose(self: &Arc<Self>, peer: &str, message_bytes: u32) -> Chosen {
        let instance = self.now().as_ref().filter(|instance| instance.is_open()).cloned();
        // Under one lock, so that two streams can't both take the last direct connection.
        let mut direct = self.direct();
        let (peers, is_direct) = (direct.by_peer.len(), direct.by_peer.contains_key(peer));
        if let Some(instance) = instance
            && let Some(node) = instance.number(peer)
            && instance.budget.route(peers, is_direct, message_bytes.into()) == StreamRoute::Overlay
        {
            return Chosen::Overlay(instance, node);
        }
        Chosen::Direct(self.take_direct(&mut direct, peer))
    }

    fn take_direct(self: &Arc<Self>, direct: &mut DirectStreams, peer: &str) -> Direct {
        *direct.by_peer.entry(peer.to_owned()).or_default() += 1;
        direct.peers_max = direct.peers_max.max(direct.by_peer.len());
        Direct { overlay: self.clone(), peer: peer.to_owned() }
    }

    /// The current overlay.
    pub(crate) fn state(&self) -> OverlayState {
        let overlay = self.now().as_ref().map(|instance| instance.state()).unwrap_or_default();
        OverlayState { direct_peers_max: self.direct().peers_max, ..overlay }
    }

    /// The same security as other connections between nodes; `names` are the names in the nodes' certificates.
    fn security(&self, names: Vec<rustls::pki_types::ServerName<'static>>) -> Security {
        let tls = match (&self.config.tls, &self.tls) {
            (Some(server), Some(client)) => {
                Some(Tls { server: server.clone(), client: client.clone(), names })
            }
            _ => None,
        };
        let token = Some(self.client.token.clone()).filter(|token| !token.is_empty());
        Security { tls, token, insecure: self.config.insecure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(connections_max: usize) -> OverlayConfig {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        OverlayConfig { listener: Arc::new(listener), address, connections_max, tls: None, insecure: false }
    }

    #[test]
    fn an_overlay_needs_at_least_two_connections() {
        let refused = Overlay::new(config(1), ClientConfig::default(), None).unwrap_err();
        assert!(refused.to_string().contains("needs at least 2"), "{refused}");
    }

    #[tokio::test]
    async fn without_an_overlay_all_streams_go_directly_and_are_counted() {
        let overlay = Overlay::new(config(2), ClientConfig::default(), None).unwrap();
        assert_eq!(overlay.state(), OverlayState::default());
        let mut held = Vec::new();
        for peer in ["a", "b", "a"] {
            held.extend(overlay.connect(peer, 1).await.err());
        }
        assert_eq!(held.len(), 3);
        assert_eq!(overlay.direct().by_peer.get("a"), Some(&2));
        drop(held);
        assert!(overlay.direct().by_peer.is_empty());
        assert_eq!(overlay.state().direct_peers_max, 2);
    }
}
