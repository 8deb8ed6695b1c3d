//! Results over several connections: order, limits, and lost or stalled connections.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lightship_transport::TransportError;
use lightship_transport::net::{ClientConfig, Connection, Endpoint, Incoming, ServerConfig};
use lightship_transport::proto::Totals;
use lightship_wire::Codec;
use lightship_wire::control::{ErrorCode, Failure, Hello, Plan, Query};
use lightship_wire::frame::{FLAG_PLACEHOLDER, FrameHeader, FrameKind, HEADER_BYTES};
use lightship_wire::join::{CAPABILITY_JOIN, Join, StripeOffer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::*;

/// Stays with TCP, though it is all one host.
fn tcp() -> ClientConfig {
    ClientConfig { shared_memory: false, ..ClientConfig::default() }
}

fn striped(streams: u32, window_batches: u32) -> Plan {
    Plan { streams, ..plan(window_batches) }
}

async fn finish(connection: &mut Connection, batches: u64) -> Totals {
    let mut rows = 0;
    loop {
        match within(connection.next()).await.expect("rows") {
            Incoming::Rows(batch) => rows += batch.num_rows() as u64,
            Incoming::Finished(totals) => {
                assert_eq!((rows, totals.rows), (batches * BATCH_ROWS, batches * BATCH_ROWS));
                return *totals;
            }
        }
    }
}

#[tokio::test]
async fn order_is_kept() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.try_connect(&tcp()).await.expect("a connection");
    for streams in [1, 2, 5] {
        for codec in Codec::ALL.map(Some).into_iter().chain([None]) {
            for (bytes, window_batches) in [(9 << 10, 16), (256 << 10, 3), (9 << 10, 1)] {
                let plan = Plan {
                    codec,
                    message_bytes: bytes,
                    batch_bytes: bytes,
                    ..striped(streams, window_batches)
                };
                whole(&mut connection, 403, plan).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_results_at_once() {
    let server = Running::start(ServerConfig::default()).await;
    let clients = (0..12).map(|n: u32| {
        let server = &server;
        async move {
            let codec = Codec::ALL[n as usize % Codec::ALL.len()];
            let plan = Plan { codec: Some(codec), ..striped(1 + n % 4, 1 + n % 7) };
            let mut connection = server.try_connect(&tcp()).await.expect("a connection");
            whole(&mut connection, 300, plan).await;
            whole(&mut connection, 300, plan).await;
        }
    });
    futures::future::join_all(clients).await;
}

#[tokio::test]
async fn messages_come_by_the_joined_connections() {
    let server = Running::start(ServerConfig::default()).await;
    let proxy = Proxy::start(&server.endpoint, |_| u64::MAX).await;
    let mut connection = proxy.connect(&tcp()).await;
    ask(&mut connection, "20000", striped(3, 4)).await.expect("an answer");
    let totals = finish(&mut connection, 20_000).await;
    assert!(totals.messages_joined > totals.messages / 2, "{totals:?}");
    assert!(totals.messages_joined <= totals.messages);
    // The one that asked is one of the three.
    assert_eq!(proxy.accepted(), 3);
    for connection in 0..3 {
        let passed = proxy.passed(connection);
        assert!(passed > 100 * 8192, "{passed} bytes by connection {connection}");
    }
}

#[tokio::test]
async fn connections_join_when_the_consumer_says() {
    let server = Running::start(ServerConfig::default()).await;
    let proxy = Proxy::start(&server.endpoint, |_| u64::MAX).await;
    let mut connection = proxy.connect(&tcp()).await;
    let plan = striped(4, 4);
    within(connection.query(&Query { sql: "20000".into(), plan }, 0)).await.expect("an answer");
    let mut rows = take(&mut connection, 0, 1000 * BATCH_ROWS).await.expect("rows");
    assert_eq!(proxy.accepted(), 1);
    let seen = connection.segments().expect("a system that tells");
    assert!(seen.received > 100 && seen.out_of_order < seen.received, "{seen:?}");
    // Two, then one more and not those two again, then no more than were offered.
    for (wanted, connections) in [(2, 2), (1, 2), (3, 3), (100, 4)] {
        connection.widen(wanted);
        while proxy.accepted() < connections {
            rows = take(&mut connection, rows, rows + BATCH_ROWS).await.expect("rows");
        }
        rows = take(&mut connection, rows, rows + 500 * BATCH_ROWS).await.expect("rows");
        assert_eq!(proxy.accepted(), connections);
    }
    assert_eq!(take(&mut connection, rows, u64::MAX).await.expect("rows"), 20_000 * BATCH_ROWS);
    for connection in 0..4 {
        let passed = proxy.passed(connection);
        assert!(passed > 100 * 8192, "{passed} bytes by connection {connection}");
    }
    // Without a result there is nothing to join.
    connection.widen(4);
}

#[tokio::test]
async fn ready_rows_are_sent_while_more_are_expected() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.try_connect(&tcp()).await.expect("a connection");
    for codec in [Codec::None, Codec::LightLz4] {
        let plan = Plan { codec: Some(codec), ..striped(3, 1000) };
        ask(&mut connection, "500 hang", plan).await.expect("an answer");
        take(&mut connection, 0, 500 * BATCH_ROWS).await.expect("rows");
    }
}

#[tokio::test]
async fn a_consumer_that_stops_holds_the_producer_back() {
    for window in [1, 8] {
        let server = Running::start(ServerConfig::default()).await;
        let mut connection = server.try_connect(&tcp()).await.expect("a connection");
        ask(&mut connection, "1000000000", striped(4, window)).await.expect("an answer");
        let taken = take(&mut connection, 0, 2000 * BATCH_ROWS).await.expect("rows") / BATCH_ROWS;
        // Others get their rows meanwhile: the producer has had its chance.
        whole(&mut server.connect().await, 100, plan(2)).await;
        let made = server.made() - 100;
        assert!(made <= taken + u64::from(window) + 2, "{made} made, {taken} taken, a window of {window}");
        take(&mut connection, taken * BATCH_ROWS, (taken + 2000) * BATCH_ROWS).await.expect("rows");
    }
}

#[tokio::test]
async fn cancelled_halfway() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.try_connect(&tcp()).await.expect("a connection");
    for round in 1..=10 {
        let codec = [Some(Codec::LightZstd), Some(Codec::None), None][round as usize % 3];
        let plan = Plan { codec, ..striped(3, 8) };
        ask(&mut connection, "1000000000", plan).await.expect("an answer");
        take(&mut connection, 0, round % 3 * 200 * BATCH_ROWS).await.expect("rows");
        connection.cancel();
        server.dropped(2 * round - 1).await;
        whole(&mut connection, 100, plan).await;
    }
}

#[tokio::test]
async fn failed_halfway() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.try_connect(&tcp()).await.expect("a connection");
    for codec in [Codec::None, Codec::LightZstd] {
        let plan = Plan { codec: Some(codec), ..striped(3, 4) };
        ask(&mut connection, "1000 fail", plan).await.expect("an answer");
        let error = take(&mut connection, 0, u64::MAX).await.expect_err("halfway");
        assert_eq!(code(&error), Some(ErrorCode::Source), "{error}");
        whole(&mut connection, 100, plan).await;
    }
}

#[tokio::test]
async fn a_query_that_is_refused() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.try_connect(&tcp()).await.expect("a connection");
    let error = ask(&mut connection, "nonsense", striped(3, 4)).await.expect_err("no number");
    assert_eq!(code(&error), Some(ErrorCode::Sql), "{error}");
    whole(&mut connection, 100, striped(3, 4)).await;
}

