//! Two or more hosts on one machine, with links as slow as asked for.
//!
//! - [`Link`]: bandwidth, delay and loss; `local`, `fast`, `lan`, `wan`, `slow`.
//! - [`Lab`]: makes hosts that such links join.
//! - [`Host`]: a network namespace and a control group; what [`Host::command`]
//!   starts runs in both.
//! - [`Limits`]: processors, memory and disk of a host.
//! - [`verify`]: measures what a link has come to.
//!
//! When the last host of a network is dropped, or its process dies of anything, a
//! guardian kills all that ran there and removes the rest. Linux, root, and
//! `iproute2` are needed; [`doctor`] says what is missing.
//!
//! Hosts share the machine's file system, processors and clock: this is no
//! virtual machine, and two hosts are not twice the cores.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let lab = lab::Lab::new()?;
//! let pair = lab.pair(&lab::Link::lan())?;
//! let mut server = pair.b.command("python3").args(["-m", "http.server", "8000"]).spawn()?;
//! let address = pair.b.address();
//! pair.a.command("curl").arg(format!("http://{address}:8000/")).status()?;
//! server.kill()?;
//! server.wait()?;
//! # Ok(())
//! # }
//! ```

mod error;
mod group;
mod guardian;
mod limits;
mod link;
mod measure;
mod namespace;
mod network;
mod rattan;
mod shaper;
mod system;
mod tools;
pub mod units;
mod wiring;

pub use error::LabError;
pub use limits::Limits;
pub use link::{Link, Shape};
pub use measure::{EachWay, Measured, RoundTrip, verify};
pub use network::{HOSTS_MAX, Host, Lab, Pair};
pub use shaper::Shaper;
pub use tools::{Check, doctor};

/// A line on stderr; when nobody listens there, the work goes on. Not a macro of
/// the standard library's, which a test's harness would swallow.
fn say(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{line}");
}
