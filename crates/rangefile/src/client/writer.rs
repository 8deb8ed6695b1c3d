//! Writes many rows: batches are gathered, so that each bucket gets large requests.

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;

use super::RangeFile;
use crate::error::Result;
use crate::request::WriteMode;

/// Bytes of rows that are written together.
const GATHERED_BYTES: u64 = 16 << 20;
/// Inserts of gathered rows at the same time. Upserts and deletions are made one after the other: of two with the
/// same key, the last must count.
const INSERTS_MAX: usize = 2;

/// Writes batches of rows to a range file, holding at most some 64 MiB of them. Dropping it stops what has not
/// been sent.
pub struct RowWriter {
    file: RangeFile,
    mode: WriteMode,
    gathered: Vec<RecordBatch>,
    gathered_bytes: u64,
    running: FuturesUnordered<BoxFuture<'static, Result<u64>>>,
    rows: u64,
}

impl std::fmt::Debug for RowWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RowWriter({:?}, {:?})", self.file, self.mode)
    }
}

impl RowWriter {
    /// A writer of rows with the file's columns.
    pub fn new(file: RangeFile, mode: WriteMode) -> Self {
        let (gathered, running) = (Vec::new(), FuturesUnordered::new());
        Self { file, mode, gathered, gathered_bytes: 0, running, rows: 0 }
    }

    /// Rows that are on disk.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Writes rows at some time.
    ///
    /// # Errors
    /// As [`RangeFile::write`], for rows of this or an earlier batch. Some rows may be written.
    pub async fn write(&mut self, rows: RecordBatch) -> Result<()> {
        // A batch that is larger than what is gathered is cut.
        let bytes = lightship_wire::rows_bytes(&rows).max(1);
        let rows_max = GATHERED_BYTES.saturating_mul(rows.num_rows() as u64) / bytes;
        let rows_max = usize::try_from(rows_max).unwrap_or(usize::MAX).max(1);
        for start in (0..rows.num_rows()).step_by(rows_max) {
            let part = rows.slice(start, rows_max.min(rows.num_rows() - start));
            self.gathered_bytes += lightship_wire::rows_bytes(&part);
            self.gathered.push(part);
            if self.gathered_bytes >= GATHERED_BYTES {
                self.send().await?;
            }
        }
        Ok(())
    }

    /// Returns once all rows are on disk, with their number.
    ///
    /// # Errors
    /// As [`RowWriter::write`].
    pub async fn finish(&mut self) -> Result<u64> {
        self.send().await?;
        self.wait(0).await?;
        Ok(self.rows)
    }

    async fn send(&mut self) -> Result<()> {
        let Some(first) = self.gathered.first() else { return Ok(()) };
        let rows = concat_batches(&first.schema(), &self.gathered)?;
        (self.gathered, self.gathered_bytes) = (Vec::new(), 0);
        let at_once = if self.mode == WriteMode::Insert { INSERTS_MAX } else { 1 };
        self.wait(at_once - 1).await?;
        let (file, mode) = (self.file.clone(), self.mode);
        self.running.push(Box::pin(async move { file.write(mode, &rows).await }));
        Ok(())
    }

    /// Waits until at most this many writes are running.
    async fn wait(&mut self, running_max: usize) -> Result<()> {
        let mut failed = None;
        while self.running.len() > running_max || (failed.is_some() && !self.running.is_empty()) {
            match self.running.next().await {
                Some(Ok(rows)) => self.rows += rows,
                // The others go on: the number of rows is known then.
                Some(Err(error)) => failed = failed.or(Some(error)),
                None => break,
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
