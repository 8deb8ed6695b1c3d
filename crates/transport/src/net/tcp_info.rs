//! The system's statistics of a TCP connection.

use std::mem::size_of;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd};
use std::time::Duration;

use super::Connection;

/// `struct tcp_info` of Linux (include/uapi/linux/tcp.h), as far as it is used here.
/// The struct in libc lacks the fields added in Linux 4.9.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TcpInfo {
    state: [u8; 8],
    timers: [u32; 2],
    pub(super) segment_bytes: u32,
    counters: [u32; 12],
    rtt_us: u32,
    rtt_variance_us: u32,
    slow_start_threshold: u32,
    pub(super) window_segments: u32,
    receiver: [u32; 5],
    pacing: [u64; 2],
    pub(super) acked_bytes: u64,
    received_bytes: u64,
    sent_segments: u32,
    pub(super) received_segments: u32,
    pub(super) unsent_bytes: u32,
    least_rtt_us: u32,
    data_segments: [u32; 2],
    delivery_rate: u64,
    pub(super) busy_us: u64,
    limited_us: [u64; 2],
    delivered: [u32; 2],
    sent_bytes: [u64; 2],
    seen: [u32; 2],
    /// Segments received out of order. Since Linux 5.4; 0 before.
    pub(super) out_of_order_segments: u32,
    send_window: u32,
}

/// The part of the struct that the system must fill.
const NEEDED_BYTES: usize = std::mem::offset_of!(TcpInfo, limited_us);

const _: () = assert!(std::mem::offset_of!(TcpInfo, rtt_us) == 68);
const _: () = assert!(std::mem::offset_of!(TcpInfo, window_segments) == 80);
const _: () = assert!(std::mem::offset_of!(TcpInfo, acked_bytes) == 120);
const _: () = assert!(std::mem::offset_of!(TcpInfo, received_segments) == 140);
const _: () = assert!(std::mem::offset_of!(TcpInfo, unsent_bytes) == 144);
const _: () = assert!(std::mem::offset_of!(TcpInfo, busy_us) == 168);
const _: () = assert!(std::mem::offset_of!(TcpInfo, out_of_order_segments) == 224);

/// TCP segments received on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentsSeen {
    /// All of them.
    pub received: u32,
    /// Segments that arrived before one that was sent earlier, which was lost or overtaken.
    pub out_of_order: u32,
}

impl Connection {
    /// The segments of this connection so far; `None` if it is not TCP or the system does not report them.
    pub fn segments(&self) -> Option<SegmentsSeen> {
        let info = TcpInfo::of(self.tcp.upgrade()?.as_fd())?;
        Some(SegmentsSeen { received: info.received_segments, out_of_order: info.out_of_order_segments })
    }
}

impl TcpInfo {
    /// The smoothed round-trip time.
    pub(super) fn rtt(&self) -> Duration {
        Duration::from_micros(self.rtt_us.into())
    }

    /// The time for `bytes` at the rate at which the last ones were delivered. After a burst, `busy_us` is too
    /// short, because it is counted in ticks; use the longer of both times.
    pub(super) fn delivery_time(&self, bytes: u64) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.delivery_rate as f64).unwrap_or_default()
    }

    /// The statistics of a connection; `None` if the system does not report all of them.
    #[cfg(target_os = "linux")]
    pub(super) fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let mut info = Self::default();
        let mut bytes = size_of::<Self>() as libc::socklen_t;
        // SAFETY: `info` has only integers, for which all bytes are valid. The call writes at most `bytes`
        // bytes, which is its size. The descriptor is open while it is borrowed.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut bytes,
            )
        };
        (result == 0 && bytes as usize >= NEEDED_BYTES).then_some(info)
    }

    /// Not supported on other systems.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn of(_: BorrowedFd<'_>) -> Option<Self> {
        None
    }
}
