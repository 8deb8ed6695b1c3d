//! Nodes in one process, over real sockets.

mod messages;
mod peers;
mod security;
mod support;
