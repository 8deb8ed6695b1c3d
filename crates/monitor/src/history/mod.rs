//! Samples on disk, in Parquet files.

mod disk;
mod queries;
mod rows;
mod thread;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use crate::collector::TimedSample;
use disk::Disk;
pub use queries::QueryLog;
use rows::{Reader, Rows, SCHEMA};
pub use thread::{HistoryStatus, HistoryWriter};

/// Rows that are written together. They take about 10 MB of memory.
const ROWS_MAX: usize = 1 << 16;
/// Rows that are read together.
const READ_ROWS: usize = 8192;

/// Settings of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryOptions {
    /// The folder, which no other collector may use.
    pub folder: PathBuf,
    /// The most bytes of all files; the oldest are removed.
    pub bytes_max: u64,
    /// The most bytes of one file, about.
    pub file_bytes_max: u64,
    /// The time that one file spans, in nanoseconds. A crash loses the samples of the incomplete file.
    pub file_ns_max: u64,
    /// How long the history pauses after an error, such as a full disk, in nanoseconds.
    pub retry_ns: u64,
}

impl HistoryOptions {
    /// Defaults: 1 GiB, in files of up to 64 MiB and ten minutes.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            bytes_max: 1 << 30,
            file_bytes_max: 64 << 20,
            file_ns_max: 600_000_000_000,
            retry_ns: 60_000_000_000,
        }
    }
}

/// The file that is being written.
struct Partial {
    path: PathBuf,
    writer: ArrowWriter<Box<dyn Write + Send>>,
}

/// Writes samples to files. A file is in the folder under its name only when it is complete.
struct History {
    options: HistoryOptions,
    disk: Box<dyn Disk>,
    rows: Rows,
    /// When the first sample was taken that is in no complete file, in nanoseconds since 1970.
    first_unix_ns: Option<i64>,
    partial: Option<Partial>,
    /// When the pause after an error ends, in nanoseconds since 1970 by the times of samples.
    paused_until_ns: Option<i64>,
    /// Samples that were lost because of errors.
    lost: u64,
    /// Samples that are in no complete file yet, and would be lost by an error.
    unwritten: u64,
}

impl History {
    fn new(options: HistoryOptions, disk: Box<dyn Disk>) -> Self {
        Self {
            options,
            disk,
            rows: Rows::default(),
            first_unix_ns: None,
            partial: None,
            paused_until_ns: None,
            lost: 0,
            unwritten: 0,
        }
    }

    /// Adds a sample, taken at `unix_ns` since 1970. Returns whether samples were written to the disk.
    ///
    /// # Errors
    /// If the disk fails. Samples that are in no complete file are then lost, and the history pauses.
    fn add(&mut self, timed: &TimedSample, unix_ns: i64) -> io::Result<bool> {
        if let Some(until_ns) = self.paused_until_ns {
            // A wrong clock may have set the end of the pause far in the future.
            if unix_ns < until_ns && until_ns - unix_ns <= nanoseconds(self.options.retry_ns) {
                self.lost += 1;
                return Ok(false);
            }
            self.paused_until_ns = None;
        }
        let first_ns = *self.first_unix_ns.get_or_insert(unix_ns);
        self.unwritten += 1;
        self.rows.add(timed, unix_ns);
        let written = self.write(unix_ns.saturating_sub(first_ns) >= nanoseconds(self.options.file_ns_max));
        written.inspect_err(|_| self.give_up(unix_ns))
    }

    /// Completes the file. Returns whether there was anything to write.
    ///
    /// # Errors
    /// If the disk fails.
    fn finish(&mut self) -> io::Result<bool> {
        let first_ns = self.first_unix_ns.unwrap_or(0);
        self.write(true).inspect_err(|_| self.give_up(first_ns))
    }

