//! Codecs: concurrent encoding, order of messages, changes during a result.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrow_array::{Int64Array, RecordBatch};
use lightship_transport::TransportError;
use lightship_transport::net::{ClientConfig, Connection, Endpoint, Incoming, ServerConfig};
use lightship_wire::control::{Accepted, BatchEnd, ErrorCode, Hello, Plan};
use lightship_wire::frame::{FLAG_LAST, FrameHeader, FrameKind};
use lightship_wire::tuning::Stage;
use lightship_wire::{Codec, Encoder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::support::*;

/// Messages large enough for threads of their own.
fn large(codec: Option<Codec>, window_batches: u32) -> Plan {
    let bytes = 256 << 10;
    Plan { codec, window_batches, message_bytes: bytes, batch_bytes: bytes, ..Plan::default() }
}

/// Batches of the service in such a message.
const BATCHES: u64 = 32;

#[tokio::test]
async fn order_is_kept() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    for codec in Codec::ALL.map(Some).into_iter().chain([None]) {
        for window in [1, 3, 100] {
            whole(&mut connection, 20 * BATCHES + 3, large(codec, window)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_results_at_once() {
    let server = Running::start(ServerConfig::default()).await;
    let clients = (0..20).map(|n: u32| {
        let server = &server;
        async move {
            let codec = Codec::ALL[n as usize % Codec::ALL.len()];
            whole(&mut server.connect().await, 6 * BATCHES, large(Some(codec), 1 + n % 4)).await;
        }
    });
    futures::future::join_all(clients).await;
}

#[tokio::test]
async fn ready_rows_are_sent_while_more_are_expected() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    for codec in [Some(Codec::LightZstd), Some(Codec::LightLz4), None] {
        let batches = 5 * BATCHES + 1;
        ask(&mut connection, &format!("{batches} hang"), large(codec, 100)).await.expect("an answer");
        take(&mut connection, 0, batches * BATCH_ROWS).await.expect("rows");
    }
}

#[tokio::test]
async fn failed_halfway() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    for _ in 0..5 {
        ask(&mut connection, "200 fail", large(Some(Codec::LightZstd), 4)).await.expect("an answer");
        let error = take(&mut connection, 0, u64::MAX).await.expect_err("halfway");
        assert_eq!(code(&error), Some(ErrorCode::Source), "{error}");
        whole(&mut connection, 2 * BATCHES, large(Some(Codec::LightLz4), 4)).await;
    }
}

#[tokio::test]
async fn cancelled_halfway() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    for round in 1..=10 {
        let codec = [Some(Codec::LightZstd), Some(Codec::LightLz4), None][round as usize % 3];
        ask(&mut connection, "1000000000", large(codec, 8)).await.expect("an answer");
        take(&mut connection, 0, round % 3 * BATCHES * BATCH_ROWS).await.expect("rows");
        connection.cancel();
        server.dropped(2 * round - 1).await;
        whole(&mut connection, BATCHES, large(codec, 4)).await;
    }
}

#[tokio::test]
async fn a_consumer_that_waits_holds_the_encoders_back() {
    let server = Running::start(ServerConfig::default()).await;
    let processors = std::thread::available_parallelism().expect("a number").get() as u64;
    for window in [1, 3] {
        let (before, mut connection) = (server.made(), server.connect().await);
        ask(&mut connection, "1000000000", large(Some(Codec::LightLz4), window)).await.expect("an answer");
        let taken = take(&mut connection, 0, BATCHES * BATCH_ROWS).await.expect("rows");
        // Others get their rows meanwhile: the producer has had its chance.
        whole(&mut server.connect().await, 10 * BATCHES, large(Some(Codec::LightLz4), 2)).await;
        let made = server.service.made.load(Ordering::Relaxed) - before - 10 * BATCHES;
        let most = (u64::from(window) + processors + 2) * (BATCHES + 1);
        assert!(made <= most, "{made} of {most} with a window of {window}");
        take(&mut connection, taken, 20 * BATCHES * BATCH_ROWS).await.expect("rows");
    }
}

/// A link that takes so many bytes at once, and from then on 16 KB a tick.
async fn narrowing(server: &Endpoint, free_bytes: usize, tick: Duration) -> Endpoint {
    let Endpoint::Tcp { host, port, .. } = server else { panic!("TCP") };
    let target = format!("{host}:{port}").parse().expect("an address");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.expect("a client");
        let socket = TcpSocket::new_v4().expect("a socket");
        // What lies in its buffer has arrived, for the server.
        socket.set_recv_buffer_size(64 << 10).expect("a small buffer");
        let (mut from_server, mut to_server) = socket.connect(target).await.expect("the server").into_split();
        let (mut from_client, mut to_client) = client.into_split();
        let asking = tokio::io::copy(&mut from_client, &mut to_server);
        let answering = async {
            let (mut bytes, mut passed) = (vec![0; 16 << 10], 0);
            let mut ticks = tokio::time::interval(tick);
            loop {
                if passed > free_bytes {
                    ticks.tick().await;
                }
                let count = from_server.read(&mut bytes).await?;
                passed += count;
                to_client.write_all(&bytes[..count]).await?;
                if count == 0 {
                    return std::io::Result::Ok(());
                }
            }
        };
        // Whoever goes first, the other has no more to say.
        tokio::select! {
            _ = asking => {}
            _ = answering => {}
        }
    });
    Endpoint::Tcp { host: host.clone(), port, tls: None }
}

