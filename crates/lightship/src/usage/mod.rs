//! What a command used while it ran, and what limited it.
//!
//! [`run`] starts a command, samples its processes and their host until it ends, and divides its run time
//! ([`lightship_usage::Footprint`], [`lightship_usage::Verdict`]). [`Records`] keeps the last run of each label.

mod records;
mod run;

pub use lightship_usage::{
    Change, Division, Footprint, History, NodesChange, Part, PartTime, Prediction, Verdict, what_if,
};
pub use records::{Record, Records};
pub use run::{RunOptions, run};
