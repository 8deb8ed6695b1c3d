//! One connection: TLS, HTTP/2, and the check of each request before anything of it is read.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow_flight::flight_service_server::FlightServiceServer;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lightship_wire::control::{ErrorCode, Failure};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as _;

use crate::FlightConfig;
use crate::front::Front;
use crate::gate::Gate;
use crate::server::down;
use crate::status::status;

/// The most bytes of the headers of a request. A token is in them.
const HEADERS_BYTES_MAX: u32 = 16 << 10;
/// The largest message of a request that sends no rows: a statement with its parameters, or all about a result.
const REQUEST_BYTES_MAX: usize = 8 << 20;
/// What HTTP/2 keeps of a stream that the socket does not take yet.
const SEND_BUFFER_BYTES: usize = 256 << 10;

/// What all connections share.
pub(crate) struct Connections {
    config: Arc<FlightConfig>,
    gate: Arc<Gate>,
    flight: FlightServiceServer<Front>,
    /// The same for requests that send rows, whose messages may be larger.
    uploads: FlightServiceServer<Front>,
    slots: Arc<Semaphore>,
    arriving: Arc<Semaphore>,
}

/// A request whose message arrives. It is among the request's extensions, and is dropped when the message is handled.
struct Arriving {
    _permit: OwnedSemaphorePermit,
    arrived: Arc<Notify>,
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.arrived.notify_one();
    }
}

/// The slot of a connection, which it gets with its first request that has a token.
#[derive(Default)]
struct Slot(Mutex<Option<OwnedSemaphorePermit>>);

impl Connections {
    pub(crate) fn new(config: Arc<FlightConfig>, gate: Arc<Gate>, front: Front) -> Self {
        let front = Arc::new(front);
        let flight =
            |bytes_max| FlightServiceServer::from_arc(front.clone()).max_decoding_message_size(bytes_max);
        let uploads = flight(config.request_bytes_max as usize);
        let flight = flight(REQUEST_BYTES_MAX);
        let slots = Arc::new(Semaphore::new(config.connections_max.min(Semaphore::MAX_PERMITS)));
        let arriving = Arc::new(Semaphore::new(config.arriving_max.min(Semaphore::MAX_PERMITS)));
        Self { config, gate, flight, uploads, slots, arriving }
    }

    /// Serves a connection from its first byte to its end.
    pub(crate) async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        acceptor: Option<TlsAcceptor>,
        mut shutdown: watch::Receiver<bool>,
    ) {
        let began = Instant::now();
        let _ = stream.set_nodelay(true);
        let Some(acceptor) = acceptor else { return self.converse(stream, began, shutdown).await };
        let deadline = began + self.config.handshake_timeout;
        let accepted = tokio::select! {
            () = down(&mut shutdown) => return,
            accepted = timeout_at(deadline.into(), acceptor.accept(stream)) => accepted,
        };
        if let Ok(Ok(stream)) = accepted {
            self.converse(stream, began, shutdown).await;
        }
    }

    /// Answers the requests of a connection until it ends, shows no token in time, or the server ends.
    async fn converse(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        began: Instant,
        mut shutdown: watch::Receiver<bool>,
    ) {
        let config = &self.config;
        let slot = Arc::<Slot>::default();
        let tasks = Tasks::default();
        let _ends_with_the_connection = AbortOnDrop(tasks.clone());
        let (connections, of_requests) = (self.clone(), slot.clone());
        let service = service_fn(move |request| connections.clone().answer(request, of_requests.clone()));
        let connection = http2::Builder::new(tasks)
            .timer(TokioTimer::new())
            .max_concurrent_streams(config.requests_max)
            .max_header_list_size(HEADERS_BYTES_MAX)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .keep_alive_interval(config.ping_interval)
            .keep_alive_timeout(config.ping_interval * 2)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let mut unauthenticated = pin!(sleep_until((began + config.handshake_timeout).into()));
        let mut is_early = true;
        loop {
            tokio::select! {
                _ = connection.as_mut() => return,
                () = &mut unauthenticated, if is_early => {
                    if !slot.is_taken() {
                        return;
                    }
                    is_early = false;
                }
                () = down(&mut shutdown) => break,
            }
        }
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }

    /// Answers a request. Without a token, only its headers are read.
    async fn answer(
        self: Arc<Self>,
        mut request: http::Request<Incoming>,
        slot: Arc<Slot>,
    ) -> Result<http::Response<Body>, Infallible> {
        if let Err(refusal) = self.gate.check(request.headers()).await {
            return Ok(refusal.into_http());
        }
        if !slot.take(&self.slots) {
            let max = self.config.connections_max;
            let busy = Failure::new(ErrorCode::Busy, format!("all {max} connections of the node are taken"))
                .hint("try again later");
            return Ok(status(&busy).into_http());
        }
        let arrived = Arc::<Notify>::default();
        // The semaphore is never closed.
        if let Ok(permit) = self.arriving.clone().acquire_owned().await {
            let arriving = Arriving { _permit: permit, arrived: arrived.clone() };
            request.extensions_mut().insert(Arc::new(arriving));
        }
        let sends_rows = request.uri().path().ends_with("/DoPut");
        let mut flight = if sends_rows { &self.uploads } else { &self.flight }.clone();
        tokio::select! {
            answer = flight.call(request) => answer,
            () = overdue(&arrived, self.config.handshake_timeout) => {
                Ok(Status::deadline_exceeded("the request did not arrive in time").into_http())
            }
        }
    }
}

/// Returns if a request does not arrive in time.
async fn overdue(arrived: &Notify, limit: Duration) {
    if timeout(limit, arrived.notified()).await.is_ok() {
        std::future::pending().await
    }
}

impl Slot {
    /// Takes a slot unless it has one. `false` if all are taken.
    fn take(&self, slots: &Arc<Semaphore>) -> bool {
        let mut slot = lock(&self.0);
        if slot.is_none() {
            *slot = slots.clone().try_acquire_owned().ok();
        }
        slot.is_some()
    }

    fn is_taken(&self) -> bool {
        lock(&self.0).is_some()
    }
}

/// The tasks of a connection, one for each request.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl<F> Executor<F> for Tasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let mut tasks = lock(&self.0);
        // Ended tasks are taken out, so that they do not add up.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

/// Ends the tasks of a connection with it.
struct AbortOnDrop(Tasks);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        lock(&self.0.0).abort_all();
    }
}

/// Locks a mutex. A panic of another holder is ignored.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
