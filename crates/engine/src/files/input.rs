//! The bytes of a file, on this host or in an object store.

use std::fmt;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::object_store::{self, GetOptions, ObjectMeta, ObjectStore};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Bytes of the first request for an object. Each further one asks for four times as much.
const PIECE_BYTES_MIN: u64 = 256 << 10;
/// Maximum bytes of a request. A reader holds the bytes of two: one is read while the next arrives.
const PIECE_BYTES_MAX: u64 = 4 << 20;

/// A file to read. It is a path for messages, of an object its URI.
#[derive(Clone)]
pub(super) struct FilePath {
    path: PathBuf,
    object: Option<Object>,
}

/// An object, in the version that was found when the table was listed.
#[derive(Clone)]
struct Object {
    store: Arc<dyn ObjectStore>,
    meta: Arc<ObjectMeta>,
}

impl FilePath {
    /// The file that DataFusion knows as an object of a store. `root` is the URI of the store, `None` for files of this host.
    pub(super) fn of(
        root: Option<&str>,
        store: &Arc<dyn ObjectStore>,
        meta: &ObjectMeta,
    ) -> object_store::Result<Self> {
        Ok(match root {
            None => LocalFileSystem::new().path_to_filesystem(&meta.location)?.into(),
            Some(root) => Self {
                path: format!("{root}/{}", meta.location).into(),
                object: Some(Object { store: store.clone(), meta: Arc::new(meta.clone()) }),
            },
        })
    }

    /// Opens it. The result may be read only where a thread may block.
    pub(super) fn open(&self) -> io::Result<Input> {
        Ok(match &self.object {
            None => Input::File(File::open(&self.path)?),
            Some(object) => Input::Object(Box::new(ObjectReader::new(object.clone()))),
        })
    }

    /// Its size.
    pub(super) fn bytes(&self) -> io::Result<u64> {
        match &self.object {
            None => Ok(self.path.metadata()?.len()),
            Some(object) => Ok(object.meta.size),
        }
    }

    /// Whether reading it waits for a network.
    pub(super) fn is_remote(&self) -> bool {
        self.object.is_some()
    }
}

impl From<PathBuf> for FilePath {
    fn from(path: PathBuf) -> Self {
        Self { path, object: None }
    }
}

#[cfg(test)]
impl From<&str> for FilePath {
    fn from(path: &str) -> Self {
        PathBuf::from(path).into()
    }
}

impl Deref for FilePath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl fmt::Debug for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

impl PartialEq for FilePath {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for FilePath {}

impl Hash for FilePath {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.path.hash(state);
    }
}

/// The bytes of an open file.
pub(super) enum Input {
    File(File),
    Object(Box<ObjectReader>),
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::Object(object) => object.read(buffer),
        }
    }
}

impl Seek for Input {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Self::File(file) => file.seek(to),
            Self::Object(object) => object.seek(to),
        }
    }
}

/// Reads an object piece by piece, and requests the next piece while one is read.
pub(super) struct ObjectReader {
    object: Object,
    position: u64,
    piece: Bytes,
    /// Where the piece begins.
    start: u64,
    /// Bytes of the next request.
    next_bytes: u64,
    /// The piece that was requested ahead.
    ahead: Option<(Range<u64>, Request)>,
}

/// A request that ends when it is dropped.
struct Request(JoinHandle<object_store::Result<Bytes>>);

impl Drop for Request {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ObjectReader {
    fn new(object: Object) -> Self {
        Self { object, position: 0, piece: Bytes::new(), start: 0, next_bytes: PIECE_BYTES_MIN, ahead: None }
    }

    /// The range of the next request from an offset on.
    fn range(&mut self, start: u64) -> Range<u64> {
        let end = start.saturating_add(self.next_bytes).min(self.object.meta.size);
        self.next_bytes = (4 * self.next_bytes).min(PIECE_BYTES_MAX);
        start..end
    }

