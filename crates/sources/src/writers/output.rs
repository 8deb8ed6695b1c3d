//! Outputs for bytes: a file or an object that appears when it is complete, a
//! device, or standard output.

use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use arrow_schema::SchemaRef;

use super::append::{self, Refusal};
use super::atomic_file::{AtomicFile, Replaces};
use super::compress::Compressor;
use super::text_options::{Dialect, TextCompression};
use super::{FileMode, Format, SharedBytes, Target};
use crate::objects::{Cancel, ObjectError, Upload};
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
    compressor: Option<Box<Compressor>>,
    bytes: u64,
    failures: Failures,
    /// Whether it holds the rows of an existing file already.
    continues: bool,
    /// Whether what is written is left out.
    is_muted: bool,
}

enum Sink {
    /// A new file.
    Whole(Box<AtomicFile>),
    /// A new object.
    Object(Box<Upload>),
    /// A pipe or a device that is opened at the first write.
    Unopened(PathBuf),
    /// Written directly.
    Direct(File),
    Memory(SharedBytes),
}

impl Output {
    pub(super) fn open(target: Target, mode: FileMode) -> Result<Self, SourceError> {
        let (path, sink) = match target {
            Target::Stdout => (STDOUT.to_owned(), stdout().map_err(Refusal::Io)),
            Target::File(path) if path == Path::new("/dev/stdout") => {
                (STDOUT.to_owned(), stdout().map_err(Refusal::Io))
            }
            Target::File(path) => (path.display().to_string(), open_file(&path, mode)),
            Target::Object(location) => {
                (location.to_string(), Ok(Sink::Object(Box::new(Upload::open(&location)?))))
            }
            Target::Folder(path, format) => {
                (path.display().to_string(), open_in_folder(&path, format).map_err(Refusal::Io))
            }
            Target::Memory(bytes) => ("memory".to_owned(), Ok(Sink::Memory(bytes))),
        };
        let failures = Failures::new(&path);
        let sink = sink.map_err(|refusal| failures.refused(refusal))?;
        let buffer = Vec::with_capacity(BUFFER_BYTES);
        Ok(Self { buffer, sink, compressor: None, bytes: 0, failures, continues: false, is_muted: false })
    }

    /// Compresses what is written from here.
    pub(super) fn compress(&mut self, compression: TextCompression) -> Result<()> {
        let compressor = Compressor::new(compression).map_err(|source| self.failures.error(source))?;
        self.compressor = compressor.map(Box::new);
        Ok(())
    }

    /// The folder for temporary files: that of the file, which has room for it, or the system's.
    pub(super) fn spill_folder(&self) -> PathBuf {
        match &self.sink {
            Sink::Whole(file) => file.folder().to_owned(),
            _ => std::env::temp_dir(),
        }
    }

    /// Copies what an existing file holds, if this output continues one.
    pub(super) fn copy_existing(
        &mut self,
        format: Format,
        schema: &SchemaRef,
        dialect: Option<&Dialect>,
    ) -> Result<(), SourceError> {
        let Sink::Whole(file) = &mut self.sink else { return Ok(()) };
        let Some((existing, new)) = file.continued() else { return Ok(()) };
        append::copy(format, schema, dialect, existing, new)
            .map_err(|refusal| self.failures.refused(refusal))?;
        self.continues = true;
        Ok(())
    }

    /// Whether it holds the rows of an existing file, so that the beginning of the format is there.
    pub(super) fn continues(&self) -> bool {
        self.continues
    }

    /// Leaves out what is written from now on, or no longer.
    pub(super) fn mute(&mut self, is_muted: bool) {
        self.is_muted = is_muted;
    }

    /// The system's errors on this output, to look up after a library's error.
    pub(super) fn failures(&self) -> Failures {
        self.failures.clone()
    }

