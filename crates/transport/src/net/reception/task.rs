//! The task of a part: opens its stream, and reads it while the part has credit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;
use futures::StreamExt;
use futures::future::BoxFuture;
use lightship_wire::rows_bytes;
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};

use super::PartRows;

/// Bytes that are counted for each batch in addition to its rows: batches without columns take memory too.
const BATCH_BYTES: u64 = 64;

/// What a part's task reports.
pub(super) struct Message<E> {
    pub(super) part: u64,
    /// Tells a part's task from those before.
    pub(super) attempt: u64,
    pub(super) what: What<E>,
}

pub(super) enum What<E> {
    Opened,
    /// Rows, and the credit that they took.
    Rows(RecordBatch, u64),
    Ended,
    Failed(E),
}

/// Bytes that a sender may still send.
#[derive(Debug)]
pub(super) struct Credit {
    bytes: AtomicU64,
    added: Notify,
}

impl Credit {
    fn new(bytes: u64) -> Self {
        Self { bytes: AtomicU64::new(bytes), added: Notify::new() }
    }

    pub(super) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        self.added.notify_one();
    }

    /// Waits until there is this much. For one task.
    async fn at_least(&self, bytes: u64) {
        while self.bytes.load(Ordering::Acquire) < bytes {
            self.added.notified().await;
        }
    }

    /// Takes up to `bytes`. Returns what was taken: only a row larger than the credit takes less than its size.
    fn take(&self, bytes: u64) -> u64 {
        let before = self.bytes.load(Ordering::Acquire);
        let taken = bytes.min(before);
        self.bytes.fetch_sub(taken, Ordering::AcqRel);
        taken
    }
}

/// A running task. Dropping it ends the task.
#[derive(Debug)]
pub(super) struct PartTask {
    pub(super) attempt: u64,
    pub(super) credit: Arc<Credit>,
    handle: AbortHandle,
}

impl Drop for PartTask {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

impl PartTask {
    pub(super) fn spawn<E: Send + 'static>(
        tasks: &mut JoinSet<()>,
        part: u64,
        attempt: u64,
        grant_bytes: u64,
        floor_bytes: u64,
        opening: BoxFuture<'static, Result<PartRows<E>, E>>,
        sink: &mpsc::Sender<Message<E>>,
    ) -> Self {
        let (credit, sink) = (Arc::new(Credit::new(grant_bytes)), sink.clone());
        let of_task = credit.clone();
        let handle = tasks.spawn(async move {
            let say = |what| sink.send(Message { part, attempt, what });
            let ended = read(opening, &of_task, floor_bytes, say).await;
            let what = ended.map_or_else(What::Failed, |()| What::Ended);
            // The reception may be over.
            let _ = sink.send(Message { part, attempt, what }).await;
        });
        Self { attempt, credit, handle }
    }
}

async fn read<E, S: Future>(
    opening: BoxFuture<'static, Result<PartRows<E>, E>>,
    credit: &Credit,
    floor_bytes: u64,
    say: impl Fn(What<E>) -> S,
) -> Result<(), E> {
    let mut rows = opening.await?;
    say(What::Opened).await;
    loop {
        // Taking rows lets the sender replace them: there must be credit for all that it may have in flight.
        credit.at_least(floor_bytes).await;
        let Some(batch) = rows.next().await else { return Ok(()) };
        let batch = batch?;
        if batch.num_rows() > 0 {
            let bytes = credit.take(rows_bytes(&batch) + BATCH_BYTES);
            say(What::Rows(batch, bytes)).await;
        }
    }
}
