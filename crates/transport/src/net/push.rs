//! Connections that a server opens to a client which asked for them (push).
//!
//! The client listens on a port, and tells servers the port and a token. A server connects and sends a preamble of
//! 28 bytes: "LSPU", the token (16 bytes), and the number of the part that it is to send (u64, big endian). The
//! client answers with one byte: 1 if it wants the part, otherwise why not. From then on both are client and server
//! as on a connection that the client opened, TLS included: the server passes the socket to its
//! [`Intake`](super::Intake), the client says hello and requests the part. So push takes longer than rows that are
//! sent unasked, by the round trips of the answer and of the hello, and has the checksums, the credit and the
//! cancellation of every connection.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, FuturesUnordered};
use socket2::{Domain, Protocol, Socket, Type};
use subtle::ConstantTimeEq;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use super::rendezvous::random_bits;
use crate::proto::reception::Refusal;
use crate::{Result, TransportError};

/// The first bytes of a preamble.
const MAGIC: [u8; 4] = *b"LSPU";
/// Bytes of a token.
const TOKEN_BYTES: usize = 16;
/// Bytes of a preamble.
const PREAMBLE_BYTES: usize = MAGIC.len() + TOKEN_BYTES + size_of::<u64>();
/// The answer to a preamble whose part is wanted.
const WANTED: u8 = 1;
/// How long a server may take for its preamble.
const PREAMBLE_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after the system refused to accept a connection: it may be out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What servers have to show to a client that waits for them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PushToken([u8; TOKEN_BYTES]);

impl std::fmt::Debug for PushToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PushToken")
    }
}

impl PushToken {
    /// A new token.
    ///
    /// # Errors
    /// If the system provides no random bits.
    pub fn random() -> Result<Self> {
        random_bits().map(Self).ok_or_else(|| TransportError::Config("the system has no random bits".into()))
    }

    /// From bytes; `None` if they are not 16.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// As bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether these are its bytes. Takes the same time whether they are or not.
    pub fn is(&self, bytes: &[u8]) -> bool {
        self.0.ct_eq(bytes).into()
    }
}

/// Listens for connections of servers. They wait in the system's backlog until they are taken.
pub struct PushListener {
    listener: TcpListener,
    port: u16,
    token: PushToken,
    backlog: usize,
}

impl PushListener {
    /// Listens on a free port of all addresses of this host, with a backlog of `backlog` connections. As many
    /// may be sending their preambles.
    ///
    /// # Errors
    /// [`TransportError::Listen`] if the system has no free port.
    pub fn bind(backlog: u32) -> Result<Self> {
        let backlog = backlog.clamp(1, 4096);
        let listen = |address: SocketAddr| {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            if address.is_ipv6() {
                socket.set_only_v6(false)?;
            }
            socket.bind(&address.into())?;
            socket.listen(backlog as i32)?;
            socket.set_nonblocking(true)?;
            TcpListener::from_std(socket.into())
        };
        let bound =
            listen((Ipv6Addr::UNSPECIFIED, 0).into()).or_else(|_| listen((Ipv4Addr::UNSPECIFIED, 0).into()));
        let found = bound.and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
        let (port, listener) =
            found.map_err(|source| TransportError::Listen { address: "a free port".into(), source })?;
        Ok(Self { listener, port, token: PushToken::random()?, backlog: backlog as usize })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The token that servers have to show.
    pub fn token(&self) -> PushToken {
        self.token
    }

    /// The connections of servers that have shown the token, with the numbers of their parts. Others are closed.
    /// Dropping the stream closes the port.
    pub fn connections(self) -> BoxStream<'static, (u64, PushedConnection)> {
        let Self { listener, token, backlog, .. } = self;
        let state = (listener, FuturesUnordered::new());
        futures::stream::unfold(state, move |(listener, mut arriving)| async move {
            loop {
                tokio::select! {
                    Some(arrived) = arriving.next(), if !arriving.is_empty() => {
                        if let Some(arrived) = arrived {
                            return Some((arrived, (listener, arriving)));
                        }
                    }
                    accepted = listener.accept(), if arriving.len() < backlog => match accepted {
                        Ok((stream, _)) => arriving.push(preamble(stream, token)),
                        Err(error) => {
                            tracing::warn!(%error, "accept failed");
                            tokio::time::sleep(ACCEPT_PAUSE).await;
                        }
                    },
                }
            }
        })
        .boxed()
    }
}