#[tokio::test]
async fn a_node_without_places_sends_all_over_one_connection() {
    let server = Running::start(ServerConfig { connections_max: 1, ..ServerConfig::default() }).await;
    let proxy = Proxy::start(&server.endpoint, |_| u64::MAX).await;
    let mut connection = proxy.connect(&tcp()).await;
    ask(&mut connection, "2000", striped(3, 4)).await.expect("an answer");
    finish(&mut connection, 2000).await;
    only_the_first_carried_rows(&proxy);
}

fn only_the_first_carried_rows(proxy: &Proxy) {
    assert!(proxy.passed(0) > 2000 * 8192, "{} bytes", proxy.passed(0));
    for other in 1..proxy.accepted() {
        assert!(proxy.passed(other) < 8192, "{} bytes by connection {other}", proxy.passed(other));
    }
}

#[tokio::test]
async fn a_result_completes_without_connections_that_never_join() {
    let server = Running::start(ServerConfig::default()).await;
    // All but the first are accepted, and hear nothing.
    let proxy = Proxy::start(&server.endpoint, |n| if n == 0 { u64::MAX } else { 0 }).await;
    let config = ClientConfig { welcome_timeout: Duration::from_secs(1), ..tcp() };
    let mut connection = proxy.connect(&config).await;
    ask(&mut connection, "2000", striped(3, 4)).await.expect("an answer");
    finish(&mut connection, 2000).await;
    only_the_first_carried_rows(&proxy);
}

