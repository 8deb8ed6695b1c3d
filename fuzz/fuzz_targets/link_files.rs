//! Arbitrary files with a profile of a link and a history of transfers. The input is a profile, a zero
//! byte, a history.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let end = input.iter().position(|&byte| byte == 0).unwrap_or(input.len());
    let (profile, history) = input.split_at(end);
    if let Ok(profile) = std::str::from_utf8(profile) {
        lightship_session::fuzzing::link_files(profile, history.get(1..).unwrap_or_default());
    }
});
