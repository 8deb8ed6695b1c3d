//! Tests of client and server over loopback.

mod cells;
mod hostile;
mod support;
mod sweeps;
