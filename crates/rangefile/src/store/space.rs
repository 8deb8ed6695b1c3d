//! The size of a node's database, and the free space of its disk.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::RangeError;

/// How long a measurement counts.
const MEASURED_FOR: Duration = Duration::from_secs(1);
/// Bytes that a new bucket leaves free: merges of runs take some for a while, and so do other programs.
const RESERVE_BYTES: u64 = 64 << 20;

/// After a full disk, commits are tried again after this time, even if the disk shows no room: removed rows may have left
/// room in the file.
const FULL_FOR: Duration = Duration::from_secs(60);
/// If the disk shows room that can't be used, commits wait for this many times what it took to open the database again.
const WAIT_TIMES: u32 = 10;
/// The most that a commit writes besides its rows.
const COMMIT_BYTES: u64 = 4 << 20;

/// From this size on, commits are such that the database is opened without a walk through all of it after a kill.
const QUICK_REPAIR_BYTES: u64 = 4 << 30;

/// Whether a disk with this much free space has room for a new bucket. Its rows are written twice before the first copy
/// is removed: as they come, and merged.
pub(crate) fn has_room(free: Option<u64>, bytes: u64) -> bool {
    free.is_none_or(|free| free >= bytes.saturating_mul(2).saturating_add(RESERVE_BYTES))
}

/// What a commit stores.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) bytes: u64,
    /// Whether there are rows. Other changes need little room, and may make some.
    pub(super) has_rows: bool,
}

impl Size {
    /// What it may take on the disk.
    fn needed(self) -> u64 {
        self.bytes.saturating_mul(2).saturating_add(COMMIT_BYTES)
    }
}

/// A commit that failed because the disk was full.
#[derive(Debug)]
struct Full {
    at: Instant,
    error: RangeError,
    size: Size,
    /// How long commits are refused, whatever room the disk shows.
    wait: Duration,
}

/// What is known of the disk that the database is on.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// The file of the database; `None` if it is not in a file.
    path: Option<PathBuf>,
    measured: Mutex<Option<(Instant, u64)>>,
    /// Whether the database has failed. It stores nothing more until it is opened again.
    has_failed: AtomicBool,
    was_full: Mutex<Option<Full>>,
    /// Of a database that is not in a file: whether the last commit was for a quick repair.
    was_quick: AtomicBool,
}

impl Space {
    pub(super) fn of(path: PathBuf) -> Self {
        Self { path: Some(path), ..Self::default() }
    }

    /// Whether the next commit stores what a quick repair needs. It costs another sync, which a small database does not pay
    /// back: redb reads it in seconds. In tests, databases in memory do it in turn, so that both are tried.
    pub(super) fn wants_quick_repair(&self) -> bool {
        match &self.path {
            Some(path) => std::fs::metadata(path).is_ok_and(|file| file.len() >= QUICK_REPAIR_BYTES),
            None => !self.was_quick.fetch_xor(true, Ordering::Relaxed),
        }
    }

    /// A commit has failed, and the database stores nothing more until it is opened again.
    pub(super) fn failed(&self, error: &RangeError) {
        if let RangeError::Storage(error) = error
            && matches!(**error, redb::Error::Io(_) | redb::Error::PreviousIo)
        {
            self.has_failed.store(true, Ordering::Relaxed);
        }
    }

    /// A commit has failed because the disk was full, when `free` bytes could be stored. It `took` this long to open the
    /// database again.
    pub(super) fn was_full(&self, error: &RangeError, size: Size, free: Option<u64>, took: Duration) {
        let wait = if is_quota(error) {
            // The free space of the disk says nothing about it.
            FULL_FOR
        } else if free.is_none_or(|free| free >= size.needed()) {
            took * WAIT_TIMES
        } else {
            Duration::ZERO
        };
        *self.lock_was_full() = Some(Full { at: Instant::now(), error: error.clone(), size, wait });
    }

    /// A commit has succeeded.
    pub(super) fn stored(&self, size: Size) {
        // Rows need more room than a removal: if one was stored, rows may still find none.
        self.lock_was_full().take_if(|full| size.has_rows || !full.size.has_rows);
        self.has_failed.store(false, Ordering::Relaxed);
    }

    /// Fails if the disk was full a short while ago, and has no room for this commit now: another failure would cost
    /// another repair. A commit without rows is only refused if one without rows has failed.
    pub(super) fn check_room(&self, size: Size) -> Result<(), RangeError> {
        let was_full = self.lock_was_full();
        let Some(full) = &*was_full else { return Ok(()) };
        let since = full.at.elapsed();
        if since < full.wait && (size.has_rows || !full.size.has_rows) {
            return Err(full.error.clone());
        }
        if since >= FULL_FOR || (full.size.has_rows && !size.has_rows) {
            return Ok(());
        }
        match self.measure() {
            Some(free) if free < size.needed() => Err(full.error.clone()),
            _ => Ok(()),
        }
    }

