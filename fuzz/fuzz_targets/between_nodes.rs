//! What nodes of a cluster send each other besides rows.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| lightship_engine::fuzzing::between_nodes(bytes));
