//! One end of a circuit: bytes that have arrived and were not read, and bytes that were written and not sent.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use bytes::{BufMut, Bytes, BytesMut};

use super::header::{CircuitFrameKind, CircuitHeader, HEADER_BYTES, Why};

/// Pieces smaller than this are joined as they arrive: a separate piece takes more memory than it has bytes.
const SMALL_BYTES: usize = 1 << 10;
/// Small pieces are joined up to this size.
const GATHERED_BYTES: usize = 16 << 10;
/// A write of at most this size is appended to the one before it, if that has not been sent yet.
const APPENDED_BYTES: usize = 16 << 10;
/// A circuit with at most this much to send may go before others.
const BRIEF_BYTES: usize = 2 << 10;
/// Limit of pieces that have arrived out of order: this number, plus one for each of this many bytes of the
/// window.
const EARLY_PIECES: u64 = 64;

/// The sizes of a node's circuits, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct CircuitSizes {
    /// What may be in flight or unread, each way.
    pub(super) window: u64,
    /// The data of a message. At most half the window: credit is granted in halves of the window, so it is
    /// always enough for a message.
    pub(super) chunk: usize,
    /// What may be written before it is sent.
    pub(super) buffer: usize,
}

impl CircuitSizes {
    /// The sizes for this window and messages of this size; `None` if there is no room for data.
    pub(super) fn new(window_bytes: u32, message_bytes_max: u32) -> Option<Self> {
        let window = window_bytes as usize;
        let chunk = (message_bytes_max as usize).checked_sub(HEADER_BYTES)?.min(window / 2);
        let sizes = Self { window: window_bytes.into(), chunk, buffer: (2 * chunk).min(window) };
        (chunk > 0).then_some(sizes)
    }
}

/// The receiving half.
#[derive(Debug)]
pub(super) struct Receive {
    window: u64,
    /// Bytes in order that were not read; the small pieces at their end are in `gathered`.
    pieces: VecDeque<Bytes>,
    gathered: BytesMut,
    /// Pieces that have arrived before earlier ones, by offset.
    early: BTreeMap<u64, Bytes>,
    /// All bytes up to this offset have arrived.
    next: u64,
    /// The highest offset that has arrived.
    highest: u64,
    arrived: u64,
    taken: u64,
    granted: u64,
    total: Option<u64>,
    /// Why it was cut short, if it was.
    cut: Option<Why>,
    /// It is not read any more, so bytes are only counted.
    discards: bool,
    pub(super) waker: Option<Waker>,
}

impl Receive {
    fn new(window: u64) -> Self {
        Self {
            window,
            pieces: VecDeque::new(),
            gathered: BytesMut::new(),
            early: BTreeMap::new(),
            next: 0,
            highest: 0,
            arrived: 0,
            taken: 0,
            granted: window,
            total: None,
            cut: None,
            discards: false,
            waker: None,
        }
    }

    /// Handles received data.
    fn data(&mut self, at: u64, bytes: Bytes) -> Result<(), &'static str> {
        let length = bytes.len() as u64;
        let end = at.checked_add(length).ok_or("the offset of data overflows")?;
        if end > self.granted {
            return Err("data beyond the window");
        }
        if self.total.is_some_and(|total| end > total) {
            return Err("data after the end");
        }
        let follows = |(&start, piece): (&u64, &Bytes)| start + piece.len() as u64 > at;
        // If it is not read any more, it is enough to count.
        let again =
            !self.discards && (at < self.next || self.early.range(..end).next_back().is_some_and(follows));
        if again || self.arrived + length > self.granted {
            return Err("duplicate data");
        }
        self.arrived += length;
        self.highest = self.highest.max(end);
        if self.discards {
            return Ok(());
        }
        if at > self.next {
            if self.early.len() as u64 > EARLY_PIECES + self.window / EARLY_PIECES {
                return Err("data in too many pieces");
            }
            self.early.insert(at, bytes);
            return Ok(());
        }
        self.append(bytes);
        while let Some(entry) = self.early.first_entry().filter(|entry| *entry.key() == self.next) {
            let bytes = entry.remove();
            self.append(bytes);
        }
        Ok(())
    }

    fn append(&mut self, bytes: Bytes) {
        self.next += bytes.len() as u64;
        let small = bytes.len() < SMALL_BYTES;
        if small {
            self.gathered.extend_from_slice(&bytes);
        }
        if !self.gathered.is_empty() && (!small || self.gathered.len() >= GATHERED_BYTES) {
            self.pieces.push_back(std::mem::take(&mut self.gathered).freeze());
        }
        if !small {
            self.pieces.push_back(bytes);
        }
    }

    /// Handles a received end.
    fn end(&mut self, total: u64, why: Why) -> Result<(), &'static str> {
        if self.total.is_some() {
            return Err("duplicate end");
        }
        if total < self.highest || total > self.granted {
            return Err("the offset of the end is invalid");
        }
        self.total = Some(total);
        if why != Why::Whole {
            self.cut = Some(why);
            self.discard();
        }
        Ok(())
    }

    fn discard(&mut self) {
        self.discards = true;
        (self.pieces, self.gathered, self.early) = (VecDeque::new(), BytesMut::new(), BTreeMap::new());
    }

    /// Whether all bytes have arrived.
    fn is_whole(&self) -> bool {
        self.total == Some(self.arrived)
    }

    /// Whether all bytes have been read.
    pub(super) fn is_read(&self) -> bool {
        self.total == Some(self.taken)
    }

    /// Why it was cut short, if it was.
    pub(super) fn cut(&self) -> Option<Why> {
        self.cut
    }

    /// The next bytes, and whether enough were read to grant new credit.
    pub(super) fn take(&mut self) -> Option<(Bytes, bool)> {
        let bytes = match self.pieces.pop_front() {
            Some(piece) => piece,
            None if self.gathered.is_empty() => return None,
            None => std::mem::take(&mut self.gathered).freeze(),
        };
        self.taken += bytes.len() as u64;
        let more = self.taken + self.window - self.granted;
        Some((bytes, self.total.is_none() && more >= self.window.div_ceil(2)))
    }
}

