//! The protocol of network measurements, and their stored results.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    lightship_netbench::fuzzing::wire(bytes);
    lightship_netbench::fuzzing::wire(&[b"LSNB\x01", bytes].concat());
    lightship_netbench::fuzzing::outcome(bytes);
});