    fn write(&mut self, complete: bool) -> io::Result<bool> {
        if self.rows.count >= ROWS_MAX || complete && self.rows.count > 0 {
            let batch = self.rows.take().map_err(io::Error::other)?;
            let mut partial = match self.partial.take() {
                Some(partial) => partial,
                None => self.begin()?,
            };
            let written = partial.writer.write(&batch).and_then(|()| partial.writer.flush());
            // Kept even after an error, so that the file is removed.
            let partial = self.partial.insert(partial);
            written.map_err(source)?;
            if !complete && (partial.writer.bytes_written() as u64) < self.options.file_bytes_max {
                return Ok(true);
            }
        } else if !complete {
            return Ok(false);
        }
        self.complete()
    }

    fn begin(&mut self) -> io::Result<Partial> {
        self.make_room()?;
        let (path, file) = self.disk.create()?;
        let level = ZstdLevel::try_new(1).map_err(source)?;
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(level)).build();
        let writer = ArrowWriter::try_new(file, SCHEMA.clone(), Some(properties)).map_err(source)?;
        Ok(Partial { path, writer })
    }

    fn complete(&mut self) -> io::Result<bool> {
        let Some(mut partial) = self.partial.take() else { return Ok(false) };
        let closed = partial.writer.finish().map_err(source);
        drop(partial.writer);
        let seconds = u64::try_from(self.first_unix_ns.unwrap_or(0) / 1_000_000_000).unwrap_or(0);
        if let Err(error) = closed.and_then(|_| self.disk.publish(&partial.path, seconds)) {
            // It is incomplete. If it can't be removed either, the first error says more.
            let _ = self.disk.remove(&partial.path);
            return Err(error);
        }
        (self.first_unix_ns, self.unwritten) = (None, 0);
        Ok(true)
    }

    /// Removes the oldest files, until there is room for another one.
    fn make_room(&mut self) -> io::Result<()> {
        let files = self.disk.list()?;
        let mut bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
        for (path, file_bytes) in files {
            if bytes.saturating_add(self.options.file_bytes_max) <= self.options.bytes_max {
                break;
            }
            self.disk.remove(&path)?;
            bytes -= file_bytes;
        }
        Ok(())
    }

    /// Drops the samples that are in no complete file, and pauses.
    fn give_up(&mut self, unix_ns: i64) {
        if let Some(partial) = self.partial.take() {
            // The next run removes it if this fails.
            let _ = self.disk.remove(&partial.path);
        }
        self.rows = Rows::default();
        self.lost += self.unwritten;
        (self.first_unix_ns, self.unwritten) = (None, 0);
        self.paused_until_ns = Some(unix_ns.saturating_add(nanoseconds(self.options.retry_ns)));
    }
}

fn nanoseconds(time_ns: u64) -> i64 {
    i64::try_from(time_ns).unwrap_or(i64::MAX)
}

/// Converts an error of the Parquet library, and keeps the kind of the I/O error that caused it, so that a full disk
/// can be recognised.
fn source(error: parquet::errors::ParquetError) -> io::Error {
    let mut below: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    // An error that returns itself as its source must not make this loop forever.
    for _ in 0..8 {
        match below.map(|error| (error.downcast_ref::<io::Error>(), error.source())) {
            Some((Some(found), _)) => return io::Error::new(found.kind(), error.to_string()),
            Some((None, next)) => below = next,
            None => break,
        }
    }
    io::Error::other(error)
}

/// The files of a history, the oldest first, with their bytes.
///
/// # Errors
/// If the folder can't be read.
pub fn history_files(folder: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
    disk::files(folder)
}

/// Reads a file of a history: calls `each` with every sample. Its time is in nanoseconds since 1970.
///
/// # Errors
/// If the file can't be read, or is no such file.
pub fn read_history(path: &Path, mut each: impl FnMut(TimedSample)) -> io::Result<()> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?).map_err(source)?;
    let batches = builder.with_batch_size(READ_ROWS).build().map_err(source)?;
    let mut reader = Reader::default();
    let mut each = |_, timed| each(timed);
    for batch in batches {
        reader.read(&batch.map_err(io::Error::other)?, &mut each).map_err(io::Error::other)?;
    }
    reader.finish(&mut each);
    Ok(())
}

#[cfg(test)]
mod tests;
