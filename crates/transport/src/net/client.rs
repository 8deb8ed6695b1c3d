//! The side that asks: a connection, and the task that reads and writes for it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use lightship_wire::cluster::{CAPABILITY_CLUSTER, Task};
use lightship_wire::control::{Plan, Query};
use lightship_wire::join::{CAPABILITY_JOIN, Join};
use lightship_wire::local::{CAPABILITY_MEETING, CAPABILITY_SEGMENTS, Meeting};
use lightship_wire::tuning::{CAPABILITY_RESIZE, Progress, Sizes};
use lightship_wire::{Codec, rows_bytes};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::endpoint::Socket;
use super::frames::{FrameReader, FrameWriter, Segments};
use super::jobs::{Job, PROCESSORS};
use super::joined::{Admission, Arrivals};
use super::produce::nanoseconds;
use super::server::check_token;
use super::shm::Ledger;
use super::{Carrier, Endpoint, lock, meet};
use crate::proto::{Awaited, Client, ClientEvent, Message, QUEUE_TIMEOUT_MAX, Totals};
use crate::{Result, TransportError};

/// A message smaller than this is decoded before another thread would have taken it up.
const BESIDE_BYTES_MIN: u32 = 64 << 10;

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Bearer token; empty for none.
    pub token: String,
    /// How long the host may take to accept a connection.
    pub connect_timeout: Duration,
    /// How long what listens there may take to say hello, after TLS where that is used. A busy host may need some
    /// seconds. A client that is told that it waits in line for a place waits for as long as it is told, and this.
    pub welcome_timeout: Duration,
    /// A quiet server is pinged after this long, and given up after three times this.
    pub ping_interval: Duration,
    /// Whether rows of a server on this host may come through shared memory. They then lie
    /// there until they are dropped; what is held beyond the window comes by the socket.
    pub shared_memory: bool,
    /// Whether to introduce oneself as a node of the server's cluster, by whose token. A node has no
    /// shared memory with another one.
    pub peer: bool,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            token: String::new(),
            connect_timeout: Duration::from_secs(10),
            welcome_timeout: Duration::from_secs(20),
            ping_interval: Duration::from_secs(10),
            shared_memory: true,
            peer: false,
        }
    }
}

/// A server that does not come to its own meeting holds up connecting for no longer than this
/// part of the time for a welcome.
const MEETING_PART: u32 = 4;

/// What the application and the connection's task share. The queue needs no
/// limit of its own: the window bounds what a server may send.
pub(super) struct Shared {
    client: Client,
    pub(super) events: VecDeque<Event>,
    /// Where other connections may join the result.
    pub(super) arrivals: Option<Arrivals>,
    /// Set once, when the task ends.
    ended: Option<TransportError>,
}

/// What waits for the application.
pub(super) enum Event {
    /// What the protocol says.
    Told(ClientEvent),
    /// Rows.
    Rows(Decoded),
    /// Rows that another thread is decoding.
    Decoding(Job<Decoded>),
    /// Rows that come by a joined connection.
    Awaited(Awaited),
    /// Rows were to come by a joined connection, which was lost.
    Lost(TransportError),
}

/// A message's rows, and what they took.
pub(super) struct Decoded {
    codec: Codec,
    rows: Result<RecordBatch>,
    took: Duration,
}

pub(super) struct Link {
    pub(super) shared: Mutex<Shared>,
    /// Something to send.
    outgoing: Notify,
    /// Something for the application.
    pub(super) incoming: Notify,
    /// What of the server's shared memory is in use.
    ledger: Option<Arc<Ledger>>,
}

impl Link {
    /// The application has taken a batch. What it has dropped goes back first, so that the
    /// producer has room for what the credit lets it send.
    fn consumed(&self, credit: u32, progress: &Progress) {
        let mut shared = lock(&self.shared);
        self.release(&mut shared.client);
        shared.client.consumed(credit, progress);
        drop(shared);
        self.outgoing.notify_one();
    }

