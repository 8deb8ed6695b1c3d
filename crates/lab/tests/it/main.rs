//! Tests with real hosts on this machine. Without root or another requirement of a lab, each
//! test prints to stderr that it is skipped, and why.

mod command;
mod hosts;
mod support;
