//! One connection of a server: hello, the line where all places are taken, one question after the other, and what it may
//! become: a meeting, a trunk.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::OptionFuture;
use lightship_wire::cluster::{CAPABILITY_CLUSTER, CAPABILITY_TRUNK, Task};
use lightship_wire::control::{Accepted as AcceptedQuery, ErrorCode, Failure, Hello, Plan, Query, Queued};
use lightship_wire::join::{CAPABILITY_JOIN, Join};
use lightship_wire::local::{CAPABILITY_MEETING, CAPABILITY_SEGMENTS};
use lightship_wire::tuning::{CAPABILITY_RESIZE, Progress, Sizes};
use subtle::ConstantTimeEq;
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep_until, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;

use super::answer::Answering;
use super::door::{Door, Place, Stranger, Turn};
use super::endpoint::is_same_host;
use super::frames::{FrameReader, FrameWriter, Segments};
use super::intake::Intake;
use super::listen::Accepted;
use super::meet::MeetingPlace;
use super::meter::Meter;
use super::server::down;
use super::shm;
use super::striping::{Tickets, carry};
use super::trunk::Trunk;
use super::{Answer, ReadHalf, ServerConfig, Service, WriteHalf, lock};
use crate::proto::{Server as Proto, ServerEvent, Stall};
use crate::{Result, TransportError};

