//! The side that asks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use lightship_wire::cluster::{CAPABILITY_CLUSTER, Task};
use lightship_wire::control::{
    Accepted, BatchEnd, CAPABILITY_QUEUE, Failure, Hello, Plan, Query, Queued, Stats, encode_credit,
};
use lightship_wire::frame::{FLAG_DEALT, FLAG_LAST, FLAG_REPLY, HEADER_BYTES, Header, Kind};
use lightship_wire::join::{CAPABILITY_JOIN, Dealt, Join, Ticket};
use lightship_wire::local::{CAPABILITY_MEETING, Loan, Meeting, encode_release};
use lightship_wire::tuning::{CAPABILITY_ADAPTIVE, CAPABILITY_RESIZE, Progress, Retune, Sizes, Stage};
use lightship_wire::{Codec, WireError, peek};

use super::liveness::Liveness;
use super::message::{Awaited, Message};
use super::outbox::{Frame, Inbox, Outbox};
use super::{RETUNES_MAX, batch_messages_max};
use crate::{Result, TransportError};

/// What a result came to, as the consumer counted it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// Rows.
    pub rows: u64,
    /// Messages.
    pub messages: u64,
    /// Of them, those that came by joined connections.
    pub messages_joined: u64,
    /// Batches.
    pub batches: u64,
    /// Bytes of messages on the wire, headers included.
    pub bytes_wire: u64,
    /// Where the producer's time went.
    pub producer: Stats,
    /// What travelled in each codec, by [`Codec`]'s number.
    pub codecs: [CodecTotals; Codec::ALL.len()],
    /// How the codec changed, where the producer chose it: the first [`RETUNES_MAX`] times.
    pub retunes: Vec<Retuned>,
    /// How the sizes changed: the first [`RETUNES_MAX`] times.
    pub resizes: Vec<Resized>,
}

/// What travelled in one codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CodecTotals {
    /// Messages.
    pub messages: u64,
    /// Bytes of their bodies once decoded.
    pub bytes_body: u64,
    /// Their bytes on the wire, headers included.
    pub bytes_wire: u64,
}

/// A change of the codec in mid-result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retuned {
    /// The first message of the new codec, from 0.
    pub message: u64,
    /// The old codec.
    pub from: Codec,
    /// The new codec.
    pub to: Codec,
    /// The slowest stage under the old one.
    pub slowest: Option<Stage>,
}

/// A change of the sizes in mid-result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resized {
    /// The first message of the new sizes, from 0.
    pub message: u64,
    /// The old ones.
    pub from: Sizes,
    /// The new ones.
    pub to: Sizes,
}

/// Something the application wants to know.
#[derive(Debug)]
pub enum ClientEvent {
    /// The server has no place now: it will be ready, or refuse, once this client has waited in line.
    Queued(Queued),
    /// The server takes queries now.
    Ready,
    /// The query was accepted.
    Accepted {
        /// Columns of the result.
        schema: SchemaRef,
        /// How many rows are expected, where known.
        rows_estimate: Option<u64>,
    },
    /// Other connections may join the result of the query that was asked.
    Ticket(Ticket),
    /// Rows, to be decoded.
    Message(Message),
    /// Rows that come by a joined connection.
    Dealt(Awaited),
    /// On a connection that has joined a result: the payload of a message of it.
    Payload(Buffer),
    /// A batch is complete: once the application has taken its rows, it calls
    /// [`Client::consumed`] with the credit that the batch took.
    BatchEnd {
        /// One, or the whole window for a message larger than a batch.
        credit: u32,
    },
    /// The result is complete, and is what the producer said it would be.
    Finished(Totals),
    /// The query has failed, or was cancelled; the connection lives on.
    Failed(Failure),
}

#[derive(Debug)]
enum State {
    /// Hello sent, none received.
    Greeting,
    /// Hello received, which announced a meeting.
    Welcomed,
    Idle,
    /// Query sent, no answer yet.
    Asked {
        plan: Plan,
        /// Connections that may join.
        joined: u32,
    },
    /// Joined the result of another connection.
    Joined {
        message_bytes_max: u32,
    },
    Receiving(Box<Receiving>),
}

#[derive(Debug)]
struct Receiving {
    plan: Plan,
    /// Connections that may have joined.
    joined: u32,
    schema: SchemaRef,
    /// Of the messages to come, as far as it is known.
    codec: Option<Codec>,
    totals: Totals,
    batch_messages: u32,
    batch_bytes: u64,
    /// Batches the producer may still finish. Below nothing while more is on its way than the window
    /// lets out by now.
    credit: i64,
    /// What was asked for and not yet answered.
    asked: Option<Sizes>,
    /// A message larger than a batch has the whole window.
    oversize_out: bool,
}

