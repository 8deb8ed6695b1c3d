//! Random tables and random queries over them, from a seed.
//!
//! A [`Table`] has a name, columns and rows. [`any_table`] draws one with Arrow's types; a [`DatabaseTable`] has
//! the types of a database, and prints the statements that create it there. [`any_query`] draws a [`Query`] that
//! compares columns with values that are in them, or with similar values. A query prints as SQL;
//! [`Query::smaller`] lists the smaller queries to try in place of a failing one.
//!
//! Two checks need no second system: [`Query::partitions`] (M. Rigger, Z. Su: Finding Bugs in Database
//! Systems via Query Partitioning, OOPSLA 2020) and [`Query::counts`] (the same: Detecting Optimization Bugs in
//! Database Engines via Non-Optimizing Reference Engine Construction, ESEC/FSE 2020).

mod ast;
mod databases;
mod draw;
mod literals;
mod smaller;
mod tables;

pub use ast::{Expr, From, Join, Limit, Output, Query, Recursive, Select};
pub use databases::{Database, DatabaseTable, PREPARE_POSTGRES};
pub use draw::{Shape, any_query};
pub use tables::{Table, Types, any_table, write_parquet};

/// Derives the seed of a part from the seed of the whole.
pub fn seed_of(seed: u64, part: u64) -> u64 {
    crate::rng::Rng(seed ^ part.wrapping_mul(0xd1b5_4a32_d192_ed03)).next()
}
