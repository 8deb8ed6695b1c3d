//! Splits, moves and joins, as changes of what the buckets store. Nothing here does I/O: the node stores each
//! result before it acts on it, and after a restart goes on from what is stored.
//!
//! The bucket that splits decides. It stores that it has begun, has the new bucket prepared, sends it the rows
//! above the median while writes go on, holds writes back for the last of them, and then stores its smaller range:
//! that is the moment at which the keys change their owner. Until then the new bucket serves nobody, and a
//! restart of the old one abandons the split; from then on the new one is activated, however often that has to
//! be tried.
//!
//! A bucket moves to another node by a split at its own low end: the new bucket gets all of its keys. The old one
//! has none then, and is removed once the new one is active. Adjacent buckets of one node join in one commit.

use crate::error::{RangeError, Result};
use crate::key::{Interval, Key};
use crate::request::{BucketRecord, Child, Origin, Prepare};

/// Begins a split at `median`; at the low end of its keys, the bucket moves.
pub(crate) fn begin(
    record: &BucketRecord,
    median: Key,
    median_text: String,
    bucket: u64,
    node: String,
) -> Result<(BucketRecord, Child)> {
    let range: Interval = record.range.clone().into();
    if record.incoming.is_some() || record.splitting.is_some() || record.given.is_some() {
        return Err(RangeError::Definition("the bucket is splitting already".into()));
    }
    if !range.contains(&median) {
        return Err(RangeError::Definition("the bucket can't split at this key".into()));
    }
    let upper = Interval::new(median, range.high);
    let child =
        Child { bucket, node, range: (&upper).into(), epoch: record.epoch + 1, low_text: median_text };
    Ok((BucketRecord { splitting: Some(child.clone()), ..record.clone() }, child))
}

/// Abandons a split that is not decided.
pub(crate) fn abort(record: &BucketRecord) -> BucketRecord {
    BucketRecord { splitting: None, ..record.clone() }
}

/// Decides a split: the upper keys are the new bucket's.
pub(crate) fn commit(record: &BucketRecord) -> Result<BucketRecord> {
    let Some(child) = record.splitting.clone() else {
        return Err(RangeError::Definition("no split has begun".into()));
    };
    let range: Interval = record.range.clone().into();
    let lower = Interval::new(range.low, Some(child.range.low.clone()));
    let epoch = child.epoch;
    Ok(BucketRecord { range: (&lower).into(), epoch, splitting: None, given: Some(child), ..record.clone() })
}

/// The new bucket is active.
pub(crate) fn confirm(record: &BucketRecord) -> BucketRecord {
    BucketRecord { given: None, ..record.clone() }
}

/// What became of the split that made `child`: whether it was decided, or `None` if it still may be.
///
/// A bucket that was removed after it moved or joined another one is not asked any more, and the answer is then
/// `Some(false)` for all its children. But it was removed only when they were active: what is `given` has to be
/// confirmed before. An active bucket stays, whatever the answer.
pub(crate) fn outcome(record: &BucketRecord, child: u64) -> Option<bool> {
    let is = |found: &Option<Child>| found.as_ref().is_some_and(|found| found.bucket == child);
    if is(&record.given) {
        Some(true)
    } else if is(&record.splitting) {
        None
    } else {
        Some(false)
    }
}

/// The record of two adjacent buckets as one, which keeps the number of the lower one; `None` if they are not
/// adjacent, or one of them is splitting or being received.
///
/// Its epoch is greater than both, so that it wins over what is known of either.
pub(crate) fn join(low: &BucketRecord, high: &BucketRecord) -> Option<BucketRecord> {
    let is_settled = |record: &BucketRecord| {
        record.incoming.is_none() && record.splitting.is_none() && record.given.is_none()
    };
    let [lower, upper]: [Interval; 2] = [low.range.clone().into(), high.range.clone().into()];
    let is_adjacent = lower.high.as_ref() == Some(&upper.low) && !lower.is_empty() && !upper.is_empty();
    if low.file != high.file || !is_adjacent || !is_settled(low) || !is_settled(high) {
        return None;
    }
    let range = Interval::new(lower.low, upper.high);
    Some(BucketRecord { range: (&range).into(), epoch: low.epoch.max(high.epoch) + 1, ..low.clone() })
}

