//! Reads and writes frames on a socket or a pipe.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};

use arrow_buffer::Buffer;
use lightship_wire::WireError;
use lightship_wire::control::Plan;
use lightship_wire::frame::{FLAG_PLACED, FrameHeader, FrameKind, HEADER_BYTES, MAGIC};
use lightship_wire::overlay::FLAG_ROUTED;
use lightship_wire::shm::SegmentSlot;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::pipe::{PipeReader, PipeWriter};
use super::shm::{Borrower, Lender, Slots};
use super::{ReadHalf, WriteHalf, lock};
use crate::proto::Frame;
use crate::{Result, TransportError};

/// Reads at most this much beyond a frame. One read can fetch many small frames, and at most this much of a
/// large payload is copied.
const AHEAD_BYTES: usize = 8 << 10;
/// Memory for a payload is allocated as its bytes arrive, at most this much ahead of them, so that a header
/// alone can't cause a large allocation.
const UNPAID_BYTES_MAX: usize = 4 << 20;

/// The maximum memory kept for later payloads.
const POOLED_BYTES_MAX: usize = 8 << 20;
/// Smaller buffers are left to the allocator.
const POOLED_BYTES_MIN: usize = 64 << 10;

/// How a connection uses shared memory.
pub(super) enum Segments {
    /// Not at all.
    None,
    /// This side lends slots, and the peer releases them.
    Lent(Arc<Slots>),
    /// The peer lends slots, which may hold payloads.
    Borrowed(Borrower),
}

/// Where frames come from.
pub(super) enum FrameSource {
    Socket(SocketReader),
    Pipe(PipeReader),
}

impl From<ReadHalf> for FrameSource {
    fn from(stream: ReadHalf) -> Self {
        Self::Socket(SocketReader { stream, ahead: Vec::with_capacity(AHEAD_BYTES), taken: 0 })
    }
}

impl From<PipeReader> for FrameSource {
    fn from(pipe: PipeReader) -> Self {
        Self::Pipe(pipe)
    }
}

/// Reads frames. Each payload is read into its own buffer, which is reused when the last reference to its rows
/// is dropped. If a payload is in shared memory, the frame is returned as if it had come over the socket.
pub(super) struct FrameReader {
    source: FrameSource,
    segments: Segments,
    /// The unfinished payload of each stream that has sent a part of one.
    parts: HashMap<u32, (FrameHeader, Vec<u8>)>,
    pool: Arc<Pool>,
}

impl FrameReader {
    pub(super) fn new(source: impl Into<FrameSource>, segments: Segments) -> Self {
        Self { source: source.into(), segments, parts: HashMap::new(), pool: Arc::default() }
    }

    /// The next frame, with verified checksums; `None` if the connection ended between two frames. A payload
    /// in parts is returned as one frame. `limit` returns the largest payload allowed for a kind of frame on
    /// a stream; it must return 0 for messages on a stream that is not open. `alive` is called when bytes of
    /// a payload arrive.
    ///
    /// Not cancel-safe: after a call was dropped, the reader is unusable.
    pub(super) async fn next(
        &mut self,
        limit: impl Fn(FrameKind, u32) -> u32,
        alive: impl Fn(),
    ) -> Result<Option<(FrameHeader, Buffer)>> {
        loop {
            let header = match &mut self.source {
                FrameSource::Socket(socket) => socket.header().await?,
                FrameSource::Pipe(pipe) => pipe.header().await?,
            };
            let Some(header) = header else { return Ok(None) };
            let allowed = limit(header.kind, header.stream);
            if header.payload_bytes > 0 && allowed == 0 {
                return Err(TransportError::Protocol(format!(
                    "an unexpected {:?} frame on stream {}",
                    header.kind, header.stream
                )));
            }
            if header.payload_bytes > allowed {
                return Err(WireError::TooLarge {
                    what: "frame",
                    bytes: header.payload_bytes.into(),
                    limit: allowed.into(),
                }
                .into());
            }
            let begun = match self.parts.remove(&header.stream) {
                Some((first, begun)) => {
                    let is_next = header == FrameHeader { part_bytes: header.part_bytes, ..first };
                    if !is_next
                        || begun.len() as u64 + u64::from(header.part_bytes) > first.payload_bytes.into()
                    {
                        return Err(TransportError::Protocol(format!(
                            "a {:?} frame of stream {} between the parts of a payload",
                            header.kind, header.stream
                        )));
                    }
                    begun
                }
                None => {
                    self.check_first(&header)?;
                    self.pool.take(header.payload_bytes as usize)
                }
            };
            let payload = match &mut self.source {
                FrameSource::Socket(socket) => socket.payload(begun, &header, &alive).await?,
                FrameSource::Pipe(pipe) => {
                    let mut payload = reserved(begun, &header);
                    payload.extend_from_slice(&pipe.part());
                    alive();
                    payload
                }
            };
            if payload.len() < header.payload_bytes as usize {
                self.parts.insert(header.stream, (header, payload));
                continue;
            }
            let header = FrameHeader { part_bytes: header.payload_bytes, ..header };
            header.verify(&payload)?;
            return self.resolve(header, payload, allowed).map(Some);
        }
    }

