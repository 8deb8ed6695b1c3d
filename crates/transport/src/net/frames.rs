//! Frames from and to a socket.

use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};

use arrow_buffer::Buffer;
use lightship_wire::WireError;
use lightship_wire::control::Plan;
use lightship_wire::frame::{FLAG_PLACED, HEADER_BYTES, Header, Kind, MAGIC};
use lightship_wire::local::Place;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::shm::{Borrower, Lender, Slots};
use super::{ReadHalf, WriteHalf, lock};
use crate::proto::Frame;
use crate::{Result, TransportError};

/// Read ahead at most this much beyond a frame: small frames come many a read,
/// and of a large payload no more than this is ever copied.
const AHEAD_BYTES: usize = 8 << 10;
/// Memory for a payload is taken as its bytes arrive, at most this much ahead of
/// them, so that a header alone can't make us allocate what it announces.
const UNPAID_BYTES_MAX: usize = 4 << 20;

/// Memory kept for payloads to come, at most.
const POOLED_BYTES_MAX: usize = 8 << 20;
/// Buffers smaller than this are left to the allocator.
const POOLED_BYTES_MIN: usize = 64 << 10;

/// What a socket's peer and we have to do with shared memory.
pub(super) enum Segments {
    /// Nothing.
    None,
    /// We lend: it says what it is done with.
    Lent(Arc<Slots>),
    /// It lends: payloads may lie there.
    Borrowed(Borrower),
}

/// Reads frames. Each payload lands in one buffer of its own, which comes back
/// for another frame once nobody holds rows of it any more; or it lies in shared
/// memory, and the frame reads as if it had come over the socket.
pub(super) struct FrameReader {
    stream: ReadHalf,
    segments: Segments,
    ahead: Vec<u8>,
    taken: usize,
    pool: Arc<Pool>,
}

impl FrameReader {
    pub(super) fn new(stream: ReadHalf, segments: Segments) -> Self {
        Self { stream, segments, ahead: Vec::with_capacity(AHEAD_BYTES), taken: 0, pool: Arc::default() }
    }

    /// What the frames came by. Only where the peer has nothing to say yet that is no frame.
    pub(super) fn into_stream(self) -> Result<ReadHalf> {
        match self.ahead.len() - self.taken {
            0 => Ok(self.stream),
            _ => Err(TransportError::Protocol("something was said before it was asked for".into())),
        }
    }

    /// The next frame, its checksums verified; `None` at a clean end. `limit`
    /// says the largest payload allowed for a kind of frame; `alive` is called as
    /// bytes of one come in.
    ///
    /// Not cancel-safe: a reader that was dropped in the middle is of no more use.
    pub(super) async fn next(
        &mut self,
        limit: impl Fn(Kind) -> u32,
        alive: impl Fn(),
    ) -> Result<Option<(Header, Buffer)>> {
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
        let header = Header::decode(&head)?;
        let allowed = limit(header.kind);
        if header.payload_bytes > allowed {
            return Err(WireError::TooLarge {
                what: "frame",
                bytes: header.payload_bytes.into(),
                limit: allowed.into(),
            }
            .into());
        }
        let payload = self.payload(header.payload_bytes as usize, alive).await?;
        header.verify(&payload)?;
        match (header.kind, &mut self.segments) {
            (Kind::Message, segments) if header.flags & FLAG_PLACED != 0 => {
                let Segments::Borrowed(borrower) = segments else {
                    return Err(TransportError::Protocol("shared memory where there is none".into()));
                };
                let place = Place::decode(&payload)?;
                let borrowed = borrower.borrow(header.flags, place, allowed)?;
                let payload = if borrower.in_place() {
                    borrowed.into_buffer()
                } else {
                    let mut copy = self.pool.take(place.bytes as usize);
                    copy.extend_from_slice(borrowed.as_ref());
                    Pool::lend(&self.pool, copy)
                };
                let header =
                    Header { flags: 0, payload_bytes: place.bytes, payload_crc: place.crc, ..header };
                header.verify(&payload)?;
                Ok(Some((header, payload)))
            }
            (Kind::Release, Segments::Lent(slots)) => {
                slots.take_back(&payload)?;
                Ok(Some((header, Buffer::default())))
            }
            (Kind::Release, _) => {
                Err(TransportError::Protocol("places given back that were not lent".into()))
            }
            _ => Ok(Some((header, Pool::lend(&self.pool, payload)))),
        }
    }

    /// The peer closed where a header belongs. A few bytes of another protocol,
    /// such as an alert of TLS, are named as such.
    fn ended(&self) -> Result<Option<(Header, Buffer)>> {
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

    async fn payload(&mut self, bytes: usize, alive: impl Fn()) -> Result<Vec<u8>> {
        let mut payload = self.pool.take(bytes);
        payload.reserve_exact(bytes.min(UNPAID_BYTES_MAX));
        let ahead = bytes.min(self.ahead.len() - self.taken);
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

/// Memory of payloads that are done with, kept for the next ones: fresh memory of
/// this size costs the kernel a page fault for every 4 KB.
#[derive(Debug, Default)]
struct Pool {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Pool {
    /// A buffer, empty; with memory if there is some to spare.
    fn take(&self, bytes: usize) -> Vec<u8> {
        if bytes < POOLED_BYTES_MIN {
            return Vec::new();
        }
        lock(&self.free).pop().unwrap_or_default()
    }

    /// The payload as a buffer whose memory comes back when it is dropped.
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

/// A vector whose spare capacity is filled, never grown.
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

/// Writes frames, as many as there are in one call to the system.
pub(super) struct FrameWriter {
    stream: WriteHalf,
    lender: Option<Lender>,
}

impl FrameWriter {
    /// With a lender, payloads go into shared memory where there is room.
    pub(super) fn new(stream: WriteHalf, lender: Option<Lender>) -> Self {
        Self { stream, lender }
    }

    /// What the frames went by.
    pub(super) fn into_stream(self) -> WriteHalf {
        self.stream
    }

    /// A result of this plan is next.
    pub(super) fn begin(&mut self, plan: &Plan) {
        if let Some(lender) = &mut self.lender {
            lender.begin(plan);
        }
    }

    /// The peer takes nothing from shared memory.
    pub(super) fn lend_nothing(&mut self) {
        self.lender = None;
    }

    /// Writes them; `taken` is called as bytes of them go out.
    pub(super) async fn write(&mut self, frames: &[Frame], taken: impl Fn()) -> io::Result<()> {
        let placed: Vec<Option<Vec<u8>>> =
            frames.iter().map(|frame| self.lender.as_mut()?.place(frame)).collect();
        let mut slices: Vec<IoSlice<'_>> = Vec::new();
        for (frame, placed) in frames.iter().zip(&placed) {
            if let Some(placed) = placed {
                slices.push(IoSlice::new(placed));
                continue;
            }
            slices.push(IoSlice::new(&frame.header));
            slices.extend(frame.payload.pieces().filter(|piece| !piece.is_empty()).map(IoSlice::new));
        }
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            match self.stream.write_vectored(rest).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => {
                    IoSlice::advance_slices(&mut rest, written);
                    taken();
                }
            }
        }
        self.stream.flush().await
    }

    /// Says that nothing more will come.
    pub(super) async fn shutdown(&mut self) {
        // The peer may be gone already; then there is nothing to say.
        let _ = self.stream.shutdown().await;
    }
}
