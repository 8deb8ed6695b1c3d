//! Creates two or more hosts on one machine, joined by links of limited speed.
//!
//! - [`Link`]: bandwidth, delay and loss; `local`, `fast`, `lan`, `wan`, `slow`.
//! - [`Lab`]: creates hosts joined by such links.
//! - [`Host`]: a network namespace and a control group; processes started with
//!   [`Host::command`] run in both.
//! - [`Limits`]: processor, memory and disk limits of a host.
//! - [`verify`]: measures a link.
//!
//! When the last host of a network is dropped, or its process dies for any reason, a
//! guardian kills all processes on the hosts and removes their groups. A lab needs Linux,
//! root, and `iproute2`; [`doctor`] reports what is missing.
//!
//! Hosts share the machine's file system, processors and clock. They are not virtual
//! machines, and two hosts do not have twice the cores.
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

mod check;
mod error;
mod group;
mod guardian;
mod limits;
mod link;
mod measure;
mod measured;
mod namespace;
mod network;
mod rattan;
mod shaper;
mod system;
mod tools;
pub mod units;
mod wiring;

pub use check::Check;
pub use error::LabError;
pub use limits::Limits;
pub use link::{Link, Shape};
pub use measure::verify;
pub use measured::{EachWay, Measured, RoundTrip};
pub use network::{HOSTS_MAX, Host, Lab, Pair};
pub use shaper::Shaper;
pub use tools::doctor;

/// Prints a line to stderr and ignores errors. `eprintln!` is not used, because the test
/// harness captures its output.
fn say(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{line}");
}
