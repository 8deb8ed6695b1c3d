//! Measures the rate at which a producer's socket carries bytes to the consumer.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::net::TcpStream;

use super::tcp_info::TcpInfo;
use crate::adapt::{Bandwidth, Carried};

/// The kernel buffers at most this much beyond TCP's window: unsent bytes can't be encoded again with
/// another codec, and say nothing about the link.
const UNSENT_BYTES_MAX: u32 = 256 << 10;
/// The busy time of the first interval. The kernel counts busy time in ticks of up to 10 ms, so the first
/// measurement is early but rough.
const FIRST_INTERVAL_BUSY: Duration = Duration::from_millis(20);
/// The busy time of later intervals, whose measurements are more precise.
const INTERVAL_BUSY: Duration = Duration::from_millis(40);
/// An interval with less busy time ends after this.
const INTERVAL: Duration = Duration::from_millis(100);

/// Until a link to another host has been measured, it is assumed to be no faster than this (1 Gbit/s).
const UNSEEN_BYTES_PER_NS: f64 = 0.125;

/// Watches one connection.
pub(super) struct Meter {
    /// The socket, if the system reports what arrived. Otherwise, what the system took is counted.
    socket: Option<OwnedFd>,
    bandwidth: Bandwidth,
    written_bytes: u64,
    writing: Duration,
    before: Seen,
    interval_busy: Duration,
}

/// The state at some moment.
#[derive(Clone, Copy)]
struct Seen {
    at: Instant,
    /// The system's statistics, if available.
    tcp: Option<TcpInfo>,
    written_bytes: u64,
    writing: Duration,
}

impl Meter {
    /// A meter for a TCP connection.
    pub(super) fn tcp(stream: &TcpStream) -> Self {
        let within_host = stream.peer_addr().is_ok_and(|peer| peer.ip().is_loopback());
        let most = if within_host { f64::INFINITY } else { UNSEEN_BYTES_PER_NS };
        Self::new(stream.as_fd().try_clone_to_owned().ok(), most)
    }

    /// A meter for any other connection.
    pub(super) fn other() -> Self {
        Self::new(None, f64::INFINITY)
    }

    fn new(socket: Option<OwnedFd>, bytes_per_ns_max: f64) -> Self {
        let tcp = socket.as_ref().and_then(|socket| TcpInfo::of(socket.as_fd()));
        let rtt = tcp.map_or(Duration::ZERO, |tcp| tcp.rtt());
        let mut bandwidth = Bandwidth::new(rtt);
        if let Some(tcp) = tcp {
            let window_bytes = u64::from(tcp.window_segments) * u64::from(tcp.segment_bytes);
            bandwidth.expect(window_bytes, rtt, bytes_per_ns_max);
        }
        let before = Seen { at: Instant::now(), tcp, written_bytes: 0, writing: Duration::ZERO };
        Self {
            socket,
            bandwidth,
            written_bytes: 0,
            writing: Duration::ZERO,
            before,
            interval_busy: FIRST_INTERVAL_BUSY,
        }
    }

    /// Limits what the kernel buffers from now on, so that measurements are early and a change of codec takes
    /// effect at once.
    pub(super) fn attend(&self) {
        if let Some(socket) = &self.socket
            && let Err(error) = SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_BYTES_MAX)
        {
            tracing::debug!(%error, "cannot limit what the socket buffers");
        }
    }

    /// Counts a write to the socket.
    pub(super) fn wrote(&mut self, bytes: u64, took: Duration) {
        self.written_bytes += bytes;
        self.writing += took;
    }

    /// Whether the link is the bottleneck.
    pub(super) fn is_saturated(&self) -> bool {
        self.bandwidth.is_saturated()
    }

    /// The link's rate in bytes per nanosecond; `None` while unknown.
    pub(super) fn bytes_per_ns(&mut self, now: Instant) -> Option<f64> {
        let tcp = self.socket.as_ref().and_then(|socket| TcpInfo::of(socket.as_fd()));
        let seen = Seen { at: now, tcp, written_bytes: self.written_bytes, writing: self.writing };
        let wrote = self.writing.saturating_sub(self.before.writing);
        let passed = now.saturating_duration_since(self.before.at);
        let (bytes, busy, saturated) = match (tcp, self.before.tcp) {
            (Some(now), Some(before)) => {
                let bytes = now.acked_bytes.saturating_sub(before.acked_bytes);
                let busy = Duration::from_micros(now.busy_us.saturating_sub(before.busy_us));
                let saturated = now.unsent_bytes > 0 && before.unsent_bytes > 0;
                (bytes, if saturated { passed } else { busy.max(now.delivery_time(bytes)) }, saturated)
            }
            _ => (self.written_bytes.saturating_sub(self.before.written_bytes), wrote, wrote * 2 >= passed),
        };
        if busy >= self.interval_busy || passed >= INTERVAL {
            self.bandwidth.observe(Carried { bytes, busy, saturated });
            self.before = seen;
            self.interval_busy = INTERVAL_BUSY;
        }
        self.bandwidth.bytes_per_ns()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn bytes_that_arrive_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let mut meter = Meter::tcp(&server);
        meter.attend();
        // The first window is known before anything is sent.
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
    fn without_statistics_of_the_system_writes_are_timed() {
        let mut meter = Meter::other();
        let began = meter.before.at;
        assert_eq!(meter.bytes_per_ns(began), None);
        let second = Duration::from_secs(1);
        meter.wrote(1_250_000, second);
        let rate = meter.bytes_per_ns(began + second).unwrap();
        assert!((rate - 1.25e-3).abs() < 1e-6, "{rate}");
    }
}
