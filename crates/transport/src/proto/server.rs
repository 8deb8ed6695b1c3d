//! The server's state machine.

mod sending;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lightship_wire::EncodedMessage;
use lightship_wire::cluster::{CAPABILITY_CLUSTER, CAPABILITY_RANGE_FILES, Recipient, Task};
use lightship_wire::control::{
    Accepted, BatchEnd, ErrorCode, Failure, Hello, Plan, Query, Queued, Stats, decode_credit,
};
use lightship_wire::frame::{FLAG_LAST, FLAG_REPLY, FrameHeader, FrameKind};
use lightship_wire::join::{CAPABILITY_JOIN, Join, Placeholder, StripeOffer};
use lightship_wire::shm::{CAPABILITY_RENDEZVOUS, CAPABILITY_SEGMENTS, Rendezvous};
use lightship_wire::statement::{CAPABILITY_STATEMENTS, Statement};
use lightship_wire::tuning::{CAPABILITY_RESIZE, Progress, Retune, Sizes};

use self::sending::Sending;
use super::liveness::Liveness;
use super::outbox::{Frame, Outbox, SequenceCheck};
use super::stall::Stall;
use super::{STREAMS_MAX, WINDOW_BATCHES_MAX};
use crate::{Result, TransportError};

/// The shortest ping interval that another node can request.
const PEER_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// An event that the service has to act on. It concerns a stream or, on stream 0, the connection.
#[derive(Debug)]
pub enum ServerEvent {
    /// A client introduces itself: answer with [`Server::welcome`] or [`Server::refuse`].
    Hello(Hello),
    /// A query: answer with [`Server::accept`] or [`Server::fail`].
    Query(Query),
    /// A statement to execute or to describe: answer it like a query.
    Statement(Statement),
    /// A task, of a client only about range files: answer it like a query.
    Task(Task),
    /// The client cancels the result: stop, and [`Server::fail`] it.
    Cancel,
    /// What the client has measured so far. Sent only if the server chooses the codec.
    Progress(Progress),
    /// The client requests other sizes: answer with [`Server::resize`] between two batches.
    Resize(Sizes),
    /// The client wants this stream to join a result: send messages with [`Server::joined_message`] and end with
    /// [`Server::finish_joined`], or [`Server::fail`].
    Join(Join),
}

/// The phase of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Greeting,
    /// The client's hello has arrived and is not answered yet.
    Introduced,
    Welcome,
}

#[derive(Debug)]
enum State {
    Requested(Plan),
    Sending(Sending),
    /// Requests to join a result, or carries its messages.
    Joining,
}

#[derive(Debug)]
struct Stream {
    state: State,
    /// The client has requested other sizes and was not answered yet.
    is_resizing: bool,
    /// How long rows have waited for the client.
    stall: Stall,
}

/// The producer's end of a connection.
#[derive(Debug)]
pub struct Server {
    phase: Phase,
    last_stream: u32,
    streams: HashMap<u32, Stream>,
    outbox: Outbox,
    sequences: SequenceCheck,
    liveness: Liveness,
    ping_interval: Duration,
    /// The client's own ping interval.
    client_interval: Duration,
    /// The client's capabilities; after the welcome, those that both sides have.
    capabilities: u64,
    /// How long a result may wait for the client.
    stall_timeout: Option<Duration>,
}

impl Server {
    /// A connection that was just accepted. A quiet client is pinged every `ping_interval`; another node
    /// at its own ping interval, if that is shorter. [`Server::stalled`] reports a client that takes nothing
    /// of a result for `stall_timeout`. It never reports another node, which may wait for its own client.
    pub fn new(now: Instant, ping_interval: Duration, stall_timeout: Option<Duration>) -> Self {
        Self {
            phase: Phase::Greeting,
            last_stream: 0,
            streams: HashMap::new(),
            outbox: Outbox::default(),
            sequences: SequenceCheck::default(),
            liveness: Liveness::new(now, ping_interval),
            ping_interval,
            client_interval: ping_interval,
            capabilities: 0,
            stall_timeout,
        }
    }

    /// Notes that bytes arrived from the client.
    pub fn received(&mut self, now: Instant) {
        self.liveness.received(now);
    }

    /// Tells the client that it waits in the queue.
    pub fn queued(&mut self, queued: &Queued) {
        self.outbox.push(FrameKind::Queued, 0, 0, queued.encode());
    }

