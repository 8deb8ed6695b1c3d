//! Frames on their way out: numbered, and with their header.

use std::collections::{HashMap, VecDeque};

use lightship_wire::EncodedMessage;
use lightship_wire::frame::{FLAG_DEALT, FLAG_REPLY, HEADER_BYTES, Header, Kind, crc32c};
use lightship_wire::join::Dealt;

/// What follows a header.
#[derive(Debug, Clone)]
pub enum Payload {
    /// A control frame's bytes.
    Bytes(Vec<u8>),
    /// Rows.
    Message(EncodedMessage),
}

impl Payload {
    /// Its bytes, piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (bytes, message) = match self {
            Self::Bytes(bytes) => (Some(bytes.as_slice()), None),
            Self::Message(message) => (None, Some(message)),
        };
        bytes.into_iter().chain(message.into_iter().flat_map(EncodedMessage::pieces))
    }
}

/// A frame ready to be sent.
#[derive(Debug, Clone)]
pub struct Frame {
    /// The header, encoded.
    pub header: [u8; HEADER_BYTES],
    /// What follows it.
    pub payload: Payload,
}

/// The queue of frames to send. It holds control frames and the messages that
/// one step of the producer made: both are few.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: VecDeque<Frame>,
    bytes: usize,
    sequences: HashMap<u32, u64>,
    /// The peer's pings want an answer. One is enough for all that came before
    /// it leaves: whoever pings and never reads must not fill the queue.
    pong_due: bool,
}

impl Outbox {
    pub(crate) fn push(&mut self, kind: Kind, flags: u16, stream: u32, payload: Vec<u8>) {
        let crc = crc32c(&payload);
        self.frame(kind, flags, stream, payload.len() as u32, crc, Payload::Bytes(payload));
    }

    /// Answers the pings that came so far, after what is queued.
    pub(crate) fn pong(&mut self) {
        self.pong_due = true;
    }

    pub(crate) fn message(&mut self, stream: u32, message: EncodedMessage) {
        let (bytes, crc) = (message.payload_bytes(), message.crc32c());
        self.frame(Kind::Message, 0, stream, bytes, crc, Payload::Message(message));
    }

    /// Says what will come by a joined connection.
    pub(crate) fn dealt(&mut self, stream: u32, dealt: &Dealt) {
        self.push(Kind::Message, FLAG_DEALT, stream, dealt.encode());
    }

    fn frame(&mut self, kind: Kind, flags: u16, stream: u32, bytes: u32, crc: u32, payload: Payload) {
        let sequence = self.sequences.entry(stream).or_default();
        let header =
            Header { kind, flags, stream, payload_bytes: bytes, sequence: *sequence, payload_crc: crc };
        *sequence += 1;
        self.bytes += HEADER_BYTES + bytes as usize;
        self.queue.push_back(Frame { header: header.encode(), payload });
    }

    pub(crate) fn pop(&mut self) -> Option<Frame> {
        if self.queue.is_empty() && std::mem::take(&mut self.pong_due) {
            self.push(Kind::Ping, FLAG_REPLY, 0, Vec::new());
        }
        let frame = self.queue.pop_front();
        if self.queue.is_empty() {
            self.bytes = 0;
        }
        frame
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && !self.pong_due
    }

    /// Nothing more will be sent on this stream.
    pub(crate) fn forget(&mut self, stream: u32) {
        self.sequences.remove(&stream);
    }
}

/// Checks that the peer's frames of one stream come without gap or repetition.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    stream: u32,
    next: u64,
    connection_next: u64,
}

impl Inbox {
    /// Frames of this stream, from its first, are expected now.
    pub(crate) fn open(&mut self, stream: u32) {
        (self.stream, self.next) = (stream, 0);
    }

    pub(crate) fn accept(&mut self, header: &Header) -> Result<(), crate::TransportError> {
        let next = match header.stream {
            0 => &mut self.connection_next,
            stream if stream == self.stream => &mut self.next,
            stream => {
                return Err(crate::TransportError::Protocol(format!(
                    "a {:?} frame on stream {stream}, which is not open",
                    header.kind
                )));
            }
        };
        if header.sequence != *next {
            return Err(crate::TransportError::Protocol(format!(
                "frame {} of stream {} came where {next} belongs",
                header.sequence, header.stream
            )));
        }
        *next += 1;
        Ok(())
    }
}
