//! A file that is there whole or not at all.
//!
//! It is written without a name (`O_TMPFILE`), so that nothing is left of it if this process is
//! killed; the system frees it then. Once whole it is linked under its name. Only where a file
//! of that name is to be replaced it has another one for the moment before it is renamed. File
//! systems without unnamed files get a hidden name beside the final one.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use rustix::io::Errno;
use tempfile::{Builder, NamedTempFile};

/// What a plain open asks for; the system takes the user's mask from it.
const MODE: u32 = 0o666;
/// Of a file name. Its ending and what makes it unique take a few bytes more, and 255 is the most.
const PREFIX_BYTES_MAX: usize = 240;

/// A file in the making. Dropped before [`Self::commit`] it leaves nothing.
pub(super) struct WholeFile {
    temporary: Temporary,
    /// What it is to be called.
    path: PathBuf,
}

enum Temporary {
    Unnamed(File),
    Named(NamedTempFile),
}

impl WholeFile {
    /// A file to be called `path`, with the permissions of what it replaces.
    pub(super) fn create(path: PathBuf, existing: Option<&Metadata>) -> io::Result<Self> {
        if path.file_name().is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if existing.is_some() {
            // A file that may not be written is not to be replaced either.
            OpenOptions::new().write(true).open(&path)?;
        }
        let temporary = match unnamed(folder(&path))? {
            Some(file) => Temporary::Unnamed(file),
            None => Temporary::Named(named(&path)?),
        };
        let this = Self { temporary, path };
        if let Some(existing) = existing {
            this.file().set_permissions(existing.permissions())?;
        }
        Ok(this)
    }

    fn file(&self) -> &File {
        match &self.temporary {
            Temporary::Unnamed(file) => file,
            Temporary::Named(file) => file.as_file(),
        }
    }

    /// Gives the file its name once its bytes are on the disk, and has the name there too.
    pub(super) fn commit(self) -> io::Result<()> {
        self.file().sync_all()?;
        let path = &self.path;
        match self.temporary {
            Temporary::Unnamed(file) => {
                let link = |path: &Path| {
                    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
                    linkat(CWD, itself, CWD, path, AtFlags::SYMLINK_FOLLOW)
                };
                match link(path) {
                    // No call links over a file; a rename does.
                    Err(Errno::EXIST) => {
                        let beside =
                            beside(path, |builder| builder.make_in(folder(path), |path| Ok(link(path)?)))?;
                        beside.persist(path).map_err(|error| error.error)?;
                    }
                    linked => linked?,
                }
            }
            Temporary::Named(file) => drop(file.persist(path).map_err(|error| error.error)?),
        }
        sync_folder(folder(path))
    }
}

impl Write for WholeFile {
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

/// A file without a name; `None` where the file system has none, or no `/proc` can name it later.
fn unnamed(folder: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::TMPFILE.bits().cast_signed();
    let opened = OpenOptions::new().read(true).write(true).mode(MODE).custom_flags(flags).open(folder);
    match opened {
        Ok(file) if Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())).exists() => Ok(Some(file)),
        Ok(_) => Ok(None),
        // Kernels and file systems without them say one of these.
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
            _ => Err(error),
        },
    }
}

fn named(path: &Path) -> io::Result<NamedTempFile> {
    beside(path, |builder| builder.permissions(Permissions::from_mode(MODE)).tempfile_in(folder(path)))
}

/// Something under a hidden name of its own beside `path`.
fn beside<T>(path: &Path, make: impl FnOnce(&mut Builder<'_, '_>) -> io::Result<T>) -> io::Result<T> {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    if prefix.len() > PREFIX_BYTES_MAX {
        prefix = ".lightship.".into();
    }
    make(Builder::new().prefix(&prefix).suffix(".part"))
}

/// A name is safe once its folder is. Folders that may not be read, and file systems that don't
/// synchronise folders, are left to the system.
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
    fn with_and_without_unnamed_files_a_file_is_whole_or_not_there() {
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
                    let mut file = WholeFile { temporary, path: path.clone() };
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