    /// Checks the first part of a payload. Over a socket, only messages come in parts: for these, credit bounds
    /// how many are unfinished.
    fn check_first(&self, header: &FrameHeader) -> Result<()> {
        let is_whole = header.part_bytes == header.payload_bytes;
        let is_socket = matches!(self.source, FrameSource::Socket(_));
        if is_socket && header.flags & FLAG_ROUTED != 0 {
            return Err(TransportError::Protocol("a frame with a route, outside of an overlay".into()));
        }
        if is_whole || header.kind == FrameKind::Message {
            return Ok(());
        }
        // Over a pipe, other payloads come one after the other.
        let is_begun = |(first, _): &(FrameHeader, Vec<u8>)| first.kind != FrameKind::Message;
        if is_socket || self.parts.values().any(is_begun) {
            return Err(TransportError::Protocol(format!(
                "{} of {} bytes of a {:?} frame",
                header.part_bytes, header.payload_bytes, header.kind
            )));
        }
        Ok(())
    }

    /// Finds the payload of a frame if it is in shared memory, and handles releases of slots.
    fn resolve(
        &mut self,
        header: FrameHeader,
        payload: Vec<u8>,
        allowed: u32,
    ) -> Result<(FrameHeader, Buffer)> {
        match (header.kind, &mut self.segments) {
            (FrameKind::Message, segments) if header.flags & FLAG_PLACED != 0 => {
                let Segments::Borrowed(borrower) = segments else {
                    return Err(TransportError::Protocol(
                        "a message in shared memory on a connection without it".into(),
                    ));
                };
                let slot = SegmentSlot::decode(&payload)?;
                let borrowed = borrower.borrow(header.flags, slot, allowed)?;
                let payload = if borrower.in_place() {
                    borrowed.into_buffer()
                } else {
                    let mut copy = self.pool.take(slot.bytes as usize);
                    copy.extend_from_slice(borrowed.as_ref());
                    Pool::lend(&self.pool, copy)
                };
                let (payload_bytes, payload_crc) = (slot.bytes, slot.crc);
                let header =
                    FrameHeader { flags: 0, payload_bytes, part_bytes: payload_bytes, payload_crc, ..header };
                header.verify(&payload)?;
                Ok((header, payload))
            }
            (FrameKind::Release, Segments::Lent(slots)) => {
                slots.take_back(&payload)?;
                Ok((header, Buffer::default()))
            }
            (FrameKind::Release, _) => {
                Err(TransportError::Protocol("a release of slots that were not lent".into()))
            }
            _ => Ok((header, Pool::lend(&self.pool, payload))),
        }
    }
}

/// Reads headers and payloads from a socket.
pub(super) struct SocketReader {
    stream: ReadHalf,
    ahead: Vec<u8>,
    taken: usize,
}

impl SocketReader {
    /// The next header; `None` if the connection ended before it.
    async fn header(&mut self) -> Result<Option<FrameHeader>> {
        while self.ahead.len() - self.taken < HEADER_BYTES {
            if self.taken > 0 {
                self.ahead.drain(..self.taken);
                self.taken = 0;
            }
            if self.stream.read_buf(&mut (&mut self.ahead).limited(AHEAD_BYTES)).await? == 0 {
                return self.ended();
            }
        }
        let mut head = [0; HEADER_BYTES];
        head.copy_from_slice(&self.ahead[self.taken..self.taken + HEADER_BYTES]);
        self.taken += HEADER_BYTES;
        Ok(Some(FrameHeader::decode(&head)?))
    }

    /// The peer closed before a complete header. A few bytes of another protocol, such as a TLS alert, get
    /// their own error.
    fn ended(&self) -> Result<Option<FrameHeader>> {
        let begun = self.ahead.len().min(MAGIC.len());
        if begun == 0 {
            return Ok(None);
        }
        if self.ahead[..begun] != MAGIC[..begun] {
            let mut found = [0; MAGIC.len()];
            found[..begun].copy_from_slice(&self.ahead[..begun]);
            return Err(WireError::Magic { found }.into());
        }
        Err(TransportError::Closed { during: Some("in the middle of a frame") })
    }

    /// Reads a part of a payload, and appends it to the earlier parts.
    async fn payload(
        &mut self,
        mut payload: Vec<u8>,
        header: &FrameHeader,
        alive: impl Fn(),
    ) -> Result<Vec<u8>> {
        let bytes = payload.len() + header.part_bytes as usize;
        payload = reserved(payload, header);
        let ahead = (bytes - payload.len()).min(self.ahead.len() - self.taken);
        payload.extend_from_slice(&self.ahead[self.taken..self.taken + ahead]);
        self.taken += ahead;
        while payload.len() < bytes {
            if payload.len() == payload.capacity() {
                let more = (bytes - payload.len()).min(payload.len().max(UNPAID_BYTES_MAX));
                payload.reserve_exact(more);
            }
            let missing = bytes - payload.len();
            if self.stream.read_buf(&mut (&mut payload).limited(missing)).await? == 0 {
                return Err(TransportError::Closed { during: Some("in the middle of a frame") });
            }
            alive();
        }
        Ok(payload)
    }
}

