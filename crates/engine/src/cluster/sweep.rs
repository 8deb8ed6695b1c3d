//! Frees the parts of plans whose query has ended.
//!
//! datafusion-distributed keeps the parts in a cache (moka), and takes them out when their query ends. The cache drops what was
//! taken out when it is next used, and that only 0.3 s after it has last done so: without another query, never. A part has,
//! among others, the hash tables of inputs that were sent to all nodes. So after the end of a query, this uses the cache.

use std::sync::Weak;
use std::time::Duration;

use datafusion_distributed::{ExecuteTaskRequest, ProducerHead, TaskKey};
use uuid::Uuid;

use super::Cluster;
use crate::threads::QueryPhase;

/// Longer than the cache waits before it drops again.
const PAUSE: Duration = Duration::from_millis(350);
/// The first uses may come before the parts were taken out, or just after the cache has dropped others. The pause doubles.
const USES: u32 = 4;

/// Sweeps after the ends of queries, until the node stops.
pub(super) async fn follow(cluster: Weak<Cluster>) {
    let Some(mut ends) = cluster.upgrade().map(|cluster| cluster.queries.watch_ends()) else { return };
    while ends.changed().await.is_ok() {
        for use_number in 0..USES {
            tokio::time::sleep(PAUSE * (1 << use_number)).await;
            let Some(cluster) = cluster.upgrade() else { return };
            // The library has no other way to use the cache than to ask for a part. There is none of this query, so that the answer
            // would be an error after some time.
            let request = ExecuteTaskRequest {
                task_key: TaskKey { query_id: Uuid::nil(), stage_id: 0, task_number: 0 },
                target_partition_start: 0,
                target_partition_end: 0,
                producer_head: ProducerHead::None,
            };
            let worker = cluster.worker();
            // What is dropped may be large, and is dropped here: not on the threads that serve sockets.
            let used = cluster.threads.run(QueryPhase::Running, async move {
                let _ = tokio::time::timeout(PAUSE / 10, worker.execute_task(request)).await;
                Ok(())
            });
            // It fails only if the node is stopping.
            let _ = used.await;
        }
    }
}
