//! The protocol over real sockets, with a service small enough to look into.

mod codecs;
mod ends;
mod limits;
mod pipes;
mod results;
mod shm;
mod sizes;
mod stalls;
mod statements;
mod streams;
mod support;
