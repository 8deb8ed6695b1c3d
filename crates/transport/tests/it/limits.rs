//! What is bounded: memory on both sides, connections, rows.

use std::time::Duration;

use lightship_transport::TransportError;
use lightship_transport::net::{ClientConfig, Listen, Server, ServerConfig};
use lightship_wire::control::{ErrorCode, Plan};

use crate::support::*;

#[tokio::test]
async fn a_consumer_that_waits_holds_the_producer_back() {
    let server = Running::start(ServerConfig::default()).await;
    for window in [1, 2, 7] {
        let (before, mut connection) = (server.made(), server.connect().await);
        ask(&mut connection, "1000000000", plan(window)).await.expect("an answer");
        // One batch is read and its end is not: no credit has gone back.
        take(&mut connection, 0, BATCH_ROWS).await.expect("rows");
        // Others get their rows meanwhile: the producer has had its chance.
        let between = server.made();
        whole(&mut server.connect().await, 100, plan(2)).await;
        let made = server.made() - before - 100;
        assert!(between - before <= made && made <= u64::from(window) + 2, "{made} of a window of {window}");
        // It goes on as it is read.
        take(&mut connection, BATCH_ROWS, 50 * BATCH_ROWS).await.expect("rows");
    }
}

#[tokio::test]
async fn connections_over_the_limit_are_told_so() {
    let server = Running::start(ServerConfig { connections_max: 2, ..ServerConfig::default() }).await;
    let mut first = server.connect().await;
    let second = server.connect().await;
    for _ in 0..5 {
        let Err(error) = server.try_connect(&ClientConfig::default()).await else { panic!("let in") };
        assert_eq!(code(&error), Some(ErrorCode::Busy), "{error}");
        let TransportError::Failed(failure) = error else { panic!("{error}") };
        assert!(failure.retryable);
    }
    whole(&mut first, 5, plan(2)).await;
    drop(second);
    let place = async {
        loop {
            if let Ok(connection) = server.try_connect(&ClientConfig::default()).await {
                return connection;
            }
            tokio::task::yield_now().await;
        }
    };
    whole(&mut within(place).await, 5, plan(2)).await;
}

#[tokio::test]
async fn tokens() {
    let tokens = vec!["one".to_owned(), "two".to_owned()];
    let server = Running::start(ServerConfig { tokens, ..ServerConfig::default() }).await;
    for (token, good) in [("one", true), ("two", true), ("", false), ("on", false), ("onetwo", false)] {
        let config = ClientConfig { token: token.into(), ..ClientConfig::default() };
        match server.try_connect(&config).await {
            Ok(mut connection) => {
                assert!(good, "{token}");
                whole(&mut connection, 2, plan(2)).await;
            }
            Err(error) => {
                assert!(!good, "{token}");
                assert_eq!(code(&error), Some(ErrorCode::Unauthenticated), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_row_too_large_for_the_consumer() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    let tiny = Plan { message_bytes: 1, message_bytes_max: 20, ..Plan::default() };
    ask(&mut connection, "1", tiny).await.expect("an answer");
    let error = take(&mut connection, 0, u64::MAX).await.expect_err("too large");
    let TransportError::Failed(failure) = &error else { panic!("{error}") };
    assert_eq!(failure.code, ErrorCode::RowTooLarge);
    let needed = failure.needed_bytes.and_then(|bytes| u32::try_from(bytes).ok()).expect("how many");
    // What it says is enough.
    let enough = Plan { message_bytes_max: needed, ..tiny };
    whole(&mut connection, 1, enough).await;
    let less = Plan { message_bytes_max: needed - 1, ..tiny };
    ask(&mut connection, "1", less).await.expect("an answer");
    assert_eq!(take(&mut connection, 0, 1).await.map_err(|e| code(&e)), Err(Some(ErrorCode::RowTooLarge)));
}

#[tokio::test]
async fn a_server_takes_no_messages_larger_than_it_wants_to_make() {
    let server =
        Running::start(ServerConfig { message_bytes_max: 16 << 10, ..ServerConfig::default() }).await;
    let mut connection = server.connect().await;
    let greedy = Plan {
        message_bytes: u32::MAX,
        message_bytes_max: u32::MAX,
        batch_bytes: u32::MAX,
        window_batches: u32::MAX,
        ..Plan::default()
    };
    ask(&mut connection, "200", greedy).await.expect("an answer");
    let rows = take(&mut connection, 0, 1).await.expect("rows");
    assert!(rows * 8 <= 16 << 10, "{rows} rows in a message");
    assert_eq!(take(&mut connection, rows, u64::MAX).await.expect("rows"), 200 * BATCH_ROWS);
}

#[tokio::test]
async fn addresses_beyond_this_host() {
    let anywhere = [Listen::Tcp(([0, 0, 0, 0], 0).into())];
    let Err(TransportError::Config(reason)) = Server::bind(&anywhere, ServerConfig::default()).await else {
        panic!("bound without TLS and token")
    };
    assert!(reason.contains("TLS and a token"), "{reason}");
    let insecure = ServerConfig { insecure: true, ..ServerConfig::default() };
    assert!(Server::bind(&anywhere, insecure).await.is_ok());
}

#[tokio::test]
async fn a_client_that_never_introduces_itself() {
    let limit = Duration::from_millis(50);
    let server = Running::start(ServerConfig { handshake_timeout: limit, ..ServerConfig::default() }).await;
    let lightship_transport::net::Endpoint::Tcp { host, port, .. } = &server.endpoint else { panic!("TCP") };
    let mut silent = tokio::net::TcpStream::connect((host.as_str(), *port)).await.expect("connected");
    let mut byte = [0];
    let closed = within(tokio::io::AsyncReadExt::read(&mut silent, &mut byte)).await;
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}
