//! Files for data that queries spill. They have no names, so that the system frees them when this process ends, however
//! it ends.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use futures::{Stream, StreamExt as _, stream};

/// Bytes that are read at once.
const READ_BYTES: usize = 128 << 10;

/// Creates files in a folder.
pub(crate) struct SpillFolder {
    path: Arc<Path>,
}

impl SpillFolder {
    /// The folder, which is created if it is missing, or the system's for temporary files.
    ///
    /// # Errors
    /// When no files can be created in it.
    pub(crate) fn new(path: Option<&Path>) -> io::Result<Self> {
        let Some(path) = path else { return Ok(Self { path: std::env::temp_dir().into() }) };
        let failed = |error| at(path, error);
        std::fs::create_dir_all(path).map_err(failed)?;
        tempfile::tempfile_in(path).map_err(failed)?;
        Ok(Self { path: path.into() })
    }
}

impl TempFileFactory for SpillFolder {
    fn create_temp_file(&self, _: &str) -> Result<Arc<dyn SpillFile>> {
        let file = tempfile::tempfile_in(&self.path).map_err(|error| at(&self.path, error))?;
        Ok(Arc::new(Spilled { file: Arc::new(file), folder: self.path.clone(), bytes: Arc::default() }))
    }
}

/// The error with the place of the file.
fn at(folder: &Path, error: io::Error) -> io::Error {
    let reason = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "no space left for data that a query spills; free some, or choose another folder with TMPDIR or, for a \
             node, --spill-folder"
                .to_owned()
        }
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("{}: {reason}", folder.display()))
}

/// A file, as its readers and writers share it.
#[derive(Clone)]
struct Spilled {
    file: Arc<File>,
    folder: Arc<Path>,
    bytes: Arc<AtomicU64>,
}

impl SpillFile for Spilled {
    fn size(&self) -> Option<u64> {
        Some(self.bytes.load(Ordering::Acquire))
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let pieces = stream::try_unfold((self.clone(), 0_u64), |(spilled, position)| async move {
            let (file, left) = (spilled.file.clone(), spilled.bytes.load(Ordering::Acquire) - position);
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(READ_BYTES);
            if length == 0 {
                return Ok(None);
            }
            let read = move || {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, position).map(|()| bytes)
            };
            let read = tokio::task::spawn_blocking(read).await;
            let read = read.map_err(|error| DataFusionError::External(error.into()))?;
            let bytes = read.map_err(|error| at(&spilled.folder, error))?;
            Ok(Some((Bytes::from(bytes), (spilled, position + length as u64))))
        });
        Ok(pieces.boxed())
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(self.clone()))
    }
}

impl Write for Spilled {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = self.bytes.load(Ordering::Acquire);
        self.file.write_all_at(bytes, end).map_err(|error| at(&self.folder, error))?;
        self.bytes.store(end + bytes.len() as u64, Ordering::Release);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SpillWriter for Spilled {
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The folder of an engine.
pub(crate) fn factory(folder: Option<&PathBuf>) -> Result<Arc<dyn TempFileFactory>> {
    Ok(Arc::new(SpillFolder::new(folder.map(PathBuf::as_path))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_written_is_read_and_no_name_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        let spilled = SpillFolder::new(Some(&path)).unwrap().create_temp_file("test").unwrap();
        let written: Vec<u8> = (0..3 * READ_BYTES + 7).map(|i| (i % 251) as u8).collect();
        let mut writer = spilled.open_writer().unwrap();
        written.chunks(10_000).for_each(|part| writer.write_all(part).unwrap());
        writer.finish().unwrap();
        assert_eq!(spilled.size(), Some(written.len() as u64));
        for _ in 0..2 {
            let pieces: Vec<Bytes> =
                spilled.read_stream().unwrap().map(|piece| piece.unwrap()).collect().await;
            assert_eq!(pieces.concat(), written);
        }
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
    }

    #[test]
    fn errors_name_the_folder() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = SpillFolder::new(Some(file.path())).err().unwrap().to_string();
        assert!(error.contains(file.path().to_str().unwrap()), "{error}");
        let full = at(Path::new("/spill"), io::ErrorKind::StorageFull.into()).to_string();
        assert!(full.starts_with("/spill: no space left"), "{full}");
    }
}
