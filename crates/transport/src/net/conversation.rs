//! One connection of a server: the hello, the queue if all slots are taken, then queries, each answered by
//! its own task. A client on the same host may move to a rendezvous instead.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures::future::OptionFuture;
use lightship_wire::cluster::{CAPABILITY_CLUSTER, CAPABILITY_RANGE_FILES};
use lightship_wire::control::{CAPABILITY_REASONS, ErrorCode, Failure, Hello, Queued};
use lightship_wire::join::CAPABILITY_JOIN;
use lightship_wire::shm::{CAPABILITY_RENDEZVOUS, CAPABILITY_SEGMENTS};
use lightship_wire::statement::CAPABILITY_STATEMENTS;
use lightship_wire::tuning::CAPABILITY_RESIZE;
use subtle::ConstantTimeEq;
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep_until, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;

use super::admission::{Admission, ConnectionSlot, QueueTurn, Unauthenticated};
use super::endpoint::is_same_host;
use super::frames::{FrameReader, FrameWriter, Segments};
use super::listen::AcceptedStream;
use super::meter::Meter;
use super::queries::{Queries, Requests, StreamRequest};
use super::rendezvous::RendezvousSocket;
use super::server::down;
use super::shm;
use super::stream::ServerLink;
use super::striping::StripeOffers;
use super::{FramePipe, ReadHalf, ServerConfig, Service, WriteHalf, lock};
use crate::proto::{Server as Proto, ServerEvent};
use crate::{Result, TransportError};

/// What all connections of a server share, and the slot of this one.
pub(super) struct Handler {
    pub(super) config: Arc<ServerConfig>,
    pub(super) service: Arc<dyn Service>,
    pub(super) stripe_offers: Arc<StripeOffers>,
    pub(super) admission: Arc<Admission>,
    /// The address of the client, also after it has moved to a rendezvous.
    pub(super) address: Option<IpAddr>,
    /// The slot of a client or a node; `None` before admission.
    pub(super) slot: Mutex<Option<ConnectionSlot>>,
    pub(super) shutdown: watch::Receiver<bool>,
}

/// What the client has sent and the connection's task has not handled yet.
#[derive(Default)]
pub(super) struct ConnectionInbox {
    pub(super) unhandled: Mutex<Unhandled>,
    /// There are frames to send, or there are unhandled frames.
    wake: Notify,
    /// The deadline of the client's liveness may have become earlier.
    sooner: Notify,
}

#[derive(Default)]
pub(super) struct Unhandled {
    hello: Option<Hello>,
    pub(super) requests: Requests,
}

/// A socket and the state of its protocol.
pub(super) struct Session {
    link: Arc<ServerLink>,
    inbox: ConnectionInbox,
    reader: FrameReader,
    arrival: Arrival,
}

/// How a client reached the server.
enum Arrival {
    /// By TCP. `same_host` is whether the addresses show that the client is on this host.
    Tcp { same_host: bool },
    /// Over a pipe that was already open.
    Pipe,
    /// By a Unix socket.
    Unix,
    /// At a rendezvous, with the expected token. The server's hello has this token.
    Rendezvous { token: String },
}

impl Session {
    fn new(
        reader: FrameReader,
        writer: FrameWriter,
        meter: Meter,
        arrival: Arrival,
        config: &ServerConfig,
    ) -> Self {
        let proto = Proto::new(Instant::now(), config.ping_interval, config.stall_timeout);
        let link = Arc::new(ServerLink::new(proto, writer, meter));
        Self { link, inbox: ConnectionInbox::default(), reader, arrival }
    }

    fn tcp(read: ReadHalf, write: WriteHalf, meter: Meter, same_host: bool, config: &ServerConfig) -> Self {
        let reader = FrameReader::new(read, Segments::None);
        let writer = FrameWriter::new(write, None);
        Self::new(reader, writer, meter, Arrival::Tcp { same_host }, config)
    }

    fn pipe(pipe: FramePipe, config: &ServerConfig) -> Self {
        let reader = FrameReader::new(pipe.read, Segments::None);
        Self::new(reader, FrameWriter::new(pipe.write, None), Meter::other(), Arrival::Pipe, config)
    }

    /// A client on a Unix socket.
    pub(super) fn unix(stream: UnixStream, config: &ServerConfig) -> Self {
        let (read, write, lender) = shm::lending(stream);
        let reader = FrameReader::new(read, Segments::Lent(lender.slots()));
        let writer = FrameWriter::new(write, Some(lender));
        Self::new(reader, writer, Meter::other(), Arrival::Unix, config)
    }

    /// Waits for the client's hello. Returns its token; `None` if no valid hello arrives.
    pub(super) async fn hello(&mut self) -> Option<String> {
        receive_one(&self.link, &self.inbox, &mut self.reader).await.ok().filter(|&open| open)?;
        lock(&self.inbox.unhandled).hello.as_ref().map(|hello| hello.token.clone())
    }