    fn lock_was_full(&self) -> MutexGuard<'_, Option<Full>> {
        self.was_full.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes that can be stored; `None` if that is not known.
    pub(super) async fn free(self: &Arc<Self>) -> Option<u64> {
        if self.has_failed.load(Ordering::Relaxed) {
            return Some(0);
        }
        self.path.as_ref()?;
        let last = *self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        match last {
            Some((at, free)) if at.elapsed() < MEASURED_FOR => Some(free),
            _ => {
                let space = self.clone();
                tokio::task::spawn_blocking(move || space.measure()).await.ok()?
            }
        }
    }

    /// The bytes that can be stored now; `None` if that is not known.
    pub(super) fn measure(&self) -> Option<u64> {
        let disk = rustix::fs::statvfs(self.path.as_ref()?).ok()?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        *self.measured.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), free));
        Some(free)
    }
}

fn is_quota(error: &RangeError) -> bool {
    let RangeError::Storage(error) = error else { return false };
    matches!(&**error, redb::Error::Io(error) if error.kind() == io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_needs_room_for_two_copies_and_the_reserve() {
        assert!(has_room(None, u64::MAX));
        assert!(has_room(Some((64 << 20) + 200), 100));
        assert!(!has_room(Some((64 << 20) + 199), 100));
        assert!(!has_room(Some(0), 0));
    }

    const ROWS: Size = Size { bytes: 100, has_rows: true };
    const HUGE: Size = Size { bytes: u64::MAX, has_rows: true };
    const REMOVAL: Size = Size { bytes: 100, has_rows: false };
    const HUGE_REMOVAL: Size = Size { bytes: u64::MAX, has_rows: false };

    fn no_room(kind: io::ErrorKind) -> RangeError {
        RangeError::storage(redb::Error::Io(kind.into()))
    }

    #[test]
    fn after_a_full_disk_commits_wait_for_room() {
        let space = Space::of("/".into());
        assert!(space.check_room(HUGE).is_ok());
        space.was_full(&no_room(io::ErrorKind::StorageFull), ROWS, Some(0), FULL_FOR);
        assert!(space.check_room(HUGE).is_err());
        assert!(space.check_room(ROWS).is_ok());
        space.stored(ROWS);
        assert!(space.check_room(HUGE).is_ok());
    }

    #[test]
    fn if_free_space_can_not_be_used_commits_wait() {
        let space = Space::of("/".into());
        space.was_full(&no_room(io::ErrorKind::StorageFull), ROWS, Some(u64::MAX), FULL_FOR);
        assert!(space.check_room(ROWS).is_err());
        space.was_full(&no_room(io::ErrorKind::StorageFull), ROWS, Some(u64::MAX), Duration::ZERO);
        assert!(space.check_room(ROWS).is_ok());
        space.was_full(&no_room(io::ErrorKind::QuotaExceeded), ROWS, Some(0), Duration::ZERO);
        assert!(space.check_room(ROWS).is_err());
    }

    #[test]
    fn commits_without_rows_are_refused_only_after_one_of_them_has_failed() {
        let space = Space::of("/".into());
        space.was_full(&no_room(io::ErrorKind::QuotaExceeded), ROWS, Some(0), Duration::ZERO);
        assert!(space.check_room(HUGE_REMOVAL).is_ok());
        space.stored(REMOVAL);
        assert!(space.check_room(ROWS).is_err(), "a removal needs less room than rows");
        space.was_full(&no_room(io::ErrorKind::QuotaExceeded), REMOVAL, Some(0), Duration::ZERO);
        assert!(space.check_room(REMOVAL).is_err());
        assert!(space.check_room(ROWS).is_err());
        space.stored(REMOVAL);
        assert!(space.check_room(ROWS).is_ok());
    }

    #[tokio::test]
    async fn a_disk_that_has_failed_has_no_free_space() {
        let space = Arc::new(Space::of("/".into()));
        assert!(space.free().await.is_some());
        space.failed(&RangeError::Moved);
        assert_ne!(space.free().await, Some(0));
        space.failed(&RangeError::storage(redb::Error::PreviousIo));
        assert_eq!(space.free().await, Some(0));
        space.stored(ROWS);
        assert_ne!(space.free().await, Some(0));
    }
}
