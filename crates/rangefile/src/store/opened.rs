//! The database of a node. It is opened again after its disk was full: when a write has failed, redb refuses even reads,
//! although everything that was committed is there.

use std::fs::OpenOptions;
use std::io;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use redb::backends::FileBackend;
use redb::{BackendError, Database, StorageBackend};

use super::CACHE_BYTES;
use crate::error::{RangeError, Result};

type Open = Box<dyn Fn() -> Result<Database, redb::Error> + Send + Sync>;

/// A database, and how to open it again.
pub(super) struct Opened {
    /// `None` after it could not be opened again.
    database: RwLock<Option<Database>>,
    /// `None` if it stays as it is.
    open: Option<Open>,
}

impl Opened {
    /// The database in a file, which is created if it does not exist.
    pub(super) fn in_file(path: PathBuf) -> Result<Self, redb::Error> {
        let has_lost_writes = Arc::new(AtomicBool::new(false));
        Self::by(move || {
            if has_lost_writes.load(Ordering::Relaxed) {
                return Err(redb::Error::PreviousIo);
            }
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
            let backend = Watched { file: FileBackend::new(file)?, has_lost_writes: has_lost_writes.clone() };
            Ok(Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend)?)
        })
    }

    pub(super) fn by(
        open: impl Fn() -> Result<Database, redb::Error> + Send + Sync + 'static,
    ) -> Result<Self, redb::Error> {
        Ok(Self { database: RwLock::new(Some(open()?)), open: Some(Box::new(open)) })
    }

    /// A database that can't be opened again.
    #[cfg(any(test, fuzzing))]
    pub(super) fn over(database: Database) -> Self {
        Self { database: RwLock::new(Some(database)), open: None }
    }

    /// Uses the database. Blocks the thread while it is opened again.
    ///
    /// # Errors
    /// Those of `uses`; or that the database could not be opened again.
    pub(super) fn with<T>(&self, uses: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        match &*database {
            Some(database) => uses(database),
            None => Err(RangeError::storage(redb::Error::PreviousIo)),
        }
    }

    /// Opens it again, once nobody uses it. Reads what was committed, and repairs the rest: this takes a second for each
    /// gigabyte or so, if commits have not prepared it.
    ///
    /// # Errors
    /// If that is not possible, or what a failed sync has lost may be read as if it was stored. Then it stays closed.
    pub(super) fn open_again(&self) -> Result<()> {
        let Some(open) = &self.open else { return Err(RangeError::storage(redb::Error::PreviousIo)) };
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // First, because it holds a lock on the file.
        *database = None;
        *database = Some(open().map_err(RangeError::storage)?);
        Ok(())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.database.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

/// Whether the disk has no room for what was to be stored.
pub(super) fn is_full(error: &RangeError) -> bool {
    let RangeError::Storage(error) = error else { return false };
    let redb::Error::Io(error) = &**error else { return false };
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A file that knows whether a sync has failed: the system then shows writes as done that it has dropped.
#[derive(Debug)]
struct Watched {
    file: FileBackend,
    has_lost_writes: Arc<AtomicBool>,
}

impl StorageBackend for Watched {
    fn len(&self) -> Result<u64, io::Error> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        let synced = self.file.sync_data();
        if synced.is_err() {
            self.has_lost_writes.store(true, Ordering::Relaxed);
        }
        synced
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.file.write(offset, data)
    }

    fn close(&self) -> Result<(), io::Error> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}