    fn release(&self, client: &mut Client) {
        let Some(ledger) = &self.ledger else { return };
        loop {
            match ledger.take_returned() {
                loans if loans.is_empty() => return,
                loans => client.release(&loans),
            }
        }
    }
}

/// An open connection to a server: one query at a time.
///
/// Dropping it cancels what runs and closes the socket.
pub struct Connection {
    pub(super) link: Arc<Link>,
    task: JoinHandle<()>,
    same_host: bool,
    /// From our hello to the server's.
    rtt: Duration,
    /// What was measured of the running result.
    progress: Progress,
    /// Bytes of the rows that the application is busy with, and since when.
    handed: Option<(u64, Instant)>,
    carrier: Carrier,
    /// The TCP socket, as long as the task has it.
    pub(super) tcp: Weak<OwnedFd>,
    /// Where others would join a result, if any can, by which ticket, and the tasks of those that have.
    pub(super) endpoint: Option<Endpoint>,
    pub(super) config: ClientConfig,
    pub(super) admission: Option<Admission>,
    pub(super) joined: JoinSet<()>,
}

/// What comes in for a query.
#[derive(Debug)]
pub enum Incoming {
    /// Rows, in order.
    Rows(RecordBatch),
    /// All rows have come; this is what they came to.
    Finished(Box<Totals>),
}

impl Connection {
    /// Connects, and is welcomed.
    ///
    /// # Errors
    /// When the server can't be reached, does not speak the protocol, or refuses the token.
    pub async fn connect(endpoint: &Endpoint, config: &ClientConfig) -> Result<Self> {
        check_token(&config.token)?;
        let socket = endpoint.connect(config).await?;
        let target = endpoint.to_string();
        let connection = Self::greet(socket, config.token.clone(), Some(endpoint), &target, config).await?;
        let meeting = lock(&connection.link.shared).client.meeting().cloned();
        let Some(meeting) = meeting else { return Ok(connection) };
        // A server behind a forwarded port, or in another network namespace, is not there.
        match timeout(config.welcome_timeout / MEETING_PART, Self::meet(&meeting, endpoint, config)).await {
            Ok(Ok(met)) => Ok(met),
            missed => {
                tracing::debug!(why = ?missed.map(drop), "no meeting; the connection stays with TCP");
                Ok(connection)
            }
        }
    }

    /// As [`Connection::connect`], over a pipe that is open already, to a server's
    /// [`Intake`](super::Intake). No others can join its results, and no memory is shared. `target` names the
    /// server in errors.
    ///
    /// # Errors
    /// When the server does not speak the protocol, refuses the token, or says nothing in time.
    pub async fn over(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        target: &str,
        config: &ClientConfig,
    ) -> Result<Self> {
        check_token(&config.token)?;
        Self::greet(Socket::pipe(stream), config.token.clone(), None, target, config).await
    }

