//! The side that answers: listeners, connections and their tasks.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lightship_wire::control::{Accepted as AcceptedQuery, ErrorCode, Failure, Hello, Query};
use lightship_wire::tuning::Progress;
use subtle::ConstantTimeEq;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::answer::Answering;
use super::frames::{FrameReader, FrameWriter};
use super::listen::{Accepted, Listen, Listener};
use super::meter::Meter;
use super::{Answer, ReadHalf, Service, WriteHalf, lock};
use crate::proto::{Server as Proto, ServerEvent};
use crate::{Result, TransportError};

/// So many connections beyond the limit are told that it is reached; any more are just closed.
const REFUSALS_MAX: usize = 64;

/// How a server behaves.
#[derive(Clone)]
pub struct ServerConfig {
    /// Certificate and key; none means plain TCP. Unix sockets never use TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Bearer tokens that are let in; none lets everybody in.
    pub tokens: Vec<String>,
    /// Allows listening beyond this host without TLS and tokens.
    pub insecure: bool,
    /// Connections at once; one more is told to come later. Each may hold a
    /// message, a batch of the engine and the engine's own state.
    pub connections_max: usize,
    /// Largest message that a client can ask for; single rows may be larger.
    pub message_bytes_max: u32,
    /// TLS and hello together may take this long.
    pub handshake_timeout: Duration,
    /// A quiet client is pinged after this long, and given up after three times this.
    pub ping_interval: Duration,
    /// How long running queries may go on after a shutdown was asked for.
    pub shutdown_grace: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            tls: None,
            tokens: Vec::new(),
            insecure: false,
            connections_max: 256,
            message_bytes_max: 32 << 20,
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

/// A server that listens and has not yet begun to answer.
pub struct Server {
    listeners: Vec<Listener>,
    config: Arc<ServerConfig>,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// [`TransportError::Config`] for an address beyond this host without both
    /// TLS and a token, unless that was allowed; [`TransportError::Connect`]
    /// when the address can't be had.
    pub async fn bind(listen: &[Listen], config: ServerConfig) -> Result<Self> {
        let safe = config.tls.is_some() && !config.tokens.is_empty();
        if let Some(open) = listen.iter().find(|l| !l.is_local() && !safe && !config.insecure) {
            return Err(TransportError::Config(format!(
                "{open} can be reached from other hosts, which takes TLS and a token"
            )));
        }
        let mut listeners = Vec::new();
        for listen in listen {
            let fail = |source| TransportError::Connect { target: listen.to_string(), source };
            listeners.push(Listener::bind(listen).await.map_err(fail)?);
        }
        Ok(Self { listeners, config: Arc::new(config) })
    }

    /// The addresses in use.
    ///
    /// # Errors
    /// When the system can't say.
    pub fn local(&self) -> Result<Vec<Listen>> {
        Ok(self.listeners.iter().map(Listener::local).collect::<Result<_, _>>()?)
    }

