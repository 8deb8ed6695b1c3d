//! Frames in any order, to a server that answers and to a client that asks: neither panics, and none takes more memory
//! for a frame than it should.
#![no_main]

use std::time::{Duration, Instant};

use arrow_buffer::Buffer;
use libfuzzer_sys::fuzz_target;
use lightship_transport::proto::{Client, ClientEvent, Server, ServerEvent};
use lightship_wire::cluster::CAPABILITY_CLUSTER;
use lightship_wire::control::{Accepted, ErrorCode, Failure, Plan, Query};
use lightship_wire::frame::{HEADER_BYTES, Header, Kind, crc32c};
use lightship_wire::schema;

const INTERVAL: Duration = Duration::from_secs(10);

/// Kind, flags, whether it is of stream 0 and the payload: numbers and checksums are right.
type Frame = (u8, u8, bool, Vec<u8>);

/// Numbers frames as an honest peer does.
#[derive(Default)]
struct Numbers {
    connection: u64,
    stream: u32,
    next: u64,
}

impl Numbers {
    fn header(&mut self, frame: &Frame) -> Option<Header> {
        let (kind, flags, on_connection, payload) = frame;
        let begins = [Kind::Query, Kind::Task, Kind::Join].iter().any(|begins| *begins as u8 == *kind);
        if begins && !on_connection {
            (self.stream, self.next) = (self.stream + 1, 0);
        }
        let (stream, next) =
            if *on_connection { (0, &mut self.connection) } else { (self.stream, &mut self.next) };
        let header = Header {
            kind: Kind::Ping,
            flags: (*flags).into(),
            stream,
            payload_bytes: payload.len() as u32,
            sequence: *next,
            payload_crc: crc32c(payload),
        };
        *next += 1;
        let mut bytes = header.encode();
        bytes[5] = *kind;
        let crc = crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        Header::decode(&bytes).ok()
    }
}

fn serve(frames: &[Frame]) {
    let mut now = Instant::now();
    let mut server = Server::new(now, INTERVAL, Some(INTERVAL));
    let mut numbers = Numbers::default();
    let empty = schema::decode(&[0; 8]).expect("no columns");
    for frame in frames {
        now += Duration::from_millis(frame.1.into());
        let Some(header) = numbers.header(frame) else { continue };
        if header.payload_bytes > server.payload_bytes_max(header.kind) {
            return;
        }
        match server.handle(now, &header, &frame.3) {
            Err(_) => return,
            Ok(Some(ServerEvent::Hello(hello))) => {
                server.welcome(String::new(), hello.capabilities | CAPABILITY_CLUSTER, None);
            }
            Ok(Some(ServerEvent::Query(_) | ServerEvent::Task(_))) if frame.1 & 1 == 0 => {
                server.accept(&Accepted { schema: empty.clone(), rows_estimate: None }).expect("no columns");
                server.waits(now);
            }
            Ok(Some(ServerEvent::Cancel | ServerEvent::Join(_))) => {
                server.fail(&Failure::new(ErrorCode::Cancelled, "as asked"));
            }
            Ok(Some(ServerEvent::Resize(sizes))) if server.may_resize() => server.resize(&sizes),
            Ok(_) => {}
        }
        let _ = (server.deadline(), server.stalled(now), server.wake(now));
        while server.poll_transmit().is_some() {}
    }
}

fn ask(frames: &[Frame]) {
    let mut now = Instant::now();
    let mut client = Client::new(now, "token".into(), u64::MAX, INTERVAL);
    // The client names its streams itself.
    let mut numbers = Numbers { stream: 1, ..Numbers::default() };
    let plan = Plan { codec: None, streams: 4, message_bytes_max: 1 << 16, ..Plan::default() };
    for frame in frames {
        now += Duration::from_millis(frame.1.into());
        let Some(header) = numbers.header(frame) else { continue };
        if header.payload_bytes > client.payload_bytes_max(header.kind) {
            return;
        }
        match client.handle(now, &header, Buffer::from_vec(frame.3.clone())) {
            Err(_) => return,
            Ok(Some(ClientEvent::Ready)) => {
                let _ = client.query(&Query { sql: "select 1".into(), plan });
            }
            Ok(Some(ClientEvent::Message(message))) => drop(message.decode()),
            Ok(Some(ClientEvent::BatchEnd { credit })) => client.consumed(credit, &Default::default()),
            Ok(Some(ClientEvent::Finished(_) | ClientEvent::Failed(_))) => return,
            Ok(_) => {}
        }
        let _ = (client.deadline(), client.wake(now));
        while client.poll_transmit().is_some() {}
    }
}

fuzz_target!(|frames: Vec<Frame>| {
    serve(&frames);
    ask(&frames);
});
