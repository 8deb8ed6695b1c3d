//! The client: connections, and the results that arrive over them.

use std::collections::HashMap;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use lightship_wire::cluster::{CAPABILITY_CLUSTER, CAPABILITY_RANGE_FILES, Task};
use lightship_wire::control::{CAPABILITY_REASONS, ErrorCode, Failure, Plan, Query};
use lightship_wire::join::{CAPABILITY_JOIN, Join};
use lightship_wire::rows_bytes;
use lightship_wire::shm::{CAPABILITY_RENDEZVOUS, CAPABILITY_SEGMENTS, Rendezvous};
use lightship_wire::statement::{Action, CAPABILITY_STATEMENTS, Description, Statement};
use lightship_wire::tuning::{CAPABILITY_RESIZE, Progress, Sizes};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::blobs::blob;
use super::client_task::{ClientLink, ClientState, Decoded, Event, ResultQueue, decode, run};
use super::endpoint::Socket;
use super::frames::{FrameReader, FrameWriter, Segments};
use super::jobs::PROCESSORS;
use super::joined::JoinPermit;
use super::produce::nanoseconds;
use super::server::check_token;
use super::{Carrier, Endpoint, FramePipe, Prepared, PushedConnection, lock, rendezvous};
use crate::proto::{Client, ClientEvent, QUEUE_TIMEOUT_MAX, Totals};
use crate::{Result, TransportError};

/// Settings of a client.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Bearer token; empty for none.
    pub token: String,
    /// How long the host may take to accept a connection.
    pub connect_timeout: Duration,
    /// How long the server may take to send its hello, after the TLS handshake if there is one. A busy host may
    /// need some seconds. A client in the server's queue waits for this time in addition to the queue's timeout.
    pub welcome_timeout: Duration,
    /// A quiet server is pinged after this time, and given up after three times this.
    pub ping_interval: Duration,
    /// Whether rows of a server on this host may come through shared memory. They stay there until
    /// they are dropped. Rows for which there is no room come over the socket.
    pub shared_memory: bool,
    /// Whether to connect as a node of the server's cluster, with the cluster's token. Nodes do not use
    /// shared memory with each other.
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

/// Connecting waits for the rendezvous for at most this fraction of the welcome timeout.
const RENDEZVOUS_PART: u32 = 4;

/// The task of a connection. It is aborted when the last [`Connection`] that shares it is dropped.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An open connection to a server, with one result at a time. [`Connection::share`] allows several.
///
/// Dropping it cancels its result, and closes the socket unless another `Connection` shares it.
pub struct Connection {
    pub(super) link: Arc<ClientLink>,
    driver: Arc<Driver>,
    same_host: bool,
    /// The time from the client's hello to the server's.
    rtt: Duration,
    /// The stream of the current result; 0 before the first one.
    pub(super) stream: u32,
    incoming: Arc<Notify>,
    /// What was measured of the current result.
    progress: Progress,
    /// The size of the rows that the application is processing, and since when.
    handed: Option<(u64, Instant)>,
    carrier: Carrier,
    /// The TCP socket, as long as the task has it.
    pub(super) tcp: Weak<OwnedFd>,
    /// Where connections that join a result connect to; `None` if none can join. The stripe offer is in
    /// `join_permit`, the tasks of joined connections are in `joined`.
    pub(super) endpoint: Option<Endpoint>,
    pub(super) config: ClientConfig,
    pub(super) join_permit: Option<JoinPermit>,
    pub(super) joined: JoinSet<()>,
}

/// A part of a query's result.
#[derive(Debug)]
pub enum Incoming {
    /// Rows, in order.
    Rows(RecordBatch),
    /// The end of the result, with its totals.
    Finished(Box<Totals>),
}

impl Connection {
    /// Connects, and waits for the server's welcome.
    ///
    /// # Errors
    /// If the server can't be reached, does not speak the protocol, or refuses the token.
    pub async fn connect(endpoint: &Endpoint, config: &ClientConfig) -> Result<Self> {
        check_token(&config.token)?;
        let socket = endpoint.connect(config).await?;
        let target = endpoint.to_string();
        let connection = Self::greet(socket, config.token.clone(), Some(endpoint), &target, config).await?;
        let rendezvous = lock(&connection.link.shared).client.rendezvous().cloned();
        let Some(rendezvous) = rendezvous else { return Ok(connection) };
        // It fails if the server is behind a forwarded port or in another network namespace.
        let limit = config.welcome_timeout / RENDEZVOUS_PART;
        match timeout(limit, Self::meet(&rendezvous, endpoint, config)).await {
            Ok(Ok(met)) => Ok(met),
            missed => {
                tracing::debug!(why = ?missed.map(drop), "the rendezvous failed; the connection stays with TCP");
                Ok(connection)
            }
        }
    }

