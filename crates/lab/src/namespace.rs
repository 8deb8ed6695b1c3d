//! Network namespaces, each held only by an open file. When the file is closed and the last
//! process inside has ended, the kernel removes the namespace and its devices.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use crate::error::LabError;
use crate::group::Group;
use crate::system::{enter_network, leave_network};

/// A network namespace.
#[derive(Debug, Clone)]
pub(crate) struct Namespace {
    file: Arc<File>,
}

impl Namespace {
    /// Creates a namespace with its loopback up.
    pub(crate) fn new() -> Result<Self, LabError> {
        // Use a thread of its own, because a thread that leaves its namespace can't return to it.
        let made = on_a_thread(|| {
            leave_network()?;
            File::open("/proc/thread-self/ns/net")
        });
        let file = made.map_err(LabError::io("can't create a network namespace"))?;
        let this = Self { file: Arc::new(file) };
        this.tool("ip link set lo up")?;
        Ok(this)
    }

    /// The namespace of a process.
    pub(crate) fn of(pid: u32) -> Result<Self, LabError> {
        let path = format!("/proc/{pid}/ns/net");
        Ok(Self { file: Arc::new(File::open(&path).map_err(LabError::io(path))?) })
    }

    /// A path by which `ip` can find the namespace while this process lives.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Runs `f` on a thread inside the namespace. Sockets and processes that it creates stay inside.
    pub(crate) fn run<T: Send>(&self, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_a_thread(|| {
            enter_network(&self.file)?;
            f()
        })
    }

    /// Runs a program inside the namespace and waits for it. Spaces separate the words of `line`.
    pub(crate) fn tool(&self, line: &str) -> Result<(), LabError> {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or_default());
        enter(command.args(words), Some(self), None);
        let output = command.output().map_err(LabError::io(format!("can't run `{line}`")))?;
        if output.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(LabError::Tool { command: line.to_owned(), stderr })
    }
}

/// Makes `command` join the group and the namespace before it executes its program.
pub(crate) fn enter(command: &mut Command, namespace: Option<&Namespace>, group: Option<&Group>) {
    let namespace = namespace.cloned();
    let doors = group.map(Group::doors);
    let join = move || {
        // 0 stands for the process that writes it.
        doors.iter().flat_map(|doors| doors.iter()).try_for_each(|mut door| door.write_all(b"0"))?;
        if let Some(namespace) = &namespace {
            enter_network(&namespace.file)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec, `join` makes system calls on files that were opened
    // before. It allocates nothing and takes no lock; errors carry only the error number.
    unsafe { command.pre_exec(join) };
}

pub(crate) fn on_a_thread<T: Send>(f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("lab-namespace".into()).spawn_scoped(scope, f)?;
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}
