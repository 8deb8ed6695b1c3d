//! Tests of the engine through its public interface.

mod arithmetic;
mod cluster;
mod cluster_changes;
mod cluster_faults;
mod cluster_limits;
mod cluster_overlay;
mod cluster_plans;
mod files;
mod foreign_files;
mod meters;
mod parameters;
mod pushdown;
mod reasons;
mod spill;
mod statements;
mod support;
mod two_ways;
