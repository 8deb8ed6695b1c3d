//! Peers that send malformed data to the client and to the node.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use arrow_array::{Int64Array, RecordBatch};
use lightship_wire::control::{Accepted, BatchEnd, ErrorCode, Failure, Hello, Plan, Query};
use lightship_wire::frame::{FLAG_LAST, FrameHeader, FrameKind, HEADER_BYTES, crc32c};
use lightship_wire::{Codec, Encoder};

use crate::support::*;

fn frame(kind: FrameKind, flags: u16, stream: u32, sequence: u32, payload: &[u8]) -> Vec<u8> {
    [&FrameHeader::whole(kind, flags, stream, sequence, payload).encode(), payload].concat()
}

fn hello() -> Vec<u8> {
    let hello = Hello { agent: "test".into(), ping_interval_ms: 10_000, ..Hello::default() };
    frame(FrameKind::Hello, 0, 0, 0, &hello.encode())
}

fn query(sql: &str) -> Vec<u8> {
    frame(FrameKind::Query, 0, 1, 0, &Query { sql: sql.into(), plan: Plan::default() }.encode())
}

fn rows(count: i64) -> RecordBatch {
    let column = Int64Array::from_iter_values(0..count);
    RecordBatch::try_from_iter([("n", std::sync::Arc::new(column) as _)]).expect("a batch")
}

fn schema() -> Vec<u8> {
    let accepted = Accepted { schema: rows(0).schema().as_ref().clone(), rows_estimate: None };
    frame(FrameKind::Schema, 0, 1, 0, &accepted.encode().expect("a schema"))
}

fn payload(count: i64) -> Vec<u8> {
    let message = Encoder::new(Codec::None).encode(&rows(count)).expect("a message");
    message.pieces().flatten().copied().collect()
}

fn announcing(kind: FrameKind, stream: u32, sequence: u32, bytes: u32) -> Vec<u8> {
    let header = FrameHeader::whole(kind, 0, stream, sequence, &[]);
    FrameHeader { payload_bytes: bytes, part_bytes: bytes, ..header }.encode().to_vec()
}

fn read_frame(stream: &mut TcpStream) -> Option<(FrameHeader, Vec<u8>)> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).ok()?;
    let header = FrameHeader::decode(&head).expect("a header");
    let mut payload = vec![0; header.payload_bytes as usize];
    stream.read_exact(&mut payload).ok()?;
    header.verify(&payload).expect("a good checksum");
    Some((header, payload))
}

/// Answers the client's query with these bytes, and closes the connection.
fn answered(welcome: Vec<u8>, answer: Vec<u8>) -> (Outcome, Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let uri = format!("lightship://{}", listener.local_addr().expect("an address"));
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        read_frame(&mut stream).expect("a hello");
        let _ = stream.write_all(&welcome);
        if welcome == hello() && read_frame(&mut stream).is_some() {
            let _ = stream.write_all(&answer);
        }
        let _ = stream.shutdown(Shutdown::Write);
        // The client may close the connection first.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let began = Instant::now();
    let outcome = lightship(&["--json", "fetch", &uri, "select n from t"]);
    server.join().expect("no panic");
    (outcome, began.elapsed())
}