    /// As [`Connection::connect`], over a pipe to a server's [`Intake`](super::Intake). Other connections can't join its results, and it uses no shared memory.
    /// `target` names the server in errors.
    ///
    /// # Errors
    /// If the server does not speak the protocol, refuses the token, or does not answer in time.
    pub async fn over(pipe: FramePipe, target: &str, config: &ClientConfig) -> Result<Self> {
        check_token(&config.token)?;
        Self::greet(Socket::pipe(pipe), config.token.clone(), None, target, config).await
    }

    /// As [`Connection::connect`], over a connection that the server has opened: tells it that the part is wanted,
    /// and says hello. Other connections can't join its results, and it uses no shared memory.
    ///
    /// # Errors
    /// As [`Connection::connect`].
    pub async fn accepted(
        pushed: PushedConnection,
        endpoint: &Endpoint,
        config: &ClientConfig,
    ) -> Result<Self> {
        check_token(&config.token)?;
        let config = ClientConfig { shared_memory: false, ..config.clone() };
        let socket = endpoint.secure(pushed.accept().await?, &config).await?;
        Self::greet(socket, config.token.clone(), None, &endpoint.to_string(), &config).await
    }

    /// Sends the hello on a socket, and waits for the welcome.
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
            (Carrier::Tcp | Carrier::Overlay, _) if config.peer => CAPABILITY_CLUSTER | CAPABILITY_RESIZE,
            (Carrier::Tcp, _) if same_host && config.shared_memory => {
                CAPABILITY_JOIN | CAPABILITY_RESIZE | CAPABILITY_RENDEZVOUS
            }
            (Carrier::Tcp, _) => CAPABILITY_JOIN | CAPABILITY_RESIZE,
            (Carrier::Overlay, _) => CAPABILITY_RESIZE,
            (Carrier::Unix | Carrier::SharedMemory, Some(_)) => CAPABILITY_SEGMENTS,
            (Carrier::Unix | Carrier::SharedMemory, None) => 0,
        };
        let capabilities = capabilities | CAPABILITY_RANGE_FILES | CAPABILITY_STATEMENTS | CAPABILITY_REASONS;
        let client = Client::new(Instant::now(), token, capabilities, config.ping_interval);
        let queue = ResultQueue::default();
        let incoming = queue.incoming.clone();
        let shared = ClientState { client, queues: HashMap::from([(0, queue)]), ended: None };
        let link = Arc::new(ClientLink { shared: Mutex::new(shared), outgoing: Notify::new(), ledger });
        let watched = tcp.as_ref().map_or_else(Weak::new, Arc::downgrade);
        let task = tokio::spawn(run(
            link.clone(),
            FrameReader::new(read, segments),
            FrameWriter::new(write, None),
            tcp,
        ));
        let mut connection = Self {
            link,
            driver: Arc::new(Driver(task)),
            same_host,
            rtt: Duration::ZERO,
            stream: 0,
            incoming,
            progress: Progress::default(),
            handed: None,
            carrier,
            tcp: watched,
            endpoint: endpoint.cloned(),
            // Connections that join a result use no rendezvous.
            config: ClientConfig { shared_memory: false, ..config.clone() },
            join_permit: None,
            joined: JoinSet::new(),
        };
        connection.rtt = connection.welcome(target, config.welcome_timeout).await?;
        let agreed = lock(&connection.link.shared).client.server().capabilities;
        if carrier == Carrier::Unix && agreed & CAPABILITY_SEGMENTS != 0 {
            connection.carrier = Carrier::SharedMemory;
        }
        Ok(connection)
    }

    /// Waits for the server's hello, if need be in its queue. Returns the time to its first answer.
    async fn welcome(&mut self, target: &str, limit: Duration) -> Result<Duration> {
        let greeted = Instant::now();
        let (mut rtt, mut after, mut awaited) = (None, limit, "no welcome");
        loop {
            // The limit counts from the client's hello, or from the server's last frame.
            let Ok(event) = timeout(after, self.next_event()).await else {
                return Err(TransportError::Unwelcome { target: target.to_owned(), awaited, after });
            };
            let rtt = *rtt.get_or_insert_with(|| greeted.elapsed());
            match event? {
                ClientEvent::Ready => return Ok(rtt),
                ClientEvent::Queued(queued) => {
                    tracing::info!(
                        ahead = queued.ahead,
                        wait_ms = queued.wait_ms,
                        "waiting in the server's queue"
                    );
                    after = limit + Duration::from_millis(queued.wait_ms.into()).min(QUEUE_TIMEOUT_MAX);
                    awaited =
                        "all its connections are taken, and it neither accepted nor refused this client";
                }
                other => return Err(TransportError::Protocol(format!("{other:?} instead of a hello"))),
            }
        }
    }

    /// Connects to a rendezvous, and verifies that it is the same server.
    async fn meet(found: &Rendezvous, endpoint: &Endpoint, config: &ClientConfig) -> Result<Self> {
        let socket = Socket::unix(rendezvous::go(found).await?, config.shared_memory);
        let target = endpoint.to_string();
        let token = found.client_token.clone();
        let connection = Self::greet(socket, token, Some(endpoint), &target, config).await?;
        if lock(&connection.link.shared).client.server().token == found.server_token {
            Ok(connection)
        } else {
            Err(TransportError::Protocol("another server answered at the rendezvous".into()))
        }
    }

    /// The same connection, for another concurrent result.
    #[must_use]
    pub fn share(&self) -> Self {
        Self {
            link: self.link.clone(),
            driver: self.driver.clone(),
            same_host: self.same_host,
            rtt: self.rtt,
            stream: 0,
            incoming: Arc::default(),
            progress: Progress::default(),
            handed: None,
            carrier: self.carrier,
            tcp: self.tcp.clone(),
            endpoint: self.endpoint.clone(),
            config: self.config.clone(),
            join_permit: None,
            joined: JoinSet::new(),
        }
    }

    /// Whether the connection is open, as far as is known.
    pub fn is_open(&self) -> bool {
        let shared = lock(&self.link.shared);
        shared.ended.is_none() && shared.client.has_streams_left() && !self.driver.0.is_finished()
    }

    /// The medium that carries the rows.
    pub fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// Whether the server is on this host. Then compression is not worth its time.
    pub fn same_host(&self) -> bool {
        self.same_host
    }

    /// The time between the two hellos. It includes proxies on the way and the time that the server was busy.
    pub fn rtt(&self) -> Duration {
        self.rtt
    }

    /// Whether sizes can change during a result.
    pub fn can_resize(&self) -> bool {
        lock(&self.link.shared).client.server().capabilities & CAPABILITY_RESIZE != 0
    }

    /// The sizes of the current result; `None` while a request for other sizes is pending.
    pub fn sizes(&self) -> Option<Sizes> {
        lock(&self.link.shared).client.sizes(self.stream)
    }

    /// Requests other sizes for the rest of the current result. Returns whether that was possible: it takes TCP,
    /// a server that supports it, and no pending request.
    pub fn resize(&mut self, sizes: Sizes) -> bool {
        let mut shared = lock(&self.link.shared);
        let before = shared.client.sizes(self.stream).map_or(0, |sizes| sizes.memory_bytes());
        let is_requested = shared.client.resize(self.stream, sizes);
        let payloads = shared.queues.get_mut(&self.stream).and_then(|queue| queue.stripe_payloads.as_mut());
        if let Some(payloads) = payloads.filter(|_| is_requested) {
            // What was sent with the old sizes still arrives.
            payloads.allow(before + sizes.memory_bytes());
        }
        drop(shared);
        self.link.outgoing.notify_one();
        is_requested
    }

    /// Adapts the plan to this connection. If no other connection can join a result (as on a Unix socket), all
    /// rows come over this one.
    pub fn settle(&self, plan: Plan) -> Plan {
        lock(&self.link.shared).client.settle(plan)
    }

    /// What the client measured of the result: the time of decoding and of the application.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Sends a query, after [`Connection::settle`]. An earlier result is cancelled first. Up to `joining`
    /// connections join the result at once; [`Connection::widen`] adds more.
    ///
    /// # Errors
    /// [`TransportError::Failed`] if the server refuses the query, and any error that ends the connection.
    pub async fn query(&mut self, query: &Query, joining: u32) -> Result<(SchemaRef, Option<u64>)> {
        self.request(&query.plan, joining, |client| client.query(query)).await
    }

    /// As [`Connection::query`], with the values of the statement's parameters: the columns of `parameters`, in order,
    /// which has one row. The server casts them to the types that the statement requires.
    ///
    /// # Errors
    /// As [`Connection::query`]; [`TransportError::TooOld`] if the server does not take parameters.
    pub async fn execute(
        &mut self,
        query: &Query,
        parameters: RecordBatch,
        joining: u32,
    ) -> Result<(SchemaRef, Option<u64>)> {
        let plan = self.settle(query.plan);
        let statement = Statement { sql: query.sql.clone(), plan, action: Action::Execute(parameters) };
        self.request(&plan, joining, |client| client.statement(&statement)).await
    }

    /// Asks for the columns and parameters of a statement, which is not executed. An earlier result is cancelled
    /// first.
    ///
    /// # Errors
    /// As [`Connection::query`]; [`TransportError::TooOld`] if the server describes no statements.
    pub async fn describe(&mut self, sql: &str) -> Result<Prepared> {
        let plan = Plan::default();
        let statement = Statement { sql: sql.to_owned(), plan, action: Action::Describe };
        self.request(&plan, 0, |client| client.statement(&statement)).await?;
        let mut described = None;
        while let Incoming::Rows(rows) = self.next().await? {
            described = described.or(blob(&rows, 0).map(Description::decode));
        }
        let absent = || TransportError::Protocol("a description without its row".into());
        let Description { columns, parameters, is_update } = described.ok_or_else(absent)??;
        // The server does not say whether the rows have an order.
        Ok(Prepared { columns: columns.into(), parameters: parameters.into(), is_update, is_ordered: true })
    }

    /// As [`Connection::query`], but sends a task.
    ///
    /// # Errors
    /// As [`Connection::query`], and [`TransportError::Config`] if the server does not take such tasks of this
    /// client.
    pub async fn task(&mut self, task: &Task) -> Result<SchemaRef> {
        Ok(self.request(&task.plan, 0, |client| client.task(task)).await?.0)
    }

    async fn request(
        &mut self,
        plan: &Plan,
        joining: u32,
        send: impl FnOnce(&mut Client) -> Result<u32>,
    ) -> Result<(SchemaRef, Option<u64>)> {
        self.cancel();
        (self.progress, self.handed) =
            (Progress { decoders: *PROCESSORS as u32, ..Progress::default() }, None);
        {
            let mut shared = lock(&self.link.shared);
            if let Some(ledger) = &self.link.ledger {
                ledger.allow_segment_bytes(plan.memory_bytes());
            }
            self.link.release(&mut shared.client);
            self.stream = send(&mut shared.client)?;
            let incoming = self.incoming.clone();
            shared.queues.insert(self.stream, ResultQueue { incoming, ..ResultQueue::default() });
        }
        self.link.outgoing.notify_one();
        loop {
            match self.next_event().await? {
                ClientEvent::StripeOffer(offer) => {
                    self.store_offer(offer, plan);
                    self.widen(joining);
                }
                ClientEvent::Accepted { schema, rows_estimate } => return Ok((schema, rows_estimate)),
                ClientEvent::Failed(failure) => {
                    self.forget();
                    return Err(failure.into());
                }
                other => return Err(TransportError::Protocol(format!("{other:?} instead of a schema"))),
            }
        }
    }

    /// Joins a result with this connection.
    pub(super) fn join(&mut self, join: &Join, message_bytes_max: u32) -> Result<()> {
        let mut shared = lock(&self.link.shared);
        self.stream = shared.client.join(join, message_bytes_max)?;
        let incoming = self.incoming.clone();
        shared.queues.insert(self.stream, ResultQueue { incoming, ..ResultQueue::default() });
        drop(shared);
        self.link.outgoing.notify_one();
        Ok(())
    }

    /// The next rows, or the end of the result. Call it no more after the end or an error.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`TransportError::Failed`] if the query fails, and any error that ends the connection.
    pub async fn next(&mut self) -> Result<Incoming> {
        if let Some((bytes, since)) = self.handed.take() {
            self.progress.consumed.add(bytes, nanoseconds(since.elapsed()));
        }
        loop {
            let event = match self.event().await? {
                Event::Rows(decoded) => return self.take(decoded).map(Incoming::Rows),
                Event::Lost(error) => {
                    self.cancel();
                    return Err(error);
                }
                // `event` waits until these are decoded or have arrived.
                Event::Decoding(_) | Event::Message(_) | Event::Pending(_) => continue,
                Event::Protocol(event) => event,
            };
            match event {
                ClientEvent::Finished(totals) => {
                    self.forget();
                    return Ok(Incoming::Finished(Box::new(totals)));
                }
                ClientEvent::Failed(failure) => {
                    self.forget();
                    return Err(failure.into());
                }
                ClientEvent::BatchEnd { credit } => self.consumed(credit),
                other => return Err(TransportError::Protocol(format!("{other:?} in a result"))),
            }
        }
    }

    fn take(&mut self, decoded: Decoded) -> Result<RecordBatch> {
        // If a message can't be decoded, the connection is unusable.
        let batch = decoded.rows.inspect_err(|_| self.abandon())?;
        let bytes = rows_bytes(&batch);
        self.progress.decoded[decoded.codec.index()].add(bytes, nanoseconds(decoded.took));
        self.handed = Some((bytes, Instant::now()));
        Ok(batch)
    }

    fn consumed(&mut self, credit: u32) {
        self.link.consumed(self.stream, credit, &self.progress);
    }

    /// Ends the connection for all that share it.
    fn abandon(&mut self) {
        self.driver.0.abort();
        self.forget();
        lock(&self.link.shared).end(Some(TransportError::Closed { during: Some("earlier") }));
    }

    /// Drops the state of the result, which has ended.
    fn forget(&mut self) {
        self.narrow();
        lock(&self.link.shared).queues.remove(&self.stream);
    }

    /// Cancels the current query. What still arrives of it is dropped.
    pub fn cancel(&mut self) {
        self.narrow();
        let mut shared = lock(&self.link.shared);
        if shared.queues.remove(&self.stream).is_some() {
            shared.client.cancel(self.stream);
            drop(shared);
            self.link.outgoing.notify_one();
        }
    }

    /// The next event, at a time when rows are not allowed.
    pub(super) async fn next_event(&mut self) -> Result<ClientEvent> {
        match self.event().await? {
            Event::Protocol(event) => Ok(event),
            _ => Err(TransportError::Protocol("rows instead of an answer".into())),
        }
    }

    /// The next event. Rows are returned once they are decoded. Cancel-safe.
    async fn event(&mut self) -> Result<Event> {
        loop {
            let next = poll_fn(|context| {
                let mut shared = lock(&self.link.shared);
                let Some(queue) = shared.queues.get_mut(&self.stream) else { return Poll::Ready(None) };
                let Some(front) = queue.events.front_mut() else { return Poll::Ready(None) };
                let decoded = match front {
                    Event::Pending(_) => return Poll::Ready(None),
                    Event::Decoding(job) => Some(ready!(Pin::new(job).poll(context))),
                    _ => None,
                };
                let event = queue.events.pop_front();
                Poll::Ready(match decoded {
                    Some(decoded) => Some(decoded.map(Event::Rows)),
                    None => event.map(Ok),
                })
            });
            match next.await {
                Some(Ok(Event::Message(message))) => return Ok(Event::Rows(decode(message))),
                Some(Ok(event)) => return Ok(event),
                Some(Err(error)) => {
                    self.abandon();
                    return Err(error.into());
                }
                None => {}
            }
            {
                let mut shared = lock(&self.link.shared);
                let queue = shared.queues.get(&self.stream);
                let is_empty = queue.is_none_or(|queue| queue.events.is_empty());
                let is_known = queue.is_some();
                // If the result is complete here, the rest may still come over joined connections.
                if is_empty && let Some(error) = shared.ended.take() {
                    shared.ended = Some(error.again());
                    return Err(error);
                }
                if !is_known {
                    return Err(Failure::new(
                        ErrorCode::Cancelled,
                        "no query is running, or it was cancelled",
                    )
                    .into());
                }
            }
            self.incoming.notified().await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.cancel();
    }
}
