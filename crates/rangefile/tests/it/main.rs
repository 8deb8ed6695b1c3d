//! Nodes with their own disks, and clients, in one process.

mod file;
mod splits;
mod support;
