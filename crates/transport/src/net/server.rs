//! The side that answers: listeners, connections and their tasks.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::OptionFuture;
use lightship_wire::cluster::{CAPABILITY_CLUSTER, CAPABILITY_TRUNK, Task};
use lightship_wire::control::{Accepted as AcceptedQuery, ErrorCode, Failure, Hello, Plan, Query};
use lightship_wire::join::{CAPABILITY_JOIN, Join};
use lightship_wire::local::{CAPABILITY_MEETING, CAPABILITY_SEGMENTS};
use lightship_wire::tuning::{CAPABILITY_RESIZE, Progress, Sizes};
use subtle::ConstantTimeEq;
use tokio::net::UnixStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::answer::Answering;
use super::endpoint::is_same_host;
use super::frames::{FrameReader, FrameWriter, Segments};
use super::intake::{Intake, Taken};
use super::listen::{Accepted, Listen, Listener};
use super::meet::MeetingPlace;
use super::meter::Meter;
use super::shm;
use super::striping::{Tickets, carry};
use super::trunk::Trunk;
use super::{Answer, ReadHalf, Service, WriteHalf, lock};
use crate::proto::{Server as Proto, ServerEvent};
use crate::{Result, TransportError};

/// So many connections beyond the limit are told that it is reached; any more are just closed.
const REFUSALS_MAX: usize = 64;

/// Files and sockets that are none of a connection: listeners, tables, what queries put on disk.
const DESCRIPTORS_OWN: u64 = 128;

/// How a server behaves.
#[derive(Clone)]
pub struct ServerConfig {
    /// Certificate and key; none means plain TCP. Unix sockets never use TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Bearer tokens that are let in; none lets everybody in.
    pub tokens: Vec<String>,
    /// The token by which nodes of the same cluster are let in, besides clients; empty lets in every
    /// node. None: this is no node of a cluster.
    pub peer_token: Option<String>,
    /// Allows listening beyond this host without TLS and tokens.
    pub insecure: bool,
    /// Connections at once; one more is told to come later. Each may hold a
    /// message, a batch of the engine and the engine's own state; one from this
    /// host also its window in shared memory, of at most 32 MiB.
    pub connections_max: usize,
    /// Connections of nodes of the same cluster at once, beside those.
    pub peer_connections_max: usize,
    /// Largest message that a client can ask for; single rows may be larger.
    pub message_bytes_max: u32,
    /// TLS and hello together may take this long.
    pub handshake_timeout: Duration,
    /// A quiet client is pinged after this long, and given up after three times this. For a node of the
    /// cluster it is as long as that node itself waits for others, if that is less.
    pub ping_interval: Duration,
    /// How long running queries may go on after a shutdown was asked for.
    pub shutdown_grace: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            tls: None,
            tokens: Vec::new(),
            peer_token: None,
            insecure: false,
            connections_max: 256,
            peer_connections_max: 4096,
            message_bytes_max: 32 << 20,
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

impl ServerConfig {
    /// Files and sockets that a process with such a server may come to have open: a socket and a segment of
    /// shared memory for each client, a socket from each node and another one to it, and some for the process itself.
    pub fn descriptors_max(&self) -> u64 {
        let peers = if self.peer_token.is_some() { self.peer_connections_max } else { 0 };
        let connections = (self.connections_max as u64).saturating_add(peers as u64);
        connections.saturating_mul(2).saturating_add(DESCRIPTORS_OWN)
    }
}

/// A server that listens and has not yet begun to answer.
pub struct Server {
    listeners: Vec<Listener>,
    intake: Intake,
    taken: Taken,
    config: Arc<ServerConfig>,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// [`TransportError::Config`] for an address beyond this host without both
    /// TLS and a token, unless that was allowed; [`TransportError::Connect`]
    /// when the address can't be had.
    pub async fn bind(listen: &[Listen], config: ServerConfig) -> Result<Self> {
        let safe = config.tls.is_some() && !config.tokens.is_empty();
        if let Some(open) = listen.iter().find(|l| !l.is_local() && !safe && !config.insecure) {
            return Err(TransportError::Config(format!(
                "{open} can be reached from other hosts, which takes TLS and a token"
            )));
        }
        let mut listeners = Vec::new();
        for listen in listen {
            let fail = |source| TransportError::Connect { target: listen.to_string(), source };
            listeners.push(Listener::bind(listen).await.map_err(fail)?);
        }
        let (intake, taken) = Intake::new();
        Ok(Self { listeners, intake, taken, config: Arc::new(config) })
    }

