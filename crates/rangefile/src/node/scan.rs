//! Rows of a bucket, read on threads that may wait for the disk.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::SchemaRef;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use lightship_transport::net::Answer;
use lightship_wire::rows_bytes;
use tokio::task::JoinHandle;

use crate::bucket::{Bucket, Merge, Run, View};
use crate::definition::Definition;
use crate::error::{RangeError, Result};
use crate::key::{Interval, Key};
use crate::request::{Columns, Scan};

/// Rows of a batch.
const BATCH_ROWS: usize = 8192;
/// What is read at a time, until it has so many bytes as Arrow data or so many batches: about a message.
const BYTES_TOGETHER: u64 = 1 << 20;
const BATCHES_TOGETHER: usize = 8;

/// The columns of an answer.
#[derive(Debug, Clone)]
pub(super) struct Projection {
    schema: SchemaRef,
    /// Their positions; all if it is `None`.
    columns: Option<Vec<usize>>,
}

/// The columns at these positions; all without positions.
///
/// # Errors
/// If there is no such column, or there are more than the file has.
pub(super) fn projection(definition: &Definition, columns: Option<Columns>) -> Result<Projection> {
    let whole = &definition.schema;
    let Some(columns) = columns else { return Ok(Projection { schema: whole.clone(), columns: None }) };
    if columns.positions.len() > whole.fields().len() {
        return Err(RangeError::Definition("a scan of more columns than there are".into()));
    }
    let columns: Vec<usize> = columns.positions.iter().map(|&column| column as usize).collect();
    Ok(Projection { schema: Arc::new(whole.project(&columns)?), columns: Some(columns) })
}

impl Projection {
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The columns of the first rows.
    fn project(&self, rows: &RecordBatch, rows_max: u64) -> Result<RecordBatch> {
        let take = rows.num_rows().min(usize::try_from(rows_max).unwrap_or(usize::MAX));
        let rows = rows.slice(0, take);
        let columns = match &self.columns {
            None => rows.columns().to_vec(),
            Some(columns) => columns.iter().map(|&column| rows.column(column).clone()).collect(),
        };
        let options = RecordBatchOptions::new().with_row_count(Some(take));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }
}

/// The rows of a bucket in an interval, in the order of their keys.
///
/// # Errors
/// [`RangeError::Moved`] if the bucket does not have all these keys.
pub(super) async fn scan(bucket: &Arc<Bucket>, request: Scan) -> Result<Answer> {
    let interval: Interval = request.range.into();
    let projection = projection(&bucket.definition, request.columns)?;
    let schema = projection.schema.clone();
    let limit = request.limit.unwrap_or(u64::MAX);
    let view = bucket.view();
    view.check(&interval)?;
    bucket.load.read();
    let estimate = Some(view.content().0.min(limit));
    let rows = if interval.is_of_key() && limit > 0 {
        let row = row(bucket, view, interval.low, projection).await?;
        stream::iter(row.map(Ok)).boxed()
    } else {
        let merge = merge(bucket, &view, interval, limit);
        let reader = Reader { bucket: bucket.clone(), merge, projection, left: limit };
        reader.rows()
    };
    let bucket = bucket.clone();
    let rows = rows.map(move |rows| {
        let rows = rows.map_err(|error| error.to_failure())?;
        bucket.load.read_rows(rows.num_rows());
        Ok(rows)
    });
    Ok(Answer::new(schema, estimate, rows.boxed()))
}

/// The row of a bucket with the greatest key in an interval, if there is one.
///
/// # Errors
/// As [`scan`].
pub(super) async fn last(bucket: &Arc<Bucket>, request: Scan) -> Result<Answer> {
    let interval: Interval = request.range.into();
    let projection = projection(&bucket.definition, request.columns)?;
    let view = bucket.view();
    view.check(&interval)?;
    bucket.load.read();
    let (reader, schema) = (bucket.clone(), projection.schema.clone());
    let reading = tokio::task::spawn_blocking(move || last_row(&reader, &view, interval));
    let row = reading.await.map_err(|_| RangeError::Closed)??;
    bucket.load.read_rows(usize::from(row.is_some()));
    let row = row.map(|row| projection.project(&row, 1)).transpose()?;
    Ok(Answer::new(schema, Some(u64::from(row.is_some())), stream::iter(row.map(Ok)).boxed()))
}

