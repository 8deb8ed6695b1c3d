//! One bound on the rows that all transfers of a process have on their way.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use crate::plan::MEMORY_BYTES_MIN;

/// The part of the host's memory that all transfers together may have on their way.
const PART_OF_HOST: u64 = 4;
/// Where the host's memory is not known.
const BYTES_DEFAULT: u64 = 1 << 30;

/// Bytes that transfers share. Clones are the same budget.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bytes_max: u64,
    leased: Mutex<u64>,
}

impl Budget {
    /// Of so many bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self(Arc::new(Shared { bytes_max, leased: Mutex::default() }))
    }

    /// The process' own: a quarter of the host's memory. It is that of every client that has no other.
    pub fn of_process() -> Self {
        static OF_PROCESS: LazyLock<Budget> = LazyLock::new(|| Budget::new(host_bytes() / PART_OF_HOST));
        OF_PROCESS.clone()
    }

    /// As much as is wanted, but no more than half of what is free: others may come. At least a megabyte, whether
    /// it is there or not: who is let in at all can move.
    pub(crate) fn lease(&self, wanted: u64) -> Lease {
        let mut leased = self.0.leased.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.0.bytes_max.saturating_sub(*leased);
        let bytes = wanted.min(free / 2).max(MEMORY_BYTES_MIN);
        *leased += bytes;
        Lease { budget: self.clone(), bytes }
    }
}

/// What a control group leaves this process, or the host has.
fn host_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // As wide as the system's words.
    #[allow(clippy::useless_conversion)]
    let bytes = u64::from(info.totalram).saturating_mul(info.mem_unit.into());
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
    if bytes > 0 { bytes.min(limit) } else { BYTES_DEFAULT * PART_OF_HOST }
}

/// A part of a budget, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    budget: Budget,
    pub(crate) bytes: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.budget.0.leased.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_leased_comes_back() {
        let budget = Budget::new(10 << 20);
        let one = budget.lease(8 << 20);
        let two = budget.clone().lease(8 << 20);
        assert_eq!([one.bytes, two.bytes], [5 << 20, 5 << 19]);
        let more: Vec<_> = (0..3).map(|_| budget.lease(2 << 20)).collect();
        // Nothing is left, and still one more may begin.
        let last = budget.lease(8 << 20);
        assert_eq!((more[2].bytes, last.bytes), (1 << 20, 1 << 20));
        drop((one, two, more, last));
        assert_eq!(budget.lease(u64::MAX).bytes, 5 << 20);
    }
}
