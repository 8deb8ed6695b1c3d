//! Runs several nodes in one process, over real sockets.

mod epochs;
mod links;
mod messages;
mod peers;
mod security;
mod support;
mod tunnels;