    /// Admits the client, which has shown its token. The server's hello will show `token`.
    pub(super) fn admit(&mut self, token: String) {
        self.arrival = Arrival::Rendezvous { token };
    }
}

impl Handler {
    /// Serves a connection from its first byte to its end.
    pub(super) async fn serve(
        self: Arc<Self>,
        stream: AcceptedStream,
        mut unauthenticated: Unauthenticated,
    ) -> Result<()> {
        let mut shutdown = self.shutdown.clone();
        let opened = tokio::select! {
            opened = self.open(stream) => opened,
            after = unauthenticated.expired() => Err(TransportError::Silent { after }),
            () = down(&mut shutdown) => return Ok(()),
        };
        let (mut session, mut unauthenticated) = (opened?, Some(unauthenticated));
        // A client that moves to a rendezvous keeps its slot.
        while let Some(next) = self.converse(session, unauthenticated.take()).await? {
            session = next;
        }
        Ok(())
    }

    /// Serves one socket from the hello to its end. Returns the session that replaces it, if any.
    async fn converse(
        self: &Arc<Self>,
        session: Session,
        unauthenticated: Option<Unauthenticated>,
    ) -> Result<Option<Session>> {
        let limit = self.config.handshake_timeout;
        let Session { link, inbox, mut reader, arrival } = session;
        let ended = tokio::select! {
            ended = receive(&link, &inbox, &mut reader) => ended.map(|()| None),
            ended = self.answer_all(&link, &inbox, arrival, unauthenticated) => ended,
            ended = keep_time(&link, &inbox) => ended.map(|()| None),
        };
        // Tell a peer that speaks another protocol, or breaks this one, before the connection closes.
        if let Err(error @ (TransportError::Wire(_) | TransportError::Protocol(_))) = &ended {
            lock(&link.proto).refuse(&Proto::protocol_failure(error));
            let _ = timeout(limit, link.flush()).await;
        }
        let _ = timeout(limit, async { link.writer.lock().await.shutdown().await }).await;
        ended
    }

    async fn open(&self, stream: AcceptedStream) -> Result<Session> {
        let config = &self.config;
        Ok(match (stream, &self.config.tls) {
            (AcceptedStream::Unix(stream), _) => Session::unix(stream, config),
            (AcceptedStream::Pipe(pipe), _) => Session::pipe(pipe, config),
            (AcceptedStream::Tcp(stream), None) => {
                let (same_host, meter) = (is_same_host(&stream), Meter::tcp(&stream));
                let (read, write) = stream.into_split();
                Session::tcp(Box::new(read), Box::new(write), meter, same_host, config)
            }
            (AcceptedStream::Tcp(stream), Some(tls)) => {
                let (same_host, meter) = (is_same_host(&stream), Meter::tcp(&stream));
                let stream = TlsAcceptor::from(tls.clone()).accept(stream).await?;
                let (read, write) = tokio::io::split(stream);
                Session::tcp(Box::new(read), Box::new(write), meter, same_host, config)
            }
        })
    }

    /// Handles the hello, then queries. Returns a session if the client moves to a rendezvous.
    async fn answer_all(
        self: &Arc<Self>,
        link: &Arc<ServerLink>,
        inbox: &ConnectionInbox,
        arrival: Arrival,
        unauthenticated: Option<Unauthenticated>,
    ) -> Result<Option<Session>> {
        let limit = self.config.handshake_timeout;
        let mut shutdown = self.shutdown.clone();
        let Some(hello) = self.hello(link, inbox, unauthenticated).await? else { return Ok(None) };
        let is_peer = matches!(arrival, Arrival::Tcp { .. } | Arrival::Pipe) && self.is_peer(&hello);
        let (capabilities, socket) = match &arrival {
            Arrival::Tcp { .. } | Arrival::Pipe if is_peer => (CAPABILITY_CLUSTER | CAPABILITY_RESIZE, None),
            Arrival::Tcp { same_host } if *same_host && hello.capabilities & CAPABILITY_RENDEZVOUS != 0 => {
                (CAPABILITY_JOIN | CAPABILITY_RESIZE, RendezvousSocket::open())
            }
            Arrival::Tcp { .. } => (CAPABILITY_JOIN | CAPABILITY_RESIZE, None),
            Arrival::Pipe => (CAPABILITY_RESIZE, None),
            Arrival::Unix | Arrival::Rendezvous { .. } => (hello.capabilities & CAPABILITY_SEGMENTS, None),
        };
        let range_files = if self.service.has_range_files() { CAPABILITY_RANGE_FILES } else { 0 };
        let capabilities = capabilities | range_files | CAPABILITY_STATEMENTS | CAPABILITY_REASONS;
        if capabilities & CAPABILITY_SEGMENTS == 0 {
            link.lend_nothing().await;
        }
        if is_peer {
            // Keep the kernel's buffer short: what is in it precedes frames of every other stream.
            lock(&link.meter).attend();
        }
        let is_same_host = matches!(arrival, Arrival::Tcp { same_host: true });
        let token = if let Arrival::Rendezvous { token } = arrival { token } else { String::new() };
        lock(&link.proto).welcome(token, capabilities, socket.as_ref().map(|socket| &socket.rendezvous));
        if is_same_host {
            lock(&link.proto).keep_whole();
        }
        inbox.sooner.notify_one();
        let rendezvous = socket.as_ref().map(|socket| socket.client(limit, &self.config));
        let mut rendezvous = std::pin::pin!(OptionFuture::from(rendezvous));
        let mut queries = Queries::new(self.clone(), link.clone(), is_peer);
        loop {
            if queries.start(inbox).await? {
                // A client that sends a query here does not use the rendezvous.
                rendezvous.set(None.into());
            }
            if queries.is_ending() && !queries.is_running() {
                lock(&link.proto).refuse(&shutting_down());
                link.flush().await?;
                return Ok(None);
            }
            link.flush().await?;
            tokio::select! {
                () = inbox.wake.notified() => {}
                ended = queries.ended() => ended?,
                Some(session) = &mut rendezvous => return Ok(Some(session)),
                () = down(&mut shutdown), if !queries.is_ending() => queries.end(),
            }
        }
    }

