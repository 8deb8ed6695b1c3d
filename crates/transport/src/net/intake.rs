//! Passes connections that are already open to a running server.

use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::FramePipe;
use super::listen::AcceptedStream;
use crate::{Result, TransportError};

/// Connections that may wait for a server that does not run yet or is busy.
const WAITING_MAX: usize = 64;

/// Passes a server connections that did not come through its listeners. It does not keep the server alive.
#[derive(Clone)]
pub struct Intake {
    handed: mpsc::Sender<(AcceptedStream, String)>,
}

/// The server's end of an [`Intake`].
pub(super) type Taken = mpsc::Receiver<(AcceptedStream, String)>;

impl Intake {
    pub(super) fn new() -> (Self, Taken) {
        let (handed, taken) = mpsc::channel(WAITING_MAX);
        (Self { handed }, taken)
    }

    /// Returns when the server accepts no more connections.
    pub async fn closed(&self) {
        self.handed.closed().await;
    }

    /// Passes a connection to the server, which treats it like any other: hello, token, limits, shutdown.
    /// Nothing is encrypted here, so the pipe itself must be secure. `peer` is for the log. Returns when the
    /// connection is passed on, not when it ends.
    ///
    /// # Errors
    /// [`TransportError::Closed`] if the server has ended or was dropped.
    pub async fn serve(&self, pipe: FramePipe, peer: String) -> Result<()> {
        let ended = |_| TransportError::Closed { during: Some("because the server has ended") };
        self.handed.send((AcceptedStream::Pipe(pipe), peer)).await.map_err(ended)
    }

    /// As [`Intake::serve`], with a TCP socket that this host has opened. The peer is the client: it says hello, and
    /// with TLS it begins the handshake.
    ///
    /// # Errors
    /// As [`Intake::serve`].
    pub async fn serve_socket(&self, stream: TcpStream, peer: String) -> Result<()> {
        let ended = |_| TransportError::Closed { during: Some("because the server has ended") };
        self.handed.send((AcceptedStream::Tcp(stream), peer)).await.map_err(ended)
    }
}
