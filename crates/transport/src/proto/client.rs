//! The client's state machine.

mod receiving;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use lightship_wire::cluster::{CAPABILITY_CLUSTER, CAPABILITY_RANGE_FILES, Recipient, Task};
use lightship_wire::control::{Accepted, Failure, Hello, Plan, Query, Queued, Stats, encode_credit};
use lightship_wire::frame::{FLAG_LAST, FLAG_PLACEHOLDER, FLAG_REPLY, FrameHeader, FrameKind};
use lightship_wire::join::{CAPABILITY_JOIN, Join, Placeholder, StripeOffer};
use lightship_wire::shm::{CAPABILITY_RENDEZVOUS, Loan, Rendezvous, encode_release};
use lightship_wire::statement::{Action, CAPABILITY_STATEMENTS, Statement};
use lightship_wire::tuning::{CAPABILITY_RESIZE, Progress, Retune, Sizes};
use lightship_wire::{WireError, peek};

pub use self::receiving::{CodecTotals, Resized, Retuned, Totals};
use self::receiving::{Receiving, sizes_of};
use super::STREAMS_MAX;
use super::liveness::Liveness;
use super::message::{Message, PendingMessage};
use super::outbox::{Frame, Outbox, SequenceCheck};
use crate::{Result, TransportError};

/// An event for the application. It concerns a stream or, on stream 0, the connection.
#[derive(Debug)]
pub enum ClientEvent {
    /// All slots of the server are taken: this client waits in the queue.
    Queued(Queued),
    /// The server accepts queries.
    Ready,
    /// The query was accepted.
    Accepted {
        /// Columns of the result.
        schema: SchemaRef,
        /// The expected number of rows, if known.
        rows_estimate: Option<u64>,
    },
    /// Other connections may join the result of the query.
    StripeOffer(StripeOffer),
    /// Rows to decode.
    Message(Message),
    /// Rows whose payload comes over a joined connection.
    Placeholder(PendingMessage),
    /// The payload of a message, on a stream that has joined its result.
    Payload(Buffer),
    /// A batch is complete: once the application has taken its rows, it calls
    /// [`Client::consumed`] with the credit that the batch took.
    BatchEnd {
        /// One, or the whole window for a message larger than a batch.
        credit: u32,
    },
    /// The result is complete and its counts match the producer's; or a stream that has joined a result has ended.
    Finished(Totals),
    /// The query has failed. The connection can still be used.
    Failed(Failure),
}

/// The phase of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Hello sent, none received.
    Greeting,
    /// Hello received; it announced a rendezvous.
    Welcomed,
    /// Queries may be sent.
    Ready,
}

#[derive(Debug)]
enum State {
    /// Query sent, no answer yet.
    Requested {
        plan: Plan,
        /// Connections that may join.
        joined: u32,
    },
    /// Joined a result.
    Joined {
        message_bytes_max: u32,
    },
    Receiving(Box<Receiving>),
}

#[derive(Debug)]
struct Stream {
    state: State,
    /// The application has cancelled it: what still arrives is dropped, and causes no events.
    is_cancelled: bool,
}

/// The consumer's end of a connection.
#[derive(Debug)]
pub struct Client {
    phase: Phase,
    /// The server has said so, which extends the time for its hello, and does not say it again.
    is_queued: bool,
    capabilities: u64,
    server: Hello,
    rendezvous: Option<Rendezvous>,
    last_stream: u32,
    streams: HashMap<u32, Stream>,
    outbox: Outbox,
    sequences: SequenceCheck,
    liveness: Liveness,
}

impl Client {
    /// A connection that was just opened, by a client with these capabilities. A quiet server is pinged
    /// every `ping_interval`.
    pub fn new(now: Instant, token: String, capabilities: u64, ping_interval: Duration) -> Self {
        let mut outbox = Outbox::default();
        let hello = Hello {
            agent: concat!("lightship/", env!("CARGO_PKG_VERSION")).into(),
            token,
            capabilities,
            ping_interval_ms: u32::try_from(ping_interval.as_millis()).unwrap_or(u32::MAX),
        };
        outbox.push(FrameKind::Hello, 0, 0, hello.encode());
        Self {
            phase: Phase::Greeting,
            is_queued: false,
            capabilities,
            server: Hello::default(),
            rendezvous: None,
            last_stream: 0,
            streams: HashMap::new(),
            outbox,
            sequences: SequenceCheck::default(),
            liveness: Liveness::new(now, ping_interval),
        }
    }

    /// Notes that bytes arrived from the server.
    pub fn received(&mut self, now: Instant) {
        self.liveness.received(now);
    }

