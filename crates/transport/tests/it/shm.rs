//! Payloads in shared memory: the same rows, where they lie, when they come back,
//! and peers that are not what they should be.

use std::io::{BufRead, BufReader, IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use arrow_array::{Array, RecordBatch};
use futures::{StreamExt, stream};
use lightship_testkit::arrays;
use lightship_transport::TransportError;
use lightship_transport::net::{
    Answer, Carrier, ClientConfig, Connection, Endpoint, Incoming, Listen, Server, ServerConfig, Service,
};
use lightship_wire::control::{Accepted, Failure, Hello, Plan, Query};
use lightship_wire::frame::{FLAG_DESCRIPTOR, FLAG_PLACED, FrameHeader, FrameKind, crc32c};
use lightship_wire::shm::{CAPABILITY_RENDEZVOUS, CAPABILITY_SEGMENTS, Rendezvous, SegmentSlot};
use lightship_wire::{Codec, Encoder};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use socket2::{MsgHdr, SockRef};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::support::*;

/// Messages large enough for shared memory, so many on their way.
fn wide(window_batches: u32) -> Plan {
    Plan { message_bytes: 64 << 10, batch_bytes: 64 << 10, window_batches, ..Plan::default() }
}

fn by_socket() -> ClientConfig {
    ClientConfig { shared_memory: false, ..ClientConfig::default() }
}

/// Batches of every type, so many as the query says.
struct EveryType;

impl Service for EveryType {
    fn query<'a>(
        &'a self,
        query: &'a Query,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async move {
            let count: u64 = query.sql.parse().expect("a number");
            let rows = stream::iter(0..count).map(|seed| Ok(arrays::every_type(700, seed))).boxed();
            Ok(Answer::new(arrays::every_type_schema(), None, rows))
        })
    }
}

async fn collect(connection: &mut Connection, sql: &str, plan: Plan) -> Vec<RecordBatch> {
    within(connection.query(&Query { sql: sql.into(), plan }, 1)).await.expect("an answer");
    let mut batches = Vec::new();
    while let Incoming::Rows(batch) = within(connection.next()).await.expect("rows") {
        batches.push(batch);
    }
    batches
}

/// Addresses at which this process has mapped segments that it can only read.
fn segments() -> Vec<std::ops::Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let lines = maps.lines().filter(|line| line.contains("r--s") && line.contains("memfd:lightship"));
    let address = |text: &str| usize::from_str_radix(text, 16).expect("an address");
    lines
        .map(|line| {
            let (range, _) = line.split_once(' ').expect("a range");
            let (from, to) = range.split_once('-').expect("a range");
            address(from)..address(to)
        })
        .collect()
}

/// How many of the batches lie in segments.
fn placed(batches: &[RecordBatch]) -> usize {
    let segments = segments();
    let lies = |batch: &&RecordBatch| {
        let data = batch.column(0).to_data();
        let at = data.buffers()[0].as_ptr() as usize;
        segments.iter().any(|segment| segment.contains(&at))
    };
    batches.iter().filter(lies).count()
}

#[tokio::test]
async fn every_type_arrives_the_same_by_each_way() {
    let folder = tempfile::tempdir().expect("a folder");
    let listen = [Listen::Tcp(([127, 0, 0, 1], 0).into()), Listen::Unix(folder.path().join("socket"))];
    let server = Server::bind(&listen, ServerConfig::default()).await.expect("an address");
    let ends = server.local().expect("addresses");
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    let _server = tokio::spawn(server.run(std::sync::Arc::new(EveryType), stopped));
    let [Listen::Tcp(address), Listen::Unix(path)] = ends.as_slice() else { panic!("{ends:?}") };
    let tcp = Endpoint::Tcp { host: address.ip().to_string(), port: address.port(), tls: None };
    let unix = Endpoint::Unix(path.clone());
    let mut found = Vec::new();
    for (endpoint, config, carrier) in [
        (&tcp, by_socket(), Carrier::Tcp),
        (&unix, by_socket(), Carrier::Unix),
        (&tcp, ClientConfig::default(), Carrier::SharedMemory),
        (&unix, ClientConfig::default(), Carrier::SharedMemory),
    ] {
        let mut connection = Connection::connect(endpoint, &config).await.expect("a connection");
        assert_eq!((connection.carrier(), connection.same_host()), (carrier, true));
        for codec in [Codec::None, Codec::LightLz4] {
            let plan = Plan { codec: Some(codec), ..wide(4) };
            let batches = collect(&mut connection, "5", plan).await;
            found.push(batches);
        }
    }
    found.iter().for_each(|rows| assert_eq!(rows, &found[0]));
}

