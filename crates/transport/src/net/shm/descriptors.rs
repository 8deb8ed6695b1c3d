//! Sends and receives a file descriptor with the bytes of a Unix socket (unix(7), `SCM_RIGHTS`).

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use libc::{SCM_RIGHTS, SOL_SOCKET, c_uint, cmsghdr, msghdr};
use socket2::{MaybeUninitSlice, MsgHdr, MsgHdrMut, SockRef};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::net::lock;

/// A descriptor that waits to be sent, or that has arrived and was not taken yet.
pub(super) type Pending = Arc<Mutex<Option<OwnedFd>>>;

/// The maximum number of descriptors that the kernel passes at once (unix(7)). With room for all, none
/// can be received and lost.
const DESCRIPTORS_MAX: usize = 253;
/// Slices sent together with a descriptor; the rest follows in a later call.
const SLICES_MAX: usize = 64;

/// Control data of `N` words: aligned for the kernel's headers.
type Control<const N: usize> = [MaybeUninit<u64>; N];

/// Words of control data for a number of descriptors.
const fn control_words(descriptors: usize) -> usize {
    // SAFETY: only computes a number.
    let bytes = unsafe { libc::CMSG_SPACE((descriptors * size_of::<RawFd>()) as c_uint) };
    (bytes as usize).div_ceil(size_of::<u64>())
}

/// Reads a socket. A descriptor that arrives with the bytes is kept until it is taken.
pub(super) struct DescriptorReader {
    half: OwnedReadHalf,
    arrived: Pending,
}

impl DescriptorReader {
    pub(super) fn new(half: OwnedReadHalf, arrived: Pending) -> Self {
        Self { half, arrived }
    }
}

impl AsyncRead for DescriptorReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { half, arrived } = self.get_mut();
        let socket: &UnixStream = (*half).as_ref();
        loop {
            ready!(socket.poll_read_ready(cx))?;
            match socket.try_io(Interest::READABLE, || receive(socket, buf, arrived)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return Poll::Ready(received),
            }
        }
    }
}

fn receive(socket: &UnixStream, buf: &mut ReadBuf<'_>, arrived: &Pending) -> io::Result<()> {
    let mut control: Control<{ control_words(DESCRIPTORS_MAX) }> = [MaybeUninit::uninit(); _];
    let control_bytes = size_of_val(&control);
    // SAFETY: only the kernel writes there, and it writes only initialised bytes.
    let mut slices = [MaybeUninitSlice::new(unsafe { buf.unfilled_mut() })];
    // SAFETY: the same memory, as bytes.
    let room = unsafe { std::slice::from_raw_parts_mut(control.as_mut_ptr().cast(), control_bytes) };
    let mut message = MsgHdrMut::new().with_buffers(&mut slices).with_control(room);
    let read = SockRef::from(socket).recvmsg(&mut message, libc::MSG_CMSG_CLOEXEC)?;
    let control_bytes = message.control_len();
    // SAFETY: the kernel has just written this many bytes at the front.
    unsafe { buf.assume_init(read) };
    buf.advance(read);

    let mut came = descriptors(&control, control_bytes);
    if let Some(descriptor) = came.pop() {
        let mut arrived = lock(arrived);
        if arrived.is_some() || !came.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected file descriptors"));
        }
        *arrived = Some(descriptor);
    }
    Ok(())
}

/// The descriptors in control data, of which the kernel has written `control_bytes`.
fn descriptors(control: &[MaybeUninit<u64>], control_bytes: usize) -> Vec<OwnedFd> {
    let mut came = Vec::new();
    // SAFETY: all zeros is a valid, empty header.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    header.msg_control = control.as_ptr().cast_mut().cast();
    header.msg_controllen = control_bytes;
    // SAFETY: the kernel has written control data of this length in the format that these functions read. Their
    // pointers stay within it. A descriptor there is new and has no other owner.
    unsafe {
        let mut at: *const cmsghdr = libc::CMSG_FIRSTHDR(&header);
        while let Some(found) = at.as_ref() {
            if (found.cmsg_level, found.cmsg_type) == (SOL_SOCKET, SCM_RIGHTS) {
                let bytes = found.cmsg_len - libc::CMSG_LEN(0) as usize;
                let first: *const RawFd = libc::CMSG_DATA(at).cast();
                for n in 0..bytes / size_of::<RawFd>() {
                    came.push(OwnedFd::from_raw_fd(first.add(n).read_unaligned()));
                }
            }
            at = libc::CMSG_NXTHDR(&header, at);
        }
    }
    came
}

/// Control data that sends one descriptor.
fn rights(descriptor: RawFd) -> [u64; control_words(1)] {
    let mut control = [0; control_words(1)];
    let header = cmsghdr {
        // SAFETY: only computes a number.
        cmsg_len: unsafe { libc::CMSG_LEN(size_of::<RawFd>() as c_uint) } as _,
        cmsg_level: SOL_SOCKET,
        cmsg_type: SCM_RIGHTS,
    };
    // SAFETY: there is room for a header and a descriptor after it, and `u64` aligns both.
    unsafe {
        let first: *mut cmsghdr = control.as_mut_ptr().cast();
        first.write(header);
        libc::CMSG_DATA(first).cast::<RawFd>().write(descriptor);
    }
    control
}

/// Writes a socket. A waiting descriptor is sent with the next bytes.
pub(super) struct DescriptorWriter {
    half: OwnedWriteHalf,
    leaving: Pending,
}

impl DescriptorWriter {
    pub(super) fn new(half: OwnedWriteHalf, leaving: Pending) -> Self {
        Self { half, leaving }
    }
}

impl AsyncWrite for DescriptorWriter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { half, leaving } = self.get_mut();
        let mut leaving = lock(leaving);
        let Some(descriptor) = leaving.as_ref().map(AsRawFd::as_raw_fd) else {
            drop(leaving);
            return Pin::new(half).poll_write_vectored(cx, slices);
        };
        let socket: &UnixStream = (*half).as_ref();
        let control = rights(descriptor);
        // SAFETY: the same memory, as bytes.
        let control = unsafe { std::slice::from_raw_parts(control.as_ptr().cast(), size_of_val(&control)) };
        let slices = &slices[..slices.len().min(SLICES_MAX)];
        let message = MsgHdr::new().with_buffers(slices).with_control(control);
        let send = || SockRef::from(socket).sendmsg(&message, libc::MSG_NOSIGNAL);
        loop {
            ready!(socket.poll_write_ready(cx))?;
            match socket.try_io(Interest::WRITABLE, send) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => {
                    *leaving = None;
                    return Poll::Ready(sent);
                }
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().half).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().half).poll_shutdown(cx)
    }
}
