//! The memory of running queries.

use std::fmt::{self, Display};
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion::common::{Result, resources_err};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, human_readable_size,
};

/// The consumers that merge what a sort has spilled have names with this beginning. They take as much as they can
/// get, and manage with little.
const MERGE: &str = "ExternalSorterMerge";
/// This part of the memory is only for consumers that can't spill.
const KEPT_PART: usize = 4;
/// Merges get at most this part of the memory, divided by their number, and so much is kept for them: a sort merges what it has
/// in memory before it spills, which takes up to as much again.
const MERGE_PART: usize = 2;
/// Merges leave this part free for what reads from them, or half of what is free if that is less.
const READER_PART: usize = 8;
/// A consumer that can spill gets this part of the memory if it is free, however small its share is: each place where a plan
/// divides rows may spill, so that there can be dozens, and a sort with less than a batch has nothing to spill.
const SHARE_PART_MIN: usize = 16;

/// Divides memory between consumers as DataFusion's `FairSpillPool` does: each consumer that can spill gets an equal share
/// of what the others leave. In addition a part is kept for those that can't spill, because a sort that has filled the
/// memory needs some to spill, and merges leave some for what reads them.
///
/// As there, the limit can be exceeded: a share is granted even if others have more than theirs, which they had before there were
/// so many, or by [`SHARE_PART_MIN`]. They spill when they next ask for more.
#[derive(Debug)]
pub(crate) struct QueryMemory {
    bytes_max: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    spillers: usize,
    merges: usize,
    /// Of consumers that can spill.
    spillable_bytes: usize,
    /// Of merges.
    merge_bytes: usize,
    other_bytes: usize,
}

impl QueryMemory {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, used: Mutex::default() }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most that a reservation can have now.
    fn limit(&self, used: &Used, reservation: &MemoryReservation) -> usize {
        let (max, size) = (self.bytes_max, reservation.size());
        let kept = max / if used.merges > 0 { MERGE_PART } else { KEPT_PART };
        let fixed = used.merge_bytes + used.other_bytes;
        if reservation.consumer().can_spill() {
            let all = max - fixed.max(kept).min(max);
            let free = all.saturating_sub(used.spillable_bytes);
            return (all / used.spillers.max(1)).max((size + free).min(max / SHARE_PART_MIN));
        }
        let free = max.saturating_sub(used.spillable_bytes).max(kept).saturating_sub(fixed);
        if is_merge(reservation.consumer()) {
            let left = free.saturating_sub(max / READER_PART).max(free / 2);
            return (size + left).min(max / MERGE_PART / used.merges.max(1));
        }
        size + free
    }
}

fn is_merge(consumer: &MemoryConsumer) -> bool {
    consumer.name().starts_with(MERGE)
}

impl Used {
    fn count(&mut self, consumer: &MemoryConsumer) -> &mut usize {
        if consumer.can_spill() {
            &mut self.spillable_bytes
        } else if is_merge(consumer) {
            &mut self.merge_bytes
        } else {
            &mut self.other_bytes
        }
    }
}

impl MemoryPool for QueryMemory {
    fn name(&self) -> &str {
        "queries"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        let mut used = self.used();
        used.spillers += usize::from(consumer.can_spill());
        used.merges += usize::from(is_merge(consumer));
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        let mut used = self.used();
        used.spillers -= usize::from(consumer.can_spill());
        used.merges -= usize::from(is_merge(consumer));
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        *self.used().count(reservation.consumer()) += additional;
    }

    fn shrink(&self, reservation: &MemoryReservation, bytes: usize) {
        *self.used().count(reservation.consumer()) -= bytes;
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let mut used = self.used();
        let limit = self.limit(&used, reservation);
        if reservation.size().saturating_add(additional) > limit {
            return resources_err!(
                "{} needs {} more than its {}, and {} of {} are free for it",
                reservation.consumer().name(),
                human_readable_size(additional),
                human_readable_size(reservation.size()),
                human_readable_size(limit.saturating_sub(reservation.size())),
                human_readable_size(self.bytes_max)
            );
        }
        *used.count(reservation.consumer()) += additional;
        Ok(())
    }

