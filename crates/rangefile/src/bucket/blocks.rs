//! Stored blocks, decoded. Those in which single rows are looked up are kept in memory.

use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;

use super::block::{KeyedRows, decode_block};
use crate::definition::Definition;
use crate::error::Result;
use crate::store::Store;

/// Bytes of the decoded blocks that a node keeps, as Arrow data.
const KEPT_BYTES_MAX: u64 = 64 << 20;

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
}

impl Blocks {
    pub(crate) fn new(store: Store) -> Self {
        let kept = Kept { blocks: LruCache::unbounded(), bytes: 0 };
        Self { store, kept: Arc::new(Mutex::new(kept)) }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Reads a block once.
    pub(crate) fn read(&self, definition: &Definition, key: BlockKey) -> Result<KeyedRows> {
        decode_block(definition, self.store.block(key.0, key.1, key.2)?)
    }

    /// Reads a block that will soon be read again.
    pub(crate) fn read_often(&self, definition: &Definition, key: BlockKey) -> Result<KeyedRows> {
        let lock = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, rows)) = lock().blocks.get(&key) {
            return Ok(rows.clone());
        }
        let rows = self.read(definition, key)?;
        let bytes = rows.bytes();
        if bytes <= KEPT_BYTES_MAX / 8 {
            let mut kept = lock();
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