fn is_lost(error: &TransportError) -> bool {
    matches!(error, TransportError::Lost { .. }) || code(error) == Some(ErrorCode::Lost)
}

#[tokio::test]
async fn a_joined_connection_that_is_killed_fails_the_result() {
    let server = Running::start(ServerConfig::default()).await;
    for killed in [1, 2] {
        let proxy =
            Proxy::start(&server.endpoint, move |n| if n == killed { 50_000 } else { u64::MAX }).await;
        let mut connection = proxy.connect(&tcp()).await;
        ask(&mut connection, "1000000000", striped(3, 4)).await.expect("an answer");
        let killing = async {
            proxy.reaches(killed, 50_000).await;
            proxy.kill(killed);
        };
        let (taken, ()) = within(futures::future::join(take(&mut connection, 0, u64::MAX), killing)).await;
        let error = taken.expect_err("lost");
        assert!(is_lost(&error), "{error}");
        // The first connection is as good as before.
        whole(&mut connection, 100, plan(4)).await;
    }
}

#[tokio::test]
async fn a_stalled_connection_holds_its_result_alone() {
    let server = Running::start(ServerConfig::default()).await;
    let proxy = Proxy::start(&server.endpoint, |n| if n == 2 { 50_000 } else { u64::MAX }).await;
    let mut connection = proxy.connect(&tcp()).await;
    let window = 64;
    ask(&mut connection, "1000000000", striped(3, window)).await.expect("an answer");
    let mut rows = 0;
    // It comes to a stop, for want of what is on the one that is stalled, by which time the others
    // have brought what credit allows.
    let stopped = async {
        while let Ok(more) = tokio::time::timeout(STILL, connection.next()).await {
            let Incoming::Rows(batch) = more.expect("rows") else { panic!("no end") };
            rows += batch.num_rows() as u64;
        }
    };
    within(stopped).await;
    assert_eq!(proxy.passed(2), 50_000);
    let made = server.made();
    assert!(made <= rows / BATCH_ROWS + u64::from(window) + 2, "{made} made, {rows} rows taken");
    // Other results are not held up, and what is made of this one does not grow meanwhile.
    whole(&mut server.connect().await, 500, plan(2)).await;
    assert_eq!(server.made(), made + 500);
    // When it goes on, so does the result, with the rows that belong there.
    proxy.release(2);
    take(&mut connection, rows, rows + 2000 * BATCH_ROWS).await.expect("rows");
}

/// Nothing comes for so long when nothing can.
const STILL: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_connection_that_is_stalled_for_good_fails_the_result() {
    let server = Running::start(ServerConfig::default()).await;
    let proxy = Proxy::start(&server.endpoint, |n| if n == 1 { 50_000 } else { u64::MAX }).await;
    let config = ClientConfig { ping_interval: Duration::from_millis(500), ..tcp() };
    let mut connection = proxy.connect(&config).await;
    ask(&mut connection, "1000000000", striped(2, 8)).await.expect("an answer");
    let error = within(take(&mut connection, 0, u64::MAX)).await.expect_err("silence");
    assert!(is_lost(&error), "{error}");
    assert!(error.to_string().contains("no sign of life"), "{error}");
    whole(&mut connection, 100, plan(4)).await;
}

#[tokio::test]
async fn each_number_of_a_stripe_offer_is_valid_once() {
    let server = Running::start(ServerConfig::default()).await;
    let mut main = Raw::connect(&server.endpoint, "").await;
    main.send(FrameKind::Query, 1, &Query { sql: "1000000".into(), plan: striped(2, 1) }.encode()).await;
    let offer = StripeOffer::decode(&main.next(FrameKind::StripeOffer).await.1).expect("a stripe offer");
    assert_eq!(offer.connections, 2);
    let join = |connection| Join { secret: offer.secret, connection };
    let mut wrong = join(1);
    wrong.secret[15] ^= 1;
    refused(&server.endpoint, &wrong).await;
    refused(&server.endpoint, &join(3)).await;

    let mut joined = Raw::connect(&server.endpoint, "").await;
    joined.send(FrameKind::Join, 1, &join(2).encode()).await;
    // The first message went over the main connection; with credit, the next ones are distributed.
    let dealt = async {
        loop {
            let (header, _) = main.next(FrameKind::Message).await;
            if header.flags & FLAG_PLACEHOLDER != 0 {
                return;
            }
            main.next(FrameKind::BatchEnd).await;
            main.send(FrameKind::Credit, 1, &1u32.to_le_bytes()).await;
        }
    };
    within(dealt).await;
    within(joined.next(FrameKind::Message)).await;
    refused(&server.endpoint, &join(2)).await;

    main.send(FrameKind::Cancel, 1, &[]).await;
    server.dropped(1).await;
    let (_, payload) = within(main.next(FrameKind::Error)).await;
    assert_eq!(Failure::decode(&payload).expect("a failure").code, ErrorCode::Cancelled);
    // After the end.
    refused(&server.endpoint, &join(1)).await;
}

