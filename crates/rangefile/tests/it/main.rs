//! Nodes with their own disks, and clients, in one process.

mod file;
mod merges;
mod splits;
mod support;
