//! Shares the bytes read from files among queries that run at the same time.
//!
//! A scan of Parquet holds the bytes of a row group, tens of megabytes, while it decodes them. A
//! hundred clients that read one table would hold a hundred copies of them. So scans share bytes of
//! the same range of the same version of a file. Bytes that no scan holds are not kept.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use futures::stream::{BoxStream, StreamExt as _};
use tokio::sync::OnceCell;

/// Number of entries at which those without a holder are first removed.
const HELD_MIN: usize = 1024;

/// Read-only access to the files of this host.
#[derive(Debug, Default)]
pub(crate) struct SharedReads {
    files: LocalFileSystem,
    held: Mutex<SharedBytes>,
}

/// The bytes that scans hold, by their origin.
#[derive(Debug, Default)]
struct SharedBytes {
    pieces: HashMap<ByteRange, Weak<Piece>>,
    /// When the table has this many entries, those without a holder are removed.
    next_sweep: usize,
}

/// A range of bytes of a version of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ByteRange {
    path: PathBuf,
    /// Inode, size, and time of the last change.
    version: String,
    start: u64,
    end: u64,
}

/// Bytes, once they have been read.
#[derive(Debug, Default)]
struct Piece(OnceCell<Vec<u8>>);

/// Keeps a [`Piece`] alive for a [`Bytes`].
struct Share(Arc<Piece>);

impl AsRef<[u8]> for Share {
    fn as_ref(&self) -> &[u8] {
        self.0.0.get().map_or(&[], Vec::as_slice)
    }
}

impl SharedBytes {
    fn piece(&mut self, place: ByteRange) -> Arc<Piece> {
        if let Some(piece) = self.pieces.get(&place).and_then(Weak::upgrade) {
            return piece;
        }
        if self.pieces.len() >= self.next_sweep {
            self.pieces.retain(|_, piece| piece.strong_count() > 0);
            self.next_sweep = (2 * self.pieces.len()).max(HELD_MIN);
        }
        let piece = Arc::new(Piece::default());
        self.pieces.insert(place, Arc::downgrade(&piece));
        piece
    }
}

fn read(file: &File, path: &std::path::Path, range: Range<u64>) -> Result<Vec<u8>> {
    let fill = || {
        // The range may come from a damaged footer.
        let bytes = range
            .end
            .checked_sub(range.start)
            .filter(|_| range.end <= file.metadata().map_or(0, |m| m.len()));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or(ErrorKind::UnexpectedEof)?;
        let mut bytes = vec![0; bytes];
        file.read_exact_at(&mut bytes, range.start).map(|()| bytes)
    };
    fill().map_err(|error: io::Error| {
        let source = format!("{}: bytes {} to {}: {error}", path.display(), range.start, range.end);
        Error::Generic { store: "file", source: source.into() }
    })
}

fn only_read<T>(operation: &str) -> Result<T> {
    Err(Error::NotImplemented { operation: operation.into(), implementer: "read-only files".into() })
}

impl fmt::Display for SharedReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for SharedReads {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.files.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        // Opened only once, so that the version belongs to the bytes.
        let found = self.files.get_opts(location, GetOptions::default()).await?;
        let GetResultPayload::File(file, path) = found.payload else {
            return only_read("reading anything but a file");
        };
        let file = Arc::new(file);
        let version = found.meta.e_tag.unwrap_or_default();
        let mut all = Vec::with_capacity(ranges.len());
        for range in ranges {
            let (path, version) = (path.clone(), version.clone());
            let place = ByteRange { path: path.clone(), version, start: range.start, end: range.end };
            let piece = self.held.lock().unwrap_or_else(PoisonError::into_inner).piece(place);
            let fill = || async {
                let (file, range) = (file.clone(), range.clone());
                let read = tokio::task::spawn_blocking(move || read(&file, &path, range));
                read.await.map_err(|error| Error::Generic { store: "file", source: error.into() })?
            };
            piece.0.get_or_try_init(fill).await?;
            all.push(Bytes::from_owner(Share(piece)));
        }
        Ok(all)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        only_read("writing")
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        only_read("writing")
    }

    fn delete_stream(&self, _: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        futures::stream::once(async { only_read("deleting") }).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        only_read("copying")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn concurrent_reads_share_bytes_and_nothing_is_kept_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "0123456789").unwrap();
        let store = SharedReads::default();
        let location = Path::from_absolute_path(&path).unwrap();
        let get = async |start, end| {
            store.get_ranges(&location, std::slice::from_ref(&(start..end))).await.unwrap().remove(0)
        };
        // Concurrently, as clients read.
        let (first, second) = tokio::join!(get(2, 6), get(2, 6));
        assert_eq!((&*first, first.as_ptr()), (&b"2345"[..], second.as_ptr()));
        assert_ne!(get(2, 5).await.as_ptr(), first.as_ptr());
        // Another version of the file has other bytes.
        let other = folder.path().join("g");
        std::fs::write(&other, "abcdefghij").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(&*get(2, 6).await, b"cdef");
        assert_eq!(&*second, b"2345");
        drop((first, second));
        let pieces = &store.held.lock().unwrap().pieces;
        assert!(pieces.values().all(|piece| piece.strong_count() == 0));
    }

    #[tokio::test]
    async fn a_range_that_can_not_be_read_fails_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "0123").unwrap();
        let store = SharedReads::default();
        let location = Path::from_absolute_path(&path).unwrap();
        for _ in 0..2 {
            let error =
                store.get_ranges(&location, std::slice::from_ref(&(2..6))).await.unwrap_err().to_string();
            assert!(error.contains("bytes 2 to 6"), "{error}");
        }
        // No memory is allocated for a range beyond the file.
        assert!(store.get_ranges(&location, std::slice::from_ref(&(2..u64::MAX))).await.is_err());
        assert_eq!(&*store.get_ranges(&location, std::slice::from_ref(&(2..4))).await.unwrap()[0], b"23");
    }
}
