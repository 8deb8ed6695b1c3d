//! Frames in any order, sent to a server with queries and to a client: neither panics, and neither
//! allocates more memory for a frame than its limit.
#![no_main]

use std::time::{Duration, Instant};

use arrow_buffer::Buffer;
use libfuzzer_sys::fuzz_target;
use lightship_transport::proto::{Client, ClientEvent, Server, ServerEvent};
use lightship_wire::cluster::CAPABILITY_CLUSTER;
use lightship_wire::control::{Accepted, ErrorCode, Failure, Plan, Query};
use lightship_wire::frame::{FrameHeader, FrameKind, HEADER_BYTES, crc32c};
use lightship_wire::schema;

const INTERVAL: Duration = Duration::from_secs(10);

/// Kind, flags, stream (an open one, or the next) and payload. Frame numbers and checksums are correct.
type Frame = (u8, u8, u8, Vec<u8>);

/// Numbers frames as a correct peer does.
struct Numbers {
    /// The next frame number of each stream, from stream 0.
    next: Vec<u32>,
}

impl Numbers {
    /// With this number of streams that are already open.
    fn with(streams: usize) -> Self {
        Self { next: vec![0; 1 + streams] }
    }

    fn header(&mut self, frame: &Frame) -> Option<FrameHeader> {
        let (kind, flags, stream, payload) = frame;
        let begins =
            [FrameKind::Query, FrameKind::Task, FrameKind::Join].iter().any(|begins| *begins as u8 == *kind);
        let stream = if begins && *stream > 0 {
            self.next.push(0);
            self.next.len() - 1
        } else {
            usize::from(*stream) % self.next.len()
        };
        let mut header =
            FrameHeader::whole(FrameKind::Ping, (*flags).into(), stream as u32, self.next[stream], payload)
                .encode();
        self.next[stream] += 1;
        header[5] = *kind;
        let crc = crc32c(&header[..HEADER_BYTES - 4]);
        header[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        FrameHeader::decode(&header).ok()
    }
}

fn serve(frames: &[Frame]) {
    let mut now = Instant::now();
    let mut server = Server::new(now, INTERVAL, Some(INTERVAL));
    let mut numbers = Numbers::with(0);
    let empty = schema::decode(&[0; 8]).expect("no columns");
    for frame in frames {
        now += Duration::from_millis(frame.1.into());
        let Some(header) = numbers.header(frame) else { continue };
        if header.payload_bytes > server.payload_bytes_max(header.kind) {
            return;
        }
        match server.handle(now, &header, &frame.3) {
            Err(_) => return,
            Ok(Some((_, ServerEvent::Hello(hello)))) => {
                server.welcome(String::new(), hello.capabilities | CAPABILITY_CLUSTER, None);
            }
            Ok(Some((stream, ServerEvent::Query(_) | ServerEvent::Task(_)))) if frame.1 & 1 == 0 => {
                server
                    .accept(stream, &Accepted { schema: empty.clone(), rows_estimate: None })
                    .expect("no columns");
                server.waits(stream, now);
            }
            Ok(Some((stream, ServerEvent::Cancel | ServerEvent::Join(_)))) => {
                server.fail(stream, &Failure::new(ErrorCode::Cancelled, "as asked"));
            }
            Ok(Some((stream, ServerEvent::Resize(sizes)))) if server.may_resize(stream) => {
                server.resize(stream, &sizes)
            }
            Ok(_) => {}
        }
        let _ = (server.deadline(), server.stalled(header.stream, now), server.wake(now));
        while server.poll_transmit().is_some() {}
    }
}

fn ask(frames: &[Frame]) {
    let mut now = Instant::now();
    let mut client = Client::new(now, "token".into(), u64::MAX, INTERVAL);
    // The client numbers its streams itself.
    let mut numbers = Numbers::with(2);
    let plan = Plan { codec: None, streams: 4, message_bytes_max: 1 << 16, ..Plan::default() };
    for frame in frames {
        now += Duration::from_millis(frame.1.into());
        let Some(header) = numbers.header(frame) else { continue };
        if header.payload_bytes > client.payload_bytes_max(header.kind, header.stream) {
            return;
        }
        match client.handle(now, &header, Buffer::from_vec(frame.3.clone())) {
            Err(_) => return,
            Ok(Some((_, ClientEvent::Ready))) => {
                for _ in 0..2 {
                    let _ = client.query(&Query { sql: "select 1".into(), plan });
                }
            }
            Ok(Some((_, ClientEvent::Message(message)))) => drop(message.decode()),
            Ok(Some((stream, ClientEvent::BatchEnd { credit }))) => {
                client.consumed(stream, credit, &Default::default());
            }
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
