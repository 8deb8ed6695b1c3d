//! The side that asks: a connection, and the task that reads and writes for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use lightship_wire::control::Query;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::frames::{FrameReader, FrameWriter};
use super::{Endpoint, ReadHalf, WriteHalf, lock};
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
}

/// An open connection to a server: one query at a time.
///
/// Dropping it cancels what runs and closes the socket.
pub struct Connection {
    link: Arc<Link>,
    task: JoinHandle<()>,
    same_host: bool,
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
            let (read, write, same_host) = endpoint.connect().await?;
            let client = Client::new(Instant::now(), config.token.clone(), config.ping_interval);
            let shared = Shared { client, events: VecDeque::new(), ended: None };
            let link = Arc::new(Link {
                shared: Mutex::new(shared),
                outgoing: Notify::new(),
                incoming: Notify::new(),
            });
            let task = tokio::spawn(run(link.clone(), read, write));
            let mut connection = Self { link, task, same_host };
            match connection.event().await? {
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

    /// Asks. What is left of an earlier result is discarded first.
    ///
    /// # Errors
    /// [`TransportError::Failed`] when the server refuses the query, and whatever ends a connection.
    pub async fn query(&mut self, query: &Query) -> Result<(SchemaRef, Option<u64>)> {
        self.discard().await?;
        lock(&self.link.shared).client.query(query)?;
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
                ClientEvent::BatchEnd { credit } => {
                    lock(&self.link.shared).client.consumed(credit);
                    self.link.outgoing.notify_one();
                }
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
                lock(&self.link.shared).client.consumed(credit);
                self.link.outgoing.notify_one();
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