/// The consumer's end of a connection.
#[derive(Debug)]
pub struct Client {
    state: State,
    capabilities: u64,
    server: Hello,
    meeting: Option<Meeting>,
    stream: u32,
    cancelled: bool,
    outbox: Outbox,
    inbox: Inbox,
    liveness: Liveness,
}

impl Client {
    /// A connection that has just been made, by a client of these capabilities besides choosing the
    /// codec with the server. A quiet server is pinged every `ping_interval`.
    pub fn new(now: Instant, token: String, capabilities: u64, ping_interval: Duration) -> Self {
        let mut outbox = Outbox::default();
        let capabilities = capabilities | CAPABILITY_ADAPTIVE | CAPABILITY_QUEUE;
        let hello = Hello {
            agent: concat!("lightship/", env!("CARGO_PKG_VERSION")).into(),
            token,
            capabilities,
            ping_interval_ms: u32::try_from(ping_interval.as_millis()).unwrap_or(u32::MAX),
        };
        outbox.push(Kind::Hello, 0, 0, hello.encode());
        Self {
            state: State::Greeting,
            capabilities,
            server: Hello::default(),
            meeting: None,
            stream: 0,
            cancelled: false,
            outbox,
            inbox: Inbox::default(),
            liveness: Liveness::new(now, ping_interval),
        }
    }

    /// Bytes came from the server, be they a whole frame or not.
    pub fn received(&mut self, now: Instant) {
        self.liveness.received(now);
    }

    /// The plan as this server understands it: one that can't choose the codec uses LZ4, one whose
    /// results no other connection can join (as on Unix sockets) sends them over this one.
    ///
    /// # Errors
    /// [`TransportError::Config`] when the plan asks for a codec that the server does not know.
    pub fn settle(&self, mut plan: Plan) -> Result<Plan> {
        if self.server.capabilities & CAPABILITY_JOIN == 0 {
            plan.streams = 1;
        }
        if self.server.capabilities & CAPABILITY_ADAPTIVE != 0 {
            return Ok(plan);
        }
        match plan.codec {
            None => Ok(Plan { codec: Some(Codec::Lz4), ..plan }),
            Some(codec @ (Codec::Light | Codec::LightLz4 | Codec::LightZstd)) => {
                Err(TransportError::Config(format!(
                    "the server is of an older version and does not know the codec {codec}; it knows none, lz4, zstd"
                )))
            }
            Some(_) => Ok(plan),
        }
    }

    /// Asks; the plan is settled first. Only when no result is on its way.
    ///
    /// # Errors
    /// [`TransportError::Protocol`] when one is, and what [`Client::settle`] says.
    pub fn query(&mut self, query: &Query) -> Result<()> {
        let query = Query { plan: self.settle(query.plan)?, sql: query.sql.clone() };
        self.ask(Kind::Query, query.plan, query.encode())
    }

    /// Asks a node of the cluster for what only nodes ask each other. Only when no result is on its way.
    ///
    /// # Errors
    /// [`TransportError::Protocol`] when one is, [`TransportError::Config`] when the server does not take
    /// this side for a node of its cluster.
    pub fn task(&mut self, task: &Task) -> Result<()> {
        if self.server.capabilities & CAPABILITY_CLUSTER == 0 {
            return Err(TransportError::Config("the server is no node of this cluster".into()));
        }
        self.ask(Kind::Task, task.plan, task.encode())
    }

    fn ask(&mut self, kind: Kind, plan: Plan, payload: Vec<u8>) -> Result<()> {
        if !matches!(self.state, State::Idle) {
            return Err(TransportError::Protocol(
                "a query while another is running on this connection".into(),
            ));
        }
        // What the server would refuse ends a query, not the connection.
        let limit = kind.payload_bytes_max(0);
        if payload.len() > limit as usize {
            let (bytes, limit) = (payload.len() as u64, limit.into());
            return Err(WireError::TooLarge { what: "query", bytes, limit }.into());
        }
        self.stream += 1;
        self.cancelled = false;
        self.inbox.open(self.stream);
        self.outbox.push(kind, 0, self.stream, payload);
        self.state = State::Asked { plan, joined: 0 };
        Ok(())
    }

    /// Joins a result of another connection, whose messages have at most so many bytes. This one
    /// brings [`ClientEvent::Payload`]s of it from then on.
    ///
    /// # Errors
    /// [`TransportError::Protocol`] when a result is on its way here.
    pub fn join(&mut self, join: &Join, message_bytes_max: u32) -> Result<()> {
        if !matches!(self.state, State::Idle) {
            return Err(TransportError::Protocol("a connection that has another result joins one".into()));
        }
        self.stream += 1;
        self.inbox.open(self.stream);
        self.outbox.push(Kind::Join, 0, self.stream, join.encode());
        self.state = State::Joined { message_bytes_max };
        Ok(())
    }