    fn reserved(&self) -> usize {
        let used = self.used();
        used.spillable_bytes + used.merge_bytes + used.other_bytes
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.bytes_max)
    }
}

impl Display for QueryMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), human_readable_size(self.bytes_max))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn register(pool: &Arc<dyn MemoryPool>, name: &str, can_spill: bool) -> MemoryReservation {
        MemoryConsumer::new(name).with_can_spill(can_spill).register(pool)
    }

    #[test]
    fn a_part_is_kept_for_those_that_cannot_spill() {
        let pool: Arc<dyn MemoryPool> = Arc::new(QueryMemory::new(1000));
        let sort = register(&pool, "ExternalSorter[0]", true);
        sort.try_grow(751).unwrap_err();
        sort.try_grow(750).unwrap();
        let join = register(&pool, "HashJoinInput", false);
        join.try_grow(250).unwrap();
        join.try_grow(1).unwrap_err();
        // Another sort that comes later gets its share, and the first has to spill.
        let other = register(&pool, "ExternalSorter[1]", true);
        other.try_grow(375).unwrap();
        sort.try_grow(1).unwrap_err();
        sort.free();
        other.free();
        assert_eq!(pool.reserved(), 250);
        join.try_grow(750).unwrap();
        join.try_grow(1).unwrap_err();
        sort.try_grow(1).unwrap_err();
        join.free();
        sort.try_grow(375).unwrap();
    }

    #[test]
    fn however_many_can_spill_each_gets_a_little_while_there_is_some() {
        let pool: Arc<dyn MemoryPool> = Arc::new(QueryMemory::new(1600));
        let idle: Vec<_> = (0..46).map(|_| register(&pool, "RepartitionExec[0]", true)).collect();
        let sorts = [0, 1].map(|i| register(&pool, &format!("ExternalSorter[{i}]"), true));
        for sort in &sorts {
            sort.try_grow(101).unwrap_err();
            sort.try_grow(100).unwrap();
            sort.try_grow(1).unwrap_err();
        }
        let join = register(&pool, "HashJoinInput", false);
        join.try_grow(1300).unwrap();
        // 100 are left.
        idle[0].try_grow(101).unwrap_err();
        idle[0].try_grow(100).unwrap();
        idle[1].try_grow(7).unwrap_err();
        idle[1].try_grow(6).unwrap();
    }

    #[test]
    fn merges_leave_memory_for_what_reads_them() {
        let pool: Arc<dyn MemoryPool> = Arc::new(QueryMemory::new(1000));
        let merges = [0, 1].map(|i| register(&pool, &format!("ExternalSorterMerge[{i}]"), false));
        for merge in &merges {
            merge.try_grow(251).unwrap_err();
            merge.try_grow(250).unwrap();
        }
        let reader = register(&pool, "SortPreservingMergeExec[0]", false);
        reader.try_grow(500).unwrap();
        reader.try_grow(1).unwrap_err();
        reader.free();
        // Beside a join that has most of the memory, too.
        for merge in &merges {
            merge.free();
        }
        let join = register(&pool, "HashJoinInput", false);
        join.try_grow(700).unwrap();
        // 300 are free, and 125 stay so.
        merges[0].try_grow(176).unwrap_err();
        merges[0].try_grow(175).unwrap();
        // Then half of what is free, step by step.
        merges[1].try_grow(63).unwrap_err();
        merges[1].try_grow(62).unwrap();
        merges[0].try_grow(31).unwrap();
        reader.try_grow(32).unwrap();
        drop((join, reader));
        for merge in &merges {
            merge.free();
        }
        merges.iter().for_each(|merge| merge.try_grow(250).unwrap());
        let sorts = [0, 1].map(|i| register(&pool, &format!("ExternalSorter[{i}]"), true));
        for sort in &sorts {
            sort.try_grow(251).unwrap_err();
            sort.try_grow(250).unwrap();
        }
    }
}
