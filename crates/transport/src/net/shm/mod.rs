//! Payloads in shared memory, between a producer and a consumer on one host.
//!
//! The producer creates a segment (a sealed memfd), copies each payload into a free slot of it, and sends the
//! position of the slot instead of the payload. The consumer's arrays lie in the segment and give back their
//! slot when they are dropped. If no slot is free, the payload goes over the socket: neither side ever
//! waits for a slot.
//!
//! `docs/decisions/0006-shared-memory.md` explains which process is trusted.

mod borrow;
mod descriptors;
mod lend;

pub(super) use borrow::{Borrower, Ledger};
pub(super) use lend::{Lender, Slots};

use std::sync::Arc;

use descriptors::{DescriptorReader, DescriptorWriter};
use rustix::fs::SealFlags;
use tokio::net::UnixStream;
use tokio::net::unix::UCred;

use super::{ReadHalf, WriteHalf};

/// Seals that a consumer requires: the size of the memory can't change.
const SEALS_OF_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// Only processes that mapped the memory before this seal can write it.
const SEAL_OF_CONTENT: SealFlags = SealFlags::FUTURE_WRITE;

/// The kernel shows this id for all users that have no id in this user namespace.
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
    let in_place = stream.peer_cred().is_ok_and(|peer| could_write_our_memory(&peer));
    let (read, write) = stream.into_split();
    let arrived = Arc::default();
    let borrower = Borrower::new(Arc::clone(&arrived), in_place);
    (Box::new(DescriptorReader::new(read, arrived)), Box::new(write), borrower)
}

/// Whether a process could change our memory anyway (ptrace(2)). Then a writable map makes it no more
/// dangerous. It must have our user and our namespaces, which a user in a container does not have.
fn could_write_our_memory(peer: &UCred) -> bool {
    // SAFETY: it has no arguments and can't fail.
    let own = unsafe { libc::geteuid() };
    peer.uid() == own && own != UID_OVERFLOW && peer.pid().is_some_and(has_our_namespaces)
}

/// Whether a process has the same user and process namespaces as this one. `false` if the system does not show
/// them.
fn has_our_namespaces(process: i32) -> bool {
    ["user", "pid"].iter().all(|kind| {
        let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/{kind}"));
        matches!((of("self"), of(&process.to_string())), (Ok(ours), Ok(its)) if ours == its)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_visible_processes_share_our_namespaces() {
        assert!(has_our_namespaces(std::process::id() as i32));
        // The id of a process outside our process namespace.
        assert!(!has_our_namespaces(0));
        assert!(!has_our_namespaces(-1));
    }
}
