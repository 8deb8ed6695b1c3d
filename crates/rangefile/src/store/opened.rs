//! The database of a node. It is opened again after its disk was full: when a write has failed, redb refuses even reads,
//! although everything that was committed is there.

use std::fs::OpenOptions;
use std::io;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use redb::backends::FileBackend;
use redb::{BackendError, Database, StorageBackend};

use super::CACHE_BYTES;
use crate::error::{RangeError, Result};

/// Opens the database; the first time, it may be created.
type Open = Box<dyn Fn(IsFirst) -> Result<Database, redb::Error> + Send + Sync>;
type IsFirst = bool;

/// If the database of a file could not be opened again, readers try that at most this often.
const RETRY: Duration = Duration::from_secs(1);

/// A database, and how to open it again.
pub(super) struct Opened {
    /// `None` after it could not be opened again.
    database: RwLock<Option<Database>>,
    turn: Mutex<Turn>,
    /// Whether a sync has failed. See [`Watched`].
    has_lost_writes: Arc<AtomicBool>,
    /// `None`: it can't be opened again.
    open: Option<Open>,
    /// How often readers try to open it again, at most.
    retry: Duration,
}

/// The right to change the database. A commit holds it until it has succeeded or, after a failure, the database was opened
/// again.
#[derive(Default)]
pub(super) struct Turn {
    /// When the database could last not be opened again.
    failed: Option<Instant>,
}

