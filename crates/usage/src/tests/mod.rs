//! Queries on modelled machines: is their time divided as it was spent, and are changes predicted as they turn out?

mod corners;
mod faults;
mod machine;
mod network;
mod properties;
mod quota;
mod scenarios;
mod what_if;
