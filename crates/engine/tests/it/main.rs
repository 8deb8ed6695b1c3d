//! The engine, from outside.

mod cluster;
mod support;
