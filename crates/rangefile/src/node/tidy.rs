//! Merges the runs of buckets that are scanned.
//!
//! Rows that were written with keys in random order are in several runs with keys between each other's, and a scan copies
//! them one by one. To merge the runs copies them once more, and writes all of the bucket. Merging starts when scans have
//! copied about as many rows as the merge will copy and the bucket is quiet; if it never is, when they have copied a few
//! times as many.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::{File, Node};
use crate::bucket::Bucket;
use crate::store::has_room;

/// A bucket that was asked for nothing for so long is quiet.
const QUIET: Duration = Duration::from_secs(1);
/// Scans that copy all rows of a bucket that is never quiet, before its runs are merged.
const SCANS_MAX: u64 = 4;

impl Node {
    /// Watches a bucket that is scanned, if its runs overlap.
    pub(super) fn tidy_later(&self, file: &Arc<File>, bucket: &Arc<Bucket>) {
        // The flag first: to look for overlaps costs more.
        if bucket.is_watched.load(SeqCst)
            || !bucket.view().has_overlaps()
            || bucket.is_watched.swap(true, SeqCst)
        {
            return;
        }
        let mut before = bucket.load.now();
        // The node may be closed meanwhile.
        let (node, file, bucket) =
            (Arc::downgrade(&self.shared), Arc::downgrade(file), Arc::downgrade(bucket));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(QUIET).await;
                let (Some(shared), Some(file), Some(bucket)) =
                    (node.upgrade(), file.upgrade(), bucket.upgrade())
                else {
                    return;
                };
                let now = bucket.load.now();
                let is_quiet = std::mem::replace(&mut before, now) == now;
                // Rows that were replaced are counted too, but not copied.
                let merge_rows_min = bucket.view().content().0.div_ceil(2);
                let due_rows = if is_quiet { merge_rows_min } else { merge_rows_min * 2 * SCANS_MAX };
                let is_due = bucket.load.reset_copied_rows_if_at_least(due_rows);
                if is_due {
                    Self { shared }.tidy(&file, &bucket).await;
                }
                if is_due || is_quiet {
                    bucket.is_watched.store(false, SeqCst);
                    return;
                }
            }
        });
    }

    /// Merges all runs of a bucket, unless the disk is nearly full: it can be scanned as it is.
    async fn tidy(&self, file: &Arc<File>, bucket: &Arc<Bucket>) {
        let free = self.shared.blocks.store().free_bytes().await;
        if has_room(free, bucket.view().content().1) {
            bucket.is_untidy.store(true, SeqCst);
            self.maintain(file, bucket);
        }
    }
}
