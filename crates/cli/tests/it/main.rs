//! Tests of the `lightship` command as people use it: with real processes, sockets and databases.

mod bad_input;
mod calibrate;
mod cluster;
mod compute;
mod copy;
mod databases;
mod ends;
mod fetch;
mod files;
mod history;
mod hostile;
mod large;
mod manual;
mod many;
mod nemesis;
mod netbench;
mod node;
mod output;
mod overlay;
mod range;
mod range_kills;
mod security;
mod support;
mod tune;
mod types;
mod union;
