//! Addresses of this host.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, Ordering};

/// A loopback address of which no other test takes ports, nor any connection that goes out: a node that is
/// started again finds its port free.
pub fn own_host() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    // Connections that go out are from 127.0.0.1.
    Ipv4Addr::new(127, NEXT.fetch_add(1, Ordering::Relaxed).max(1), high, low)
}
