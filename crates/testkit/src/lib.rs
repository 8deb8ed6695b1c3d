//! Generators and real servers for tests and benchmarks.

pub mod arrays;
pub mod mariadb;
pub mod postgres;
mod rng;
pub mod tpch;
pub mod wide;
