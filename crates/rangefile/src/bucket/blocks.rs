//! What all buckets of a node share: their stored blocks, and limits of memory. Blocks in which single rows were looked
//! up are kept decoded: to decode one takes longer than all else that a lookup does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::RecordBatch;
use lightship_wire::rows_bytes;
use lru::LruCache;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::block::{BlockRows, KeyedRows, decode_block, decode_rows, find_row};
use crate::definition::Definition;
use crate::error::{RangeError, Result};
use crate::store::Store;

/// Bytes of the decoded blocks that a node keeps for writes, as Arrow data without keys.
const KEYED_BYTES_MAX: u64 = 64 << 20;
/// Bytes of the decoded blocks that a node keeps for reads, as Arrow data.
const READ_BYTES_MAX: u64 = 64 << 20;

/// Bytes of rows of all writes that wait or are being committed, as Arrow data.
const WRITE_BYTES_MAX: u32 = 64 << 20;
/// Merges that go on at once. Each has a few MiB in memory.
const MERGES_MAX: usize = 4;

/// The bucket, the run, and the block.
type BlockKey = (u64, u64, u32);

/// Decoded blocks, as many as there is room for; those that were used last.
struct Kept<T> {
    blocks: LruCache<BlockKey, (u64, T)>,
    bytes: u64,
    bytes_max: u64,
}

impl<T: Clone> Kept<T> {
    fn new(bytes_max: u64) -> Mutex<Self> {
        Mutex::new(Self { blocks: LruCache::unbounded(), bytes: 0, bytes_max })
    }

    fn get(&mut self, key: &BlockKey) -> Option<T> {
        self.blocks.get(key).map(|(_, rows)| rows.clone())
    }

    /// Keeps a block, unless it would take the room of many others.
    fn put(&mut self, key: BlockKey, bytes: u64, rows: T) {
        if bytes > self.bytes_max / 8 {
            return;
        }
        self.bytes += bytes;
        if let Some((_, (before, _))) = self.blocks.push(key, (bytes, rows)) {
            self.bytes -= before;
        }
        while self.bytes > self.bytes_max
            && let Some((_, (bytes, _))) = self.blocks.pop_lru()
        {
            self.bytes -= bytes;
        }
    }
}

/// The blocks of a node. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Blocks {
    store: Store,
    keyed: Arc<Mutex<Kept<KeyedRows>>>,
    read: Arc<Mutex<Kept<BlockRows>>>,
    write_bytes: Arc<Semaphore>,
    merges: Arc<Semaphore>,
}

impl Blocks {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store,
            keyed: Arc::new(Kept::new(KEYED_BYTES_MAX)),
            read: Arc::new(Kept::new(READ_BYTES_MAX)),
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
        self.store.block(key.0, key.1, key.2, |block| decode_block(definition, block))
    }

    /// Reads the rows of a block without their keys, and which of them are deletions.
    pub(crate) fn read_rows(&self, definition: &Definition, key: BlockKey) -> Result<BlockRows> {
        self.store.block(key.0, key.1, key.2, |block| decode_rows(definition, block))
    }

    /// The row with a key in a block, and whether it is a deletion. The block is kept.
    pub(crate) fn find(
        &self,
        definition: &Definition,
        block: BlockKey,
        key: &[u8],
    ) -> Result<Option<(RecordBatch, bool)>> {
        if let Some(found) = self.find_kept(definition, block, key) {
            return found;
        }
        let rows = self.read_rows(definition, block)?;
        locked(&self.read).put(block, rows_bytes(&rows.0), rows.clone());
        find_row(definition, &rows, key)
    }

    /// The same, if the block is in memory.
    pub(crate) fn find_kept(
        &self,
        definition: &Definition,
        block: BlockKey,
        key: &[u8],
    ) -> Option<Result<Option<(RecordBatch, bool)>>> {
        let keyed = locked(&self.keyed).get(&block);
        if let Some(rows) = keyed {
            return Some(Ok(rows.find(key).map(|row| (rows.rows.slice(row, 1), rows.is_deleted(row)))));
        }
        let rows = locked(&self.read).get(&block)?;
        Some(find_row(definition, &rows, key))
    }

    /// Reads a block that will soon be read again.
    pub(crate) fn read_often(&self, definition: &Definition, key: BlockKey) -> Result<KeyedRows> {
        let kept = locked(&self.keyed).get(&key);
        if let Some(rows) = kept {
            return Ok(rows);
        }
        let rows = self.read(definition, key)?;
        locked(&self.keyed).put(key, rows.bytes(), rows.clone());
        Ok(rows)
    }
}

fn locked<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_kept_within_their_memory() {
        let kept = Kept::new(800);
        let mut kept = locked(&kept);
        let key = |block| (1, 2, block);
        (0..12).for_each(|block| kept.put(key(block), 100, block));
        assert_eq!((kept.bytes, kept.get(&key(3)), kept.get(&key(4))), (800, None, Some(4)));
        // The one that was used is the last to go; a block that is read twice at once counts once.
        kept.put(key(12), 100, 12);
        kept.put(key(12), 90, 12);
        assert_eq!((kept.bytes, kept.get(&key(4)), kept.get(&key(5))), (790, Some(4), None));
        kept.put(key(13), 101, 13);
        assert_eq!((kept.bytes, kept.get(&key(13))), (790, None));
    }
}
