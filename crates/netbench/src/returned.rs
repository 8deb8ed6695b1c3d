//! Counts what servers send to this host while it floods them.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::net::TcpStream;

/// Bytes that have arrived over some connections, whether they have been read or still wait in the system's buffers:
/// servers begin to send before all connections are open, and a count of what is read would credit that backlog to the
/// time in which it is read.
#[derive(Debug, Default)]
pub(crate) struct ReturnedBytes {
    read: AtomicU64,
    streams: Mutex<Vec<Weak<TcpStream>>>,
}

impl ReturnedBytes {
    /// Counts also what waits to be read from `stream`, as long as it is open.
    pub(crate) fn watch(&self, stream: &Arc<TcpStream>) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(stream));
    }

    /// Adds bytes that have been read.
    pub(crate) fn add(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes that have arrived so far.
    pub(crate) fn arrived(&self) -> u64 {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = |stream: Arc<TcpStream>| rustix::io::ioctl_fionread(&*stream).map_err(io::Error::from);
        // A socket that fails has nothing that could still be read.
        let waiting: u64 =
            streams.iter().filter_map(Weak::upgrade).filter_map(|stream| waiting(stream).ok()).sum();
        waiting + self.read.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn bytes_count_when_they_arrive_and_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let stream = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
        let (mut server, _) = listener.accept().await.expect("accepted");
        let (stream, returned) = (Arc::new(stream), ReturnedBytes::default());
        returned.watch(&stream);
        server.write_all(&[1; 1000]).await.expect("written");
        stream.readable().await.expect("readable");
        assert_eq!(returned.arrived(), 1000);
        let read = stream.try_read(&mut [0; 300]).expect("read");
        returned.add(read);
        assert_eq!((read, returned.arrived()), (300, 1000));
        // What nobody reads any more does not count.
        drop(stream);
        assert_eq!(returned.arrived(), 300);
    }
}