    /// Whether it is a file or an object, which nobody reads before it is complete.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.sink, Sink::Whole(_) | Sink::Object(_))
    }

    /// Ends an upload that waits for the server; `None` if it is not one.
    pub(super) fn canceller(&self) -> Option<Cancel> {
        match &self.sink {
            Sink::Object(upload) => Some(upload.canceller()),
            _ => None,
        }
    }

    /// Writes out the buffer if somebody may be reading.
    pub(super) fn flush_to_reader(&mut self) -> Result<()> {
        if self.is_whole() {
            return Ok(());
        }
        let flushed = match &mut self.compressor {
            Some(compressor) => compressor.flush(),
            None => Ok(Vec::new()),
        };
        let written = flushed.and_then(|bytes| self.put(&bytes)).and_then(|()| self.drain());
        written.map_err(|source| self.failures.error(source))
    }

    /// Writes out the buffer and gives a file its name. Returns the bytes written.
    pub(super) fn commit(mut self) -> Result<u64> {
        let end = match self.compressor.take() {
            Some(compressor) => compressor.finish(),
            None => Ok(Vec::new()),
        };
        let written = end.and_then(|bytes| self.put(&bytes)).and_then(|()| self.drain());
        written.map_err(|source| self.failures.error(source))?;
        match self.sink {
            Sink::Whole(file) => file.commit().map_err(|source| self.failures.error(source))?,
            Sink::Object(upload) => upload.commit().map_err(|source| self.failures.error(source))?,
            Sink::Unopened(_) | Sink::Direct(_) | Sink::Memory(_) => {}
        }
        Ok(self.bytes)
    }

    /// Adds bytes of the file itself.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.drain()?;
        }
        if bytes.len() >= BUFFER_BYTES {
            self.sink.write_all(bytes).map_err(|error| self.failures.remember(error))?;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn drain(&mut self) -> io::Result<()> {
        let written = self.sink.write_all(&self.buffer);
        self.buffer.clear();
        written.map_err(|error| self.failures.remember(error))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_muted {
            return Ok(bytes.len());
        }
        match &mut self.compressor {
            None => self.put(bytes)?,
            Some(compressor) => {
                let compressed = compressor.compress(bytes)?;
                self.put(&compressed)?;
            }
        }
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
            Self::Object(upload) => upload.write_all(bytes),
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

fn open_file(path: &Path, mode: FileMode) -> Result<Sink, Refusal> {
    let existing = match path.metadata() {
        Ok(metadata) if metadata.is_dir() => return Err(io::Error::from(io::ErrorKind::IsADirectory).into()),
        // Its own name may lead nowhere: /dev/fd/3 of a pipe is a link to `pipe:[4711]`.
        Ok(metadata) if !metadata.is_file() => return Ok(Sink::Unopened(path.to_owned())),
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error.into()),
    };
    // Follow links, so that the file is replaced and not the link to it.
    let path = if existing.is_some() { path.canonicalize()? } else { path.to_owned() };
    let replaces = match (mode, &existing) {
        (FileMode::Replace, _) => Replaces::Any,
        (FileMode::Append | FileMode::Existing, Some(_)) => lock(&path)?,
        (FileMode::Create | FileMode::Append, None) => Replaces::Nothing,
        (FileMode::Create, Some(_)) => {
            let hint = "add the rows with --mode append, or replace it with --mode replace";
            return Err(Refusal::Unfit("the file exists already".into(), hint));
        }
        (FileMode::Existing, None) => {
            let hint = "create it with --mode append or create";
            return Err(Refusal::Unfit("there is no such file".into(), hint));
        }
    };
    Ok(Sink::Whole(Box::new(AtomicFile::create(path, existing.as_ref(), replaces)?)))
}

/// Locks a file that rows are added to: of two programs that add rows at a time, one would lose its own.
fn lock(path: &Path) -> Result<Replaces, Refusal> {
    let file = File::open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let hint = "wait until the other has ended, and copy again";
            return Err(Refusal::Unfit("another program adds rows to it".into(), hint));
        }
        // File systems without locks; a change is noticed at the end.
        Err(TryLockError::Error(_)) => {}
    }
    let before = file.metadata()?;
    Ok(Replaces::This(file, before))
}

/// A new file in a folder, which is created if it is missing.
fn open_in_folder(folder: &Path, format: Format) -> io::Result<Sink> {
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The names are in the order of time; two at the same time differ.
    let random = RandomState::new().build_hasher().finish();
    let name = format!("{:013}-{random:016x}.{}", since_epoch.as_millis(), format.extension());
    Ok(Sink::Whole(Box::new(AtomicFile::create(folder.join(name), None, Replaces::Nothing)?)))
}

/// The system's first error on an output. Libraries in between may wrap it beyond
/// recognition, so this error is reported instead of theirs.
#[derive(Clone)]
pub(super) struct Failures {
    path: String,
    first: Arc<Mutex<Option<io::Error>>>,
}

impl Failures {
    /// For an output of this name.
    pub(super) fn new(path: &str) -> Self {
        Self { path: path.to_owned(), first: Arc::default() }
    }

    /// Keeps the error, and returns a copy for the library that called.
    pub(super) fn remember(&self, error: io::Error) -> io::Error {
        let copy = match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        copy
    }

    fn refused(&self, refusal: Refusal) -> SourceError {
        match refusal {
            Refusal::Io(source) => self.error(source),
            Refusal::Unfit(reason, hint) => {
                SourceError::ExistingFile { path: self.path.clone(), reason, hint: hint.into() }
            }
        }
    }

    /// An error of this output.
    pub(super) fn error(&self, source: io::Error) -> SourceError {
        if let Some(error) = ObjectError::find(&source) {
            return error.clone().into();
        }
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
