//! Real hosts on this machine. Without root, or what else a lab needs, each test
//! says on stderr that it is skipped, and why.

mod command;
mod hosts;
mod support;
