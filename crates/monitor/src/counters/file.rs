//! Files of the kernel, which are read as a whole, repeatedly.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// The most bytes of a file. `/proc/stat` of a host with thousands of interrupts is smaller.
const TEXT_BYTES_MAX: usize = 4 << 20;
/// The first size of the buffer, enough for nearly all files.
const TEXT_BYTES: usize = 16 << 10;

/// Where `/proc` and `/sys` are mounted.
#[derive(Debug, Clone)]
pub(crate) struct Roots {
    pub(crate) proc: PathBuf,
    pub(crate) sys: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into() }
    }
}

/// A buffer that all files are read into, one after the other.
#[derive(Debug)]
pub(crate) struct TextBuffer(Vec<u8>);

impl Default for TextBuffer {
    fn default() -> Self {
        Self(vec![0; TEXT_BYTES])
    }
}

impl TextBuffer {
    /// The text of an open file, from its beginning. Bytes that are not UTF-8 end it: of the files read here, only
    /// names of processes can have some, and those are read with [`Self::read_lossy`].
    pub(crate) fn read(&mut self, file: &File) -> io::Result<&str> {
        let bytes = self.bytes(file)?;
        Ok(match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                bytes.get(..error.valid_up_to()).and_then(|valid| str::from_utf8(valid).ok()).unwrap_or("")
            }
        })
    }

    /// Like [`Self::read`], and bytes that are not UTF-8 are replaced.
    pub(crate) fn read_lossy(&mut self, file: &File) -> io::Result<std::borrow::Cow<'_, str>> {
        Ok(String::from_utf8_lossy(self.bytes(file)?))
    }

    /// The text of the file at `path`.
    pub(crate) fn read_path(&mut self, path: &Path) -> io::Result<&str> {
        self.read(&File::open(path)?)
    }

    fn bytes(&mut self, file: &File) -> io::Result<&[u8]> {
        let mut filled = 0;
        loop {
            if filled == self.0.len() {
                if filled >= TEXT_BYTES_MAX {
                    return Err(io::ErrorKind::FileTooLarge.into());
                }
                self.0.resize(filled * 2, 0);
            }
            let room = self.0.get_mut(filled..).unwrap_or_default();
            match file.read_at(room, filled as u64) {
                Ok(0) => return Ok(self.0.get(..filled).unwrap_or_default()),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A file that stays open between reads.
#[derive(Debug)]
pub(crate) struct KernelFile {
    path: PathBuf,
    file: Option<File>,
    /// Whether it stays open, which saves the search of its path.
    keep: bool,
}

impl KernelFile {
    pub(crate) fn new(path: PathBuf, keep: bool) -> Self {
        Self { path, file: None, keep }
    }

    /// Its text. After an error it is opened again at the next read.
    ///
    /// # Errors
    /// A reason in words.
    pub(crate) fn read<'a>(&mut self, buffer: &'a mut TextBuffer) -> Result<&'a str, String> {
        let file = match self.file.take() {
            Some(file) => file,
            None => File::open(&self.path).map_err(|error| reason(&self.path, &error))?,
        };
        let text = buffer.read(&file).map_err(|error| reason(&self.path, &error))?;
        if self.keep {
            self.file = Some(file);
        }
        Ok(text)
    }
}

/// Why a file can't be read, in words. Numbers of processes are left out of the path, so that equal reasons are equal.
pub(crate) fn reason(path: &Path, error: &io::Error) -> String {
    let path: PathBuf = path
        .iter()
        .map(|part| match part.to_str() {
            Some(part) if part.parse::<u32>().is_ok() => "PID".as_ref(),
            _ => part,
        })
        .collect();
    match error.kind() {
        io::ErrorKind::NotFound => format!("this kernel has no {}", path.display()),
        io::ErrorKind::PermissionDenied => format!("no permission to read {}", path.display()),
        _ => format!("cannot read {}: {error}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_kept_open_is_read_again_from_its_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counter");
        std::fs::write(&path, "1").unwrap();
        let mut buffer = TextBuffer::default();
        let mut file = KernelFile::new(path.clone(), true);
        assert_eq!(file.read(&mut buffer).unwrap(), "1");
        std::fs::write(&path, "22").unwrap();
        assert_eq!(file.read(&mut buffer).unwrap(), "22");
        let long = "x".repeat(TEXT_BYTES * 3);
        std::fs::write(&path, &long).unwrap();
        assert_eq!(file.read(&mut buffer).unwrap(), long);
    }

    #[test]
    fn a_reason_names_the_file_but_not_the_process() {
        let error = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(reason(Path::new("/proc/12/io"), &error), "no permission to read /proc/PID/io");
        let mut file = KernelFile::new("/proc/of/nothing".into(), true);
        assert_eq!(file.read(&mut TextBuffer::default()).unwrap_err(), "this kernel has no /proc/of/nothing");
    }
}
