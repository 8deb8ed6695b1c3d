//! The side that answers.

use std::time::{Duration, Instant};

use lightship_wire::EncodedMessage;
use lightship_wire::cluster::{CAPABILITY_CLUSTER, Task};
use lightship_wire::control::{
    Accepted, BatchEnd, CAPABILITY_QUEUE, ErrorCode, Failure, Hello, Plan, Query, Queued, Stats,
    decode_credit,
};
use lightship_wire::frame::{FLAG_LAST, FLAG_REPLY, Header, Kind};
use lightship_wire::join::{Dealt, Join, Ticket};
use lightship_wire::local::{CAPABILITY_MEETING, Meeting};
use lightship_wire::tuning::{CAPABILITY_ADAPTIVE, CAPABILITY_RESIZE, Progress, Retune, Sizes};

use super::liveness::Liveness;
use super::outbox::{Frame, Inbox, Outbox};
use super::stall::Stall;
use super::{WINDOW_BATCHES_MAX, batch_messages_max};
use crate::{Result, TransportError};

/// A node that would have another one pinged more often is not obeyed.
const PEER_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Something the service has to act on.
#[derive(Debug)]
pub enum ServerEvent {
    /// A client introduces itself: answer with [`Server::welcome`] or [`Server::refuse`].
    Hello(Hello),
    /// A query: answer with [`Server::accept`] or [`Server::fail`].
    Query(Query),
    /// A task of another node of the cluster: to be answered as a query.
    Task(Task),
    /// The client wants no more of the result: stop, and [`Server::fail`] it.
    Cancel,
    /// What the client has measured so far, where the codec is the server's to choose.
    Progress(Progress),
    /// The client asks for other sizes: answer with [`Server::resize`] between two batches.
    Resize(Sizes),
    /// This connection would join a result: [`Server::bring`] its messages and [`Server::leave`] it,
    /// or [`Server::fail`].
    Join(Join),
}

#[derive(Debug)]
enum State {
    Greeting,
    /// The client has introduced itself and waits for an answer.
    Introduced,
    Idle,
    Asked(Plan),
    Sending(Sending),
    /// Asks to join a result of another connection, or brings its messages.
    Joining,
}

#[derive(Debug)]
struct Sending {
    /// Below nothing while more is on its way than the window lets out by now.
    credit: i64,
    window_batches: u32,
    batch_bytes: u32,
    /// The codec is left to this side.
    adaptive: bool,
    /// The open batch is one message larger than a batch may be.
    oversize: bool,
    /// Such a batch has the whole window, and is not home yet.
    oversize_out: bool,
    end: BatchEnd,
    batch_messages: u32,
}

/// The producer's end of a connection.
#[derive(Debug)]
pub struct Server {
    state: State,
    stream: u32,
    outbox: Outbox,
    inbox: Inbox,
    liveness: Liveness,
    ping_interval: Duration,
    /// After how long the client pings a quiet server.
    client_interval: Duration,
    /// What the client can do; once it is welcome, of that what we offer.
    capabilities: u64,
    /// The client has asked for other sizes and was not answered.
    wished: bool,
    /// How long the client may take nothing of a result.
    stall_timeout: Option<Duration>,
    /// Whether it takes what the open result has for it.
    stall: Stall,
}

impl Server {
    /// A connection that has just come in. A quiet client is pinged every `ping_interval`; another node, as often
    /// as it pings itself, where that is more often. A client that takes nothing of a result for `stall_timeout` is to
    /// be told so, see [`Server::stalled`]; another node never is, for it may wait for a client of its own.
    pub fn new(now: Instant, ping_interval: Duration, stall_timeout: Option<Duration>) -> Self {
        Self {
            state: State::Greeting,
            stream: 0,
            outbox: Outbox::default(),
            inbox: Inbox::default(),
            liveness: Liveness::new(now, ping_interval),
            ping_interval,
            client_interval: ping_interval,
            capabilities: 0,
            wished: false,
            stall_timeout,
            stall: Stall::new(None),
        }
    }

    /// Bytes came from the client, be they a whole frame or not.
    pub fn received(&mut self, now: Instant) {
        self.liveness.received(now);
    }

    /// The client waits in line for its welcome. Answers whether it can be told.
    pub fn queued(&mut self, queued: &Queued) -> bool {
        let can_be_told = self.capabilities & CAPABILITY_QUEUE != 0;
        if can_be_told {
            self.outbox.push(Kind::Queued, 0, 0, queued.encode());
        }
        can_be_told
    }