#[tokio::test]
async fn rows_lie_in_the_segment_until_they_are_dropped() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    let window = 4;
    ask(&mut connection, "200", wide(window)).await.expect("an answer");
    // Dropped one by one, all come through shared memory but what is too small for it.
    while let Incoming::Rows(batch) = within(connection.next()).await.expect("rows") {
        let large = batch.get_array_memory_size() >= 16 << 10;
        assert_eq!(placed(&[batch]), usize::from(large));
    }
    // Held, they are as many as the segment has room for, and the rest comes by the socket.
    let held = collect(&mut connection, "200", wide(window)).await;
    assert_eq!(placed(&held), window as usize);
    assert_eq!(placed(&collect(&mut connection, "50", wide(window)).await), 0);
    // Given back late, they can be used again, and what was held is what it was.
    let copy = arrow_select::concat::concat_batches(&held[0].schema(), &held).expect("rows");
    drop(held);
    let again = collect(&mut connection, "200", wide(window)).await;
    assert_eq!(placed(&again), window as usize);
    drop(connection);
    assert_eq!(arrow_select::concat::concat_batches(&again[0].schema(), &again).expect("rows"), copy);
    std::thread::spawn(move || drop(again)).join().expect("no panic");
}

#[tokio::test]
async fn plans_may_change_between_queries() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    for message_bytes in [64 << 10, 1 << 20, 20 << 10, 64 << 20, 64 << 10] {
        let plan = Plan { message_bytes, batch_bytes: message_bytes, ..wide(3) };
        whole(&mut connection, 300, plan).await;
    }
}

#[tokio::test]
async fn a_client_that_can_not_stays_with_its_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Running::start_at(Listen::Unix(folder.path().join("s")), ServerConfig::default()).await;
    let mut connection = server.try_connect(&by_socket()).await.expect("a connection");
    assert_eq!(connection.carrier(), Carrier::Unix);
    whole(&mut connection, 200, wide(4)).await;
}

/// A server behind a forwarded port names a socket that is not on this host.
#[tokio::test]
async fn a_meeting_that_can_not_be_had_leaves_the_connection_with_tcp() {
    for name in ["lightship-nobody-listens-here", "lightship-a-stranger-listens-here"] {
        let stranger = UnixListener::bind("\0lightship-a-stranger-listens-here").expect("a name");
        let stranger = tokio::spawn(async move {
            let (mut stream, _) = stranger.accept().await.expect("a client");
            let hello = Hello { capabilities: CAPABILITY_SEGMENTS, ..Hello::default() };
            stream.write_all(&frame(FrameKind::Hello, 0, 0, 0, &hello.encode())).await.expect("sent");
            stream
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let hello =
                Hello { capabilities: CAPABILITY_RENDEZVOUS, ping_interval_ms: 1000, ..Hello::default() };
            let rendezvous = Rendezvous {
                name: name.into(),
                client_token: "client".into(),
                server_token: "server".into(),
            };
            stream.write_all(&frame(FrameKind::Hello, 0, 0, 0, &hello.encode())).await.expect("sent");
            stream
                .write_all(&frame(FrameKind::Rendezvous, 0, 0, 1, &rendezvous.encode()))
                .await
                .expect("sent");
            stream
        });
        let endpoint = Endpoint::Tcp { host: "127.0.0.1".into(), port, tls: None };
        let connection = within(Connection::connect(&endpoint, &ClientConfig::default())).await;
        assert_eq!(connection.expect("a connection").carrier(), Carrier::Tcp);
        let _open = server.await.expect("no panic");
        stranger.abort();
        let _ = stranger.await;
    }
}