#[tokio::test]
async fn a_joining_connection_needs_a_token() {
    let server =
        Running::start(ServerConfig { tokens: vec!["good".into()], ..ServerConfig::default() }).await;
    let mut main = Raw::connect(&server.endpoint, "good").await;
    main.send(FrameKind::Query, 1, &Query { sql: "1 hang".into(), plan: striped(2, 1) }.encode()).await;
    let offer = StripeOffer::decode(&main.next(FrameKind::StripeOffer).await.1).expect("a stripe offer");
    // With the secret and without a token, before and after the welcome.
    let join = Join { secret: offer.secret, connection: 1 }.encode();
    for (waits, code) in [(true, ErrorCode::Unauthenticated), (false, ErrorCode::Protocol)] {
        let mut stranger = Raw::open(&server.endpoint, "bad").await;
        if !waits {
            stranger.send(FrameKind::Join, 1, &join).await;
        }
        let (header, payload) = within(stranger.next(FrameKind::Error)).await;
        assert_eq!((header.stream, Failure::decode(&payload).expect("a failure").code), (0, code));
    }
    // The client itself joins with the token that it has.
    let config = ClientConfig { token: "good".into(), ..tcp() };
    let mut connection = server.try_connect(&config).await.expect("a connection");
    ask(&mut connection, "20000", striped(2, 4)).await.expect("an answer");
    assert!(finish(&mut connection, 20_000).await.messages_joined > 0);
}

#[tokio::test]
async fn a_connection_that_has_a_result_joins_no_other() {
    let server = Running::start(ServerConfig::default()).await;
    let mut main = Raw::connect(&server.endpoint, "").await;
    main.send(FrameKind::Query, 1, &Query { sql: "1 hang".into(), plan: striped(2, 1) }.encode()).await;
    let offer = StripeOffer::decode(&main.next(FrameKind::StripeOffer).await.1).expect("a stripe offer");
    main.send(FrameKind::Join, 1, &Join { secret: offer.secret, connection: 1 }.encode()).await;
    let (header, payload) = within(main.next(FrameKind::Error)).await;
    assert_eq!(header.stream, 0);
    assert_eq!(Failure::decode(&payload).expect("a failure").code, ErrorCode::Protocol);
}

/// A join that the server does not allow.
async fn refused(server: &Endpoint, join: &Join) {
    let mut raw = Raw::connect(server, "").await;
    raw.send(FrameKind::Join, 1, &join.encode()).await;
    let (header, payload) = within(raw.next(FrameKind::Error)).await;
    assert_eq!(header.stream, 1);
    assert_eq!(Failure::decode(&payload).expect("a failure").code, ErrorCode::Forbidden);
}

fn address(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Tcp { host, port, .. } => format!("{host}:{port}"),
        Endpoint::Unix(_) => panic!("TCP"),
    }
}

/// A client that says what it is told to, frame by frame.
struct Raw {
    stream: TcpStream,
    /// Frames sent, on stream 0 and on 1.
    sent: [u32; 2],
}

impl Raw {
    async fn open(server: &Endpoint, token: &str) -> Self {
        let stream = TcpStream::connect(address(server)).await.expect("connected");
        let mut raw = Self { stream, sent: [0; 2] };
        let capabilities = CAPABILITY_JOIN;
        let hello = Hello { token: token.into(), capabilities, ping_interval_ms: 10_000, ..Hello::default() };
        raw.send(FrameKind::Hello, 0, &hello.encode()).await;
        raw
    }

    async fn connect(server: &Endpoint, token: &str) -> Self {
        let mut raw = Self::open(server, token).await;
        raw.next(FrameKind::Hello).await;
        raw
    }

    async fn send(&mut self, kind: FrameKind, stream: u32, payload: &[u8]) {
        let sequence = self.sent[stream as usize];
        self.sent[stream as usize] += 1;
        self.stream.write_all(&frame(kind, 0, stream, sequence, payload)).await.expect("sent");
    }

