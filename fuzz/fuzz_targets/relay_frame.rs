//! Headers of frames between nodes of an overlay: arbitrary ones, and ones with a correct checksum.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lightship_wire::frame::crc32c;

fuzz_target!(|bytes: &[u8]| {
    lightship_relay::fuzzing::frame(bytes);
    if let Some(header) = bytes.first_chunk::<29>() {
        let mut frame = [b"LR\x01", header.as_slice()].concat();
        frame.extend_from_slice(&crc32c(&frame).to_le_bytes());
        lightship_relay::fuzzing::frame(&frame);
    }
});