    /// Waits for the client's hello and admits the client. `None` if the server shuts down first.
    async fn hello(
        &self,
        link: &ServerLink,
        inbox: &ConnectionInbox,
        unauthenticated: Option<Unauthenticated>,
    ) -> Result<Option<Hello>> {
        let mut shutdown = self.shutdown.clone();
        let hello = async {
            loop {
                if let Some(hello) = lock(&inbox.unhandled).hello.take() {
                    return hello;
                }
                inbox.wake.notified().await;
            }
        };
        // At a rendezvous, the client was admitted before.
        let Some(mut unauthenticated) = unauthenticated else { return Ok(Some(hello.await)) };
        let hello = tokio::select! {
            hello = hello => hello,
            after = unauthenticated.expired() => return Err(TransportError::Silent { after }),
            () = down(&mut shutdown) => {
                lock(&link.proto).refuse(&shutting_down());
                link.flush().await?;
                return Ok(None);
            }
        };
        if let Err(refusal) = self.admit(&hello, unauthenticated, link, inbox).await? {
            lock(&link.proto).refuse(&refusal);
            link.flush().await?;
            return Err(refusal.into());
        }
        Ok(Some(hello))
    }

    /// Whether the client is a node of this cluster.
    fn is_peer(&self, hello: &Hello) -> bool {
        let token = self.config.peer_token.as_deref();
        let known = token.is_some_and(|token| {
            (token.is_empty() && self.config.tokens.is_empty())
                || token.as_bytes().ct_eq(hello.token.as_bytes()).into()
        });
        known && hello.capabilities & CAPABILITY_CLUSTER != 0
    }

    /// Why a client or a node is refused; `None` if its token is accepted.
    fn refusal(&self, hello: &Hello) -> Option<Failure> {
        let known = self.config.tokens.iter().fold(subtle::Choice::from(0), |known, token| {
            known | token.as_bytes().ct_eq(hello.token.as_bytes())
        });
        if hello.capabilities & CAPABILITY_CLUSTER != 0 {
            let what = match self.config.peer_token {
                _ if self.is_peer(hello) => return None,
                Some(_) => "the token is not that of the cluster",
                None => "this node is not in a cluster",
            };
            return Some(Failure::new(ErrorCode::Unauthenticated, what));
        }
        if self.config.tokens.is_empty() || bool::from(known) {
            return None;
        }
        let what = if hello.token.is_empty() { "a token is needed" } else { "the token is not known" };
        Some(
            Failure::new(ErrorCode::Unauthenticated, what)
                .hint("give it in the URI, lightship://TOKEN@host, or in LIGHTSHIP_TOKEN"),
        )
    }

    /// Checks a hello and takes a slot for its sender. A client may have to wait in the queue.
    async fn admit(
        &self,
        hello: &Hello,
        unauthenticated: Unauthenticated,
        link: &ServerLink,
        inbox: &ConnectionInbox,
    ) -> Result<Result<(), Failure>> {
        if let Some(refusal) = self.refusal(hello) {
            return Ok(Err(refusal));
        }
        let slot = if hello.capabilities & CAPABILITY_CLUSTER != 0 {
            self.admission.peer()
        } else {
            match self.admission.client() {
                Ok(Ok(slot)) => Ok(slot),
                Ok(Err(turn)) => {
                    // The client is authenticated: make room for another connection.
                    drop(unauthenticated);
                    self.wait_in_queue(&turn, link, inbox).await?
                }
                Err(refusal) => Err(refusal),
            }
        };
        Ok(slot.map(|slot| *lock(&self.slot) = Some(slot)))
    }