    fn request(&self, range: Range<u64>) -> Request {
        let Object { store, meta } = self.object.clone();
        // A weak tag never matches.
        let tag = meta.e_tag.clone().filter(|tag| !tag.starts_with("W/"));
        let options = GetOptions { if_match: tag, range: Some(range.into()), ..GetOptions::default() };
        Request(
            Handle::current()
                .spawn(async move { store.get_opts(&meta.location, options).await?.bytes().await }),
        )
    }

    /// Waits for the bytes at the position.
    fn fetch(&mut self) -> io::Result<()> {
        let (range, mut request) = match self.ahead.take() {
            Some((range, request)) if range.start == self.position => (range, request),
            _ => {
                // Somewhere else: little may be wanted there.
                self.next_bytes = PIECE_BYTES_MIN;
                let range = self.range(self.position);
                (range.clone(), self.request(range))
            }
        };
        if range.end < self.object.meta.size {
            let next = self.range(range.end);
            self.ahead = Some((next.clone(), self.request(next)));
        }
        let piece = Handle::current()
            .block_on(&mut request.0)
            .map_err(io::Error::other)?
            .map_err(io::Error::other)?;
        if piece.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        (self.piece, self.start) = (piece, range.start);
        Ok(())
    }
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.object.meta.size || buffer.is_empty() {
            return Ok(0);
        }
        let end = self.start + self.piece.len() as u64;
        if !(self.start..end).contains(&self.position) {
            self.fetch()?;
        }
        let offset = usize::try_from(self.position - self.start).map_err(io::Error::other)?;
        let rest = &self.piece[offset..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for ObjectReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.object.meta.size.checked_add_signed(by),
        };
        self.position = position.ok_or(ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::object_store::memory::InMemory;
    use datafusion::object_store::path::Path as Key;
    use datafusion::object_store::{ObjectStoreExt as _, PutPayload};
    use proptest::prelude::*;

    use super::*;

    async fn object(bytes: Vec<u8>) -> FilePath {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let key = Key::from("a");
        store.put(&key, PutPayload::from(bytes)).await.unwrap();
        let meta = store.head(&key).await.unwrap();
        FilePath::of(Some("s3://b"), &store, &meta).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// An object is read like a file, wherever a reader seeks.
        #[test]
        fn objects_read_like_files(
            size in 0_usize..3_000_000,
            reads in proptest::collection::vec((0_u64..3_200_000, any::<bool>(), 1_usize..700_000), 1..12),
        ) {
            let bytes: Vec<u8> = (0..size).map(|n| ((n * 31) >> 7) as u8).collect();
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let path = runtime.block_on(object(bytes.clone()));
            prop_assert_eq!(path.display().to_string(), "s3://b/a");
            let done = runtime.spawn_blocking(move || {
                let (mut input, mut file) = (path.open().unwrap(), io::Cursor::new(bytes));
                for (offset, seeks, count) in reads {
                    if seeks {
                        assert_eq!(input.seek(SeekFrom::Start(offset)).unwrap(), offset);
                        file.seek(SeekFrom::Start(offset)).unwrap();
                    }
                    let (mut found, mut expected) = (Vec::new(), Vec::new());
                    input.by_ref().take(count as u64).read_to_end(&mut found).unwrap();
                    file.by_ref().take(count as u64).read_to_end(&mut expected).unwrap();
                    assert!(found == expected, "{} bytes at {offset}", found.len());
                }
            });
            runtime.block_on(done).unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_object_that_changes_while_it_is_read_is_an_error() {
        let path = object(vec![1; 2_000_000]).await;
        let Some(Object { store, meta }) = &path.object else { panic!("an object") };
        let mut input = path.open().unwrap();
        let store = store.clone();
        let location = meta.location.clone();
        let read = async |mut input: Input| {
            tokio::task::spawn_blocking(move || {
                let mut buffer = vec![0; 100_000];
                let first = input.read(&mut buffer);
                let all = first.and_then(|_| input.read_to_end(&mut buffer));
                (input, all)
            })
            .await
            .unwrap()
        };
        store.put(&location, PutPayload::from(vec![2; 2_000_000])).await.unwrap();
        input.seek(SeekFrom::Start(5)).unwrap();
        let (_, outcome) = read(input).await;
        assert!(outcome.is_err());
    }
}