    /// The client may ask now, or come to the meeting if there is one. `token` is empty but in an
    /// answer to a client that has come.
    pub fn welcome(&mut self, token: String, capabilities: u64, meeting: Option<&Meeting>) {
        let capabilities = CAPABILITY_ADAPTIVE | capabilities | meeting.map_or(0, |_| CAPABILITY_MEETING);
        self.capabilities &= capabilities;
        if self.capabilities & CAPABILITY_CLUSTER != 0 {
            // Nodes lose each other at the same time: none does work for one that has given it up.
            let interval = self.client_interval.max(PEER_INTERVAL_MIN).min(self.ping_interval);
            self.liveness.set_interval(interval);
        }
        let hello = Hello {
            agent: concat!("lightship/", env!("CARGO_PKG_VERSION")).into(),
            token,
            capabilities,
            ping_interval_ms: u32::try_from(self.ping_interval.as_millis()).unwrap_or(u32::MAX),
        };
        if self.capabilities & CAPABILITY_CLUSTER != 0 {
            self.stall_timeout = None;
        }
        self.outbox.push(Kind::Hello, 0, 0, hello.encode());
        if let Some(meeting) = meeting {
            self.outbox.push(Kind::Meeting, 0, 0, meeting.encode());
        }
        self.state = State::Idle;
    }

    /// The whole connection has failed; it is closed after this.
    pub fn refuse(&mut self, failure: &Failure) {
        self.outbox.push(Kind::Error, 0, 0, failure.encode());
    }

    /// The query has an answer of these columns.
    ///
    /// # Errors
    /// When the schema can't be written.
    pub fn accept(&mut self, accepted: &Accepted) -> Result<()> {
        let State::Asked(plan) = &self.state else { return Ok(()) };
        let (window_batches, batch_bytes) = (plan.window_batches, plan.batch_bytes);
        self.stall = Stall::new(self.stall_timeout);
        let adaptive = plan.codec.is_none();
        self.outbox.push(Kind::Schema, 0, self.stream, accepted.encode()?);
        self.state = State::Sending(Sending {
            credit: window_batches.into(),
            window_batches,
            batch_bytes,
            adaptive,
            oversize: false,
            oversize_out: false,
            end: BatchEnd::default(),
            batch_messages: 0,
        });
        Ok(())
    }

    /// Lets other connections join the result. Only where its plan asks for that, and before it is accepted.
    pub fn ticket(&mut self, ticket: &Ticket) {
        debug_assert!(matches!(&self.state, State::Asked(plan) if plan.streams > 1));
        self.outbox.push(Kind::Ticket, 0, self.stream, ticket.encode());
    }

    /// How long the client may take nothing of what is sent; nothing where it may do so for ever. A connection that
    /// has joined a result may: the one that asked knows how far the client has come.
    pub fn stall_timeout(&self) -> Option<Duration> {
        self.stall_timeout.filter(|_| !matches!(self.state, State::Joining))
    }

    /// Rows wait for the client, for credit or for room.
    pub fn waits(&mut self, now: Instant) {
        self.stall.waits(now);
    }

    /// The client took rows: there is room again. That credit came is known without this.
    pub fn taken(&mut self) {
        self.stall.taken();
    }

    /// When [`Server::stalled`] may have something to say.
    pub fn stall_deadline(&self) -> Option<Instant> {
        self.stall.deadline()
    }

    /// For how long the client has taken nothing of what waits for it, where that is too long: [`Server::fail`] it.
    pub fn stalled(&mut self, now: Instant) -> Option<Duration> {
        self.stall.is_over(now)
    }

    /// Whether a message may be sent now.
    pub fn has_credit(&self) -> bool {
        matches!(&self.state, State::Sending(sending) if sending.credit > 0)
    }

    /// Whether this message may be sent now: one larger than a batch takes the
    /// whole window, so that the consumer never holds two of them.
    pub fn has_credit_for(&self, message: &EncodedMessage) -> bool {
        match &self.state {
            State::Sending(sending) if sending.is_oversize(message) => {
                sending.credit == i64::from(sending.window_batches)
            }
            State::Sending(sending) => sending.credit > 0,
            _ => false,
        }
    }

    /// Sends rows; needs credit. Returns whether the batch must end, having as many messages as one may.
    pub fn message(&mut self, message: EncodedMessage) -> bool {
        let State::Sending(sending) = &mut self.state else { return false };
        let full = sending.count(&message);
        self.outbox.message(self.stream, message);
        full
    }

    /// As [`Server::message`], but the rows go by a joined connection: see [`Server::bring`].
    pub fn deal(&mut self, connection: u32, message: &EncodedMessage) -> bool {
        let State::Sending(sending) = &mut self.state else { return false };
        let full = sending.count(message);
        let (bytes, rows, body_bytes) = (message.payload_bytes(), message.rows(), message.body_bytes());
        self.outbox.dealt(self.stream, &Dealt { connection, bytes, rows, body_bytes });
        full
    }

