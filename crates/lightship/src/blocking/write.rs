//! Copies, and batches of the caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::{RecordBatch, RecordBatchReader};
use tokio::sync::mpsc;

use super::{Check, cancelled, spawn, wait};
use crate::{
    Error, ErrorKind, Location, Observer, Options, Report, Result, Statement, Target, Writer, Written,
    copy as copy_async,
};

/// How far a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Rows that have arrived.
    pub rows: u64,
    /// Their bytes as Arrow buffers.
    pub bytes: u64,
    /// The estimated number of all rows, if every source has an estimate.
    pub rows_estimate: Option<u64>,
}

/// The counters of a copy; no estimate is [`u64::MAX`].
struct Counters {
    rows: AtomicU64,
    bytes: AtomicU64,
    rows_estimate: AtomicU64,
}

struct Counting(Arc<Counters>);

impl Observer for Counting {
    fn began(&mut self, rows_estimate: Option<u64>, _open_numbers: &[&str]) {
        self.0.rows_estimate.store(rows_estimate.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn arrived(&mut self, rows: u64, bytes: u64) {
        self.0.rows.fetch_add(rows, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Runs a query and writes its result, as [`copy`](crate::copy()) does. `observe` is told from time to time how far it is.
///
/// # Errors
/// The first error of a source, of the target, of `observe` or of the check; then the copy is cancelled.
pub fn copy(
    from: Vec<Location>,
    statement: Statement,
    to: Target,
    options: Options,
    check: Check,
    observe: &mut dyn FnMut(Progress) -> Result<()>,
) -> Result<Report> {
    let zero = || AtomicU64::new(0);
    let counters =
        Arc::new(Counters { rows: zero(), bytes: zero(), rows_estimate: AtomicU64::new(u64::MAX) });
    let mut counting = Counting(counters.clone());
    let copying = spawn(async move { copy_async(&from, statement, to, &options, &mut counting).await })?;
    wait(copying, &mut || {
        check()?;
        let estimate = counters.rows_estimate.load(Ordering::Relaxed);
        observe(Progress {
            rows: counters.rows.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            rows_estimate: Some(estimate).filter(|&estimate| estimate != u64::MAX),
        })
    })?
}

/// Writes batches to a file or a table: all of them, or none if one can't be read or written. They are read on the
/// calling thread.
///
/// # Errors
/// The first error of the batches, of the target or of the check.
pub fn write(
    batches: impl RecordBatchReader,
    to: Target,
    options: Options,
    check: &mut dyn FnMut() -> Result<()>,
) -> Result<Written> {
    let schema = batches.schema();
    // One batch waits while another is written.
    let (sender, mut receiver) = mpsc::channel::<Option<RecordBatch>>(1);
    let mut writing = spawn(async move {
        let mut writer = Writer::open(to, schema, &options).await?;
        while let Some(batch) = receiver.recv().await {
            match batch {
                Some(batch) => writer.write(batch).await?,
                None => return writer.finish().await,
            }
        }
        // Their reader has failed.
        Err(cancelled())
    })?;
    let batches = batches.map(|batch| batch.map(Some)).chain(std::iter::once(Ok(None)));
    for batch in batches {
        let batch = batch.map_err(|error| Error::new(ErrorKind::Data, error.to_string()))?;
        match wait(sender.reserve(), check)? {
            Ok(place) => place.send(batch),
            // The writer has failed.
            Err(_) => break,
        }
    }
    wait(&mut writing, check)?
}
