//! The address of a server, and how to connect to it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::frames::{FrameSource, FrameTarget, Segments};
use super::shm;
use super::{ClientConfig, FramePipe, ReadHalf, WriteHalf};
use crate::{Result, TransportError};

/// The medium that carries the rows of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// TCP, with or without TLS.
    Tcp,
    /// A Unix socket of this host.
    Unix,
    /// Memory of this host that both processes have mapped.
    SharedMemory,
    /// A tunnel over connections between other nodes.
    Overlay,
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::SharedMemory => "shared memory",
            Self::Overlay => "overlay",
        })
    }
}

/// An address to connect to.
#[derive(Clone)]
pub enum Endpoint {
    /// TCP, with TLS if a configuration is given.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
        /// How to verify the server.
        tls: Option<Arc<rustls::ClientConfig>>,
    },
    /// A Unix socket on this host.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A socket that was just connected.
pub(super) struct Socket {
    pub(super) read: FrameSource,
    pub(super) write: FrameTarget,
    pub(super) segments: Segments,
    /// The medium. The server's hello shows whether it is shared memory.
    pub(super) carrier: Carrier,
    /// The TCP socket itself, for its statistics. The task that reads and writes keeps it open.
    pub(super) tcp: Option<Arc<OwnedFd>>,
    /// Whether the peer's address is on this host.
    pub(super) same_host: bool,
}

impl Socket {
    fn tcp(read: ReadHalf, write: WriteHalf, same_host: bool, tcp: Option<Arc<OwnedFd>>) -> Self {
        let (read, write) = (read.into(), write.into());
        Self { read, write, segments: Segments::None, carrier: Carrier::Tcp, tcp, same_host }
    }

    /// A client's end of a pipe.
    pub(super) fn pipe(pipe: FramePipe) -> Self {
        let (read, write) = (pipe.read.into(), pipe.write.into());
        let (segments, carrier) = (Segments::None, Carrier::Overlay);
        Self { read, write, segments, carrier, tcp: None, same_host: false }
    }

    /// A client's end of a Unix socket.
    pub(super) fn unix(stream: UnixStream, shared_memory: bool) -> Self {
        let (read, write, segments): (ReadHalf, WriteHalf, _) = if shared_memory {
            let (read, write, borrower) = shm::borrowing(stream);
            (read, write, Segments::Borrowed(borrower))
        } else {
            let (read, write) = stream.into_split();
            (Box::new(read), Box::new(write), Segments::None)
        };
        let (read, write) = (read.into(), write.into());
        Self { read, write, segments, carrier: Carrier::Unix, tcp: None, same_host: true }
    }
}

/// Whether both addresses of a connection are on this host. With a forwarded port, the peer may be elsewhere
/// nevertheless.
pub(super) fn is_same_host(stream: &TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) => local.ip() == peer.ip() || peer.ip().is_loopback(),
        _ => false,
    }
}

impl Endpoint {
    /// Connects, within [`ClientConfig::connect_timeout`]. The TLS handshake has
    /// [`ClientConfig::welcome_timeout`] in addition.
    pub(super) async fn connect(&self, config: &ClientConfig) -> Result<Socket> {
        let late = |awaited, after| TransportError::Unwelcome { target: self.to_string(), awaited, after };
        let fail = |source: io::Error| TransportError::Connect { target: self.to_string(), source };
        match self {
            Self::Unix(path) => {
                let connected = timeout(config.connect_timeout, UnixStream::connect(path)).await;
                let connected = connected.map_err(|_| late("no connection", config.connect_timeout))?;
                Ok(Socket::unix(connected.map_err(fail)?, config.shared_memory))
            }
            Self::Tcp { host, port, .. } => {
                let connecting = TcpStream::connect((host.as_str(), *port));
                let connected = timeout(config.connect_timeout, connecting).await;
                let connected = connected.map_err(|_| late("no connection", config.connect_timeout))?;
                self.secure(connected.map_err(fail)?, config).await
            }
        }
    }

    /// Makes a socket of a TCP connection to this endpoint, whichever side has opened it. The TLS handshake has
    /// [`ClientConfig::welcome_timeout`].
    pub(super) async fn secure(&self, stream: TcpStream, config: &ClientConfig) -> Result<Socket> {
        let fail = |source: io::Error| TransportError::Connect { target: self.to_string(), source };
        stream.set_nodelay(true).map_err(fail)?;
        let same_host = is_same_host(&stream);
        let socket = stream.as_fd().try_clone_to_owned().ok().map(Arc::new);
        let Self::Tcp { host, tls: Some(tls), .. } = self else {
            let (read, write) = stream.into_split();
            return Ok(Socket::tcp(Box::new(read), Box::new(write), same_host, socket));
        };
        let name = ServerName::try_from(host.clone())
            .map_err(|e| TransportError::Tls(format!("`{host}` is not a valid server name: {e}")))?;
        let handshake = TlsConnector::from(tls.clone()).connect(name, stream);
        let late = |_| TransportError::Unwelcome {
            target: self.to_string(),
            awaited: "no TLS handshake",
            after: config.welcome_timeout,
        };
        let stream = timeout(config.welcome_timeout, handshake).await.map_err(late)?;
        let stream = stream.map_err(|error| fail(explain(error)))?;
        let (read, write) = tokio::io::split(stream);
        Ok(Socket::tcp(Box::new(read), Box::new(write), same_host, socket))
    }
}

/// Replaces the error of a handshake with a server that does not use TLS.
fn explain(error: io::Error) -> io::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(_)) => {
            io::Error::new(error.kind(), "the server does not speak TLS on this port")
        }
        _ => error,
    }
}