    /// Says hello on a socket, and waits for the answer.
    async fn greet(
        socket: Socket,
        token: String,
        endpoint: Option<&Endpoint>,
        target: &str,
        config: &ClientConfig,
    ) -> Result<Self> {
        let Socket { read, write, segments, carrier, tcp, same_host } = socket;
        let ledger = match &segments {
            Segments::Borrowed(borrower) => Some(borrower.ledger()),
            _ => None,
        };
        let capabilities = match (carrier, &ledger) {
            (Carrier::Tcp | Carrier::Circuit, _) if config.peer => CAPABILITY_CLUSTER | CAPABILITY_RESIZE,
            (Carrier::Tcp, _) if same_host && config.shared_memory => {
                CAPABILITY_JOIN | CAPABILITY_RESIZE | CAPABILITY_MEETING
            }
            (Carrier::Tcp, _) => CAPABILITY_JOIN | CAPABILITY_RESIZE,
            (Carrier::Circuit, _) => CAPABILITY_RESIZE,
            (Carrier::Unix | Carrier::SharedMemory, Some(_)) => CAPABILITY_SEGMENTS,
            (Carrier::Unix | Carrier::SharedMemory, None) => 0,
        };
        let client = Client::new(Instant::now(), token, capabilities, config.ping_interval);
        let shared = Shared { client, events: VecDeque::new(), arrivals: None, ended: None };
        let link = Arc::new(Link {
            shared: Mutex::new(shared),
            outgoing: Notify::new(),
            incoming: Notify::new(),
            ledger,
        });
        let watched = tcp.as_ref().map_or_else(Weak::new, Arc::downgrade);
        let task = tokio::spawn(run(
            link.clone(),
            FrameReader::new(read, segments),
            FrameWriter::new(write, None),
            tcp,
        ));
        let (progress, handed) = (Progress::default(), None);
        let mut connection = Self {
            link,
            task,
            same_host,
            rtt: Duration::ZERO,
            progress,
            handed,
            carrier,
            tcp: watched,
            endpoint: endpoint.cloned(),
            // Those that join don't meet elsewhere.
            config: ClientConfig { shared_memory: false, ..config.clone() },
            admission: None,
            joined: JoinSet::new(),
        };
        connection.rtt = connection.welcome(target, config.welcome_timeout).await?;
        let agreed = lock(&connection.link.shared).client.server().capabilities;
        if carrier == Carrier::Unix && agreed & CAPABILITY_SEGMENTS != 0 {
            connection.carrier = Carrier::SharedMemory;
        }
        Ok(connection)
    }

    /// Waits for the server's hello, and in line for a place. Answers the time to its first answer.
    async fn welcome(&mut self, target: &str, limit: Duration) -> Result<Duration> {
        let greeted = Instant::now();
        let (mut rtt, mut after, mut awaited) = (None, limit, "no welcome");
        loop {
            // The limit counts from the hello, or from what the server said last.
            let Ok(told) = timeout(after, self.told()).await else {
                return Err(TransportError::Unwelcome { target: target.to_owned(), awaited, after });
            };
            let rtt = *rtt.get_or_insert_with(|| greeted.elapsed());
            match told? {
                ClientEvent::Ready => return Ok(rtt),
                ClientEvent::Queued(queued) => {
                    tracing::info!(
                        ahead = queued.ahead,
                        wait_ms = queued.wait_ms,
                        "waiting in line for a place"
                    );
                    after = limit + Duration::from_millis(queued.wait_ms.into()).min(QUEUE_TIMEOUT_MAX);
                    awaited = "all its connections are taken, and neither a place nor a refusal came";
                }
                other => return Err(TransportError::Protocol(format!("{other:?} instead of a hello"))),
            }
        }
    }

    /// Goes to a meeting, and makes sure that it is the same server.
    async fn meet(meeting: &Meeting, endpoint: &Endpoint, config: &ClientConfig) -> Result<Self> {
        let socket = Socket::unix(meet::go(meeting).await?, config.shared_memory);
        let target = endpoint.to_string();
        let token = meeting.client_token.clone();
        let connection = Self::greet(socket, token, Some(endpoint), &target, config).await?;
        if lock(&connection.link.shared).client.server().token == meeting.server_token {
            Ok(connection)
        } else {
            Err(TransportError::Protocol("another server came to the meeting".into()))
        }
    }

    /// Whether it could be asked: it has not ended, as far as is known.
    pub fn is_open(&self) -> bool {
        lock(&self.link.shared).ended.is_none() && !self.task.is_finished()
    }

    /// What carries the rows.
    pub fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// Whether the server is on this host: compressing for it can't pay.
    pub fn same_host(&self) -> bool {
        self.same_host
    }

    /// The round trip, as the hellos showed it: whatever stands between the two ends is in it, and that
    /// the server was busy.
    pub fn rtt(&self) -> Duration {
        self.rtt
    }

