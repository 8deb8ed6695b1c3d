//! Readers of the counters of Linux, for the host and for processes. Nothing here is asynchronous: the kernel answers a
//! read of `/proc` at once.

mod cgroup;
mod clocks;
mod devices;
mod disk_bytes;
mod file;
mod host;
mod pids;
mod process;
mod quota;
mod selection;
mod stat_line;
mod threads;
mod waits;

pub(crate) use cgroup::{Limits, hidden};
pub(crate) use devices::{Disks, Interfaces, LOOPBACK, NETWORK};
pub(crate) use file::{Roots, TextBuffer};
pub(crate) use host::{Host, memory};
pub(crate) use process::{Process, ProcessContext, Tallies};
pub(crate) use selection::Finder;