/// The sending half.
#[derive(Debug)]
pub(super) struct Send {
    sizes: CircuitSizes,
    /// The next messages; their headers are not filled in yet.
    chunks: VecDeque<BytesMut>,
    buffered: usize,
    sent: u64,
    allowed: u64,
    /// Nothing more will be written.
    ended: bool,
    end_sent: bool,
    /// Why the other end needs no more bytes.
    stopped: Option<Why>,
    pub(super) waker: Option<Waker>,
}

impl Send {
    fn new(sizes: CircuitSizes) -> Self {
        Self {
            sizes,
            chunks: VecDeque::new(),
            buffered: 0,
            sent: 0,
            allowed: sizes.window,
            ended: false,
            end_sent: false,
            stopped: None,
            waker: None,
        }
    }

    /// How much can be written.
    pub(super) fn room(&self) -> usize {
        (self.sizes.buffer - self.buffered).min(self.sizes.chunk)
    }

    /// Whether a write of this size can be appended to the last message.
    pub(super) fn appends(&self, bytes: usize) -> bool {
        bytes <= APPENDED_BYTES
            && self.chunks.back().is_some_and(|chunk| chunk.len() - HEADER_BYTES + bytes <= self.sizes.chunk)
    }

    /// Appends to the last message.
    pub(super) fn append(&mut self, slices: &[&[u8]]) {
        if let Some(chunk) = self.chunks.back_mut() {
            let before = chunk.len();
            slices.iter().for_each(|slice| chunk.extend_from_slice(slice));
            self.buffered += chunk.len() - before;
        }
    }

    /// Adds a chunk, which starts with room for a header.
    pub(super) fn push(&mut self, chunk: BytesMut) {
        self.buffered += chunk.len() - HEADER_BYTES;
        self.chunks.push_back(chunk);
    }

    /// Ends the stream after what was written.
    pub(super) fn finish(&mut self) {
        self.ended = true;
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Why the other end needs no more bytes, if it does not.
    pub(super) fn stopped(&self) -> Option<Why> {
        self.stopped
    }

    fn discard(&mut self) {
        self.ended = true;
        (self.chunks, self.buffered) = (VecDeque::new(), 0);
    }

    /// Whether there is little to send.
    pub(super) fn is_brief(&self) -> bool {
        self.buffered <= BRIEF_BYTES
    }

    fn is_ready(&self) -> bool {
        match self.chunks.front() {
            Some(chunk) => self.sent + (chunk.len() - HEADER_BYTES) as u64 <= self.allowed,
            None => self.ended && !self.end_sent,
        }
    }
}

/// A chunk with these bytes, after room for a header.
pub(super) fn chunk(slices: &[&[u8]]) -> BytesMut {
    let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
    let mut chunk = BytesMut::with_capacity(HEADER_BYTES + bytes);
    chunk.put_bytes(0, HEADER_BYTES);
    slices.iter().for_each(|slice| chunk.extend_from_slice(slice));
    chunk
}

/// One end of a circuit.
#[derive(Debug)]
pub(super) struct Pipe {
    circuit: u32,
    by_us: bool,
    pub(super) receive: Receive,
    pub(super) send: Send,
    /// Its open has arrived, or this node opened it.
    announced: bool,
    /// It was dropped on this node.
    orphaned: bool,
    peer_done: bool,
    done_sent: bool,
    open_due: bool,
    grant_due: bool,
    /// An end is to be sent that cuts the stream short.
    cut_due: Option<Why>,
    done_due: Option<Why>,
    /// It is in the queue of circuits with something urgent to send (`is_queued`: with data).
    pub(super) is_urgent: bool,
    pub(super) is_queued: bool,
    /// It was refused when it was opened.
    pub(super) is_refused: bool,
}

impl Pipe {
    pub(super) fn new(circuit: u32, by_us: bool, sizes: CircuitSizes) -> Self {
        Self {
            circuit,
            by_us,
            receive: Receive::new(sizes.window),
            send: Send::new(sizes),
            announced: by_us,
            orphaned: false,
            peer_done: false,
            done_sent: false,
            open_due: by_us,
            grant_due: false,
            cut_due: None,
            done_due: None,
            is_urgent: false,
            is_queued: false,
            is_refused: false,
        }
    }