/// Who only knows the name of a rendezvous gets nothing from it, and does not keep the client away.
#[tokio::test]
async fn connections_without_the_token_are_refused_at_a_rendezvous() {
    let server =
        Running::start(ServerConfig { tokens: vec!["secret".into()], ..ServerConfig::default() }).await;
    let Endpoint::Tcp { host, port, .. } = &server.endpoint else { panic!("TCP") };
    let mut client = tokio::net::TcpStream::connect((host.as_str(), *port)).await.expect("connected");
    let hello = Hello {
        token: "secret".into(),
        capabilities: CAPABILITY_RENDEZVOUS,
        ping_interval_ms: 1000,
        ..Hello::default()
    };
    client.write_all(&frame(FrameKind::Hello, 0, 0, 0, &hello.encode())).await.expect("sent");
    assert_eq!(read_frame(&mut client).await.0.kind, FrameKind::Hello);
    let (header, payload) = read_frame(&mut client).await;
    assert_eq!(header.kind, FrameKind::Rendezvous);
    let rendezvous = Rendezvous::decode(&payload).expect("a rendezvous");

    let go = async |token: &str| {
        let mut stream = UnixStream::connect(format!("\0{}", rendezvous.name)).await.expect("connected");
        let hello = Hello { token: token.into(), ..Hello::default() };
        stream.write_all(&frame(FrameKind::Hello, 0, 0, 0, &hello.encode())).await.expect("sent");
        stream
    };
    for stranger in ["", "secret", &rendezvous.server_token] {
        let mut answer = Vec::new();
        let _ = within(go(stranger).await.read_to_end(&mut answer)).await;
        assert!(answer.is_empty(), "{stranger} was answered");
    }
    let mut met = go(&rendezvous.client_token).await;
    let (_, payload) = within(read_frame(&mut met)).await;
    assert_eq!(Hello::decode(&payload).expect("a hello").token, rendezvous.server_token);
    // The TCP connection has done its work.
    assert_eq!(within(client.read(&mut [0])).await.expect("closed"), 0);
}

async fn read_frame(stream: &mut (impl AsyncReadExt + Unpin)) -> (FrameHeader, Vec<u8>) {
    let mut header = [0; 32];
    stream.read_exact(&mut header).await.expect("a header");
    let header = FrameHeader::decode(&header).expect("a header");
    let mut payload = vec![0; header.payload_bytes as usize];
    stream.read_exact(&mut payload).await.expect("a payload");
    (header, payload)
}

/// A message of 32 KB, and its slot at the front of segment 1.
fn message() -> (Vec<u8>, SegmentSlot) {
    let column = arrow_array::Int64Array::from_iter_values(0..4096);
    let batch = RecordBatch::try_from_iter([("n", std::sync::Arc::new(column) as _)]).expect("rows");
    let bytes = Encoder::new(Codec::None).encode(&batch).expect("a message").to_vec();
    let slot = SegmentSlot { segment: 1, offset: 0, bytes: bytes.len() as u32, crc: crc32c(&bytes) };
    (bytes, slot)
}

/// A segment of 128 KB with these bytes at its front.
fn segment(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = std::fs::File::from(memfd_create("forged", flags).expect("memory"));
    std::io::Write::write_all(&mut &file, bytes).expect("room");
    file.set_len(128 << 10).expect("room");
    fcntl_add_seals(&file, seals).expect("sealed");
    file.into()
}

const SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE);

/// A server that sends these placed messages, with this descriptor before them; what its client makes of it.
async fn forged(descriptor: Option<OwnedFd>, slots: &[(u16, SegmentSlot)]) -> Result<u64, TransportError> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    let mut words = Vec::new();
    for (n, (flags, slot)) in slots.iter().enumerate() {
        let payload = slot.encode();
        words.extend(frame(FrameKind::Message, FLAG_PLACED | flags, 1, 1 + n as u32, &payload));
    }
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let (_, payload) = read_frame(&mut stream).await;
        assert_ne!(Hello::decode(&payload).expect("a hello").capabilities & CAPABILITY_SEGMENTS, 0);
        let hello = Hello { capabilities: CAPABILITY_SEGMENTS, ping_interval_ms: 10_000, ..Hello::default() };
        stream.write_all(&frame(FrameKind::Hello, 0, 0, 0, &hello.encode())).await.expect("sent");
        read_frame(&mut stream).await;
        let schema = arrow_schema::Schema::new(vec![arrow_schema::Field::new(
            "n",
            arrow_schema::DataType::Int64,
            false,
        )]);
        let accepted = Accepted { schema, rows_estimate: None }.encode().expect("a schema");
        stream.write_all(&frame(FrameKind::Schema, 0, 1, 0, &accepted)).await.expect("sent");
        stream.writable().await.expect("open");
        send_with(&stream, descriptor.as_ref(), &words);
        // Kept open: what ends it is the client.
        let _ = stream.read(&mut [0; 1024]).await;
        stream
    });
    let mut connection =
        Connection::connect(&Endpoint::Unix(path), &ClientConfig::default()).await.expect("a connection");
    let plan = Plan { message_bytes: 64 << 10, batch_bytes: 256 << 10, ..wide(1) };
    within(connection.query(&Query { sql: "q".into(), plan }, 1)).await.expect("a schema");
    // The rows of one are in use while the next one comes.
    let mut held = Vec::new();
    for _ in slots {
        match within(connection.next()).await? {
            Incoming::Rows(batch) => held.push(batch),
            Incoming::Finished(_) => break,
        }
    }
    drop(connection);
    server.await.expect("no panic");
    Ok(held.iter().map(|batch| batch.num_rows() as u64).sum())
}