    /// Adapts the plan to this connection. If no other connection can join a result (as on Unix sockets),
    /// the result uses this connection alone.
    pub fn settle(&self, plan: Plan) -> Plan {
        let can_join = self.server.capabilities & CAPABILITY_JOIN != 0;
        Plan { streams: if can_join { plan.streams } else { 1 }, ..plan }
    }

    /// Sends a query, after [`Client::settle`]. Returns the stream of its result.
    ///
    /// # Errors
    /// [`TransportError::Wire`] if the query is too large, [`TransportError::Full`] if too many results are
    /// open.
    pub fn query(&mut self, query: &Query) -> Result<u32> {
        let query = Query { plan: self.settle(query.plan), sql: query.sql.clone() };
        self.request(FrameKind::Query, query.plan, query.encode())
    }

    /// Sends a statement to execute or to describe, after [`Client::settle`]. Returns the stream of its result.
    ///
    /// # Errors
    /// As [`Client::query`]; [`TransportError::TooOld`] if the server does not know such requests, and
    /// [`TransportError::Wire`] if the parameters are not one row.
    pub fn statement(&mut self, statement: &Statement) -> Result<u32> {
        if self.server.capabilities & CAPABILITY_STATEMENTS == 0 {
            let what = match &statement.action {
                Action::Execute(_) => "parameters",
                Action::Describe => "descriptions of statements",
            };
            return Err(TransportError::TooOld { what });
        }
        self.request(FrameKind::Statement, statement.plan, statement.encode()?)
    }

    /// Sends a task to a node. Returns the stream of its result.
    ///
    /// # Errors
    /// As [`Client::query`], and [`TransportError::Config`] if the server does not take such tasks of this client.
    pub fn task(&mut self, task: &Task) -> Result<u32> {
        let (needed, without) = match task.recipient {
            Recipient::Engine => (CAPABILITY_CLUSTER, "the server is not a node of this cluster"),
            Recipient::RangeFiles => (CAPABILITY_RANGE_FILES, "the node has no range files"),
        };
        if self.server.capabilities & needed == 0 {
            return Err(TransportError::Config(without.into()));
        }
        self.request(FrameKind::Task, task.plan, task.encode())
    }

    fn request(&mut self, kind: FrameKind, plan: Plan, payload: Vec<u8>) -> Result<u32> {
        // If the server received it, it would end the whole connection.
        let limit = kind.payload_bytes_max(0);
        if payload.len() > limit as usize {
            let (bytes, limit) = (payload.len() as u64, limit.into());
            return Err(WireError::TooLarge { what: "query", bytes, limit }.into());
        }
        self.open(kind, State::Requested { plan, joined: 0 }, payload)
    }

    /// Joins a result whose messages have at most `message_bytes_max` bytes. The returned stream then
    /// yields [`ClientEvent::Payload`]s.
    ///
    /// # Errors
    /// [`TransportError::Full`] if too many results are open.
    pub fn join(&mut self, join: &Join, message_bytes_max: u32) -> Result<u32> {
        self.open(FrameKind::Join, State::Joined { message_bytes_max }, join.encode())
    }

    fn open(&mut self, kind: FrameKind, state: State, payload: Vec<u8>) -> Result<u32> {
        if self.phase != Phase::Ready {
            return Err(TransportError::Protocol("a query before the server's hello".into()));
        }
        let has_room = self.streams.len() < STREAMS_MAX;
        let Some(stream) = self.last_stream.checked_add(1).filter(|_| has_room) else {
            return Err(TransportError::Full { max: STREAMS_MAX });
        };
        self.last_stream = stream;
        self.sequences.open(stream);
        self.outbox.push(kind, 0, stream, payload);
        self.streams.insert(stream, Stream { state, is_cancelled: false });
        Ok(stream)
    }

    fn receiving(&mut self, stream: u32) -> Option<&mut Receiving> {
        match self.streams.get_mut(&stream) {
            Some(Stream { state: State::Receiving(receiving), is_cancelled: false }) => Some(receiving),
            _ => None,
        }
    }

    /// Gives back the credit of a batch that the application has consumed. A producer that chooses the codec
    /// also gets `progress`.
    pub fn consumed(&mut self, stream: u32, credit: u32, progress: &Progress) {
        let Some(receiving) = self.receiving(stream) else { return };
        receiving.consumed(credit);
        if receiving.plan.codec.is_none() {
            self.outbox.push(FrameKind::Progress, 0, stream, progress.encode());
        }
        self.outbox.push(FrameKind::Credit, 0, stream, encode_credit(credit));
    }

