//! Datagrams of agents and collectors of resource usage.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|sent: Vec<lightship_monitor::fuzzing::Sent>| lightship_monitor::fuzzing::datagrams(sent));
