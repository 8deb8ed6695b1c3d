//! Numbers the frames to send, and decides their order.
//!
//! Each stream has its own queue. Frames of the connection itself leave first, then those that open a
//! stream, in the order of their numbers. The other streams take turns: those whose next frame is small
//! (an error, a batch end, a short result) before those with a long message. At most a few small frames in
//! a row pass a long message. While several streams are open, a long message is sent in parts, so that no
//! other stream waits for all of it.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use lightship_wire::EncodedMessage;
use lightship_wire::frame::{FLAG_PLACEHOLDER, FLAG_REPLY, FrameHeader, FrameKind, HEADER_BYTES};
use lightship_wire::join::Placeholder;

use crate::TransportError;

/// A frame with a payload of at most this many bytes is small.
const SMALL_BYTES: u32 = 4 << 10;
/// After this many small frames in a row, a large one has its turn.
const SMALL_RUN_MAX: u32 = 16;
/// The length of a part: 100 ms at 10 Mbit/s, and long enough that the cost of its header is negligible.
pub(crate) const PART_BYTES: u32 = 128 << 10;

/// What follows a header.
#[derive(Debug)]
enum Payload {
    /// A control frame's bytes.
    Bytes(Vec<u8>),
    /// Rows.
    Message(EncodedMessage),
}

/// A frame ready to be sent.
#[derive(Debug, Clone)]
pub struct Frame {
    /// The header, encoded.
    pub header: [u8; HEADER_BYTES],
    /// The stream that it belongs to.
    pub stream: u32,
    /// No other frame of its stream waits to be sent.
    pub is_last: bool,
    payload: Arc<Payload>,
    part: Range<usize>,
}

impl Frame {
    /// The bytes that follow the header, in pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (bytes, message) = match &*self.payload {
            Payload::Bytes(bytes) => (Some(bytes.as_slice()), None),
            Payload::Message(message) => (None, Some(message)),
        };
        let whole = bytes.into_iter().chain(message.into_iter().flat_map(EncodedMessage::pieces));
        let (mut skip, mut left) = (self.part.start, self.part.len());
        whole.filter_map(move |piece| {
            let start = skip.min(piece.len());
            skip -= start;
            let end = piece.len().min(start + left);
            left -= end - start;
            (start < end).then(|| &piece[start..end])
        })
    }

    /// The message that follows the header, if the frame carries a whole message.
    pub(crate) fn message(&self) -> Option<&EncodedMessage> {
        match &*self.payload {
            Payload::Message(message) if self.part.len() == message.payload_bytes() as usize => Some(message),
            _ => None,
        }
    }

    /// Its size in bytes, including the header.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.part.len()
    }
}

#[derive(Debug)]
struct Waiting {
    header: FrameHeader,
    payload: Arc<Payload>,
    /// Bytes of the payload that have been sent.
    sent: u32,
}

impl Waiting {
    fn left(&self) -> u32 {
        self.header.payload_bytes - self.sent
    }
}

/// The frames of one stream.
#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    sequence: u32,
    /// It is in one of the queues of streams.
    is_queued: bool,
    /// No more frames will be added.
    is_closed: bool,
}

/// The queues of frames to send. Each is bounded by the window of its stream, and the number of streams is
/// bounded.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    lanes: HashMap<u32, Lane>,
    /// Streams whose next frame opens them. Their numbers must ascend on the wire.
    opening: VecDeque<u32>,
    /// Streams whose next frame is small, and those whose next frame is large, in order of turn.
    small: VecDeque<u32>,
    large: VecDeque<u32>,
    small_run: u32,
    /// A ping must be answered. One answer serves all pings that arrive before it is sent: a peer that
    /// pings and never reads must not fill the queue.
    pong_due: bool,
    /// Messages are not divided into parts, because the peer takes them from shared memory.
    pub(crate) keeps_whole: bool,
}

impl Outbox {
    pub(crate) fn push(&mut self, kind: FrameKind, flags: u16, stream: u32, payload: Vec<u8>) {
        let header = FrameHeader::whole(kind, flags, stream, 0, &payload);
        self.put(header, Payload::Bytes(payload));
    }

    /// Answers all pings received so far.
    pub(crate) fn pong(&mut self) {
        self.pong_due = true;
    }

    pub(crate) fn message(&mut self, stream: u32, message: EncodedMessage) {
        let (payload_bytes, payload_crc) = (message.payload_bytes(), message.crc32c());
        let part_bytes = payload_bytes;
        let header = FrameHeader {
            kind: FrameKind::Message,
            flags: 0,
            stream,
            payload_bytes,
            part_bytes,
            sequence: 0,
            payload_crc,
        };
        self.put(header, Payload::Message(message));
    }

    /// Announces a message that is sent over a joined connection.
    pub(crate) fn placeholder(&mut self, stream: u32, placeholder: &Placeholder) {
        self.push(FrameKind::Message, FLAG_PLACEHOLDER, stream, placeholder.encode());
    }

    fn put(&mut self, header: FrameHeader, payload: Payload) {
        let stream = header.stream;
        let lane = self.lanes.entry(stream).or_default();
        let header = FrameHeader { sequence: lane.sequence, ..header };
        lane.sequence = lane.sequence.wrapping_add(1);
        lane.bytes += HEADER_BYTES + header.payload_bytes as usize;
        lane.waiting.push_back(Waiting { header, payload: Arc::new(payload), sent: 0 });
        self.schedule(stream);
    }

