//! Answers about many buckets at once: this node's own, and what other nodes answer for theirs.
//!
//! What a request can cost is bounded, whoever sends it: it goes to members of the cluster only, to each at most once on
//! each level, and there are few levels; a part is handed on to one node; and it ends with its time, or when the sender
//! drops the answer. A node answers few of them at a time and refuses others, whose parts are then asked for without a
//! tree: requests that waited for each other's turns could wait for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use lightship_transport::net::{Answer, blobs};
use lightship_wire::control::{ErrorCode, Failure};
use lightship_wire::{Codec, Encoder, rows_bytes};
use prost::Message;
use tokio::sync::OwnedSemaphorePermit;

use super::adjust::keep;
use super::{File, Node, scan};
use crate::bucket::Bucket;
use crate::error::Result;
use crate::group::{Group, GroupPart, Grouped, Wanted, ask_nodes};

/// Requests that a node answers at a time.
pub(super) const GROUPS_MAX: usize = 16;
/// Threads of a request that read at a time.
const READERS: usize = 4;
/// Parts whose rows are read by a thread at once, and are one message.
const PARTS_TOGETHER: usize = 32;
/// Bytes of what a node says of buckets that have changed.
const CHANGED_BYTES_MAX: usize = 32 << 10;

impl Node {
    /// Answers for parts of this node, and of others.
    pub(super) fn group(&self, group: Group) -> Result<Answer> {
        let busy = |_| Failure::new(ErrorCode::Busy, "the node answers too many requests for many buckets");
        let permit = self.shared.groups.clone().try_acquire_owned().map_err(busy)?;
        let (mut nodes, wanted) = group.decode_parts()?;
        let file = self.file(&wanted.file)?;
        let projection = match &wanted.rows {
            None => None,
            Some(rows) => Some(scan::projection(&file.definition, rows.columns.clone())?),
        };
        let own = nodes.remove(&self.shared.name).unwrap_or_default();
        let members = self.others();
        nodes.retain(|node, _| members.contains(node));
        let all = own.len() + nodes.values().map(Vec::len).sum::<usize>();
        let (mut below, mut here) = (wanted.clone(), wanted);
        if let (Some(below), Some(here)) = (&mut below.rows, &mut here.rows) {
            let share = here.bytes_max.saturating_mul(own.len() as u64) / all.max(1) as u64;
            (below.bytes_max, here.bytes_max) = (below.bytes_max - share, share);
        }
        let wait = here.wait;
        let others = ask_nodes(&self.shared.network, nodes, below.fan_out, &below);
        let own = self.own(&file, own, here, projection);
        let answered = stream::select(own, others).take_until(tokio::time::sleep(wait)).boxed();
        let combining = Combining {
            answered,
            counted: Grouped::default(),
            changed_bytes_left: CHANGED_BYTES_MAX,
            _permit: permit,
        };
        let messages = stream::unfold(Some(combining), |combining| async move {
            let mut combining = combining?;
            match combining.next().await {
                Some(message) => Some((Ok(message.encode_to_vec()), Some(combining))),
                None => (combining.counted != Grouped::default())
                    .then(|| (Ok(combining.counted.encode_to_vec()), None)),
            }
        });
        Ok(blobs(messages))
    }