    /// The application has taken a batch that took so much credit; the producer may use it again.
    /// A producer that chooses the codec is told what was measured.
    pub fn consumed(&mut self, credit: u32, progress: &Progress) {
        if let State::Receiving(receiving) = &mut self.state {
            receiving.credit += i64::from(credit);
            receiving.oversize_out &= receiving.credit < i64::from(receiving.plan.window_batches);
            if receiving.plan.codec.is_none() {
                self.outbox.push(Kind::Progress, 0, self.stream, progress.encode());
            }
            self.outbox.push(Kind::Credit, 0, self.stream, encode_credit(credit));
        }
    }

    /// Asks for other sizes. Answers whether that was possible: the server must know of it, a result be
    /// on its way, and what was asked for before be answered.
    pub fn resize(&mut self, sizes: Sizes) -> bool {
        let able = self.server.capabilities & CAPABILITY_RESIZE != 0 && !self.cancelled;
        let State::Receiving(receiving) = &mut self.state else { return false };
        if !able || receiving.asked.is_some() {
            return false;
        }
        receiving.asked = Some(sizes);
        self.outbox.push(Kind::Resize, 0, self.stream, sizes.encode());
        true
    }

    /// The sizes there are; nothing while no result is on its way, or others were asked for.
    pub fn sizes(&self) -> Option<Sizes> {
        match &self.state {
            State::Receiving(receiving) if receiving.asked.is_none() => Some(sizes_of(&receiving.plan)),
            _ => None,
        }
    }

    /// The application wants no more of this result. The stream ends with [`ClientEvent::Failed`]
    /// or, if it was too late, with [`ClientEvent::Finished`].
    pub fn cancel(&mut self) {
        if !self.cancelled && matches!(self.state, State::Asked { .. } | State::Receiving(_)) {
            self.cancelled = true;
            self.outbox.push(Kind::Cancel, 0, self.stream, Vec::new());
        }
    }

    /// The consumer is done with these places in shared memory.
    pub fn release(&mut self, loans: &[Loan]) {
        self.outbox.push(Kind::Release, 0, 0, encode_release(loans));
    }

    /// How the server has introduced itself; of its capabilities, those that we have too.
    pub fn server(&self) -> &Hello {
        &self.server
    }

    /// Where the server would meet us, if on one host.
    pub fn meeting(&self) -> Option<&Meeting> {
        self.meeting.as_ref()
    }

    /// Whether no result is on its way.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// The largest payload to accept for a frame of this kind now.
    pub fn payload_bytes_max(&self, kind: Kind) -> u32 {
        let plan = match &self.state {
            State::Receiving(receiving) => receiving.plan.message_bytes_max,
            State::Joined { message_bytes_max } => *message_bytes_max,
            _ => 0,
        };
        kind.payload_bytes_max(plan)
    }