    /// Whether sizes can change while a result is on its way.
    pub fn can_resize(&self) -> bool {
        lock(&self.link.shared).client.server().capabilities & CAPABILITY_RESIZE != 0
    }

    /// The sizes of the running result; nothing while others were asked for and not begun.
    pub fn sizes(&self) -> Option<Sizes> {
        lock(&self.link.shared).client.sizes()
    }

    /// Asks for other sizes of what is still to come of the running result, and answers whether that was
    /// possible: by TCP, of a server that knows of it, and not before an earlier request was met.
    pub fn resize(&mut self, sizes: Sizes) -> bool {
        let mut shared = lock(&self.link.shared);
        let before = shared.client.sizes().map_or(0, |sizes| sizes.memory_bytes());
        let asked = shared.client.resize(sizes);
        if let Some(arrivals) = shared.arrivals.as_mut().filter(|_| asked) {
            // What flies under the old sizes comes as well.
            arrivals.allow(before + sizes.memory_bytes());
        }
        drop(shared);
        self.link.outgoing.notify_one();
        asked
    }

    /// The plan as the server understands it: one that can't choose the codec uses LZ4, one that
    /// lets no connection join (an older one, or by a Unix socket) sends all over this one.
    ///
    /// # Errors
    /// [`TransportError::Config`] when the plan asks for a codec that the server does not know.
    pub fn settle(&self, plan: Plan) -> Result<Plan> {
        lock(&self.link.shared).client.settle(plan)
    }

    /// What was measured here of the result: decoding, and the application's own time.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Asks, after the plan was settled. What is left of an earlier result is discarded first. Of the
    /// connections that may join the result, so many do at once; the others as [`Connection::widen`] says.
    ///
    /// # Errors
    /// [`TransportError::Failed`] when the server refuses the query, and whatever ends a connection.
    pub async fn query(&mut self, query: &Query, joining: u32) -> Result<(SchemaRef, Option<u64>)> {
        self.ask(&query.plan, joining, |client| client.query(query)).await
    }

    /// As [`Connection::query`], of a node of the same cluster.
    ///
    /// # Errors
    /// As of a query, and [`TransportError::Config`] where the server takes this side for no node.
    pub async fn task(&mut self, task: &Task) -> Result<SchemaRef> {
        Ok(self.ask(&task.plan, 0, |client| client.task(task)).await?.0)
    }

    async fn ask(
        &mut self,
        plan: &Plan,
        joining: u32,
        ask: impl FnOnce(&mut Client) -> Result<()>,
    ) -> Result<(SchemaRef, Option<u64>)> {
        self.discard().await?;
        (self.progress, self.handed) =
            (Progress { decoders: *PROCESSORS as u32, ..Progress::default() }, None);
        {
            let mut shared = lock(&self.link.shared);
            if let Some(ledger) = &self.link.ledger {
                ledger.set_segment_bytes_max(plan.memory_bytes());
            }
            self.link.release(&mut shared.client);
            ask(&mut shared.client)?;
        }
        self.link.outgoing.notify_one();
        loop {
            match self.told().await? {
                ClientEvent::Ticket(ticket) => {
                    self.admit(ticket, plan);
                    self.widen(joining);
                }
                ClientEvent::Accepted { schema, rows_estimate } => return Ok((schema, rows_estimate)),
                ClientEvent::Failed(failure) => {
                    self.narrow();
                    return Err(failure.into());
                }
                other => return Err(TransportError::Protocol(format!("{other:?} instead of a schema"))),
            }
        }
    }

    /// Has this connection join the result of another one.
    pub(super) fn join(&self, join: &Join, message_bytes_max: u32) -> Result<()> {
        lock(&self.link.shared).client.join(join, message_bytes_max)?;
        self.link.outgoing.notify_one();
        Ok(())
    }

