//! Where a server is, and how to reach it.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::{ReadHalf, WriteHalf};
use crate::{Result, TransportError};

/// A place to connect to.
#[derive(Clone)]
pub enum Endpoint {
    /// TCP, with TLS where a configuration is given.
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

impl Endpoint {
    /// Connects. Also says whether the peer is on this host, so that compressing can't pay.
    pub(super) async fn connect(&self) -> Result<(ReadHalf, WriteHalf, bool)> {
        let fail = |source: io::Error| TransportError::Connect { target: self.to_string(), source };
        match self {
            Self::Unix(path) => {
                let (read, write) = UnixStream::connect(path).await.map_err(fail)?.into_split();
                Ok((Box::new(read), Box::new(write), true))
            }
            Self::Tcp { host, port, tls } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(fail)?;
                stream.set_nodelay(true).map_err(fail)?;
                let same_host = match (stream.local_addr(), stream.peer_addr()) {
                    (Ok(local), Ok(peer)) => local.ip() == peer.ip() || peer.ip().is_loopback(),
                    _ => false,
                };
                let Some(tls) = tls else {
                    let (read, write) = stream.into_split();
                    return Ok((Box::new(read), Box::new(write), same_host));
                };
                let name = ServerName::try_from(host.clone())
                    .map_err(|e| TransportError::Tls(format!("`{host}` is no server name: {e}")))?;
                let stream = TlsConnector::from(tls.clone()).connect(name, stream).await;
                let stream = stream.map_err(|error| fail(explain(error)))?;
                let (read, write) = tokio::io::split(stream);
                Ok((Box::new(read), Box::new(write), same_host))
            }
        }
    }
}

/// What TLS calls a corrupt message is, from a server at the first word, no TLS at all.
fn explain(error: io::Error) -> io::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(_)) => {
            io::Error::new(error.kind(), "the server does not speak TLS on this port")
        }
        _ => error,
    }
}
