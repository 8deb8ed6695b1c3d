//! Nodes with their own disks, and clients, in one process.

mod file;
#[cfg(target_os = "linux")]
mod forgetful;
#[cfg(target_os = "linux")]
mod full;
mod measure;
mod merges;
mod reception;
mod sockets;
mod splits;
mod support;