impl Opened {
    /// The database in a file, which is created if it does not exist.
    pub(super) fn in_file(path: PathBuf) -> Result<Self, redb::Error> {
        let has_lost_writes = Arc::new(AtomicBool::new(false));
        let watched = has_lost_writes.clone();
        let open = move |is_first| {
            // If the file is gone, an empty one would look as if it had no rows.
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(is_first).truncate(false).open(&path)?;
            let backend = Watched { file: FileBackend::new(file)?, has_lost_writes: watched.clone() };
            Ok(Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend)?)
        };
        let opened = Self::by(open, RETRY)?;
        Ok(Self { has_lost_writes, ..opened })
    }

    pub(super) fn by(
        open: impl Fn(IsFirst) -> Result<Database, redb::Error> + Send + Sync + 'static,
        retry: Duration,
    ) -> Result<Self, redb::Error> {
        let database = open(true)?;
        Ok(Self { retry, ..Self::new(database, Some(Box::new(open))) })
    }

    /// A database that can't be opened again.
    #[cfg(any(test, fuzzing))]
    pub(super) fn over(database: Database) -> Self {
        Self::new(database, None)
    }

    fn new(database: Database, open: Option<Open>) -> Self {
        Self {
            database: RwLock::new(Some(database)),
            turn: Mutex::default(),
            has_lost_writes: Arc::default(),
            open,
            retry: RETRY,
        }
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

    /// Reads from the database. If a commit has failed, this waits until the commit has opened the database again, and reads
    /// then: a full disk refuses writes, not reads. If the commit could not do so, it is tried again here.
    ///
    /// # Errors
    /// As [`Opened::with`].
    pub(super) fn read<T>(&self, reads: impl Fn(&Database) -> Result<T>) -> Result<T> {
        match self.with(&reads) {
            Err(error) if self.open.is_some() && is_of_earlier_failure(&error) => {
                let mut turn = self.turn();
                if self.is_closed() && turn.failed.is_none_or(|failed| failed.elapsed() >= self.retry) {
                    self.open_again(&mut turn)?;
                }
                // The turn is held, so no commit can fail meanwhile.
                self.with(&reads)
            }
            outcome => outcome,
        }
    }

    /// Waits for the right to change the database.
    pub(super) fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for all readers, then opens the database again. Reads what was committed, and repairs the rest: this takes a
    /// second for each gigabyte or so, if commits have not prepared it.
    ///
    /// # Errors
    /// If what a failed sync has lost might be read as if it was stored: then the database stays open, and redb still reads
    /// what it has in memory. Or if it can't be opened: then it stays closed.
    pub(super) fn open_again(&self, turn: &mut Turn) -> Result<()> {
        let failed = || Err(RangeError::storage(redb::Error::PreviousIo));
        let Some(open) = &self.open else { return failed() };
        if self.has_lost_writes.load(Ordering::Relaxed) {
            return failed();
        }
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // First, because it holds a lock on the file.
        *database = None;
        // A database that is closed may sync, too.
        let opened = if self.has_lost_writes.load(Ordering::Relaxed) {
            Err(redb::Error::PreviousIo)
        } else {
            open(false)
        };
        turn.failed = opened.is_err().then(Instant::now);
        *database = Some(opened.map_err(RangeError::storage)?);
        Ok(())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.database.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

/// Whether redb refuses to do anything because something has failed before.
fn is_of_earlier_failure(error: &RangeError) -> bool {
    matches!(error, RangeError::Storage(error) if matches!(**error, redb::Error::PreviousIo))
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use redb::{ReadableDatabase, TableDefinition};

    use super::*;
    use crate::simulation::disk::Disk;

    const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("t");
    const NUMBERS: u64 = 64;

    /// Stores more than the cache of a simulated disk.
    fn store(database: &Database) -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        let mut table = transaction.open_table(TABLE)?;
        for number in 0..NUMBERS {
            table.insert(number, &*vec![7; 64 << 10])?;
        }
        drop(table);
        Ok(transaction.commit()?)
    }

    /// The number of values.
    fn count(database: &Database) -> Result<usize> {
        let read = || -> Result<usize, redb::Error> {
            let table = database.begin_read()?.open_table(TABLE)?;
            let mut found = 0;
            for number in 0..NUMBERS {
                found += usize::from(table.get(number)?.is_some());
            }
            Ok(found)
        };
        read().map_err(RangeError::storage)
    }

    #[test]
    fn a_reader_waits_until_a_failed_commit_has_opened_the_database_again() {
        let disk = Disk::default();
        let of_opened = disk.clone();
        let opened = Opened::by(move |_| Ok(of_opened.database()?), RETRY).unwrap();
        opened.with(|database| store(database).map_err(RangeError::storage)).unwrap();
        let mut turn = opened.turn();
        disk.set_full(true);
        opened.with(|database| store(database).map_err(RangeError::storage)).unwrap_err();
        std::thread::scope(|scope| {
            let (tries, tried) = mpsc::channel();
            let opened = &opened;
            let reading = scope.spawn(move || {
                opened.read(|database| {
                    let found = count(database);
                    tries.send(found.is_ok()).unwrap();
                    found
                })
            });
            assert!(!tried.recv().unwrap(), "everything is in memory");
            // The simulated disk refuses to write over what it has, too.
            disk.set_full(false);
            opened.open_again(&mut turn).unwrap();
            drop(turn);
            assert_eq!(reading.join().unwrap().unwrap(), NUMBERS as usize);
        });
    }

    #[test]
    fn a_database_that_may_have_lost_writes_stays_open() {
        let folder = tempfile::tempdir().unwrap();
        let opened = Opened::in_file(folder.path().join("t")).unwrap();
        opened.with(|database| store(database).map_err(RangeError::storage)).unwrap();
        opened.has_lost_writes.store(true, Ordering::Relaxed);
        opened.open_again(&mut opened.turn()).unwrap_err();
        assert_eq!(opened.read(count).unwrap(), NUMBERS as usize);
    }

    #[test]
    fn a_reader_opens_a_database_that_a_commit_could_not() {
        let disk = Disk::default();
        let can_open = Arc::new(AtomicBool::new(true));
        let (of_opened, of_can_open) = (disk, can_open.clone());
        let open = move |_| match of_can_open.load(Ordering::Relaxed) {
            true => Ok(of_opened.database()?),
            false => Err(io::Error::other("too many open files").into()),
        };
        let opened = Opened::by(open, RETRY).unwrap();
        opened.with(|database| store(database).map_err(RangeError::storage)).unwrap();
        can_open.store(false, Ordering::Relaxed);
        opened.open_again(&mut opened.turn()).unwrap_err();
        assert!(opened.is_closed());
        can_open.store(true, Ordering::Relaxed);
        // As if that was a while ago.
        opened.turn().failed = Instant::now().checked_sub(RETRY);
        assert_eq!(opened.read(count).unwrap(), NUMBERS as usize);
    }

    #[test]
    fn a_file_that_is_gone_is_not_created_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let opened = Opened::in_file(path.clone()).unwrap();
        std::fs::remove_file(&path).unwrap();
        opened.open_again(&mut opened.turn()).unwrap_err();
        assert!(!path.exists());
    }
}