    /// Takes a frame from the server, its checksums already verified.
    ///
    /// # Errors
    /// When it does not belong here, or can't be read. The connection is then of no more use.
    pub fn handle(&mut self, now: Instant, header: &Header, payload: Buffer) -> Result<Option<ClientEvent>> {
        self.liveness.received(now);
        self.inbox.accept(header)?;
        match (header.kind, &mut self.state) {
            (Kind::Ping, _) => {
                if header.flags & FLAG_REPLY == 0 {
                    self.outbox.pong();
                }
                Ok(None)
            }
            (Kind::Error, state) => {
                let failure = Failure::decode(&payload)?;
                if header.stream == 0 {
                    return Err(failure.into());
                }
                if !matches!(state, State::Asked { .. } | State::Receiving(_) | State::Joined { .. }) {
                    return Err(TransportError::Protocol("an error for a result that had ended".into()));
                }
                self.close_stream();
                Ok(Some(ClientEvent::Failed(failure)))
            }
            (Kind::Queued, State::Greeting) => Ok(Some(ClientEvent::Queued(Queued::decode(&payload)?))),
            (Kind::Hello, state @ State::Greeting) => {
                self.server = Hello::decode(&payload)?;
                self.server.capabilities &= self.capabilities;
                if self.server.capabilities & CAPABILITY_MEETING != 0 {
                    *state = State::Welcomed;
                    return Ok(None);
                }
                *state = State::Idle;
                Ok(Some(ClientEvent::Ready))
            }
            (Kind::Meeting, state @ State::Welcomed) => {
                self.meeting = Some(Meeting::decode(&payload)?);
                *state = State::Idle;
                Ok(Some(ClientEvent::Ready))
            }
            (Kind::Ticket, State::Asked { plan, joined: joined @ 0 }) if plan.streams > 1 => {
                let ticket = Ticket::decode(&payload)?;
                if ticket.connections > plan.streams {
                    return Err(TransportError::Protocol("a ticket for more than was asked for".into()));
                }
                *joined = ticket.connections;
                Ok((!self.cancelled).then_some(ClientEvent::Ticket(ticket)))
            }
            (Kind::Schema, state @ State::Asked { .. }) => {
                let State::Asked { plan, joined } = *state else { return Ok(None) };
                let accepted = Accepted::decode(&payload)?;
                let schema: SchemaRef = Arc::new(accepted.schema);
                *state = State::Receiving(Box::new(Receiving {
                    plan,
                    joined,
                    schema: schema.clone(),
                    codec: plan.codec,
                    totals: Totals::default(),
                    batch_messages: 0,
                    batch_bytes: 0,
                    credit: plan.window_batches.into(),
                    asked: None,
                    oversize_out: false,
                }));
                Ok(Some(ClientEvent::Accepted { schema, rows_estimate: accepted.rows_estimate }))
            }
            (Kind::Message, State::Joined { .. }) if header.flags & FLAG_DEALT == 0 => {
                Ok(Some(ClientEvent::Payload(payload)))
            }
            (Kind::Message, State::Receiving(receiving)) if header.flags & FLAG_DEALT != 0 => {
                let awaited = receiving.dealt(Dealt::decode(&payload)?)?;
                Ok((!self.cancelled).then_some(ClientEvent::Dealt(awaited)))
            }
            (Kind::Message, State::Receiving(receiving)) => {
                let (head, bytes) = (peek(&payload)?, payload.len() as u64);
                let message = receiving.message(head.rows, head.body_bytes, bytes, payload)?;
                Ok((!self.cancelled).then_some(ClientEvent::Message(message)))
            }
            (Kind::Retune, State::Receiving(receiving)) => {
                receiving.retune(&Retune::decode(&payload)?)?;
                Ok(None)
            }
            (Kind::Resize, State::Receiving(receiving)) => {
                receiving.resize(&Sizes::decode(&payload)?)?;
                Ok(None)
            }
            (Kind::Stats, State::Receiving(receiving)) => {
                receiving.totals.producer = Stats::decode(&payload)?;
                Ok(None)
            }
            (Kind::BatchEnd, State::Receiving(receiving)) => {
                let last = header.flags & FLAG_LAST != 0;
                let credit = receiving.batch_end(&payload, last)?;
                if !last {
                    return Ok(Some(ClientEvent::BatchEnd { credit }));
                }
                let totals = std::mem::take(&mut receiving.totals);
                self.close_stream();
                Ok(Some(ClientEvent::Finished(totals)))
            }
            (kind, _) => Err(TransportError::Protocol(format!("an unexpected {kind:?} frame"))),
        }
    }

    fn close_stream(&mut self) {
        self.state = State::Idle;
        self.outbox.forget(self.stream);
    }

    /// The next frame to send.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        self.outbox.pop()
    }

    /// Whether frames wait to be sent.
    pub fn wants_transmit(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// When [`Client::wake`] wants to be called.
    pub fn deadline(&self) -> Instant {
        self.liveness.deadline()
    }

    /// Does what time asks for.
    ///
    /// # Errors
    /// [`TransportError::Silent`] when the server must be given up.
    pub fn wake(&mut self, now: Instant) -> Result<()> {
        if let State::Greeting = self.state {
            // How long a welcome may take is not judged here, and a server that has not said hello answers no pings.
            self.liveness.received(now);
            return Ok(());
        }
        if self.liveness.wake(now)? {
            self.outbox.push(Kind::Ping, 0, 0, Vec::new());
        }
        Ok(())
    }
}

fn sizes_of(plan: &Plan) -> Sizes {
    Sizes {
        batch_bytes: plan.batch_bytes,
        message_bytes: plan.message_bytes,
        window_batches: plan.window_batches,
    }
}

impl Receiving {
    fn retune(&mut self, retune: &Retune) -> Result<()> {
        if self.plan.codec.is_some() || self.batch_messages > 0 {
            return Err(TransportError::Protocol("a change of the codec where none may be".into()));
        }
        if let Some(from) = self.codec.replace(retune.codec)
            && self.totals.retunes.len() < RETUNES_MAX
        {
            let (message, to, slowest) = (self.totals.messages, retune.codec, retune.slowest);
            self.totals.retunes.push(Retuned { message, from, to, slowest });
        }
        Ok(())
    }

