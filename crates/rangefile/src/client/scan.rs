//! Scans: the rows of an interval, from all buckets that it meets.
//!
//! The interval is divided among the buckets as the image has it. A bucket that does not have all keys of its part
//! refuses it, and the part is divided again; so each key is read from exactly one bucket, and the scan is complete
//! when every part is.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{RangeFile, Retry, is_retried};
use crate::error::{RangeError, Result};
use crate::key::{Interval, after};
use crate::network::{Reply, body};
use crate::request::RequestKind;

/// Batches of a bucket that wait to be taken.
const WAITING_BATCHES: usize = 2;

/// The order of a scan's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// In the order of their keys.
    #[default]
    Key,
    /// As they come; within a bucket, in the order of their keys.
    Any,
}

/// What a scan reads.
#[derive(Debug, Clone, Default)]
pub struct ScanOptions {
    /// The order of the rows.
    pub order: Order,
    /// Most rows. With [`Order::Key`], these are the first ones: the first bucket is read alone until it is clear
    /// that it does not suffice.
    pub limit: Option<u64>,
    /// Names of the columns; all if it is `None`.
    pub columns: Option<Vec<String>>,
}

/// The rows of a scan. Dropping it cancels the scan.
pub struct Scanned {
    /// Its columns.
    pub schema: SchemaRef,
    /// Its rows. After an error there are none.
    pub rows: BoxStream<'static, Result<RecordBatch>>,
}

impl RangeFile {
    /// The rows with keys in an interval. Each bucket is read as it was at one moment during the scan, which need
    /// not be the same for all.
    ///
    /// The stream fails with [`RangeError::Missing`] if a part of the interval does not answer in time.
    ///
    /// # Errors
    /// If there is no such column.
    pub fn scan(&self, interval: Interval, options: &ScanOptions) -> Result<Scanned> {
        self.scan_all(&[interval], options)
    }

    /// As [`RangeFile::scan`], of several intervals, which are in order and don't meet.
    ///
    /// # Errors
    /// As [`RangeFile::scan`].
    pub fn scan_all(&self, intervals: &[Interval], options: &ScanOptions) -> Result<Scanned> {
        let whole = &self.definition().schema;
        let columns = match &options.columns {
            None => None,
            Some(names) => {
                Some(names.iter().map(|name| whole.index_of(name)).collect::<Result<Vec<_>, _>>()?)
            }
        };
        let schema = match &columns {
            None => whole.clone(),
            Some(columns) => Arc::new(whole.project(columns)?),
        };
        let scan = Scan {
            file: self.clone(),
            // The key is read too: a scan that is interrupted goes on after the last row.
            columns: columns.as_ref().map(|columns| {
                let key = self.definition().format().columns().iter().filter(|key| !columns.contains(key));
                columns.iter().chain(key).map(|&column| column as u32).collect()
            }),
            schema: schema.clone(),
            order: options.order,
            at_once: self.shared.options.requests_max.max(1),
        };
        let rows = scan.run(intervals, options.limit);
        Ok(Scanned { schema, rows })
    }
}

/// A scan.
#[derive(Clone)]
struct Scan {
    file: RangeFile,
    columns: Option<Vec<u32>>,
    schema: SchemaRef,
    order: Order,
    at_once: usize,
}

/// A part of a scan: the rows of an interval, from a task.
struct Part {
    rows: mpsc::Receiver<Result<RecordBatch>>,
}

struct Running {
    scan: Scan,
    /// What has not begun.
    rest: VecDeque<Interval>,
    parts: VecDeque<Part>,
    /// Ended with this, if the scan is dropped.
    tasks: JoinSet<()>,
    left: Option<u64>,
    at_once: usize,
    has_failed: bool,
}

