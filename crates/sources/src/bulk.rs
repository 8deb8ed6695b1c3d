//! Reading much from a socket without being woken for every little.
//!
//! A server that sends rows in pieces of 8 KB wakes its reader for each of them, and both pay for it: for PostgreSQL
//! on the same host a tenth of the processors' time. While much arrives, [`Bulk`] asks the system to wait for more
//! (`SO_RCVLOWAT`). What is less than that, such as the end of a result, arrives a millisecond later.

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// The reader is woken for so much.
const LOW_WATER_BYTES: libc::c_int = 64 << 10;
/// Much is arriving once so much has arrived without a pause.
const BULK_BYTES: usize = 1 << 20;
/// For so long less than the low water is waited for.
const PAUSE: Duration = Duration::from_millis(1);

/// A TCP connection over which results arrive.
pub(crate) struct Bulk {
    tcp: TcpStream,
    /// Bytes that have arrived since the latest pause.
    arrived: usize,
    /// While much arrives: the end of the wait for more.
    pause: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl Bulk {
    pub(crate) fn new(tcp: TcpStream) -> Self {
        Self { tcp, arrived: 0, pause: None, is_waiting: false }
    }

    fn poll_read_tcp(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncRead for Bulk {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let filled = buf.filled().len();
        if this.poll_read_tcp(cx, buf)?.is_pending() {
            let Some(pause) = &mut this.pause else { return Poll::Pending };
            if !this.is_waiting {
                this.is_waiting = true;
                pause.as_mut().reset(Instant::now() + PAUSE);
            }
            ready!(pause.as_mut().poll(cx));
            // It is less that arrives now. The system wakes the reader for what is there already.
            this.pause = None;
            this.arrived = 0;
            set_low_water(&this.tcp, 1);
            ready!(this.poll_read_tcp(cx, buf))?;
        }
        this.is_waiting = false;
        this.arrived = this.arrived.saturating_add(buf.filled().len() - filled);
        if this.arrived >= BULK_BYTES && this.pause.is_none() && set_low_water(&this.tcp, LOW_WATER_BYTES) {
            this.pause = Some(Box::pin(sleep(PAUSE)));
        }
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

/// Whether the system has taken it; the reader does without where it has not.
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

    #[tokio::test]
    async fn what_is_less_than_the_low_water_arrives_too() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let (sender, receiver) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut sender, mut receiver) =
            (sender.expect("connected"), Bulk::new(receiver.expect("accepted").0));
        // Much, then little and nothing after it, again and again; the sender waits for an answer in between.
        const MUCH: usize = 3 * BULK_BYTES + 7;
        let send = async {
            for _ in 0..5 {
                for piece in vec![1; MUCH].chunks(8192) {
                    sender.write_all(piece).await.expect("sent");
                }
                sender.read_u8().await.expect("the answer");
                sender.write_all(b"little").await.expect("sent");
                sender.read_u8().await.expect("the answer");
            }
        };
        let receive = async {
            let (mut much, mut little) = (vec![0; MUCH], [0; 6]);
            for _ in 0..5 {
                receiver.read_exact(&mut much).await.expect("much");
                receiver.write_u8(0).await.expect("the answer");
                receiver.read_exact(&mut little).await.expect("little");
                assert_eq!(&little, b"little");
                receiver.write_u8(0).await.expect("the answer");
            }
        };
        tokio::join!(send, receive);
        drop(sender);
        assert_eq!(receiver.read(&mut [0; 8]).await.expect("the end"), 0);
    }
}
