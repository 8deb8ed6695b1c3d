//! Connections that end: peers that fall silent, go away, or shut down.

use std::time::{Duration, Instant};

use lightship_transport::TransportError;
use lightship_transport::net::{ClientConfig, Connection, Endpoint, ServerConfig};
use lightship_wire::control::{ErrorCode, Hello, Query};
use lightship_wire::frame::FrameKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

const PING: Duration = Duration::from_millis(40);

fn hello() -> Vec<u8> {
    frame(
        FrameKind::Hello,
        0,
        0,
        0,
        &Hello { agent: "test".into(), ping_interval_ms: 40, ..Hello::default() }.encode(),
    )
}

fn quick() -> ClientConfig {
    ClientConfig { ping_interval: PING, ..ClientConfig::default() }
}

/// A server that welcomes one client and says nothing more.
async fn silent_server() -> (Endpoint, tokio::task::JoinHandle<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        stream.write_all(&hello()).await.expect("sent");
        stream
    });
    (Endpoint::Tcp { host: "127.0.0.1".into(), port, tls: None }, server)
}

#[tokio::test]
async fn a_silent_server_is_given_up() {
    let (endpoint, server) = silent_server().await;
    let mut connection = Connection::connect(&endpoint, &quick()).await.expect("a connection");
    let _open = server.await.expect("no panic");
    let began = Instant::now();
    let error = ask(&mut connection, "1", plan(1)).await.expect_err("silence");
    assert!(matches!(error, TransportError::Silent { after } if after >= 3 * PING), "{error}");
    assert!(began.elapsed() < 20 * PING, "{:?}", began.elapsed());
    // And stays given up.
    assert!(matches!(ask(&mut connection, "1", plan(1)).await, Err(TransportError::Silent { .. })));
}

#[tokio::test]
async fn a_silent_client_is_given_up() {
    let server = Running::start(ServerConfig { ping_interval: PING, ..ServerConfig::default() }).await;
    let Endpoint::Tcp { host, port, .. } = &server.endpoint else { panic!("TCP") };
    let mut client = TcpStream::connect((host.as_str(), *port)).await.expect("connected");
    client.write_all(&hello()).await.expect("sent");
    let query = Query { sql: "1 hang".into(), plan: plan(1) }.encode();
    let mut welcome = [0; 32];
    client.read_exact(&mut welcome).await.expect("a welcome");
    client.write_all(&frame(FrameKind::Query, 0, 1, 0, &query)).await.expect("sent");
    // It reads everything, pings too, and never says a word.
    within(client.read_to_end(&mut Vec::new())).await.expect("closed");
    server.dropped(1).await;
}

#[tokio::test]
async fn slow_peers_are_not_given_up() {
    let server = Running::start(ServerConfig { ping_interval: PING, ..ServerConfig::default() }).await;
    let mut connection = server.try_connect(&quick()).await.expect("a connection");
    ask(&mut connection, "1000 hang", plan(2)).await.expect("an answer");
    take(&mut connection, 0, BATCH_ROWS).await.expect("rows");
    // Neither the consumer's pause nor the producer's ends it: both answer pings.
    tokio::time::sleep(6 * PING).await;
    take(&mut connection, BATCH_ROWS, 1000 * BATCH_ROWS).await.expect("rows");
    tokio::time::timeout(6 * PING, take(&mut connection, 1000 * BATCH_ROWS, u64::MAX))
        .await
        .expect_err("pending");
    connection.cancel();
    whole(&mut connection, 3, plan(2)).await;
}

#[tokio::test]
async fn a_client_that_disconnects_frees_its_query() {
    let server = Running::start(ServerConfig { connections_max: 1, ..ServerConfig::default() }).await;
    for (round, sql) in (1..).zip(["1000000000", "1 hang", "1000000000", "0 hang"]) {
        let connect = async {
            loop {
                if let Ok(connection) = server.try_connect(&ClientConfig::default()).await {
                    return connection;
                }
                tokio::task::yield_now().await;
            }
        };
        let mut connection = within(connect).await;
        ask(&mut connection, sql, plan(2)).await.expect("an answer");
        drop(connection);
        server.dropped(round).await;
    }
}

#[tokio::test]
async fn a_server_that_disconnects_is_noticed_at_once() {
    let (endpoint, server) = silent_server().await;
    let mut connection =
        Connection::connect(&endpoint, &ClientConfig::default()).await.expect("a connection");
    drop(server.await.expect("no panic"));
    let error = ask(&mut connection, "1", plan(1)).await.expect_err("closed");
    assert!(matches!(error, TransportError::Closed { .. } | TransportError::Io(_)), "{error}");
}

#[tokio::test]
async fn a_shutdown_lets_results_end_and_notifies_idle_clients() {
    let server = Running::start(ServerConfig::default()).await;
    let (mut busy, mut idle) = (server.connect().await, server.connect().await);
    ask(&mut busy, "300", plan(2)).await.expect("an answer");
    take(&mut busy, 0, BATCH_ROWS).await.expect("rows");
    server.stop.send(true).expect("it runs");
    let error = match ask(&mut idle, "1", plan(1)).await {
        Err(error) => error,
        // The question was quicker than the word of the shutdown.
        Ok(()) => take(&mut idle, 0, u64::MAX).await.err().unwrap_or(TransportError::Closed { during: None }),
    };
    assert!(
        code(&error) == Some(ErrorCode::ShuttingDown)
            || matches!(error, TransportError::Closed { .. } | TransportError::Io(_)),
        "{error}"
    );
    assert_eq!(take(&mut busy, BATCH_ROWS, u64::MAX).await.expect("rows"), 300 * BATCH_ROWS);
    within(server.ended).await.expect("no panic").expect("a clean end");
    assert!(Connection::connect(&server.endpoint, &quick()).await.is_err(), "it still listens");
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_ever() {
    let grace = Duration::from_millis(100);
    let server = Running::start(ServerConfig { shutdown_grace: grace, ..ServerConfig::default() }).await;
    let mut stuck = server.connect().await;
    ask(&mut stuck, "1 hang", plan(2)).await.expect("an answer");
    take(&mut stuck, 0, BATCH_ROWS).await.expect("rows");
    let began = Instant::now();
    server.stop.send(true).expect("it runs");
    within(server.ended).await.expect("no panic").expect("a clean end");
    assert!(began.elapsed() >= grace && began.elapsed() < PATIENCE / 4, "{:?}", began.elapsed());
    let error = take(&mut stuck, BATCH_ROWS, u64::MAX).await.expect_err("cut off");
    assert!(matches!(error, TransportError::Closed { .. } | TransportError::Io(_)), "{error}");
    assert_eq!(*server.service.dropped.borrow(), 1);
}
