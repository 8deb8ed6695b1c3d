//! A common limit for the rows in flight of all transfers of a process.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use crate::plan::MEMORY_BYTES_MIN;

/// All transfers together may use one part in this many of the host's memory.
const PART_OF_HOST: u64 = 4;
/// The budget if the host's memory is unknown.
const BYTES_DEFAULT: u64 = 1 << 30;

/// A number of bytes that transfers share. Clones share the same budget.
#[derive(Debug, Clone)]
pub struct Budget(Arc<BudgetPool>);

#[derive(Debug)]
struct BudgetPool {
    bytes_max: u64,
    leased: Mutex<u64>,
}

impl Budget {
    /// A budget of `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self(Arc::new(BudgetPool { bytes_max, leased: Mutex::default() }))
    }

    /// The default budget of all clients in this process: a quarter of the host's memory.
    pub fn of_process() -> Self {
        static OF_PROCESS: LazyLock<Budget> = LazyLock::new(|| Budget::new(host_bytes() / PART_OF_HOST));
        OF_PROCESS.clone()
    }

    /// Leases `wanted` bytes, but at most half of the free bytes, to leave room for other transfers.
    /// Leases at least 1 MiB even if the budget is exhausted, so that every transfer makes progress.
    pub(crate) fn lease(&self, wanted: u64) -> Lease {
        let mut leased = self.0.leased.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.0.bytes_max.saturating_sub(*leased);
        let bytes = wanted.min(free / 2).max(MEMORY_BYTES_MIN);
        *leased += bytes;
        Lease { budget: self.clone(), bytes }
    }
}

/// The memory of the host, or the limit of the control group if that is lower.
fn host_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // The width of these fields depends on the platform.
    #[allow(clippy::useless_conversion)]
    let bytes = u64::from(info.totalram).saturating_mul(info.mem_unit.into());
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
    if bytes > 0 { bytes.min(limit) } else { BYTES_DEFAULT * PART_OF_HOST }
}

/// A leased part of a budget, returned on drop.
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
    fn a_dropped_lease_is_returned() {
        let budget = Budget::new(10 << 20);
        let one = budget.lease(8 << 20);
        let two = budget.clone().lease(8 << 20);
        assert_eq!([one.bytes, two.bytes], [5 << 20, 5 << 19]);
        let more: Vec<_> = (0..3).map(|_| budget.lease(2 << 20)).collect();
        // The budget is exhausted, but another transfer may begin.
        let last = budget.lease(8 << 20);
        assert_eq!((more[2].bytes, last.bytes), (1 << 20, 1 << 20));
        drop((one, two, more, last));
        assert_eq!(budget.lease(u64::MAX).bytes, 5 << 20);
    }
}