    /// Requests other sizes. Returns whether that was possible: the server must support it, the result must be
    /// open, and an earlier request must have been answered.
    pub fn resize(&mut self, stream: u32, sizes: Sizes) -> bool {
        let is_known = self.server.capabilities & CAPABILITY_RESIZE != 0;
        let Some(receiving) =
            self.receiving(stream).filter(|receiving| is_known && receiving.requested.is_none())
        else {
            return false;
        };
        receiving.requested = Some(sizes);
        self.outbox.push(FrameKind::Resize, 0, stream, sizes.encode());
        true
    }

    /// The current sizes of a result; `None` if it is not open or a request for other sizes is pending.
    pub fn sizes(&self, stream: u32) -> Option<Sizes> {
        match &self.streams.get(&stream)?.state {
            State::Receiving(receiving) if receiving.requested.is_none() => Some(sizes_of(&receiving.plan)),
            _ => None,
        }
    }

    /// Cancels a result. It causes no more events.
    pub fn cancel(&mut self, stream: u32) {
        let Some(found) = self.streams.get_mut(&stream).filter(|stream| !stream.is_cancelled) else { return };
        found.is_cancelled = true;
        self.outbox.push(FrameKind::Cancel, 0, stream, Vec::new());
    }

    /// Gives back slots of shared memory.
    pub fn release(&mut self, loans: &[Loan]) {
        self.outbox.push(FrameKind::Release, 0, 0, encode_release(loans));
    }

    /// The server's hello, with the capabilities that both sides have.
    pub fn server(&self) -> &Hello {
        &self.server
    }

    /// The rendezvous that the server announced, if both are on one host.
    pub fn rendezvous(&self) -> Option<&Rendezvous> {
        self.rendezvous.as_ref()
    }

    /// Whether the stream has not ended.
    pub fn is_open(&self, stream: u32) -> bool {
        stream == 0 || self.streams.contains_key(&stream)
    }

    /// Whether a query can still get a stream: numbers are not used again.
    pub fn has_streams_left(&self) -> bool {
        self.last_stream < u32::MAX
    }

