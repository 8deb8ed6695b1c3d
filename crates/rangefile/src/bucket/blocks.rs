//! What all buckets of a node share: their stored blocks, and limits of memory. Blocks in which single rows are
//! looked up are kept decoded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::{BooleanArray, RecordBatch};
use lru::LruCache;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::block::{KeyedRows, decode_block, decode_rows, find_in_block};
use crate::definition::Definition;
use crate::error::{RangeError, Result};
use crate::store::Store;

/// Bytes of the decoded blocks that a node keeps, as Arrow data.
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// Bytes of rows of all writes that wait or are being committed, as Arrow data.
const WRITE_BYTES_MAX: u32 = 64 << 20;
/// Merges that go on at once. Each has a few MiB in memory.
const MERGES_MAX: usize = 4;

/// The bucket, the run, and the block.
type BlockKey = (u64, u64, u32);

struct Kept {
    blocks: LruCache<BlockKey, (u64, KeyedRows)>,
    bytes: u64,
}

/// The blocks of a node. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Blocks {
    store: Store,
    kept: Arc<Mutex<Kept>>,
    write_bytes: Arc<Semaphore>,
    merges: Arc<Semaphore>,
}

impl Blocks {
    pub(crate) fn new(store: Store) -> Self {
        let kept = Kept { blocks: LruCache::unbounded(), bytes: 0 };
        Self {
            store,
            kept: Arc::new(Mutex::new(kept)),
            write_bytes: Arc::new(Semaphore::new(WRITE_BYTES_MAX as usize)),
            merges: Arc::new(Semaphore::new(MERGES_MAX)),
        }
    }

    /// Reserves memory for a write, for as long as the permit is held. One that is larger than the limit waits
    /// until there is no other.
    pub(crate) async fn reserve_write(&self, bytes: u32) -> Result<OwnedSemaphorePermit> {
        let bytes = bytes.min(WRITE_BYTES_MAX);
        self.write_bytes.clone().acquire_many_owned(bytes).await.map_err(|_| RangeError::Closed)
    }

    /// Waits until another merge may begin; it has ended when the permit is dropped.
    pub(crate) async fn begin_merge(&self) -> Result<OwnedSemaphorePermit> {
        self.merges.clone().acquire_owned().await.map_err(|_| RangeError::Closed)
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Reads a block once.
    pub(crate) fn read(&self, definition: &Definition, key: BlockKey) -> Result<KeyedRows> {
        decode_block(definition, self.store.block(key.0, key.1, key.2)?)
    }

    /// Reads the rows of a block without their keys, and which of them are deletions.
    pub(crate) fn read_rows(
        &self,
        definition: &Definition,
        key: BlockKey,
    ) -> Result<(RecordBatch, Option<BooleanArray>)> {
        decode_rows(definition, self.store.block(key.0, key.1, key.2)?)
    }

    /// The row with a key in a block, and whether it is a deletion.
    pub(crate) fn find(
        &self,
        definition: &Definition,
        block: BlockKey,
        key: &[u8],
    ) -> Result<Option<(RecordBatch, bool)>> {
        if let Some((_, rows)) = self.kept().blocks.get(&block) {
            return Ok(rows.find(key).map(|row| (rows.rows.slice(row, 1), rows.is_deleted(row))));
        }
        find_in_block(definition, self.store.block(block.0, block.1, block.2)?, key)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a block that will soon be read again.
    pub(crate) fn read_often(&self, definition: &Definition, key: BlockKey) -> Result<KeyedRows> {
        if let Some((_, rows)) = self.kept().blocks.get(&key) {
            return Ok(rows.clone());
        }
        let rows = self.read(definition, key)?;
        let bytes = rows.bytes();
        if bytes <= KEPT_BYTES_MAX / 8 {
            let mut kept = self.kept();
            kept.bytes += bytes;
            if let Some((_, (before, _))) = kept.blocks.push(key, (bytes, rows.clone())) {
                kept.bytes -= before;
            }
            while kept.bytes > KEPT_BYTES_MAX
                && let Some((_, (bytes, _))) = kept.blocks.pop_lru()
            {
                kept.bytes -= bytes;
            }
        }
        Ok(rows)
    }
}
