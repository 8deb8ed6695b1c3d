//! What can go wrong between two ends.

use std::time::Duration;

use lightship_wire::WireError;
use lightship_wire::control::Failure;

/// Result of this crate.
pub type Result<T, E = TransportError> = std::result::Result<T, E>;

/// A connection or a stream that did not do what was wanted of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// No connection could be made.
    #[error("can't reach {target}: {source}")]
    Connect {
        /// Host and port, or path.
        target: String,
        /// The system's or TLS' error.
        #[source]
        source: std::io::Error,
    },
    /// The host was reached, and what listens there said nothing in time.
    #[error("can't reach {target}: {awaited} within {} seconds", .after.as_secs_f32())]
    Unwelcome {
        /// Host and port, or path.
        target: String,
        /// What did not come.
        awaited: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// An address that can't be listened on.
    #[error("can't listen on {address}: {}", listening(.source))]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The peer closed the connection in the middle of something.
    #[error("the peer closed the connection{}", .during.map(|d| format!(" {d}")).unwrap_or_default())]
    Closed {
        /// In the middle of what.
        during: Option<&'static str>,
    },
    /// No sign of life from the peer.
    #[error("no sign of life from the peer for {} seconds", .after.as_secs_f32())]
    Silent {
        /// For how long.
        after: Duration,
    },
    /// The peer took nothing of what was sent to it.
    #[error("the peer took nothing for {} seconds", .after.as_secs_f32())]
    Stalled {
        /// For how long.
        after: Duration,
    },
    /// The peer's bytes can't be read.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer's frames can be read, but don't belong where they came.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// The peer says that it failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A connection that had joined the result was lost, with messages on it.
    #[error("connection {connection} of the result was lost: {source}")]
    Lost {
        /// Which, from 1.
        connection: u32,
        /// How it ended.
        #[source]
        source: Box<TransportError>,
    },
    /// Certificates or keys that can't be used.
    #[error("TLS: {0}")]
    Tls(String),
    /// A token longer than any that is taken.
    #[error("a token of {bytes} bytes: it has {bytes_max} at most")]
    Token {
        /// Its length.
        bytes: usize,
        /// The longest there is.
        bytes_max: usize,
    },
    /// A setting that is refused before anything starts.
    #[error("{0}")]
    Config(String),
}

/// Why an address can't be listened on, in words that need no number.
fn listening(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "the address is in use".into(),
        std::io::ErrorKind::AddrNotAvailable => "no address of this host".into(),
        _ => error.to_string(),
    }
}