    /// Welcomes the client: it may now send queries, or connect to the rendezvous if there is one. `token`
    /// is empty except for a client that has come to the rendezvous.
    pub fn welcome(&mut self, token: String, capabilities: u64, rendezvous: Option<&Rendezvous>) {
        let capabilities = capabilities | rendezvous.map_or(0, |_| CAPABILITY_RENDEZVOUS);
        self.capabilities &= capabilities;
        if self.capabilities & CAPABILITY_CLUSTER != 0 {
            // Both nodes give up at the same time, so that neither works for one that has given it up.
            let interval = self.client_interval.max(PEER_INTERVAL_MIN).min(self.ping_interval);
            self.liveness.set_interval(interval);
            self.stall_timeout = None;
        }
        self.outbox.keeps_whole = self.capabilities & CAPABILITY_SEGMENTS != 0;
        let hello = Hello {
            agent: concat!("lightship/", env!("CARGO_PKG_VERSION")).into(),
            token,
            capabilities,
            ping_interval_ms: u32::try_from(self.ping_interval.as_millis()).unwrap_or(u32::MAX),
        };
        self.outbox.push(FrameKind::Hello, 0, 0, hello.encode());
        if let Some(rendezvous) = rendezvous {
            self.outbox.push(FrameKind::Rendezvous, 0, 0, rendezvous.encode());
        }
        self.phase = Phase::Welcome;
    }

    /// Fails the whole connection. The caller closes it after sending this.
    pub fn refuse(&mut self, failure: &Failure) {
        self.outbox.push(FrameKind::Error, 0, 0, failure.encode_for(self.capabilities));
    }

    /// Accepts the query, with the columns of its result.
    ///
    /// # Errors
    /// If the schema can't be encoded.
    pub fn accept(&mut self, stream: u32, accepted: &Accepted) -> Result<()> {
        let Some(Stream { state, stall, .. }) = self.streams.get_mut(&stream) else { return Ok(()) };
        let State::Requested(plan) = state else { return Ok(()) };
        self.outbox.push(FrameKind::Schema, 0, stream, accepted.encode()?);
        *stall = Stall::new(self.stall_timeout);
        *state = State::Sending(Sending::new(plan));
        Ok(())
    }

    /// Offers that other connections join the result. Call it before [`Server::accept`], and only if the plan
    /// asks for it.
    pub fn offer_stripes(&mut self, stream: u32, offer: &StripeOffer) {
        self.outbox.push(FrameKind::StripeOffer, 0, stream, offer.encode());
    }

    /// As [`Server::stall_timeout`], but also for a connection that only joins results.
    pub fn stall_timeout_any(&self) -> Option<Duration> {
        self.stall_timeout
    }

    /// Whether all open streams join results of other connections.
    pub fn only_joins(&self) -> bool {
        let joins = |stream: &Stream| matches!(stream.state, State::Joining);
        !self.streams.is_empty() && self.streams.values().all(joins)
    }

    /// How long the client may read nothing; `None` for no limit. There is no limit for a connection
    /// that only joins results: the connection of the query knows how far the client is.
    pub fn stall_timeout(&self) -> Option<Duration> {
        self.stall_timeout.filter(|_| !self.only_joins())
    }

