//! Agents that count what hosts and processes use, and a collector that puts their samples on one time line.
//!
//! - [`Agent`]: takes samples of a host: processors, disks, network, sockets, memory and pressure, of the host and of
//!   the processes that [`Watch`] selects. Each figure has a source in [`Sources`], or the reason why it can't be had;
//!   such a figure is missing from samples, never 0. Counters are read on Linux only.
//! - [`datagram`]: samples as authenticated UDP datagrams (`docs/format.md`, section 11), and [`Sender`], which numbers
//!   them.
//! - [`clock`]: the offset of a host's clock, with a bound within which the true offset is.
//! - [`Collector`]: takes in datagrams, counts what is lost, and makes [`TimedSample`]s.
//! - [`HistoryWriter`]: writes them to Parquet files.
//!
//! [`run_agent`] and [`run_collector`] are sockets and timers around them; all the rest has no I/O but the files of the
//! kernel and the history. What the figures mean for a query is the work of `lightship-usage`.
//!
//! ```no_run
//! # async fn watch() -> std::io::Result<()> {
//! use lightship_monitor::{Agent, AgentOptions, Watch, run_agent, unix_ns};
//!
//! let options = AgentOptions { watch: Watch::Names(vec!["postgres".into()]), ..AgentOptions::new("db1") };
//! let agent = Agent::new(options, unix_ns());
//! run_agent(agent, &["10.0.0.1:4190".parse().unwrap()], "token", |_| ()).await?;
//! # Ok(())
//! # }
//! ```

mod agent;
pub mod clock;
mod collector;
#[cfg(target_os = "linux")]
mod counters;
pub mod datagram;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
#[cfg(target_os = "linux")]
mod growing;
mod history;
mod net;
mod options;
#[cfg(target_os = "linux")]
mod perf;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(not(target_os = "linux"))]
#[path = "probe_elsewhere.rs"]
mod probe;
mod sender;
#[cfg(target_os = "linux")]
mod sockets;
mod source;
mod time;

pub use agent::Agent;
pub use collector::{
    Collector, CollectorCounts, CollectorEvent, CollectorOptions, HostCounts, HostReport, TimedSample,
};
pub use history::{HistoryOptions, HistoryStatus, HistoryWriter, history_files, read_history};
pub use net::{AgentEvent, bind_collector, run_agent, run_collector};
pub use options::{AgentOptions, Watch};
pub use sender::{Reaction, Sender};
pub use source::{Availability, HostFacts, Scope, Sources, TEXT_BYTES_MAX};
pub use time::{monotonic_ns, unix_ns};
