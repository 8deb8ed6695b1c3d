//! The side that asks: a connection, and the task that reads and writes for it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use lightship_wire::control::Query;
use lightship_wire::local::{CAPABILITY_MEETING, CAPABILITY_SEGMENTS, Meeting};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::endpoint::Socket;
use super::frames::{FrameReader, FrameWriter, Segments};
use super::shm::Ledger;
use super::{Carrier, Endpoint, lock, meet};
use crate::proto::{Client, ClientEvent, Totals};
use crate::{Result, TransportError};

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Bearer token; empty for none.
    pub token: String,
    /// Connecting, TLS and hello together may take this long.
    pub connect_timeout: Duration,
    /// A quiet server is pinged after this long, and given up after three times this.
    pub ping_interval: Duration,
    /// Whether rows of a server on this host may come through shared memory. They then lie
    /// there until they are dropped; what is held beyond the window comes by the socket.
    pub shared_memory: bool,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            token: String::new(),
            connect_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(10),
            shared_memory: true,
        }
    }
}

/// A server that does not come to its own meeting holds up connecting for no longer than this
/// part of the time for it.
const MEETING_PART: u32 = 4;

/// What the application and the connection's task share. The queue needs no
/// limit of its own: the window bounds what a server may send.
struct Shared {
    client: Client,
    events: VecDeque<ClientEvent>,
    /// Set once, when the task ends.
    ended: Option<TransportError>,
}

struct Link {
    shared: Mutex<Shared>,
    /// Something to send.
    outgoing: Notify,
    /// Something for the application.
    incoming: Notify,
    /// What of the server's shared memory is in use.
    ledger: Option<Arc<Ledger>>,
}

impl Link {
    /// The application has taken a batch. What it has dropped goes back first, so that the
    /// producer has room for what the credit lets it send.
    fn consumed(&self, credit: u32) {
        let mut shared = lock(&self.shared);
        self.release(&mut shared.client);
        shared.client.consumed(credit);
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
    link: Arc<Link>,
    task: JoinHandle<()>,
    same_host: bool,
    carrier: Carrier,
}

/// What comes in for a query.
#[derive(Debug)]
pub enum Incoming {
    /// Rows, in order.
    Rows(RecordBatch),
    /// All rows have come; this is what they came to.
    Finished(Totals),
}

impl Connection {
    /// Connects, and is welcomed.
    ///
    /// # Errors
    /// When the server can't be reached, does not speak the protocol, or refuses the token.
    pub async fn connect(endpoint: &Endpoint, config: &ClientConfig) -> Result<Self> {
        let connecting = async {
            let socket = endpoint.connect(config.shared_memory).await?;
            let connection = Self::greet(socket, config.token.clone(), config).await?;
            let meeting = lock(&connection.link.shared).client.meeting().cloned();
            let Some(meeting) = meeting else { return Ok(connection) };
            // A server behind a forwarded port, or in another network namespace, is not there.
            match timeout(config.connect_timeout / MEETING_PART, Self::meet(&meeting, config)).await {
                Ok(Ok(met)) => Ok(met),
                missed => {
                    tracing::debug!(why = ?missed.map(drop), "no meeting; the connection stays with TCP");
                    Ok(connection)
                }
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

    /// Says hello on a socket, and waits for the answer.
    async fn greet(socket: Socket, token: String, config: &ClientConfig) -> Result<Self> {
        let Socket { read, write, segments, is_tcp, same_host } = socket;
        let ledger = match &segments {
            Segments::Borrowed(borrower) => Some(borrower.ledger()),
            _ => None,
        };
        let capabilities = match (is_tcp, &ledger) {
            (true, _) if same_host && config.shared_memory => CAPABILITY_MEETING,
            (false, Some(_)) => CAPABILITY_SEGMENTS,
            _ => 0,
        };
        let client = Client::new(Instant::now(), token, capabilities, config.ping_interval);
        let shared = Shared { client, events: VecDeque::new(), ended: None };
        let link = Arc::new(Link {
            shared: Mutex::new(shared),
            outgoing: Notify::new(),
            incoming: Notify::new(),
            ledger,
        });
        let task =
            tokio::spawn(run(link.clone(), FrameReader::new(read, segments), FrameWriter::new(write, None)));
        let mut connection = Self { link, task, same_host, carrier: Carrier::Tcp };
        match connection.event().await? {
            ClientEvent::Ready => {}
            other => return Err(TransportError::Protocol(format!("{other:?} instead of a hello"))),
        }
        let agreed = lock(&connection.link.shared).client.server().capabilities;
        connection.carrier = match is_tcp {
            true => Carrier::Tcp,
            false if agreed & CAPABILITY_SEGMENTS != 0 => Carrier::SharedMemory,
            false => Carrier::Unix,
        };
        Ok(connection)
    }

    /// Goes to a meeting, and makes sure that it is the same server.
    async fn meet(meeting: &Meeting, config: &ClientConfig) -> Result<Self> {
        let socket = Socket::unix(meet::go(meeting).await?, config.shared_memory);
        let connection = Self::greet(socket, meeting.client_token.clone(), config).await?;
        if lock(&connection.link.shared).client.server().token == meeting.server_token {
            Ok(connection)
        } else {
            Err(TransportError::Protocol("another server came to the meeting".into()))
        }
    }

    /// What carries the rows.
    pub fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// Whether the server is on this host: compressing for it can't pay.
    pub fn same_host(&self) -> bool {
        self.same_host
    }

    /// Asks. What is left of an earlier result is discarded first.
    ///
    /// # Errors
    /// [`TransportError::Failed`] when the server refuses the query, and whatever ends a connection.
    pub async fn query(&mut self, query: &Query) -> Result<(SchemaRef, Option<u64>)> {
        self.discard().await?;
        {
            let mut shared = lock(&self.link.shared);
            if let Some(ledger) = &self.link.ledger {
                ledger.set_segment_bytes_max(query.plan.memory_bytes());
            }
            self.link.release(&mut shared.client);
            shared.client.query(query)?;
        }
        self.link.outgoing.notify_one();
        match self.event().await? {
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
        loop {
            match self.event().await? {
                ClientEvent::Rows(batch) => return Ok(Incoming::Rows(batch)),
                ClientEvent::Finished(totals) => return Ok(Incoming::Finished(totals)),
                ClientEvent::Failed(failure) => return Err(failure.into()),
                ClientEvent::BatchEnd { credit } => self.link.consumed(credit),
                other => return Err(TransportError::Protocol(format!("{other:?} in a result"))),
            }
        }
    }

    /// Stops the running query; its rows still on the way are discarded by the next one.
    pub fn cancel(&mut self) {
        let mut shared = lock(&self.link.shared);
        shared.client.cancel();
        shared.events.retain(|event| !matches!(event, ClientEvent::Rows(_)));
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
            if let ClientEvent::BatchEnd { credit } = self.event().await? {
                self.link.consumed(credit);
            }
        }
    }

    async fn event(&mut self) -> Result<ClientEvent> {
        loop {
            {
                let mut shared = lock(&self.link.shared);
                if let Some(event) = shared.events.pop_front() {
                    return Ok(event);
                }
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

async fn run(link: Arc<Link>, reader: FrameReader, writer: FrameWriter) {
    let ended = tokio::select! {
        error = receive(&link, reader) => error,
        error = send_while_heard(&link, writer) => error,
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
            let event = shared.client.handle(Instant::now(), &header, payload)?;
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
