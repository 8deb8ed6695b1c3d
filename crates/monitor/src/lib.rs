//! Agents that count what hosts and processes use, and a collector that puts their samples on one time line.
//!
//! - [`Agent`]: takes samples of a host: processors, disks, network, sockets, memory and pressure, of the host and of
//!   the processes that [`Watch`] selects. Each figure has a source in
//!   [`HostSources`](lightship_usage::HostSources), or the reason why it is unavailable; such a figure is missing from
//!   samples, never 0. Counters are read on Linux only.
//! - [`datagram`]: samples as authenticated UDP datagrams (`docs/format.md`, section 11), and [`Sender`], which numbers
//!   them.
//! - [`clock`]: the offset of a host's clock, with a bound within which the true offset is.
//! - [`Collector`]: accepts datagrams, counts what is lost, and makes [`TimedSample`]s.
//! - [`HistoryWriter`]: writes them to Parquet files. [`QueryLog`]: keeps the assessed queries.
//! - [`recorder`]: the samples and queries of a node, and where the time of each query went.
//! - `send_spans`, with the feature `otlp`: sends queries to an OpenTelemetry receiver.
//! - [`http`]: a page, JSON and metrics of a recorder.
//! - [`calibrate_host`]: measures what a host can do at most; [`HostSpeedsStore`] keeps the results.
//!
//! [`run_agent`] and [`run_collector`] are sockets and timers around them; the rest does no I/O except for the files of
//! the kernel and the history. What the figures mean for a query is the work of `lightship-usage`.
//!
//! ```no_run
//! # async fn watch() -> std::io::Result<()> {
//! use lightship_monitor::{Agent, AgentOptions, Watch, run_agent, unix_ns};
//!
//! let options = AgentOptions { watch: Watch::Names(vec!["postgres".into()]), ..AgentOptions::new("db1") };
//! let agent = Agent::new(options, unix_ns());
//! // The sender can change the collectors while the agent runs.
//! let (_sender, collectors) = tokio::sync::watch::channel(vec!["10.0.0.1:4190".parse().unwrap()]);
//! run_agent(agent, collectors, "token", |_| ()).await?;
//! # Ok(())
//! # }
//! ```

mod agent;
mod calibrate;
pub mod clock;
mod collector;
#[cfg(target_os = "linux")]
mod counters;
pub mod datagram;
mod facts;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
#[cfg(target_os = "linux")]
mod growing;
mod history;
pub mod http;
mod net;
mod options;
#[cfg(target_os = "linux")]
mod perf;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(not(target_os = "linux"))]
#[path = "probe_elsewhere.rs"]
mod probe;
pub mod recorder;
mod sender;
#[cfg(target_os = "linux")]
mod sockets;
mod time;

pub use agent::{Agent, AgentCounter, AgentCounts, ProgramEntries};
pub use calibrate::{
    CalibrateOptions, CalibrateProgress, HostCalibrateError, HostSpeedsMeasured, HostSpeedsStore, LinkValues,
    MeasuredSpread, SpeedKind, SpeedResult, calibrate_host,
};
pub use collector::{
    Collector, CollectorCounts, CollectorEvent, CollectorOptions, HostCounts, HostReport, TimedSample,
};
pub use facts::HostFacts;
pub use history::{HistoryOptions, HistoryStatus, HistoryWriter, QueryLog, history_files, read_history};
pub use net::{AgentEvent, COLLECTORS_MAX, bind_collector, run_agent, run_collector};
#[cfg(feature = "otlp")]
pub use net::{SpanReceiver, send_spans};
pub use options::{AgentOptions, Watch};
pub use recorder::{QueryEnd, Recorder, RecorderOptions, run_recorder};
pub use sender::{Reaction, Sender};
pub use time::{monotonic_ns, unix_ns};
