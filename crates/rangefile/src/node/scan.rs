//! Rows of a bucket, read on threads that may wait for the disk.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use lightship_transport::net::Answer;
use tokio::task::JoinHandle;

use crate::bucket::{Bucket, Merge, View};
use crate::error::{RangeError, Result};
use crate::key::{Interval, Key};
use crate::request::Scan;

/// Rows of a batch.
const BATCH_ROWS: usize = 8192;
/// Batches that are read at a time.
const TOGETHER: usize = 2;

/// The rows of a bucket in an interval, in the order of their keys.
///
/// # Errors
/// [`RangeError::Moved`] if the bucket does not have all these keys.
pub(super) fn scan(bucket: &Arc<Bucket>, request: Scan) -> Result<Answer> {
    let interval: Interval = request.range.into();
    let columns = match request.columns {
        None => None,
        Some(columns) => Some(columns.positions.iter().map(|&column| column as usize).collect::<Vec<_>>()),
    };
    let whole = &bucket.definition.schema;
    if columns.as_ref().is_some_and(|columns| columns.len() > whole.fields().len()) {
        return Err(RangeError::Definition("a scan of more columns than there are".into()));
    }
    let schema = match &columns {
        None => whole.clone(),
        Some(columns) => Arc::new(whole.project(columns)?),
    };
    let limit = request.limit.unwrap_or(u64::MAX);
    let estimate = Some(bucket.view().content().0.min(limit));
    let rows = rows(bucket, interval, schema.clone(), columns, limit)?;
    let rows = rows.map(|rows| rows.map_err(|error| error.to_failure()));
    Ok(Answer::new(schema, estimate, rows.boxed()))
}

fn rows(
    bucket: &Arc<Bucket>,
    interval: Interval,
    schema: SchemaRef,
    columns: Option<Vec<usize>>,
    limit: u64,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let view = bucket.view();
    view.check(&interval)?;
    if interval.is_of_key() && limit > 0 {
        return Ok(row(bucket, view, interval.low, schema, columns));
    }
    let rows_max = BATCH_ROWS.min(usize::try_from(limit).unwrap_or(usize::MAX));
    let merge = Merge::new(bucket.definition.clone(), &view.runs, interval, false, rows_max);
    let reader = Reader { merge, schema, columns, left: limit };
    let batches = stream::unfold(Some(reader.begin()), |reading| async move {
        // If the thread has panicked, its rows are not complete.
        let (reader, batches) = reading?.await.unwrap_or_else(|_| (None, vec![Err(RangeError::Closed)]));
        // The next ones are read while these are sent.
        Some((stream::iter(batches), reader.map(Reader::begin)))
    });
    Ok(batches.flatten().boxed())
}

/// The row with a key, if there is one.
fn row(
    bucket: &Arc<Bucket>,
    view: Arc<View>,
    key: Key,
    schema: SchemaRef,
    columns: Option<Vec<usize>>,
) -> BoxStream<'static, Result<RecordBatch>> {
    let definition = bucket.definition.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let row = view.get(&definition, &key)?;
        row.map(|row| project(&row, &schema, columns.as_deref(), 1)).transpose()
    });
    stream::once(async { reading.await.unwrap_or(Err(RangeError::Closed)).transpose() })
        .filter_map(|row| async { row })
        .boxed()
}

/// Reads the rows of a scan, a few batches at a time: a thread is occupied only while it reads, not while a slow client
/// takes the rows.
struct Reader {
    merge: Merge,
    schema: SchemaRef,
    columns: Option<Vec<usize>>,
    left: u64,
}

/// Batches that are being read, and their reader unless these are the last.
type Reading = JoinHandle<(Option<Reader>, Vec<Result<RecordBatch>>)>;

impl Reader {
    fn begin(self) -> Reading {
        tokio::task::spawn_blocking(move || self.read())
    }

    /// Reads the next batches: more than one, so that the end of a small bucket is found at once.
    fn read(mut self) -> (Option<Self>, Vec<Result<RecordBatch>>) {
        let mut batches = Vec::with_capacity(TOGETHER);
        while batches.len() < TOGETHER && self.left > 0 {
            match self.next() {
                Ok(Some(batch)) => batches.push(Ok(batch)),
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
        let batch = project(&merged.rows, &self.schema, self.columns.as_deref(), self.left)?;
        self.left -= batch.num_rows() as u64;
        Ok(Some(batch))
    }
}

/// The columns of the first rows.
fn project(
    rows: &RecordBatch,
    schema: &Arc<Schema>,
    columns: Option<&[usize]>,
    left: u64,
) -> Result<RecordBatch> {
    let take = rows.num_rows().min(usize::try_from(left).unwrap_or(usize::MAX));
    let rows = rows.slice(0, take);
    let columns = match columns {
        None => rows.columns().to_vec(),
        Some(columns) => columns.iter().map(|&column| rows.column(column).clone()).collect(),
    };
    let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(take));
    Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
}

/// The number of rows of a bucket in an interval. Of a run that is alone there, only the blocks at its ends are read.
///
/// # Errors
/// As [`scan`]; or that they can't be read.
pub(super) async fn count(bucket: &Arc<Bucket>, interval: Interval) -> Result<u64> {
    let view = bucket.view();
    view.check(&interval)?;
    let mut met = view.runs.iter().filter(|run| run.meets(&interval));
    if let (Some(run), None) = (met.next().cloned(), met.next())
        && run.deletions() == 0
    {
        let definition = bucket.definition.clone();
        let counting = tokio::task::spawn_blocking(move || run.count(&definition, &interval));
        return counting.await.map_err(|_| RangeError::Closed)?;
    }
    let mut read = rows(bucket, interval, bucket.definition.schema.clone(), None, u64::MAX)?;
    let mut count = 0;
    while let Some(rows) = read.next().await {
        count += rows?.num_rows() as u64;
    }
    Ok(count)
}