#[test]
fn malformed_data_of_a_server_is_an_error_of_the_client() {
    let newer = {
        let mut bytes = hello();
        bytes[4] = 9;
        bytes
    };
    let flipped = |mut bytes: Vec<u8>, at: usize| {
        bytes[at] ^= 1;
        bytes
    };
    let message = |sequence| frame(FrameKind::Message, 0, 1, sequence, &payload(5));
    let end = |sequence, rows, messages| {
        frame(FrameKind::BatchEnd, FLAG_LAST, 1, sequence, &BatchEnd { rows, messages }.encode())
    };
    let failure = Failure::new(ErrorCode::Internal, "out of order");
    let mut cut = message(1);
    cut.truncate(HEADER_BYTES + 20);
    let mut garbled = payload(5);
    garbled[0..4].fill(0xff);
    let lie = {
        // Announces more rows than the message has bytes for.
        let mut bytes = payload(5);
        bytes[0..4].copy_from_slice(&1_000_000_u32.to_le_bytes());
        bytes
    };
    type Case = (&'static str, Vec<u8>, Vec<u8>, i32, &'static str);
    let cases: Vec<Case> = vec![
        (
            "text",
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".into(),
            vec![],
            NETWORK,
            "does not speak Lightship",
        ),
        ("short text", b"220 ready\r\n".into(), vec![], NETWORK, "does not speak Lightship"),
        ("nothing", vec![], vec![], NETWORK, "closed the connection"),
        ("a newer version", newer, vec![], NETWORK, "version 9 of the protocol; this side knows version 2"),
        (
            "a huge hello",
            announcing(FrameKind::Hello, 0, 0, u32::MAX),
            vec![],
            NETWORK,
            "4294967295 bytes is over the limit of 8192",
        ),
        ("a bad header", flipped(hello(), 20), vec![], NETWORK, "checksum of the header"),
        ("a bad hello", flipped(hello(), 40), vec![], NETWORK, "checksum of the payload"),
        ("a schema for a hello", schema(), vec![], NETWORK, "broke the protocol"),
        ("a refusal", frame(FrameKind::Error, 0, 0, 0, &failure.encode()), vec![], 1, "out of order"),
        ("no answer", hello(), vec![], NETWORK, "before the result was complete"),
        ("rows without a schema", hello(), message(0), NETWORK, "an unexpected"),
        (
            "a huge schema",
            hello(),
            announcing(FrameKind::Schema, 1, 0, u32::MAX),
            NETWORK,
            "over the limit of 16777216 bytes",
        ),
        (
            "a huge message",
            hello(),
            [schema(), announcing(FrameKind::Message, 1, 1, u32::MAX)].concat(),
            NETWORK,
            "over the limit",
        ),
        (
            "a message that never comes",
            hello(),
            [schema(), announcing(FrameKind::Message, 1, 1, 16 << 20)].concat(),
            NETWORK,
            "in the middle of a frame",
        ),
        ("half a message", hello(), [schema(), cut].concat(), NETWORK, "in the middle of a frame"),
        (
            "a flipped bit",
            hello(),
            [schema(), flipped(message(1), HEADER_BYTES + 50)].concat(),
            NETWORK,
            "checksum of the payload",
        ),
        (
            "garbled rows",
            hello(),
            [schema(), frame(FrameKind::Message, 0, 1, 1, &garbled)].concat(),
            NETWORK,
            "",
        ),
        (
            "rows without bytes",
            hello(),
            [schema(), frame(FrameKind::Message, 0, 1, 1, &lie)].concat(),
            NETWORK,
            "",
        ),
        (
            "an empty message",
            hello(),
            [schema(), frame(FrameKind::Message, 0, 1, 1, &[])].concat(),
            NETWORK,
            "cut short",
        ),
        ("a frame twice", hello(), [schema(), message(1), message(1)].concat(), NETWORK, "expected frame 2"),
        (
            "another stream",
            hello(),
            [schema(), frame(FrameKind::Message, 0, 2, 0, &payload(5))].concat(),
            NETWORK,
            "unexpected Message frame on stream",
        ),
        (
            "no end of the batch",
            hello(),
            [schema(), message(1)].concat(),
            NETWORK,
            "before the result was complete",
        ),
        (
            "missing rows",
            hello(),
            [schema(), message(1), end(2, 10, 2)].concat(),
            NETWORK,
            "10 rows in 2 messages, but 5 rows in 1 messages arrived",
        ),
        ("an unknown kind", hello(), unknown_kind(), NETWORK, "unknown kind 77"),
    ];
    for (name, welcome, answer, code, words) in cases {
        let (outcome, seconds) = answered(welcome, answer);
        let outcome = outcome.fails(code, &[words]);
        assert!(seconds < Duration::from_secs(5), "{name}: {seconds:?}");
        assert!(
            outcome.json()["error"]["message"].as_str().is_some_and(|m| !m.is_empty()),
            "{name}: {outcome}"
        );
    }
    // The same exchange without an error.
    let (outcome, _) = answered(hello(), [schema(), message(1), end(2, 5, 1)].concat());
    let expected: String = (0..5).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    assert_eq!(outcome.succeeds().text(), expected);
}

fn unknown_kind() -> Vec<u8> {
    let mut head = FrameHeader::whole(FrameKind::Ping, 0, 0, 1, &[]).encode();
    head[5] = 77;
    let crc = crc32c(&head[..28]);
    head[28..].copy_from_slice(&crc.to_le_bytes());
    head.to_vec()
}

#[test]
fn memory_is_not_allocated_for_announced_bytes() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let uri = format!("lightship://{}", listener.local_addr().expect("an address"));
    let client = Process::start(&["fetch", &uri, "select n from t", "--memory", "8GiB"]);
    let (mut stream, _) = listener.accept().expect("a client");
    read_frame(&mut stream).expect("a hello");
    stream.write_all(&hello()).expect("sent");
    read_frame(&mut stream).expect("a query");
    let much = [schema(), announcing(FrameKind::Message, 1, 1, 1 << 30), vec![0; 1 << 20]].concat();
    stream.write_all(&much).expect("sent");
    // The client answers a ping only after the frame, so wait until it has read what was sent.
    until("the megabyte was taken", || unread_bytes(&stream) == 0);
    assert!(client.memory_bytes("VmHWM:") < 200 << 20, "{}", client.memory_bytes("VmHWM:"));
    drop(stream);
    client.end().fails(NETWORK, &["in the middle of a frame"]);
}

/// Bytes sent that the peer has not read yet.
fn unread_bytes(stream: &TcpStream) -> usize {
    let port = format!(":{:04X}", stream.local_addr().expect("an address").port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the sockets");
    let queues = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ours = words.get(1)?.ends_with(&port) || words.get(2)?.ends_with(&port);
        let (out, waiting) = words.get(4)?.split_once(':')?;
        let bytes = |hex| usize::from_str_radix(hex, 16).unwrap_or(0);
        ours.then(|| bytes(out) + bytes(waiting))
    });
    queues.sum()
}

