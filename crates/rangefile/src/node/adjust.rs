//! What a node tells a sender whose image of a file is out of date: where the keys are by now, as far as it knows.
//!
//! A node knows its own buckets, and to which ones they have given keys since it started. So a sender that follows these
//! messages comes to the owner of a key, and asks each node at most once, unless keys move meanwhile.

use lightship_wire::control::{ErrorCode, Failure};
use prost::Message;

use super::{File, Node};
use crate::error::RangeError;
use crate::key::Interval;
use crate::request::{Adjustment, BucketEntry, RequestKind};

/// Bytes of the buckets in a refusal.
const ADJUSTMENT_BYTES_MAX: usize = 32 << 10;
/// Bytes that a list adds to each of its entries.
const ENTRY_BYTES: usize = 8;

/// What a sender wants to know if a bucket refuses its keys.
pub(super) struct Adjusting {
    file: String,
    bucket: u64,
    interval: Interval,
}

impl Adjusting {
    /// What the sender of a request wants to know.
    pub(super) fn of(kind: &RequestKind) -> Option<Self> {
        let (file, bucket, range) = match kind {
            RequestKind::Scan(scan) | RequestKind::Count(scan) | RequestKind::Last(scan) if scan.adjust => {
                (&scan.file, scan.bucket, &scan.range)
            }
            RequestKind::Write(write) => (&write.file, write.bucket, write.adjust.as_ref()?),
            _ => return None,
        };
        Some(Self { file: file.clone(), bucket, interval: range.clone().into() })
    }
}

impl Node {
    /// The failure for the sender of a request.
    pub(super) fn refusal(&self, error: &RangeError, adjusting: Option<Adjusting>) -> Failure {
        let mut failure = error.to_failure();
        if failure.code == ErrorCode::Moved
            && let Some(Adjusting { file, bucket, interval }) = adjusting
            && let Ok(file) = self.file(&file)
        {
            let (mut bytes_left, mut buckets) = (ADJUSTMENT_BYTES_MAX, Vec::new());
            self.tell_changed(&file, bucket, &interval, &mut bytes_left, &mut buckets);
            failure.details = Some(Adjustment { buckets }.encode_to_vec().into());
        }
        failure
    }

    /// Adds what is known of keys that are not where the sender expects them, or of a bucket that has changed.
    pub(super) fn tell_changed(
        &self,
        file: &File,
        bucket: u64,
        interval: &Interval,
        bytes_left: &mut usize,
        kept: &mut Vec<BucketEntry>,
    ) {
        // Of its own buckets, the image may have what they were.
        let own = |bucket: u64| {
            let bucket = file.bucket(bucket).filter(|bucket| bucket.view().is_active)?;
            Some(bucket.entry(&self.shared.name))
                .filter(|entry| !Interval::from(entry.range.clone()).is_empty())
        };
        let image = file.image();
        let known =
            image.within(interval).filter_map(|(interval, owner)| match owner.node == self.shared.name {
                true if owner.bucket == bucket => None,
                true => own(owner.bucket),
                false => Some(owner.entry(interval)),
            });
        keep(bytes_left, own(bucket).into_iter().chain(known), kept);
    }
}

/// Adds entries as long as there is room for them.
pub(super) fn keep(
    bytes_left: &mut usize,
    entries: impl IntoIterator<Item = BucketEntry>,
    kept: &mut Vec<BucketEntry>,
) {
    for entry in entries {
        match bytes_left.checked_sub(entry.encoded_len() + ENTRY_BYTES) {
            Some(left) => *bytes_left = left,
            None => {
                *bytes_left = 0;
                return;
            }
        }
        kept.push(entry);
    }
}
