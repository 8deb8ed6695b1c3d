//! The folder of a history.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const PREFIX: &str = "usage-";
const SUFFIX: &str = ".parquet";
const PARTIAL: &str = ".partial";
/// The most names that are tried for a file whose first sample is of the same second as another's.
const NAMES_MAX: u32 = 1000;

/// The operations of a history on its disk. It is a trait so that a test can simulate a full disk.
pub(super) trait Disk: Send {
    /// Creates a file that is not part of the history yet, and returns it with its path.
    fn create(&mut self) -> io::Result<(PathBuf, Box<dyn Write + Send>)>;
    /// Makes a complete file part of the history. `unix_seconds` is the time of its first sample.
    fn publish(&mut self, partial: &Path, unix_seconds: u64) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
    /// The files of the history, the oldest first, and their bytes.
    fn list(&self) -> io::Result<Vec<(PathBuf, u64)>>;
}

/// A folder that is locked against other histories.
pub(super) struct Folder {
    path: PathBuf,
    /// The lock is held as long as this file is open.
    _lock: File,
}

impl Folder {
    /// Opens and locks a folder, which is created if necessary, and removes the unfinished files of a crash.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        let lock = File::options().create(true).truncate(false).write(true).open(path.join("usage.lock"))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another collector writes its history to this folder",
            ),
            TryLockError::Error(error) => error,
        })?;
        for entry in fs::read_dir(path)?.filter_map(Result::ok) {
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(PARTIAL)) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }
}

impl Disk for Folder {
    fn create(&mut self) -> io::Result<(PathBuf, Box<dyn Write + Send>)> {
        let path = self.path.join(format!("{PREFIX}next{SUFFIX}{PARTIAL}"));
        let file = File::create(&path)?;
        Ok((path, Box::new(file)))
    }

    fn publish(&mut self, partial: &Path, unix_seconds: u64) -> io::Result<()> {
        // The contents must be on the disk before the name is.
        File::open(partial)?.sync_all()?;
        for number in 0..NAMES_MAX {
            let path = self.path.join(format!("{PREFIX}{unix_seconds:012}-{number:03}{SUFFIX}"));
            if !path.exists() {
                fs::rename(partial, path)?;
                return File::open(&self.path)?.sync_all();
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self) -> io::Result<Vec<(PathBuf, u64)>> {
        files(&self.path)
    }
}

/// The files of a history in a folder, the oldest first, and their bytes.
///
/// # Errors
/// If the folder can't be read.
pub(super) fn files(folder: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX)) {
            files.push((entry.path(), entry.metadata()?.len()));
        }
    }
    files.sort_unstable();
    Ok(files)
}