    /// On a connection that has joined a result: a message of it.
    pub fn bring(&mut self, message: EncodedMessage) {
        if let State::Joining = self.state {
            self.outbox.message(self.stream, message);
        }
    }

    /// On a connection that has joined a result: it has brought all it should.
    pub fn leave(&mut self) {
        if let State::Joining = self.state {
            self.close_stream();
        }
    }

    /// Says how the messages that follow are encoded. Only where the plan leaves that to
    /// this side, and between batches.
    pub fn retune(&mut self, retune: &Retune) {
        if let State::Sending(sending) = &self.state
            && sending.adaptive
        {
            debug_assert!(sending.batch_messages == 0, "a retune within a batch");
            self.outbox.push(Kind::Retune, 0, self.stream, retune.encode());
        }
    }

    /// Whether sizes may change now: not while a message larger than a batch is with the consumer, for there
    /// is no room beside it.
    pub fn may_resize(&self) -> bool {
        matches!(&self.state, State::Sending(sending) if !sending.oversize_out)
    }

    /// Says that what follows has these sizes. Only where the client has asked for them or more, between
    /// batches, and when they may change.
    pub fn resize(&mut self, sizes: &Sizes) {
        self.wished = false;
        if let State::Sending(sending) = &mut self.state {
            debug_assert!(sending.batch_messages == 0 && !sending.oversize_out, "a resize out of place");
            sending.credit += i64::from(sizes.window_batches) - i64::from(sending.window_batches);
            sending.window_batches = sizes.window_batches;
            sending.batch_bytes = sizes.batch_bytes;
            self.outbox.push(Kind::Resize, 0, self.stream, sizes.encode());
        }
    }

    /// Ends the batch, if it has messages, at the cost of one credit.
    pub fn end_batch(&mut self) {
        if let State::Sending(sending) = &mut self.state
            && sending.batch_messages > 0
        {
            let taken = if sending.oversize { sending.window_batches } else { 1 };
            sending.credit -= i64::from(taken);
            sending.oversize_out |= std::mem::take(&mut sending.oversize);
            sending.batch_messages = 0;
            self.outbox.push(Kind::BatchEnd, 0, self.stream, sending.end.encode());
        }
    }

    /// Ends the result, and with it the batch that is open.
    pub fn finish(&mut self, stats: &Stats) {
        if let State::Sending(sending) = &self.state {
            self.outbox.push(Kind::Stats, 0, self.stream, stats.encode());
            self.outbox.push(Kind::BatchEnd, FLAG_LAST, self.stream, sending.end.encode());
            self.close_stream();
        }
    }

    /// Ends the stream with an error.
    pub fn fail(&mut self, failure: &Failure) {
        if matches!(self.state, State::Asked(_) | State::Sending(_) | State::Joining) {
            self.outbox.push(Kind::Error, 0, self.stream, failure.encode());
            self.close_stream();
        }
    }

    fn close_stream(&mut self) {
        self.outbox.forget(self.stream);
        self.state = State::Idle;
    }