    /// Notes that rows of a result wait for credit or room.
    pub fn waits(&mut self, stream: u32, now: Instant) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.stall.waits(now);
        }
    }

    /// Notes that the client took rows, so that there is room again. Credit needs no call.
    pub fn taken(&mut self, stream: u32) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.stall.taken();
        }
    }

    /// The next time at which to call [`Server::stalled`].
    pub fn stall_deadline(&self, stream: u32) -> Option<Instant> {
        self.streams.get(&stream)?.stall.deadline()
    }

    /// How long the client has taken no rows, if that is too long. The caller then calls [`Server::fail`].
    pub fn stalled(&mut self, stream: u32, now: Instant) -> Option<Duration> {
        self.streams.get_mut(&stream)?.stall.is_over(now)
    }

    fn sending(&self, stream: u32) -> Option<&Sending> {
        match &self.streams.get(&stream)?.state {
            State::Sending(sending) => Some(sending),
            _ => None,
        }
    }

    fn sending_mut(&mut self, stream: u32) -> Option<&mut Sending> {
        match &mut self.streams.get_mut(&stream)?.state {
            State::Sending(sending) => Some(sending),
            _ => None,
        }
    }

    /// Whether a message may be sent now.
    pub fn has_credit(&self, stream: u32) -> bool {
        self.sending(stream).is_some_and(Sending::has_credit)
    }

    /// Whether this message may be sent now. A message larger than a batch takes the whole window, so that
    /// the consumer never holds two of them.
    pub fn has_credit_for(&self, stream: u32, message: &EncodedMessage) -> bool {
        self.sending(stream).is_some_and(|sending| sending.has_credit_for(message))
    }

    /// Sends rows; needs credit. Returns whether the batch has the maximum number of messages and must end.
    pub fn message(&mut self, stream: u32, message: EncodedMessage) -> bool {
        let Some(sending) = self.sending_mut(stream) else { return false };
        let is_full = sending.count(&message);
        self.outbox.message(stream, message);
        is_full
    }

    /// As [`Server::message`], but the rows go over a joined connection: see [`Server::joined_message`].
    pub fn placeholder(&mut self, stream: u32, connection: u32, message: &EncodedMessage) -> bool {
        let Some(sending) = self.sending_mut(stream) else { return false };
        let is_full = sending.count(message);
        let (bytes, rows, body_bytes) = (message.payload_bytes(), message.rows(), message.body_bytes());
        self.outbox.placeholder(stream, &Placeholder { connection, bytes, rows, body_bytes });
        is_full
    }

    /// Sends a message on a stream that has joined its result.
    pub fn joined_message(&mut self, stream: u32, message: EncodedMessage) {
        if let Some(Stream { state: State::Joining, .. }) = self.streams.get(&stream) {
            self.outbox.message(stream, message);
        }
    }

    /// Ends a stream that has joined a result.
    pub fn finish_joined(&mut self, stream: u32) {
        if let Some(Stream { state: State::Joining, .. }) = self.streams.get(&stream) {
            self.outbox.push(FrameKind::BatchEnd, FLAG_LAST, stream, BatchEnd::default().encode());
            self.close(stream);
        }
    }

    /// Announces the codec of the messages that follow. Only between batches, and only if the plan leaves
    /// the codec to the server.
    pub fn retune(&mut self, stream: u32, retune: &Retune) {
        if let Some(sending) = self.sending(stream)
            && sending.is_adaptive()
        {
            debug_assert!(sending.is_between_batches(), "a retune within a batch");
            self.outbox.push(FrameKind::Retune, 0, stream, retune.encode());
        }
    }

    /// Whether sizes may change now. They may not while a message larger than a batch is outstanding,
    /// because it takes the whole window.
    pub fn may_resize(&self, stream: u32) -> bool {
        self.sending(stream).is_some_and(Sending::may_resize)
    }

    /// Announces the sizes of what follows. Only between batches, if [`Server::may_resize`], and not more
    /// than the client requested.
    pub fn resize(&mut self, stream: u32, sizes: &Sizes) {
        let Some(found) = self.streams.get_mut(&stream) else { return };
        found.is_resizing = false;
        if let State::Sending(sending) = &mut found.state {
            sending.resize(sizes);
            self.outbox.push(FrameKind::Resize, 0, stream, sizes.encode());
        }
    }

    /// Ends the batch if it has messages. This takes one credit.
    pub fn end_batch(&mut self, stream: u32) {
        if let Some(end) = self.sending_mut(stream).and_then(Sending::end_batch) {
            self.outbox.push(FrameKind::BatchEnd, 0, stream, end.encode());
        }
    }

    /// Ends the result and its open batch.
    pub fn finish(&mut self, stream: u32, stats: &Stats) {
        let Some(end) = self.sending(stream).map(Sending::end) else { return };
        self.outbox.push(FrameKind::Stats, 0, stream, stats.encode());
        self.outbox.push(FrameKind::BatchEnd, FLAG_LAST, stream, end.encode());
        self.close(stream);
    }

    /// Ends the stream with an error.
    pub fn fail(&mut self, stream: u32, failure: &Failure) {
        if self.streams.contains_key(&stream) {
            self.outbox.push(FrameKind::Error, 0, stream, failure.encode_for(self.capabilities));
            self.close(stream);
        }
    }

    fn close(&mut self, stream: u32) {
        self.streams.remove(&stream);
        self.sequences.close(stream);
        self.outbox.close(stream);
    }

    /// Whether no stream is open.
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Whether the client was welcomed.
    pub fn is_welcome(&self) -> bool {
        self.phase == Phase::Welcome
    }

    /// Whether the client was welcomed as a node of the cluster.
    pub fn is_peer(&self) -> bool {
        self.is_welcome() && self.capabilities & CAPABILITY_CLUSTER != 0
    }

    /// The largest payload to accept for a frame of this kind. Clients send no rows.
    pub fn payload_bytes_max(&self, kind: FrameKind) -> u32 {
        match kind {
            FrameKind::Message | FrameKind::Schema => 0,
            // Before the welcome, only a hello has a payload.
            kind if !self.is_welcome() && kind != FrameKind::Hello => 0,
            FrameKind::Task if self.capabilities & (CAPABILITY_CLUSTER | CAPABILITY_RANGE_FILES) == 0 => 0,
            FrameKind::Statement if self.capabilities & CAPABILITY_STATEMENTS == 0 => 0,
            kind => kind.payload_bytes_max(0),
        }
    }

    /// Handles a frame from the client, whose checksums the caller has verified. Returns what the service
    /// has to act on, and its stream.
    ///
    /// # Errors
    /// If the frame is not allowed now or is malformed. The connection must then be closed.
    pub fn handle(
        &mut self,
        now: Instant,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Option<(u32, ServerEvent)>> {
        self.liveness.received(now);
        let (kind, stream) = (header.kind, header.stream);
        let opens =
            matches!(kind, FrameKind::Query | FrameKind::Statement | FrameKind::Task | FrameKind::Join);
        if self.is_welcome() && opens {
            self.open(stream)?;
        }
        // Such a frame may cross the end of its result on the way.
        let is_about_a_result =
            matches!(kind, FrameKind::Credit | FrameKind::Progress | FrameKind::Resize | FrameKind::Cancel);
        let has_ended = (1..=self.last_stream).contains(&stream) && !self.streams.contains_key(&stream);
        if is_about_a_result && has_ended {
            return Ok(None);
        }
        self.sequences.accept(header)?;
        let event = match stream {
            0 => self.handle_connection(header, payload)?,
            stream => self.handle_stream(stream, kind, payload)?,
        };
        Ok(event.map(|event| (stream, event)))
    }

    /// Opens a stream.
    fn open(&mut self, stream: u32) -> Result<()> {
        if self.last_stream.checked_add(1) != Some(stream) {
            return Err(TransportError::Protocol(format!("stream {stream} out of order")));
        }
        // Count streams whose last frames are not sent yet: a client that reads nothing must not fill the queue.
        if self.outbox.streams() >= STREAMS_MAX {
            return Err(TransportError::Protocol(format!("more than {STREAMS_MAX} results at once")));
        }
        self.last_stream = stream;
        self.sequences.open(stream);
        self.outbox.open(stream);
        let stall = Stall::new(None);
        // `handle_stream` sets the state.
        self.streams.insert(stream, Stream { state: State::Joining, is_resizing: false, stall });
        Ok(())
    }

    fn handle_connection(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<Option<ServerEvent>> {
        match (header.kind, self.phase) {
            (FrameKind::Ping, _) => {
                if header.flags & FLAG_REPLY == 0 {
                    self.outbox.pong();
                }
                Ok(None)
            }
            // The frame reader has already passed it to the lender.
            (FrameKind::Release, _) => Ok(None),
            (FrameKind::Hello, Phase::Greeting) => {
                let hello = Hello::decode(payload)?;
                self.capabilities = hello.capabilities;
                self.client_interval = Duration::from_millis(hello.ping_interval_ms.into());
                self.phase = Phase::Introduced;
                Ok(Some(ServerEvent::Hello(hello)))
            }
            (FrameKind::Error, _) => Err(Failure::decode(payload)?.into()),
            (kind, _) => Err(unexpected(kind)),
        }
    }

    fn handle_stream(&mut self, stream: u32, kind: FrameKind, payload: &[u8]) -> Result<Option<ServerEvent>> {
        let can_resize = self.capabilities & CAPABILITY_RESIZE != 0;
        let can_join = self.capabilities & CAPABILITY_JOIN != 0;
        let has_range_files = self.capabilities & CAPABILITY_RANGE_FILES != 0;
        let takes_statements = self.capabilities & CAPABILITY_STATEMENTS != 0;
        let is_peer = self.is_peer();
        let Some(Stream { state, is_resizing, stall }) = self.streams.get_mut(&stream) else {
            return Err(unexpected(kind));
        };
        match (kind, state) {
            (FrameKind::Query, state) => {
                let mut query = Query::decode(payload)?;
                query.plan = granted(query.plan, can_join);
                *state = State::Requested(query.plan);
                Ok(Some(ServerEvent::Query(query)))
            }
            (FrameKind::Statement, state) if takes_statements => {
                let mut statement = Statement::decode(payload)?;
                statement.plan = granted(statement.plan, can_join);
                *state = State::Requested(statement.plan);
                Ok(Some(ServerEvent::Statement(statement)))
            }
            (FrameKind::Task, state) if is_peer || has_range_files => {
                let mut task = Task::decode(payload)?;
                let is_taken = match task.recipient {
                    Recipient::Engine => is_peer,
                    Recipient::RangeFiles => has_range_files,
                };
                if !is_taken {
                    return Err(unexpected(kind));
                }
                task.plan = granted(task.plan, false);
                *state = State::Requested(task.plan);
                Ok(Some(ServerEvent::Task(task)))
            }
            (FrameKind::Join, _) if can_join => Ok(Some(ServerEvent::Join(Join::decode(payload)?))),
            (FrameKind::Credit, State::Sending(sending)) => {
                let given = decode_credit(payload)?;
                sending.give(given);
                if given > 0 {
                    stall.taken();
                }
                Ok(None)
            }
            (FrameKind::Progress, State::Sending(sending)) if sending.is_adaptive() => {
                Ok(Some(ServerEvent::Progress(Progress::decode(payload)?)))
            }
            (FrameKind::Resize, State::Requested(_) | State::Sending(_)) if can_resize && !*is_resizing => {
                *is_resizing = true;
                let mut sizes = Sizes::decode(payload)?;
                sizes.window_batches = sizes.window_batches.min(WINDOW_BATCHES_MAX);
                Ok(Some(ServerEvent::Resize(sizes)))
            }
            (FrameKind::Cancel, _) => Ok(Some(ServerEvent::Cancel)),
            (kind, _) => Err(unexpected(kind)),
        }
    }

    /// The failure to send to a client that broke the protocol.
    pub fn protocol_failure(error: &TransportError) -> Failure {
        Failure::new(ErrorCode::Protocol, error.to_string())
    }

    /// The next frame to send.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        self.outbox.pop()
    }

    /// Whether frames of a stream wait to be sent. Stream 0 is the connection itself.
    pub fn has_frames(&self, stream: u32) -> bool {
        self.outbox.has(stream)
    }

    /// Bytes of a stream's frames that wait to be sent.
    pub fn queued_bytes(&self, stream: u32) -> usize {
        self.outbox.bytes(stream)
    }

    /// Whether several streams are open. Then none of them may occupy the connection for long.
    pub fn is_shared(&self) -> bool {
        self.outbox.is_shared()
    }

    /// Sends messages whole even while several streams are open: the client is on this host, where none waits
    /// for long.
    pub fn keep_whole(&mut self) {
        self.outbox.keeps_whole = true;
    }

    /// The next time at which to call [`Server::wake`].
    pub fn deadline(&self) -> Instant {
        self.liveness.deadline()
    }

    /// Sends a ping if one is due.
    ///
    /// # Errors
    /// [`TransportError::Silent`] if the client has been silent for too long.
    pub fn wake(&mut self, now: Instant) -> Result<()> {
        if self.liveness.wake(now)? {
            self.outbox.push(FrameKind::Ping, 0, 0, Vec::new());
        }
        Ok(())
    }
}

/// The plan as far as the server grants it.
fn granted(plan: Plan, can_join: bool) -> Plan {
    let streams = if can_join { plan.streams } else { 1 };
    Plan { window_batches: plan.window_batches.min(WINDOW_BATCHES_MAX), streams, ..plan }
}

fn unexpected(kind: FrameKind) -> TransportError {
    TransportError::Protocol(format!("an unexpected {kind:?} frame"))
}
