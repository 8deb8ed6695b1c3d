//! Consumers that stall.

use std::time::Duration;

use lightship_transport::TransportError;
use lightship_transport::net::{ClientConfig, Connection, Endpoint, Listen, ServerConfig};
use lightship_wire::control::{ErrorCode, Hello, Plan, Query};
use lightship_wire::frame::FrameKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

const STALL: Duration = Duration::from_secs(2);

fn strict() -> ServerConfig {
    ServerConfig { stall_timeout: Some(STALL), ..ServerConfig::default() }
}

/// Takes what has come, and the error behind it.
async fn rest(connection: &mut Connection) -> TransportError {
    take(connection, BATCH_ROWS, u64::MAX).await.expect_err("not the whole result")
}

async fn check(server: &Running, config: &ClientConfig, plan: Plan) {
    let mut connection = server.try_connect(config).await.expect("a connection");
    let dropped = *server.service.dropped.borrow();
    ask(&mut connection, "1000000000", plan).await.expect("an answer");
    take(&mut connection, 0, BATCH_ROWS).await.expect("rows");
    // Its query is given up, and all that it holds.
    server.dropped(dropped + 1).await;
    let TransportError::Failed(failure) = rest(&mut connection).await else { panic!("another error") };
    assert_eq!(failure.code, ErrorCode::Stalled, "{failure}");
    assert!(!failure.retryable && failure.hint.is_some_and(|hint| hint.contains("--stall-timeout")));
    // The connection is as good as before.
    whole(&mut connection, 10, plan).await;
}

#[tokio::test]
async fn a_consumer_that_takes_no_rows() {
    let server = Running::start(strict()).await;
    let tcp = ClientConfig { shared_memory: false, ..ClientConfig::default() };
    check(&server, &tcp, plan(2)).await;
    // Through shared memory.
    check(&server, &ClientConfig::default(), plan(2)).await;
    // Over several connections.
    check(&server, &tcp, Plan { streams: 3, ..plan(8) }).await;
}

#[tokio::test]
async fn a_consumer_that_takes_no_rows_on_a_unix_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Running::start_at(Listen::Unix(folder.path().join("socket")), strict()).await;
    check(&server, &ClientConfig { shared_memory: false, ..ClientConfig::default() }, plan(2)).await;
}

#[tokio::test]
async fn a_consumer_that_reads_no_bytes() {
    let server = Running::start(strict()).await;
    let Endpoint::Tcp { host, port, .. } = &server.endpoint else { panic!("TCP") };
    let mut client = TcpStream::connect((host.as_str(), *port)).await.expect("connected");
    client.write_all(&frame(FrameKind::Hello, 0, 0, 0, &Hello::default().encode())).await.expect("sent");
    client.read_exact(&mut [0; 32]).await.expect("a welcome");
    // More than any socket takes.
    let large = Plan { window_batches: 1000, ..Plan::default() };
    let query = Query { sql: "1000000000".into(), plan: large };
    client.write_all(&frame(FrameKind::Query, 0, 1, 0, &query.encode())).await.expect("sent");
    server.dropped(1).await;
}

#[tokio::test]
async fn a_query_without_rows_to_send_does_not_stall() {
    let server = Running::start(strict()).await;
    let mut connection = server.connect().await;
    ask(&mut connection, "3 hang", plan(8)).await.expect("an answer");
    take(&mut connection, 0, 3 * BATCH_ROWS).await.expect("rows");
    let none = tokio::time::timeout(3 * STALL, take(&mut connection, 3 * BATCH_ROWS, u64::MAX)).await;
    assert!(none.is_err(), "{none:?}");
    connection.cancel();
    whole(&mut connection, 3, plan(2)).await;
}
