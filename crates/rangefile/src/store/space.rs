//! The size of a node's database, and the free space of its disk.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::RangeError;

/// How long a measurement counts.
const MEASURED_FOR: Duration = Duration::from_secs(1);
/// Bytes that a new bucket leaves free: merges of runs take some for a while, and so do other programs.
const RESERVE_BYTES: u64 = 64 << 20;

/// After a full disk, commits are tried again at the latest after this time: removed rows may have left room in the file.
const FULL_FOR: Duration = Duration::from_secs(60);
/// What a commit writes besides its rows, at most.
const COMMIT_BYTES: u64 = 4 << 20;

/// From this size on, commits are such that the database is opened without a walk through all of it after a kill.
const QUICK_REPAIR_BYTES: u64 = 4 << 30;

/// Whether a disk with this much free space has room for a new bucket. Its rows are written twice before the first copy
/// is removed: as they come, and merged.
pub(crate) fn has_room(free: Option<u64>, bytes: u64) -> bool {
    free.is_none_or(|free| free >= bytes.saturating_mul(2).saturating_add(RESERVE_BYTES))
}

/// What is known of the disk that the database is on.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// The file of the database; `None` if it is not in a file.
    path: Option<PathBuf>,
    measured: Mutex<Option<(Instant, u64)>>,
    /// Whether the database has failed. It stores nothing more until it is opened again.
    has_failed: AtomicBool,
    /// When a commit has last failed because the disk was full, and with which error.
    was_full: Mutex<Option<(Instant, RangeError)>>,
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

    /// A commit has failed. If the disk was full, the database `can_be_read` by now, and stores again once there is room.
    pub(super) fn failed(&self, error: &RangeError, can_be_read: bool) {
        if can_be_read {
            *self.lock_was_full() = Some((Instant::now(), error.clone()));
        } else if let RangeError::Storage(error) = error
            && matches!(**error, redb::Error::Io(_) | redb::Error::PreviousIo)
        {
            self.has_failed.store(true, Ordering::Relaxed);
        }
    }

    /// A commit has succeeded.
    pub(super) fn stored(&self) {
        *self.lock_was_full() = None;
        self.has_failed.store(false, Ordering::Relaxed);
    }

    /// Fails if the disk was full a short while ago, and has no room for so many bytes now: another failure would cost
    /// another repair.
    pub(super) fn check_room(&self, bytes: u64) -> Result<(), RangeError> {
        let was_full = self.lock_was_full();
        let Some((_, error)) = was_full.as_ref().filter(|(at, _)| at.elapsed() < FULL_FOR) else {
            return Ok(());
        };
        let needed = bytes.saturating_mul(2).saturating_add(COMMIT_BYTES);
        match self.measure() {
            Some(free) if free < needed => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn lock_was_full(&self) -> MutexGuard<'_, Option<(Instant, RangeError)>> {
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

    fn measure(&self) -> Option<u64> {
        let disk = rustix::fs::statvfs(self.path.as_ref()?).ok()?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        *self.measured.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), free));
        Some(free)
    }
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

    #[test]
    fn after_a_full_disk_commits_wait_for_room() {
        let space = Space::of("/".into());
        assert!(space.check_room(u64::MAX).is_ok());
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        space.failed(&RangeError::storage(redb::Error::Io(full)), true);
        assert!(space.check_room(u64::MAX).is_err());
        assert!(space.check_room(0).is_ok());
        space.stored();
        assert!(space.check_room(u64::MAX).is_ok());
    }

    #[tokio::test]
    async fn a_disk_that_has_failed_has_no_free_space() {
        let space = Arc::new(Space::of("/".into()));
        assert!(space.free().await.is_some());
        space.failed(&RangeError::Moved, false);
        assert_ne!(space.free().await, Some(0));
        space.failed(&RangeError::storage(redb::Error::PreviousIo), false);
        assert_eq!(space.free().await, Some(0));
        space.stored();
        assert_ne!(space.free().await, Some(0));
    }
}