/// The begun payload, with room for the part that follows.
fn reserved(mut payload: Vec<u8>, header: &FrameHeader) -> Vec<u8> {
    if payload.capacity() < payload.len() + header.part_bytes as usize {
        let missing = header.payload_bytes as usize - payload.len();
        payload.reserve_exact(missing.min(payload.len().max(UNPAID_BYTES_MAX)));
    }
    payload
}

/// Keeps the memory of dropped payloads for the next ones: newly allocated memory of this size costs a page
/// fault for every 4 KB.
#[derive(Debug, Default)]
struct Pool {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Pool {
    /// An empty buffer, with pooled memory if there is any.
    fn take(&self, bytes: usize) -> Vec<u8> {
        if bytes < POOLED_BYTES_MIN {
            return Vec::new();
        }
        lock(&self.free).pop().unwrap_or_default()
    }

    /// The payload as a buffer whose memory returns to the pool when it is dropped.
    fn lend(pool: &Arc<Self>, payload: Vec<u8>) -> Buffer {
        if !(POOLED_BYTES_MIN..=POOLED_BYTES_MAX).contains(&payload.capacity()) {
            return Buffer::from_vec(payload);
        }
        Buffer::from(bytes::Bytes::from_owner(Lent { payload, pool: Arc::clone(pool) }))
    }
}

struct Lent {
    payload: Vec<u8>,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut free = lock(&self.pool.free);
        let kept: usize = free.iter().map(Vec::capacity).sum();
        if kept + self.payload.capacity() <= POOLED_BYTES_MAX {
            let mut payload = std::mem::take(&mut self.payload);
            payload.clear();
            free.push(payload);
        }
    }
}

/// Fills the spare capacity of a vector without growing it.
trait Limited {
    fn limited(self, bytes: usize) -> bytes::buf::Limit<Self>
    where
        Self: Sized;
}

impl Limited for &mut Vec<u8> {
    fn limited(self, bytes: usize) -> bytes::buf::Limit<Self> {
        let spare = self.capacity() - self.len();
        bytes::BufMut::limit(self, bytes.min(spare))
    }
}

/// Where frames go.
pub(super) enum FrameTarget {
    Socket(WriteHalf),
    Pipe(PipeWriter),
}

impl From<WriteHalf> for FrameTarget {
    fn from(stream: WriteHalf) -> Self {
        Self::Socket(stream)
    }
}

impl From<PipeWriter> for FrameTarget {
    fn from(pipe: PipeWriter) -> Self {
        Self::Pipe(pipe)
    }
}

/// Writes frames; over a socket, many in one system call.
pub(super) struct FrameWriter {
    target: FrameTarget,
    lender: Option<Lender>,
    /// A write was given up, perhaps within a frame: nothing can follow.
    is_broken: bool,
}

impl FrameWriter {
    /// With a lender, payloads go into shared memory if there is room.
    pub(super) fn new(target: impl Into<FrameTarget>, lender: Option<Lender>) -> Self {
        Self { target: target.into(), lender, is_broken: false }
    }

    /// Prepares shared memory for a result with this plan.
    pub(super) fn begin(&mut self, plan: &Plan) {
        if let Some(lender) = &mut self.lender {
            lender.begin(plan);
        }
    }

    /// Stops using shared memory, which the peer does not support.
    pub(super) fn lend_nothing(&mut self) {
        self.lender = None;
    }

    /// Writes frames. `taken` is called each time that some bytes were written.
    pub(super) async fn write(&mut self, frames: &[Frame], taken: impl Fn()) -> io::Result<()> {
        if std::mem::replace(&mut self.is_broken, true) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let stream = match &mut self.target {
            FrameTarget::Socket(stream) => stream,
            FrameTarget::Pipe(pipe) => {
                for frame in frames {
                    pipe.send(frame, &taken).await?;
                }
                pipe.flush().await?;
                self.is_broken = false;
                return Ok(());
            }
        };
        let placed: Vec<Option<Vec<u8>>> =
            frames.iter().map(|frame| self.lender.as_mut()?.place(frame)).collect();
        let mut slices: Vec<IoSlice<'_>> = Vec::new();
        for (frame, placed) in frames.iter().zip(&placed) {
            if let Some(placed) = placed {
                slices.push(IoSlice::new(placed));
                continue;
            }
            slices.push(IoSlice::new(&frame.header));
            slices.extend(frame.pieces().map(IoSlice::new));
        }
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            match stream.write_vectored(rest).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => {
                    IoSlice::advance_slices(&mut rest, written);
                    taken();
                }
            }
        }
        stream.flush().await?;
        self.is_broken = false;
        Ok(())
    }

    /// Closes the writing half.
    pub(super) async fn shutdown(&mut self) {
        self.is_broken = true;
        // Fails if the peer is already gone, which does not matter.
        let _ = match &mut self.target {
            FrameTarget::Socket(stream) => stream.shutdown().await,
            FrameTarget::Pipe(pipe) => pipe.close().await,
        };
    }
}