    /// Whether the application waits for no result.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Ready && self.streams.values().all(|stream| stream.is_cancelled)
    }

    /// The largest payload to accept now for a frame of this kind on this stream.
    pub fn payload_bytes_max(&self, kind: FrameKind, stream: u32) -> u32 {
        let message_bytes_max = match self.streams.get(&stream).map(|stream| &stream.state) {
            Some(State::Receiving(receiving)) => receiving.plan.message_bytes_max,
            Some(State::Joined { message_bytes_max }) => *message_bytes_max,
            _ => 0,
        };
        kind.payload_bytes_max(message_bytes_max)
    }

    /// Handles a frame from the server, whose checksums the caller has verified. Returns the event for the
    /// application, and its stream.
    ///
    /// # Errors
    /// If the frame is not allowed now or is malformed. The connection must then be closed.
    pub fn handle(
        &mut self,
        now: Instant,
        header: &FrameHeader,
        payload: Buffer,
    ) -> Result<Option<(u32, ClientEvent)>> {
        self.liveness.received(now);
        self.sequences.accept(header)?;
        let event = match header.stream {
            0 => self.handle_connection(header, &payload)?,
            stream => self.handle_stream(stream, header, payload)?,
        };
        Ok(event.map(|event| (header.stream, event)))
    }

    fn handle_connection(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<Option<ClientEvent>> {
        match (header.kind, self.phase) {
            (FrameKind::Ping, _) => {
                if header.flags & FLAG_REPLY == 0 {
                    self.outbox.pong();
                }
                Ok(None)
            }
            (FrameKind::Error, _) => Err(Failure::decode(payload)?.into()),
            (FrameKind::Queued, Phase::Greeting) if !self.is_queued => {
                self.is_queued = true;
                Ok(Some(ClientEvent::Queued(Queued::decode(payload)?)))
            }
            (FrameKind::Hello, Phase::Greeting) => {
                self.server = Hello::decode(payload)?;
                self.server.capabilities &= self.capabilities;
                if self.server.capabilities & CAPABILITY_RENDEZVOUS != 0 {
                    self.phase = Phase::Welcomed;
                    return Ok(None);
                }
                self.phase = Phase::Ready;
                Ok(Some(ClientEvent::Ready))
            }
            (FrameKind::Rendezvous, Phase::Welcomed) => {
                self.rendezvous = Some(Rendezvous::decode(payload)?);
                self.phase = Phase::Ready;
                Ok(Some(ClientEvent::Ready))
            }
            (kind, _) => Err(unexpected(kind)),
        }
    }

    fn handle_stream(
        &mut self,
        stream: u32,
        header: &FrameHeader,
        payload: Buffer,
    ) -> Result<Option<ClientEvent>> {
        let Some(Stream { state, is_cancelled }) = self.streams.get_mut(&stream) else {
            return Err(unexpected(header.kind));
        };
        let is_cancelled = *is_cancelled;
        let event = match (header.kind, state) {
            (FrameKind::Error, _) => {
                let failure = Failure::decode(&payload)?;
                self.close(stream);
                Some(ClientEvent::Failed(failure))
            }
            (FrameKind::StripeOffer, State::Requested { plan, joined: joined @ 0 }) if plan.streams > 1 => {
                let offer = StripeOffer::decode(&payload)?;
                if offer.connections > plan.streams {
                    return Err(TransportError::Protocol(
                        "a stripe offer for more connections than requested".into(),
                    ));
                }
                *joined = offer.connections;
                Some(ClientEvent::StripeOffer(offer))
            }
            (FrameKind::Schema, state @ State::Requested { .. }) => {
                let State::Requested { plan, joined } = *state else { return Ok(None) };
                let accepted = Accepted::decode(&payload)?;
                let schema: SchemaRef = Arc::new(accepted.schema);
                *state = State::Receiving(Box::new(Receiving::new(plan, joined, schema.clone())));
                Some(ClientEvent::Accepted { schema, rows_estimate: accepted.rows_estimate })
            }
            (FrameKind::Message, State::Joined { .. }) if header.flags & FLAG_PLACEHOLDER == 0 => {
                Some(ClientEvent::Payload(payload))
            }
            (FrameKind::BatchEnd, State::Joined { .. }) if header.flags & FLAG_LAST != 0 => {
                self.close(stream);
                Some(ClientEvent::Finished(Totals::default()))
            }
            (FrameKind::Message, State::Receiving(receiving)) if header.flags & FLAG_PLACEHOLDER != 0 => {
                Some(ClientEvent::Placeholder(receiving.placeholder(Placeholder::decode(&payload)?)?))
            }
            (FrameKind::Message, State::Receiving(receiving)) => {
                let (head, bytes) = (peek(&payload)?, payload.len() as u64);
                Some(ClientEvent::Message(receiving.message(head.rows, head.body_bytes, bytes, payload)?))
            }
            (FrameKind::Retune, State::Receiving(receiving)) => {
                receiving.retune(&Retune::decode(&payload)?)?;
                None
            }
            (FrameKind::Resize, State::Receiving(receiving)) => {
                receiving.resize(&Sizes::decode(&payload)?)?;
                None
            }
            (FrameKind::Stats, State::Receiving(receiving)) => {
                receiving.totals.producer = Stats::decode(&payload)?;
                None
            }
            (FrameKind::BatchEnd, State::Receiving(receiving)) => {
                let is_last = header.flags & FLAG_LAST != 0;
                let credit = receiving.batch_end(&payload, is_last)?;
                if is_last {
                    let totals = std::mem::take(&mut receiving.totals);
                    self.close(stream);
                    Some(ClientEvent::Finished(totals))
                } else {
                    Some(ClientEvent::BatchEnd { credit })
                }
            }
            (kind, _) => return Err(unexpected(kind)),
        };
        Ok(event.filter(|_| !is_cancelled))
    }

    fn close(&mut self, stream: u32) {
        self.streams.remove(&stream);
        self.sequences.close(stream);
        self.outbox.close(stream);
    }

    /// The next frame to send.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        self.outbox.pop()
    }

    /// Whether frames wait to be sent.
    pub fn wants_transmit(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// The next time at which to call [`Client::wake`].
    pub fn deadline(&self) -> Instant {
        self.liveness.deadline()
    }

    /// Sends a ping if one is due.
    ///
    /// # Errors
    /// [`TransportError::Silent`] if the server has been silent for too long.
    pub fn wake(&mut self, now: Instant) -> Result<()> {
        if self.phase == Phase::Greeting {
            // The caller limits the time for the welcome. A server answers no pings before its hello.
            self.liveness.received(now);
            return Ok(());
        }
        if self.liveness.wake(now)? {
            self.outbox.push(FrameKind::Ping, 0, 0, Vec::new());
        }
        Ok(())
    }
}

fn unexpected(kind: FrameKind) -> TransportError {
    TransportError::Protocol(format!("an unexpected {kind:?} frame"))
}
