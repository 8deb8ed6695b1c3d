//! One end of a circuit: what has come and was not read, and what was written and has not left.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use bytes::{BufMut, Bytes, BytesMut};

use super::header::{HEADER_BYTES, Header, Kind, Why};

/// Pieces smaller than this are put together as they come: kept by itself, one takes more memory
/// than it has bytes,
const SMALL_BYTES: usize = 1 << 10;
/// up to so many bytes.
const GATHERED_BYTES: usize = 16 << 10;
/// A write of no more than this goes along with the one before it, if that has not left yet.
const APPENDED_BYTES: usize = 16 << 10;
/// No more than this is little to say.
const BRIEF_BYTES: usize = 2 << 10;
/// Pieces that have come too early: so many, and one for as many bytes of the window.
const EARLY_PIECES: u64 = 64;

/// Bytes of all circuits of a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// What may be on its way or unread, each way.
    pub(super) window: u64,
    /// What goes in a message. At most half the window, so that credit, which comes back in halves of the
    /// window, is always enough for one.
    pub(super) chunk: usize,
    /// What may be written before it leaves.
    pub(super) buffer: usize,
}

impl Sizes {
    /// With messages of so many bytes.
    pub(super) fn new(window_bytes: u32, message_bytes_max: u32) -> Option<Self> {
        let window = window_bytes as usize;
        let chunk = (message_bytes_max as usize).checked_sub(HEADER_BYTES)?.min(window / 2);
        let sizes = Self { window: window_bytes.into(), chunk, buffer: (2 * chunk).min(window) };
        (chunk > 0).then_some(sizes)
    }
}

/// What was sent by the other end.
#[derive(Debug)]
pub(super) struct Receive {
    window: u64,
    /// In order, not yet read; then the small ones at the end of them.
    pieces: VecDeque<Bytes>,
    gathered: BytesMut,
    /// By offset, what others are to come before.
    early: BTreeMap<u64, Bytes>,
    /// All up to there has come.
    next: u64,
    /// The end of what has come.
    highest: u64,
    arrived: u64,
    taken: u64,
    granted: u64,
    total: Option<u64>,
    /// It was cut short.
    cut: Option<Why>,
    /// Nobody reads it.
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