fn send_with(stream: &UnixStream, descriptor: Option<&OwnedFd>, words: &[u8]) {
    let slices = [IoSlice::new(words)];
    let message = MsgHdr::new().with_buffers(&slices);
    let control;
    let message = match descriptor {
        Some(descriptor) => {
            // A header of control data: its length, SOL_SOCKET, SCM_RIGHTS; then the descriptor.
            let fd = descriptor.as_fd().as_raw_fd();
            control = [
                &20u64.to_ne_bytes()[..],
                &1i32.to_ne_bytes(),
                &1i32.to_ne_bytes(),
                &fd.to_ne_bytes(),
                &[0; 4],
            ]
            .concat();
            message.with_control(&control)
        }
        None => message,
    };
    assert_eq!(SockRef::from(stream).sendmsg(&message, 0).expect("sent"), words.len());
}

#[tokio::test]
async fn an_honest_segment_is_read() {
    let (bytes, slot) = message();
    let twice = [bytes.as_slice(), &vec![0; (64 << 10) - bytes.len()], &bytes].concat();
    let slots = [(FLAG_DESCRIPTOR, slot), (0, SegmentSlot { offset: 64 << 10, ..slot })];
    assert_eq!(forged(Some(segment(&twice, SEALED)), &slots).await.expect("rows"), 2 * 4096);
}

