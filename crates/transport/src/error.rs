//! Errors of connections and streams.

use std::time::Duration;

use lightship_wire::WireError;
use lightship_wire::control::Failure;

/// Result of this crate.
pub type Result<T, E = TransportError> = std::result::Result<T, E>;

/// An error of a connection or a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The connection could not be opened.
    #[error("can't reach {target}: {source}")]
    Connect {
        /// Host and port, or path.
        target: String,
        /// The error of the system or of TLS.
        #[source]
        source: std::io::Error,
    },
    /// The server did not answer in time.
    #[error("can't reach {target}: {awaited} within {} seconds", .after.as_secs_f32())]
    Unwelcome {
        /// Host and port, or path.
        target: String,
        /// What did not arrive.
        awaited: &'static str,
        /// How long the client waited.
        after: Duration,
    },
    /// The server can't listen on an address.
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
    /// The peer closed the connection too early.
    #[error("the peer closed the connection{}", .during.map(|d| format!(" {d}")).unwrap_or_default())]
    Closed {
        /// At which point, or why.
        during: Option<&'static str>,
    },
    /// No sign of life from the peer.
    #[error("no sign of life from the peer for {} seconds", .after.as_secs_f32())]
    Silent {
        /// For how long.
        after: Duration,
    },
    /// The peer did not read what was sent to it.
    #[error("the peer took nothing for {} seconds", .after.as_secs_f32())]
    Stalled {
        /// For how long.
        after: Duration,
    },
    /// The peer's bytes are malformed.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer's frames are well-formed, but not allowed by the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// The peer reports a failure.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A connection that had joined the result was lost, with messages on it.
    #[error("connection {connection} of the result was lost: {source}")]
    Lost {
        /// The number of the connection, from 1.
        connection: u32,
        /// How it ended.
        #[source]
        source: Box<TransportError>,
    },
    /// Certificates or keys that can't be used.
    #[error("TLS: {0}")]
    Tls(String),
    /// A token is too long.
    #[error("the token has {bytes} bytes; the maximum is {bytes_max}")]
    Token {
        /// Its length.
        bytes: usize,
        /// The maximum length.
        bytes_max: usize,
    },
    /// The server does not know a request of this kind.
    #[error("the node is too old for {what}")]
    TooOld {
        /// What was asked for.
        what: &'static str,
    },
    /// The connection carries as many results as it can.
    #[error("the connection already carries {max} results, the maximum")]
    Full {
        /// How many.
        max: usize,
    },
    /// A setting or request is invalid.
    #[error("{0}")]
    Config(String),
}

impl TransportError {
    /// A copy of the error: all results of a connection end with the error that ended the connection.
    pub(crate) fn again(&self) -> Self {
        let io = |error: &std::io::Error| std::io::Error::new(error.kind(), error.to_string());
        match self {
            Self::Connect { target, source } => Self::Connect { target: target.clone(), source: io(source) },
            Self::Unwelcome { target, awaited, after } => {
                Self::Unwelcome { target: target.clone(), awaited, after: *after }
            }
            Self::Listen { address, source } => Self::Listen { address: address.clone(), source: io(source) },
            Self::Io(error) => Self::Io(io(error)),
            Self::Closed { during } => Self::Closed { during: *during },
            Self::Silent { after } => Self::Silent { after: *after },
            Self::Stalled { after } => Self::Stalled { after: *after },
            Self::Wire(error) => Self::Protocol(error.to_string()),
            Self::Protocol(message) => Self::Protocol(message.clone()),
            Self::Failed(failure) => Self::Failed(failure.clone()),
            Self::Lost { connection, source } => {
                Self::Lost { connection: *connection, source: Box::new(source.again()) }
            }
            Self::Tls(message) => Self::Tls(message.clone()),
            Self::Token { bytes, bytes_max } => Self::Token { bytes: *bytes, bytes_max: *bytes_max },
            Self::TooOld { what } => Self::TooOld { what },
            Self::Full { max } => Self::Full { max: *max },
            Self::Config(message) => Self::Config(message.clone()),
        }
    }
}

/// The reason why an address can't be listened on, without the system's error number.
fn listening(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "the address is in use".into(),
        std::io::ErrorKind::AddrNotAvailable => "not an address of this host".into(),
        _ => error.to_string(),
    }
}
