//! Opens sockets to a server, with encryption as `sslmode` requires: for connections, and for requests to
//! cancel a statement.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use futures::future::BoxFuture;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::super::config::{Config, Host, SslMode};
use crate::bulk::Bulk;
use crate::tls::{self, Socket, Verify};
use crate::{Result, SourceError};

/// How long the server may take to end a session whose statement is cancelled.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long rows of a cancelled statement are read.
const ROWS_READ_MAX: Duration = Duration::from_millis(600);
/// When a cancel request is first repeated; the time doubles with each request.
const CANCEL_AGAIN: Duration = Duration::from_millis(100);

/// Connects to the server, with encryption as `sslmode` requires. Boxed, because
/// the futures of TLS handshakes are large.
pub(super) fn dial<'a>(
    config: &'a Config,
    rows_expected: &'a Arc<AtomicBool>,
) -> BoxFuture<'a, Result<Box<dyn Socket>>> {
    Box::pin(async move {
        let fail = |e: io::Error| cant_connect(config, e.to_string(), Some(e));
        let host = match &config.host {
            Host::Unix(_) => {
                let path = config.socket().unwrap_or_default();
                return Ok(Box::new(UnixStream::connect(path).await.map_err(fail)?) as Box<dyn Socket>);
            }
            Host::Tcp(host) => host,
        };
        let tcp = TcpStream::connect((&**host, config.port)).await.map_err(fail)?;
        tcp.set_nodelay(true).map_err(fail)?;
        let keepalive = socket2::TcpKeepalive::new().with_time(Duration::from_secs(60));
        socket2::SockRef::from(&tcp).set_tcp_keepalive(&keepalive).map_err(fail)?;
        let mut tcp = Bulk::new(tcp, rows_expected.clone());
        if config.ssl_mode == SslMode::Disable {
            return Ok(Box::new(tcp) as Box<dyn Socket>);
        }
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        tcp.write_all(&request).await.map_err(fail)?;
        match tcp.read_u8().await.map_err(fail)? {
            b'S' => {}
            b'N' if config.ssl_mode == SslMode::Prefer => return Ok(Box::new(tcp) as Box<dyn Socket>),
            b'N' => {
                return Err(cant_connect(
                    config,
                    "the server has no TLS, but sslmode requires it".into(),
                    None,
                ));
            }
            _ => return Err(cant_connect(config, "it is not a PostgreSQL server".into(), None)),
        }
        let verify = match config.ssl_mode {
            SslMode::Disable | SslMode::Prefer => Verify::Nothing,
            // libpq verifies under `require` only when it was given an authority.
            SslMode::Require if config.ssl_root.is_none() => Verify::Nothing,
            SslMode::Require | SslMode::VerifyCa => Verify::Authority,
            SslMode::VerifyFull => Verify::Name,
        };
        let connector = tls::connector(verify, config.ssl_root.as_slice());
        let connector = connector.map_err(|reason| cant_connect(config, reason, None))?;
        let name = rustls::pki_types::ServerName::try_from(host.clone())
            .map_err(|e| cant_connect(config, e.to_string(), None))?;
        Ok(Box::new(connector.connect(name, tcp).await.map_err(fail)?) as Box<dyn Socket>)
    })
}

/// Ends the session of `socket`, on which a statement may still run: cancels the statement, and waits until
/// the server has closed the connection. A cancel request that comes before the server has read the
/// statement, or between two statements, does nothing, so it is repeated.
///
/// # Errors
/// If the session has not ended after [`CANCEL_TIMEOUT`]: the reason. Then the statement may still run.
pub(super) async fn end_session(
    config: Arc<Config>,
    key: (i32, i32),
    socket: Box<dyn Socket>,
) -> Result<(), String> {
    let (mut read, mut write) = tokio::io::split(socket);
    let reads = AtomicBool::new(false);
    let mut refused = None;
    let work = async {
        let discard = async {
            let mut rows = vec![0; 64 << 10];
            while let Ok(1..) = read.read(&mut rows).await {
                reads.store(true, Ordering::Relaxed);
            }
        };
        // The server closes the connection when it reads the end. How it ends does not matter.
        let mut ended = pin!(async { tokio::join!(write.shutdown(), discard) });
        let (began, mut wait) = (Instant::now(), CANCEL_AGAIN);
        loop {
            refused = request_cancel(&config, key).await.err();
            reads.store(false, Ordering::Relaxed);
            if tokio::time::timeout(wait, &mut ended).await.is_ok() {
                return;
            }
            // A server that still sends rows notices that the socket is closed.
            if reads.load(Ordering::Relaxed) && began.elapsed() > ROWS_READ_MAX {
                return;
            }
            wait *= 2;
        }
    };
    if tokio::time::timeout(CANCEL_TIMEOUT, work).await.is_ok() {
        return Ok(());
    }
    let waited = || format!("its session has not ended within {} s", CANCEL_TIMEOUT.as_secs());
    Err(refused.map_or_else(waited, |error: io::Error| error.to_string()))
}

/// Asks the server to cancel what one connection runs now, if anything.
async fn request_cancel(config: &Config, (process, secret): (i32, i32)) -> io::Result<()> {
    let mut socket = dial(config, &Arc::default()).await.map_err(io::Error::other)?;
    let mut request = BytesMut::new();
    frontend::cancel_request(process, secret, &mut request);
    socket.write_all(&request).await?;
    socket.flush().await?;
    // The server closes the connection once it has passed the request on; how does not matter.
    let _ = socket.read_u8().await;
    Ok(())
}

pub(super) fn cant_connect(config: &Config, reason: String, source: Option<io::Error>) -> SourceError {
    SourceError::Connect { target: config.target(), reason, source: source.map(|e| Box::new(e) as _) }
}