#[tokio::test]
async fn segments_and_places_that_are_not_what_they_should_be() {
    let (bytes, slot) = message();
    let good = || Some(segment(&bytes, SEALED));
    let one = |slot| vec![(FLAG_DESCRIPTOR, slot)];
    let file = || Some(OwnedFd::from(tempfile::tempfile().expect("a file")));
    let pipe = || Some(OwnedFd::from(std::io::pipe().expect("a pipe").0));
    let cases = [
        ("not sealed", Some(segment(&bytes, SealFlags::empty())), one(slot), "not sealed"),
        ("may shrink", Some(segment(&bytes, SEALED - SealFlags::SHRINK)), one(slot), "not sealed"),
        ("may be written", Some(segment(&bytes, SEALED - SealFlags::FUTURE_WRITE)), one(slot), "not sealed"),
        ("a file", file(), one(slot), "not sealed"),
        ("a pipe", pipe(), one(slot), "not sealed"),
        ("no descriptor", None, one(slot), "without descriptor"),
        ("no segment", None, vec![(0, slot)], "is unknown"),
        (
            "another segment",
            good(),
            vec![(FLAG_DESCRIPTOR, slot), (0, SegmentSlot { segment: 2, ..slot })],
            "is unknown",
        ),
        (
            "beyond",
            good(),
            one(SegmentSlot { offset: 96 << 10, bytes: (32 << 10) + 1, ..slot }),
            "of a segment of 131072",
        ),
        ("far beyond", good(), one(SegmentSlot { offset: u32::MAX - 63, ..slot }), "of a segment of 131072"),
        ("nothing", good(), one(SegmentSlot { bytes: 0, ..slot }), "0 bytes at 0"),
        ("not aligned", good(), one(SegmentSlot { offset: 1, ..slot }), "not aligned"),
        ("the same twice", good(), vec![(FLAG_DESCRIPTOR, slot), (0, slot)], "in use"),
        (
            "overlapping",
            good(),
            vec![(FLAG_DESCRIPTOR, slot), (0, SegmentSlot { offset: 64, ..slot })],
            "in use",
        ),
        ("too large", good(), one(SegmentSlot { bytes: u32::MAX, ..slot }), "over the limit"),
        ("scribbled", Some(segment(&bytes[1..], SEALED)), one(slot), "checksum of the payload"),
    ];
    for (name, descriptor, slots, word) in cases {
        let error = forged(descriptor, &slots).await.expect_err(name);
        assert!(error.to_string().contains(word), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_segment_larger_than_the_window_is_refused() {
    let (bytes, slot) = message();
    let large = segment(&bytes, SealFlags::empty());
    let file = std::fs::File::from(large);
    file.set_len(1 << 30).expect("room");
    fcntl_add_seals(&file, SEALED).expect("sealed");
    let error = forged(Some(file.into()), &[(FLAG_DESCRIPTOR, slot)]).await.expect_err("too large");
    assert!(error.to_string().contains("segment of 1073741824 bytes"), "{error}");
}

/// Environment of a child of this test binary: what it is, and the path of the socket.
const CHILD: &str = "LIGHTSHIP_TEST_CHILD";
const SOCKET: &str = "LIGHTSHIP_TEST_SOCKET";

/// What a child process runs; without its environment there is nothing to test.
#[tokio::test]
async fn child() {
    let (Ok(role), Some(path)) = (std::env::var(CHILD), std::env::var_os(SOCKET)) else { return };
    let say_ready = || std::io::stdout().write_all(b"ready\n").expect("the parent reads");
    if role == "server" {
        let server = Running::start_at(Listen::Unix(path.into()), ServerConfig::default()).await;
        say_ready();
        server.ended.await.expect("no panic").expect("a clean end");
    } else {
        let endpoint = Endpoint::Unix(path.into());
        let mut connection =
            Connection::connect(&endpoint, &ClientConfig::default()).await.expect("a server");
        ask(&mut connection, "1000000000", wide(4)).await.expect("an answer");
        let _held = connection.next().await.expect("rows");
        say_ready();
        std::future::pending::<()>().await;
    }
}

/// A process of its own, perhaps of another user, once it is ready.
fn spawn(role: &str, socket: &Path, uid: Option<u32>) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", "shm::child", "--nocapture"]).env(CHILD, role).env(SOCKET, socket);
    command.stdout(Stdio::piped());
    if let Some(uid) = uid {
        command.uid(uid);
    }
    let mut child = command.spawn().expect("a process");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let ready = lines.map_while(Result::ok).any(|line| line.ends_with("ready"));
    assert!(ready, "{:?}", child.wait());
    child
}

#[tokio::test]
async fn a_killed_server_leaves_its_rows_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let mut server = spawn("server", &path, None);
    let mut connection =
        Connection::connect(&Endpoint::Unix(path), &ClientConfig::default()).await.expect("a connection");
    ask(&mut connection, "1000000000", wide(4)).await.expect("an answer");
    let Incoming::Rows(first) = within(connection.next()).await.expect("rows") else { panic!("no rows") };
    assert_eq!(placed(std::slice::from_ref(&first)), 1);
    server.kill().expect("killed");
    server.wait().expect("gone");
    let error = loop {
        if let Err(error) = within(connection.next()).await {
            break error;
        }
    };
    assert!(matches!(error, TransportError::Closed { .. } | TransportError::Io(_)), "{error}");
    let numbers = arrow_array::cast::AsArray::as_primitive::<arrow_array::types::Int64Type>(first.column(0));
    assert!(numbers.values().iter().copied().eq(0..first.num_rows() as i64));
}

#[tokio::test]
async fn a_killed_client_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let server = Running::start_at(Listen::Unix(path.clone()), ServerConfig::default()).await;
    let mut client =
        tokio::task::spawn_blocking(move || spawn("client", &path, None)).await.expect("a child");
    client.kill().expect("killed");
    client.wait().expect("gone");
    server.dropped(1).await;
    whole(&mut server.connect().await, 100, wide(4)).await;
}

/// Rows of a user who could not write our memory are copied out before they are judged.
#[tokio::test]
async fn another_user_is_not_trusted_with_our_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    if std::os::unix::fs::chown(folder.path(), Some(NOBODY), None).is_err() {
        eprintln!("skipped: only root can start a server as another user");
        return;
    }
    let path = folder.path().join("socket");
    let mut server = spawn("server", &path, Some(NOBODY));
    let mut connection =
        Connection::connect(&Endpoint::Unix(path), &ClientConfig::default()).await.expect("a connection");
    assert_eq!(connection.carrier(), Carrier::SharedMemory);
    let batches = collect(&mut connection, "100", wide(4)).await;
    assert_eq!(placed(&batches), 0);
    assert!(!segments().is_empty(), "nothing came through shared memory");
    whole(&mut connection, 100, wide(4)).await;
    server.kill().expect("killed");
    server.wait().expect("gone");
}

const NOBODY: u32 = 65534;
