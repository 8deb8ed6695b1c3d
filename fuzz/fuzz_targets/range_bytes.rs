//! Stored blocks and messages of range files.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| lightship_rangefile::fuzzing::bytes(bytes));
