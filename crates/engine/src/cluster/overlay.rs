//! Rows by way of others: where a node has more peers than it may have connections to, streams go over an overlay.
//!
//! It is formed when all nodes that have met can be part of one ([`follow`]), and used when each has said that
//! it is there; until then, and whenever it can't be used, rows go directly. [`lightship_overlay::Division`]
//! chooses, for each stream. What nodes tell each other beside rows always goes directly.

mod follow;
mod formed;

use std::collections::BTreeMap;
use std::fmt;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lightship_overlay::{CONNECTIONS_MIN, Way};
use lightship_relay::{Security, Tls};
use lightship_transport::net::{ClientConfig, Connection};

use self::formed::Formed;
pub(crate) use self::formed::Passage;
use super::ask::OverlayPart;
use crate::error::{EngineError, Result};

/// A node's part in an overlay, where nodes have more peers than they may have connections to.
#[derive(Clone)]
pub struct OverlayConfig {
    /// Where the overlay's connections come in: bound already, and for as long as the node is there.
    pub listener: Arc<TcpListener>,
    /// The listener's address as other nodes reach it, HOST:PORT.
    pub address: String,
    /// Connections with rows that a node may have, to other nodes, at least 2. Of all nodes' the smallest counts.
    pub connections_max: usize,
    /// This node's certificate, where nodes encrypt what they send.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Allows listening beyond this host without TLS and a token.
    pub insecure: bool,
}

/// The overlay as a node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OverlayState {
    /// Names of the nodes that it connects, in order; none where there is no overlay.
    pub nodes: Vec<String>,
    /// Whether streams go over it: all of its nodes have said that it is there, and none has changed since.
    pub is_open: bool,
    /// Connections of the topology that a node has.
    pub topology: usize,
    /// Streams that this node has opened over it.
    pub streams: u64,
    /// Messages that this node has forwarded for others.
    pub forwarded: u64,
    /// This node's connections to others in it, now.
    pub connections: usize,
    /// The most that there were at any time.
    pub connections_max: usize,
}

/// A node's part in overlays, of which there is one at a time.
pub(crate) struct Overlay {
    config: OverlayConfig,
    /// How others are reached: token and certificates.
    client: ClientConfig,
    tls: Option<Arc<rustls::ClientConfig>>,
    now: Mutex<Option<Arc<Formed>>>,
    /// Streams that go directly, by peer.
    direct: Mutex<BTreeMap<String, usize>>,
}

/// By which way a stream is to go.
enum Chosen {
    Direct(Direct),
    Overlay(Arc<Formed>, u32),
}

/// A stream that goes directly, as long as it does.
pub(crate) struct Direct {
    overlay: Arc<Overlay>,
    peer: String,
}

impl Drop for Direct {
    fn drop(&mut self) {
        let mut direct = self.overlay.direct();
        if let Some(streams) = direct.get_mut(&self.peer) {
            *streams -= 1;
            if *streams == 0 {
                direct.remove(&self.peer);
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
    /// When its connections are too few, or its listener can't be used.
    pub(crate) fn new(
        config: OverlayConfig,
        client: ClientConfig,
        tls: Option<Arc<rustls::ClientConfig>>,
    ) -> Result<Arc<Self>> {
        if config.connections_max < CONNECTIONS_MIN {
            let most = config.connections_max;
            let why =
                format!("{most} connections between nodes: an overlay takes {CONNECTIONS_MIN} at least");
            return Err(EngineError::Config(why));
        }
        let nonblocking = config.listener.set_nonblocking(true);
        nonblocking.map_err(|e| EngineError::Config(format!("the overlay's listener: {e}")))?;
        // The neighbour of a node that hangs is to find that first, and name it: what goes by it is as silent.
        let client = ClientConfig { ping_interval: 2 * client.ping_interval, ..client };
        Ok(Arc::new(Self { config, client, tls, now: Mutex::default(), direct: Mutex::default() }))
    }

    /// As other nodes are told of it, before there is an overlay.
    pub(crate) fn part(&self) -> OverlayPart {
        OverlayPart {
            address: self.config.address.clone(),
            connections_max: self.config.connections_max as u64,
            epoch: None,
        }
    }

    fn now(&self) -> MutexGuard<'_, Option<Arc<Formed>>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn direct(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.direct.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection over the overlay for a stream of messages of so many bytes; or none, and a place among those
    /// that go directly.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        peer: &str,
        message_bytes: u32,
    ) -> std::result::Result<(Connection, Passage), Direct> {
        let (formed, node) = match self.choose(peer, message_bytes) {
            Chosen::Direct(direct) => return Err(direct),
            Chosen::Overlay(formed, node) => (formed, node),
        };
        match formed.connect(node, &self.client).await {
            Ok(connection) => Ok((connection, Passage::new(formed, node))),
            Err(error) => {
                tracing::debug!(node = peer, %error, "not over the overlay");
                Err(self.take_direct(&mut self.direct(), peer))
            }
        }
    }

    fn choose(self: &Arc<Self>, peer: &str, message_bytes: u32) -> Chosen {
        let formed = self.now().as_ref().filter(|formed| formed.is_open()).cloned();
        // Under one lock, so that no two streams take the last place.
        let mut direct = self.direct();
        if let Some(formed) = formed
            && let Some(node) = formed.number(peer)
            && formed.division.way(direct.len(), direct.contains_key(peer), message_bytes.into())
                == Way::Overlay
        {
            return Chosen::Overlay(formed, node);
        }
        Chosen::Direct(self.take_direct(&mut direct, peer))
    }

    fn take_direct(self: &Arc<Self>, direct: &mut BTreeMap<String, usize>, peer: &str) -> Direct {
        *direct.entry(peer.to_owned()).or_default() += 1;
        Direct { overlay: self.clone(), peer: peer.to_owned() }
    }

    /// The overlay now.
    pub(crate) fn state(&self) -> OverlayState {
        self.now().as_ref().map(|formed| formed.state()).unwrap_or_default()
    }

    /// As for other connections between nodes, when the nodes' certificates are for these.
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
    fn two_connections_at_least() {
        let refused = Overlay::new(config(1), ClientConfig::default(), None).unwrap_err();
        assert!(refused.to_string().contains("takes 2 at least"), "{refused}");
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
        assert_eq!(overlay.direct().get("a"), Some(&2));
        drop(held);
        assert!(overlay.direct().is_empty());
    }
}
