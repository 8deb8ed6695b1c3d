//! The side that asks: a connection, and the task that reads and writes for it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use lightship_wire::control::{Plan, Query};
use lightship_wire::tuning::Progress;
use lightship_wire::{Codec, rows_bytes};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::frames::{FrameReader, FrameWriter};
use super::jobs::{Job, PROCESSORS};
use super::produce::nanoseconds;
use super::{Endpoint, ReadHalf, WriteHalf, lock};
use crate::proto::{Client, ClientEvent, Message, Totals};
use crate::{Result, TransportError};

/// A message smaller than this is decoded before another thread would have taken it up.
const BESIDE_BYTES_MIN: u32 = 64 << 10;

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Bearer token; empty for none.
    pub token: String,
    /// Connecting, TLS and hello together may take this long.
    pub connect_timeout: Duration,
    /// A quiet server is pinged after this long, and given up after three times this.
    pub ping_interval: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            token: String::new(),
            connect_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(10),
        }
    }
}

/// What the application and the connection's task share. The queue needs no
/// limit of its own: the window bounds what a server may send.
struct Shared {
    client: Client,
    events: VecDeque<Event>,
    /// Set once, when the task ends.
    ended: Option<TransportError>,
}

/// What waits for the application.
enum Event {
    /// What the protocol says.
    Told(ClientEvent),
    /// Rows.
    Rows(Decoded),
    /// Rows that another thread is decoding.
    Decoding(Job<Decoded>),
}

/// A message's rows, and what they took.
struct Decoded {
    codec: Codec,
    rows: Result<RecordBatch>,
    took: Duration,
}

struct Link {
    shared: Mutex<Shared>,
    /// Something to send.
    outgoing: Notify,
    /// Something for the application.
    incoming: Notify,
}

/// An open connection to a server: one query at a time.
///
/// Dropping it cancels what runs and closes the socket.
pub struct Connection {
    link: Arc<Link>,
    task: JoinHandle<()>,
    same_host: bool,
    /// What was measured of the running result.
    progress: Progress,
    /// Bytes of the rows that the application is busy with, and since when.
    handed: Option<(u64, Instant)>,
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
        let connecting = async {
            let (read, write, same_host) = endpoint.connect().await?;
            let client = Client::new(Instant::now(), config.token.clone(), config.ping_interval);
            let shared = Shared { client, events: VecDeque::new(), ended: None };
            let link = Arc::new(Link {
                shared: Mutex::new(shared),
                outgoing: Notify::new(),
                incoming: Notify::new(),
            });
            let task = tokio::spawn(run(link.clone(), read, write));
            let mut connection = Self { link, task, same_host, progress: Progress::default(), handed: None };
            match connection.told().await? {
                ClientEvent::Ready => Ok(connection),
                other => Err(TransportError::Protocol(format!("{other:?} instead of a hello"))),
            }
        };
        timeout(config.connect_timeout, connecting).await.unwrap_or_else(|_| {
            Err(TransportError::Connect {
                target: endpoint.to_string(),
                source: std::io::Error::new(
                    std::io::ErrorKind::TimedOut,
                    format!("no welcome within {} seconds", config.connect_timeout.as_secs_f32()),
                ),
            })
        })
    }

    /// Whether the server is on this host: compressing for it can't pay.
    pub fn same_host(&self) -> bool {
        self.same_host
    }

    /// The plan as the server understands it: one that can't choose the codec uses LZ4.
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

    /// Asks, after the plan was settled. What is left of an earlier result is discarded first.
    ///
    /// # Errors
    /// [`TransportError::Failed`] when the server refuses the query, and whatever ends a connection.
    pub async fn query(&mut self, query: &Query) -> Result<(SchemaRef, Option<u64>)> {
        self.discard().await?;
        (self.progress, self.handed) =
            (Progress { decoders: *PROCESSORS as u32, ..Progress::default() }, None);
        lock(&self.link.shared).client.query(query)?;
        self.link.outgoing.notify_one();
        match self.told().await? {
            ClientEvent::Accepted { schema, rows_estimate } => Ok((schema, rows_estimate)),
            ClientEvent::Failed(failure) => Err(failure.into()),
            other => Err(TransportError::Protocol(format!("{other:?} instead of a schema"))),
        }
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
                // `event` waits for what is being decoded.
                Event::Decoding(_) => continue,
                Event::Told(told) => told,
            };
            match told {
                ClientEvent::Finished(totals) => return Ok(Incoming::Finished(Box::new(totals))),
                ClientEvent::Failed(failure) => return Err(failure.into()),
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
        lock(&self.link.shared).client.consumed(credit, &self.progress);
        self.link.outgoing.notify_one();
    }

    fn abandon(&mut self) {
        self.task.abort();
        let mut shared = lock(&self.link.shared);
        shared.events.clear();
        shared.ended = Some(TransportError::Closed { during: Some("earlier") });
    }

    /// Stops the running query; its rows still on the way are discarded by the next one.
    pub fn cancel(&mut self) {
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
    async fn told(&mut self) -> Result<ClientEvent> {
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
                if let Some(error) = shared.ended.take() {
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

async fn run(link: Arc<Link>, read: ReadHalf, write: WriteHalf) {
    let ended = tokio::select! {
        error = receive(&link, FrameReader::new(read)) => error,
        error = send(&link, FrameWriter::new(write)) => error,
        error = keep_time(&link) => error,
    };
    lock(&link.shared).ended = ended.err();
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
fn unpack(message: Message) -> Result<Event> {
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

async fn send(link: &Link, mut writer: FrameWriter) -> Result<()> {
    loop {
        let frames: Vec<_> = {
            let mut shared = lock(&link.shared);
            std::iter::from_fn(|| shared.client.poll_transmit()).collect()
        };
        if frames.is_empty() {
            link.outgoing.notified().await;
        } else {
            writer.write(&frames).await?;
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
