//! How fast a producer's socket carries bytes to the consumer.

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::net::TcpStream;

use crate::adapt::{Bandwidth, Carried};

/// The kernel takes no more than this beyond what TCP's window lets out: what is
/// not yet sent can't be encoded anew, and says nothing of the link.
const UNSENT_BYTES_MAX: u32 = 256 << 10;
/// The kernel counts busy time in ticks of up to 10 ms.
const INTERVAL_BUSY: Duration = Duration::from_millis(10);
/// An interval with less on its way ends after this.
const INTERVAL: Duration = Duration::from_millis(100);

/// Watches one connection.
pub(super) struct Meter {
    /// Where the system tells what arrived; else what it took is counted.
    socket: Option<OwnedFd>,
    bandwidth: Bandwidth,
    written_bytes: u64,
    writing: Duration,
    before: Seen,
}

/// What had happened up to some moment.
#[derive(Clone, Copy)]
struct Seen {
    at: Instant,
    /// By the system's account, where it has one.
    tcp: Option<TcpInfo>,
    written_bytes: u64,
    writing: Duration,
}

impl Meter {
    /// Of a TCP connection.
    pub(super) fn tcp(stream: &TcpStream) -> Self {
        Self::new(stream.as_fd().try_clone_to_owned().ok())
    }

    /// Of any other.
    pub(super) fn other() -> Self {
        Self::new(None)
    }

    fn new(socket: Option<OwnedFd>) -> Self {
        let tcp = socket.as_ref().and_then(|socket| TcpInfo::of(socket.as_fd()));
        let rtt = tcp.map_or(Duration::ZERO, |tcp| Duration::from_micros(tcp.rtt_us.into()));
        let mut bandwidth = Bandwidth::new(rtt);
        if let Some(tcp) = tcp {
            bandwidth.expect(u64::from(tcp.window_segments) * u64::from(tcp.segment_bytes), rtt);
        }
        let before = Seen { at: Instant::now(), tcp, written_bytes: 0, writing: Duration::ZERO };
        Self { socket, bandwidth, written_bytes: 0, writing: Duration::ZERO, before }
    }

    /// Keeps little in the kernel from now on, so that measures come early and a change of codec bites
    /// at once.
    pub(super) fn attend(&self) {
        if let Some(socket) = &self.socket
            && let Err(error) = SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_BYTES_MAX)
        {
            tracing::debug!(%error, "the socket buffers as much as it likes");
        }
    }

    /// So much was handed to the socket, which took so long.
    pub(super) fn wrote(&mut self, bytes: u64, took: Duration) {
        self.written_bytes += bytes;
        self.writing += took;
    }

    /// The link's rate in bytes a nanosecond; `None` while nothing is known.
    pub(super) fn bytes_per_ns(&mut self, now: Instant) -> Option<f64> {
        let tcp = self.socket.as_ref().and_then(|socket| TcpInfo::of(socket.as_fd()));
        let seen = Seen { at: now, tcp, written_bytes: self.written_bytes, writing: self.writing };
        let wrote = self.writing.saturating_sub(self.before.writing);
        let (bytes, busy) = match (tcp, self.before.tcp) {
            (Some(now), Some(before)) => (
                now.acked_bytes.saturating_sub(before.acked_bytes),
                Duration::from_micros(now.busy_us.saturating_sub(before.busy_us)),
            ),
            _ => (self.written_bytes.saturating_sub(self.before.written_bytes), wrote),
        };
        let passed = now.saturating_duration_since(self.before.at);
        if busy >= INTERVAL_BUSY || passed >= INTERVAL {
            self.bandwidth.observe(Carried { bytes, busy, saturated: wrote * 2 >= passed });
            self.before = seen;
        }
        self.bandwidth.bytes_per_ns()
    }
}

/// `struct tcp_info` of Linux (include/uapi/linux/tcp.h), as far as it is used here.
/// libc's ends before what was added with Linux 4.9.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct TcpInfo {
    state: [u8; 8],
    timers: [u32; 2],
    segment_bytes: u32,
    counters: [u32; 12],
    rtt_us: u32,
    rtt_variance_us: u32,
    slow_start_threshold: u32,
    window_segments: u32,
    receiver: [u32; 5],
    pacing: [u64; 2],
    acked_bytes: u64,
    received_bytes: u64,
    segments: [u32; 6],
    delivery_rate: u64,
    busy_us: u64,
}

const _: () = assert!(std::mem::offset_of!(TcpInfo, rtt_us) == 68);
const _: () = assert!(std::mem::offset_of!(TcpInfo, window_segments) == 80);
const _: () = assert!(std::mem::offset_of!(TcpInfo, acked_bytes) == 120);
const _: () = assert!(std::mem::offset_of!(TcpInfo, busy_us) == 168);

impl TcpInfo {
    /// What the system knows of a connection; nothing from a system that does not say all of it.
    #[cfg(target_os = "linux")]
    fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let mut info = Self::default();
        let mut bytes = size_of::<Self>() as libc::socklen_t;
        // SAFETY: `info` is plain integers, for which all bytes are valid, and has as many bytes as
        // the call is told; it writes no more than that. The descriptor is open while it is borrowed.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut bytes,
            )
        };
        (result == 0 && bytes as usize == size_of::<Self>()).then_some(info)
    }

    /// Other systems are not asked.
    #[cfg(not(target_os = "linux"))]
    fn of(_: BorrowedFd<'_>) -> Option<Self> {
        None
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_arrives_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let mut meter = Meter::tcp(&server);
        meter.attend();
        // The first window is known before anything was sent.
        let first = meter.bytes_per_ns(Instant::now()).unwrap();
        assert!(first > 0.0);
        let bytes = 64 << 20;
        let began = Instant::now();
        let reading = tokio::spawn(async move {
            let mut taken = vec![0; 1 << 20];
            while client.read(&mut taken).await.unwrap() > 0 {}
        });
        server.write_all(&vec![7; bytes]).await.unwrap();
        meter.wrote(bytes as u64, began.elapsed());
        let rate = meter.bytes_per_ns(Instant::now() + INTERVAL).unwrap();
        assert!(rate > 0.0 && rate.is_finite());
        assert!(meter.before.tcp.unwrap().acked_bytes > bytes as u64 / 2);
        server.shutdown().await.unwrap();
        reading.await.unwrap();
    }

    #[test]
    fn without_the_systems_help_writing_is_timed() {
        let mut meter = Meter::other();
        let began = meter.before.at;
        assert_eq!(meter.bytes_per_ns(began), None);
        let second = Duration::from_secs(1);
        meter.wrote(1_250_000, second);
        let rate = meter.bytes_per_ns(began + second).unwrap();
        assert!((rate - 1.25e-3).abs() < 1e-6, "{rate}");
    }
}
