//! The engine, from outside.

mod cluster;
mod cluster_faults;
mod cluster_limits;
mod cluster_overlay;
mod proxy;
mod pushdown;
mod support;
