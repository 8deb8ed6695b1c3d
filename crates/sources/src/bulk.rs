//! Reading a large result from a socket with fewer wake-ups.
//!
//! A server that sends rows in pieces of 8 KB wakes its receiver for each piece, which costs processor time at
//! both ends (decision 0020). While a large result arrives, [`Bulk`] sets the socket's low-water mark
//! (`SO_RCVLOWAT`), so that the system wakes the receiver only once per 64 KiB. Data below the mark, such as the
//! end of the result, is read one to two milliseconds later.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// The low-water mark while a large result arrives.
const LOW_WATER_BYTES: libc::c_int = 64 << 10;
/// A result is large once this much has arrived without a pause. Reading it takes far longer than the wait at its
/// end.
const LARGE_BYTES: usize = 8 << 20;
/// How long data below the mark waits for more. Tokio's timer rounds it up.
const PAUSE: Duration = Duration::from_millis(1);

/// A TCP connection over which results arrive.
pub(crate) struct Bulk {
    tcp: TcpStream,
    /// Whether rows of a result are expected; everything else is read as it arrives.
    rows_expected: Arc<AtomicBool>,
    /// Bytes of the result that have arrived since the latest pause.
    arrived_bytes: usize,
    latest: Instant,
    /// The timer of the wait for more data, while the mark is set.
    wait: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl Bulk {
    pub(crate) fn new(tcp: TcpStream, rows_expected: Arc<AtomicBool>) -> Self {
        let latest = Instant::now();
        Self { tcp, rows_expected, arrived_bytes: 0, latest, wait: None, is_waiting: false }
    }

    fn poll_read_tcp(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }

    /// Resets the mark, and reads the data below it, of which the runtime was not notified.
    fn poll_read_rest(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.wait = None;
        self.is_waiting = false;
        self.arrived_bytes = 0;
        set_low_water(&self.tcp, 1);
        let rest = (&*SockRef::from(&self.tcp)).read(buf.initialize_unfilled());
        match rest {
            Ok(bytes) => {
                buf.advance(bytes);
                Poll::Ready(Ok(()))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.poll_read_tcp(cx, buf),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Counts the bytes that have arrived, and sets the mark once the result is large.
    fn arrived(&mut self, bytes: usize) {
        let now = Instant::now();
        if now - self.latest > PAUSE {
            self.arrived_bytes = 0;
        }
        self.latest = now;
        self.arrived_bytes = self.arrived_bytes.saturating_add(bytes);
        if self.arrived_bytes >= LARGE_BYTES && self.wait.is_none() {
            self.arrived_bytes = 0;
            if set_low_water(&self.tcp, LOW_WATER_BYTES) {
                self.wait = Some(Box::pin(sleep(PAUSE)));
            }
        }
    }
}

impl AsyncRead for Bulk {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.rows_expected.load(Ordering::Relaxed) {
            this.arrived_bytes = 0;
            return match this.wait {
                Some(_) => this.poll_read_rest(cx, buf),
                None => this.poll_read_tcp(cx, buf),
            };
        }
        let filled = buf.filled().len();
        if this.poll_read_tcp(cx, buf)?.is_pending() {
            let Some(wait) = &mut this.wait else { return Poll::Pending };
            if !this.is_waiting {
                this.is_waiting = true;
                wait.as_mut().reset(Instant::now() + PAUSE);
            }
            ready!(wait.as_mut().poll(cx));
            return this.poll_read_rest(cx, buf);
        }
        this.is_waiting = false;
        this.arrived(buf.filled().len() - filled);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Bulk {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }
}

/// Returns whether the system supports the option. Without it the receiver reads as usual.
fn set_low_water(tcp: &TcpStream, bytes: libc::c_int) -> bool {
    let size = size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the descriptor is open as long as `tcp` is, and the option is an int that outlives the call.
    let set = unsafe {
        libc::setsockopt(
            tcp.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size,
        )
    };
    set == 0
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, Bulk, Arc<AtomicBool>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let (sender, receiver) = tokio::join!(TcpStream::connect(address), listener.accept());
        let rows_expected = Arc::new(AtomicBool::new(true));
        let receiver = Bulk::new(receiver.expect("accepted").0, rows_expected.clone());
        (sender.expect("connected"), receiver, rows_expected)
    }

    /// Sets the mark, as a large result does.
    fn set(receiver: &mut Bulk) {
        assert!(set_low_water(&receiver.tcp, LOW_WATER_BYTES));
        receiver.wait = Some(Box::pin(sleep(PAUSE)));
    }

    #[tokio::test]
    async fn the_end_of_a_large_result_arrives() {
        const LARGE: usize = 2 * LARGE_BYTES + 7;
        let (mut sender, mut receiver, _) = pair().await;
        // A large result, then a small one and nothing after it; the sender waits for an answer in between.
        let send = async {
            for _ in 0..3 {
                for piece in vec![1; LARGE].chunks(8192) {
                    sender.write_all(piece).await.expect("sent");
                }
                sender.read_u8().await.expect("the answer");
                sender.write_all(b"small").await.expect("sent");
                sender.read_u8().await.expect("the answer");
            }
        };
        let receive = async {
            let (mut large, mut small) = (vec![0; LARGE], [0; 5]);
            for _ in 0..3 {
                receiver.read_exact(&mut large).await.expect("the large result");
                receiver.write_u8(0).await.expect("the answer");
                receiver.read_exact(&mut small).await.expect("the small result");
                assert_eq!(&small, b"small");
                receiver.write_u8(0).await.expect("the answer");
            }
        };
        tokio::join!(send, receive);
    }

    #[tokio::test]
    async fn data_below_the_mark_is_read_after_a_pause_or_once_no_rows_are_expected() {
        let (mut sender, mut receiver, rows_expected) = pair().await;
        for expected in [true, false] {
            set(&mut receiver);
            let mut small = [0; 5];
            // There is no data at first, so that the runtime waits for the system's notification.
            assert!(futures::poll!(std::pin::pin!(receiver.read_exact(&mut small))).is_pending());
            rows_expected.store(expected, Ordering::Relaxed);
            sender.write_all(b"small").await.expect("sent");
            receiver.read_exact(&mut small).await.expect("the data");
            assert_eq!((&small, receiver.wait.is_none()), (b"small", true));
            rows_expected.store(true, Ordering::Relaxed);
        }
        // The end of the connection is reported at once.
        set(&mut receiver);
        drop(sender);
        assert_eq!(receiver.read(&mut [0; 8]).await.expect("the end"), 0);
    }

    #[tokio::test]
    async fn the_mark_is_set_once_a_large_result_arrives_without_a_pause() {
        let (_sender, mut receiver, _) = pair().await;
        receiver.arrived(LARGE_BYTES - 1);
        assert!(receiver.wait.is_none());
        receiver.latest = Instant::now();
        receiver.arrived(1);
        assert!(receiver.wait.is_some());
        let (_sender, mut receiver, _) = pair().await;
        receiver.arrived(LARGE_BYTES - 1);
        receiver.latest -= 2 * PAUSE;
        receiver.arrived(1);
        assert!(receiver.wait.is_none());
    }
}