    /// Answers until `shutdown` becomes true; then running queries may finish
    /// within the grace period, and all connections are closed.
    ///
    /// # Errors
    /// When a listener fails for good.
    pub async fn run(self, service: Arc<dyn Service>, mut shutdown: watch::Receiver<bool>) -> Result<()> {
        let places = Arc::new(Semaphore::new(self.config.connections_max));
        let mut tasks = JoinSet::new();
        loop {
            let accepting = futures::future::select_all(self.listeners.iter().map(|l| Box::pin(l.accept())));
            tokio::select! {
                (accepted, _, _) = accepting => match accepted {
                    Ok(_) if tasks.len() >= self.config.connections_max + REFUSALS_MAX => {}
                    Ok((stream, peer)) => {
                        let (config, service) = (self.config.clone(), service.clone());
                        let (places, shutdown) = (places.clone(), shutdown.clone());
                        tasks.spawn(async move {
                            let place = places.try_acquire();
                            let handler = Handler { config, service, full: place.is_err(), shutdown };
                            match handler.serve(stream).await {
                                Ok(()) => tracing::debug!(peer, "connection closed"),
                                Err(error) => tracing::info!(peer, %error, "connection ended"),
                            }
                        });
                    }
                    Err(error) => {
                        // Out of descriptors, or a client that left again: others can still be served.
                        tracing::warn!(%error, "accept failed");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
                () = down(&mut shutdown) => break,
            }
        }
        drop(self.listeners);
        let ended = async { while tasks.join_next().await.is_some() {} };
        if timeout(self.config.shutdown_grace, ended).await.is_err() {
            tracing::warn!(
                connections = tasks.len(),
                "closing connections whose queries did not end in time"
            );
        }
        tasks.shutdown().await;
        Ok(())
    }
}

async fn down(shutdown: &mut watch::Receiver<bool>) {
    // A sender that is gone will never ask for more: that is a shutdown too.
    let _ = shutdown.wait_for(|&down| down).await;
}

struct Handler {
    config: Arc<ServerConfig>,
    service: Arc<dyn Service>,
    full: bool,
    shutdown: watch::Receiver<bool>,
}

/// What the futures of one connection share.
pub(super) struct Link {
    pub(super) shared: Mutex<Shared>,
    /// Something to send, or something in the mail.
    pub(super) wake: Notify,
}

pub(super) struct Shared {
    pub(super) proto: Proto,
    hello: Option<Hello>,
    query: Option<Query>,
    pub(super) cancelled: bool,
    /// What the consumer measured, when it last said so.
    pub(super) progress: Option<Progress>,
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

impl Handler {
    async fn serve(self, stream: Accepted) -> Result<()> {
        let limit = self.config.handshake_timeout;
        let late = |_| TransportError::Silent { after: limit };
        let (read, write, mut meter) = timeout(limit, self.open(stream)).await.map_err(late)??;
        let proto = Proto::new(Instant::now(), self.config.ping_interval);
        let shared = Shared { proto, hello: None, query: None, cancelled: false, progress: None };
        let link = Link { shared: Mutex::new(shared), wake: Notify::new() };
        let mut writer = FrameWriter::new(write);
        let ended = tokio::select! {
            ended = receive(&link, FrameReader::new(read)) => ended,
            ended = self.answer_all(&link, &mut writer, &mut meter) => ended,
            ended = keep_time(&link) => ended,
        };
        // Whoever speaks another protocol, or breaks this one, is told so before the door closes.
        if let Err(error @ (TransportError::Wire(_) | TransportError::Protocol(_))) = &ended {
            lock(&link.shared).proto.refuse(&Proto::protocol_failure(error));
            let _ = timeout(limit, flush(&link, &mut writer)).await;
        }
        let _ = timeout(limit, writer.shutdown()).await;
        ended
    }

    async fn open(&self, stream: Accepted) -> Result<(ReadHalf, WriteHalf, Meter)> {
        let meter = match &stream {
            Accepted::Unix(_) => Meter::other(),
            Accepted::Tcp(stream) => Meter::tcp(stream),
        };
        let (read, write): (ReadHalf, WriteHalf) = match (stream, &self.config.tls) {
            (Accepted::Unix(stream), _) => {
                let (read, write) = stream.into_split();
                (Box::new(read), Box::new(write))
            }
            (Accepted::Tcp(stream), None) => {
                let (read, write) = stream.into_split();
                (Box::new(read), Box::new(write))
            }
            (Accepted::Tcp(stream), Some(tls)) => {
                let stream = TlsAcceptor::from(tls.clone()).accept(stream).await?;
                let (read, write) = tokio::io::split(stream);
                (Box::new(read), Box::new(write))
            }
        };
        Ok((read, write, meter))
    }

    /// Hello, then one query after the other.
    async fn answer_all(&self, link: &Link, writer: &mut FrameWriter, meter: &mut Meter) -> Result<()> {
        let limit = self.config.handshake_timeout;
        let hello = async {
            loop {
                if let Some(hello) = lock(&link.shared).hello.take() {
                    return hello;
                }
                link.wake.notified().await;
            }
        };
        let hello = timeout(limit, hello).await.map_err(|_| TransportError::Silent { after: limit })?;
        if let Some(refusal) = self.refusal(&hello) {
            lock(&link.shared).proto.refuse(&refusal);
            flush(link, writer).await?;
            return Err(refusal.into());
        }
        lock(&link.shared).proto.welcome();
        let mut shutdown = self.shutdown.clone();
        loop {
            flush(link, writer).await?;
            let query = lock(&link.shared).query.take();
            if let Some(query) = query {
                match self.answer(query, link, writer, meter).await {
                    Ok(()) => {}
                    Err(Stop::Failed(failure)) => {
                        tracing::info!(code = ?failure.code, error = %failure, "query failed");
                        lock(&link.shared).proto.fail(&failure);
                    }
                    Err(Stop::Broken(error)) => return Err(error),
                }
                continue;
            }
            tokio::select! {
                () = link.wake.notified() => {}
                () = down(&mut shutdown) => {
                    let failure = Failure::new(ErrorCode::ShuttingDown, "the node is shutting down");
                    lock(&link.shared).proto.refuse(&failure);
                    return flush(link, writer).await;
                }
            }
        }
    }

    fn refusal(&self, hello: &Hello) -> Option<Failure> {
        let known = self.config.tokens.iter().fold(subtle::Choice::from(0), |known, token| {
            known | token.as_bytes().ct_eq(hello.token.as_bytes())
        });
        if !self.config.tokens.is_empty() && !bool::from(known) {
            let what = if hello.token.is_empty() { "a token is needed" } else { "the token is not known" };
            return Some(
                Failure::new(ErrorCode::Unauthenticated, what)
                    .hint("give it in the URI, lightship://TOKEN@host, or in LIGHTSHIP_TOKEN"),
            );
        }
        self.full.then(|| {
            let message = format!("all {} connections of the node are taken", self.config.connections_max);
            Failure::new(ErrorCode::Busy, message)
        })
    }

    async fn answer(
        &self,
        mut query: Query,
        link: &Link,
        writer: &mut FrameWriter,
        meter: &mut Meter,
    ) -> Result<(), Stop> {
        let plan = &mut query.plan;
        plan.message_bytes = plan.message_bytes.min(self.config.message_bytes_max);
        let planning = attended(self.service.query(&query), link, writer).await?;
        let Answer { schema, rows_estimate, rows } = planning?;
        let accepted = AcceptedQuery { schema: schema.as_ref().clone(), rows_estimate };
        lock(&link.shared)
            .proto
            .accept(&accepted)
            .map_err(|e| Failure::new(ErrorCode::Internal, e.to_string()))?;

        Answering::new(link, writer, meter, query.plan, schema).run(rows).await
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

pub(super) async fn flush(link: &Link, writer: &mut FrameWriter) -> Result<()> {
    let frames: Vec<_> = {
        let mut shared = lock(&link.shared);
        std::iter::from_fn(|| shared.proto.poll_transmit()).collect()
    };
    if !frames.is_empty() {
        writer.write(&frames).await?;
    }
    Ok(())
}

async fn receive(link: &Link, mut reader: FrameReader) -> Result<()> {
    loop {
        let limit = |kind| lock(&link.shared).proto.payload_bytes_max(kind);
        let alive = || lock(&link.shared).proto.received(Instant::now());
        let Some((header, payload)) = reader.next(limit, alive).await? else {
            let idle = lock(&link.shared).proto.is_idle();
            return if idle {
                Ok(())
            } else {
                Err(TransportError::Closed { during: Some("before its result was complete") })
            };
        };
        let mut shared = lock(&link.shared);
        match shared.proto.handle(Instant::now(), &header, &payload)? {
            Some(ServerEvent::Hello(hello)) => shared.hello = Some(hello),
            Some(ServerEvent::Query(query)) => {
                (shared.query, shared.cancelled, shared.progress) = (Some(query), false, None);
            }
            Some(ServerEvent::Cancel) => shared.cancelled = true,
            Some(ServerEvent::Progress(progress)) => shared.progress = Some(progress),
            None => {}
        }
        link.wake.notify_one();
    }
}

async fn keep_time(link: &Link) -> Result<()> {
    loop {
        let deadline = lock(&link.shared).proto.deadline();
        tokio::time::sleep_until(deadline.into()).await;
        lock(&link.shared).proto.wake(Instant::now())?;
        link.wake.notify_one();
    }
}
