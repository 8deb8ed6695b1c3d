//! A cost model of transfers: calibrated from measurements, and minimised to find a plan.
//!
//! A result of V bytes is sent as batches of F rows (F^B bytes), and a batch as messages of at most M
//! bytes. The first message of a batch takes alpha seconds, every other one beta. Both are planes
//! over F^B and M that depend only on the link. This is the model MIND of A. Belghoul, "Optimizing
//! Communication Cost in Distributed Query Processing", PhD thesis, Université Clermont Auvergne,
//! 2017, extended by a window of W batches in flight. `docs/cost-model.md` derives all of it.
//!
//! - [`calibrate()`]: fits a [`LinkModel`] to [`Sample`]s, and says how good the fit is.
//! - [`Cost`] and [`WindowCost`]: what a [`Query`] costs at given sizes.
//! - [`newton()`]: the thesis' optimiser, with its halting [`Rules`]. [`descent()`]: an optimiser that
//!   never goes uphill. [`volume()`]: one that needs gradients alone. [`Grid`] and [`Strategy`]: baselines to compare
//!   them with.
//! - [`plan()`]: chooses batch, message and window together, with the least memory that is nearly as
//!   fast as any, and returns a [`Plan`]. [`explain()`]: what a plan's time is spent on, and the effect of
//!   half or twice its memory.
//! - [`thesis`]: the links, queries and limits of the thesis.
//! - [`reception`]: how one receiver takes the answers of many senders, with predicted times.
//! - [`WindowController`] and [`StripeController`]: controllers that adapt the sizes and the number of connections during a
//!   transfer.
//!
//! The crate has no I/O, clock, threads or randomness: callers measure times and pass them as `f64`
//! seconds. It does not choose codecs. A model does not follow a link that changes: calibrate again with
//! newer samples. Invalid inputs are rejected with a [`TunerError`], so no result is NaN.
//!
//! ```
//! use lightship_tuner::{Budget, Limits, Link, LinkModel, Plane, Query, Rules, newton, plan, thesis};
//!
//! // The thesis' plan: sizes grow step by step, as long as each step saves a second.
//! let rules = Rules { gain_seconds: Some(1.0), ..Rules::default() };
//! let walk = newton(&thesis::TEN_GIGABIT, &thesis::Q3, &thesis::LIMITS, &rules)?;
//! assert_eq!((walk.k, walk.plan.message_bytes), (17, 22_377));
//!
//! // Several batches in flight over 1 Gbit/s with 10 ms: the bandwidth-delay product is 1.25 MB.
//! let first = Plane::new(0.0, 8e-9, 10e-3);
//! let next = Plane::new(0.0, 8e-9, 10e-6);
//! let link = Link { model: LinkModel { first, next }, rtt_seconds: 10e-3, ..Link::default() };
//! let query = Query { volume_bytes: 10_000_000_000, row_bytes: 100.0 };
//! let limits = Limits { message_bytes_min: 512, message_bytes_max: 1 << 20, batch_bytes_max: 16 << 20 };
//! let plan = plan(&link, &query, &limits, &Budget::default())?;
//! assert!(plan.predicted_seconds < 82.0 && plan.memory_bytes < 1_500_000);
//! # Ok::<(), lightship_tuner::TunerError>(())
//! ```

mod calibrate;
mod cost;
mod descent;
mod error;
mod explain;
mod fit;
mod flight;
mod grid;
mod median;
mod model;
mod newton;
mod plan;
pub mod reception;
mod stages;
mod strategies;
mod streams;
#[cfg(test)]
mod tests;
pub mod thesis;
mod volume;
mod walk;
mod window;

pub use calibrate::{Calibration, Sample, calibrate, mean_relative_error};
pub use cost::{Cost, Hessian};
pub use descent::descent;
pub use error::{Result, TunerError};
pub use explain::{Bound, Explanation, Slowest, explain};
pub use fit::{Fit, Term, Why};
pub use flight::{Bounds, Sizes, WindowController};
pub use grid::Grid;
pub use median::median;
pub use model::{Limits, LinkModel, Plan, Plane, Query};
pub use newton::newton;
pub use plan::{Budget, plan};
pub use stages::{Rates, Stage};
pub use strategies::Strategy;
pub use streams::{ConsumedBatch, Segments, StripeController};
pub use volume::volume;
pub use walk::{Halt, Iteration, Rules, Walk};
pub use window::{Link, WindowCost};
