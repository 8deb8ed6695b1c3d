//! What a plan will cost: how many rows each operator gives ([`estimate`]), from what is known of the tables
//! ([`statistics`]) and of earlier queries ([`facts`]), what a processor and a link do in a second
//! ([`rates`]), which way to run joins and aggregations is the fastest ([`ways`]), and what nodes will send
//! each other ([`edges`]), in what time ([`times`]), beside what they sent ([`history`]).

pub(crate) mod edges;
pub(crate) mod estimate;
pub(crate) mod facts;
pub(crate) mod history;
mod identity;
pub(crate) mod rates;
pub(crate) mod statistics;
mod times;
pub(crate) mod ways;