    /// Waits in the queue for a client's slot. Answers pings meanwhile.
    async fn wait_in_queue(
        &self,
        turn: &QueueTurn,
        link: &ServerLink,
        inbox: &ConnectionInbox,
    ) -> Result<Result<ConnectionSlot, Failure>> {
        let queued = Queued {
            ahead: u32::try_from(turn.ahead).unwrap_or(u32::MAX),
            wait_ms: u32::try_from(self.admission.queue_timeout().as_millis()).unwrap_or(u32::MAX),
        };
        lock(&link.proto).queued(&queued);
        let limit = self.admission.queue_timeout();
        let deadline = tokio::time::Instant::now() + limit;
        let late = || {
            let waited = format!(", and none became free within {} seconds", limit.as_secs_f32());
            Ok(Err(self.admission.busy(&waited)))
        };
        let mut slot = std::pin::pin!(turn.slot());
        let mut shutdown = self.shutdown.clone();
        loop {
            // Give up a client that does not read its place in the queue.
            let unread = |_| TransportError::Stalled { after: limit };
            timeout_at(deadline, link.flush()).await.map_err(unread)??;
            tokio::select! {
                slot = &mut slot => return Ok(Ok(slot)),
                () = inbox.wake.notified() => {}
                () = sleep_until(deadline) => return late(),
                () = down(&mut shutdown) => return Ok(Err(shutting_down())),
            }
        }
    }
}

pub(super) fn shutting_down() -> Failure {
    Failure::new(ErrorCode::ShuttingDown, "the node is shutting down")
}

async fn receive(link: &ServerLink, inbox: &ConnectionInbox, reader: &mut FrameReader) -> Result<()> {
    loop {
        match receive_one(link, inbox, reader).await {
            Ok(true) => {}
            Ok(false) => break,
            // Sockets of clients that closed without reading everything end like this.
            Err(TransportError::Io(error)) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => return Err(error),
        }
    }
    if lock(&link.proto).is_idle() {
        Ok(())
    } else {
        Err(TransportError::Closed { during: Some("before its result was complete") })
    }
}

/// Handles the next frame. Returns `false` at the end of the connection.
async fn receive_one(link: &ServerLink, inbox: &ConnectionInbox, reader: &mut FrameReader) -> Result<bool> {
    let limit = |kind, _| lock(&link.proto).payload_bytes_max(kind);
    let alive = || lock(&link.proto).received(Instant::now());
    let Some((header, payload)) = reader.next(limit, alive).await? else { return Ok(false) };
    let event = lock(&link.proto).handle(Instant::now(), &header, &payload)?;
    let state = lock(&link.streams).get(&header.stream).cloned();
    let open = |id, request| {
        let is_peer = lock(&link.proto).is_peer();
        lock(&link.streams).insert(id, Arc::default());
        lock(&inbox.unhandled).requests.push(id, request, header.payload_bytes, is_peer);
    };
    match event {
        Some((_, ServerEvent::Hello(hello))) => lock(&inbox.unhandled).hello = Some(hello),
        Some((id, ServerEvent::Query(query))) => open(id, StreamRequest::Query(query)),
        Some((id, ServerEvent::Statement(statement))) => open(id, StreamRequest::Statement(statement)),
        Some((id, ServerEvent::Task(task))) => open(id, StreamRequest::Task(task)),
        Some((id, ServerEvent::Join(join))) => open(id, StreamRequest::Join(join)),
        Some((_, event)) => {
            if let Some(state) = &state {
                let mut messages = state.messages();
                match event {
                    ServerEvent::Cancel => messages.is_cancelled = true,
                    ServerEvent::Progress(progress) => messages.progress = Some(progress),
                    ServerEvent::Resize(sizes) => messages.resize = Some(sizes),
                    _ => {}
                }
            }
        }
        None => {}
    }
    match state {
        // One that has not started has no task, but may be cancelled.
        Some(state) if state.is_running.load(Ordering::Relaxed) => state.wake.notify_one(),
        _ => inbox.wake.notify_one(),
    }
    Ok(true)
}

async fn keep_time(link: &ServerLink, inbox: &ConnectionInbox) -> Result<()> {
    loop {
        let deadline = lock(&link.proto).deadline();
        tokio::select! {
            () = sleep_until(deadline.into()) => {}
            () = inbox.sooner.notified() => continue,
        }
        lock(&link.proto).wake(Instant::now())?;
        inbox.wake.notify_one();
    }
}
