//! The consumer's side of shared memory: a segment that is only read, and the slots in use.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow_buffer::Buffer;
use bytes::Bytes;
use lightship_wire::WireError;
use lightship_wire::frame::FLAG_DESCRIPTOR;
use lightship_wire::shm::{Loan, RELEASE_LOANS_MAX, SegmentSlot};
use memmap2::{Mmap, MmapOptions};
use rustix::fs::{SealFlags, fcntl_get_seals};

use super::descriptors::Pending;
use super::{SEAL_OF_CONTENT, SEALS_OF_SIZE};
use crate::net::lock;
use crate::{Result, TransportError};

/// Finds payloads in the segment that the producer has sent.
pub(in crate::net) struct Borrower {
    arrived: Pending,
    segment: Option<Segment>,
    ledger: Arc<Ledger>,
    in_place: bool,
}

struct Segment {
    number: u32,
    map: Arc<Mmap>,
}

/// Slots that are in use, and slots to give back. Rows may be dropped on any thread, and after the connection
/// has ended.
#[derive(Default)]
pub(in crate::net) struct Ledger {
    loans: Mutex<Loans>,
    segment_bytes_max: AtomicU64,
}

#[derive(Default)]
struct Loans {
    /// Slots in use, each with the offset of its end.
    lent: BTreeMap<Loan, u64>,
    returned: Vec<Loan>,
}

/// A payload in the segment. Its slot is given back when it is dropped.
pub(in crate::net) struct Borrowed {
    map: Arc<Mmap>,
    slot: SegmentSlot,
    ledger: Arc<Ledger>,
}

impl Borrower {
    pub(super) fn new(arrived: Pending, in_place: bool) -> Self {
        Self { arrived, segment: None, ledger: Arc::default(), in_place }
    }

    pub(in crate::net) fn ledger(&self) -> Arc<Ledger> {
        Arc::clone(&self.ledger)
    }

    /// Whether rows may stay in the segment. Otherwise payloads are copied before they are verified, because the
    /// producer could change them afterwards.
    pub(in crate::net) fn in_place(&self) -> bool {
        self.in_place
    }

    /// The payload in a slot, of at most `bytes_max`.
    ///
    /// # Errors
    /// If there is no such slot or segment.
    pub(in crate::net) fn borrow(
        &mut self,
        flags: u16,
        slot: SegmentSlot,
        bytes_max: u32,
    ) -> Result<Borrowed> {
        if slot.bytes > bytes_max {
            return Err(WireError::TooLarge {
                what: "message in shared memory",
                bytes: slot.bytes.into(),
                limit: bytes_max.into(),
            }
            .into());
        }
        if flags & FLAG_DESCRIPTOR != 0 {
            let descriptor =
                lock(&self.arrived).take().ok_or_else(|| refused("a new segment without descriptor"))?;
            if self.segment.as_ref().is_some_and(|old| old.number >= slot.segment) {
                return Err(refused(format!("segment {} was already sent", slot.segment)));
            }
            let map = map(descriptor, self.ledger.segment_bytes_max.load(Ordering::Relaxed))?;
            self.segment = Some(Segment { number: slot.segment, map: Arc::new(map) });
        }
        let Some(segment) = self.segment.as_ref().filter(|segment| segment.number == slot.segment) else {
            return Err(refused(format!("segment {} is unknown", slot.segment)));
        };
        let end = u64::from(slot.offset) + u64::from(slot.bytes);
        if slot.bytes == 0 || end > segment.map.len() as u64 {
            return Err(refused(format!(
                "{} bytes at {} of a segment of {}",
                slot.bytes,
                slot.offset,
                segment.map.len()
            )));
        }
        let (map, ledger) = (Arc::clone(&segment.map), Arc::clone(&self.ledger));
        ledger.lend(&slot, end)?;
        Ok(Borrowed { map, slot, ledger })
    }
}

/// Checks a segment and maps it.
fn map(descriptor: OwnedFd, bytes_max: u64) -> Result<Mmap> {
    let file = File::from(descriptor);
    // Files other than memfds have no seals, or only the one that forbids more seals.
    let seals = fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
    if !seals.contains(SEALS_OF_SIZE) || !seals.intersects(SEAL_OF_CONTENT | SealFlags::WRITE) {
        return Err(refused(format!("a segment that is not sealed ({seals:?})")));
    }
    let bytes = file.metadata()?.len();
    if bytes == 0 || bytes > bytes_max {
        return Err(WireError::TooLarge { what: "segment", bytes, limit: bytes_max }.into());
    }
    // SAFETY: the seals keep the size, so that no access is beyond the end. The producer, which mapped the
    // segment before sealing it, can still change the contents: rows stay in the map only if the producer is
    // trusted (`Borrower::in_place`); otherwise bytes are copied before they are verified.
    Ok(unsafe { MmapOptions::new().len(bytes as usize).map(&file) }?)
}

fn refused(what: impl std::fmt::Display) -> TransportError {
    TransportError::Protocol(format!("shared memory: {what}"))
}

impl Ledger {
    /// Refuses segments larger than this from now on.
    pub(in crate::net) fn allow_segment_bytes(&self, bytes: u64) {
        self.segment_bytes_max.fetch_max(bytes, Ordering::Relaxed);
    }

    fn lend(&self, slot: &SegmentSlot, end: u64) -> Result<()> {
        let loan = Loan { segment: slot.segment, offset: slot.offset };
        // Loans do not overlap, so only the last one that begins before `end` can overlap this one.
        let after = Loan { segment: slot.segment, offset: u32::try_from(end).unwrap_or(u32::MAX) };
        let mut loans = lock(&self.loans);
        let before = loans.lent.range(..after).next_back();
        if before.is_some_and(|(lent, &end)| lent.segment == loan.segment && end > loan.offset.into()) {
            return Err(refused(format!("{loan:?} is in use")));
        }
        loans.lent.insert(loan, end);
        Ok(())
    }

    /// Takes slots to give back, at most as many as fit in a frame; empty if there are none.
    pub(in crate::net) fn take_returned(&self) -> Vec<Loan> {
        let returned = &mut lock(&self.loans).returned;
        let rest = returned.split_off(returned.len().min(RELEASE_LOANS_MAX));
        std::mem::replace(returned, rest)
    }
}

impl Borrowed {
    pub(in crate::net) fn into_buffer(self) -> Buffer {
        Buffer::from(Bytes::from_owner(self))
    }
}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        &self.map[self.slot.offset as usize..][..self.slot.bytes as usize]
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let loan = Loan { segment: self.slot.segment, offset: self.slot.offset };
        let mut loans = lock(&self.ledger.loans);
        loans.lent.remove(&loan);
        loans.returned.push(loan);
    }
}