#[tokio::test]
async fn a_link_that_becomes_slow_changes_the_codec() {
    let server = Running::start(ServerConfig::default()).await;
    let link = narrowing(&server.endpoint, 4 << 20, Duration::from_millis(4)).await;
    // Both ends are on this host: they would find each other around the link.
    let config = ClientConfig { shared_memory: false, ..ClientConfig::default() };
    let mut connection = within(Connection::connect(&link, &config)).await.expect("a connection");
    let batches = 6000;
    ask(&mut connection, &format!("{batches} repeat"), large(None, 16)).await.expect("an answer");
    let totals = loop {
        match within(connection.next()).await.expect("rows") {
            Incoming::Rows(_) => {}
            Incoming::Finished(totals) => break totals,
        }
    };
    assert_eq!(totals.rows, batches * BATCH_ROWS);
    let change = totals.retunes.iter().rev().find(|change| change.slowest == Some(Stage::Send));
    let change = change.unwrap_or_else(|| panic!("{totals:?}"));
    let used = totals.codecs.iter().filter(|of_codec| of_codec.messages > 0).count();
    assert!(used > 1, "{totals:?}");
    let ratio = |codec: Codec| {
        let of_codec = totals.codecs[codec.index()];
        of_codec.bytes_wire as f64 / of_codec.bytes_body as f64
    };
    assert!(ratio(change.to) < ratio(change.from), "{totals:?}");
    // What it took is known for each codec.
    let progress = connection.progress();
    for (of_codec, decoded) in totals.codecs.iter().zip(progress.decoded) {
        assert_eq!(of_codec.messages > 0, decoded.bytes > 0);
    }
    assert!(progress.consumed.bytes >= totals.rows * 8);
}

/// Says what it is told to one client, whatever that says.
async fn scripted(frames: Vec<u8>) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let (mut stream, _): (TcpStream, _) = listener.accept().await.expect("a client");
        let mut hello = [0; 32];
        stream.read_exact(&mut hello).await.expect("a hello");
        let header = FrameHeader::decode(&hello).expect("a header");
        let mut query = vec![0; header.payload_bytes as usize + 32];
        let welcome = Hello { ping_interval_ms: 10_000, ..Hello::default() }.encode();
        stream.write_all(&frame(FrameKind::Hello, 0, 0, 0, &welcome)).await.expect("sent");
        stream.read_exact(&mut query).await.expect("a query");
        stream.write_all(&frames).await.expect("sent");
        // Open until the client goes.
        while stream.read(&mut query).await.is_ok_and(|count| count > 0) {}
    });
    Endpoint::Tcp { host: "127.0.0.1".into(), port, tls: None }
}

#[tokio::test]
async fn an_undecodable_message_fails_after_the_rows_before_it() {
    let batch = |first: i64| {
        let column = Int64Array::from_iter_values(first..first + 16 * BATCH_ROWS as i64);
        RecordBatch::try_from_iter_with_nullable([("n", Arc::new(column) as _, false)]).expect("a batch")
    };
    let encode = |n: i64| {
        let first = n * 16 * BATCH_ROWS as i64;
        Encoder::new(Codec::LightZstd).encode(&batch(first)).expect("a message").to_vec()
    };
    let accepted = Accepted { schema: batch(0).schema().as_ref().clone(), rows_estimate: None };
    let accepted = accepted.encode().expect("a schema");
    let mut bad = encode(2);
    // All but the fixed part of the head, and the node: it arrives as a message.
    bad[36..].fill(0x5a);
    let mut frames = frame(FrameKind::Schema, 0, 1, 0, &accepted);
    for (n, message) in [encode(0), encode(1), bad, encode(3)].into_iter().enumerate() {
        frames.extend(frame(FrameKind::Message, 0, 1, n as u32 + 1, &message));
    }
    let end = BatchEnd { rows: 64 * BATCH_ROWS, messages: 4 };
    frames.extend(frame(FrameKind::BatchEnd, FLAG_LAST, 1, 5, &end.encode()));
    let endpoint = scripted(frames).await;
    let mut connection =
        within(Connection::connect(&endpoint, &ClientConfig::default())).await.expect("a connection");
    let plan = Plan { codec: Some(Codec::LightZstd), ..Plan::default() };
    ask(&mut connection, "anything", plan).await.expect("an answer");
    let rows = take(&mut connection, 0, 32 * BATCH_ROWS).await.expect("the messages before");
    assert_eq!(rows, 32 * BATCH_ROWS);
    let error = take(&mut connection, rows, u64::MAX).await.expect_err("it can't be read");
    assert!(matches!(error, TransportError::Wire(_)), "{error}");
    // What came after it is nobody's, and the connection of no more use.
    let error = take(&mut connection, rows, u64::MAX).await.expect_err("closed");
    assert!(matches!(error, TransportError::Closed { .. }), "{error}");
}
