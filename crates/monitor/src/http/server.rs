//! Connections: TLS, limits and the end.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::{HttpOptions, routes};
use crate::recorder::Recorder;

/// The least that the head of a request may have, as the protocol's library demands.
const HEAD_BYTES_MIN: usize = 8192;
/// The most headers of a request.
const HEADERS_MAX: usize = 64;
/// The wait after a connection could not be accepted, for example because there are too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Serves a recorder until `stop` completes. Then no connection is accepted any more, and answers that are being sent
/// are awaited for [`HttpOptions::grace`].
///
/// # Errors
/// If the system provides no random bytes, or not the address of the listener. A connection that fails ends alone.
pub async fn serve(
    listener: TcpListener,
    recorder: Arc<Recorder>,
    options: HttpOptions,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let router = routes::router(recorder, &options, listener.local_addr()?.port())?;
    let acceptor = options.tls.clone().map(TlsAcceptor::from);
    let options = Arc::new(options);
    let permits = Arc::new(Semaphore::new(options.connections_max.max(1)));
    let (stopping, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        let accepted = async {
            let permit = permits.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, stream) = tokio::select! {
            () = &mut stop => break,
            // Ended connections are taken out, so that they do not add up.
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            (permit, accepted) = accepted => match (permit, accepted) {
                (Ok(permit), Ok((stream, _))) => (permit, stream),
                (_, Err(error)) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    sleep(ACCEPT_RETRY).await;
                    continue;
                }
                (Err(_), _) => break,
            },
        };
        let (router, acceptor, options, stopped) =
            (router.clone(), acceptor.clone(), options.clone(), stopped.clone());
        connections.spawn(async move {
            connection(stream, acceptor, router, &options, stopped).await;
            drop(permit);
        });
    }
    drop((listener, stopping));
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    router: Router,
    options: &HttpOptions,
    stopped: watch::Receiver<()>,
) {
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else { return answer(stream, router, options, stopped).await };
    let mut ending = stopped.clone();
    tokio::select! {
        _ = ending.changed() => {}
        accepted = timeout(options.head_timeout, acceptor.accept(stream)) => {
            if let Ok(Ok(stream)) = accepted {
                answer(stream, router, options, stopped).await;
            }
        }
    }
}

/// Answers the requests of a connection, until it ends, its time is over, or the server ends.
async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    options: &HttpOptions,
    mut stopped: watch::Receiver<()>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(options.head_timeout)
        .max_buf_size(options.head_bytes_max.max(HEAD_BYTES_MIN))
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        // The sender is gone: the server ends.
        _ = stopped.changed() => {}
        () = sleep(options.connection_timeout) => {}
    }
    connection.as_mut().graceful_shutdown();
    // A client that does not read its answer is not awaited.
    let _ = timeout(options.grace, connection).await;
}
