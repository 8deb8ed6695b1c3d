//! Outputs for bytes: a file that appears when it is complete, a device, or
//! standard output.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::atomic_file::AtomicFile;
use super::{SharedBytes, Target};
use crate::{Result, SourceError};

/// Bytes that are buffered before a system call.
const BUFFER_BYTES: usize = 256 << 10;
/// Standard output in errors.
const STDOUT: &str = "standard output";

/// A buffered output. If it is dropped before [`Output::commit`], a file leaves
/// nothing behind, and nothing more is sent to a device.
pub(super) struct Output {
    buffer: Vec<u8>,
    sink: Sink,
    bytes: u64,
    failures: Failures,
}

enum Sink {
    /// A new file.
    Whole(AtomicFile),
    /// A pipe or a device that is opened at the first write.
    Unopened(PathBuf),
    /// Written directly.
    Direct(File),
    Memory(SharedBytes),
}

impl Output {
    pub(super) fn open(target: Target) -> Result<Self> {
        let (path, sink) = match target {
            Target::Stdout => (STDOUT.to_owned(), stdout()),
            Target::File(path) if path == Path::new("/dev/stdout") => (STDOUT.to_owned(), stdout()),
            Target::File(path) => (path.display().to_string(), open_file(&path)),
            Target::Memory(bytes) => ("memory".to_owned(), Ok(Sink::Memory(bytes))),
        };
        let failures = Failures { path, first: Arc::default() };
        let sink = sink.map_err(|source| SourceError::Io { path: failures.path.clone(), source })?;
        Ok(Self { buffer: Vec::with_capacity(BUFFER_BYTES), sink, bytes: 0, failures })
    }

    /// The system's errors on this output, to look up after a library's error.
    pub(super) fn failures(&self) -> Failures {
        self.failures.clone()
    }

    /// Whether it is a file, which nobody reads before it is complete.
    pub(super) fn is_file(&self) -> bool {
        matches!(self.sink, Sink::Whole(_))
    }

    /// Writes out the buffer if somebody may be reading.
    pub(super) fn flush_to_reader(&mut self) -> Result<()> {
        if self.is_file() {
            return Ok(());
        }
        self.drain().map_err(|source| self.failures.error(source))
    }

    /// Writes out the buffer and gives a file its name. Returns the bytes written.
    pub(super) fn commit(mut self) -> Result<u64> {
        self.drain().map_err(|source| self.failures.error(source))?;
        if let Sink::Whole(file) = self.sink {
            file.commit().map_err(|source| self.failures.error(source))?;
        }
        Ok(self.bytes)
    }

    fn drain(&mut self) -> io::Result<()> {
        let written = self.sink.write_all(&self.buffer);
        self.buffer.clear();
        written.map_err(|error| self.failures.remember(error))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.drain()?;
        }
        if bytes.len() >= BUFFER_BYTES {
            self.sink.write_all(bytes).map_err(|error| self.failures.remember(error))?;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    /// Does nothing, because encoders flush far too often. [`Output`] drains when it
    /// is full, when a reader waits and when it is committed.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self {
            Self::Whole(file) => file.write_all(bytes),
            Self::Direct(file) => file.write_all(bytes),
            Self::Memory(memory) => {
                memory.add(bytes);
                Ok(())
            }
            Self::Unopened(path) => {
                let mut file = OpenOptions::new().write(true).open(path)?;
                file.write_all(bytes)?;
                *self = Self::Direct(file);
                Ok(())
            }
        }
    }
}

/// Standard output without the buffer of the standard library, which flushes at
/// line ends.
fn stdout() -> io::Result<Sink> {
    Ok(Sink::Direct(File::from(io::stdout().as_fd().try_clone_to_owned()?)))
}

fn open_file(path: &Path) -> io::Result<Sink> {
    let existing = match path.metadata() {
        Ok(metadata) if metadata.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        // Its own name may lead nowhere: /dev/fd/3 of a pipe is a link to `pipe:[4711]`.
        Ok(metadata) if !metadata.is_file() => return Ok(Sink::Unopened(path.to_owned())),
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    // Follow links, so that the file is replaced and not the link to it.
    let path = if existing.is_some() { path.canonicalize()? } else { path.to_owned() };
    Ok(Sink::Whole(AtomicFile::create(path, existing.as_ref())?))
}

/// The system's first error on an output. Libraries in between may wrap it beyond
/// recognition, so this error is reported instead of theirs.
#[derive(Clone)]
pub(super) struct Failures {
    path: String,
    first: Arc<Mutex<Option<io::Error>>>,
}

impl Failures {
    /// Keeps the error, and returns a copy for the library that called.
    fn remember(&self, error: io::Error) -> io::Error {
        let copy = match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        copy
    }

    /// An error of this output.
    pub(super) fn error(&self, source: io::Error) -> SourceError {
        SourceError::Io { path: self.path.clone(), source }
    }

    /// The system's error behind `error` if there was one, otherwise `error`.
    pub(super) fn explain(&self, error: SourceError) -> SourceError {
        match self.first.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(source) => self.error(source),
            None => error,
        }
    }
}
