//! Where a client that came by TCP from this very host meets its server: on a Unix
//! socket of a random name, over which memory can be shared.
//!
//! Both sides know each other by tokens that were told over the TCP connection, so
//! the meeting is as good as that; the name alone is nothing to rely on.

use std::time::Duration;

use lightship_wire::local::{MEETING_NAME_PREFIX, Meeting};
use rustls::crypto::ring::default_provider;
use subtle::ConstantTimeEq;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::ServerConfig;
use super::conversation::Session;

/// A server waits here for one client.
pub(super) struct MeetingPlace {
    listener: UnixListener,
    pub(super) meeting: Meeting,
}

impl MeetingPlace {
    /// Somewhere new; `None` where the system has no such place.
    pub(super) fn open() -> Option<Self> {
        let name = format!("{MEETING_NAME_PREFIX}{}", random()?);
        let meeting = Meeting { name, client_token: random()?, server_token: random()? };
        let listener = UnixListener::bind(path(&meeting)).ok()?;
        Some(Self { listener, meeting })
    }

    /// The client, once it has come. Strangers are sent away; one is heard at a time, for no
    /// longer than `limit`.
    pub(super) async fn client(&self, limit: Duration, config: &ServerConfig) -> Session {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                return std::future::pending().await;
            };
            let mut session = Session::unix(stream, config);
            let known = |token: &str| token.as_bytes().ct_eq(self.meeting.client_token.as_bytes()).into();
            if timeout(limit, session.hello())
                .await
                .is_ok_and(|token| token.is_some_and(|token| known(&token)))
            {
                session.admit(self.meeting.server_token.clone());
                return session;
            }
            tracing::info!("a stranger came to a meeting");
        }
    }
}

/// Goes where a server waits.
pub(super) async fn go(meeting: &Meeting) -> std::io::Result<UnixStream> {
    UnixStream::connect(path(meeting)).await
}

/// The abstract namespace of unix(7): nothing is left of a name when its socket is closed.
fn path(meeting: &Meeting) -> String {
    format!("\0{}", meeting.name)
}

/// 128 random bits in hexadecimal.
fn random() -> Option<String> {
    Some(format!("{:032x}", u128::from_le_bytes(random_bits()?)))
}

/// 128 random bits, if the system gives them.
pub(super) fn random_bits() -> Option<[u8; 16]> {
    let mut bits = [0; 16];
    default_provider().secure_random.fill(&mut bits).ok()?;
    Some(bits)
}