    /// Takes what has come.
    fn data(&mut self, at: u64, bytes: Bytes) -> Result<(), &'static str> {
        let length = bytes.len() as u64;
        let end = at.checked_add(length).ok_or("data beyond all bounds")?;
        if end > self.granted {
            return Err("data beyond the window");
        }
        if self.total.is_some_and(|total| end > total) {
            return Err("data after the end");
        }
        let follows = |(&start, piece): (&u64, &Bytes)| start + piece.len() as u64 > at;
        // Where nobody reads, it is enough to count.
        let again =
            !self.discards && (at < self.next || self.early.range(..end).next_back().is_some_and(follows));
        if again || self.arrived + length > self.granted {
            return Err("data for the second time");
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

    /// Where it ends.
    fn end(&mut self, total: u64, why: Why) -> Result<(), &'static str> {
        if self.total.is_some() {
            return Err("an end after the end");
        }
        if total < self.highest || total > self.granted {
            return Err("an end where there can be none");
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

    /// All has come, whoever may read it.
    fn is_whole(&self) -> bool {
        self.total == Some(self.arrived)
    }

    /// All has been read.
    pub(super) fn is_read(&self) -> bool {
        self.total == Some(self.taken)
    }

    /// That it was cut short, and why.
    pub(super) fn cut(&self) -> Option<Why> {
        self.cut
    }

    /// The next bytes, and whether enough were taken to grant others.
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

/// What the other end is to get.
#[derive(Debug)]
pub(super) struct Send {
    sizes: Sizes,
    /// Each a message, but for what is in its header.
    chunks: VecDeque<BytesMut>,
    buffered: usize,
    sent: u64,
    allowed: u64,
    /// Nothing more is written.
    ended: bool,
    end_sent: bool,
    /// The other end needs no more.
    stopped: Option<Why>,
    pub(super) waker: Option<Waker>,
}

impl Send {
    fn new(sizes: Sizes) -> Self {
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

    /// Whether so much would go along with what was written before.
    pub(super) fn appends(&self, bytes: usize) -> bool {
        bytes <= APPENDED_BYTES
            && self.chunks.back().is_some_and(|chunk| chunk.len() - HEADER_BYTES + bytes <= self.sizes.chunk)
    }

    /// Has some go along with what was written before.
    pub(super) fn append(&mut self, slices: &[&[u8]]) {
        if let Some(chunk) = self.chunks.back_mut() {
            let before = chunk.len();
            slices.iter().for_each(|slice| chunk.extend_from_slice(slice));
            self.buffered += chunk.len() - before;
        }
    }

    /// Takes a chunk, which begins with room for a header.
    pub(super) fn push(&mut self, chunk: BytesMut) {
        self.buffered += chunk.len() - HEADER_BYTES;
        self.chunks.push_back(chunk);
    }

    /// Nothing more is written.
    pub(super) fn finish(&mut self) {
        self.ended = true;
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// That the other end takes no more, and why.
    pub(super) fn stopped(&self) -> Option<Why> {
        self.stopped
    }

    fn discard(&mut self) {
        self.ended = true;
        (self.chunks, self.buffered) = (VecDeque::new(), 0);
    }

    /// Whether what there is to send is little.
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

/// A chunk of these bytes.
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
    /// Its open has come, or is ours.
    announced: bool,
    /// Nobody here has it in hand.
    orphaned: bool,
    peer_done: bool,
    done_sent: bool,
    open_due: bool,
    grant_due: bool,
    /// What was written is cut short.
    cut_due: Option<Why>,
    done_due: Option<Why>,
    /// It has its place among those that have something urgent, or ready, to send.
    pub(super) is_urgent: bool,
    pub(super) is_queued: bool,
    /// It was never handed to anybody.
    pub(super) is_refused: bool,
}

impl Pipe {
    pub(super) fn new(circuit: u32, by_us: bool, sizes: Sizes) -> Self {
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

    /// Takes what the other end says. Answers whether the circuit is one to be accepted now.
    pub(super) fn handle(&mut self, header: &Header, bytes: Bytes) -> Result<bool, &'static str> {
        match header.kind {
            Kind::Open => {
                if header.value != self.receive.window {
                    return Err("a window of another size");
                }
                if std::mem::replace(&mut self.announced, true) {
                    return Err("an open for the second time");
                }
                return Ok(!self.is_refused);
            }
            Kind::Data => self.receive.data(header.value, bytes)?,
            Kind::End => self.receive.end(header.value, header.why)?,
            Kind::Credit => {
                if header.value > self.send.sent + self.send.sizes.window {
                    return Err("credit for what was not sent");
                }
                self.send.allowed = self.send.allowed.max(header.value);
            }
            Kind::Done => {
                if std::mem::replace(&mut self.peer_done, true) {
                    return Err("done for the second time");
                }
                if !self.send.end_sent {
                    self.send.stopped = Some(header.why);
                    self.send.discard();
                    self.wake_writer();
                }
            }
            Kind::Off => return Err("more than an end"),
        }
        if matches!(header.kind, Kind::Data | Kind::End) {
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

    /// Wakes whoever has it in hand.
    pub(super) fn wake(&mut self) {
        self.wake_writer();
        if let Some(waker) = self.receive.waker.take() {
            waker.wake();
        }
    }

    /// Credit is to go out.
    pub(super) fn grant(&mut self) {
        self.grant_due = true;
    }

    /// Nobody has it in hand any more: what was ended still goes out, all else is cut short.
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

    fn header(&self, kind: Kind, why: Why, value: u64) -> [u8; HEADER_BYTES] {
        Header { kind, circuit: self.circuit, by_sender: self.by_us, why, value }.encode()
    }

    /// The next of what does not wait behind data.
    pub(super) fn urgent(&mut self) -> Option<Bytes> {
        let header = if std::mem::take(&mut self.open_due) {
            self.header(Kind::Open, Why::Whole, self.receive.window)
        } else if let Some(why) = self.cut_due.take() {
            self.send.end_sent = true;
            self.header(Kind::End, why, self.send.sent)
        } else if let Some(why) = self.done_due.take() {
            self.done_sent = true;
            // Nothing is left that credit would be for.
            self.grant_due = false;
            self.header(Kind::Done, why, 0)
        } else if std::mem::take(&mut self.grant_due) {
            if self.receive.total.is_some() || self.done_sent {
                return None;
            }
            self.receive.granted = self.receive.taken + self.receive.window;
            self.header(Kind::Credit, Why::Whole, self.receive.granted)
        } else {
            return None;
        };
        Some(Bytes::copy_from_slice(&header))
    }

    /// The next data, or the end of it; and how many bytes of data that is.
    pub(super) fn ready(&mut self) -> Option<(Bytes, usize)> {
        if !self.is_ready() {
            return None;
        }
        let Some(mut chunk) = self.send.chunks.pop_front() else {
            self.send.end_sent = true;
            return Some((Bytes::copy_from_slice(&self.header(Kind::End, Why::Whole, self.send.sent)), 0));
        };
        let bytes = chunk.len() - HEADER_BYTES;
        chunk[..HEADER_BYTES].copy_from_slice(&self.header(Kind::Data, Why::Whole, self.send.sent));
        self.send.sent += bytes as u64;
        self.send.buffered -= bytes;
        self.wake_writer();
        Some((chunk.freeze(), bytes))
    }

    /// Nothing will be said about it any more, at either end.
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
