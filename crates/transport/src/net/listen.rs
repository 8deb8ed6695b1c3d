//! Addresses that a server listens on.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use super::FramePipe;

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// TCP; port 0 picks a free port.
    Tcp(SocketAddr),
    /// A Unix socket that only this user can open.
    Unix(PathBuf),
}

impl Listen {
    /// Whether only programs on this host can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "lightship://{address}"),
            Self::Unix(path) => write!(f, "lightship+unix:{}", path.display()),
        }
    }
}

/// Connections that the system holds until they are accepted. It may hold fewer (net.core.somaxconn).
const BACKLOG: u32 = 4096;

/// An address that is bound and does not accept connections yet. If two processes bind one TCP port, the
/// first to listen gets it.
pub(super) enum Reserved {
    Tcp(TcpSocket),
    /// It accepts connections: otherwise another server would take it for the socket of a dead one, and remove it.
    Unix(UnixListener, SocketFile),
}

pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// Removes the socket's file when its listener ends.
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(super) enum AcceptedStream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// A pipe that was already open.
    Pipe(FramePipe),
}

impl AcceptedStream {
    /// The address of the peer, if it is one of a network.
    pub(super) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok().map(|peer| peer.ip().to_canonical()),
            Self::Unix(_) | Self::Pipe(_) => None,
        }
    }
}

impl Reserved {
    pub(super) async fn bind(listen: &Listen) -> io::Result<Self> {
        match listen {
            Listen::Tcp(address) => {
                let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
                // Allows binding while connections of an earlier server are still being closed.
                socket.set_reuseaddr(true)?;
                socket.bind(*address)?;
                Ok(Self::Tcp(socket))
            }
            Listen::Unix(path) => {
                remove_stale(path).await?;
                let listener = UnixListener::bind(path)?;
                std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
                Ok(Self::Unix(listener, SocketFile(path.clone())))
            }
        }
    }

    /// The address in use, with the port that was chosen.
    pub(super) fn local(&self) -> io::Result<Listen> {
        Ok(match self {
            Self::Tcp(socket) => Listen::Tcp(socket.local_addr()?),
            Self::Unix(_, file) => Listen::Unix(file.0.clone()),
        })
    }

    /// Starts to listen.
    pub(super) fn listen(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(socket) => Listener::Tcp(socket.listen(BACKLOG)?),
            Self::Unix(listener, file) => Listener::Unix(listener, file),
        })
    }
}

impl Listener {
    /// The address in use.
    pub(super) fn local(&self) -> io::Result<Listen> {
        Ok(match self {
            Self::Tcp(listener) => Listen::Tcp(listener.local_addr()?),
            Self::Unix(_, file) => Listen::Unix(file.0.clone()),
        })
    }

    pub(super) async fn accept(&self) -> io::Result<(AcceptedStream, String)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((AcceptedStream::Tcp(stream), peer.to_string()))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((AcceptedStream::Unix(stream), "unix".into()))
            }
        }
    }
}

/// Removes the socket of a server that was killed.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if is_socket
        && UnixStream::connect(path).await.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    Ok(())
}
