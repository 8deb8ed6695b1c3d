//! Runs several nodes in one process, over real sockets.

mod circuits;
mod epochs;
mod messages;
mod peers;
mod security;
mod support;
