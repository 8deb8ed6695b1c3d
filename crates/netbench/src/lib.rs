//! Measures a network by itself: how fast messages of a given size travel over a number of connections.
//!
//! - [`Server`]: discards messages or echoes them, with one task per connection.
//! - [`measure`]: measures one cell of the grid connections x message size, as a [`Row`]. First latency,
//!   with one message at a time on each connection; then throughput with all connections saturated,
//!   counted at the receiver, together with loaded latency and the processor use of both ends.
//! - [`measure_link`]: what the link to a server can do at most, in both directions.
//! - [`Sweep`]: measures a whole grid into a [`ResultTable`], a CSV file that a later sweep can continue.
//! - [`figures`]: plots of a sweep. [`Plateau`], [`SavedPlateau`]: its result, saved for each host. [`Limits`]:
//!   the limits that a node of a cluster derives from it.
//!
//! This is the benchmark of S. Samson, "Improving Data-Shuffle Performance in Data-Parallel
//! Distributed Systems", MSc thesis, Illinois Institute of Technology, 2018, chapter 3, without its
//! flaws: there, a connection had many pings in flight, so that latency was mostly queueing behind the
//! sender's own messages; the clock had a resolution of milliseconds; throughput was counted at the sender.
//!
//! It uses plain TCP and not Lightship's protocol, so that it measures only the network. It does not
//! authenticate: anyone who can reach a server can send to it.
//!
//! ```no_run
//! use lightship_netbench::{Cell, Settings, Target, measure};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let target = Target::find(&"db.example".parse()?).await?;
//! let cell = Cell { connections: 16, message_bytes: 8192 };
//! let row = measure(&[target], &Settings::default(), cell).await;
//! println!("{:?} bytes per second", row.throughput_bytes_per_second);
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
mod link;
mod outcome;
mod returned;
mod row;
mod run;
mod server;
mod stats;
mod sweep;
mod table;
mod whole;
mod wire;

pub use cpu::{Cpu, open_files_max};
pub use error::{ConnectionError, GridError, HostError, NetbenchError};
pub use figures::{Figure, figures};
pub use grid::{CONNECTIONS, CONNECTIONS_MAX, MESSAGE_BYTES, parse_values};
pub use host::{Host, PORT, Target};
pub use limits::{Bounds, Limits};
pub use link::{LinkRates, measure_link};
pub use outcome::{NEARLY, Plateau, SavedPlateau};
pub use row::{Cell, DELAY_MS_MAX, Row, SECONDS_MAX, Settings, hosts_text};
pub use run::measure;
pub use server::{Counters, Server, ServerConfig};
pub use stats::Latency;
pub use sweep::Sweep;
pub use table::ResultTable;
pub use whole::write as write_whole;
pub use wire::{MESSAGE_BYTES_MAX, Refusal};