    /// The next frame of this kind; others are passed over.
    async fn next(&mut self, kind: FrameKind) -> (FrameHeader, Vec<u8>) {
        loop {
            let mut head = [0; HEADER_BYTES];
            self.stream.read_exact(&mut head).await.expect("a header");
            let header = FrameHeader::decode(&head).expect("a header");
            let mut payload = vec![0; header.payload_bytes as usize];
            self.stream.read_exact(&mut payload).await.expect("a payload");
            if header.kind == kind {
                return (header, payload);
            }
        }
    }
}

/// Stands between clients and a server, and passes on no more from the server than
/// each connection is allowed.
struct Proxy {
    endpoint: Endpoint,
    ways: Arc<Mutex<Vec<Arc<Way>>>>,
    accepted: Arc<AtomicUsize>,
    arrived: watch::Receiver<usize>,
    _task: JoinSet<()>,
}

/// One connection through it.
struct Way {
    allowed: watch::Sender<u64>,
    passed: watch::Sender<u64>,
    killed: watch::Sender<bool>,
}

impl Proxy {
    /// `allowed` says how many bytes from the server a connection may pass on, counted from 0.
    async fn start(server: &Endpoint, allowed: impl Fn(usize) -> u64 + Send + 'static) -> Self {
        let target = address(server);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let ways = Arc::<Mutex<Vec<Arc<Way>>>>::default();
        let accepted = Arc::<AtomicUsize>::default();
        let (came, arrived) = watch::channel(0);
        let mut task = JoinSet::new();
        let (all, count) = (ways.clone(), accepted.clone());
        task.spawn(async move {
            let mut passing = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.expect("a client");
                let server = TcpStream::connect(&target).await.expect("the server");
                let number = count.fetch_add(1, Ordering::SeqCst);
                let way = Arc::new(Way {
                    allowed: watch::Sender::new(allowed(number)),
                    passed: watch::Sender::new(0),
                    killed: watch::Sender::new(false),
                });
                all.lock().expect("no panic").push(way.clone());
                came.send_replace(number + 1);
                passing.spawn(async move {
                    let (mut killed, (from_client, to_client)) =
                        (way.killed.subscribe(), client.into_split());
                    let (from_server, to_server) = server.into_split();
                    tokio::select! {
                        _ = killed.wait_for(|&killed| killed) => {}
                        () = forward(from_client, to_server) => {}
                        () = way.answer(from_server, to_client) => {}
                    }
                });
            }
        });
        let endpoint = Endpoint::Tcp { host: "127.0.0.1".into(), port, tls: None };
        Self { endpoint, ways, accepted, arrived, _task: task }
    }

    async fn connect(&self, config: &ClientConfig) -> Connection {
        within(Connection::connect(&self.endpoint, config)).await.expect("a connection")
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    fn way(&self, number: usize) -> Arc<Way> {
        self.ways.lock().expect("no panic")[number].clone()
    }

    fn passed(&self, number: usize) -> u64 {
        *self.way(number).passed.borrow()
    }

    /// Waits until a connection has passed on so many bytes.
    async fn reaches(&self, number: usize, bytes: u64) {
        let mut arrived = self.arrived.clone();
        arrived.wait_for(|&count| count > number).await.expect("the proxy runs");
        let mut passed = self.way(number).passed.subscribe();
        passed.wait_for(|&passed| passed >= bytes).await.expect("it is there");
    }

    fn kill(&self, number: usize) {
        self.way(number).killed.send_replace(true);
    }

    fn release(&self, number: usize) {
        self.way(number).allowed.send_replace(u64::MAX);
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    // Whoever goes first, the other has no more to say.
    let _ = tokio::io::copy(&mut from, &mut to).await;
}

impl Way {
    async fn answer(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let (mut bytes, mut passed) = (vec![0; 16 << 10], 0);
        let mut allowed = self.allowed.subscribe();
        loop {
            let Ok(limit) = allowed.wait_for(|&allowed| allowed > passed).await.map(|limit| *limit) else {
                return;
            };
            let most = bytes.len().min(usize::try_from(limit - passed).unwrap_or(usize::MAX));
            let Ok(count @ 1..) = from.read(&mut bytes[..most]).await else { return };
            if to.write_all(&bytes[..count]).await.is_err() {
                return;
            }
            passed += count as u64;
            self.passed.send_replace(passed);
        }
    }
}
