//! The kernel's list of TCP sockets (`NETLINK_SOCK_DIAG`, sock_diag(7)), which needs no permission.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The kernel answers at once. If it does not, the agent must not hang.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The kernel sends at most 32 KiB at a time (`NLMSG_GOODSIZE` and what a reader's buffer allows).
const ANSWER_BYTES_MAX: usize = 64 << 10;

// Numbers of include/uapi/linux/{netlink,sock_diag,inet_diag}.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST_DUMP: u16 = 0x1 | 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const INET_DIAG_INFO: u16 = 2;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
/// All states in which a socket has a peer: not time-wait (6), closed (7), listening (10) and new requests (12).
const STATES: u32 = 0xfff & !(1 << 6 | 1 << 7 | 1 << 10);
const HEADER_BYTES: usize = 16;
const DIAG_BYTES: usize = 72;

/// One TCP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Socket {
    /// Identifies it among all sockets since the host was started.
    pub(crate) cookie: u64,
    /// Of its file; 0 once its process has closed it.
    pub(crate) inode: u32,
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) counters: SocketCounters,
}

/// The counters of a socket: received, sent and acknowledged bytes, busy, receiver-limited and send-buffer-limited
/// time in microseconds, segments sent again, segments with data that were received and sent.
pub(crate) type SocketCounters = [u64; 8];

/// A connection to the kernel's list.
#[derive(Debug)]
pub(crate) struct SocketList {
    socket: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

impl SocketList {
    /// # Errors
    /// If the kernel has no such list.
    pub(crate) fn open() -> io::Result<Self> {
        let protocol = Some(SOCK_DIAG);
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        Ok(Self { socket, buffer: vec![0; ANSWER_BYTES_MAX], sequence: 0 })
    }

    /// Calls `each` with all TCP sockets of the network namespace that have a peer, up to `sockets_max`. Returns how
    /// many were left out.
    ///
    /// # Errors
    /// If the kernel refuses to list them, or lists nothing in time.
    pub(crate) fn list(&mut self, sockets_max: usize, mut each: impl FnMut(Socket)) -> io::Result<u64> {
        let (mut read, mut left_out) = (0, 0);
        for family in [AF_INET, AF_INET6] {
            self.sequence = self.sequence.wrapping_add(1);
            let request = request(family, self.sequence);
            rustix::net::sendto(&self.socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
            loop {
                let (bytes, _) = rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::empty())?;
                let answer = self.buffer.get(..bytes).unwrap_or_default();
                let done = messages(answer, self.sequence, |socket| {
                    if read < sockets_max {
                        read += 1;
                        each(socket);
                    } else {
                        left_out += 1;
                    }
                });
                if done? {
                    break;
                }
            }
        }
        Ok(left_out)
    }
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn request(family: u8, sequence: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(72);
    bytes.extend_from_slice(&72_u32.to_ne_bytes());
    bytes.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend_from_slice(&REQUEST_DUMP.to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&0_u32.to_ne_bytes());
    bytes.extend_from_slice(&[family, IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0]);
    bytes.extend_from_slice(&STATES.to_ne_bytes());
    // Any addresses.
    bytes.resize(72, 0);
    bytes
}

/// Reads the messages of one answer; true if it was the last one.
fn messages(mut bytes: &[u8], sequence: u32, mut each: impl FnMut(Socket)) -> io::Result<bool> {
    let cut = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is cut");
    while !bytes.is_empty() {
        let length = u32_at(bytes, 0).ok_or_else(cut)? as usize;
        let kind = u16_at(bytes, 4).ok_or_else(cut)?;
        let message = bytes.get(..length).filter(|message| message.len() >= HEADER_BYTES).ok_or_else(cut)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        // The rest of an earlier list that was not read to its end.
        if u32_at(message, 8) != Some(sequence) {
            continue;
        }
        let body = message.get(HEADER_BYTES..).unwrap_or_default();
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = u32_at(body, 0).ok_or_else(cut)?.cast_signed();
                return Err(io::Error::from_raw_os_error(code.saturating_neg()));
            }
            SOCK_DIAG_BY_FAMILY => {
                if let Some(socket) = socket(body) {
                    each(socket);
                }
            }
            _ => {}
        }
    }
    Ok(false)
}

