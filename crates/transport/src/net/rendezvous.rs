//! The rendezvous of a server and a client on the same host: after connecting by TCP, they move to a Unix
//! socket with a random name, over which memory can be shared.
//!
//! Both sides authenticate with tokens that were exchanged over the TCP connection, so the rendezvous is as
//! secure as that connection. The name is not secret.

use std::time::Duration;

use lightship_wire::shm::{RENDEZVOUS_NAME_PREFIX, Rendezvous};
use rustls::crypto::ring::default_provider;
use subtle::ConstantTimeEq;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::ServerConfig;
use super::conversation::Session;

/// A socket on which a server waits for one client.
pub(super) struct RendezvousSocket {
    listener: UnixListener,
    pub(super) rendezvous: Rendezvous,
}

impl RendezvousSocket {
    /// Opens a socket with a new name; `None` if the system does not support it.
    pub(super) fn open() -> Option<Self> {
        let name = format!("{RENDEZVOUS_NAME_PREFIX}{}", random()?);
        let rendezvous = Rendezvous { name, client_token: random()?, server_token: random()? };
        let listener = UnixListener::bind(path(&rendezvous)).ok()?;
        Some(Self { listener, rendezvous })
    }

    /// Waits for the client. Connections without its token are closed. Only one connection is served at a time,
    /// for at most `limit`.
    pub(super) async fn client(&self, limit: Duration, config: &ServerConfig) -> Session {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                return std::future::pending().await;
            };
            let mut session = Session::unix(stream, config);
            let known = |token: &str| token.as_bytes().ct_eq(self.rendezvous.client_token.as_bytes()).into();
            if timeout(limit, session.hello())
                .await
                .is_ok_and(|token| token.is_some_and(|token| known(&token)))
            {
                session.admit(self.rendezvous.server_token.clone());
                return session;
            }
            tracing::info!("refused an unauthenticated connection at a rendezvous");
        }
    }
}

/// Connects to a rendezvous.
pub(super) async fn go(rendezvous: &Rendezvous) -> std::io::Result<UnixStream> {
    UnixStream::connect(path(rendezvous)).await
}

/// The name in the abstract namespace of unix(7). It disappears when its socket is closed.
fn path(rendezvous: &Rendezvous) -> String {
    format!("\0{}", rendezvous.name)
}

/// 128 random bits in hexadecimal.
fn random() -> Option<String> {
    Some(format!("{:032x}", u128::from_le_bytes(random_bits()?)))
}

/// 128 random bits; `None` if the system provides none.
pub(super) fn random_bits() -> Option<[u8; 16]> {
    let mut bits = [0; 16];
    default_provider().secure_random.fill(&mut bits).ok()?;
    Some(bits)
}