/// Reads the last blocks first: those before only if their rows are deleted. Blocks the thread.
fn last_row(bucket: &Bucket, view: &View, mut rest: Interval) -> Result<Option<RecordBatch>> {
    loop {
        let met = view.runs.iter().filter(|run| run.meets(&rest));
        let last_block = |run: &Arc<Run>| {
            let block = run.blocks_of(&rest).next_back()?;
            Some(run.block_bounds(block).0.low)
        };
        let Some(low) = met.filter_map(last_block).max() else { return Ok(None) };
        let part = Interval::new(low.max(rest.low.clone()), rest.high.clone());
        let mut merge = merge(bucket, view, part.clone(), u64::MAX);
        let mut last = None;
        while let Some(merged) = merge.next()? {
            last = Some(merged.rows);
        }
        if let Some(rows) = last {
            return Ok(Some(rows.slice(rows.num_rows() - 1, 1)));
        }
        if part.low == rest.low {
            return Ok(None);
        }
        rest.high = Some(part.low);
    }
}

fn merge(bucket: &Bucket, view: &View, interval: Interval, limit: u64) -> Merge {
    let rows_max = BATCH_ROWS.min(usize::try_from(limit).unwrap_or(usize::MAX));
    Merge::new(bucket.definition.clone(), &view.runs, interval, false, rows_max)
}

/// The rows of a bucket in an interval, if they have at most `bytes_max` as Arrow data. Blocks the thread.
///
/// # Errors
/// As [`scan`]; or that they can't be read.
pub(super) fn rows_within(
    bucket: &Bucket,
    interval: &Interval,
    projection: &Projection,
    limit: Option<u64>,
    bytes_max: u64,
) -> Result<Option<Vec<RecordBatch>>> {
    let view = bucket.view();
    view.check(interval)?;
    if interval.is_of_key() && limit != Some(0) {
        let row = view.get(&bucket.definition, &interval.low)?;
        let row = row.map(|row| projection.project(&row, 1)).transpose()?;
        return Ok(Some(row.into_iter().collect()));
    }
    // Not even begun if they are clearly too many.
    if limit.is_none() && projection.columns.is_none() && view.bytes_at_least(interval) > bytes_max {
        return Ok(None);
    }
    let mut left = limit.unwrap_or(u64::MAX);
    let mut merge = merge(bucket, &view, interval.clone(), left);
    let (mut batches, mut bytes) = (Vec::new(), 0);
    while left > 0
        && let Some(merged) = merge.next()?
    {
        let batch = projection.project(&merged.rows, left)?;
        left -= batch.num_rows() as u64;
        bytes += rows_bytes(&batch);
        if bytes > bytes_max {
            return Ok(None);
        }
        batches.push(batch);
    }
    Ok(Some(batches))
}

/// The row with a key, if there is one.
async fn row(
    bucket: &Arc<Bucket>,
    view: Arc<View>,
    key: Key,
    projection: Projection,
) -> Result<Option<RecordBatch>> {
    let found = match view.get_kept(&bucket.definition, &key) {
        Some(found) => found?,
        None => {
            let definition = bucket.definition.clone();
            let reading = tokio::task::spawn_blocking(move || view.get(&definition, &key));
            reading.await.map_err(|_| RangeError::Closed)??
        }
    };
    found.map(|row| projection.project(&row, 1)).transpose()
}

