//! Where rows come from: nodes, databases, files on this host; one of them or many at once.
//!
//! [`Feeds`] are the places of one command. They are asked the same, and their answers become
//! one result: `open.rs` has a place and its answer, `columns.rs` the columns that answers have
//! in common, `turns.rs` whose rows come next, `union.rs` the whole.

mod columns;
mod open;
mod turns;
mod union;

pub(crate) use open::{FeedOptions, endpoint, endpoint_as, is_this_host, known, open_database, table_name};
pub(crate) use union::Feeds;