    fn resize(&mut self, to: &Sizes) -> Result<()> {
        let asked = self.asked.take().is_some_and(|asked| to.are_within(&asked));
        if !asked || self.batch_messages > 0 || self.oversize_out {
            return Err(TransportError::Protocol("sizes that were not asked for, or out of place".into()));
        }
        let from = sizes_of(&self.plan);
        self.credit += i64::from(to.window_batches) - i64::from(from.window_batches);
        (self.plan.batch_bytes, self.plan.message_bytes, self.plan.window_batches) =
            (to.batch_bytes, to.message_bytes, to.window_batches);
        if self.totals.resizes.len() < RETUNES_MAX {
            self.totals.resizes.push(Resized { message: self.totals.messages, from, to: *to });
        }
        Ok(())
    }

    fn dealt(&mut self, dealt: Dealt) -> Result<Awaited> {
        if dealt.connection > self.joined {
            return Err(TransportError::Protocol(format!(
                "a message on connection {}, where {} may have joined",
                dealt.connection, self.joined
            )));
        }
        // As it will be refused when it comes.
        if dealt.bytes.max(dealt.body_bytes) > self.plan.message_bytes_max {
            return Err(WireError::TooLarge {
                what: "dealt message",
                bytes: dealt.bytes.max(dealt.body_bytes).into(),
                limit: self.plan.message_bytes_max.into(),
            }
            .into());
        }
        let message = self.message(dealt.rows, dealt.body_bytes, dealt.bytes.into(), Buffer::default())?;
        self.totals.messages_joined += 1;
        Ok(Awaited { dealt, message })
    }

    /// Counts a message whose payload is so large.
    fn message(&mut self, rows: u32, body_bytes: u32, bytes: u64, payload: Buffer) -> Result<Message> {
        if self.credit <= 0 {
            return Err(TransportError::Protocol("a message without credit".into()));
        }
        let Some(codec) = self.codec else {
            return Err(TransportError::Protocol("a message before its codec was chosen".into()));
        };
        self.batch_messages += 1;
        let messages_max = batch_messages_max(self.plan.batch_bytes);
        if self.batch_messages > messages_max {
            return Err(TransportError::Protocol(format!("a batch of more than {messages_max} messages")));
        }
        self.totals.messages += 1;
        let bytes_wire = HEADER_BYTES as u64 + bytes;
        self.totals.bytes_wire += bytes_wire;
        let of_codec = &mut self.totals.codecs[codec as usize];
        of_codec.messages += 1;
        of_codec.bytes_body += u64::from(body_bytes);
        of_codec.bytes_wire += bytes_wire;
        // A batch is bounded by what the consumer stated; one message alone may be larger.
        self.batch_bytes += u64::from(body_bytes).max(bytes);
        if self.batch_messages > 1 && self.batch_bytes > u64::from(self.plan.batch_bytes) {
            return Err(TransportError::Protocol(format!(
                "a batch of more than {} bytes",
                self.plan.batch_bytes
            )));
        }
        if self.batch_bytes > self.plan.batch_bytes.into() && self.credit < self.plan.window_batches.into() {
            return Err(TransportError::Protocol(
                "a message larger than a batch beside other batches".into(),
            ));
        }
        self.totals.rows += u64::from(rows);
        Ok(Message {
            codec,
            payload,
            schema: self.schema.clone(),
            body_bytes,
            body_bytes_max: self.plan.message_bytes_max,
        })
    }

    fn batch_end(&mut self, payload: &[u8], last: bool) -> Result<u32> {
        let end = BatchEnd::decode(payload)?;
        if (end.rows, end.messages) != (self.totals.rows, self.totals.messages) {
            return Err(TransportError::Protocol(format!(
                "the producer sent {} rows in {} messages, {} in {} arrived",
                end.rows, end.messages, self.totals.rows, self.totals.messages
            )));
        }
        let mut taken = 0;
        if self.batch_messages > 0 {
            // That there is so much was seen at its first message.
            let oversize = self.batch_bytes > self.plan.batch_bytes.into();
            self.oversize_out |= oversize;
            taken = if oversize { self.plan.window_batches } else { 1 };
            self.credit -= i64::from(taken);
            self.totals.batches += 1;
        } else if !last {
            // Giving credit back for nothing would widen the window.
            return Err(TransportError::Protocol("the end of a batch without messages".into()));
        }
        (self.batch_messages, self.batch_bytes) = (0, 0);
        Ok(taken)
    }
}
