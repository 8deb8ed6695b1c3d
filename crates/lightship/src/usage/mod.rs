//! What commands and queries used while they ran, and what limited them.
//!
//! [`run`] starts a command, samples its processes and their host until it ends, and divides its run time
//! ([`lightship_usage::Footprint`], [`lightship_usage::Verdict`]). [`Records`] keeps the last run of each label,
//! [`Predictions`] what was predicted for other hardware and what was measured there, and [`HostSpeedsStore`] what
//! [`calibrate_host`] has measured of this host. [`UsageCollector`] collects the samples of agents on many hosts, and
//! records the queries of a node.

mod collect;
mod postgres;
mod records;
mod remote;
mod run;

pub use collect::{CollectOptions, UsageCollector};
pub use lightship_monitor::http::HttpOptions;
pub use lightship_monitor::{
    CalibrateOptions, CalibrateProgress, HostSpeedsMeasured, HostSpeedsStore, LinkValues, MeasuredSpread,
    SpeedKind, SpeedResult, calibrate_host,
};
pub use lightship_session::{MeasuredRun, PredictionComparison, Predictions, SavedPrediction};
pub use lightship_usage::{
    Change, Division, Figure, Footprint, History, LinkSpeeds, NodesChange, Part, PartTime, Prediction,
    Verdict, what_if,
};
pub use records::{Record, Records};
pub use remote::{NodePage, NodeQuery, NodeQueryReport};
pub use run::{RunOptions, run};
