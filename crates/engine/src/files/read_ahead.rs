//! Reads the next bytes on another thread while the caller uses the last ones.

use std::io::{self, Read};
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use tokio::runtime::Handle;

use super::bytes::Bytes;
use super::text::CHUNK_BYTES;
use crate::threads;

/// The thread starts after this many bytes: often only the beginning of a file is read.
const BEGINNING_BYTES: usize = 256 << 10;

/// Chunks that wait to be read. With the one being filled and the one being read, at most 1 MiB is held.
const CHUNKS_MAX: usize = 2;

/// A reader of bytes that take time to produce, such as decompressed ones.
pub(super) enum ReadAhead {
    /// How many have been read.
    Beginning(Bytes, usize),
    Ahead(Chunks),
}

/// What the other thread has read.
pub(super) struct Chunks {
    /// The last one is empty, or an error.
    arriving: Receiver<io::Result<Vec<u8>>>,
    /// `None` once it was joined.
    thread: Option<JoinHandle<()>>,
    chunk: Vec<u8>,
    given: usize,
    has_ended: bool,
}

impl ReadAhead {
    pub(super) fn new(bytes: Bytes) -> Self {
        Self::Beginning(bytes, 0)
    }
}

impl Read for ReadAhead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Ahead(chunks) => chunks.read(buffer),
            Self::Beginning(bytes, count) if *count < BEGINNING_BYTES => {
                let read = bytes.read(buffer)?;
                *count += read;
                Ok(read)
            }
            Self::Beginning(bytes, _) => {
                let mut chunks = Chunks::begin(std::mem::replace(bytes, Box::new(io::empty())))?;
                let read = chunks.read(buffer);
                *self = Self::Ahead(chunks);
                read
            }
        }
    }
}

impl Chunks {
    fn begin(bytes: Bytes) -> io::Result<Self> {
        let (send, arriving) = sync_channel(CHUNKS_MAX);
        // Objects of a store are requested in the caller's runtime.
        let runtime = Handle::try_current().ok();
        let thread = threads::spawn(move || {
            let _entered = runtime.as_ref().map(Handle::enter);
            read_all(bytes, &send);
        });
        let thread = Some(thread.map_err(io::Error::other)?);
        Ok(Self { arriving, thread, chunk: Vec::new(), given: 0, has_ended: false })
    }

    /// The next chunk; an empty one after the last.
    fn next(&mut self) -> io::Result<Vec<u8>> {
        match self.arriving.recv() {
            Ok(chunk) => chunk,
            // The caller reports a panic of a decoder.
            Err(_) => match self.thread.take().map(JoinHandle::join) {
                Some(Err(panic)) => resume_unwind(panic),
                _ => Ok(Vec::new()),
            },
        }
    }
}

/// Sends all bytes as soon as they arrive; stops when the receiver is dropped.
fn read_all(mut bytes: Bytes, send: &SyncSender<io::Result<Vec<u8>>>) {
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let read = match bytes.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
            Ok(count) => {
                chunk.truncate(count);
                Ok(chunk)
            }
        };
        let is_last = read.as_ref().map_or(true, Vec::is_empty);
        if send.send(read).is_err() || is_last {
            return;
        }
    }
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given == self.chunk.len() && !self.has_ended {
            let next = self.next();
            self.has_ended = next.as_ref().map_or(true, Vec::is_empty);
            (self.chunk, self.given) = (next?, 0);
        }
        let count = buffer.len().min(self.chunk.len() - self.given);
        buffer[..count].copy_from_slice(&self.chunk[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Gives the pieces that it is sent, one at a time; says when it is dropped.
    struct Pieces(Receiver<Vec<u8>>, Sender<()>);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.recv() {
                Ok(piece) if piece == b"!" => Err(io::Error::other("broken")),
                Ok(piece) if piece == b"?" => panic!("a decoder's fault"),
                Ok(piece) => {
                    buffer[..piece.len()].copy_from_slice(&piece);
                    Ok(piece.len())
                }
                Err(_) => Ok(0),
            }
        }
    }

    impl Drop for Pieces {
        fn drop(&mut self) {
            let _ = self.1.send(());
        }
    }

    fn begun() -> (Sender<Vec<u8>>, Receiver<()>, ReadAhead) {
        let (send, pieces) = channel();
        let (dropped, is_dropped) = channel();
        let mut ahead = ReadAhead::new(Box::new(Pieces(pieces, dropped)));
        send.send(vec![7; BEGINNING_BYTES]).unwrap();
        ahead.read_exact(&mut vec![0; BEGINNING_BYTES]).unwrap();
        (send, is_dropped, ahead)
    }

    #[test]
    fn all_bytes_arrive_in_order() {
        for count in [0, 1, BEGINNING_BYTES, BEGINNING_BYTES + 1, 3 * BEGINNING_BYTES + 17] {
            let bytes: Vec<u8> = (0..count).map(|index| (index / 7) as u8).collect();
            let mut found = Vec::new();
            let mut ahead = ReadAhead::new(Box::new(io::Cursor::new(bytes.clone())));
            ahead.read_to_end(&mut found).unwrap();
            assert!(found == bytes, "{count}");
            assert_eq!(ahead.read(&mut [0]).unwrap(), 0);
        }
    }

    #[test]
    fn bytes_are_given_as_soon_as_they_are_there_and_errors_after_them() {
        let (send, _, mut ahead) = begun();
        let mut buffer = [0; 10];
        for piece in [&b"ab"[..], b"c"] {
            send.send(piece.to_vec()).unwrap();
            let count = ahead.read(&mut buffer).unwrap();
            assert_eq!(&buffer[..count], piece);
        }
        send.send(b"d".to_vec()).unwrap();
        send.send(b"!".to_vec()).unwrap();
        assert_eq!(ahead.read(&mut buffer).unwrap(), 1);
        assert_eq!(ahead.read(&mut buffer).unwrap_err().to_string(), "broken");
        assert_eq!(ahead.read(&mut buffer).unwrap(), 0);
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let (send, _, mut ahead) = begun();
        send.send(b"?".to_vec()).unwrap();
        let panic = catch_unwind(AssertUnwindSafe(|| ahead.read(&mut [0]))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a decoder's fault"));
    }

    #[test]
    fn the_thread_ends_when_its_bytes_are_not_wanted() {
        let (send, is_dropped, mut ahead) = begun();
        send.send(b"a".to_vec()).unwrap();
        assert_eq!(ahead.read(&mut [0]).unwrap(), 1);
        drop(ahead);
        send.send(b"b".to_vec()).unwrap();
        is_dropped.recv().unwrap();
    }
}
