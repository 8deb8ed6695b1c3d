//! The size of a node's database, and the free space of its disk.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::RangeError;

/// How long a measurement counts.
const MEASURED_FOR: Duration = Duration::from_secs(1);
/// Bytes that a new bucket leaves free: merges of runs take some for a while, and so do other programs.
const RESERVE_BYTES: u64 = 64 << 20;

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

    /// A commit has failed.
    pub(super) fn failed(&self, error: &RangeError) {
        if let RangeError::Storage(error) = error
            && matches!(**error, redb::Error::Io(_) | redb::Error::PreviousIo)
        {
            self.has_failed.store(true, Ordering::Relaxed);
        }
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

    #[tokio::test]
    async fn a_disk_that_has_failed_has_no_free_space() {
        let space = Arc::new(Space::of("/".into()));
        assert!(space.free().await.is_some());
        space.failed(&RangeError::Moved);
        assert_ne!(space.free().await, Some(0));
        space.failed(&RangeError::storage(redb::Error::PreviousIo));
        assert_eq!(space.free().await, Some(0));
    }
}
