//! Tests over sockets, and of the page in a browser.
#![allow(missing_docs)]

mod browser;
mod client;
mod devtools;
mod http;
#[cfg(target_os = "linux")]
mod live;
#[path = "../../examples/page/modelled.rs"]
mod modelled;