/// The record of a new bucket; the same again if the request is repeated.
pub(crate) fn prepare(existing: Option<&BucketRecord>, request: &Prepare) -> Result<BucketRecord> {
    let origin = Origin { node: request.from_node.clone(), bucket: request.from_bucket, runs: 0 };
    match existing {
        None => Ok(BucketRecord {
            file: request.file.name.clone(),
            range: request.range.clone(),
            epoch: request.epoch,
            incoming: Some(origin),
            ..BucketRecord::default()
        }),
        Some(record)
            if record.incoming.as_ref().is_some_and(|incoming| {
                (&incoming.node, incoming.bucket) == (&origin.node, origin.bucket)
            }) && record.range == request.range =>
        {
            Ok(record.clone())
        }
        Some(_) => Err(RangeError::Definition("there is another bucket of this number".into())),
    }
}

/// The record of a new bucket after it has received a run; `None` if it has the run already.
pub(crate) fn receive(record: &BucketRecord, number: u64) -> Result<Option<BucketRecord>> {
    let Some(incoming) = &record.incoming else {
        return Err(RangeError::Definition("the bucket is not receiving rows".into()));
    };
    if number <= incoming.runs {
        return Ok(None);
    }
    if number != incoming.runs + 1 {
        return Err(RangeError::Definition(format!("run {number} after run {}", incoming.runs)));
    }
    let incoming = Some(Origin { runs: number, ..incoming.clone() });
    Ok(Some(BucketRecord { incoming, ..record.clone() }))
}

/// The record of a new bucket whose keys are its own; the same again if the request is repeated.
pub(crate) fn activate(record: &BucketRecord) -> BucketRecord {
    BucketRecord { incoming: None, ..record.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Image;
    use crate::request::BucketEntry;

    fn record(low: &[u8], high: Option<&[u8]>, epoch: u64) -> BucketRecord {
        let range = Interval::new(low.to_vec(), high.map(<[u8]>::to_vec));
        BucketRecord { file: "t".into(), range: (&range).into(), epoch, ..BucketRecord::default() }
    }

    fn entry(record: &BucketRecord, bucket: u64) -> BucketEntry {
        BucketEntry { bucket, range: record.range.clone(), epoch: record.epoch, ..BucketEntry::default() }
    }

    #[test]
    fn a_bucket_that_moves_gives_all_its_keys() {
        for (low, high) in [(&b""[..], None), (b"c", Some(&b"f"[..]))] {
            let before = record(low, high, 3);
            let (begun, child) = begin(&before, low.to_vec(), String::new(), 8, "n".into()).unwrap();
            assert_eq!(child.range, before.range);
            assert_eq!(abort(&begun), before);
            let after = commit(&begun).unwrap();
            assert!(Interval::from(after.range.clone()).is_empty());
            assert_eq!((outcome(&after, 8), after.epoch, child.epoch), (Some(true), 4, 4));
            // It can't move again, nor join, with nothing to give.
            assert!(begin(&confirm(&after), low.to_vec(), String::new(), 9, "n".into()).is_err());
            assert_eq!(join(&confirm(&after), &record(low, high, 4)), None);
        }
    }

    #[test]
    fn a_joined_bucket_wins_over_both() {
        let (low, high) = (record(b"", Some(b"c"), 3), record(b"c", Some(b"f"), 7));
        let joined = join(&low, &high).unwrap();
        assert_eq!(
            (Interval::from(joined.range.clone()), joined.epoch),
            (Interval::new(Vec::new(), Some(b"f".to_vec())), 8)
        );
        let entries = [entry(&low, 1), entry(&high, 2), entry(&joined, 1)];
        for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]] {
            let mut image = Image::default();
            assert!(order.iter().all(|&at| image.learn(&entries[at])));
            let owners: Vec<_> =
                image.owners().map(|(range, owner)| (range, owner.bucket, owner.epoch)).collect();
            assert_eq!(owners, [(joined.range.clone().into(), 1, 8)], "{order:?}");
        }
    }

    #[test]
    fn only_settled_neighbours_join() {
        let (low, high) = (record(b"", Some(b"c"), 3), record(b"c", None, 7));
        assert_eq!(join(&high, &low), None);
        assert_eq!(join(&low, &record(b"d", None, 7)), None);
        assert_eq!(join(&low, &BucketRecord { file: "other".into(), ..high.clone() }), None);
        let (splitting, _) = begin(&high, b"e".to_vec(), String::new(), 8, "n".into()).unwrap();
        assert_eq!(join(&low, &splitting), None);
        let given = commit(&splitting).unwrap();
        assert_eq!(join(&low, &given), None);
        assert!(join(&low, &confirm(&given)).is_some());
        let incoming = BucketRecord { incoming: Some(Origin::default()), ..high.clone() };
        assert_eq!(join(&low, &incoming), None);
    }
}
