//! How many queries run, the number of partitions for the next one, and the memory for the rows
//! that queries read and send. A query counts until its last rows have been produced, even while
//! its client reads none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::datasource::memory::DataSourceExec;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::physical_plan::streaming::StreamingTableExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// All queries together get this many times the partitions of one that runs alone. More would not
/// make them faster, and each partition of a scan holds the pages it decodes.
const PARTS_TOGETHER: usize = 2;

/// Minimum memory for the rows of a query: outgoing batches, and the message being encoded.
const QUERY_BYTES: u64 = 1 << 20;
/// Memory that each partition of a scan holds per column of a file. For Parquet: the page as
/// stored, decompressed and decoded. Measured with lineitem of TPC-H: 16 columns, 4.6 MiB per query
/// (`bench load`).
const COLUMN_BYTES: u64 = 256 << 10;
/// A scan limited to this many rows ends with its first batch.
const FEW_ROWS: usize = 8192;
/// Memory that a scan of a database holds: the batches of all its connections.
const DATABASE_BYTES: u64 = 8 << 20;
/// The unit in which memory is counted.
const UNIT_BYTES: u64 = 1 << 10;

/// The number of running queries.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunningQueries(Arc<AtomicUsize>);

/// Memory for the rows that all queries read and send. When there is none left, queries wait
/// for others to end, first come, first served.
#[derive(Debug, Clone)]
pub(crate) struct RowMemory {
    units: Arc<Semaphore>,
    units_max: u32,
}

/// A share of the [`RowMemory`], returned when dropped.
pub(crate) type RowMemoryPermit = OwnedSemaphorePermit;

impl RowMemory {
    pub(crate) fn new(bytes: u64) -> Self {
        let units_max = u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX).max(1);
        Self { units: Arc::new(Semaphore::new(units_max as usize)), units_max }
    }

    /// At most half of the room, so that two large queries can run side by side.
    fn units(&self, bytes: u64) -> u32 {
        u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX).min((self.units_max / 2).max(1))
    }

    /// Room for this many bytes, if it is available without waiting.
    pub(crate) fn take_now(&self, bytes: u64) -> Option<RowMemoryPermit> {
        self.units.clone().try_acquire_many_owned(self.units(bytes)).ok()
    }

    /// As [`Self::take_now`], but waits. Dropping the future leaves the queue.
    pub(crate) async fn take(&self, bytes: u64) -> Option<RowMemoryPermit> {
        // The semaphore is never closed.
        self.units.clone().acquire_many_owned(self.units(bytes)).await.ok()
    }
}

/// Bytes that a plan holds for the rows it reads and sends; 0 for a plan that reads few rows, which
/// never waits. The memory pool counts what its operators accumulate.
pub(crate) fn rows_bytes(plan: &dyn ExecutionPlan) -> u64 {
    fn sources_bytes(plan: &dyn ExecutionPlan) -> u64 {
        let children = plan.children();
        if !children.is_empty() {
            let bytes = children.into_iter().map(|child| sources_bytes(child.as_ref()));
            return bytes.fold(0, u64::saturating_add);
        }
        let (parts, columns) = (plan.output_partitioning().partition_count(), plan.schema().fields().len());
        if plan.fetch().is_some_and(|rows| rows <= FEW_ROWS) {
            return 0;
        }
        match plan.downcast_ref::<DataSourceExec>() {
            Some(scan) if scan.data_source().is::<FileScanConfig>() => {
                (parts as u64).saturating_mul(columns as u64 * COLUMN_BYTES)
            }
            // These rows are in memory anyway.
            Some(_) => 0,
            None if plan.is::<StreamingTableExec>() => DATABASE_BYTES,
            None => 0,
        }
    }
    match sources_bytes(plan) {
        0 => 0,
        bytes => bytes.saturating_add(QUERY_BYTES),
    }
}

/// A running query, until dropped.
#[derive(Debug)]
pub(crate) struct RunningQuery {
    load: RunningQueries,
    /// Including this one.
    running: usize,
}

impl RunningQueries {
    pub(crate) fn count(&self) -> RunningQuery {
        RunningQuery { load: self.clone(), running: self.0.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

impl RunningQuery {
    /// The number of partitions of the query, given what it would have alone.
    pub(crate) fn parts(&self, alone: usize) -> usize {
        (PARTS_TOGETHER * alone / self.running).clamp(1, alone.max(1))
    }
}

impl Drop for RunningQuery {
    fn drop(&mut self) {
        self.load.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn queries_without_room_wait_in_order() {
        let room = RowMemory::new(10 << 20);
        let first = room.take_now(4 << 20).expect("room");
        let half = room.take_now(u64::MAX).expect("half of it");
        assert!(room.take_now(2 << 20).is_none());
        let mut second = std::pin::pin!(room.take(4 << 20));
        assert!(futures::poll!(&mut second).is_pending());
        // A query that leaves the queue does not block the others.
        {
            let mut third = std::pin::pin!(room.take(4 << 20));
            assert!(futures::poll!(&mut third).is_pending());
        }
        drop(first);
        let second = second.await.expect("room");
        drop(second);
        drop(half);
        // A query that needs no room never waits.
        let all = [room.take_now(5 << 20), room.take_now(5 << 20)];
        assert!(all.iter().all(Option::is_some) && room.take_now(1 << 10).is_none());
        assert!(room.take_now(0).is_some());
    }

    #[test]
    fn the_more_queries_run_the_fewer_partitions_the_next_one_has() {
        let load = RunningQueries::default();
        let all: Vec<_> = (0..100).map(|_| load.count()).collect();
        let parts: Vec<_> = all.iter().map(|counted| counted.parts(8)).collect();
        assert_eq!(&parts[..6], [8, 8, 5, 4, 3, 2]);
        assert!(parts[16..].iter().all(|&parts| parts == 1));
        drop(all);
        assert_eq!(load.count().parts(8), 8);
        assert_eq!(load.count().parts(0), 1);
    }
}