    /// Handles a message. Returns whether the circuit can be accepted now.
    pub(super) fn handle(&mut self, header: &CircuitHeader, bytes: Bytes) -> Result<bool, &'static str> {
        match header.kind {
            CircuitFrameKind::Open => {
                if header.value != self.receive.window {
                    return Err("a different window size");
                }
                if std::mem::replace(&mut self.announced, true) {
                    return Err("duplicate open");
                }
                return Ok(!self.is_refused);
            }
            CircuitFrameKind::Data => self.receive.data(header.value, bytes)?,
            CircuitFrameKind::End => self.receive.end(header.value, header.why)?,
            CircuitFrameKind::Credit => {
                if header.value > self.send.sent + self.send.sizes.window {
                    return Err("credit beyond the window");
                }
                self.send.allowed = self.send.allowed.max(header.value);
            }
            CircuitFrameKind::Done => {
                if std::mem::replace(&mut self.peer_done, true) {
                    return Err("duplicate done");
                }
                if !self.send.end_sent {
                    self.send.stopped = Some(header.why);
                    self.send.discard();
                    self.wake_writer();
                }
            }
            CircuitFrameKind::Off => return Err("off for a single circuit"),
        }
        if matches!(header.kind, CircuitFrameKind::Data | CircuitFrameKind::End) {
            if self.receive.is_whole() && !self.done_sent {
                self.done_due.get_or_insert(Why::Whole);
            }
            if let Some(waker) = self.receive.waker.take() {
                waker.wake();
            }
        }
        Ok(false)
    }

    fn wake_writer(&mut self) {
        if let Some(waker) = self.send.waker.take() {
            waker.wake();
        }
    }

    /// Wakes its reader and its writer.
    pub(super) fn wake(&mut self) {
        self.wake_writer();
        if let Some(waker) = self.receive.waker.take() {
            waker.wake();
        }
    }

    /// Schedules credit to be sent.
    pub(super) fn grant(&mut self) {
        self.grant_due = true;
    }

    /// Handles a drop: a finished stream is still sent, an unfinished one is cut short.
    pub(super) fn orphan(&mut self, why: Why) {
        if std::mem::replace(&mut self.orphaned, true) {
            return;
        }
        self.receive.discard();
        if !self.send.ended {
            self.send.discard();
            self.cut_due = Some(why);
        }
        if !self.done_sent {
            self.done_due.get_or_insert(why);
        }
        self.wake();
    }

    pub(super) fn has_urgent(&self) -> bool {
        self.open_due || self.cut_due.is_some() || self.done_due.is_some() || self.grant_due
    }

    pub(super) fn is_ready(&self) -> bool {
        self.send.is_ready() && self.cut_due.is_none()
    }

    fn header(&self, kind: CircuitFrameKind, why: Why, value: u64) -> [u8; HEADER_BYTES] {
        CircuitHeader { kind, circuit: self.circuit, by_sender: self.by_us, why, value }.encode()
    }

    /// The next message that does not wait behind data.
    pub(super) fn urgent(&mut self) -> Option<Bytes> {
        let header = if std::mem::take(&mut self.open_due) {
            self.header(CircuitFrameKind::Open, Why::Whole, self.receive.window)
        } else if let Some(why) = self.cut_due.take() {
            self.send.end_sent = true;
            self.header(CircuitFrameKind::End, why, self.send.sent)
        } else if let Some(why) = self.done_due.take() {
            self.done_sent = true;
            // No more credit is needed.
            self.grant_due = false;
            self.header(CircuitFrameKind::Done, why, 0)
        } else if std::mem::take(&mut self.grant_due) {
            if self.receive.total.is_some() || self.done_sent {
                return None;
            }
            self.receive.granted = self.receive.taken + self.receive.window;
            self.header(CircuitFrameKind::Credit, Why::Whole, self.receive.granted)
        } else {
            return None;
        };
        Some(Bytes::copy_from_slice(&header))
    }

    /// The next message with data, or the end of the stream; and its bytes of data.
    pub(super) fn ready(&mut self) -> Option<(Bytes, usize)> {
        if !self.is_ready() {
            return None;
        }
        let Some(mut chunk) = self.send.chunks.pop_front() else {
            self.send.end_sent = true;
            return Some((
                Bytes::copy_from_slice(&self.header(CircuitFrameKind::End, Why::Whole, self.send.sent)),
                0,
            ));
        };
        let bytes = chunk.len() - HEADER_BYTES;
        chunk[..HEADER_BYTES].copy_from_slice(&self.header(
            CircuitFrameKind::Data,
            Why::Whole,
            self.send.sent,
        ));
        self.send.sent += bytes as u64;
        self.send.buffered -= bytes;
        self.wake_writer();
        Some((chunk.freeze(), bytes))
    }

    /// Whether neither end will send anything about it any more.
    pub(super) fn is_over(&self) -> bool {
        self.orphaned
            && self.announced
            && !self.open_due
            && self.send.end_sent
            && self.done_sent
            && self.peer_done
            && self.receive.is_whole()
    }
}
