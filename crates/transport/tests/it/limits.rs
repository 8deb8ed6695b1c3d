//! What is bounded: memory on both sides, connections, rows.

use std::time::Duration;

use lightship_transport::TransportError;
use lightship_transport::net::{ClientConfig, Connection, Endpoint, Listen, Server, ServerConfig};
use lightship_wire::control::{ErrorCode, Hello, Plan};
use lightship_wire::frame::{FrameHeader, FrameKind, HEADER_BYTES, HELLO_BYTES_MAX};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

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
        // Beyond the window: the rows that wait for credit, those that may fill their message, and those being made.
        assert!(between - before <= made && made <= u64::from(window) + 3, "{made} of a window of {window}");
        // It goes on as it is read.
        take(&mut connection, BATCH_ROWS, 50 * BATCH_ROWS).await.expect("rows");
    }
}

#[tokio::test]
async fn connections_over_the_limit_are_told_so() {
    let config = ServerConfig { connections_max: 2, queue_max: 0, ..ServerConfig::default() };
    let server = Running::start(config).await;
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

async fn socket(server: &Running) -> TcpStream {
    let Endpoint::Tcp { host, port, .. } = &server.endpoint else { panic!("TCP") };
    TcpStream::connect((host.as_str(), *port)).await.expect("connected")
}

async fn next_kind(socket: &mut TcpStream) -> FrameKind {
    let mut header = [0; HEADER_BYTES];
    within(socket.read_exact(&mut header)).await.expect("an answer");
    let header = FrameHeader::decode(&header).expect("a frame");
    within(socket.read_exact(&mut vec![0; header.payload_bytes as usize])).await.expect("a payload");
    header.kind
}

/// Whether the server has closed it, with or without a word.
async fn is_closed(mut socket: TcpStream) {
    let _ = within(socket.read_to_end(&mut Vec::new())).await;
}

#[tokio::test]
async fn a_client_that_never_introduces_itself() {
    let limit = Duration::from_millis(50);
    let server = Running::start(ServerConfig { handshake_timeout: limit, ..ServerConfig::default() }).await;
    is_closed(socket(&server).await).await;
}

#[tokio::test]
async fn unauthenticated_connections_take_no_clients_slot() {
    let config = ServerConfig { connections_max: 1, queue_max: 0, ..ServerConfig::default() };
    let server = Running::start(config).await;
    let mut unauthenticated = Vec::new();
    for _ in 0..10 {
        unauthenticated.push(socket(&server).await);
    }
    whole(&mut server.connect().await, 5, plan(2)).await;
}

#[tokio::test]
async fn a_crowd_of_unauthenticated_connections_lets_clients_through() {
    let limit = Duration::from_secs(3600);
    let config = ServerConfig { unauthenticated_max: 3, handshake_timeout: limit, ..ServerConfig::default() };
    let server = Running::start(config).await;
    let mut unauthenticated = Vec::new();
    for _ in 0..10 {
        unauthenticated.push(socket(&server).await);
    }
    whole(&mut server.connect().await, 5, plan(2)).await;
    // One that has its slot for itself keeps it.
    unauthenticated.truncate(1);
    is_closed(unauthenticated.remove(0)).await;
    let mut patient = socket(&server).await;
    whole(&mut server.connect().await, 5, plan(2)).await;
    patient
        .write_all(&frame(FrameKind::Hello, 0, 0, 0, &Hello::default().encode()))
        .await
        .expect("it is there");
    assert_eq!(next_kind(&mut patient).await, FrameKind::Hello);
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_unauthenticated_connections() {
    let hour = Duration::from_secs(3600);
    let config = ServerConfig { handshake_timeout: hour, shutdown_grace: hour, ..ServerConfig::default() };
    let server = Running::start(config).await;
    let unauthenticated = socket(&server).await;
    // Once a later client has its rows, the unauthenticated connection was accepted as well.
    whole(&mut server.connect().await, 5, plan(2)).await;
    server.stop.send(true).expect("it runs");
    within(server.ended).await.expect("no panic").expect("a clean end");
    is_closed(unauthenticated).await;
}

#[tokio::test]
async fn unauthenticated_connections_get_no_memory() {
    let server = Running::start(ServerConfig::default()).await;
    let long = Hello { token: "t".repeat(HELLO_BYTES_MAX as usize), ..Hello::default() }.encode();
    for (kind, payload) in
        [(FrameKind::Query, vec![0; 1 << 20]), (FrameKind::Ping, vec![0]), (FrameKind::Hello, long)]
    {
        let mut socket = socket(&server).await;
        // It is refused by its header: nothing of the payload is waited for.
        socket.write_all(&frame(kind, 0, 0, 0, &payload)[..HEADER_BYTES]).await.expect("sent");
        assert_eq!(next_kind(&mut socket).await, FrameKind::Error, "{kind:?}");
        is_closed(socket).await;
    }
    let tokens = vec!["t".repeat(HELLO_BYTES_MAX as usize)];
    let Err(error) = Server::bind(&[], ServerConfig { tokens, ..ServerConfig::default() }).await else {
        panic!("a token that nobody can say")
    };
    assert!(error.to_string().contains("token"), "{error}");
    // A client does not try.
    let token = "t".repeat(4097);
    let error =
        Connection::connect(&server.endpoint, &ClientConfig { token, ..ClientConfig::default() }).await;
    let error = error.map(drop).expect_err("it can't be said").to_string();
    assert_eq!(error, "the token has 4097 bytes; the maximum is 4096");
}

#[tokio::test]
async fn a_client_waits_in_line_for_a_place() {
    let config = ServerConfig { connections_max: 1, queue_max: 1, ..ServerConfig::default() };
    let server = Running::start(config).await;
    let first = server.connect().await;
    let mut waiting = socket(&server).await;
    waiting.write_all(&frame(FrameKind::Hello, 0, 0, 0, &Hello::default().encode())).await.expect("sent");
    let config = ClientConfig::default();
    let full = async {
        loop {
            let mut late = Box::pin(Connection::connect(&server.endpoint, &config));
            // It may be quicker than the one before it, and is then the one that waits.
            match tokio::time::timeout(Duration::from_millis(100), &mut late).await {
                Ok(Err(error)) => return error,
                Ok(Ok(_)) => panic!("let in"),
                Err(_) => {}
            }
        }
    };
    let error = within(full).await;
    assert_eq!(code(&error), Some(ErrorCode::Busy), "{error}");
    assert!(error.to_string().contains("and the queue of 1 clients is full"), "{error}");
    drop(first);
    assert_eq!(next_kind(&mut waiting).await, FrameKind::Queued);
    assert_eq!(next_kind(&mut waiting).await, FrameKind::Hello);
    let (next, ()) =
        within(futures::future::join(server.try_connect(&config), async { drop(waiting) })).await;
    whole(&mut next.expect("a connection"), 5, plan(2)).await;
}

#[tokio::test]
async fn a_client_that_waits_in_vain_is_refused() {
    let queue_timeout = Duration::from_millis(50);
    let config = ServerConfig { connections_max: 1, queue_timeout, ..ServerConfig::default() };
    let server = Running::start(config).await;
    let mut first = server.connect().await;
    let Err(TransportError::Failed(failure)) = server.try_connect(&ClientConfig::default()).await else {
        panic!("let in")
    };
    assert_eq!(failure.code, ErrorCode::Busy);
    assert!(failure.message.contains("none became free within 0.05 seconds"), "{failure}");
    assert!(failure.retryable && failure.hint.is_some());
    whole(&mut first, 5, plan(2)).await;
}

#[tokio::test]
async fn the_time_in_line_is_no_time_that_a_welcome_takes() {
    let config = ServerConfig { connections_max: 1, ..ServerConfig::default() };
    let server = Running::start(config).await;
    let first = server.connect().await;
    let brief = Duration::from_secs(2);
    let config = ClientConfig { welcome_timeout: brief, ..ClientConfig::default() };
    let waiting = server.try_connect(&config);
    let freeing = async {
        tokio::time::sleep(2 * brief).await;
        drop(first);
    };
    let (connection, ()) = futures::future::join(waiting, freeing).await;
    let mut connection = connection.expect("its turn");
    assert!(connection.rtt() < 2 * brief, "{:?}", connection.rtt());
    whole(&mut connection, 5, plan(2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_clients_at_once() {
    let server = Running::start(ServerConfig::default()).await;
    let config = ClientConfig { shared_memory: false, ..ClientConfig::default() };
    let clients = (0..300).map(|_| async {
        let mut connection = server.try_connect(&config).await.expect("a connection");
        whole(&mut connection, 3, plan(2)).await;
    });
    futures::future::join_all(clients).await;
}

#[tokio::test]
async fn an_address_in_use() {
    let server = Running::start(ServerConfig::default()).await;
    let Endpoint::Tcp { port, .. } = server.endpoint else { panic!("TCP") };
    let taken = [Listen::Tcp(([127, 0, 0, 1], port).into())];
    let Err(error) = Server::bind(&taken, ServerConfig::default()).await else { panic!("two on one port") };
    assert!(matches!(error, TransportError::Listen { .. }), "{error:?}");
    let expected = format!("can't listen on lightship://127.0.0.1:{port}: the address is in use");
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn an_address_that_is_reserved_takes_no_connections() {
    let anything = [Listen::Tcp(([127, 0, 0, 1], 0).into())];
    let reserved = Server::reserve(&anything, ServerConfig::default()).await.expect("an address");
    let [Listen::Tcp(address)] = reserved.local().expect("an address")[..] else { panic!("TCP") };
    let endpoint = Endpoint::Tcp { host: address.ip().to_string(), port: address.port(), tls: None };
    let Err(error) = Connection::connect(&endpoint, &ClientConfig::default()).await else { panic!("let in") };
    assert!(error.to_string().contains("refused"), "{error}");
    let server = Running::of(reserved.listen().expect("still ours"));
    whole(&mut server.connect().await, 5, plan(2)).await;
}
