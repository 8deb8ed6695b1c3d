//! A connection's byte streams, plain or encrypted.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::frame::ControlFrames;
use crate::security::Security;

pub(crate) type Read = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type Write = Box<dyn AsyncWrite + Send + Unpin>;

/// A connection after the TLS handshake, if it uses TLS.
pub(crate) struct Socket {
    pub(crate) read: Read,
    pub(crate) write: Write,
    /// Frames of the connection itself.
    pub(crate) sent: ControlFrames,
    pub(crate) received: ControlFrames,
}

impl Socket {
    /// The end that opened the connection, to node `peer`.
    pub(crate) async fn opened(tcp: TcpStream, peer: u32, security: &Security) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        Ok(match &security.tls {
            None => Self::plain(tcp),
            Some(tls) => {
                let connector = TlsConnector::from(tls.client.clone());
                let unnamed = || {
                    io::Error::new(
                        io::ErrorKind::InvalidInput,
                        "the name in its certificate is not configured",
                    )
                };
                let name = tls.name(peer).ok_or_else(unnamed)?;
                Self::encrypted(connector.connect(name, tcp).await?.into())
            }
        })
    }

    /// The end that accepted the connection.
    pub(crate) async fn accepted(tcp: TcpStream, security: &Security) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        Ok(match &security.tls {
            None => Self::plain(tcp),
            Some(tls) => Self::encrypted(TlsAcceptor::from(tls.server.clone()).accept(tcp).await?.into()),
        })
    }

    fn plain(tcp: TcpStream) -> Self {
        let (read, write) = tcp.into_split();
        Self::of(Box::new(read), Box::new(write))
    }

    fn encrypted(tls: TlsStream<TcpStream>) -> Self {
        let (read, write) = tokio::io::split(tls);
        Self::of(Box::new(read), Box::new(write))
    }

    fn of(read: Read, write: Write) -> Self {
        Self { read, write, sent: ControlFrames::default(), received: ControlFrames::default() }
    }

    /// Writes and flushes all bytes.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write.write_all(bytes).await?;
        self.write.flush().await
    }
}