impl Scan {
    fn run(self, intervals: &[Interval], limit: Option<u64>) -> BoxStream<'static, Result<RecordBatch>> {
        let image = self.file.locked_image();
        let pieces = intervals.iter().flat_map(|interval| image.route(interval));
        let rest = pieces.map(|(piece, _)| piece).collect();
        drop(image);
        // With a limit, the next bucket is asked when the ones before have ended, and then twice as many.
        let at_once = if limit.is_some() && self.order == Order::Key { 1 } else { self.at_once };
        let running = Running {
            scan: self,
            rest,
            parts: VecDeque::new(),
            tasks: JoinSet::new(),
            left: limit,
            at_once,
            has_failed: false,
        };
        futures::stream::unfold(running, |mut running| async move {
            let rows = running.next().await?;
            running.has_failed = rows.is_err();
            Some((rows, running))
        })
        .boxed()
    }

    /// Reads an interval, however many buckets it is divided among, and goes on where a bucket was lost.
    async fn read(
        &self,
        mut interval: Interval,
        limit: Option<u64>,
        rows: &mpsc::Sender<Result<RecordBatch>>,
    ) -> Result<()> {
        let mut left = limit;
        let mut retry = Retry::new(&self.file);
        while !interval.is_empty() && left != Some(0) {
            let piece = self.file.locked_image().route(&interval).into_iter().next();
            let Some((piece, owner)) = piece else { break };
            let failed = match owner {
                None => RangeError::Moved,
                Some(owner) => {
                    let request = self.file.scan_request(&owner, &piece, left, self.columns.as_ref());
                    let request = body(RequestKind::Scan(request));
                    let opened = self.file.shared.network.request(&owner.node, request).await;
                    let ended = match opened {
                        Ok(reply) => self.forward(reply, &mut interval, &mut left, &mut retry, rows).await,
                        Err(error) => Err(error),
                    };
                    match ended {
                        Ok(()) => match piece.high {
                            Some(high) => {
                                interval.low = high;
                                retry.progress();
                                continue;
                            }
                            None => break,
                        },
                        Err(error) if is_retried(&error) => error,
                        Err(error) => return Err(error),
                    }
                }
            };
            retry.again(&interval, failed).await?;
        }
        Ok(())
    }

    /// Forwards the rows of a bucket. `interval` then begins after the last one.
    async fn forward(
        &self,
        mut reply: Reply,
        interval: &mut Interval,
        left: &mut Option<u64>,
        retry: &mut Retry<'_>,
        rows: &mpsc::Sender<Result<RecordBatch>>,
    ) -> Result<()> {
        while let Some(batch) = reply.rows.try_next().await? {
            let Some(last) = batch.num_rows().checked_sub(1) else { continue };
            interval.low = after(&self.key(&batch.slice(last, 1))?);
            *left = left.map(|left| left.saturating_sub(batch.num_rows() as u64));
            let columns = batch.columns()[..self.schema.fields().len()].to_vec();
            let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            let batch = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?;
            if rows.send(Ok(batch)).await.is_err() {
                return Err(RangeError::Closed);
            }
            retry.progress();
        }
        Ok(())
    }

    /// The key of a row as it was read.
    fn key(&self, row: &RecordBatch) -> Result<Vec<u8>> {
        let format = self.file.definition().format();
        let values = format.columns().iter().map(|&key| {
            let position = match &self.columns {
                None => Some(key),
                Some(columns) => columns.iter().position(|&column| column as usize == key),
            };
            position.and_then(|position| row.columns().get(position)).cloned()
        });
        let values: Option<Vec<_>> = values.collect();
        let missing = || RangeError::Definition("the answer of a bucket lacks columns of the key".into());
        format.key(&values.ok_or_else(missing)?)
    }
}

impl Running {
    async fn next(&mut self) -> Option<Result<RecordBatch>> {
        while !self.has_failed && self.left != Some(0) {
            while self.parts.len() < self.at_once
                && let Some(interval) = self.rest.pop_front()
            {
                self.begin(interval);
            }
            let rows = match self.scan.order {
                Order::Key => self.parts.front_mut()?.rows.recv().await,
                Order::Any => self.any().await?,
            };
            match rows {
                Some(Ok(batch)) => return Some(Ok(self.limited(batch))),
                Some(Err(error)) => return Some(Err(error)),
                None => {
                    if self.scan.order == Order::Key {
                        self.parts.pop_front();
                    }
                    // More at once, as the first ones did not suffice.
                    self.at_once = (self.at_once * 2).min(self.scan.at_once);
                }
            }
        }
        None
    }

    fn begin(&mut self, interval: Interval) {
        let (rows, received) = mpsc::channel(WAITING_BATCHES);
        let (scan, left) = (self.scan.clone(), self.left);
        self.tasks.spawn(async move {
            if let Err(error) = scan.read(interval, left, &rows).await {
                let _ = rows.send(Err(error)).await;
            }
        });
        self.parts.push_back(Part { rows: received });
    }

    /// The next rows of whichever part has some; `Some(None)` if one has ended, `None` if there are no parts.
    async fn any(&mut self) -> Option<Option<Result<RecordBatch>>> {
        if self.parts.is_empty() {
            return None;
        }
        let (index, rows) = futures::future::poll_fn(|context| {
            for (index, part) in self.parts.iter_mut().enumerate() {
                if let std::task::Poll::Ready(rows) = part.rows.poll_recv(context) {
                    return std::task::Poll::Ready((index, rows));
                }
            }
            std::task::Poll::Pending
        })
        .await;
        let part = self.parts.remove(index)?;
        if rows.is_some() {
            // The others are next.
            self.parts.push_back(part);
        }
        Some(rows)
    }

    fn limited(&mut self, batch: RecordBatch) -> RecordBatch {
        let Some(left) = &mut self.left else { return batch };
        let take = batch.num_rows().min(usize::try_from(*left).unwrap_or(usize::MAX));
        *left -= take as u64;
        batch.slice(0, take)
    }
}