    /// What this node's own buckets answer.
    fn own(
        &self,
        file: &Arc<File>,
        parts: Vec<GroupPart>,
        wanted: Wanted,
        projection: Option<scan::Projection>,
    ) -> BoxStream<'static, Grouped> {
        let mut known = Grouped::default();
        let mut read = Vec::new();
        let mut changed_bytes_left = CHANGED_BYTES_MAX;
        for part in parts {
            let bucket = file.bucket(part.bucket);
            let is_here = bucket.as_ref().is_some_and(|bucket| bucket.view().check(&part.interval).is_ok());
            let is_known = bucket.as_ref().is_some_and(|bucket| bucket.view().epoch == part.epoch);
            if (!is_here || !is_known) && changed_bytes_left > 0 {
                self.tell_changed(
                    file,
                    part.bucket,
                    &part.interval,
                    &mut changed_bytes_left,
                    &mut known.changed,
                );
            }
            let Some(bucket) = bucket.filter(|_| is_here) else { continue };
            match &projection {
                None if let Some(rows) = scan::count_known(&bucket, &part.interval) => {
                    bucket.load.read();
                    known.count = known.count.saturating_add(rows);
                    known.covered.push(part.number);
                }
                _ => read.push((bucket, part)),
            }
        }
        // Counting reads whole blocks, so each part is worth a thread's turn.
        let together = if projection.is_some() { PARTS_TOGETHER } else { 1 };
        let mut jobs = Vec::with_capacity(read.len().div_ceil(together));
        while !read.is_empty() {
            jobs.push(read.split_off(read.len().saturating_sub(together)));
        }
        let bytes_left = Arc::new(AtomicU64::new(wanted.rows.as_ref().map_or(0, |rows| rows.bytes_max)));
        let limit = wanted.rows.and_then(|rows| rows.limit);
        let reading = stream::iter(jobs).map(move |parts| {
            let (projection, bytes_left) = (projection.clone(), bytes_left.clone());
            let reading = tokio::task::spawn_blocking(move || match projection {
                None => Ok(count(&parts)),
                Some(projection) => rows(&parts, &projection, limit, &bytes_left),
            });
            reading.map(|read| match read {
                Ok(Ok(grouped)) => grouped,
                Ok(Err(error)) => {
                    tracing::debug!(%error, "parts of a request can't be read");
                    Grouped::default()
                }
                Err(_) => Grouped::default(),
            })
        });
        stream::iter([known]).chain(reading.buffer_unordered(READERS)).boxed()
    }
}

/// Adds up what is counted, and passes rows on.
struct Combining {
    answered: BoxStream<'static, Grouped>,
    counted: Grouped,
    changed_bytes_left: usize,
    _permit: OwnedSemaphorePermit,
}

impl Combining {
    /// The next message with rows.
    async fn next(&mut self) -> Option<Grouped> {
        while let Some(mut grouped) = self.answered.next().await {
            let changed = std::mem::take(&mut grouped.changed);
            keep(&mut self.changed_bytes_left, changed, &mut self.counted.changed);
            if grouped.rows.is_some() {
                return Some(grouped);
            }
            self.counted.add(grouped);
        }
        None
    }
}

/// The rows of some parts. Those that have changed or can't be read are not covered.
fn count(parts: &[(Arc<Bucket>, GroupPart)]) -> Grouped {
    let mut grouped = Grouped::default();
    for (bucket, part) in parts {
        if let Ok(rows) = scan::count_rows(bucket, &part.interval) {
            bucket.load.read();
            grouped.count = grouped.count.saturating_add(rows);
            grouped.covered.push(part.number);
        }
    }
    grouped
}

/// The rows of some parts. Those that have changed, can't be read, or for which there is no room, are not covered.
fn rows(
    parts: &[(Arc<Bucket>, GroupPart)],
    projection: &scan::Projection,
    limit: Option<u64>,
    bytes_left: &AtomicU64,
) -> Result<Grouped> {
    let mut grouped = Grouped::default();
    let mut all: Vec<RecordBatch> = Vec::new();
    for (bucket, part) in parts {
        let bytes_max = bytes_left.load(Ordering::Relaxed);
        let read = scan::rows_within(bucket, &part.interval, projection, limit, bytes_max);
        let Ok(Some(batches)) = read else { continue };
        let bytes: u64 = batches.iter().map(rows_bytes).sum();
        let left = |left: u64| left.checked_sub(bytes);
        if bytes_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_err() {
            continue;
        }
        let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        bucket.load.read();
        bucket.load.read_rows(rows as usize);
        for batch in batches {
            // Copied: a few rows would keep their whole block in memory.
            let positions = UInt32Array::from_iter_values(0..batch.num_rows() as u32);
            all.push(take_record_batch(&batch, &positions)?);
        }
        grouped.count += rows;
        grouped.counts.push(rows);
        grouped.covered.push(part.number);
    }
    grouped.rows = Some(message(projection.schema(), &all)?);
    Ok(grouped)
}

fn message(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Vec<u8>> {
    Ok(Encoder::new(Codec::None).encode(&concat_batches(schema, batches)?)?.to_vec())
}
