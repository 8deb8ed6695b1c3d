//! Where a query's time went: counters of machines and processes, mapped back to the queries that used them.
//!
//! The database is a black box: agents sample what its processes, tasks and sockets use on every host. This crate puts
//! the samples on one time line, and tells for each query what limited it, and what other hardware would change. The
//! model is that of M. Taufer, T. Stricker and R. Weber, "Inverting Middleware Framework: a Framework for Performance
//! Analysis of Distributed OLAP Benchmark on Clusters of PCs by Filtering and Abstracting Low Level Resource Usage",
//! ETH Zürich.
//!
//! - [`Sample`]: what an agent counts on a host at one moment. [`HostSources`]: where its figures come from.
//! - [`Timeline`]: the samples of all hosts on one time line ([`ClockMap`]), within a limit of memory.
//! - [`Footprint`]: what a query ([`QuerySpan`]) used on each host, and the [`Division`] of its run time into parts
//!   that add up to it, each with bounds. [`HostSpeeds`]: what the hosts can do.
//! - [`Verdict`]: what limited the query, in a sentence with its evidence.
//! - [`what_if`]: the run time after a [`Change`], with an error bar. [`History`]: predictions against facts.
//!
//! The crate has no I/O, clock, threads or randomness: callers take the samples and align the clocks. Figures that
//! are unavailable are missing, never 0. It does not look into the database: time that no sampled resource explains is
//! unexplained, and said to be.
//!
//! ```
//! use std::collections::BTreeMap;
//! use lightship_usage::{
//!     Change, ClockMap, Entry, Figure, Figures, Footprint, History, HostWork, Limit, QuerySpan, Sample, Subject,
//!     Timeline, TimelineLimits, Verdict, Worker, what_if,
//! };
//!
//! // A process that computes for 4 s, and waits for its disk for 1 s.
//! const SECOND: u64 = 1_000_000_000;
//! let process = Subject::Process { pid: 42, began_ns: 0 };
//! let mut timeline = Timeline::new(TimelineLimits::default());
//! timeline.set_clock("node1", ClockMap::identity())?;
//! for number in 0..=5 {
//!     let mut figures = Figures::default();
//!     figures.set(Figure::CpuUserNs, number.min(4) * SECOND);
//!     figures.set(Figure::DiskWaitNs, number.saturating_sub(4) * SECOND);
//!     let entries = vec![Entry { subject: process.clone(), figures }];
//!     timeline.insert(Sample { host: "node1".into(), run: 1, number, at_ns: number * SECOND, entries })?;
//! }
//!
//! let workers = vec![Worker::own(process)];
//! let query = QuerySpan {
//!     label: "q1".into(),
//!     began_ns: 0,
//!     ended_ns: 5 * SECOND,
//!     hosts: vec![HostWork { host: "node1".into(), workers, divides: true }],
//!     ..QuerySpan::default()
//! };
//! let footprint = Footprint::new(&timeline, &BTreeMap::new(), &query)?;
//! let verdict = Verdict::new(&footprint);
//! assert_eq!(verdict.limit, Limit::Cpu);
//! assert_eq!(verdict.sentence, "Limited by the processors of node1: 4.0 s of 5.0 s (80%).");
//!
//! // Processors that are twice as fast save half of the 4 s.
//! let prediction = what_if(&footprint, &Change { cpu: 2.0, ..Change::default() }, &History::default())?;
//! assert!((prediction.seconds - 3.0).abs() < 0.01);
//! # Ok::<(), lightship_usage::UsageError>(())
//! ```

mod amount;
mod change_text;
mod clock;
mod curve;
mod disk;
mod divide;
mod error;
mod evidence;
mod exchange;
mod figure;
mod fixed;
mod footprint;
mod gather;
mod held;
mod history;
mod load;
mod network;
mod part;
mod query;
mod sample;
mod series;
mod source;
mod speeds;
mod spread;
#[cfg(test)]
mod tests;
mod timeline;
mod track;
mod turns;
mod verdict;
mod what_if;

pub use amount::Amount;
pub use clock::ClockMap;
pub use disk::AccessOrder;
pub use error::{Result, UsageError};
pub use figure::Figure;
pub use footprint::{ChargedFigure, Footprint, HostFootprint, ModelTimes};
pub use history::{ChangeKind, History, PredictedRun, PredictionError};
pub use part::{Basis, Division, PHASES_MAX, Part, PartTime, Phase};
pub use query::{HostWork, Known, QuerySpan, Share, Worker};
pub use sample::{Entry, Figures, Sample, Subject};
pub use series::Series;
pub use source::{FigureSource, HostSources, SubjectKind};
pub use speeds::{HostSpeeds, LinkSpeeds};
pub use timeline::{Insertion, SampleCounts, Timeline, TimelineLimits, Used};
pub use verdict::{Limit, Verdict};
pub use what_if::{Change, NodesChange, Prediction, what_if};