    /// The next rows, or the end. After the end, or an error, only another query makes sense.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`TransportError::Failed`] when the server fails halfway, and whatever ends a connection.
    pub async fn next(&mut self) -> Result<Incoming> {
        if let Some((bytes, since)) = self.handed.take() {
            self.progress.consumed.add(bytes, nanoseconds(since.elapsed()));
        }
        loop {
            let told = match self.event().await? {
                Event::Rows(decoded) => return self.take(decoded).map(Incoming::Rows),
                Event::Lost(error) => {
                    self.cancel();
                    return Err(error);
                }
                // `event` waits for what is being decoded, or has not come.
                Event::Decoding(_) | Event::Awaited(_) => continue,
                Event::Told(told) => told,
            };
            match told {
                ClientEvent::Finished(totals) => {
                    self.narrow();
                    return Ok(Incoming::Finished(Box::new(totals)));
                }
                ClientEvent::Failed(failure) => {
                    self.narrow();
                    return Err(failure.into());
                }
                ClientEvent::BatchEnd { credit } => self.consumed(credit),
                other => return Err(TransportError::Protocol(format!("{other:?} in a result"))),
            }
        }
    }

    fn take(&mut self, decoded: Decoded) -> Result<RecordBatch> {
        // A peer whose messages can't be read is of no more use.
        let batch = decoded.rows.inspect_err(|_| self.abandon())?;
        let bytes = rows_bytes(&batch);
        self.progress.decoded[decoded.codec as usize].add(bytes, nanoseconds(decoded.took));
        self.handed = Some((bytes, Instant::now()));
        Ok(batch)
    }

    fn consumed(&mut self, credit: u32) {
        self.link.consumed(credit, &self.progress);
    }

    fn abandon(&mut self) {
        self.task.abort();
        self.narrow();
        let mut shared = lock(&self.link.shared);
        shared.events.clear();
        shared.ended = Some(TransportError::Closed { during: Some("earlier") });
    }

    /// Stops the running query; its rows still on the way are discarded by the next one.
    pub fn cancel(&mut self) {
        self.narrow();
        let mut shared = lock(&self.link.shared);
        shared.client.cancel();
        shared.events.retain(|event| matches!(event, Event::Told(_)));
        self.link.outgoing.notify_one();
    }

    async fn discard(&mut self) -> Result<()> {
        self.cancel();
        loop {
            {
                let mut shared = lock(&self.link.shared);
                if shared.client.is_idle() {
                    shared.events.clear();
                    return Ok(());
                }
            }
            // Whatever still comes of it, from the schema to the end, is nobody's any more.
            if let Event::Told(ClientEvent::BatchEnd { credit }) = self.event().await? {
                self.consumed(credit);
            }
        }
    }

    /// What comes next, where it can be no rows.
    pub(super) async fn told(&mut self) -> Result<ClientEvent> {
        match self.event().await? {
            Event::Told(told) => Ok(told),
            _ => Err(TransportError::Protocol("rows instead of an answer".into())),
        }
    }

