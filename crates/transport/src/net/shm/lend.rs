//! The producer's side of shared memory: a segment divided into slots, and which slots are free.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use lightship_wire::control::Plan;
use lightship_wire::frame::{FLAG_DESCRIPTOR, FLAG_PLACED, FrameHeader, HEADER_BYTES};
use lightship_wire::shm::{Loan, SegmentSlot, decode_release};
use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::descriptors::Pending;
use super::{SEAL_OF_CONTENT, SEALS_OF_SIZE};
use crate::net::lock;
use crate::proto::Frame;
use crate::{Result, TransportError};

/// Smaller payloads go over the socket, which is as cheap for them.
const PLACED_BYTES_MIN: u32 = 16 << 10;
/// The largest segment, whatever window a client requests.
const SEGMENT_BYTES_MAX: u64 = 32 << 20;
/// Slots are aligned to pages, so that no two share a page.
const PAGE_BYTES: u64 = 4 << 10;

/// Puts payloads into a segment if there is room.
pub(in crate::net) struct Lender {
    segment: Option<Segment>,
    slots: Arc<Slots>,
    leaving: Pending,
}

struct Segment {
    map: MmapMut,
    /// `None` once it was sent to the consumer.
    descriptor: Option<OwnedFd>,
}

/// Which slots of the segment are free. Shared with the frame reader, which receives releases.
#[derive(Default)]
pub(in crate::net) struct Slots(Mutex<State>);

#[derive(Default)]
struct State {
    /// The number of the segment; 0 before the first one.
    segment: u32,
    slot_bytes: u32,
    lent: Vec<bool>,
    /// Free slots. The last one released is used first, because it is still in the cache.
    free: Vec<u32>,
}

impl Lender {
    pub(super) fn new(leaving: Pending) -> Self {
        Self { segment: None, slots: Arc::default(), leaving }
    }

    pub(in crate::net) fn slots(&self) -> Arc<Slots> {
        Arc::clone(&self.slots)
    }

    /// Prepares a segment for a result with this plan: as large as its window, with slots for one message
    /// each. The current segment stays as long as the consumer uses any slot of it.
    pub(in crate::net) fn begin(&mut self, plan: &Plan) {
        let slot_bytes = u64::from(plan.message_bytes).next_multiple_of(PAGE_BYTES);
        let window_bytes = u64::from(plan.window_batches) * u64::from(plan.batch_bytes);
        let count = window_bytes.min(SEGMENT_BYTES_MAX) / slot_bytes;
        let mut state = lock(&self.slots.0);
        let fits = u64::from(state.slot_bytes) == slot_bytes && state.lent.len() as u64 == count;
        if fits || state.free.len() < state.lent.len() {
            return;
        }
        // Both are at most `SEGMENT_BYTES_MAX`.
        let (slot_bytes, count) = (slot_bytes as u32, count as u32);
        self.segment = None;
        if count > 0 {
            match Segment::new(slot_bytes as usize * count as usize) {
                Ok(segment) => self.segment = Some(segment),
                Err(error) => tracing::debug!(%error, "no shared memory; payloads go over the socket"),
            }
        }
        let count = if self.segment.is_some() { count } else { 0 };
        state.segment += u32::from(count > 0);
        state.slot_bytes = slot_bytes;
        state.lent = vec![false; count as usize];
        state.free = (0..count).rev().collect();
    }

    /// Copies the frame's payload into a free slot. Returns the bytes to send instead; `None` if the frame must be
    /// sent as it is.
    pub(in crate::net) fn place(&mut self, frame: &Frame) -> Option<Vec<u8>> {
        let segment = self.segment.as_mut()?;
        let message = frame.message()?;
        let bytes = message.payload_bytes();
        if bytes < PLACED_BYTES_MIN {
            return None;
        }
        let header = FrameHeader::decode(&frame.header).ok()?;
        let Loan { segment: number, offset } = self.slots.lend(bytes)?;
        let mut rest = &mut segment.map[offset as usize..][..bytes as usize];
        for piece in message.pieces() {
            let (target, after) = rest.split_at_mut(piece.len());
            target.copy_from_slice(piece);
            rest = after;
        }
        let mut flags = header.flags | FLAG_PLACED;
        if let Some(descriptor) = segment.descriptor.take() {
            *lock(&self.leaving) = Some(descriptor);
            flags |= FLAG_DESCRIPTOR;
        }
        let slot = SegmentSlot { segment: number, offset, bytes, crc: header.payload_crc }.encode();
        let header = FrameHeader::whole(header.kind, flags, header.stream, header.sequence, &slot);
        let mut sent = Vec::with_capacity(HEADER_BYTES + slot.len());
        sent.extend_from_slice(&header.encode());
        sent.extend_from_slice(&slot);
        Some(sent)
    }
}

impl Segment {
    fn new(bytes: usize) -> std::io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("lightship", flags)?);
        file.set_len(bytes as u64)?;
        // SAFETY: the file was created here and only this process writes it. Its size is sealed below, before
        // another process has it.
        let map = unsafe { MmapOptions::new().len(bytes).map_mut(&file) }?;
        fcntl_add_seals(&file, SEALS_OF_SIZE | SEAL_OF_CONTENT | SealFlags::SEAL)?;
        Ok(Self { map, descriptor: Some(file.into()) })
    }
}

impl Slots {
    fn lend(&self, bytes: u32) -> Option<Loan> {
        let mut state = lock(&self.0);
        if bytes > state.slot_bytes {
            return None;
        }
        let slot = state.free.pop()?;
        state.lent[slot as usize] = true;
        Some(Loan { segment: state.segment, offset: slot * state.slot_bytes })
    }

    /// Takes back slots that the consumer releases.
    ///
    /// # Errors
    /// [`TransportError::Protocol`] if a slot was not lent.
    pub(in crate::net) fn take_back(&self, payload: &[u8]) -> Result<()> {
        let mut state = lock(&self.0);
        for loan in decode_release(payload)? {
            let slot = loan.offset.checked_div(state.slot_bytes).unwrap_or(0);
            let known = loan.segment == state.segment && slot * state.slot_bytes == loan.offset;
            match state.lent.get_mut(slot as usize) {
                Some(lent @ true) if known => *lent = false,
                _ => {
                    return Err(TransportError::Protocol(format!("{loan:?} was released but not lent")));
                }
            }
            state.free.push(slot);
        }
        Ok(())
    }
}
