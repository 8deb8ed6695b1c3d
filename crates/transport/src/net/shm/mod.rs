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
use tokio::net::unix::UCred;

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
    let in_place = stream.peer_cred().is_ok_and(|peer| could_write_our_memory(&peer));
    let (read, write) = stream.into_split();
    let arrived = Arc::default();
    let borrower = Borrower::new(Arc::clone(&arrived), in_place);
    (Box::new(DescriptorReader::new(read, arrived)), Box::new(write), borrower)
}

/// Whether a process could change our memory anyway (ptrace(2)): then it is no more dangerous with a map of
/// its own. It has our user, and it has our namespaces, as nobody's root and nobody's user in a container has.
fn could_write_our_memory(peer: &UCred) -> bool {
    // SAFETY: it takes nothing and can't fail.
    let own = unsafe { libc::geteuid() };
    peer.uid() == own && own != UID_OVERFLOW && peer.pid().is_some_and(has_our_namespaces)
}

/// Whether what users and processes are called means the same to a process as to us. Where the system does not
/// let us see it, it does not.
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
    fn only_processes_that_are_seen_to_share_our_namespaces_do() {
        assert!(has_our_namespaces(std::process::id() as i32));
        // What a process beyond our namespace of processes is called.
        assert!(!has_our_namespaces(0));
        assert!(!has_our_namespaces(-1));
    }
}
