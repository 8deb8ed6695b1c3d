//! Frames of tunnels from another node.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lightship_relay::fuzzing::{Frame, tunnels};

fuzz_target!(|frames: Vec<Frame>| tunnels(&frames));
