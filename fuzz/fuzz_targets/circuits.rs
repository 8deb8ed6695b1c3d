//! Messages of circuits from another node.
#![no_main]

use libfuzzer_sys::fuzz_target;

/// The start of a header, so that the fuzzer need not find it.
const MAGIC: &[u8] = b"LC\x01";

fuzz_target!(|messages: Vec<(bool, Vec<u8>)>| {
    let whole = |(with_magic, rest): (bool, Vec<u8>)| if with_magic { [MAGIC, &rest].concat() } else { rest };
    let messages: Vec<_> = messages.into_iter().map(whole).collect();
    lightship_relay::fuzzing::circuits(&messages);
});