    /// Adds a stream to the queue that fits its next frame.
    fn schedule(&mut self, stream: u32) {
        let Some(lane) = self.lanes.get_mut(&stream) else { return };
        let Some(next) = lane.waiting.front().filter(|_| stream != 0 && !lane.is_queued) else { return };
        let turns = match next.header.kind {
            FrameKind::Query | FrameKind::Statement | FrameKind::Task | FrameKind::Join => &mut self.opening,
            _ if next.left() <= SMALL_BYTES => &mut self.small,
            _ => &mut self.large,
        };
        turns.push_back(stream);
        lane.is_queued = true;
    }

    /// The next frame, or the next part of one.
    pub(crate) fn pop(&mut self) -> Option<Frame> {
        if std::mem::take(&mut self.pong_due) {
            self.push(FrameKind::Ping, FLAG_REPLY, 0, Vec::new());
        }
        let stream = self.next_stream()?;
        let shared = self.is_shared();
        let lane = self.lanes.get_mut(&stream)?;
        lane.is_queued = false;
        let next = lane.waiting.front_mut()?;
        let left = next.left();
        // Do not leave a remainder that is hardly worth its header.
        let is_cut = shared && next.header.kind == FrameKind::Message && left > PART_BYTES + PART_BYTES / 2;
        let part_bytes = if is_cut { PART_BYTES } else { left };
        let start = next.sent as usize;
        next.sent += part_bytes;
        let header = FrameHeader { part_bytes, ..next.header };
        let payload = Arc::clone(&next.payload);
        if next.left() == 0 {
            lane.waiting.pop_front();
            lane.bytes -= HEADER_BYTES;
        }
        lane.bytes -= part_bytes as usize;
        let (is_last, is_closed) = (lane.waiting.is_empty(), lane.is_closed);
        if is_last && is_closed {
            self.lanes.remove(&stream);
        }
        self.schedule(stream);
        let part = start..start + part_bytes as usize;
        Some(Frame { header: header.encode(), stream, is_last, payload, part })
    }

    /// The stream whose turn it is.
    fn next_stream(&mut self) -> Option<u32> {
        if self.has(0) {
            return Some(0);
        }
        if let Some(stream) = self.opening.pop_front() {
            return Some(stream);
        }
        let small = if self.small_run < SMALL_RUN_MAX { self.small.pop_front() } else { None };
        self.small_run = if small.is_some() { self.small_run + 1 } else { 0 };
        small.or_else(|| self.large.pop_front()).or_else(|| self.small.pop_front())
    }

    /// Whether several streams are open and none of them may occupy the connection for long.
    pub(crate) fn is_shared(&self) -> bool {
        self.streams() > 1 && !self.keeps_whole
    }

    /// The number of streams that are open or have frames left to send.
    pub(crate) fn streams(&self) -> usize {
        self.lanes.len() - usize::from(self.lanes.contains_key(&0))
    }

    /// Bytes of a stream's frames that wait to be sent.
    pub(crate) fn bytes(&self, stream: u32) -> usize {
        self.lanes.get(&stream).map_or(0, |lane| lane.bytes)
    }

    /// Whether frames of a stream wait to be sent. Stream 0 is the connection itself.
    pub(crate) fn has(&self, stream: u32) -> bool {
        (stream == 0 && self.pong_due) || self.lanes.get(&stream).is_some_and(|lane| !lane.waiting.is_empty())
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.has(0) && self.opening.is_empty() && self.small.is_empty() && self.large.is_empty()
    }

    /// Opens a stream that has nothing to send yet.
    pub(crate) fn open(&mut self, stream: u32) {
        self.lanes.entry(stream).or_default();
    }

    /// Closes a stream. Frames in its queue are still sent.
    pub(crate) fn close(&mut self, stream: u32) {
        let Some(lane) = self.lanes.get_mut(&stream) else { return };
        lane.is_closed = true;
        if lane.waiting.is_empty() {
            self.lanes.remove(&stream);
        }
    }
}

/// Checks that the peer's frames of each stream arrive without gap or repetition.
#[derive(Debug, Default)]
pub(crate) struct SequenceCheck {
    /// For each open stream, the sequence number of its next frame.
    streams: HashMap<u32, u32>,
    connection: u32,
}

impl SequenceCheck {
    /// Expects frames of this stream from now on.
    pub(crate) fn open(&mut self, stream: u32) {
        self.streams.insert(stream, 0);
    }

    /// Expects no more frames of this stream.
    pub(crate) fn close(&mut self, stream: u32) {
        self.streams.remove(&stream);
    }

    pub(crate) fn accept(&mut self, header: &FrameHeader) -> Result<(), TransportError> {
        let next = match header.stream {
            0 => &mut self.connection,
            stream => self.streams.get_mut(&stream).ok_or_else(|| {
                TransportError::Protocol(format!(
                    "a {:?} frame on stream {stream}, which is not open",
                    header.kind
                ))
            })?,
        };
        if header.sequence != *next {
            return Err(TransportError::Protocol(format!(
                "received frame {} of stream {}, expected frame {next}",
                header.sequence, header.stream
            )));
        }
        *next = next.wrapping_add(1);
        Ok(())
    }
}
