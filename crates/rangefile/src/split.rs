//! A split, as changes of what the two buckets store. Nothing here does I/O: the node stores each result before it
//! acts on it, and after a restart goes on from what is stored.
//!
//! The bucket that splits decides. It stores that it has begun, has the new bucket prepared, sends it the rows
//! above the median while writes go on, holds writes back for the last of them, and then stores its smaller range:
//! that is the moment at which the keys change their owner. Until then the new bucket serves nobody, and a
//! restart of the old one abandons the split; from then on the new one is activated, however often that has to
//! be tried.

use crate::error::{RangeError, Result};
use crate::key::{Interval, Key};
use crate::request::{BucketRecord, Child, Origin, Prepare};

/// Begins a split at `median`.
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
    if median <= range.low || !range.contains(&median) {
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
    let mut committed =
        BucketRecord { range: (&lower).into(), epoch: child.epoch, splitting: None, ..record.clone() };
    committed.children.push(child.bucket);
    committed.given = Some(child);
    Ok(committed)
}

/// The new bucket is active.
pub(crate) fn confirm(record: &BucketRecord) -> BucketRecord {
    BucketRecord { given: None, ..record.clone() }
}

/// What became of the split that made `child`: whether it was decided, or `None` if it still may be.
pub(crate) fn outcome(record: &BucketRecord, child: u64) -> Option<bool> {
    if record.children.contains(&child) {
        return Some(true);
    }
    match &record.splitting {
        Some(splitting) if splitting.bucket == child => None,
        _ => Some(false),
    }
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
