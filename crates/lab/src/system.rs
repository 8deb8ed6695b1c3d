//! Linux system calls that the standard library lacks.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

/// Moves this thread into a network namespace. Safe between fork and exec: it allocates
/// nothing and takes no lock.
pub(crate) fn enter_network(namespace: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open while it is borrowed; nothing else is passed.
    done(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// Moves this thread into a new network namespace.
pub(crate) fn leave_network() -> io::Result<()> {
    // SAFETY: it takes a number.
    done(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// Moves this process into a new mount namespace. What it mounts from now on is unmounted when
/// it ends.
pub(crate) fn own_mounts() -> io::Result<()> {
    // SAFETY: it takes a number.
    done(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: the path ends with a zero; changing the propagation of mounts reads nothing else.
    done(unsafe { libc::mount(ptr::null(), c"/".as_ptr(), ptr::null(), flags, ptr::null()) })
}

/// Mounts an empty file system over a folder.
pub(crate) fn hide(folder: &CStr) -> io::Result<()> {
    let kind = c"tmpfs".as_ptr();
    // SAFETY: all strings end with a zero; there are no options.
    done(unsafe { libc::mount(kind, folder.as_ptr(), kind, 0, ptr::null()) })
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    // SAFETY: it takes nothing and can't fail.
    unsafe { libc::geteuid() == 0 }
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
