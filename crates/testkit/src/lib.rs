//! Data generators, real servers, and the comparison of results, for tests and benchmarks.

pub mod arrays;
pub mod linear;
pub mod loopback;
pub mod mariadb;
pub mod postgres;
pub mod proxy;
pub mod queries;
pub mod results;
mod rng;
pub mod s3;
pub mod seeds;
mod server;
pub mod statements;
pub mod tpch;
pub mod wide;