/// What the connections of a server have in common, and the place of one of them.
pub(super) struct Handler {
    pub(super) config: Arc<ServerConfig>,
    pub(super) service: Arc<dyn Service>,
    pub(super) tickets: Arc<Tickets>,
    pub(super) door: Arc<Door>,
    /// Among the clients, or the nodes; nothing before that was judged.
    pub(super) place: Mutex<Option<Place>>,
    pub(super) shutdown: watch::Receiver<bool>,
    pub(super) intake: Intake,
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
    fn new(reader: FrameReader, writer: FrameWriter, meter: Meter, way: Way, config: &ServerConfig) -> Self {
        let proto = Proto::new(Instant::now(), config.ping_interval, config.stall_timeout);
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

    fn tcp(read: ReadHalf, write: WriteHalf, meter: Meter, same_host: bool, config: &ServerConfig) -> Self {
        let reader = FrameReader::new(read, Segments::None);
        let writer = FrameWriter::new(write, None);
        Self::new(reader, writer, meter, Way::Tcp { same_host }, config)
    }

    fn pipe(read: ReadHalf, write: WriteHalf, config: &ServerConfig) -> Self {
        let reader = FrameReader::new(read, Segments::None);
        Self::new(reader, FrameWriter::new(write, None), Meter::other(), Way::Pipe, config)
    }

    /// A client on a Unix socket.
    pub(super) fn unix(stream: UnixStream, config: &ServerConfig) -> Self {
        let (read, write, lender) = shm::lending(stream);
        let reader = FrameReader::new(read, Segments::Lent(lender.slots()));
        let writer = FrameWriter::new(write, Some(lender));
        Self::new(reader, writer, Meter::other(), Way::Unix, config)
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
    /// A connection, from its first byte to its end.
    pub(super) async fn serve(self, stream: Accepted, mut stranger: Stranger) -> Result<()> {
        let mut shutdown = self.shutdown.clone();
        let opened = tokio::select! {
            opened = self.open(stream) => opened,
            after = stranger.expired() => Err(TransportError::Silent { after }),
            () = down(&mut shutdown) => return Ok(()),
        };
        let (mut session, mut stranger) = (opened?, Some(stranger));
        // A client that goes to a meeting takes its place along.
        while let Some(next) = self.converse(session, stranger.take()).await? {
            session = next;
        }
        Ok(())
    }

    /// One socket from hello to its end. Answers the session that goes on in its stead.
    async fn converse(&self, session: Session, stranger: Option<Stranger>) -> Result<Option<Session>> {
        let limit = self.config.handshake_timeout;
        let Session { link, mut reader, mut writer, meter, way } = session;
        let ended = tokio::select! {
            ended = receive(&link, &mut reader) => ended.map(|()| Next::Nothing),
            ended = self.answer_all(&link, &mut writer, meter, way, stranger) => ended,
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
        let config = &self.config;
        Ok(match (stream, &self.config.tls) {
            (Accepted::Unix(stream), _) => Session::unix(stream, config),
            (Accepted::Pipe(read, write), _) => Session::pipe(read, write, config),
            (Accepted::Tcp(stream), None) => {
                let (same_host, meter) = (is_same_host(&stream), Meter::tcp(&stream));
                let (read, write) = stream.into_split();
                Session::tcp(Box::new(read), Box::new(write), meter, same_host, config)
            }
            (Accepted::Tcp(stream), Some(tls)) => {
                let (same_host, meter) = (is_same_host(&stream), Meter::tcp(&stream));
                let stream = TlsAcceptor::from(tls.clone()).accept(stream).await?;
                let (read, write) = tokio::io::split(stream);
                Session::tcp(Box::new(read), Box::new(write), meter, same_host, config)
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
        stranger: Option<Stranger>,
    ) -> Result<Next> {
        let limit = self.config.handshake_timeout;
        let mut shutdown = self.shutdown.clone();
        let hello = async {
            loop {
                if let Some(hello) = lock(&link.shared).hello.take() {
                    return hello;
                }
                link.wake.notified().await;
            }
        };
        // Who has no stranger's place came to a meeting, and was judged before.
        let hello = if let Some(mut stranger) = stranger {
            let hello = tokio::select! {
                hello = hello => hello,
                after = stranger.expired() => return Err(TransportError::Silent { after }),
                () = down(&mut shutdown) => {
                    lock(&link.shared).proto.refuse(&shutting_down());
                    flush(link, writer).await?;
                    return Ok(Next::Nothing);
                }
            };
            if let Err(refusal) = self.admit(&hello, stranger, link, writer).await? {
                lock(&link.shared).proto.refuse(&refusal);
                flush(link, writer).await?;
                return Err(refusal.into());
            }
            hello
        } else {
            hello.await
        };
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
        let meeting = place.as_ref().map(|place| place.client(limit, &self.config));
        let mut meeting = std::pin::pin!(OptionFuture::from(meeting));
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
                match carry(&self.tickets, &join, link, writer, &mut meter, self.config.stall_timeout).await {
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
                    lock(&link.shared).proto.refuse(&shutting_down());
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

    /// Why a client or a node is not let in, by its token.
    fn refusal(&self, hello: &Hello) -> Option<Failure> {
        let known = self.config.tokens.iter().fold(subtle::Choice::from(0), |known, token| {
            known | token.as_bytes().ct_eq(hello.token.as_bytes())
        });
        if hello.capabilities & CAPABILITY_CLUSTER != 0 {
            let what = match self.config.peer_token {
                _ if self.is_peer(hello) => return None,
                Some(_) => "the token is not that of the cluster",
                None => "this node is in no cluster",
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

    /// Judges a hello, and takes a place for who said it; a client may have to wait for one.
    async fn admit(
        &self,
        hello: &Hello,
        stranger: Stranger,
        link: &Link,
        writer: &mut FrameWriter,
    ) -> Result<Result<(), Failure>> {
        if let Some(refusal) = self.refusal(hello) {
            return Ok(Err(refusal));
        }
        let place = if hello.capabilities & CAPABILITY_CLUSTER != 0 {
            self.door.peer()
        } else {
            match self.door.client() {
                Ok(Ok(place)) => Ok(place),
                Ok(Err(turn)) => {
                    // It is none any more, and others can be heard.
                    drop(stranger);
                    self.wait_in_line(&turn, link, writer).await?
                }
                Err(refusal) => Err(refusal),
            }
        };
        Ok(place.map(|place| *lock(&self.place) = Some(place)))
    }

    /// Waits for a client's place. Meanwhile pings are answered.
    async fn wait_in_line(
        &self,
        turn: &Turn,
        link: &Link,
        writer: &mut FrameWriter,
    ) -> Result<Result<Place, Failure>> {
        let queued = Queued {
            ahead: u32::try_from(turn.ahead).unwrap_or(u32::MAX),
            wait_ms: u32::try_from(self.door.queue_timeout(true).as_millis()).unwrap_or(u32::MAX),
        };
        let is_told = lock(&link.shared).proto.queued(&queued);
        let limit = self.door.queue_timeout(is_told);
        let deadline = tokio::time::Instant::now() + limit;
        let late = || {
            let waited = format!(", and none was given back within {} seconds", limit.as_secs_f32());
            Ok(Err(self.door.busy(&waited)))
        };
        let mut place = std::pin::pin!(turn.place());
        let mut shutdown = self.shutdown.clone();
        loop {
            // What is not read by then never will be.
            let unread = |_| TransportError::Stalled { after: limit };
            timeout_at(deadline, flush(link, writer)).await.map_err(unread)??;
            tokio::select! {
                place = &mut place => return Ok(Ok(place)),
                () = link.wake.notified() => {}
                () = sleep_until(deadline) => return late(),
                () = down(&mut shutdown) => return Ok(Err(shutting_down())),
            }
        }
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

fn shutting_down() -> Failure {
    Failure::new(ErrorCode::ShuttingDown, "the node is shutting down")
}

/// Sends what there is to send. A client that takes no byte of it for too long is given up.
pub(super) async fn flush(link: &Link, writer: &mut FrameWriter) -> Result<()> {
    let (frames, stall_timeout) = {
        let mut shared = lock(&link.shared);
        let frames: Vec<_> = std::iter::from_fn(|| shared.proto.poll_transmit()).collect();
        (frames, shared.proto.stall_timeout())
    };
    if frames.is_empty() {
        return Ok(());
    }
    let stall = Mutex::new(Stall::new(stall_timeout));
    lock(&stall).waits(Instant::now());
    let taken = || {
        let mut stall = lock(&stall);
        stall.taken();
        stall.waits(Instant::now());
    };
    let stalled = stalled(|| lock(&stall).deadline(), |now| lock(&stall).is_over(now));
    tokio::select! {
        biased;
        written = writer.write(&frames, taken) => Ok(written?),
        after = stalled => Err(TransportError::Stalled { after }),
    }
}

/// Comes back when the client has taken nothing of a result for too long, while rows wait for it.
pub(super) async fn stalled_result(link: &Link) -> Stop {
    let deadline = || lock(&link.shared).proto.stall_deadline();
    let after = stalled(deadline, |now| lock(&link.shared).proto.stalled(now)).await;
    let message = format!("the client took no rows of the result for {} seconds", after.as_secs_f32());
    let failure = Failure::new(ErrorCode::Stalled, message);
    failure.hint("take rows without such pauses, or raise --stall-timeout of the node").into()
}

/// Comes back when a clock has run out that may begin again meanwhile, and answers for how long it ran.
async fn stalled(
    deadline: impl Fn() -> Option<Instant>,
    is_over: impl Fn(Instant) -> Option<Duration>,
) -> Duration {
    loop {
        let Some(deadline) = deadline() else { return std::future::pending().await };
        sleep_until(deadline.into()).await;
        if let Some(after) = is_over(Instant::now()) {
            return after;
        }
    }
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
