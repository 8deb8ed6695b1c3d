//! Requests and answers between nodes of a cluster, other than rows.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| lightship_engine::fuzzing::between_nodes(bytes));