/// Reads a preamble. `None` if it does not come in time, or the token is wrong.
async fn preamble(mut stream: TcpStream, token: PushToken) -> Option<(u64, PushedConnection)> {
    let mut bytes = [0; PREAMBLE_BYTES];
    timeout(PREAMBLE_TIMEOUT, stream.read_exact(&mut bytes)).await.ok()?.ok()?;
    let (magic, rest) = bytes.split_first_chunk()?;
    let (shown, part) = rest.split_first_chunk::<TOKEN_BYTES>()?;
    if *magic != MAGIC || !token.is(shown) {
        tracing::info!("refused a connection without the token");
        return None;
    }
    stream.set_nodelay(true).ok()?;
    Some((u64::from_be_bytes(part.try_into().ok()?), PushedConnection { stream }))
}

/// A connection that a server has opened and that the client has not answered.
#[derive(Debug)]
pub struct PushedConnection {
    stream: TcpStream,
}

impl PushedConnection {
    /// Refuses it, and tells the server why.
    pub fn refuse(self, reason: Refusal) {
        // The buffer of a new socket has room for a byte; without it, the server finds the connection closed.
        let _ = self.stream.try_write(&[code(reason)]);
    }

    /// Tells the server that the part is wanted.
    pub(super) async fn accept(mut self) -> std::io::Result<TcpStream> {
        self.stream.write_all(&[WANTED]).await?;
        Ok(self.stream)
    }
}

fn code(reason: Refusal) -> u8 {
    match reason {
        Refusal::Full => 2,
        Refusal::Busy => 3,
        Refusal::Unwanted => 4,
        Refusal::Stopped => 5,
    }
}

/// What became of a server's attempt to connect to a client.
#[derive(Debug)]
pub enum PushAttempt {
    /// The client wants the part. Pass the socket to [`Intake::serve_socket`](super::Intake::serve_socket).
    Wanted(TcpStream),
    /// It doesn't, or not now.
    Refused(Refusal),
    /// It could not be reached in time, or closed the connection.
    Unreachable,
}

/// Connects to a client that waits for a part. `limit` is for the connection and the client's answer together.
pub async fn push_connect(address: SocketAddr, token: PushToken, part: u64, limit: Duration) -> PushAttempt {
    let attempt = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let preamble = [&MAGIC, token.as_bytes(), &part.to_be_bytes()].concat();
        stream.write_all(&preamble).await?;
        let answer = stream.read_u8().await?;
        std::io::Result::Ok((answer, stream))
    };
    match timeout(limit, attempt).await {
        Ok(Ok((WANTED, stream))) => PushAttempt::Wanted(stream),
        Ok(Ok((2, _))) => PushAttempt::Refused(Refusal::Full),
        Ok(Ok((3, _))) => PushAttempt::Refused(Refusal::Busy),
        Ok(Ok((4, _))) => PushAttempt::Refused(Refusal::Unwanted),
        Ok(Ok((5, _))) => PushAttempt::Refused(Refusal::Stopped),
        _ => PushAttempt::Unreachable,
    }
}

/// Bytes of announcements that may wait to be read.
const DATAGRAMS_BYTES: usize = 4 << 20;

/// A UDP socket on a free port of all addresses of this host, for the announcements of many senders.
///
/// # Errors
/// The system's.
pub fn bind_datagrams() -> std::io::Result<UdpSocket> {
    let bind = |address: SocketAddr| {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // The system may grant less.
        let _ = socket.set_recv_buffer_size(DATAGRAMS_BYTES);
        socket.bind(&address.into())?;
        socket.set_nonblocking(true)?;
        UdpSocket::from_std(socket.into())
    };
    bind((Ipv6Addr::UNSPECIFIED, 0).into()).or_else(|_| bind((Ipv4Addr::UNSPECIFIED, 0).into()))
}
