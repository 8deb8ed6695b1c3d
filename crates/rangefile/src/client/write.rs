//! Writes: rows are sorted, and each bucket gets its own.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use arrow_array::{RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use futures::StreamExt;
use lightship_wire::{Codec, Encoder};
use tokio::time::Instant;

use super::owners::Retry;
use super::{RangeFile, is_retried};
use crate::error::{RangeError, Result};
use crate::image::Owner;
use crate::key::{Interval, after, order};
use crate::network::{ask_one, silent};
use crate::request::{RequestKind, Write, WriteMode, Written};

/// Bytes of a request with rows. A single row may be larger.
const REQUEST_BYTES: u64 = 1 << 20;
/// The largest row in bytes.
const ROW_BYTES_MAX: u64 = 8 << 20;

impl RangeFile {
    /// Writes rows. Returns their number once all are on disk. Rows of one bucket are written together or not at
    /// all, in requests of about 1 MiB; with an error, those of others may be written.
    ///
    /// A request whose answer is lost is repeated. What others have written to its keys in between is then replaced,
    /// and a row that they have removed is there again.
    ///
    /// Of rows with equal keys, [`WriteMode::Upsert`] keeps the last; [`WriteMode::Insert`] refuses them.
    ///
    /// # Errors
    /// [`RangeError::KeyExists`]; [`RangeError::Missing`] if a bucket does not answer in time: then its rows may
    /// or may not be written, or be written later, when its node goes on; or that the rows don't fit the file.
    pub async fn write(&self, mode: WriteMode, rows: &RecordBatch) -> Result<u64> {
        let definition = self.definition();
        let schema = if mode == WriteMode::Delete { definition.loose() } else { &definition.schema };
        let rows = RecordBatch::try_new(schema.clone(), rows.columns().to_vec())?;
        let keys = definition.format().keys(&rows)?;
        let mut sorted = order(&keys);
        let is_same = |a: u32, b: u32| keys.row(a as usize) == keys.row(b as usize);
        if mode == WriteMode::Insert
            && let Some(pair) = sorted.windows(2).find(|pair| is_same(pair[0], pair[1]))
        {
            let key = definition.format().display(keys.row(pair[0] as usize).data());
            return Err(RangeError::KeyExists { key });
        }
        // Of equal keys, the last.
        let mut kept: Vec<u32> = Vec::with_capacity(sorted.len());
        for row in sorted.drain(..) {
            match kept.last_mut() {
                Some(last) if is_same(*last, row) => *last = row,
                _ => kept.push(row),
            }
        }
        let is_sorted = kept.len() == rows.num_rows() && kept.windows(2).all(|pair| pair[0] < pair[1]);
        let sorted =
            if is_sorted { rows } else { take_record_batch(&rows, &UInt32Array::from(kept.clone()))? };
        let keys: Vec<&[u8]> = kept.iter().map(|&row| keys.row(row as usize).data()).collect();
        // The parts of each bucket, cut to the size of a request.
        let mut parts = Vec::new();
        let all = keys
            .first()
            .zip(keys.last())
            .map(|(first, last)| Interval::new(first.to_vec(), Some(after(last))));
        let pieces = all.map(|all| self.locked_image().route(&all)).unwrap_or_default();
        for (piece, _) in pieces {
            let start = keys.partition_point(|key| **key < *piece.low);
            let end =
                piece.high.as_ref().map_or(keys.len(), |high| keys.partition_point(|key| **key < **high));
            parts.extend((start < end).then_some((start, end)));
        }
        let mut requests = Vec::new();
        for (start, end) in parts {
            let part = sorted.slice(start, end - start);
            let bytes = lightship_wire::rows_bytes(&part).max(1);
            let rows_max = (REQUEST_BYTES.saturating_mul(part.num_rows() as u64) / bytes).max(1) as usize;
            requests.extend((start..end).step_by(rows_max).map(|at| (at, end.min(at + rows_max))));
        }
        let lost = Mutex::default();
        let written = requests.into_iter().map(|(start, end)| {
            let (keys, rows, lost) = (&keys[start..end], sorted.slice(start, end - start), &lost);
            async move { self.write_sorted(mode, keys, rows, lost).await }
        });
        let mut written =
            futures::stream::iter(written).buffer_unordered(self.shared.options.connections_max);
        let mut total = 0;
        let mut failed = None;
        while let Some(done) = written.next().await {
            match done {
                Ok(rows) => total += rows,
                // The others go on, so that what is written does not depend on which one failed first.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(total), Err)
    }

    /// Writes rows that are sorted, as the image says now; again until it is right. Nodes that are `lost` have not answered
    /// other requests in time.
    async fn write_sorted(
        &self,
        mode: WriteMode,
        keys: &[&[u8]],
        rows: RecordBatch,
        lost: &Mutex<BTreeSet<String>>,
    ) -> Result<u64> {
        let mut mode = mode;
        let mut retry = Retry::new(self);
        let (mut start, mut total) = (0, 0);
        while start < keys.len() {
            let rest = Interval::new(keys[start].to_vec(), Some(after(keys[keys.len() - 1])));
            let piece = self.locked_image().pieces(&rest).next();
            let (interval, asked, failed) = match piece {
                Some((piece, Some(owner))) => {
                    let end = start + keys[start..].partition_point(|key| piece.contains(key));
                    let interval = Interval::new(rest.low, Some(after(keys[end - 1])));
                    if lost.lock().unwrap_or_else(PoisonError::into_inner).contains(&owner.node) {
                        return Err(self.missing(&interval, &silent(&owner.node)));
                    }
                    let part = rows.slice(start, end - start);
                    let sent = self.send(&owner, mode, &interval, &part);
                    let answer = self.answered(&interval, &owner, Some(retry.deadline()), sent).await;
                    match answer {
                        Some(Ok(written)) => {
                            (start, total) = (end, total + written);
                            retry.progress();
                            continue;
                        }
                        Some(Err(error)) if is_retried(&error) => (interval, Some(owner), error),
                        Some(Err(error)) => return Err(error),
                        None => {
                            if Instant::now() >= retry.deadline() {
                                lost.lock()
                                    .unwrap_or_else(PoisonError::into_inner)
                                    .insert(owner.node.clone());
                            }
                            let failed = silent(&owner.node);
                            (interval, Some(owner), failed)
                        }
                    }
                }
                _ => (Interval::of_key(keys[start]), None, RangeError::Moved),
            };
            if mode == WriteMode::Insert && !failed.is_refusal() {
                // The rows may have been written before the connection was lost.
                mode = WriteMode::InsertAgain;
            }
            retry.again(&interval, asked.as_ref(), &failed).await?;
        }
        Ok(total)
    }

    async fn send(
        &self,
        owner: &Owner,
        mode: WriteMode,
        interval: &Interval,
        rows: &RecordBatch,
    ) -> Result<u64> {
        let bytes = lightship_wire::rows_bytes(rows);
        if rows.num_rows() == 1 && bytes > ROW_BYTES_MAX {
            return Err(RangeError::Definition(format!(
                "a row has {bytes} bytes, at most {ROW_BYTES_MAX} are allowed"
            )));
        }
        let message = Encoder::new(Codec::None).encode(rows)?;
        let write = Write {
            file: self.definition().name.clone(),
            bucket: owner.bucket,
            mode: mode.into(),
            rows: message.to_vec(),
            adjust: Some(interval.into()),
        };
        let kind = RequestKind::Write(write);
        Ok(ask_one::<Written>(&self.shared.network, &owner.node, kind).await?.rows)
    }
}