/// `struct inet_diag_msg` and its attributes. `None` without `INET_DIAG_INFO`.
fn socket(body: &[u8]) -> Option<Socket> {
    let family = *body.first()?;
    let (local, remote) = (address(family, body, 8)?, address(family, body, 24)?);
    let cookie = u64::from(u32_at(body, 44)?) | u64::from(u32_at(body, 48)?) << 32;
    let inode = u32_at(body, 68)?;
    let mut attributes = body.get(DIAG_BYTES..)?;
    loop {
        let length = usize::from(u16_at(attributes, 0)?);
        if u16_at(attributes, 2)? == INET_DIAG_INFO {
            let info = attributes.get(4..length)?;
            return Some(Socket { cookie, inode, local, remote, counters: counters(info)? });
        }
        attributes = attributes.get(aligned(length.max(4))..)?;
    }
}

/// `struct tcp_info`: the fields since Linux 4.10, with their offsets. Later ones are not needed.
fn counters(info: &[u8]) -> Option<SocketCounters> {
    let retransmits = u32_at(info, 100)?.into();
    Some([
        u64_at(info, 128)?,
        u64_at(info, 120)?,
        u64_at(info, 168)?,
        u64_at(info, 176)?,
        u64_at(info, 184)?,
        retransmits,
        u32_at(info, 152)?.into(),
        u32_at(info, 156)?.into(),
    ])
}

fn address(family: u8, body: &[u8], offset: usize) -> Option<IpAddr> {
    match family {
        AF_INET => Some(Ipv4Addr::from(array_at::<4>(body, offset)?).into()),
        // IPv4 over a socket of IPv6 is IPv4.
        AF_INET6 => Some(IpAddr::from(Ipv6Addr::from(array_at::<16>(body, offset)?)).to_canonical()),
        _ => None,
    }
}

fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array_at(bytes, offset).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array_at(bytes, offset).map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array_at(bytes, offset).map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn both_ends_of_a_connection_are_listed_with_their_bytes() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(&[7; 12_345]).unwrap();
            server.read_exact(&mut [0; 12_345]).unwrap();
            let mut list = SocketList::open().unwrap();
            let mut received = 0;
            list.list(usize::MAX, |socket| {
                let [bytes, .., segments_received, segments_sent] = socket.counters;
                if bytes == 12_345 && socket.remote.is_loopback() {
                    received += 1;
                    assert!((1..100).contains(&segments_received) && segments_sent == 0, "{socket:?}");
                }
            })
            .unwrap();
            assert!(received >= 1);
            assert!(list.list(1, |_| ()).unwrap() >= 1, "two sockets, and one is read");
        }
    }

    #[test]
    fn cut_answers_are_errors_and_foreign_ones_are_skipped() {
        let mut bytes = request(AF_INET, 5);
        assert!(!messages(&bytes, 4, |_| panic!()).unwrap());
        assert!(!messages(&bytes, 5, |_| panic!()).unwrap(), "no information");
        for length in 1..bytes.len() {
            assert!(messages(&bytes[..length], 5, |_| panic!()).is_err());
        }
        bytes[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        bytes[16..20].copy_from_slice(&(-13_i32).to_ne_bytes());
        assert_eq!(messages(&bytes, 5, |_| ()).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        bytes[0..4].copy_from_slice(&0_u32.to_ne_bytes());
        assert!(messages(&bytes, 5, |_| ()).is_err(), "a message without a length would never end");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_end(bytes: Vec<u8>) {
            let _ = messages(&bytes, 0, |_| ());
            let _ = socket(&bytes);
        }
    }
}
