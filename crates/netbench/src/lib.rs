//! A network measured by itself: how fast messages of a size go over so many connections.
//!
//! - [`Server`]: swallows what comes or sends it back, a task a connection.
//! - [`measure`]: one cell of the grid connections x message size, as a [`Row`]: latency with one
//!   message at a time on each connection; then throughput with all of them full, counted where it
//!   arrives, latency beside it, and how busy both ends are.
//! - [`Sweep`]: a whole grid, into a [`Table`] that is a CSV file and can be gone on with.
//! - [`figures`]: its plots. [`Plateau`], [`Outcome`]: what it says, kept for each host. [`Limits`]: what a
//!   node of a cluster makes of it.
//!
//! This is the benchmark of S. Samson, "Improving Data-Shuffle Performance in Data-Parallel
//! Distributed Systems", MSc thesis, Illinois Institute of Technology, 2018, chapter 3, but for what
//! was wrong with it: there a connection had many pings under way, so that latency was mostly
//! waiting behind one's own; the clock had milliseconds; throughput was counted where it was sent.
//!
//! It speaks TCP of its own and nothing of Lightship's protocol, so that it measures the network
//! and not us. It does not authenticate: whoever reaches a server can send to it.
//!
//! ```no_run
//! use lightship_netbench::{Cell, Settings, Target, measure};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let target = Target::find(&"db.example".parse()?).await?;
//! let cell = Cell { connections: 16, message_bytes: 8192 };
//! let row = measure(&[target], &Settings::default(), cell).await;
//! println!("{:?} bytes a second", row.throughput_bytes_per_second);
//! # Ok(())
//! # }
//! ```

mod connect;
mod connection;
mod cpu;
mod error;
mod figures;
#[cfg(fuzzing)]
pub mod fuzzing;
mod grid;
mod host;
mod limits;
mod outcome;
mod row;
mod run;
mod server;
mod stats;
mod sweep;
mod table;
mod whole;
mod wire;

pub use cpu::{Cpu, open_files_max};
pub use error::{Fault, GridError, HostError, NetbenchError};
pub use figures::{Figure, figures};
pub use grid::{CONNECTIONS, CONNECTIONS_MAX, MESSAGE_BYTES, parse_values};
pub use host::{Host, PORT, Target};
pub use limits::{Bounds, Limits};
pub use outcome::{NEARLY, Outcome, Plateau};
pub use row::{Cell, DELAY_MS_MAX, Row, SECONDS_MAX, Settings, hosts_text};
pub use run::measure;
pub use server::{Counters, Server, ServerConfig};
pub use stats::Latency;
pub use sweep::Sweep;
pub use table::Table;
pub use whole::write as write_whole;
pub use wire::{MESSAGE_BYTES_MAX, Refusal};
