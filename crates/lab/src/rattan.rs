//! Rattan, a path emulator that runs as a program. It adds delay and loss if the kernel
//! has no netem (<https://github.com/stack-rs/rattan>, 0.1.1).
//!
//! `rattan link … -- COMMAND` creates a namespace (its left), joins it to the one it
//! was started in (its right), and runs COMMAND inside. Our COMMAND reports its process id and
//! waits, so that other processes can enter the namespace. Rattan ends when it ends.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::error::LabError;
use crate::group::Group;
use crate::link::Shape;
use crate::namespace::{Namespace, enter};
use crate::system::{hide, own_mounts};

/// How long rattan may take to bring the link up.
const START_MAX: Duration = Duration::from_secs(20);
/// Writes its process id and the right address to its standard input, a socket, then waits
/// until the other end closes it.
const HOLDER: &str = r#"echo "$$ $RATTAN_BASE" >&0; exec cat >/dev/null"#;

/// A running link.
#[derive(Debug)]
pub(crate) struct Rattan {
    /// The namespace that it created.
    pub(crate) left: Namespace,
    pub(crate) left_address: IpAddr,
    pub(crate) right_address: IpAddr,
    process: Child,
    _holder: UnixStream,
}

impl Rattan {
    /// Joins a new namespace to `right`; `up` shapes the direction from left to right.
    pub(crate) fn start(
        program: &Path,
        [up, down]: [&Shape; 2],
        right: &Namespace,
        group: &Group,
    ) -> Result<Self, LabError> {
        let failed = LabError::Rattan;
        let binary = File::open(program).map_err(failed)?;
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let talk = io::stderr().as_fd().try_clone_to_owned().map_err(failed)?;
        // By file descriptor, because its path may be hidden when it is executed.
        let mut command = Command::new(format!("/proc/self/fd/{}", binary.as_raw_fd()));
        command
            .arg("link")
            .args(up.rattan("uplink"))
            .args(down.rattan("downlink"))
            .args(["--", "sh", "-c", HOLDER])
            .env("RUST_LOG", "error")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::from(talk))
            // Ctrl-C must reach only the command that uses the link.
            .process_group(0);
        enter(&mut command, Some(right), Some(group));
        // SAFETY: system calls with constant arguments; nothing allocates or takes locks.
        unsafe { command.pre_exec(hide_leftovers) };
        let process = command.spawn().map_err(failed)?;
        // This closes our copy of the holder's end of the socket, so that we notice if rattan fails.
        drop(command);

        ours.set_read_timeout(Some(START_MAX)).map_err(failed)?;
        let mut line = String::new();
        BufReader::new(&ours).read_line(&mut line).map_err(failed)?;
        let (pid, right_address) =
            holder(&line).ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))?;
        let left = Namespace::of(pid)?;
        let left_address = left.run(|| source_towards(right_address)).map_err(failed)?;
        Ok(Self { left, left_address, right_address, process, _holder: ours })
    }
}

impl Drop for Rattan {
    fn drop(&mut self) {
        // The guardian has probably killed it already, so errors are ignored.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Rattan keeps its namespaces as mounts under /run and its locks under /tmp. In a mount
/// namespace of its own, they disappear when it ends.
fn hide_leftovers() -> io::Result<()> {
    own_mounts()?;
    hide(c"/run")?;
    hide(c"/tmp")
}

fn holder(line: &str) -> Option<(u32, IpAddr)> {
    let (pid, address) = line.trim().split_once(' ')?;
    Some((pid.parse().ok()?, address.parse().ok()?))
}

/// The source address of packets to `peer`. Connecting a datagram socket sends nothing.
fn source_towards(peer: IpAddr) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect((peer, 9))?;
    Ok(socket.local_addr()?.ip())
}