/// Reads the rows of a scan, a few batches at a time: a thread is occupied only while it reads, not while a slow client
/// takes the rows.
struct Reader {
    bucket: Arc<Bucket>,
    merge: Merge,
    projection: Projection,
    left: u64,
}

/// Batches that are being read, and their reader unless these are the last.
type Reading = JoinHandle<(Option<Reader>, Vec<Result<RecordBatch>>)>;

impl Reader {
    fn rows(self) -> BoxStream<'static, Result<RecordBatch>> {
        let batches = stream::unfold(Some(self.begin()), |reading| async move {
            // If the thread has panicked, its rows are not complete.
            let (reader, batches) = reading?.await.unwrap_or_else(|_| (None, vec![Err(RangeError::Closed)]));
            // The next ones are read while these are sent.
            Some((stream::iter(batches), reader.map(Self::begin)))
        });
        batches.flatten().boxed()
    }

    fn begin(self) -> Reading {
        tokio::task::spawn_blocking(move || self.read())
    }

    /// Reads the next batches: more than one, so that the end of a small bucket is found at once.
    fn read(mut self) -> (Option<Self>, Vec<Result<RecordBatch>>) {
        let (mut batches, mut bytes) = (Vec::new(), 0);
        while bytes < BYTES_TOGETHER && batches.len() < BATCHES_TOGETHER && self.left > 0 {
            match self.next() {
                Ok(Some(batch)) => {
                    bytes += rows_bytes(&batch);
                    batches.push(Ok(batch));
                }
                Ok(None) => return (None, batches),
                Err(error) => {
                    batches.push(Err(error));
                    return (None, batches);
                }
            }
        }
        ((self.left > 0).then_some(self), batches)
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let Some(merged) = self.merge.next()? else { return Ok(None) };
        self.bucket.load.copied_rows(self.merge.take_copied());
        let batch = self.projection.project(&merged.rows, self.left)?;
        self.left -= batch.num_rows() as u64;
        Ok(Some(batch))
    }
}

/// The number of rows of a bucket in an interval. Blocks that runs share, or that have an end of the interval, are read.
///
/// # Errors
/// As [`scan`]; or that they can't be read.
pub(super) async fn count(bucket: &Arc<Bucket>, interval: Interval) -> Result<u64> {
    bucket.view().check(&interval)?;
    bucket.load.read();
    if let Some(rows) = count_known(bucket, &interval) {
        return Ok(rows);
    }
    let bucket = bucket.clone();
    let counting = tokio::task::spawn_blocking(move || count_rows(&bucket, &interval));
    counting.await.map_err(|_| RangeError::Closed)?
}

/// The number of rows of a bucket in an interval, if it is known without reading them. The bucket may have other keys by
/// now.
pub(super) fn count_known(bucket: &Bucket, interval: &Interval) -> Option<u64> {
    let view = bucket.view();
    view.check(interval).ok()?;
    if *interval == view.range
        && let Some(rows) = view.rows.get()
    {
        return Some(*rows);
    }
    let mut met = view.runs.iter().filter(|run| run.meets(interval));
    match (met.next(), met.next()) {
        (None, _) => Some(0),
        (Some(run), None) if run.deletions() == 0 => run.count_known(interval),
        _ => None,
    }
}

/// The number of rows of a bucket in an interval. Blocks the thread.
///
/// # Errors
/// As [`scan`]; or that they can't be read.
pub(super) fn count_rows(bucket: &Bucket, interval: &Interval) -> Result<u64> {
    let view = bucket.view();
    view.check(interval)?;
    let mut met = view.runs.iter().filter(|run| run.meets(interval));
    let rows = match (met.next(), met.next()) {
        (Some(run), None) if run.deletions() == 0 => run.count(&bucket.definition, interval)?,
        _ => merge(bucket, &view, interval.clone(), u64::MAX).count()?,
    };
    if *interval == view.range {
        // Until the bucket changes, it is not counted again.
        let _ = view.rows.set(rows);
    }
    Ok(rows)
}
