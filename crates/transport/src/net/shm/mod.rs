//! Payloads in shared memory, between a producer and a consumer on one host.
//!
//! The producer makes a segment (a sealed memfd), copies each payload into a free
//! place of it and sends the place in the payload's stead; the consumer's arrays
//! lie in the segment and give their place back when they are dropped. A payload
//! for which there is no place goes over the socket as any other: neither side
//! ever waits for a place.
//!
//! What is trusted and what is not: `docs/decisions/0006-shared-memory.md`.

mod borrow;
mod descriptors;
mod lend;

pub(super) use borrow::{Borrower, Ledger};
pub(super) use lend::{Lender, Slots};

use std::sync::Arc;

use descriptors::{DescriptorReader, DescriptorWriter};
use rustix::fs::SealFlags;
use tokio::net::UnixStream;

use super::{ReadHalf, WriteHalf};

/// Seals that a consumer needs: memory that neither shrinks under it nor changes its size.
const SEALS_OF_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// And nobody but who mapped it before can write it.
const SEAL_OF_CONTENT: SealFlags = SealFlags::FUTURE_WRITE;

/// Whom the kernel can't name in our user namespace has this number, and is nobody in particular.
const UID_OVERFLOW: u32 = 65534;

/// A producer's socket.
pub(super) fn lending(stream: UnixStream) -> (ReadHalf, WriteHalf, Lender) {
    let (read, write) = stream.into_split();
    let leaving = Arc::default();
    let lender = Lender::new(Arc::clone(&leaving));
    (Box::new(read), Box::new(DescriptorWriter::new(write, leaving)), lender)
}

/// A consumer's socket.
pub(super) fn borrowing(stream: UnixStream) -> (ReadHalf, WriteHalf, Borrower) {
    let in_place = stream.peer_cred().is_ok_and(|peer| could_write_our_memory(peer.uid()));
    let (read, write) = stream.into_split();
    let arrived = Arc::default();
    let borrower = Borrower::new(Arc::clone(&arrived), in_place);
    (Box::new(DescriptorReader::new(read, arrived)), Box::new(write), borrower)
}

/// Whether a process of this user could change our memory anyway (ptrace(2)):
/// then it is no more dangerous with a map of its own.
fn could_write_our_memory(uid: u32) -> bool {
    // SAFETY: it takes nothing and can't fail.
    let own = unsafe { libc::geteuid() };
    uid == 0 || (uid == own && uid != UID_OVERFLOW)
}