    /// The addresses in use.
    ///
    /// # Errors
    /// When the system can't say.
    pub fn local(&self) -> Result<Vec<Listen>> {
        Ok(self.listeners.iter().map(Listener::local).collect::<Result<_, _>>()?)
    }

    /// To hand it connections that are open already.
    pub fn intake(&self) -> Intake {
        self.intake.clone()
    }

    /// Answers until `shutdown` becomes true; then running queries may finish
    /// within the grace period, and all connections are closed.
    ///
    /// # Errors
    /// When a listener fails for good.
    pub async fn run(mut self, service: Arc<dyn Service>, mut shutdown: watch::Receiver<bool>) -> Result<()> {
        let tickets = Arc::<Tickets>::default();
        let places = Arc::new(Semaphore::new(self.config.connections_max));
        let peers = if self.config.peer_token.is_some() { self.config.peer_connections_max } else { 0 };
        let peer_places = Arc::new(Semaphore::new(peers));
        let mut tasks = JoinSet::new();
        let mut beside = JoinSet::new();
        let (of_service, intake) = (service.clone(), self.intake.clone());
        beside.spawn(async move { of_service.beside(intake).await });
        loop {
            tokio::select! {
                accepted = accept(&self.listeners, &mut self.taken) => match accepted {
                    Ok(_) if tasks.len() >= self.config.connections_max + peers + REFUSALS_MAX => {}
                    Ok((stream, peer)) => {
                        let (config, service) = (self.config.clone(), service.clone());
                        let (tickets, intake) = (tickets.clone(), self.intake.clone());
                        let (places, shutdown) = (places.clone(), shutdown.clone());
                        let peer_places = peer_places.clone();
                        tasks.spawn(async move {
                            let place = Mutex::new(places.try_acquire_owned().ok());
                            let handler =
                                Handler { config, service, tickets, place, peer_places, shutdown, intake };
                            match handler.serve(stream).await {
                                Ok(()) => tracing::debug!(peer, "connection closed"),
                                Err(error) => tracing::info!(peer, %error, "connection ended"),
                            }
                        });
                    }
                    Err(error) => {
                        // Out of descriptors, or a client that left again: others can still be served.
                        tracing::warn!(%error, "accept failed");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
                () = down(&mut shutdown) => break,
            }
        }
        drop((self.listeners, self.taken));
        let ended = async {
            while tasks.join_next().await.is_some() {}
            while beside.join_next().await.is_some() {}
        };
        if timeout(self.config.shutdown_grace, ended).await.is_err() {
            tracing::warn!(
                connections = tasks.len(),
                "closing connections whose queries did not end in time"
            );
        }
        tasks.shutdown().await;
        Ok(())
    }
}

/// The next connection, by whatever way.
async fn accept(listeners: &[Listener], taken: &mut Taken) -> std::io::Result<(Accepted, String)> {
    let listening = async {
        if listeners.is_empty() {
            return std::future::pending().await;
        }
        let listening = listeners.iter().map(|listener| Box::pin(listener.accept()));
        futures::future::select_all(listening).await.0
    };
    tokio::select! {
        Some(pipe) = taken.recv() => Ok(pipe),
        accepted = listening => accepted,
    }
}

async fn down(shutdown: &mut watch::Receiver<bool>) {
    // A sender that is gone will never ask for more: that is a shutdown too.
    let _ = shutdown.wait_for(|&down| down).await;
}

struct Handler {
    config: Arc<ServerConfig>,
    service: Arc<dyn Service>,
    tickets: Arc<Tickets>,
    /// Among the clients, or the nodes; nothing where all is taken.
    place: Mutex<Option<OwnedSemaphorePermit>>,
    peer_places: Arc<Semaphore>,
    shutdown: watch::Receiver<bool>,
    intake: Intake,
}

/// What the futures of one connection share.
pub(super) struct Link {
    pub(super) shared: Mutex<Shared>,
    /// Something to send, or something in the mail.
    pub(super) wake: Arc<Notify>,
    /// The client is to be heard of sooner than was known.
    sooner: Notify,
}

pub(super) struct Shared {
    pub(super) proto: Proto,
    hello: Option<Hello>,
    /// The client wants to send something else than frames.
    is_trunk: bool,
    asked: Option<Asked>,
    join: Option<Join>,
    pub(super) cancelled: bool,
    /// What the consumer measured, when it last said so.
    pub(super) progress: Option<Progress>,
    /// The sizes that the consumer asks for.
    pub(super) resize: Option<Sizes>,
}

impl Shared {
    fn ask(&mut self, asked: Asked) {
        (self.asked, self.cancelled) = (Some(asked), false);
        (self.progress, self.resize) = (None, None);
    }
}

/// What is to be answered.
enum Asked {
    Query(Query),
    Task(Task),
}

impl Asked {
    fn plan_mut(&mut self) -> &mut Plan {
        match self {
            Self::Query(query) => &mut query.plan,
            Self::Task(task) => &mut task.plan,
        }
    }
}

/// Why the answer to a query ends early.
pub(super) enum Stop {
    /// Tell the client; the connection lives on.
    Failed(Failure),
    /// The connection is done for.
    Broken(TransportError),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<TransportError> for Stop {
    fn from(error: TransportError) -> Self {
        Self::Broken(error)
    }
}

/// A socket and what was said on it.
pub(super) struct Session {
    link: Link,
    reader: FrameReader,
    writer: FrameWriter,
    meter: Meter,
    way: Way,
}

/// How a client comes to us.
enum Way {
    /// By TCP, from this host or, for all we can know, another.
    Tcp { same_host: bool },
    /// Over something that was open already.
    Pipe,
    /// By a Unix socket.
    Unix,
    /// To a meeting, as the client we wait for. Our hello has this token.
    Met { token: String },
}

/// What follows upon a conversation.
enum Next {
    Nothing,
    /// It goes on in another place.
    Session(Box<Session>),
    /// Others come by its connection.
    Trunk {
        same_host: bool,
    },
}

impl Session {
    fn new(
        reader: FrameReader,
        writer: FrameWriter,
        meter: Meter,
        way: Way,
        ping_interval: Duration,
    ) -> Self {
        let proto = Proto::new(Instant::now(), ping_interval);
        let shared = Shared {
            proto,
            hello: None,
            is_trunk: false,
            asked: None,
            join: None,
            cancelled: false,
            progress: None,
            resize: None,
        };
        let link = Link { shared: Mutex::new(shared), wake: Arc::default(), sooner: Notify::new() };
        Self { link, reader, writer, meter, way }
    }

    fn tcp(read: ReadHalf, write: WriteHalf, meter: Meter, same_host: bool, ping_interval: Duration) -> Self {
        let reader = FrameReader::new(read, Segments::None);
        let writer = FrameWriter::new(write, None);
        Self::new(reader, writer, meter, Way::Tcp { same_host }, ping_interval)
    }

    fn pipe(read: ReadHalf, write: WriteHalf, ping_interval: Duration) -> Self {
        let reader = FrameReader::new(read, Segments::None);
        Self::new(reader, FrameWriter::new(write, None), Meter::other(), Way::Pipe, ping_interval)
    }

    /// A client on a Unix socket.
    pub(super) fn unix(stream: UnixStream, ping_interval: Duration) -> Self {
        let (read, write, lender) = shm::lending(stream);
        let reader = FrameReader::new(read, Segments::Lent(lender.slots()));
        let writer = FrameWriter::new(write, Some(lender));
        Self::new(reader, writer, Meter::other(), Way::Unix, ping_interval)
    }

    /// Waits for the client's hello. Answers its token; `None` when it is no client.
    pub(super) async fn hello(&mut self) -> Option<String> {
        receive_one(&self.link, &mut self.reader).await.ok().filter(|&open| open)?;
        lock(&self.link.shared).hello.as_ref().map(|hello| hello.token.clone())
    }

    /// The client has shown who it is; our hello will show who we are.
    pub(super) fn admit(&mut self, token: String) {
        self.way = Way::Met { token };
    }
}

impl Handler {
    async fn serve(self, stream: Accepted) -> Result<()> {
        let limit = self.config.handshake_timeout;
        let late = |_| TransportError::Silent { after: limit };
        let mut session = timeout(limit, self.open(stream)).await.map_err(late)??;
        // A client that goes to a meeting takes its place along.
        while let Some(next) = self.converse(session).await? {
            session = next;
        }
        Ok(())
    }

    /// One socket from hello to its end. Answers the session that goes on in its stead.
    async fn converse(&self, session: Session) -> Result<Option<Session>> {
        let limit = self.config.handshake_timeout;
        let Session { link, mut reader, mut writer, meter, way } = session;
        let ended = tokio::select! {
            ended = receive(&link, &mut reader) => ended.map(|()| Next::Nothing),
            ended = self.answer_all(&link, &mut writer, meter, way) => ended,
            ended = keep_time(&link) => ended.map(|()| Next::Nothing),
        };
        if let Ok(Next::Trunk { same_host }) = ended {
            let trunk = Trunk { read: reader.into_stream()?, write: writer.into_stream(), same_host };
            self.service.carry(trunk, self.intake.clone()).await;
            return Ok(None);
        }
        // Whoever speaks another protocol, or breaks this one, is told so before the door closes.
        if let Err(error @ (TransportError::Wire(_) | TransportError::Protocol(_))) = &ended {
            lock(&link.shared).proto.refuse(&Proto::protocol_failure(error));
            let _ = timeout(limit, flush(&link, &mut writer)).await;
        }
        let _ = timeout(limit, writer.shutdown()).await;
        ended.map(|next| match next {
            Next::Session(session) => Some(*session),
            Next::Nothing | Next::Trunk { .. } => None,
        })
    }

    async fn open(&self, stream: Accepted) -> Result<Session> {
        let ping_interval = self.config.ping_interval;
        Ok(match (stream, &self.config.tls) {
            (Accepted::Unix(stream), _) => Session::unix(stream, ping_interval),
            (Accepted::Pipe(read, write), _) => Session::pipe(read, write, ping_interval),
            (Accepted::Tcp(stream), None) => {
                let (same_host, meter) = (is_same_host(&stream), Meter::tcp(&stream));
                let (read, write) = stream.into_split();
                Session::tcp(Box::new(read), Box::new(write), meter, same_host, ping_interval)
            }
            (Accepted::Tcp(stream), Some(tls)) => {
                let (same_host, meter) = (is_same_host(&stream), Meter::tcp(&stream));
                let stream = TlsAcceptor::from(tls.clone()).accept(stream).await?;
                let (read, write) = tokio::io::split(stream);
                Session::tcp(Box::new(read), Box::new(write), meter, same_host, ping_interval)
            }
        })
    }

    /// Hello, then one query after the other. Ends with a session when the client goes to a meeting, and at once
    /// where a node wants a trunk.
    async fn answer_all(
        &self,
        link: &Link,
        writer: &mut FrameWriter,
        mut meter: Meter,
        way: Way,
    ) -> Result<Next> {
        let limit = self.config.handshake_timeout;
        let hello = async {
            loop {
                if let Some(hello) = lock(&link.shared).hello.take() {
                    return hello;
                }
                link.wake.notified().await;
            }
        };
        let hello = timeout(limit, hello).await.map_err(|_| TransportError::Silent { after: limit })?;
        if let Some(refusal) = self.refusal(&hello, &way) {
            lock(&link.shared).proto.refuse(&refusal);
            flush(link, writer).await?;
            return Err(refusal.into());
        }
        if let Way::Tcp { same_host } = way
            && is_trunk(&hello)
        {
            lock(&link.shared).proto.welcome(String::new(), CAPABILITY_CLUSTER | CAPABILITY_TRUNK, None);
            flush(link, writer).await?;
            meter.prepare_trunk();
            return Ok(Next::Trunk { same_host });
        }
        let (capabilities, place) = match &way {
            Way::Tcp { .. } | Way::Pipe if self.is_peer(&hello) => {
                (CAPABILITY_CLUSTER | CAPABILITY_RESIZE, None)
            }
            Way::Tcp { same_host } if *same_host && hello.capabilities & CAPABILITY_MEETING != 0 => {
                (CAPABILITY_JOIN | CAPABILITY_RESIZE, MeetingPlace::open())
            }
            Way::Tcp { .. } => (CAPABILITY_JOIN | CAPABILITY_RESIZE, None),
            Way::Pipe => (CAPABILITY_RESIZE, None),
            Way::Unix | Way::Met { .. } => (hello.capabilities & CAPABILITY_SEGMENTS, None),
        };
        if capabilities & CAPABILITY_SEGMENTS == 0 {
            writer.lend_nothing();
        }
        let token = if let Way::Met { token } = way { token } else { String::new() };
        lock(&link.shared).proto.welcome(token, capabilities, place.as_ref().map(|place| &place.meeting));
        link.sooner.notify_one();
        let meeting = place.as_ref().map(|place| place.client(limit, self.config.ping_interval));
        let mut meeting = std::pin::pin!(OptionFuture::from(meeting));
        let mut shutdown = self.shutdown.clone();
        loop {
            flush(link, writer).await?;
            let asked = lock(&link.shared).asked.take();
            if let Some(asked) = asked {
                // A client that asks here has not gone there, and will not.
                meeting.set(None.into());
                match self.answer(asked, link, writer, &mut meter).await {
                    Ok(()) => {}
                    Err(Stop::Failed(failure)) => {
                        tracing::info!(code = ?failure.code, error = %failure, "query failed");
                        lock(&link.shared).proto.fail(&failure);
                    }
                    Err(Stop::Broken(error)) => return Err(error),
                }
                continue;
            }
            let join = lock(&link.shared).join.take();
            if let Some(join) = join {
                match carry(&self.tickets, &join, link, writer, &mut meter).await {
                    Ok(()) => {}
                    Err(Stop::Failed(failure)) => lock(&link.shared).proto.fail(&failure),
                    Err(Stop::Broken(error)) => return Err(error),
                }
                continue;
            }
            tokio::select! {
                () = link.wake.notified() => {}
                Some(session) = &mut meeting => return Ok(Next::Session(Box::new(session))),
                () = down(&mut shutdown) => {
                    let failure = Failure::new(ErrorCode::ShuttingDown, "the node is shutting down");
                    lock(&link.shared).proto.refuse(&failure);
                    flush(link, writer).await?;
                    return Ok(Next::Nothing);
                }
            }
        }
    }

    /// Whether it is a node of this cluster that says so.
    fn is_peer(&self, hello: &Hello) -> bool {
        let token = self.config.peer_token.as_deref();
        let known = token.is_some_and(|token| {
            (token.is_empty() && self.config.tokens.is_empty())
                || token.as_bytes().ct_eq(hello.token.as_bytes()).into()
        });
        known && hello.capabilities & CAPABILITY_CLUSTER != 0
    }

    fn refusal(&self, hello: &Hello, way: &Way) -> Option<Failure> {
        if matches!(way, Way::Met { .. }) {
            // Its token and its place were looked at when it came by TCP.
            return None;
        }
        let known = self.config.tokens.iter().fold(subtle::Choice::from(0), |known, token| {
            known | token.as_bytes().ct_eq(hello.token.as_bytes())
        });
        let a_node = hello.capabilities & CAPABILITY_CLUSTER != 0;
        if a_node && !self.is_peer(hello) {
            let what = match self.config.peer_token {
                Some(_) => "the token is not that of the cluster",
                None => "this node is in no cluster",
            };
            return Some(Failure::new(ErrorCode::Unauthenticated, what));
        }
        if !a_node && !self.config.tokens.is_empty() && !bool::from(known) {
            let what = if hello.token.is_empty() { "a token is needed" } else { "the token is not known" };
            return Some(
                Failure::new(ErrorCode::Unauthenticated, what)
                    .hint("give it in the URI, lightship://TOKEN@host, or in LIGHTSHIP_TOKEN"),
            );
        }
        let mut place = lock(&self.place);
        if a_node {
            // It takes no client's.
            *place = self.peer_places.clone().try_acquire_owned().ok();
        }
        place.is_none().then(|| {
            let (what, max) = match a_node {
                true => ("of other nodes", self.config.peer_connections_max),
                false => ("of the node", self.config.connections_max),
            };
            Failure::new(ErrorCode::Busy, format!("all {max} connections {what} are taken"))
        })
    }

    async fn answer(
        &self,
        mut asked: Asked,
        link: &Link,
        writer: &mut FrameWriter,
        meter: &mut Meter,
    ) -> Result<(), Stop> {
        let plan = asked.plan_mut();
        plan.message_bytes = plan.message_bytes.min(self.config.message_bytes_max);
        let mut striping = None;
        if plan.streams > 1
            && let Some((ticket, open)) = self.tickets.issue(plan.streams, &link.wake)
        {
            // It goes with the answer: most results are over before anybody would join.
            lock(&link.shared).proto.ticket(&ticket);
            striping = Some(open);
        }
        let plan = *plan;
        let planning = match &asked {
            Asked::Query(query) => attended(self.service.query(query), link, writer).await?,
            Asked::Task(task) => attended(self.service.task(task), link, writer).await?,
        };
        let Answer { schema, rows_estimate, encoders, rows } = planning?;
        let accepted = AcceptedQuery { schema: schema.as_ref().clone(), rows_estimate };
        lock(&link.shared)
            .proto
            .accept(&accepted)
            .map_err(|e| Failure::new(ErrorCode::Internal, e.to_string()))?;

        writer.begin(&plan);
        let message_bytes_max = self.config.message_bytes_max;
        Answering::new(link, writer, meter, plan, message_bytes_max, schema, striping)
            .encoded_by(encoders)
            .run(rows)
            .await
    }
}

/// Runs a future, meanwhile sending what the protocol wants sent; ends early when the client cancels.
pub(super) async fn attended<F: Future>(
    future: F,
    link: &Link,
    writer: &mut FrameWriter,
) -> Result<F::Output, Stop> {
    let mut future = std::pin::pin!(future);
    loop {
        if lock(&link.shared).cancelled {
            return Err(cancelled(link));
        }
        tokio::select! {
            biased;
            output = &mut future => return Ok(output),
            () = link.wake.notified() => flush(link, writer).await?,
        }
    }
}

pub(super) fn cancelled(link: &Link) -> Stop {
    lock(&link.shared).cancelled = false;
    Failure::new(ErrorCode::Cancelled, "the query was cancelled").into()
}

pub(super) async fn flush(link: &Link, writer: &mut FrameWriter) -> Result<()> {
    let frames: Vec<_> = {
        let mut shared = lock(&link.shared);
        std::iter::from_fn(|| shared.proto.poll_transmit()).collect()
    };
    if !frames.is_empty() {
        writer.write(&frames).await?;
    }
    Ok(())
}

async fn receive(link: &Link, reader: &mut FrameReader) -> Result<()> {
    loop {
        match receive_one(link, reader).await {
            // What follows is not for us to read.
            Ok(true) if lock(&link.shared).is_trunk => std::future::pending().await,
            Ok(true) => {}
            Ok(false) => break,
            // How circuits end, and sockets of clients that were in a hurry.
            Err(TransportError::Io(error)) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => return Err(error),
        }
    }
    if lock(&link.shared).proto.is_idle() {
        Ok(())
    } else {
        Err(TransportError::Closed { during: Some("before its result was complete") })
    }
}

/// Takes the next frame. Answers whether there was one.
async fn receive_one(link: &Link, reader: &mut FrameReader) -> Result<bool> {
    let limit = |kind| lock(&link.shared).proto.payload_bytes_max(kind);
    let alive = || lock(&link.shared).proto.received(Instant::now());
    let Some((header, payload)) = reader.next(limit, alive).await? else { return Ok(false) };
    let mut shared = lock(&link.shared);
    match shared.proto.handle(Instant::now(), &header, &payload)? {
        Some(ServerEvent::Hello(hello)) => {
            shared.is_trunk = is_trunk(&hello);
            shared.hello = Some(hello);
        }
        Some(ServerEvent::Query(query)) => shared.ask(Asked::Query(query)),
        Some(ServerEvent::Task(task)) => shared.ask(Asked::Task(task)),
        Some(ServerEvent::Join(join)) => shared.join = Some(join),
        Some(ServerEvent::Cancel) => shared.cancelled = true,
        Some(ServerEvent::Progress(progress)) => shared.progress = Some(progress),
        Some(ServerEvent::Resize(sizes)) => shared.resize = Some(sizes),
        None => {}
    }
    link.wake.notify_one();
    Ok(true)
}

/// Whether a node asks for a trunk.
fn is_trunk(hello: &Hello) -> bool {
    let both = CAPABILITY_CLUSTER | CAPABILITY_TRUNK;
    hello.capabilities & both == both
}

async fn keep_time(link: &Link) -> Result<()> {
    loop {
        let deadline = lock(&link.shared).proto.deadline();
        tokio::select! {
            () = tokio::time::sleep_until(deadline.into()) => {}
            () = link.sooner.notified() => continue,
        }
        lock(&link.shared).proto.wake(Instant::now())?;
        link.wake.notify_one();
    }
}
