//! Generators and real servers for tests and benchmarks.

pub mod arrays;
pub mod mariadb;
pub mod postgres;
pub mod tpch;
