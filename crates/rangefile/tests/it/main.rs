//! Nodes with their own disks, and clients, in one process.

mod file;
mod measure;
mod merges;
mod reception;
mod sockets;
mod splits;
mod support;
