//! Files that are complete or not there at all.
//!
//! A file is written without a name (`O_TMPFILE`), so that the system frees it if this process is
//! killed. Once complete, it is linked under its name. If it replaces a file of that name, it has a
//! temporary name for a moment, before it is renamed. On file systems without unnamed files it has
//! a hidden name in the same folder.
//!
//! A file that must not exist, or that continues another, is not linked if the name has been given to another file
//! meanwhile.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use rustix::io::Errno;
use tempfile::{Builder, NamedTempFile};

/// The mode of an ordinary open; the system applies the user's umask to it.
const MODE: u32 = 0o666;
/// Maximum bytes of the prefix of a temporary name. A unique part and a suffix follow, and a name has at most 255
/// bytes.
const PREFIX_BYTES_MAX: usize = 240;

/// A file that is being written. If it is dropped before [`Self::commit`], it leaves nothing behind.
pub(super) struct AtomicFile {
    temporary: Temporary,
    /// Its final path.
    path: PathBuf,
    replaces: Replaces,
}

/// What a file may replace.
pub(super) enum Replaces {
    /// Whatever has its name.
    Any,
    /// Nothing: its name must be free.
    Nothing,
    /// This file, which is locked against others that do the same, in the state that it had.
    This(File, Metadata),
}

enum Temporary {
    Unnamed(File),
    Named(NamedTempFile),
}

impl AtomicFile {
    /// A file for the final path `path`, with the permissions of the file that it replaces.
    pub(super) fn create(path: PathBuf, existing: Option<&Metadata>, replaces: Replaces) -> io::Result<Self> {
        if path.file_name().is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if existing.is_some() {
            // A file that may not be written may not be replaced either.
            OpenOptions::new().write(true).open(&path)?;
        }
        let temporary = match unnamed(folder(&path))? {
            Some(file) => Temporary::Unnamed(file),
            None => Temporary::Named(named(&path)?),
        };
        let this = Self { temporary, path, replaces };
        if let Some(existing) = existing {
            this.file().set_permissions(existing.permissions())?;
        }
        Ok(this)
    }

    /// The folder of its final path.
    pub(super) fn folder(&self) -> &Path {
        folder(&self.path)
    }

    /// The file that this one continues, unless it is empty, and this one.
    pub(super) fn continued(&mut self) -> Option<(&mut File, &mut File)> {
        let new = match &mut self.temporary {
            Temporary::Unnamed(file) => file,
            Temporary::Named(file) => file.as_file_mut(),
        };
        match &mut self.replaces {
            Replaces::This(file, before) if before.len() > 0 => Some((file, new)),
            _ => None,
        }
    }

    fn file(&self) -> &File {
        match &self.temporary {
            Temporary::Unnamed(file) => file,
            Temporary::Named(file) => file.as_file(),
        }
    }

    /// Synchronises the file, gives it its name, and synchronises the folder.
    pub(super) fn commit(self) -> io::Result<()> {
        self.file().sync_all()?;
        let path = &self.path;
        if let Replaces::This(_, before) = &self.replaces
            && !path.metadata().is_ok_and(|now| is_same(before, &now))
        {
            return Err(io::Error::other("another program has changed it meanwhile; copy again"));
        }
        let is_new = matches!(self.replaces, Replaces::Nothing);
        match self.temporary {
            Temporary::Unnamed(file) => {
                let link = |path: &Path| {
                    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
                    linkat(CWD, itself, CWD, path, AtFlags::SYMLINK_FOLLOW)
                };
                match link(path) {
                    // A link can't replace a file; a rename can.
                    Err(Errno::EXIST) if !is_new => {
                        let beside =
                            beside(path, |builder| builder.make_in(folder(path), |path| Ok(link(path)?)))?;
                        beside.persist(path).map_err(|error| error.error)?;
                    }
                    linked => linked?,
                }
            }
            Temporary::Named(file) if is_new => {
                drop(file.persist_noclobber(path).map_err(|error| error.error)?);
            }
            Temporary::Named(file) => drop(file.persist(path).map_err(|error| error.error)?),
        }
        sync_folder(folder(path))
    }
}

/// Whether a file is the same, and unchanged.
fn is_same(before: &Metadata, now: &Metadata) -> bool {
    let of = |file: &Metadata| (file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec());
    of(before) == of(now)
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A file without a name; `None` if the file system has none, or there is no `/proc` to link it by later.
fn unnamed(folder: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::TMPFILE.bits().cast_signed();
    let opened = OpenOptions::new().read(true).write(true).mode(MODE).custom_flags(flags).open(folder);
    match opened {
        Ok(file) if Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())).exists() => Ok(Some(file)),
        Ok(_) => Ok(None),
        // Kernels and file systems without unnamed files return one of these.
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
            _ => Err(error),
        },
    }
}

fn named(path: &Path) -> io::Result<NamedTempFile> {
    beside(path, |builder| builder.permissions(Permissions::from_mode(MODE)).tempfile_in(folder(path)))
}

/// Makes something under a unique hidden name in the folder of `path`.
fn beside<T>(path: &Path, make: impl FnOnce(&mut Builder<'_, '_>) -> io::Result<T>) -> io::Result<T> {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    if prefix.len() > PREFIX_BYTES_MAX {
        prefix = ".lightship.".into();
    }
    make(Builder::new().prefix(&prefix).suffix(".part")).map_err(without_path)
}

/// The error without the path of the temporary file, which `tempfile` adds: users know only the final path.
fn without_path(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.split_once(" at path ") {
        Some((reason, _)) => io::Error::new(error.kind(), reason),
        None => error,
    }
}

/// Synchronises a folder, which makes a new name in it durable. Folders that may not be read, and
/// file systems that don't synchronise folders, are skipped.
fn sync_folder(folder: &Path) -> io::Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    match synced {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_complete_or_not_there_with_and_without_unnamed_files() {
        let long = "x".repeat(255);
        for has_unnamed in [true, false] {
            for name in ["new", "replaced", &long] {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join(name);
                if name == "replaced" {
                    std::fs::write(&path, "old").unwrap();
                }
                let before = names(folder.path());
                let make = || {
                    let temporary = match has_unnamed {
                        true => Temporary::Unnamed(unnamed(folder.path()).unwrap().expect("supported here")),
                        false => Temporary::Named(named(&path).unwrap()),
                    };
                    let mut file = AtomicFile { temporary, path: path.clone(), replaces: Replaces::Any };
                    file.write_all(b"whole").unwrap();
                    file
                };
                let file = make();
                assert_eq!(names(folder.path()) == before, has_unnamed);
                drop(file);
                assert_eq!(names(folder.path()), before);
                make().commit().unwrap();
                assert_eq!(names(folder.path()), [name]);
                assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole");
            }
        }
    }
}
