//! The free space of a node's disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::RangeError;

/// How long a measurement counts.
const MEASURED_FOR: Duration = Duration::from_secs(1);
/// Bytes that a new bucket leaves free: merges of runs take some for a while, and so do other programs.
const RESERVE_BYTES: u64 = 64 << 20;

/// Whether a disk with this much free space has room for a new bucket. Its rows are written twice before the first copy
/// is removed: as they come, and merged.
pub(crate) fn has_room(free: Option<u64>, bytes: u64) -> bool {
    free.is_none_or(|free| free >= bytes.saturating_mul(2).saturating_add(RESERVE_BYTES))
}

/// What is known of the disk that the database is on.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// `None` if the database is not in a folder.
    folder: Option<PathBuf>,
    measured: Mutex<Option<(Instant, u64)>>,
    /// Whether the database has failed. It stores nothing more until it is opened again.
    has_failed: AtomicBool,
}

impl Space {
    pub(super) fn of(folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()), ..Self::default() }
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
        self.folder.as_ref()?;
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
        let disk = rustix::fs::statvfs(self.folder.as_ref()?).ok()?;
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
        let space = Arc::new(Space::of(Path::new("/")));
        assert!(space.free().await.is_some());
        space.failed(&RangeError::Moved);
        assert_ne!(space.free().await, Some(0));
        space.failed(&RangeError::storage(redb::Error::PreviousIo));
        assert_eq!(space.free().await, Some(0));
    }
}
