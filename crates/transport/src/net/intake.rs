//! Where a running server takes connections that are open already.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::listen::Accepted;
use crate::{Result, TransportError};

/// So many wait to be taken by a server that does not run yet, or is busy accepting.
const WAITING_MAX: usize = 64;

/// Hands a server connections that did not come by its listeners: pipes of bytes over something else. It keeps
/// no server alive.
#[derive(Clone)]
pub struct Intake {
    handed: mpsc::Sender<(Accepted, String)>,
}

/// The server's end of it.
pub(super) type Taken = mpsc::Receiver<(Accepted, String)>;

impl Intake {
    pub(super) fn new() -> (Self, Taken) {
        let (handed, taken) = mpsc::channel(WAITING_MAX);
        (Self { handed }, taken)
    }

    /// Comes back when the server takes no more.
    pub async fn closed(&self) {
        self.handed.closed().await;
    }

    /// Has the server treat this as any connection: hello, token, its limits, its shutdown. Whatever the pipe
    /// goes through has to keep others from reading along: nothing is encrypted here. `peer` is for
    /// the log. Comes back when the server has been told, not when the connection ends.
    ///
    /// # Errors
    /// [`TransportError::Closed`] when the server has ended, or was dropped.
    pub async fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        peer: String,
    ) -> Result<()> {
        let (read, write) = tokio::io::split(stream);
        let accepted = Accepted::Pipe(Box::new(read), Box::new(write));
        let ended = |_| TransportError::Closed { during: Some("as the server has ended") };
        self.handed.send((accepted, peer)).await.map_err(ended)
    }
}