    /// What comes next; rows, once they are decoded. Cancel-safe.
    async fn event(&mut self) -> Result<Event> {
        loop {
            let next = poll_fn(|context| {
                let mut shared = lock(&self.link.shared);
                let Some(front) = shared.events.front_mut() else { return Poll::Ready(None) };
                let decoded = match front {
                    Event::Awaited(_) => return Poll::Ready(None),
                    Event::Decoding(job) => Some(ready!(Pin::new(job).poll(context))),
                    _ => None,
                };
                let event = shared.events.pop_front();
                Poll::Ready(match decoded {
                    Some(decoded) => Some(decoded.map(Event::Rows)),
                    None => event.map(Ok),
                })
            });
            if let Some(event) = next.await {
                return event.map_err(|error| {
                    self.abandon();
                    error.into()
                });
            }
            {
                let mut shared = lock(&self.link.shared);
                // Of a result that is complete, the rest may still come by joined connections.
                if shared.events.is_empty()
                    && let Some(error) = shared.ended.take()
                {
                    shared.ended = Some(TransportError::Closed { during: Some("earlier") });
                    return Err(error);
                }
            }
            self.link.incoming.notified().await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Both halves of the socket, and the socket itself, are closed with it.
async fn run(link: Arc<Link>, reader: FrameReader, writer: FrameWriter, _tcp: Option<Arc<OwnedFd>>) {
    let ended = tokio::select! {
        error = receive(&link, reader) => error,
        error = send_while_heard(&link, writer) => error,
        error = keep_time(&link) => error,
    };
    let mut shared = lock(&link.shared);
    if !shared.client.is_idle() {
        shared.forsake();
    }
    shared.ended = ended.err();
    drop(shared);
    link.incoming.notify_one();
}

async fn receive(link: &Link, mut reader: FrameReader) -> Result<()> {
    loop {
        let limit = |kind| lock(&link.shared).client.payload_bytes_max(kind);
        let alive = || lock(&link.shared).client.received(Instant::now());
        let Some((header, payload)) = reader.next(limit, alive).await? else {
            let idle = lock(&link.shared).client.is_idle();
            return Err(TransportError::Closed {
                during: (!idle).then_some("before the result was complete"),
            });
        };
        let told = {
            let mut shared = lock(&link.shared);
            let event = match shared.client.handle(Instant::now(), &header, payload)? {
                Some(ClientEvent::Message(message)) => Some(unpack(message)?),
                Some(ClientEvent::Dealt(awaited)) => Some(shared.place(awaited)?),
                Some(failed @ ClientEvent::Failed(_)) => {
                    shared.forsake();
                    Some(Event::Told(failed))
                }
                other => other.map(Event::Told),
            };
            let told = event.is_some();
            shared.events.extend(event);
            if shared.client.wants_transmit() {
                link.outgoing.notify_one();
            }
            told
        };
        if told {
            link.incoming.notify_one();
            // Where both share a thread, the application takes its rows now, while they are in the
            // cache, and gives credit before the window is used up.
            tokio::task::yield_now().await;
        }
    }
}

/// Decodes what is cheap to decode; anything else begins on another thread, as the
/// credit for it allows: what has not been decoded is bounded as what has.
pub(super) fn unpack(message: Message) -> Result<Event> {
    let codec = message.codec();
    let began = Instant::now();
    if codec == Codec::None || message.body_bytes() < BESIDE_BYTES_MIN {
        let rows = Ok(message.decode()?);
        return Ok(Event::Rows(Decoded { codec, rows, took: began.elapsed() }));
    }
    Ok(Event::Decoding(Job::start(move || {
        let began = Instant::now();
        let rows = message.decode();
        Decoded { codec, rows, took: began.elapsed() }
    })))
}

/// Sends, until the peer no longer takes it. What it sent before it closed can still be read, be it
/// the end of a result: the reader says how the connection ended.
async fn send_while_heard(link: &Link, writer: FrameWriter) -> Result<()> {
    let Err(error) = send(link, writer).await;
    tracing::debug!(%error, "the server listens no more");
    std::future::pending().await
}

async fn send(link: &Link, mut writer: FrameWriter) -> Result<Infallible> {
    loop {
        let frames: Vec<_> = {
            let mut shared = lock(&link.shared);
            std::iter::from_fn(|| shared.client.poll_transmit()).collect()
        };
        if frames.is_empty() {
            link.outgoing.notified().await;
        } else {
            writer.write(&frames, || ()).await?;
        }
    }
}

async fn keep_time(link: &Link) -> Result<()> {
    loop {
        let deadline = lock(&link.shared).client.deadline();
        tokio::time::sleep_until(deadline.into()).await;
        lock(&link.shared).client.wake(Instant::now())?;
        link.outgoing.notify_one();
    }
}