#[test]
fn malformed_data_of_a_client_is_refused_by_the_node() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let no_window = {
        let mut bytes = Query { sql: "select 1".into(), plan: Plan::default() }.encode();
        bytes[16..20].fill(0);
        frame(FrameKind::Query, 0, 1, 0, &bytes)
    };
    let newer = {
        let mut bytes = hello();
        bytes[4] = 9;
        bytes
    };
    let greeted = |bytes: Vec<u8>| [hello(), bytes].concat();
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        (
            "HTTP",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n".into(),
            "does not speak Lightship",
        ),
        (
            "PostgreSQL",
            [&8_u32.to_be_bytes()[..], &80_877_103_u32.to_be_bytes(), &[0; 32]].concat(),
            "does not speak Lightship",
        ),
        ("a newer version", newer, "version 9 of the protocol"),
        ("zeros", vec![0; 100], "does not speak Lightship"),
        ("a huge hello", announcing(FrameKind::Hello, 0, 0, u32::MAX), "over the limit"),
        ("a query first", query("select 1"), "an unexpected"),
        ("a ping first", [frame(FrameKind::Ping, 0, 0, 0, &[]), query("select 1")].concat(), "an unexpected"),
        (
            "two hellos",
            greeted(frame(FrameKind::Hello, 0, 0, 1, &Hello::default().encode())),
            "unexpected Hello",
        ),
        ("rows", greeted(frame(FrameKind::Message, 0, 1, 0, &payload(3))), "an unexpected"),
        ("a huge query", greeted(announcing(FrameKind::Query, 1, 0, u32::MAX)), "over the limit"),
        ("a plan without a window", greeted(no_window), "window_batches is 0"),
        ("an unknown kind", greeted(unknown_kind()), "unknown kind 77"),
        ("another stream", greeted(frame(FrameKind::Query, 0, 7, 0, &[])), "stream 7 out of order"),
        (
            "a flipped bit",
            greeted({
                let mut bytes = query("select 1");
                bytes[HEADER_BYTES + 3] ^= 4;
                bytes
            }),
            "checksum of the payload",
        ),
        (
            "SQL that is no text",
            greeted({
                let mut bytes = Query { sql: "xxxx".into(), plan: Plan::default() }.encode();
                let last = bytes.len() - 1;
                bytes[last] = 0xff;
                frame(FrameKind::Query, 0, 1, 0, &bytes)
            }),
            "invalid utf-8",
        ),
    ];
    for (name, bytes, words) in cases {
        let mut stream = TcpStream::connect(node.address()).expect("connected");
        let mut rest = bytes.as_slice();
        if let Some(behind) = rest.strip_prefix(hello().as_slice()) {
            stream.write_all(&hello()).expect("sent");
            read_frame(&mut stream).expect("a welcome");
            rest = behind;
        }
        stream.write_all(rest).expect("sent");
        let mut failure = None;
        while let Some((header, payload)) = read_frame(&mut stream) {
            if header.kind == FrameKind::Error {
                failure = Some(Failure::decode(&payload).expect("an error"));
            }
        }
        let failure = failure.unwrap_or_else(|| panic!("{name}: closed without an error"));
        assert_eq!(failure.code, ErrorCode::Protocol, "{name}: {failure}");
        assert!(failure.message.contains(words), "{name}: {failure}");
    }
    // Clients that disconnect in the middle of a message.
    for bytes in [vec![], vec![0x4c], hello()[..40].to_vec(), greeted(query("select 1")[..50].to_vec())] {
        drop(TcpStream::connect(node.address()).map(|mut stream| stream.write_all(&bytes)));
    }
    let random: Vec<u8> = (0_u32..100_000).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut stream = TcpStream::connect(node.address()).expect("connected");
    let _ = stream.write_all(&greeted(random));
    // Clients that stay connected and send nothing.
    let _silent: Vec<_> = (0..20).map(|_| TcpStream::connect(node.address()).expect("connected")).collect();
    node.serves();
    assert!(node.process.memory_bytes("VmRSS:") < 300 << 20);
}

#[test]
fn a_client_that_never_reads_costs_little_memory() {
    let node = Node::start(&[]);
    let mut stream = TcpStream::connect(node.address()).expect("connected");
    let plan = Plan { window_batches: u32::MAX, batch_bytes: u32::MAX, ..Plan::default() };
    let ask = frame(FrameKind::Query, 0, 1, 0, &Query { sql: ENDLESS.into(), plan }.encode());
    stream.write_all(&hello()).expect("sent");
    read_frame(&mut stream).expect("a welcome");
    stream.write_all(&ask).expect("sent");
    // The answers to pings queue up behind rows that the client does not read.
    stream.set_write_timeout(Some(Duration::from_secs(5))).expect("set");
    let pings: Vec<u8> = (1..=1_000_000).flat_map(|n| frame(FrameKind::Ping, 0, 0, n, &[])).collect();
    let _ = stream.write_all(&pings);
    node.serves();
    let bytes = node.process.memory_bytes("VmHWM:");
    assert!(bytes < 150 << 20, "{bytes} bytes for a client that never reads");
}