    /// Whether no query is being answered.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle | State::Greeting | State::Introduced)
    }

    /// Whether the client has introduced itself and was welcomed.
    pub fn is_welcome(&self) -> bool {
        !matches!(self.state, State::Greeting | State::Introduced)
    }

    /// Whether the client is welcome as a node of the cluster.
    fn is_peer(&self) -> bool {
        self.is_welcome() && self.capabilities & CAPABILITY_CLUSTER != 0
    }

    /// The largest payload to accept for a frame of this kind: clients send no rows.
    pub fn payload_bytes_max(&self, kind: Kind) -> u32 {
        match kind {
            Kind::Message | Kind::Schema => 0,
            // A stranger has nothing else to say.
            kind if !self.is_welcome() && kind != Kind::Hello => 0,
            Kind::Task if !self.is_peer() => 0,
            kind => kind.payload_bytes_max(0),
        }
    }

    /// Takes a frame from the client, its checksums already verified.
    ///
    /// # Errors
    /// When it does not belong here, or can't be read. The connection is then of no more use.
    pub fn handle(&mut self, now: Instant, header: &Header, payload: &[u8]) -> Result<Option<ServerEvent>> {
        self.liveness.received(now);
        // What is said of a result may cross its end on the way.
        let late = matches!(header.kind, Kind::Credit | Kind::Progress | Kind::Resize | Kind::Cancel)
            && header.stream == self.stream
            && matches!(self.state, State::Idle);
        if matches!(header.kind, Kind::Query | Kind::Task | Kind::Join) && matches!(self.state, State::Idle) {
            if header.stream != self.stream.wrapping_add(1) || header.stream == 0 {
                return Err(TransportError::Protocol(format!("stream {} out of order", header.stream)));
            }
            self.stream = header.stream;
            self.inbox.open(self.stream);
        }
        self.inbox.accept(header)?;
        if late {
            return Ok(None);
        }
        match (header.kind, &mut self.state) {
            (Kind::Ping, _) => {
                if header.flags & FLAG_REPLY == 0 {
                    self.outbox.pong();
                }
                Ok(None)
            }
            // Whoever has lent the places has heard of it already.
            (Kind::Release, _) => Ok(None),
            (Kind::Hello, state @ State::Greeting) => {
                let hello = Hello::decode(payload)?;
                self.capabilities = hello.capabilities;
                self.client_interval = Duration::from_millis(hello.ping_interval_ms.into());
                *state = State::Introduced;
                Ok(Some(ServerEvent::Hello(hello)))
            }
            (Kind::Query, state @ State::Idle) => {
                let mut query = Query::decode(payload)?;
                query.plan.window_batches = query.plan.window_batches.min(WINDOW_BATCHES_MAX);
                *state = State::Asked(query.plan);
                self.wished = false;
                Ok(Some(ServerEvent::Query(query)))
            }
            (Kind::Task, state @ State::Idle) if self.capabilities & CAPABILITY_CLUSTER != 0 => {
                let mut task = Task::decode(payload)?;
                task.plan.window_batches = task.plan.window_batches.min(WINDOW_BATCHES_MAX);
                *state = State::Asked(task.plan);
                self.wished = false;
                Ok(Some(ServerEvent::Task(task)))
            }
            (Kind::Join, state @ State::Idle) => {
                let join = Join::decode(payload)?;
                self.stall = Stall::new(None);
                *state = State::Joining;
                Ok(Some(ServerEvent::Join(join)))
            }
            (Kind::Credit, State::Sending(sending)) => {
                let given = decode_credit(payload)?;
                let credit = sending.credit + i64::from(given);
                sending.credit = credit.min(sending.window_batches.into());
                if given > 0 {
                    self.stall.taken();
                }
                sending.oversize_out &= sending.credit < i64::from(sending.window_batches);
                Ok(None)
            }
            (Kind::Progress, State::Sending(sending)) if sending.adaptive => {
                Ok(Some(ServerEvent::Progress(Progress::decode(payload)?)))
            }
            (Kind::Resize, State::Asked(_) | State::Sending(_))
                if self.capabilities & CAPABILITY_RESIZE != 0 && !self.wished =>
            {
                self.wished = true;
                let mut sizes = Sizes::decode(payload)?;
                sizes.window_batches = sizes.window_batches.min(WINDOW_BATCHES_MAX);
                Ok(Some(ServerEvent::Resize(sizes)))
            }
            (Kind::Cancel, State::Asked(_) | State::Sending(_)) => Ok(Some(ServerEvent::Cancel)),
            (Kind::Error, _) => Err(Failure::decode(payload)?.into()),
            (kind, _) => Err(TransportError::Protocol(format!("an unexpected {kind:?} frame"))),
        }
    }

    /// The failure that a client is told of when its frames made no sense.
    pub fn protocol_failure(error: &TransportError) -> Failure {
        Failure::new(ErrorCode::Protocol, error.to_string())
    }

    /// The next frame to send.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        self.outbox.pop()
    }

    /// Bytes of frames that wait to be sent.
    pub fn queued_bytes(&self) -> usize {
        self.outbox.bytes()
    }

    /// When [`Server::wake`] wants to be called.
    pub fn deadline(&self) -> Instant {
        self.liveness.deadline()
    }

    /// Does what time asks for.
    ///
    /// # Errors
    /// [`TransportError::Silent`] when the client must be given up.
    pub fn wake(&mut self, now: Instant) -> Result<()> {
        if self.liveness.wake(now)? {
            self.outbox.push(Kind::Ping, 0, 0, Vec::new());
        }
        Ok(())
    }
}

impl Sending {
    /// Counts a message that is sent now. Returns whether the batch must end.
    fn count(&mut self, message: &EncodedMessage) -> bool {
        debug_assert!(self.credit > 0, "a message without credit");
        self.oversize = self.is_oversize(message);
        self.end.rows += u64::from(message.rows());
        self.end.messages += 1;
        self.batch_messages += 1;
        self.batch_messages == batch_messages_max(self.batch_bytes)
    }

    fn is_oversize(&self, message: &EncodedMessage) -> bool {
        message.body_bytes().max(message.payload_bytes()) > self.batch_bytes
    }
}
